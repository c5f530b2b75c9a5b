"""Fits the preprocessing on the clients' training rows.

By default no row leaves its client: clients send sums, in two exchanges (`summarise`, then
`squares` around the agreed mean, because a sum of raw squares loses all digits where the
mean is large beside the spread).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import DataError
from evenfed.data.preprocess import (
    Categorical,
    Numeric,
    Preprocessor,
    Spec,
    level_codes,
    level_order,
    numbers,
)

Fit = Literal["federated", "client", "pool"]
Squares = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""The second exchange: from the agreed mean `(p,)` to the sum of squared deviations `(p,)`."""


@dataclass(frozen=True)
class Summary:
    """What one client sends in the first exchange; only what the scaling needs is filled in.

    Parameters
    ----------
    count, total : arrays `(p,)`
        Present values and their sum, by numeric column; 0 where it is not asked for.
    low, high : arrays `(p,)`
        Smallest and largest value; infinite where it is not asked for.
    levels : tuple of mapping
        Of each categorical column the levels seen; with how often each was seen where the mode
        is asked for, else with 1.
    """

    count: NDArray[np.float64]
    total: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    levels: tuple[dict[str, int], ...]


def summarise(frame: pd.DataFrame, spec: Spec) -> Summary:
    """Summarise a client's training rows for the first exchange of the fit.

    Examples
    --------
    >>> rows = pd.DataFrame({"age": [20, 40], "job": ["nurse", "clerk"]})
    >>> sent = summarise(rows, Spec(numeric=("age",), categorical=("job",)))
    >>> sent.count.tolist(), sent.total.tolist(), sent.levels
    ([2.0], [60.0], ({'clerk': 1, 'nurse': 1},))
    """
    columns = [numbers(frame[name]) for name in spec.numeric]
    present = [x[~np.isnan(x)] for x in columns]
    asked = [
        x if spec.needs_mean(name) else x[:0] for name, x in zip(spec.numeric, present, strict=True)
    ]
    ranged = spec.scale == "minmax"
    return Summary(
        count=np.array([float(len(x)) for x in asked]),
        total=np.array([float(x.sum()) for x in asked]),
        low=np.array([x.min() if ranged and len(x) else np.inf for x in present]),
        high=np.array([x.max() if ranged and len(x) else -np.inf for x in present]),
        levels=tuple(_seen_levels(frame[name], name, spec) for name in spec.categorical),
    )


def _seen_levels(values: pd.Series[Any], name: str, spec: Spec) -> dict[str, int]:
    codes, known = level_codes(values)
    counts = np.bincount(codes[codes >= 0], minlength=len(known))
    seen = {level: int(n) for level, n in zip(known, counts, strict=True) if n}
    if name in spec.levels and not set(seen) <= set(spec.levels[name]):
        wrong = [i for i, level in enumerate(known) if level not in spec.levels[name]]
        row = values.index[int(np.argmax(np.isin(codes, wrong)))]
        raise DataError(f"column '{name}': row {row} has a level that is not on the column's list")
    if not spec.needs_levels(name):
        return {}
    return seen if spec.policy(name) == "mode" else dict.fromkeys(seen, 1)


def combine(summaries: Sequence[Summary]) -> Summary:
    """Add summaries of several clients up; the order does not matter to float rounding.

    Examples
    --------
    >>> spec = Spec(numeric=("age",))
    >>> parts = [summarise(pd.DataFrame({"age": ages}), spec) for ages in ([20, 40], [60])]
    >>> combine(parts).count.tolist(), combine(parts).total.tolist()
    ([3.0], [120.0])
    """
    levels: tuple[dict[str, int], ...] = tuple({} for _ in summaries[0].levels)
    for summary in summaries:
        for merged, seen in zip(levels, summary.levels, strict=True):
            for level, n in seen.items():
                merged[level] = merged.get(level, 0) + n
    return Summary(
        count=np.sum([s.count for s in summaries], axis=0),
        total=np.sum([s.total for s in summaries], axis=0),
        low=np.min([s.low for s in summaries], axis=0),
        high=np.max([s.high for s in summaries], axis=0),
        levels=levels,
    )


def squares(frame: pd.DataFrame, spec: Spec, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum squared deviations from the agreed mean `(p,)`: the second exchange.

    Examples
    --------
    >>> squares(pd.DataFrame({"age": [20, 40]}), Spec(numeric=("age",)), np.array([40.0])).tolist()
    [400.0]
    """
    columns = (numbers(frame[name]) for name in spec.numeric)
    return np.array([float(np.nansum((x - m) ** 2)) for x, m in zip(columns, mean, strict=True)])


def fit(
    frames: Mapping[str, pd.DataFrame], spec: Spec, how: Fit = "federated"
) -> tuple[dict[str, Preprocessor], tuple[str, ...]]:
    """Fit the preprocessing on the clients' training rows.

    Parameters
    ----------
    frames : mapping of client to DataFrame
        Training rows, and nothing else.
    spec : Spec
    how : {"federated", "client", "pool"}
        `"federated"` adds up what clients send and gives one preprocessing for all, the same
        as a fit on pooled rows to float rounding. With `"client"` each client scales and
        fills by its own rows; only levels are agreed. `"pool"` brings the raw rows together.

    Returns
    -------
    preprocessors : dict of client to Preprocessor
    ledger : tuple of str
        What left the clients.

    Examples
    --------
    >>> rows = {"a": pd.DataFrame({"age": [20, 40]}), "b": pd.DataFrame({"age": [60]})}
    >>> fitted, ledger = fit(rows, Spec(numeric=("age",)))
    >>> fitted["a"] == fitted["b"], fitted["a"].columns[0].offset
    (True, 40.0)
    """
    if how not in ("federated", "client", "pool"):
        raise DataError(f"fit is 'federated', 'client' or 'pool', not '{how}'")
    parts = {"all clients": pd.concat(list(frames.values()))} if how == "pool" else dict(frames)
    summaries = {}
    for client, frame in parts.items():
        try:
            summaries[client] = summarise(frame, spec)
        except DataError as error:
            raise DataError(f"client '{client}', training data: {error}") from None
    agreed = combine(list(summaries.values()))
    levels = agreed_levels(spec, agreed)

    def around(part: Sequence[pd.DataFrame]) -> Squares:
        return lambda mean: np.sum([squares(frame, spec, mean) for frame in part], axis=0)

    if how == "client":
        fitted = {
            client: finished(summaries[client], around([frame]), spec, levels, f"client '{client}'")
            for client, frame in parts.items()
        }
    else:
        one = finished(agreed, around(list(parts.values())), spec, levels, "all clients")
        fitted = dict.fromkeys(frames, one)
    return fitted, ledger(spec, how)


def agreed_levels(spec: Spec, agreed: Summary) -> dict[str, tuple[str, ...]]:
    """Levels of the categorical columns: those named beforehand, else those seen anywhere."""
    return {
        name: tuple(spec.levels[name])
        if name in spec.levels
        else tuple(sorted(seen, key=level_order))
        for name, seen in zip(spec.categorical, agreed.levels, strict=True)
    }


def finished(
    summary: Summary,
    squared: Squares,
    spec: Spec,
    levels: Mapping[str, tuple[str, ...]],
    whose: str,
) -> Preprocessor:
    """Turn a summary, and a second exchange about the same rows, into a preprocessing."""
    asked = np.array([spec.needs_mean(name) for name in spec.numeric], dtype=bool)
    empty = (asked & (summary.count == 0)) | ((spec.scale == "minmax") & np.isinf(summary.low))
    if empty.any():
        name = spec.numeric[int(np.argmax(empty))]
        raise DataError(f"column '{name}' has no value at all in the training data of {whose}")
    count = np.maximum(summary.count, 1.0)
    mean = summary.total / count
    offset, scale = np.zeros_like(mean), np.ones_like(mean)
    if spec.scale == "standard":
        spread = np.sqrt(squared(mean) / count)
        # Below this a spread is the rounding of a constant, not a spread.
        constant = spread <= count * np.finfo(np.float64).eps * np.abs(mean)
        offset, scale = mean, np.where(constant, 1.0, spread)
    elif spec.scale == "minmax":
        span = summary.high - summary.low
        offset, scale = summary.low, np.where(span > 0, span, 1.0)
    columns: list[Numeric | Categorical] = []
    for i, name in enumerate(spec.numeric):
        policy = spec.policy(name)
        fill = None if policy == "error" else float(mean[i])
        columns.append(Numeric(name, float(offset[i]), float(scale[i]), policy, fill))
    for name, seen in zip(spec.categorical, summary.levels, strict=True):
        policy = spec.policy(name)
        if policy == "mode" and not seen:
            raise DataError(f"column '{name}' has no value at all in the training data of {whose}")
        mode = max(levels[name], key=lambda x: seen.get(x, 0)) if policy == "mode" else None
        columns.append(Categorical(name, levels[name], policy, mode))
    return Preprocessor(tuple(columns))


def ledger(spec: Spec, how: Fit) -> tuple[str, ...]:
    """Say what left the clients while the preprocessing was fitted."""
    if how == "pool":
        return (
            f"RAW ROWS: {len(spec.numeric + spec.categorical)} feature columns of all training "
            "rows were pooled to fit the preprocessing",
        )
    means = [name for name in spec.numeric if spec.needs_mean(name)]
    asked = [name for name in spec.categorical if spec.needs_levels(name)]
    lines = []
    if how == "federated" and means:
        squared = " and sum of squared deviations" if spec.scale == "standard" else ""
        lines.append(
            f"count, sum{squared} of {len(means)} numeric columns over the training rows, "
            "to fit the preprocessing"
        )
    if how == "federated" and spec.scale == "minmax" and spec.numeric:
        lines.append(
            f"smallest and largest value of {len(spec.numeric)} numeric columns in the training "
            "rows (each is the exact value of one person), to fit the preprocessing"
        )
    if asked:
        lines.append(
            f"which levels {len(asked)} categorical columns have in the training rows (a rare "
            "level may point to one person), to agree on the features"
        )
    counted = [name for name in asked if spec.policy(name) == "mode"]
    if counted and how == "federated":
        lines.append(f"how often each level of {len(counted)} categorical columns occurs")
    return tuple(lines)
