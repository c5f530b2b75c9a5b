"""Is it fair to clients: the distribution over clients, the worst by name, excess risks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from evenfed.metrics.proportion import mean_interval, wilson
from evenfed.report.answers.chapter import Chapter
from evenfed.report.charts import BarRow, Bars, Dot, DotRow, Dots, Figure
from evenfed.report.sections import Grid, Section
from evenfed.report.words import FEW, FEW_NOTE, between, count, listed, number, percent
from evenfed.runs.record import Record
from evenfed.runs.table import LOCAL

NAMED = 5
"""Worst clients that are named."""
_BARS = 60
"""Clients beyond which bars would be hairs."""


def clients(chapter: Chapter) -> Section:
    """Accuracy (loss, where labels are numbers) of every client."""
    value = "loss" if chapter.regression else "accuracy"
    figures: list[Figure] = []
    dots = _distribution(chapter, value)
    if dots is not None:
        figures.append(dots)
    said, notes = _said(chapter, value) + _faa(chapter) + _untested(chapter), []
    bars, why = _excess(chapter)
    if bars is not None:
        figures.append(bars)
    if chapter.trained:
        notes.append(why)
    moves = "" if chapter.regression else "A client with few test examples moves in large steps. "
    notes.append(moves + FEW_NOTE)
    title = "Is it fair to clients?"
    return Section("clients", title, said, figures, [_worst(chapter, value)], notes)


def _frame(record: Record, value: str) -> pd.DataFrame:
    """Clients that have a value, worst first."""
    assert record.clients is not None
    found = record.clients[record.clients[value].map(math.isfinite)]
    return found.sort_values([value], ascending=value != "loss", kind="stable")


def _empty(record: Record) -> list[str]:
    """Names of the clients without test examples."""
    assert record.clients is not None
    return [str(name) for name, n in record.clients["examples"].items() if n == 0]


def _untested(chapter: Chapter) -> list[str]:
    names = list(dict.fromkeys(name for record in chapter.done for name in _empty(record)))
    if not names:
        return []
    more = [count(len(names) - NAMED, "more client", "more clients")] if names[NAMED:] else []
    return [f"No test examples, so nothing is known here of: {listed(names[:NAMED] + more)}."]


def _distribution(chapter: Chapter, value: str) -> Dots | None:
    rows = []
    several = len(chapter.seeds) > 1
    for method, own in chapter.by_method():
        dots, worst = [], []
        for record in own:
            frame = _frame(record, value)
            seed = f", seed {record.seed}" if several else ""
            pairs = zip(frame.index, frame[value], frame["examples"], strict=True)
            dots += [Dot(float(v), f"{name}{seed}", n < FEW) for name, v, n in pairs]
            worst += [float(frame[value].iloc[0])] if len(frame) else []
        if dots:
            mean = sum(d.value for d in dots) / len(dots)
            remark = f"worst {number(sum(worst) / len(worst))}, mean {number(mean)}"
            color = 6 if method in chapter.references else 0
            rows.append(DotRow(chapter.label(method), dots, remark, color))
    if not rows:
        return None
    if alone := _alone(chapter):
        rows.append(_row_alone(chapter, alone))
    constant = chapter.first["metrics"].get("constant_accuracy") if chapter.single else None
    seeds = " and seed" if several else ""
    return Dots(
        "clients", f"{value.capitalize()} of every client",
        " ".join(f"{row.label}: {row.remark}." for row in rows),
        f"{value}; one dot a client{seeds}, bar: mean", rows,
        high=1.0 if value == "accuracy" else None,
        references=[] if constant is None else [("constant predictor, all clients", constant)],
    )  # fmt: skip


def _alone(chapter: Chapter) -> dict[str, float]:
    """What clients reach alone, by name, where the run's reference kept it."""
    found = {} if chapter.alone is None else chapter.alone.get("clients", {})
    return {name: value for name, value in found.items() if value is not None}


def _row_alone(chapter: Chapter, alone: dict[str, float]) -> DotRow:
    frame = chapter.done[0].clients
    sizes = {} if frame is None else frame["examples"].to_dict()
    dots = [Dot(value, name, sizes.get(name, 0) < FEW) for name, value in alone.items()]
    worst = (max if chapter.regression else min)(alone.values())
    mean = sum(alone.values()) / len(alone)
    return DotRow(LOCAL, dots, f"worst {number(worst)}, mean {number(mean)}", 6)


def _better_off(chapter: Chapter, frame: pd.DataFrame, value: str) -> list[str]:
    """How many clients fare better or worse than alone."""
    alone = _alone(chapter)
    gains = [float(frame[value][name]) - alone[name] for name in frame.index if name in alone]
    if not gains:
        return []
    signs = [-gain if value == "loss" else gain for gain in gains]
    better, worse = sum(s > 0 for s in signs), sum(s < 0 for s in signs)
    return [
        f"Beside training alone (Local), {count(better, 'client')} of {len(gains)} "
        f"{'is' if better == 1 else 'are'} better off on their test examples, {worse} worse."
    ]


def _said(chapter: Chapter, value: str) -> list[str]:
    if not chapter.single:
        return _compared(chapter, value)
    record = chapter.done[0]
    frame = _frame(record, value)
    if len(frame) < 2:
        return ["There is one client with test data, so nothing to compare."]
    worst, best = frame.iloc[0], frame.iloc[-1]
    if value == "loss":
        largest = (
            f"The largest mean loss has client {frame.index[0]}, {number(worst['loss'])}; the "
            f"lowest {frame.index[-1]}, {number(best['loss'])}."
        )
        return [largest, *_better_off(chapter, frame, value)]
    n = float(worst["examples"])
    span = wilson(float(worst["accuracy"]) * n, n)
    said = [
        f"The worst client, {frame.index[0]}, is right in {percent(worst['accuracy'])} of cases"
        f"{between(span, n)}, the best, {frame.index[-1]}, in {percent(best['accuracy'])}"
        f"{between(None, float(best['examples']))}."
    ]
    if n < FEW:
        said.append("That is too few to judge the worst.")
    spread = record.measured["metrics"]["client_accuracy_std"] if record.measured else None
    if spread is not None:
        said.append(f"The standard deviation over {count(len(frame), 'client')} is {spread:.3f}.")
    return [*said, *_better_off(chapter, frame, value)]


def _compared(chapter: Chapter, value: str) -> list[str]:
    metric = "client_loss_max" if value == "loss" else "client_accuracy_min"
    found = [(m, chapter.metric(m, metric)) for m in chapter.methods]
    means = {m: s.mean for m, s in found if s is not None and m not in chapter.references}
    if not means:
        return []
    rank = sorted(means, key=lambda m: means[m], reverse=value != "loss")
    frames = [_frame(record, value) for record in chapter.done]
    clients = _range((len(frame) for frame in frames), "client")
    examples = _range((frame["examples"].sum() for frame in frames), "test example")
    said = (
        f"Of {clients} with {examples}, the one that is served worst fares best with {rank[0]}: "
        f"{value} {number(means[rank[0]])}, mean over seeds ({_resting(chapter, rank[0], value)})"
    )
    least = ""
    if len(rank) > 1:
        last = rank[-1]
        least = (
            f"; it fares worst with {last}: {number(means[last])} "
            f"({_resting(chapter, last, value)})"
        )
    return [f"{said}{least}."]


def _range(values: Iterable[float], noun: str) -> str:
    """A number with its noun; from the lowest to the highest where seeds deal the data anew."""
    found = [float(v) for v in values]
    low, high = min(found), max(found)
    return count(high, noun) if low == high else f"{low:,.0f} to {count(high, noun)}"


def _resting(chapter: Chapter, method: str, value: str) -> str:
    """The test examples of the worst client, in each of the method's runs."""
    sizes = [_frame(record, value)["examples"].iloc[0] for record in chapter.of(method)]
    few = ", too few to judge" if min(sizes) < FEW else ""
    return _range(sizes, "test example") + few


def _worst(chapter: Chapter, value: str) -> Grid:
    """The worst clients by name; seeds may deal the data anew, so each is a row of its own."""
    several = len(chapter.seeds) > 1
    rows, marks = [], []
    for method, own in chapter.by_method():
        for record in own:
            frame = _frame(record, value)
            for name, row in frame.head(NAMED if chapter.single else 1).iterrows():
                n = float(row["examples"])
                span = (
                    _loss_span(record, str(name))
                    if value == "loss"
                    else wilson(float(row[value]) * n, n)
                )
                words = "" if span is None else f"{span[0]:.3f} to {span[1]:.3f}"
                seed = [str(record.seed)] if several else []
                rows.append([chapter.label(method), *seed, str(name), number(row[value]), words,
                             f"{n:g}"])  # fmt: skip
                marks.append(["", *[""] * (len(rows[-1]) - 4), *["muted" if n < FEW else ""] * 3])
            if chapter.single:
                for name in _empty(record)[:NAMED]:
                    rows.append([chapter.label(method), name, "no test examples", "", "0"])
                    marks.append(["", "", *["muted"] * 3])
    seed = ["seed"] if several else []
    head = ["method", *seed, "client", value, "95 % interval", "test examples"]
    caption = "Clients that are served worst"
    return Grid("worst_clients", caption, head, rows, marks)


def _loss_span(record: Record, client: str) -> tuple[float, float] | None:
    """The normal interval of a client's mean loss; None where squares were not counted."""
    cells = record.cells
    if cells is None or "loss_squares" not in cells:
        return None
    own = cells.xs(client, level="client")
    sums = [float(own[name].sum()) for name in ("loss", "loss_squares", "examples")]
    span = mean_interval(*sums)
    return None if span is None else (max(span[0], 0.0), span[1])


def _excess(chapter: Chapter) -> tuple[Bars | None, str]:
    """Excess risk of every client over a reference, and what the reference is."""
    true = _over_clusters(chapter)
    excess = _over_best(chapter) if true is None else true
    if excess is None:
        alone = "`--reference` (Local) or " if _may_train_local(chapter) else ""
        return None, (
            "Excess risk is over the lowest loss of several methods, or over a model of the true "
            f"cluster, and there is neither here: {alone}`evenfed study` with several methods "
            "gives one, `excess = true` the other where true clusters are known."
        )
    names = [str(name) for name in excess.index[:_BARS]]
    rows = []
    for method in excess.columns:
        values = [float(v) if math.isfinite(v) else None for v in excess[method][:_BARS]]
        color = 6 if method == LOCAL or method in chapter.references else 0
        rows.append(BarRow(chapter.label(method), values, color=color))
    lowest = (
        "the lower of the run's loss and Local's on that client"
        if chapter.single
        else "the lowest loss that any row of this study, references included, reaches on that "
        "client with the same seed; mean over seeds"
    )
    note = (
        "Excess risk is drawn as FOCUS draws it, but not over a model of the client's true "
        f"cluster, which was not trained here: the reference is {lowest}. It is never negative, "
        "and what is best everywhere has 0."
    )
    axis = "loss above the lowest of any row on that client"
    if true is not None:
        axis = "loss above that of a model of the true cluster"
        note = (
            "Excess risk as FOCUS measures it: over one centralised model trained on all clients "
            "of the same true cluster; mean over seeds. Negative: the client does better than that."
        )
    if len(excess) > _BARS:
        note += f" The first {_BARS} of {count(len(excess), 'client')} are drawn."
    bars = Bars(
        "excess", "Excess risk of every client", _largest(rows, names),
        axis, names, rows,
    )  # fmt: skip
    return bars, note


def _may_train_local(chapter: Chapter) -> bool:
    """Whether `--reference` would give this page the losses of clients that train alone."""
    config = chapter.done[0].config
    remote = config.engine.get("engine") == "flower"
    return chapter.single and chapter.alone is None and config.method.name != "local" and not remote


def _over_clusters(chapter: Chapter) -> pd.DataFrame | None:
    """Excess risk over models of true clusters, of the methods all of whose runs measured it."""
    found = {}
    for method, own in chapter.by_method():
        parts = [
            r.measured["excess"]["clients"] for r in own if r.measured and "excess" in r.measured
        ]
        if len(parts) == len(own):
            found[method] = pd.DataFrame(parts).mean()
    return pd.DataFrame(found) if found else None


def _faa(chapter: Chapter) -> list[str]:
    """FOCUS's measure over true clusters, mean over seeds; nothing where it was not measured."""
    words, better = [], 0
    beside = "mean_loss" if chapter.regression else "mean_accuracy"
    for method, own in chapter.by_method():
        parts = [r.measured["excess"] for r in own if r.measured and "excess" in r.measured]
        if len(parts) == len(own):
            faa, mean = (sum(part[k] for part in parts) / len(parts) for k in ("faa", beside))
            name = "" if chapter.single else f" with {chapter.label(method)}"
            words.append(f"{number(faa)}{name} ({beside.replace('_', ' ')} {number(mean)})")
            better += sum(value < 0 for part in parts for value in part["clients"].values())
    if not words:
        return []
    sentences = [
        f"The excess risks of two clients differ by at most {listed(words)}: the lower, the more "
        "alike clients are served for what their kind can reach (FAA). A model that is equally bad "
        "for all also has a low one: read it beside the mean in brackets."
    ]
    if better:
        where = "" if chapter.single else " in the runs of all methods"
        sentences.append(
            f"{count(better, 'excess risk')}{where} {'is' if better == 1 else 'are'} negative: "
            "those clients do better than the reference of their cluster."
        )
    return sentences


def _over_best(chapter: Chapter) -> pd.DataFrame | None:
    """Loss above the lowest of any method, by client and method; seed by seed, then the mean."""
    if chapter.single:
        return _over_local(chapter)
    if len(chapter.methods) < 2:
        return None
    found = []
    for seed in chapter.seeds:
        own = {r.method: r.clients["loss"] for r in chapter.done
               if r.seed == seed and r.clients is not None}  # fmt: skip
        losses = pd.DataFrame(own).reindex(columns=chapter.methods)
        found.append(losses.sub(losses.min(axis=1), axis=0))
    return pd.concat(found).groupby(level=0, sort=False).mean()


def _over_local(chapter: Chapter) -> pd.DataFrame | None:
    """Loss above the lower of one run's and its reference's, where that kept its clients'."""
    frame = chapter.done[0].clients
    alone = (chapter.alone or {}).get("losses")
    if frame is None or not alone:
        return None
    losses = pd.DataFrame({chapter.methods[0]: frame["loss"], LOCAL: pd.Series(alone, dtype=float)})
    losses = losses.loc[frame.index]
    return losses.sub(losses.min(axis=1), axis=0)


def _largest(rows: Sequence[BarRow], names: Sequence[str]) -> str:
    said = []
    for row in rows:
        found = [(v, name) for v, name in zip(row.values, names, strict=True) if v is not None]
        if found:
            value, name = max(found)
            said.append(f"{row.label}: largest {value:.3f} ({name}).")
    return " ".join(said)
