"""Rates by client or by group with Wilson's intervals, means with normal ones, from cells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from evenfed.metrics.proportion import mean_interval, wilson

RATES = {
    "accuracy": ("right", "examples"),
    "selection_rate": ("selected", "examples"),
    "true_positive_rate": ("found", "positive"),
    "false_positive_rate": ("wrong", "negative"),
}
"""Every rate as a share: how many, of how many."""
MEANS = {"mean_prediction": "prediction", "mean_residual": "residual", "loss": "loss"}
"""Every mean by the name of its sum; that of squares has `_squares` behind it."""


def rates(cells: pd.DataFrame, by: Literal["client", "group"]) -> pd.DataFrame:
    """One row a client or group: examples, each rate and mean, with `_low` and `_high`.

    Parameters
    ----------
    cells : DataFrame
        One row a (client, group), see `Evaluation.cells`.

    Examples
    --------
    >>> index = pd.MultiIndex.from_tuples([("a", "f"), ("a", "m")], names=["client", "group"])
    >>> cells = pd.DataFrame({"examples": [10, 10], "right": [8, 9], "loss": [5.0, 1.0]}, index)
    >>> found = rates(cells, "group").loc["f", ["accuracy", "accuracy_low", "accuracy_high"]]
    >>> found.round(4).tolist()  # Newcombe 1998 gives 0.4902 to 0.9433
    [0.8, 0.4902, 0.9433]
    """
    sums = cells.groupby(level=by, sort=False).sum()
    if "positive" in sums:
        sums = sums.assign(
            wrong=sums["selected"] - sums["found"], negative=sums["examples"] - sums["positive"]
        )
    result = sums[["examples"]].copy()
    for name, (part, of) in RATES.items():
        if part not in sums:
            continue
        spans = [wilson(a, n) for a, n in zip(sums[part], sums[of], strict=True)]
        result[name] = [a / n if n else math.nan for a, n in zip(sums[part], sums[of], strict=True)]
        result[f"{name}_low"] = [math.nan if span is None else span[0] for span in spans]
        result[f"{name}_high"] = [math.nan if span is None else span[1] for span in spans]
    for name, part in MEANS.items():
        if part not in sums:
            continue
        result[name] = sums[part] / sums["examples"]
        if f"{part}_squares" in sums:
            ends = [mean_span(cell, part) for cell in sums.to_dict("records")]
            result[f"{name}_low"] = [math.nan if span is None else span[0] for span in ends]
            result[f"{name}_high"] = [math.nan if span is None else span[1] for span in ends]
    return result


def mean_span(cell: Mapping[Any, Any], part: str) -> tuple[float, float] | None:
    """Normal interval of the mean of a sum, of a loss cut at 0; None where there is none.

    Parameters
    ----------
    cell : mapping
        `examples`, the sum under the name `part`, and that of squares, of a cell or several.

    Examples
    --------
    >>> cell = {"examples": 5, "residual": 10.0, "residual_squares": 30.0}
    >>> [round(end, 3) for end in mean_span(cell, "residual")]  # 2 and 1.96 times (2.5 / 5) ** 0.5
    [0.614, 3.386]
    """
    if f"{part}_squares" not in cell:
        return None
    sums = (float(cell[name]) for name in (part, f"{part}_squares", "examples"))
    span = mean_interval(*sums)
    return span if span is None or part != "loss" else (max(span[0], 0.0), span[1])
