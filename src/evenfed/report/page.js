"use strict";
(() => {
  document.documentElement.classList.add("js");
  const SVG = "http://www.w3.org/2000/svg";
  const make = (tag, attributes = {}, text = "", space = null) => {
    const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== "") node.textContent = text;
    return node;
  };

  // words on pointing at a mark: the title that the drawing already holds
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest && event.target.closest(".mark");
    const title = mark && mark.querySelector("title");
    tip.hidden = !title;
    if (!title) return;
    tip.textContent = title.textContent;
    const wide = tip.offsetWidth;
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - wide - 8)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // tables sort by a column
  const value = (cell) => {
    const text = cell.textContent.trim().replaceAll(",", "");
    const number = parseFloat(text);
    const units = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, min: 60, h: 3600 };
    const unit = /^[-+\d.e]+ (B|kB|MB|GB|min|h)\b/.exec(text);
    return Number.isNaN(number) ? text : number * (unit ? units[unit[1]] : 1);
  };
  for (const table of document.querySelectorAll(".scroll table")) {
    const body = table.tBodies[0];
    if (body.rows.length < 3) continue;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [value(a.cells[column]), value(b.cells[column])];
          const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
          return down ? -order : order;
        });
        body.append(...rows);
      });
    });
  }

  // what is folded is printed too
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

  // the front explorer
  const wilson = (part, n) => {
    const z = 1.959963984540054, share = part / n, w = (z * z) / n;
    const middle = (share + w / 2) / (1 + w);
    const half = (z * Math.sqrt((share * (1 - share)) / n + w / (4 * n))) / (1 + w);
    return [Math.max(0, middle - half), Math.min(1, middle + half)];
  };
  const FEW = 10;
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const shown = (x) => (x === null || Number.isNaN(x) ? "undefined" : x.toFixed(3));
  const rate = (part, n) => {
    if (!n) return ["undefined", true];
    const [low, high] = wilson(part, n);
    return [`${(part / n).toFixed(3)} (${low.toFixed(2)} to ${high.toFixed(2)})`, n < FEW];
  };
  const pointOf = (part, i) => {
    const error = sum(part.errors[i]) / sum(part.examples);
    return { x: part.disparity[i], y: error };
  };
  const ticks = (low, high, wanted) => {
    const span = high - low || 1, power = 10 ** Math.floor(Math.log10(span / wanted));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s * wanted >= span * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9; k += 1) found.push(k * step);
    return found;
  };

  const explorer = (root) => {
    const data = JSON.parse(root.querySelector("script").textContent);
    const methods = [...new Set(data.entries.map((e) => e.method))];
    const id = root.dataset.key;
    const field = (words, control) => {
      const label = make("label", {}, words);
      label.append(control);
      return label;
    };
    const choice = (name, options) => {
      const node = make("select", { "data-control": name });
      for (const [key, words] of options) node.append(make("option", { value: key }, words));
      return node;
    };
    const seedsOf = (method) => data.entries.filter((e) => e.method === method).map((e) => e.seed);
    const seeds = [...new Set(data.entries.map((e) => e.seed))];
    const method = choice("method", methods.map((m) => [m, m]));
    const over = choice("over", [["", "nothing"], ...methods.map((m) => [m, m])]);
    const seed = choice("seed", seeds.map((s) => [s, `seed ${s}`]));
    const whose = choice("whose", []);
    const range = make("input", { type: "range", min: 0, max: data.preferences.length - 1, step: 1,
      "data-control": "preference", "aria-label": "Preference, from accurate to fair" });
    const start = data.entries[0].start;
    range.value = data.preferences.reduce((best, p, i) =>
      (Math.abs(p - start) < Math.abs(data.preferences[best] - start) ? i : best), 0);
    const slider = make("label");
    const words = make("span");
    slider.append(words, range);
    const hide = make("input", { type: "checkbox", "data-control": "hide" });
    const check = make("label", { class: "check" });
    check.append(hide, make("span", {}, "Hide dominated points (decided on validation data)"));
    const limit = make("input", { type: "number", min: 0, max: 1, step: 0.01, value: 0.05, "data-control": "limit" });
    const take = make("button", { type: "button", "data-control": "choose" }, "Choose");
    const bound = make("div", { class: "limit" });
    bound.append(field("Largest disparity on validation data", limit), take);
    const controls = make("div", { class: "controls" });
    if (methods.length > 1) controls.append(field("Method", method), field("Lay over it", over));
    if (seeds.length > 1) controls.append(field("Seed", seed));
    controls.append(field("Whose models and data", whose), bound);
    const told = make("p", { class: "told", role: "status" });
    const planes = make("div", { class: "planes" });
    const panel = (split, title) => {
      const box = make("div");
      const svg = make("svg", { viewBox: "0 0 350 270", role: "img", "data-split": split }, "", SVG);
      box.append(make("p", {}, title), svg);
      planes.append(box);
      return svg;
    };
    const drawings = { val: panel("val", "Validation data: choose here"), test: panel("test", "Test data: report this") };
    const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The chosen model" });
    const table = make("table");
    scroll.append(table);
    const command = make("pre", { tabindex: 0, "data-control": "command" });
    const copy = make("button", { type: "button" }, "Copy");
    copy.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(command.textContent); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(command); copy.textContent = "Selected"; }
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    root.append(controls, slider, check, told, planes, scroll, make("p", { class: "label" }, "To export this model"), command, copy);

    const entry = (name) => data.entries.find((e) => e.method === name && String(e.seed) === seed.value);
    const refill = () => {
      const before = whose.value, parts = entry(method.value) ? entry(method.value).parts : {};
      whose.replaceChildren();
      for (const name of Object.keys(parts)) {
        whose.append(make("option", { value: name }, name === "" ? "all clients, global model" : `client ${name}`));
      }
      if (before in parts) whose.value = before;
    };
    const layers = () => [method.value, over.value].filter((m, i, all) => m && all.indexOf(m) === i)
      .map((m) => ({ name: m, color: `var(--s${methods.indexOf(m) % 7})`, part: entry(m) && entry(m).parts[whose.value] }))
      .filter((layer) => layer.part);

    const drawPlane = (split, found, at) => {
      const svg = drawings[split];
      const all = found.flatMap((l) => (l.part[split] ? l.part[split].errors.map((_, i) => pointOf(l.part[split], i)) : []))
        .filter((p) => p.x !== null);
      svg.replaceChildren();
      if (!all.length) {
        svg.append(make("text", { x: 20, y: 40, fill: "var(--soft)", "font-size": 13 }, `no ${split === "val" ? "validation" : "test"} examples here`, SVG));
        svg.setAttribute("aria-label", "No examples");
        return;
      }
      const ends = (values, zero) => {
        const low = Math.min(...values), high = Math.max(...values), pad = 0.06 * (high - low || 0.1);
        return [zero && low < 0.05 ? 0 : low - pad, high + pad];
      };
      const [x0, x1] = ends(all.map((p) => p.x), true), [y0, y1] = ends(all.map((p) => p.y), false);
      const X = (v) => 48 + ((v - x0) / (x1 - x0)) * 292, Y = (v) => 222 - ((v - y0) / (y1 - y0)) * 192;
      const text = (x, y, words, anchor = "middle", fill = "var(--soft)") =>
        svg.append(make("text", { x, y, "text-anchor": anchor, "font-size": 11, fill }, words, SVG));
      for (const v of ticks(y0, y1, 4)) {
        svg.append(make("line", { x1: 48, x2: 340, y1: Y(v), y2: Y(v), stroke: "var(--line)" }, "", SVG));
        text(42, Y(v) + 4, String(+v.toFixed(4)), "end");
      }
      for (const v of ticks(x0, x1, 5)) text(X(v), 239, String(+v.toFixed(4)));
      text(0, 12, "error", "start");
      text(194, 260, data.axis);
      found.forEach((layer, order) => {
        const part = layer.part[split];
        if (!part) return;
        const best = layer.part.best.length ? layer.part.best : part.errors.map(() => 1);
        const points = part.errors.map((_, i) => ({ ...pointOf(part, i), i, good: best[i] === 1 })).filter((p) => p.x !== null);
        const line = points.filter((p) => p.good).sort((a, b) => a.x - b.x || b.y - a.y);
        if (split === "val") {
          svg.append(make("polyline", { points: line.map((p) => `${X(p.x)},${Y(p.y)}`).join(" "), fill: "none",
            stroke: layer.color, "stroke-width": 1.5, "stroke-dasharray": order ? "6 3" : "none" }, "", SVG));
        }
        for (const p of points) {
          if (hide.checked && !p.good) continue;
          const dot = make(order ? "rect" : "circle", { class: "mark point", fill: layer.color, "fill-opacity": p.good ? 0.8 : 0.22,
            ...(order ? { x: X(p.x) - 3, y: Y(p.y) - 3, width: 6, height: 6 } : { cx: X(p.x), cy: Y(p.y), r: p.good ? 3.6 : 2.8 }) }, "", SVG);
          dot.append(make("title", {}, `${layer.name}, preference ${data.preferences[p.i]}: error ${shown(p.y)}, disparity ${shown(p.x)}`, SVG));
          if (order === 0) dot.addEventListener("click", () => { range.value = p.i; update(); });
          svg.append(dot);
        }
        const chosen = pointOf(part, at);
        if (chosen.x !== null) {
          svg.append(make("circle", { class: order ? "marker second" : "marker", cx: X(chosen.x), cy: Y(chosen.y), r: 8, fill: "none",
            stroke: "var(--ink)", "stroke-width": 2.5 }, "", SVG));
          if (found.length > 1) text(X(chosen.x) + (X(chosen.x) > 260 ? -12 : 12), Y(chosen.y) - 9, layer.name, X(chosen.x) > 260 ? "end" : "start", layer.color);
        }
      });
      const one = found[0].part[split] ? pointOf(found[0].part[split], at) : { x: null, y: null };
      svg.setAttribute("aria-label", `${split === "val" ? "Validation" : "Test"} data, error against disparity. ${found[0].name} at preference ${data.preferences[at]}: error ${shown(one.y)}, disparity ${shown(one.x)}.`);
    };

    const fill = (found, at) => {
      const head = make("tr"), body = make("tbody");
      head.append(make("td"));
      const columns = found.flatMap((l) => [["val", "validation (choose)"], ["test", "test (report)"]]
        .map(([split, title]) => ({ part: l.part[split], title: found.length > 1 ? `${l.name}, ${title}` : title, split })));
      for (const c of columns) head.append(make("th", { scope: "col" }, c.title));
      const row = (title, cells, key) => {
        const line = make("tr", key ? { "data-row": key } : {});
        line.append(make("th", { scope: "row" }, title));
        for (const [text, grey] of cells) line.append(make("td", grey ? { class: "muted" } : {}, text));
        body.append(line);
      };
      const per = (get) => columns.map((c) => (c.part ? get(c.part) : ["no examples", true]));
      row("error", per((p) => rate(sum(p.errors[at]), sum(p.examples))), "error");
      row("disparity", per((p) => [shown(p.disparity[at]), false]), "disparity");
      data.groups.forEach((group, g) => {
        row(`accuracy, ${group}`, per((p) => rate(p.examples[g] - p.errors[at][g], p.examples[g])));
        if (!columns.some((c) => c.part && c.part.selected)) return;
        row(`selection rate, ${group}`, per((p) => rate(p.selected[at][g], p.examples[g])), `selected-${g}`);
        row(`true positive rate, ${group}`, per((p) => rate(p.found[at][g], p.positive[g])));
        row(`false positive rate, ${group}`, per((p) => rate(p.selected[at][g] - p.found[at][g], p.examples[g] - p.positive[g])));
      });
      const thead = make("thead");
      thead.append(head);
      table.replaceChildren(make("caption", {}, `Preference ${data.preferences[at]}`), thead, body);
    };

    const quoted = (text) => (/^[\w.@%+=:,/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const update = () => {
      const at = Number(range.value), found = layers();
      words.textContent = `Preference ${data.preferences[at].toFixed(2)} (0 is the most accurate, 1 the fairest)`;
      range.setAttribute("aria-valuetext", `preference ${data.preferences[at]}`);
      if (!found.length) return;
      drawPlane("val", found, at);
      drawPlane("test", found, at);
      fill(found, at);
      const client = whose.value === "" ? "" : ` --client ${quoted(whose.value)}`;
      command.textContent = `evenfed export ${quoted(entry(method.value).folder)}${client} --preference ${data.preferences[at]} --format safetensors`;
    };
    take.addEventListener("click", () => {
      const [first] = layers(), part = first && first.part.val;
      if (!part) { told.textContent = "There are no validation examples here, so nothing can be chosen."; return; }
      const most = Number(limit.value);
      if (limit.value.trim() === "" || !(most >= 0 && most <= 1)) {
        told.textContent = "Give the largest disparity as a number from 0 to 1.";
        return;
      }
      const blind = data.groups.filter((_, g) => !part.examples[g])
        .map((group) => ` Group ${group} has no validation examples: this choice does not see it.`).join("");
      let best = -1;
      part.errors.forEach((_, i) => {
        const p = pointOf(part, i);
        if (p.x === null || p.x > most) return;
        const b = best < 0 ? null : pointOf(part, best);
        // of equal errors the lower disparity, of equal models the fairest preference
        if (!b || p.y < b.y || (p.y === b.y && p.x <= b.x)) best = i;
      });
      if (best < 0) {
        const known = part.disparity.filter((d) => d !== null);
        told.textContent = `No model has a disparity of at most ${limit.value} on validation data; the lowest is ${known.length ? shown(Math.min(...known)) : "undefined"}.${blind}`;
        return;
      }
      range.value = best;
      told.textContent = `Preference ${data.preferences[best]} has the lowest validation error within ${limit.value}.${blind}`;
      update();
    });
    range.addEventListener("input", () => { told.textContent = ""; update(); });
    for (const node of [method, seed, whose]) node.addEventListener("change", () => { told.textContent = ""; });
    for (const node of [over, whose, hide]) node.addEventListener("change", update);
    for (const node of [method, seed]) node.addEventListener("change", () => { refill(); update(); });
    method.addEventListener("change", () => { if (!seedsOf(method.value).map(String).includes(seed.value)) seed.value = seedsOf(method.value)[0]; refill(); update(); });
    root.setAttribute("aria-label", "Front explorer");
    root.id = `${id}-explorer`;
    refill();
    update();
  };
  for (const root of document.querySelectorAll(".explorer")) explorer(root);
})();
