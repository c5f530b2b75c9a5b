"""Rates by client or by group, Wilson's intervals, and mean losses, from an evaluation's cells."""

from __future__ import annotations

import math
from typing import Literal

import pandas as pd

from evenfed.metrics.proportion import mean_interval, wilson

RATES = {
    "accuracy": ("right", "examples"),
    "selection_rate": ("selected", "examples"),
    "true_positive_rate": ("found", "positive"),
    "false_positive_rate": ("wrong", "negative"),
}
"""Every rate as a share: how many, of how many."""


def rates(cells: pd.DataFrame, by: Literal["client", "group"]) -> pd.DataFrame:
    """One row a client or group: examples, each rate and the mean loss, with `_low` and `_high`.

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
    result["loss"] = sums["loss"] / sums["examples"]
    if "loss_squares" in sums:
        pairs = zip(sums["loss"], sums["loss_squares"], sums["examples"], strict=True)
        ends = [mean_interval(*values) or (math.nan, math.nan) for values in pairs]
        result["loss_low"] = [max(low, 0.0) for low, _ in ends]
        result["loss_high"] = [high for _, high in ends]
    return result
