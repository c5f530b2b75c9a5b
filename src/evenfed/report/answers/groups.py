"""Is it fair to groups: rates and losses by group, over all clients and at each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from evenfed.metrics.bootstrap import over_seeds
from evenfed.metrics.proportion import wilson
from evenfed.report.answers.chapter import Chapter
from evenfed.report.charts import Dot, DotRow, Dots, Figure, Span, Spans
from evenfed.report.sections import Grid, Section
from evenfed.report.words import FEW, FEW_NOTE, between, count, listed, number, percent
from evenfed.runs.record import Record
from evenfed.runs.shares import MEANS, mean_span

_ROWS = 600
"""Rows of the table by client; what is left out is said."""


@dataclass(frozen=True)
class Rate:
    """A share of one cell: `of` counts `part`."""

    key: str
    name: str
    part: str
    of: str


RATES = (
    Rate("accuracy", "accuracy", "right", "examples"),
    Rate("selection_rate", "selection rate", "selected", "examples"),
    Rate("true_positive_rate", "true positive rate", "found", "positive"),
    Rate("false_positive_rate", "false positive rate", "wrongly", "negative"),
)


NUMBERS = {"mean_prediction": "mean prediction", "mean_residual": "label minus prediction"}
"""Means by group where labels are numbers, in the label's unit."""


def groups(chapter: Chapter) -> Section | None:
    """None where there is one group."""
    if len(chapter.first["task"]["groups"]) < 2:
        return None
    rates = _rates(chapter)
    figures: list[Figure] = [_figure(chapter, rate) for rate in rates[:3]]
    if chapter.regression:
        figures += [_mean_figure(chapter, key) for key in ("loss", "mean_residual")]
    dots = _by_client_figure(chapter)
    if dots is not None:
        figures.append(dots)
    grids = [_overall(chapter, rates)]
    inside = _by_client(chapter, rates)
    if inside is not None:
        grids.append(inside)
    how = (
        "Intervals (95 %): Wilson's for a share in one run, normal for a mean loss; Student's t "
        "over the seeds of a study; cut at 0 and 1 for a share, at 0 for a loss."
        if rates else "Intervals (95 %): normal in one run, of mean losses, predictions and labels "
        "minus predictions alike; Student's t over the seeds of a study; cut at 0 for a loss."
    )  # fmt: skip
    notes = [how, FEW_NOTE]
    if rates and chapter.favourable:
        notes.insert(0, f"Selection rate: the share for which {chapter.favourable} is predicted.")
    return Section("groups", "Is it fair to groups?", _said(chapter, rates), figures, grids, notes)


def completed(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with the columns that follow from the others."""
    if "positive" not in cells:
        return cells
    return cells.assign(
        negative=cells["examples"] - cells["positive"], wrongly=cells["selected"] - cells["found"]
    )


def _total(cells: pd.DataFrame, group: str) -> dict[str, float]:
    """The sums of a group over all clients."""
    part = cells.xs(group, level="group")
    return {str(name): float(part[name].sum()) for name in part.columns}


def _rates(chapter: Chapter) -> list[Rate]:
    known = dict.fromkeys(key for g in chapter.first["groups"].values() for key in g)
    return [rate for rate in RATES if rate.key in known]


def _span(chapter: Chapter, own: Sequence[Record], group: str, rate: Rate, color: int) -> Span:
    """A rate of a group over all clients: of one run with Wilson's interval, else over seeds."""
    label = chapter.label(own[0].method)
    values = [r.measured["groups"].get(group, {}).get(rate.key) for r in own if r.measured]
    found = [math.nan if v is None else v for v in values] or [math.nan]
    cells = own[0].cells
    n = math.inf
    low: float | None = None
    high: float | None = None
    if cells is not None and group in cells.index.get_level_values("group"):
        total = _total(completed(cells), group)
        n = float(total[rate.of])
        ends = wilson(float(total[rate.part]), n) if len(own) == 1 else None
        low, high = ends if ends is not None else (None, None)
    if len(own) > 1:
        summary = over_seeds(found)
        if not math.isnan(summary.low):
            low, high = max(summary.low, 0.0), min(summary.high, 1.0)
        return Span(label, summary.mean, low, high, group, color, n < FEW)
    return Span(label, found[0], low, high, group, color, n < FEW)


def _figure(chapter: Chapter, rate: Rate) -> Spans:
    names = chapter.first["task"]["groups"]
    spans = [
        _span(chapter, own, group, rate, i)
        for _, own in chapter.by_method()
        for i, group in enumerate(names)
    ]
    shown = [s for s in spans if math.isfinite(s.value)]
    text = " ".join(f"{s.label}, {s.part}: {s.value:.2f}." for s in shown)
    title = f"{rate.name.capitalize()} by group"
    return Spans(rate.key, title, text, f"{rate.name}, all clients together", shown)


_AXES = {
    "loss": ("Loss by group", "mean loss, all clients together"),
    "mean_residual": (
        "Label minus prediction by group",
        "above 0: the model says too little",
    ),
}
"""Title and axis of the figure of a mean by group."""


def _mean_figure(chapter: Chapter, key: str) -> Spans:
    names = chapter.first["task"]["groups"]
    spans = []
    for method, own in chapter.by_method():
        for i, group in enumerate(names):
            found = _mean(own, group, key)
            if math.isfinite(found.value):
                label = chapter.label(method)
                spans.append(replace(found, label=label, part=group, color=i))
    text = " ".join(f"{s.label}, {s.part}: {number(s.value, 2)}." for s in spans)
    title, axis = _AXES[key]
    return Spans(key, title, text, axis, spans)


def _told(chapter: Chapter) -> list[str]:
    """Of a predicted number: for whom the loss is largest, and to whom too little is said."""
    own, table = chapter.done[:1], chapter.first["groups"]
    losses = {g: _mean(own, g, "loss") for g in table}
    worst = max(losses, key=lambda g: losses[g].value)
    best = min(losses, key=lambda g: losses[g].value)
    said = [
        f"The mean loss is largest for {worst}, {_shown(losses[worst])}, and lowest for {best}, "
        f"{_shown(losses[best])}{_resting(own, 'loss_group_max')}."
    ]
    means = {g: _mean(own, g, "mean_residual") for g in table}
    means = {g: span for g, span in means.items() if math.isfinite(span.value)}
    if means:
        words = (
            f"{number(abs(m.value))} too {'little' if m.value > 0 else 'much'} for {g}"
            f"{_either_way(m)}"
            for g, m in means.items()
        )
        said.append(f"On average it says {listed(words)}, in the unit of the label.")
    return said


def _either_way(span: Span) -> str:
    """Whether the interval of a mean holds 0, so that it may be on either side."""
    if span.low is None or span.high is None or not span.low <= 0 <= span.high:
        return ""
    return " (not clearly different from 0)"


def _said(chapter: Chapter, rates: Sequence[Rate]) -> list[str]:
    names = {rate.key: rate for rate in rates}
    if not chapter.single:
        return _compared(chapter)
    if chapter.regression:
        return _told(chapter)
    run, said = chapter.first, []
    if "selection_rate" in names:
        spans = [_span(chapter, chapter.done[:1], g, names["selection_rate"], 0)
                 for g in run["task"]["groups"]]  # fmt: skip
        spans = [s for s in spans if math.isfinite(s.value)]
        label, chosen = run["task"]["label"], chapter.favourable
        what = f"prediction {chosen}" if chosen else f"positive prediction of {label}"
        said.append(
            f"The {what} goes to "
            + listed(
                f"{percent(s.value)} of {s.part}"
                f"{between((s.low, s.high), run['groups'][s.part]['examples'])}"
                for s in spans
            )
            + "."
        )
    gap = run["metrics"].get("demographic_parity_difference")
    if gap is not None and names:
        low, high = run["intervals"].get("demographic_parity_difference", (None, None))
        span = "" if low is None else f" (interval {100 * low:.0f} to {100 * high:.0f})"
        said.append(f"The largest difference between two groups is {100 * gap:.0f} points{span}"
                    f"{_resting(chapter.done[:1], 'demographic_parity_difference')}.")  # fmt: skip
    worst = [(v["accuracy"], g) for g, v in run["groups"].items() if v.get("accuracy") is not None]
    if worst:
        value, group = min(worst)
        few = between(None, run["groups"][group]["examples"])
        said.append(f"It is least often right for {group}: in {percent(value)} of cases{few}.")
    return said


_RESTS = {
    "demographic_parity_difference": ("selection_rate", (min, max)),
    "mean_residual_difference": ("mean_residual", (min, max)),
    "accuracy_group_min": ("accuracy", (min,)),
    "loss_group_max": ("loss", (max,)),
}
"""Of what a metric over groups is made: the groups at these ends of a value."""


def _resting(records: Sequence[Record], metric: str) -> str:
    """The groups with few examples that a metric rests on, in any of the runs; or nothing."""
    key, ends = _RESTS[metric]
    few: dict[str, float] = {}
    for record in records:
        table = record.measured["groups"] if record.measured else {}
        values = {g: v[key] for g, v in table.items() if v.get(key) is not None}
        for end in ends if values else ():
            group = end(values, key=lambda g: values[g])
            if table[group]["examples"] < FEW:
                few[group] = min(table[group]["examples"], few.get(group, math.inf))
    named = listed(f"{group}, {count(n, 'test example')}" for group, n in few.items())
    return f" (rests on {named})" if few else ""


def _compared(chapter: Chapter) -> list[str]:
    said = []
    for metric, what in (
        ("demographic_parity_difference", "difference in selection rates between two groups"),
        ("mean_residual_difference", "difference in mean residuals between two groups"),
        ("accuracy_group_min", "accuracy of the worst group"),
        ("loss_group_max", "loss of the worst group"),
    ):
        found = [(m, chapter.metric(m, metric)) for m in chapter.methods]
        means = {m: s.mean for m, s in found if s is not None and m not in chapter.references}
        if means:
            higher = metric == "accuracy_group_min"
            top = (max if higher else min)(means, key=lambda m: means[m])
            word = "highest" if higher else "smallest"
            said.append(
                f"{top} has the {word} {what}: {number(means[top])}, mean over seeds"
                f"{_resting(chapter.of(top), metric)}."
            )
    return said


def _overall(chapter: Chapter, rates: Sequence[Rate]) -> Grid:
    rows, marks = [], []
    known = {key for run in chapter.first["groups"].values() for key in run}
    numbers = [key for key in NUMBERS if key in known]
    for method, own in chapter.by_method():
        for group in chapter.first["task"]["groups"]:
            values = [r.measured["groups"].get(group) for r in own if r.measured]
            found = [v for v in values if v]
            if not found:
                continue
            examples = sum(v["examples"] for v in found) / len(found)
            spans = [_span(chapter, own, group, rate, 0) for rate in rates]
            loss = _mean(own, group, "loss")
            means = [_shown(_mean(own, group, key)) for key in numbers]
            rows.append(
                [chapter.label(method), group, f"{examples:.1f}".removesuffix(".0"),
                 *(_shown(s) for s in spans), *means, _shown(loss)]
            )  # fmt: skip
            few = "muted" if examples < FEW else ""
            grey = ["muted" if s.muted else "" for s in spans] + [few] * len(means)
            marks.append(["", "", few, *grey, few])
    names = [*(rate.name for rate in rates), *(NUMBERS[key] for key in numbers)]
    head = ["method", "group", "test examples", *names, "loss"]
    return Grid("groups", "By group, over all clients", head, rows, marks)


def _mean(own: Sequence[Record], group: str, key: str) -> Span:
    """A mean of a group over all clients: of one run from its cells, else over seeds."""
    values = [r.measured["groups"].get(group, {}).get(key) for r in own if r.measured]
    found = [math.nan if v is None else v for v in values]
    if len(found) > 1:
        summary = over_seeds(found)
        return Span("", summary.mean, _cut(key, summary.low), summary.high)
    cells = own[0].cells
    if cells is None or group not in cells.index.get_level_values("group"):
        return Span("", found[0])
    total = _total(cells, group)
    if MEANS[key] not in total:  # of a run that kept no such sums
        return Span("", found[0], muted=total["examples"] < FEW)
    return replace(_mean_of(total, key), muted=total["examples"] < FEW)


def _cut(key: str, low: float) -> float:
    """The lower end of an interval; a loss is not below 0."""
    return max(low, 0.0) if key == "loss" else low


def _mean_of(cell: Mapping[Any, Any], key: str) -> Span:
    """A mean of a cell, with its interval where its squares are known."""
    low, high = mean_span(cell, MEANS[key]) or (None, None)
    return Span("", float(cell[MEANS[key]]) / float(cell["examples"]), low, high)


def _shown(span: Span) -> str:
    if not math.isfinite(span.value):
        return "undefined"
    known = span.low is not None and span.high is not None and math.isfinite(span.low)
    return number(span.value) + (f" ({number(span.low)} to {number(span.high)})" if known else "")


def _by_client_figure(chapter: Chapter) -> Dots | None:
    column = "demographic_parity_difference"
    rows = []
    for method, own in chapter.by_method():
        dots = []
        for record in own:
            if record.clients is None or column not in record.clients or record.cells is None:
                continue
            least = record.cells["examples"].groupby(level="client").min()
            for name, value in record.clients[column].items():
                if math.isfinite(value):
                    few = bool(least.get(name, 0) < FEW)
                    dots.append(Dot(float(value), f"{name}, seed {record.seed}", few))
        if dots:
            mean = sum(d.value for d in dots) / len(dots)
            remark = f"largest {max(d.value for d in dots):.2f}, mean {mean:.2f}"
            rows.append(DotRow(chapter.label(method), dots, remark))
    if not rows:
        return None
    return Dots(
        "groups_by_client", "Difference between groups inside each client",
        " ".join(f"{r.label}: {r.remark}." for r in rows),
        "difference in selection rates; grey: few examples", rows,
        low=0.0,
    )  # fmt: skip


def _by_client(chapter: Chapter, rates: Sequence[Rate]) -> Grid | None:
    """Rates and means by client and group in the first run of every method."""
    rows: list[list[str]] = []
    marks: list[list[str]] = []
    left_out = 0
    means = [key for key in NUMBERS if _kept(chapter, MEANS[key])]
    for method, own in chapter.by_method():
        if own[0].cells is None:
            continue
        table = completed(own[0].cells)
        for (client, group), cell in zip(table.index, table.to_dict("records"), strict=True):
            if len(rows) >= _ROWS:
                left_out += 1
                continue
            texts, grey = [], []
            for rate in rates:
                n, part = float(cell[rate.of]), float(cell[rate.part])
                span = wilson(part, n)
                low, high = span if span is not None else (None, None)
                texts.append("undefined" if not n else _shown(Span("", part / n, low, high)))
                grey.append("muted" if n < FEW else "")
            n = float(cell["examples"])
            few = "muted" if n < FEW else ""
            texts += [_shown(_mean_of(cell, key)) for key in (*means, "loss")]
            rows.append([chapter.label(method), str(client), str(group), f"{n:g}", *texts])
            marks.append(["", "", "", few, *grey, *[few] * (len(means) + 1)])
    if not rows:
        return None
    notes = [f"{count(left_out, 'row')} more are in cells.parquet."] if left_out else []
    seed = "" if chapter.single else f", seed {chapter.done[0].seed}"
    names = [*(r.name for r in rates), *(NUMBERS[key] for key in means), "loss"]
    head = ["method", "client", "group", "test examples", *names]
    return Grid(
        "groups_by_client", f"By client and group{seed}", head, rows, marks, notes,
        folded=f"All clients and groups ({count(len(rows), 'row')})",
    )  # fmt: skip


def _kept(chapter: Chapter, column: str) -> bool:
    """Whether the cells of all first runs have a column; older ones have fewer."""
    cells = [own[0].cells for _, own in chapter.by_method()]
    return all(column in table for table in cells if table is not None)
