"""Excess risks of clients, as FOCUS draws them, and FAA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from evenfed.report.answers.chapter import Chapter
from evenfed.report.charts import BarRow, Bars
from evenfed.report.sections import Grid
from evenfed.report.words import count, listed, number
from evenfed.runs.table import local_label

_BARS = 60
"""Clients beyond which bars would be hairs: the worst are drawn, of all there are quantiles."""
_SHARES = {"lowest": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95,
           "largest": 1.0}  # fmt: skip


def excess(chapter: Chapter) -> tuple[Bars | None, list[Grid], str]:
    """Excess risk over a reference: bars, quantiles of many clients, what the reference is."""
    true = _over_clusters(chapter)
    found = _over_best(chapter) if true is None else true
    if found is None:
        return None, [], _why_none(chapter)
    drawn = _worst(found, chapter)
    names = [str(name) for name in drawn.index]
    rows = []
    for method in drawn.columns:
        values = [float(v) if math.isfinite(v) else None for v in drawn[method]]
        color = 0 if _own(str(method), chapter) else 6
        rows.append(BarRow(chapter.label(method), values, color=color))
    axis, note = _about(chapter, true is not None)
    title, grids = "Excess risk of every client", []
    if sample := (chapter.alone or {}).get("sample") if true is None else None:
        title = f"Excess risk of the {sample['clients']} clients that were also trained alone"
    if len(drawn) < len(found):
        note += (
            f" Of {count(len(found), 'client')} the {len(drawn)} with the largest excess risk are "
            "drawn, largest first; the table has quantiles of all."
        )
        title = f"Excess risk of the {len(drawn)} clients with the largest"
        grids = [_quantiles(found, chapter)]
    return Bars("excess", title, _largest(rows, names), axis, names, rows), grids, note


def _why_none(chapter: Chapter) -> str:
    alone = "`--reference` (Local) or " if _may_train_local(chapter) else ""
    return (
        "Excess risk is over the lowest loss of several methods, or over a model of the true "
        f"cluster, and there is neither here: {alone}`evenfed study` with several methods "
        "gives one, `excess = true` the other where true clusters are known."
    )


def _own(method: str, chapter: Chapter) -> bool:
    """Whether a row is of a method that is compared, not of a reference."""
    return method in chapter.methods and method not in chapter.references


def _worst(found: pd.DataFrame, chapter: Chapter) -> pd.DataFrame:
    """All clients in order where they are few; else those with the largest excess, largest first.

    What counts is the largest of any method that is not a reference.
    """
    if len(found) <= _BARS:
        return found
    own = [m for m in found.columns if _own(str(m), chapter)] or list(found.columns)
    rank = found[own].max(axis=1).sort_values(ascending=False, kind="stable", na_position="last")
    return found.loc[rank.index[:_BARS]]


def _quantiles(found: pd.DataFrame, chapter: Chapter) -> Grid:
    rows = [
        [
            chapter.label(str(method)),
            *(number(float(found[method].quantile(q))) for q in _SHARES.values()),
        ]
        for method in found.columns
    ]
    caption = f"Excess risk over all {count(len(found), 'client')}: quantiles"
    return Grid("excess_quantiles", caption, ["method", *_SHARES], rows)


def _about(chapter: Chapter, true: bool) -> tuple[str, str]:
    """The axis, and what the reference is."""
    if true:
        return "loss above that of a model of the true cluster", (
            "Excess risk as FOCUS measures it: over one centralised model trained on all clients "
            "of the same true cluster; mean over seeds. Negative: the client does better than that."
        )
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
    if sample := (chapter.alone or {}).get("sample"):
        note += f" It is known of the {sample['clients']} clients that were also trained alone."
    return "loss above the lowest of any row on that client", note


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


def faa_said(chapter: Chapter) -> list[str]:
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
    local = local_label(chapter.alone or {}, short=True)
    losses = pd.DataFrame({chapter.methods[0]: frame["loss"], local: pd.Series(alone, dtype=float)})
    losses = losses.loc[[name for name in frame.index if name in alone]]
    return losses.sub(losses.min(axis=1), axis=0)


def _largest(rows: Sequence[BarRow], names: Sequence[str]) -> str:
    said = []
    for row in rows:
        found = [(v, name) for v, name in zip(row.values, names, strict=True) if v is not None]
        if found:
            value, name = max(found)
            said.append(f"{row.label}: largest {value:.3f} ({name}).")
    return " ".join(said)
