"""The report in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evenfed as ef
from evenfed.report.page import write_page
from evenfed.runs.config import parse
from evenfed.runs.train import run_config

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study of both methods that have fronts."""
    folder = tmp_path_factory.mktemp("browser") / "s"
    ef.study(["praffl", "hetpfl"], "loans", seeds=[0], rounds=2, engine="vectorized",
             options={"praffl": {"epochs": 2}, "hetpfl": {"epochs": 2, "fusion_steps": 5}},
             evaluate_every=1, references=["local"], out=folder)  # fmt: skip
    return write_page(folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        chromium = play.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one run, with its reference rows and SER's panel."""
    folder = tmp_path_factory.mktemp("browser") / "run"
    table = {"method": "ser", "data": "loans", "rounds": 1, "engine": {"engine": "vectorized"}}
    run_config(parse(table), folder)
    return write_page(folder)


class Opened:
    """A page, with all that the browser complained about."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("requestfailed", lambda r: self.complaints.append(r.url))
        self.page.goto(file.as_uri())


@pytest.fixture
def desk(browser: Any, page_file: Path) -> Iterator[Opened]:
    opened = Opened(browser, page_file, viewport={"width": 1200, "height": 900})
    yield opened
    opened.context.close()
    assert opened.complaints == []


@pytest.fixture
def phone(browser: Any, page_file: Path) -> Iterator[Opened]:
    opened = Opened(browser, page_file, viewport={"width": 390, "height": 844})
    yield opened
    opened.context.close()
    assert opened.complaints == []


def slide(page: Any, value: int) -> None:
    page.locator("[data-control=preference]").fill(str(value))


def number(page: Any, row: str, column: int) -> float:
    text = page.locator(f"tr[data-row={row}] td").nth(column).inner_text()
    return float(text.split()[0])


def test_every_figure_has_drawn(desk: Opened) -> None:
    sizes = desk.page.eval_on_selector_all(
        "figure:not(.still) svg.wide, .planes svg",
        "all => all.map(s => [s.getBBox().width, s.getBoundingClientRect().width,"
        " s.querySelectorAll('.mark').length])",
    )
    assert len(sizes) >= 8
    assert all(width > 200 and on_screen > 200 and marks for width, on_screen, marks in sizes)
    assert desk.page.locator("svg.narrow").first.is_hidden()


def test_no_text_reaches_beyond_its_figure(desk: Opened) -> None:
    beyond = desk.page.eval_on_selector_all(
        "figure:not(.still) svg.wide",
        "all => all.flatMap(s => [...s.querySelectorAll('text')].filter(t => {"
        " const b = t.getBBox(), w = s.viewBox.baseVal.width;"
        " return b.x < -1 || b.x + b.width > w + 1;"
        "}).map(t => t.textContent))",
    )
    assert beyond == []


def test_the_slider_moves_the_marker_and_changes_the_numbers(desk: Opened, page_file: Path) -> None:
    page = desk.page
    front = json.loads((page_file.parent / "runs" / "praffl-loans-0" / "front.json").read_text())
    seen = []
    for at in (0, 100):
        slide(page, at)
        marker = page.locator("svg[data-split=test] .marker")
        seen.append((marker.get_attribute("cx"), marker.get_attribute("cy")))
        for column, split in enumerate(("val", "test")):
            part = front["global"][split]
            error = sum(part["errors"][at]) / sum(part["examples"])
            assert number(page, "error", column) == pytest.approx(error, abs=6e-4)
            assert number(page, "disparity", column) == pytest.approx(
                part["disparity"][at], abs=6e-4
            )
            selected = part["selected"][at][1] / part["examples"][1]
            assert number(page, "selected-1", column) == pytest.approx(selected, abs=6e-4)
    assert seen[0] != seen[1]


def test_the_command_names_folder_client_and_preference(desk: Opened) -> None:
    page = desk.page
    slide(page, 70)
    command = page.locator("[data-control=command]")
    start = "evenfed export s/runs/praffl-loans-0"
    assert command.inner_text() == f"{start} --preference 0.7 --format safetensors"
    page.locator("[data-control=whose]").select_option("client-2")
    assert command.inner_text() == (
        f"{start} --client client-2 --preference 0.7 --format safetensors"
    )


def test_a_client_shows_its_own_front(desk: Opened, page_file: Path) -> None:
    page = desk.page
    front = json.loads((page_file.parent / "runs" / "praffl-loans-0" / "front.json").read_text())
    page.locator("[data-control=whose]").select_option("client-3")
    slide(page, 40)
    part = front["clients"]["client-3"]["test"]
    error = sum(part["errors"][40]) / sum(part["examples"])
    assert number(page, "error", 1) == pytest.approx(error, abs=6e-4)


def test_dominated_points_are_hidden_by_what_validation_says(desk: Opened, page_file: Path) -> None:
    page = desk.page
    front = json.loads((page_file.parent / "runs" / "praffl-loans-0" / "front.json").read_text())
    part = front["global"]["val"]
    points = [(sum(e), d) for e, d in zip(part["errors"], part["disparity"], strict=True)]
    beaten = [
        any((q[0] <= p[0] and q[1] <= p[1] and q != p) or (q == p and j < i)
            for j, q in enumerate(points))
        for i, p in enumerate(points)
    ]  # fmt: skip
    assert 0 < sum(beaten) < len(points)
    for split in ("val", "test"):
        assert page.locator(f"svg[data-split={split}] .point").count() == len(points)
    page.locator("[data-control=hide]").check()
    for split in ("val", "test"):
        shown = page.locator(f"svg[data-split={split}] .point").count()
        assert shown == len(points) - sum(beaten)


def test_two_methods_are_laid_over_each_other(desk: Opened) -> None:
    page = desk.page
    before = page.locator("svg[data-split=val] .point").count()
    page.locator("[data-control=over]").select_option("hetpfl")
    assert page.locator("svg[data-split=val] .point").count() == 2 * before
    assert page.locator("svg[data-split=val] .marker").count() == 2
    assert page.locator("tr[data-row=error] td").count() == 4


def test_a_choice_within_a_limit_uses_validation_data(desk: Opened, page_file: Path) -> None:
    page = desk.page
    folder = page_file.parent / "runs" / "praffl-loans-0"
    front = ef.resume(folder).front("val", models=101)
    limit = sorted(front.points[:, 1])[50]
    page.locator("[data-control=limit]").fill(f"{limit + 1e-6:.6f}")
    page.locator("[data-control=choose]").click()
    chosen = front.choose(max_disparity=limit + 1e-6)
    at = int(page.locator("[data-control=preference]").input_value())
    assert at == round(100 * chosen)
    smallest = front.points[:, 1].min()
    assert smallest > 1e-4
    page.locator("[data-control=limit]").fill(f"{smallest / 2:.6f}")
    page.locator("[data-control=choose]").click()
    assert "No model has a disparity" in page.locator(".told").inner_text()
    for wrong in ("-1", "", "1.5"):
        page.locator("[data-control=limit]").fill("0.5")
        page.locator("[data-control=choose]").click()
        assert "lowest validation error" in page.locator(".told").inner_text()
        page.locator("[data-control=limit]").fill(wrong)
        page.locator("[data-control=choose]").click()
        assert "a number from 0 to 1" in page.locator(".told").inner_text()


class Changed:
    """A copy of a page whose explorer has other data."""

    def __init__(self, page: Path, folder: Path) -> None:
        text = page.read_text(encoding="utf-8")
        self.before, self.start, rest = text.partition('<script type="application/json">')
        data, self.end, self.after = rest.partition("</script>")
        self.data = json.loads(data)
        self.path = folder / "changed.html"

    def written(self) -> Path:
        data = json.dumps(self.data)
        self.path.write_text(
            self.before + self.start + data + self.end + self.after, encoding="utf-8"
        )
        return self.path


def test_a_choice_among_equal_errors_takes_the_lower_disparity(
    browser: Any, page_file: Path, tmp_path: Path
) -> None:
    changed = Changed(page_file, tmp_path)
    explorer = changed.data
    part = explorer["entries"][0]["parts"][""]["val"]
    part["errors"] = [part["errors"][0]] * 101
    part["disparity"] = [0.3, 0.1, 0.2, 0.1, *[0.4] * 97]
    opened = Opened(browser, changed.written())
    opened.page.locator("[data-control=limit]").fill("1")
    opened.page.locator("[data-control=choose]").click()
    assert opened.page.locator("[data-control=preference]").input_value() == "3"
    opened.context.close()


def test_a_group_that_a_choice_does_not_see_is_named(
    browser: Any, page_file: Path, tmp_path: Path
) -> None:
    changed = Changed(page_file, tmp_path)
    explorer = changed.data
    explorer["entries"][0]["parts"][""]["val"]["examples"][1] = 0
    opened = Opened(browser, changed.written())
    opened.page.locator("[data-control=limit]").fill("1")
    opened.page.locator("[data-control=choose]").click()
    told = opened.page.locator(".told").inner_text()
    assert f"Group {explorer['groups'][1]} has no validation examples" in told
    opened.context.close()
    assert opened.complaints == []


def test_the_slider_works_with_the_keyboard(desk: Opened) -> None:
    page = desk.page
    slide(page, 50)
    page.locator("[data-control=preference]").focus()
    page.keyboard.press("ArrowRight")
    assert "--preference 0.51 " in page.locator("[data-control=command]").inner_text()


def test_a_table_sorts_by_a_column(desk: Opened) -> None:
    page = desk.page
    table = page.locator("#clients .scroll table").first
    column = [c.strip() for c in table.locator("thead th").all_inner_texts()].index("accuracy")
    table.locator("thead button").nth(column).click()
    cells = table.locator(f"tbody tr > :nth-child({column + 1})").all_inner_texts()
    values = [float(text) for text in cells]
    assert values == sorted(values)
    table.locator("thead button").nth(column).press("Enter")
    assert table.locator("thead th").nth(column).get_attribute("aria-sort") == "descending"


def test_words_appear_on_pointing_at_a_mark(desk: Opened) -> None:
    page = desk.page
    mark = page.locator("#clients svg.wide circle.mark").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    assert page.locator("#tip").inner_text().startswith("client-")


def test_a_phone_needs_no_sideways_scrolling(phone: Opened) -> None:
    page = phone.page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("#clients svg.narrow").first.is_visible()
    assert page.locator("#clients svg.wide").first.is_hidden()
    smallest = page.eval_on_selector_all(
        "figure:not(.still) svg.narrow text",
        "all => Math.min(...all.map(t => t.getBoundingClientRect().height))",
    )
    assert smallest >= 9


def _contrast(first: str, second: str) -> float:
    """WCAG's ratio of two colours `rgb(r, g, b)`."""

    def light(color: str) -> float:
        parts = [float(p) / 255 for p in color[4:-1].split(",")]
        low = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * low[0] + 0.7152 * low[1] + 0.0722 * low[2]

    a, b = sorted((light(first), light(second)))
    return (b + 0.05) / (a + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_stand_out_in_light_and_dark(
    browser: Any, page_file: Path, scheme: str
) -> None:
    opened = Opened(browser, page_file, color_scheme=scheme)
    style = "getComputedStyle(document.body)"
    paper = opened.page.evaluate(f"{style}.backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert _contrast(paper, opened.page.evaluate(f"{style}.color")) > 7
    note = opened.page.evaluate("getComputedStyle(document.querySelector('.notes')).color")
    assert _contrast(paper, note) > 4.5
    muted = opened.page.evaluate(
        "() => { const d = document.createElement('i'); d.className = 'muted';"
        " document.body.append(d); return getComputedStyle(d).color; }"
    )
    assert _contrast(paper, muted) > 4.5
    # the colours of series are variables: draw each and ask what it became
    for i in range(7):
        color = opened.page.evaluate(
            "i => { const d = document.createElement('i'); d.style.color = `var(--s${i})`;"
            " document.body.append(d); return getComputedStyle(d).color; }", i
        )  # fmt: skip
        assert _contrast(paper, color) > 3
    fill = opened.page.evaluate(
        "getComputedStyle(document.querySelector('#clients circle.mark')).fill"
    )
    assert fill.startswith("rgb(")
    opened.context.close()
    assert opened.complaints == []


def test_it_prints_its_figures_and_no_controls(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, viewport={"width": 760, "height": 1000})
    opened.page.emulate_media(media="print")
    assert opened.page.locator(".explorer").is_hidden()
    assert opened.page.locator("#fronts figure svg.wide").is_visible()
    assert len(opened.page.pdf(format="A4")) > 20_000
    opened.context.close()
    assert opened.complaints == []


def test_without_scripts_all_but_the_explorer_is_there(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, java_script_enabled=False)
    assert opened.page.locator("#fronts figure svg.wide").is_visible()
    assert opened.page.locator("#groups table").first.is_visible()
    opened.context.close()


@pytest.mark.parametrize("width", [1200, 390])
def test_a_run_stands_above_what_clients_reach_alone_and_the_constant_predictor(
    browser: Any, run_file: Path, width: int
) -> None:
    opened = Opened(browser, run_file, viewport={"width": width, "height": 900})
    page = opened.page
    rows = page.locator("#good tbody tr")
    names = ["ser", "local (reference)", "constant predictor (reference)"]
    assert rows.locator("th").all_inner_texts() == names
    assert [rows.nth(i).get_attribute("class") for i in range(3)] == [None, *["reference"] * 2]
    found = json.loads((run_file.parent / "result.json").read_text())["reference"]
    low, high = found["intervals"]["accuracy"]
    said = rows.nth(1).locator("td").first.inner_text().split("\n")
    assert said == [f"{found['metrics']['accuracy']:.3f}", f"({low:.3f} to {high:.3f})"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    signs = page.locator("#signs tbody tr")
    assert signs.locator("th").all_inner_texts() == names[:2]
    assert all("±" in text for text in signs.locator("td:nth-child(4)").all_inner_texts())
    opened.context.close()
    assert opened.complaints == []


def test_everything_can_be_reached_with_the_keyboard(desk: Opened) -> None:
    page = desk.page
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(
            "(() => { const a = document.activeElement; return a.dataset.control || a.className"
            " || a.getAttribute('href') || a.tagName; })()"
        ))  # fmt: skip
    wanted = {"skip", "#good", "method", "over", "whose", "limit", "choose", "preference", "hide",
              "command", "scroll"}  # fmt: skip
    assert wanted <= reached
