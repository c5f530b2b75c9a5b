"""Is it good: the table, with intervals, marks and reference rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenfed.metrics.proportion import wilson
from evenfed.report.answers.chapter import Chapter
from evenfed.report.sections import Grid, Section
from evenfed.report.words import between, listed, number, percent
from evenfed.runs.table import (
    REFERENCE,
    Row,
    constant,
    default_metrics,
    heading,
    higher_is_better,
    local_label,
)
from evenfed.runs.table import Section as Table


def good(chapter: Chapter) -> Section:
    """Summary metrics: of one run by metric, of a study by method."""
    which = _which(chapter)
    if chapter.table is None:
        grids = [_metrics(chapter)]
        return Section("good", "Is it good?", [*_said(chapter), *which], grids=grids)
    grid, notes = (
        _comparison(chapter, chapter.table),
        [chapter.legend, *which, *_without_local(chapter)],
    )
    return Section("good", "Is it good?", _compared(chapter), grids=[grid], notes=notes)


def _without_local(chapter: Chapter) -> list[str]:
    """How a study gets the row of what clients reach alone, where it has none."""
    if any(record.config.method.name == "local" for record in chapter.records):
        return []
    return [
        "What clients reach alone (Local) is not in this study: name `local` among its methods, or "
        "among its `references`."
    ]


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
        return [*_said_of_numbers(run), *_said_of_local(chapter)]
    span = run["intervals"].get("accuracy")
    always = metrics["constant_accuracy"]
    said = [
        f"It is right in {percent(metrics['accuracy'])} of all test examples{between(span)}; "
        f"always giving the most frequent answer is right in {percent(always)}."
    ]
    if span is not None and span[0] is not None and span[0] <= always <= span[1]:
        said.append("These test examples do not show that it is better than that.")
    return [*said, *_said_of_local(chapter)]


def _said_of_local(chapter: Chapter) -> list[str]:
    """What clients reach alone, and whether test examples tell the run from it."""
    if chapter.alone is None:
        return []
    name = "loss" if chapter.regression else "accuracy"
    value, sample = chapter.alone["metrics"][name], chapter.alone.get("sample")
    if value is None:
        return []
    run = sample or chapter.first
    who = "Clients that train alone (Local)"
    if sample:
        who = f"{sample['clients']} of {sample['of']} clients, drawn by the seed, that train alone "
        who += "(Local)"
    if chapter.regression:
        said = f"{who} have a mean loss of {number(value)}"
        beside = number(run["metrics"][name])
    else:
        span = between(chapter.alone["intervals"].get(name))
        said = f"{who} are right in {percent(value)}{span}"
        beside = percent(run["metrics"][name]) + between(run["intervals"].get(name))
    said += f"; on the same clients the run has {beside}." if sample else "."
    low, high = run["intervals"].get(name, (None, None))
    if low is None or high is None:
        return [said]
    if low <= value <= high:
        return [said, "That is inside the interval of the run: they are not clearly different."]
    better = value < low if chapter.regression else value > high
    return [said, "Alone they fare better than in this run."] if better else [said]


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


def _metrics(chapter: Chapter) -> Grid:
    """The run, what clients reach alone, and the constant predictor: a row each."""
    measured, alone = chapter.first, chapter.alone
    metrics, always = measured["metrics"], constant(measured["metrics"])
    names = [name for name in default_metrics(measured) if name in metrics]
    heads = [heading(name, metrics["tail"]) for name in names]
    rows = [[chapter.label(measured["method"]), *_spans(names, metrics, measured["intervals"])]]
    if alone is not None:
        if sample := alone.get("sample"):
            label = f"{chapter.label(measured['method'])}, on the same {sample['clients']} clients"
            rows.append([label, *_spans(names, sample["metrics"], sample["intervals"])])
        rows.append([local_label(alone), *_spans(names, alone["metrics"], alone["intervals"])])
    if always:
        tested = float(measured["task"]["tested_on"])
        spans = {
            "accuracy": wilson(always.get("accuracy", 0.0) * tested, tested),
            "mean_squared_error": measured["intervals"].get("constant_mean_squared_error"),
        }
        rows.append([REFERENCE, *_constant(names, always, spans)])
    marks = [["reference" if i else "", *["span"] * len(names)] for i in range(len(rows))]
    what = "mean" if chapter.regression else "most frequent class"
    notes = [
        _how(chapter.regression),
        f"The constant predictor always gives the {what}: a reference, not a method. "
        + _about_local(chapter),
    ]
    return Grid("metrics", "Measured on test data", ["method", *heads], rows, marks, notes)


def _how(regression: bool) -> str:
    """Which interval is which."""
    own = (
        "R² and the mean squared error: by the delta method on sums of powers, on the scale of "
        "logarithms"
        if regression
        else "Accuracy: Wilson's"
    )
    return (
        "Intervals (95 %, in brackets) are over the test examples of these clients; they say "
        f"nothing about other seeds. {own}. Worst client, worst share of clients, worst group and "
        "standard deviation: each end by simulation, since chance makes the worst look worse and "
        "clients further apart than they are; the interval may so lie mostly on the better side. "
        "All others: bootstrapped; that of a largest difference leans to the bad side. "
        "↑ higher is better, ↓ lower is better."
    )


def _spans(
    names: Sequence[str], metrics: Mapping[str, Any], intervals: Mapping[str, Any]
) -> list[str]:
    """Values, each with its interval in a second line."""
    return [number(metrics.get(name)) + _interval(name, intervals) for name in names]


def _interval(name: str, intervals: Mapping[str, Any]) -> str:
    """The interval of a metric as a second line; nothing where there is none."""
    low, high = intervals.get(name, (None, None))
    return "" if low is None or high is None else f"\n({number(low)} to {number(high)})"


def _constant(
    names: Sequence[str], always: Mapping[str, float], spans: Mapping[str, Any]
) -> list[str]:
    """What the constant predictor reaches, with intervals where something varies."""
    known = {name: span for name, span in spans.items() if span is not None}
    return [_spans([n], always, known)[0] if n in always else "-" for n in names]


def _about_local(chapter: Chapter) -> str:
    """What the reference Local is, or why it is not there."""
    if chapter.alone is not None:
        return (
            "Local, the other one, is what clients reach alone: every client trains in every round "
            "on its own data, with this run's first weights and local training, but for its "
            f"regulariser. It is not counted in what the run cost.{_sampled(chapter)}"
        )
    made = chapter.first.get("reference")
    if made is not None:
        return f"What clients reach alone (Local) is not beside it: {made['absent']}."
    if chapter.done[0].config.local_reference is False:
        return (
            "What clients reach alone (Local) was not trained, as `local_reference` is false; a "
            "study has it as a row of its own."
        )
    return "What clients reach alone (Local) was not trained here: `evenfed study` puts it beside."


def _sampled(chapter: Chapter) -> str:
    """Why not all clients were trained alone, and what to compare."""
    sample = (chapter.alone or {}).get("sample")
    if not sample:
        return ""
    return (
        f" All {sample['of']} clients in every round would cost far more than the run, so "
        f"{sample['clients']} were drawn by the seed: compare them with the row of the run on the "
        "same clients; `--reference` trains all."
    )


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


def _comparison(chapter: Chapter, table: Table) -> Grid:
    second = {metric: seconds_best(table, metric) for metric in table.headings}
    own = _own_intervals(chapter)

    def marks(row: Row) -> list[str]:
        cells = [
            "best" if cell.mark == "best" else "second" if row.label in second[metric] else ""
            for metric, cell in row.cells.items()
        ]
        spans = [f"{mark} span".strip() for mark in cells] if row.label in own else cells
        return ["reference" if row.reference else "", *spans]

    def text(row: Row, metric: str) -> str:
        cell = row.cells[metric]
        span = _interval(metric, own.get(row.label, {}))
        return cell.text + (" ≈" if cell.mark == "tie" else "") + span

    rows = [[row.label, *(text(row, metric) for metric in row.cells)] for row in table.rows]
    notes = ["Bold: best. Underlined: second best, where three or more are compared.", *table.notes]
    caption = "Measured on test data, mean over seeds"
    if own:
        caption = "Measured on test data, one seed"
        notes.append(_how(chapter.regression))
    head = ["method", *table.headings.values()]
    return Grid("metrics", caption, head, rows, [marks(row) for row in table.rows], notes)


def _own_intervals(chapter: Chapter) -> dict[str, Mapping[str, Any]]:
    """Those of each run over its test examples, by label, where one seed has none over seeds."""
    if len(chapter.seeds) > 1:
        return {}
    done = ((r.method, (r.measured or {}).get("intervals")) for r in chapter.done)
    return {chapter.label(method): found for method, found in done if found}


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
