"""Is it good: the table, with intervals, marks and reference rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evenfed.report.answers.chapter import Chapter
from evenfed.report.sections import Grid, Section
from evenfed.report.words import between, listed, number, percent
from evenfed.runs.table import HEADINGS, Row, constant, default_metrics, higher_is_better
from evenfed.runs.table import Section as Table


def good(chapter: Chapter) -> Section:
    """Summary metrics: of one run by metric, of a study by method."""
    which = _which(chapter)
    if chapter.table is None:
        grids = [_metrics(chapter.first)]
        return Section("good", "Is it good?", [*_said(chapter), *which], grids=grids)
    grid, notes = _comparison(chapter.table), [chapter.legend, *which]
    return Section("good", "Is it good?", _compared(chapter), grids=[grid], notes=notes)


def _which(chapter: Chapter) -> list[str]:
    """Which models the figures are of, where a method has one for every preference."""
    said = []
    for method, own in chapter.by_method():
        options = own[0].config.method.completed().options
        if own[0].front is None or "preference" not in options:
            continue
        whose = (
            "the global model" if options.get("deploy") == "global" else "each client's own model"
        )
        who = "These figures are" if chapter.single else f"The figures of {method} are"
        said.append(f"{who} of {whose} at preference {options['preference']:g}.")
    return said


def _said(chapter: Chapter) -> list[str]:
    run = chapter.first
    metrics = run["metrics"]
    if chapter.regression:
        return _said_of_numbers(run)
    span = run["intervals"].get("accuracy")
    always = metrics["constant_accuracy"]
    said = [
        f"It is right in {percent(metrics['accuracy'])} of all test examples{between(span)}; "
        f"always giving the most frequent answer is right in {percent(always)}."
    ]
    if span is not None and span[0] is not None and span[0] <= always <= span[1]:
        said.append("These test examples do not show that it is better than that.")
    return said


def _said_of_numbers(run: Mapping[str, Any]) -> list[str]:
    metrics = run["metrics"]
    low, high = run["intervals"].get("loss", (None, None))
    span = "" if low is None else f" (interval {number(low)} to {number(high)})"
    loss = f"{number(metrics['loss'])}{span}"
    said = [f"Its mean loss on the test examples of all clients is {loss}."]
    always, explained = metrics.get("constant_mean_squared_error"), metrics.get("r2")
    if always is None or explained is None:
        return said
    error = f"Its mean squared error is {number(metrics['mean_squared_error'])}"
    better = (
        f"{error}, where always giving the mean has {number(always)}: it explains "
        f"{percent(explained)} of the variance (R²)."
    )
    worse = f"{error}; always giving the mean is better, with {number(always)}."
    return [*said, better if explained > 0 else worse]


def _metrics(measured: Mapping[str, Any]) -> Grid:
    rows, always = [], constant(measured["metrics"])
    for name in default_metrics(measured):
        if name not in measured["metrics"]:
            continue
        low, high = measured["intervals"].get(name, (None, None))
        heading = HEADINGS.get(name, name).format(tail=f"{100 * measured['metrics']['tail']:g}")
        arrow = {True: " ↑", False: " ↓", None: ""}[higher_is_better(name)]
        span = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        base = number(always[name]) if name in always else ""
        rows.append([heading + arrow, number(measured["metrics"][name]), span, base])
    what = "mean" if measured["task"]["kind"] == "regression" else "most frequent class"
    notes = [
        "Intervals (95 %) are bootstrapped over the test examples of these clients; they say "
        "nothing about other seeds. That of a largest difference or of the worst of several leans "
        "to the bad side. ↑ higher is better, ↓ lower is better.",
        f"The constant predictor always gives the {what}: a reference, not a method. "
        "What clients reach alone (Local) was not trained here: `evenfed study` puts it beside.",
    ]
    head = ["metric", "value", "95 % interval", "constant predictor (reference)"]
    if not always:
        head, rows = head[:3], [row[:3] for row in rows]
    return Grid("metrics", "Measured on test data", head, rows, notes=notes)


def seconds_best(table: Table, metric: str) -> set[str]:
    """Labels of the rows with the second best mean, among those that may be the best."""
    higher = higher_is_better(metric)
    means: dict[str, float] = {}
    for row in table.rows:
        summary = row.cells[metric].summary
        whole = not row.reference and "have no result" not in row.note
        if whole and summary is not None and not math.isnan(summary.mean):
            means[row.label] = summary.mean
    ranked = sorted(set(means.values()), reverse=bool(higher))
    if higher is None or len(means) < 3 or len(ranked) < 2:
        return set()
    return {label for label, mean in means.items() if mean == ranked[1]}


def _comparison(table: Table) -> Grid:
    second = {metric: seconds_best(table, metric) for metric in table.headings}

    def marks(row: Row) -> list[str]:
        cells = [
            "best" if cell.mark == "best" else "second" if row.label in second[metric] else ""
            for metric, cell in row.cells.items()
        ]
        return ["reference" if row.reference else "", *cells]

    rows = [
        [row.label, *(c.text + (" ≈" if c.mark == "tie" else "") for c in row.cells.values())]
        for row in table.rows
    ]
    notes = ["Bold: best. Underlined: second best, where three or more are compared.", *table.notes]
    head = ["method", *table.headings.values()]
    caption = "Measured on test data, mean over seeds"
    return Grid("metrics", caption, head, rows, [marks(row) for row in table.rows], notes)


def _compared(chapter: Chapter) -> list[str]:
    name, better = ("loss", "lowest") if chapter.regression else ("accuracy", "highest")
    found = [(m, chapter.metric(m, name)) for m in chapter.methods]
    means = {m: s.mean for m, s in found if s is not None}
    own = {m: v for m, v in means.items() if m not in chapter.references}
    if not own:
        return ["No method came to its end."]
    top = (min if chapter.regression else max)(own, key=lambda m: own[m])
    tops = [m for m in own if own[m] == own[top]]
    have = "has" if len(tops) == 1 else "have"
    said = [f"{listed(tops)} {have} the {better} mean {name}, {number(own[top])}."]
    assert chapter.table is not None
    rows = [(r.label, r.cells[name].mark) for r in chapter.table.rows if name in r.cells]
    if ties := [label for label, mark in rows if mark == "tie"]:
        said.append(f"Not clearly different from that over these seeds: {listed(ties)}.")
    references = [f"{m} reaches {number(means[m])}" for m in ("local", "centralized") if m in means]
    always = chapter.metric(top, "constant_accuracy")
    if always is not None:
        references.append(f"always giving the most frequent answer {number(always.mean)}")
    if references:
        said.append(f"For comparison: {listed(references)}.")
    explained = chapter.metric(top, "r2") if chapter.regression else None
    if explained is not None:
        said.append(f"The R² of {top} is {number(explained.mean)}; always giving the mean has 0.")
    return said
