"""Is it fair to clients: the distribution over clients, the worst by name, excess risks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from evenfed.metrics.proportion import mean_interval, wilson
from evenfed.report.answers.chapter import Chapter
from evenfed.report.answers.excess import excess, faa_said
from evenfed.report.charts import Dot, DotRow, Dots, Figure
from evenfed.report.sections import Grid, Section
from evenfed.report.words import FEW, FEW_NOTE, between, count, listed, number, percent
from evenfed.runs.record import Record
from evenfed.runs.table import local_label

NAMED = 5
"""Worst clients that are named."""


def clients(chapter: Chapter) -> Section:
    """Accuracy (loss, where labels are numbers) of every client."""
    value = "loss" if chapter.regression else "accuracy"
    figures: list[Figure] = []
    dots = _distribution(chapter, value)
    if dots is not None:
        figures.append(dots)
    said, notes = _said(chapter, value) + faa_said(chapter) + _untested(chapter), []
    bars, quantiles, why = excess(chapter)
    if bars is not None:
        figures.append(bars)
    if chapter.trained:
        notes.append(why)
    moves = "" if chapter.regression else "A client with few test examples moves in large steps. "
    notes.append(moves + FEW_NOTE)
    title = "Is it fair to clients?"
    grids = [_worst(chapter, value), *quantiles]
    return Section("clients", title, said, figures, grids, notes)


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
    return DotRow(
        local_label(chapter.alone or {}, short=True),
        dots,
        f"worst {number(worst)}, mean {number(mean)}",
        6,
    )


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
        return [
            largest,
            *_spread(record, value, len(frame)),
            *_better_off(chapter, frame, value),
        ]
    n, most = float(worst["examples"]), float(best["examples"])
    span = wilson(float(worst["accuracy"]) * n, n)
    top = wilson(float(best["accuracy"]) * most, most)
    said = [
        f"The worst client, {frame.index[0]}, is right in {percent(worst['accuracy'])} of cases"
        f"{between(span, n)}, the best, {frame.index[-1]}, in {percent(best['accuracy'])}"
        f"{between(top, most)}."
    ]
    if n < FEW:
        said.append("That is too few to judge the worst.")
    return [*said, *_spread(record, value, len(frame)), *_better_off(chapter, frame, value)]


def _spread(record: Record, value: str, clients: int) -> list[str]:
    """The standard deviation over clients, and whether chance alone may be behind it."""
    measured, name = record.measured or {}, f"client_{value}_std"
    spread = measured.get("metrics", {}).get(name)
    if spread is None:
        return []
    said = f"The standard deviation over {count(clients, 'client')} is {number(spread)}"
    low, high = measured.get("intervals", {}).get(name, (None, None))
    if low is None or high is None:
        return [f"{said}."]
    said += f" (interval {number(low)} to {number(high)})."
    chance = "With so few test examples, clients that are all alike would differ as much by chance."
    return [said, chance] if low == 0 else [said]


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
