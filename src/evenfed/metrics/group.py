"""Fairness between groups, from counts: Fairlearn's definitions and names, any number of groups.

Every function takes counts `(..., G, C, C)` and keeps the leading axes: pass counts stacked
over clients for one value a client, or `counts.total()` for the federation's.

Classes. With two classes, label 1 is the favourable outcome. With more, `positive=None`
looks at every class against the rest and gives the worst class; `positive=c` picks one.

Nothing to divide by. A group without examples has no rate (NaN) and is left out. A rate whose
own denominator is empty in a group that has examples (no positives, for the true positive
rate) follows `empty`:

- `"omit"` (default): the rate is NaN and that group is left out of that comparison; a
  comparison of fewer than two groups is NaN, since "no gap" would be a claim without evidence.
- `"zero"`: Fairlearn's convention. The rate is 0, and a single group has difference 0.

The two agree wherever two groups have examples and no cell is empty.

References
----------
Fairlearn: https://fairlearn.org/main/user_guide/assessment/common_fairness_metrics.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError, DataError
from evenfed.metrics.client import FloatArray, accuracy, divide, mean_loss, to_numpy
from evenfed.metrics.rates import (
    Empty,
    cell_losses,
    confusion_of,
    false_positive_rates,
    group_accuracies,
    group_losses,
    group_sizes,
    selection_rates,
    true_positive_rates,
)

__all__ = [
    "Empty",
    "GroupReport",
    "cell_losses",
    "check_labels",
    "demographic_parity_difference",
    "demographic_parity_ratio",
    "demographic_parity_to_overall",
    "difference",
    "equal_opportunity_difference",
    "equal_opportunity_ratio",
    "equalized_odds_difference",
    "equalized_odds_ratio",
    "false_positive_rates",
    "group_accuracies",
    "group_losses",
    "group_metrics",
    "group_sizes",
    "group_values",
    "marginal",
    "ratio",
    "selection_rates",
    "true_positive_rates",
]


def difference(values: FloatArray, *, empty: Empty = "omit") -> FloatArray:
    """Largest pairwise difference over the last axis, groups `(..., G) -> (...)`.

    NaN values are left out; with `empty="omit"` fewer than two values give NaN.

    Examples
    --------
    >>> float(difference(np.array([0.5, np.nan, 0.75])))
    0.25
    """
    gap = np.fmax.reduce(values, -1) - np.fmin.reduce(values, -1)
    if empty == "zero":
        return np.asarray(gap)
    return np.where((~np.isnan(values)).sum(-1) < 2, np.nan, gap)


def ratio(values: FloatArray, *, empty: Empty = "omit") -> FloatArray:
    """Smallest over largest of the last axis, groups `(..., G) -> (...)`; NaN for 0 / 0.

    Examples
    --------
    >>> float(ratio(np.array([0.5, np.nan, 1.0])))
    0.5
    """
    quotient = divide(np.fmin.reduce(values, -1), np.fmax.reduce(values, -1))
    if empty == "zero":
        return quotient
    return np.where((~np.isnan(values)).sum(-1) < 2, np.nan, quotient)


def _by_class(rates: FloatArray, positive: int | None) -> FloatArray:
    """`(..., G, C) -> (..., P, G)` for the P classes looked at."""
    classes = rates.shape[-1]
    if positive is not None and not 0 <= positive < classes:
        raise ConfigError(f"positive is a class in 0..{classes - 1}, got {positive}")
    if positive is None and classes == 2:
        positive = 1
    picked = rates if positive is None else rates[..., [positive]]
    return np.moveaxis(picked, -1, -2)


def _worst_difference(rates: FloatArray, positive: int | None, empty: Empty) -> FloatArray:
    return np.asarray(np.fmax.reduce(difference(_by_class(rates, positive), empty=empty), -1))


def _worst_ratio(rates: FloatArray, positive: int | None, empty: Empty) -> FloatArray:
    return np.asarray(np.fmin.reduce(ratio(_by_class(rates, positive), empty=empty), -1))


def demographic_parity_difference(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> FloatArray:
    """Largest pairwise difference of selection rates `(...)` (Fairlearn's `between_groups`).

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> float(demographic_parity_difference(example()))
    0.25
    """
    return _worst_difference(selection_rates(counts), positive, empty)


def demographic_parity_ratio(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> FloatArray:
    """Smallest selection rate over the largest `(...)`.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> round(float(demographic_parity_ratio(example())), 6)
    0.666667
    """
    return _worst_ratio(selection_rates(counts), positive, empty)


def demographic_parity_to_overall(counts: Counts, *, positive: int | None = None) -> FloatArray:
    """`max_z |P(prediction = 1 | z) - P(prediction = 1)|` `(...)`.

    The disparity of PraFFL and HetPFL, Fairlearn's `method="to_overall"`. Defined for a single
    group too (0); NaN only without any example. Their code gives a group without examples
    the rate 0; here it is left out.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> float(demographic_parity_to_overall(example()))
    0.125
    """
    confusion = confusion_of(counts)
    overall = divide(confusion.sum((-3, -2)), confusion.sum((-3, -2, -1))[..., None])
    away = np.abs(selection_rates(counts) - overall[..., None, :])
    return np.asarray(np.fmax.reduce(_by_class(away, positive), (-2, -1)))


def equal_opportunity_difference(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> FloatArray:
    """Largest pairwise difference of true positive rates `(...)`.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> float(equal_opportunity_difference(example()))
    0.0
    """
    return _worst_difference(true_positive_rates(counts, empty=empty), positive, empty)


def equal_opportunity_ratio(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> FloatArray:
    """Smallest true positive rate over the largest `(...)`.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> float(equal_opportunity_ratio(example()))
    1.0
    """
    return _worst_ratio(true_positive_rates(counts, empty=empty), positive, empty)


def equalized_odds_difference(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> FloatArray:
    """Larger of the differences of true and false positive rates `(...)` (`worst_case`).

    Where only one of the two can be compared, it is that one.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> round(float(equalized_odds_difference(example())), 6)
    0.666667
    """
    tpr = _worst_difference(true_positive_rates(counts, empty=empty), positive, empty)
    fpr = _worst_difference(false_positive_rates(counts, empty=empty), positive, empty)
    return np.asarray(np.fmax(tpr, fpr))


def equalized_odds_ratio(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> FloatArray:
    """Smaller of the ratios of true and false positive rates `(...)`.

    A rate that is 0 in every group has no ratio (0 / 0) and is left out; what Fairlearn
    returns then depends on which of the two it is.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> float(equalized_odds_ratio(example()))
    0.0
    """
    tpr = _worst_ratio(true_positive_rates(counts, empty=empty), positive, empty)
    fpr = _worst_ratio(false_positive_rates(counts, empty=empty), positive, empty)
    return np.asarray(np.fmin(tpr, fpr))


def group_values(
    counts: Counts, *, positive: int | None = None, empty: Empty = "omit"
) -> dict[str, FloatArray]:
    """Every scalar group metric under its stable name, each `(...)`.

    `loss_cell_max` is the largest mean loss over (group, true label): the max group loss
    conditional on the label.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> values = group_values(example())
    >>> float(values["accuracy_group_min"]), float(values["loss_group_max"])
    (0.5, 1.0)
    """
    by_group, losses, cells = group_accuracies(counts), group_losses(counts), cell_losses(counts)
    options = {"positive": positive, "empty": empty}
    measures = (
        demographic_parity_difference,
        demographic_parity_ratio,
        equal_opportunity_difference,
        equal_opportunity_ratio,
        equalized_odds_difference,
        equalized_odds_ratio,
    )
    result = {f.__name__: f(counts, **options) for f in measures}  # type: ignore[arg-type]
    return result | {
        "demographic_parity_to_overall": demographic_parity_to_overall(counts, positive=positive),
        "accuracy": accuracy(counts),
        "accuracy_difference": difference(by_group, empty=empty),
        "accuracy_ratio": ratio(by_group, empty=empty),
        "accuracy_group_min": np.asarray(np.fmin.reduce(by_group, -1)),
        "loss": mean_loss(counts),
        "loss_difference": difference(losses, empty=empty),
        "loss_group_max": np.asarray(np.fmax.reduce(losses, -1)),
        "loss_cell_max": np.asarray(np.fmax.reduce(cells, (-2, -1))),
    }


@dataclass(frozen=True)
class GroupReport:
    """Group metrics of one set of counts, with what had to be left out.

    Parameters
    ----------
    metrics : dict
        Scalar metrics, as in `group_values`; NaN where nothing could be compared.
    by_group : dict
        For every rate, its value by group label; groups without examples are not there.
    groups_without_data : tuple of str
        Groups that no example belongs to.
    empty_cells : tuple of (str, int)
        (group, true label) without examples, in groups that have some: rates conditional on
        that label are undefined there.
    """

    metrics: dict[str, float]
    by_group: dict[str, dict[str, float]]
    groups_without_data: tuple[str, ...]
    empty_cells: tuple[tuple[str, int], ...]


def check_labels(counts: Counts, labels: Sequence[str] | None) -> tuple[str, ...]:
    """Labels of the groups of unstacked counts `(G, C, C)`; their codes where None is given."""
    if counts.confusion.ndim != 3:
        raise DataError(
            f"a report is of one set of counts (G, C, C), got {tuple(counts.confusion.shape)}; "
            "sum over clients with counts.total()"
        )
    groups = counts.confusion.shape[0]
    names = tuple(str(g) for g in range(groups)) if labels is None else tuple(labels)
    if len(names) != groups:
        raise DataError(f"{len(names)} labels for {groups} groups")
    return names


def group_metrics(
    counts: Counts,
    labels: Sequence[str] | None = None,
    *,
    positive: int | None = None,
    empty: Empty = "omit",
) -> GroupReport:
    """Report of one set of counts `(G, C, C)`: a client's, or the sum over clients.

    The rates by group are those of the positive class; with more than two classes and
    `positive=None` only accuracy and loss are given by group.

    Examples
    --------
    >>> from evenfed.metrics.rates import example
    >>> report = group_metrics(example(), labels=("women", "men"))
    >>> report.metrics["demographic_parity_difference"], report.by_group["accuracy"]
    (0.25, {'women': 1.0, 'men': 0.5})
    """
    names = check_labels(counts, labels)
    sizes, cells = group_sizes(counts), to_numpy(counts.cells)
    columns = {
        "examples": sizes,
        "accuracy": group_accuracies(counts),
        "loss": group_losses(counts),
    }
    if positive is not None or cells.shape[-1] == 2:
        rates = {
            "selection_rate": selection_rates(counts),
            "true_positive_rate": true_positive_rates(counts, empty=empty),
            "false_positive_rate": false_positive_rates(counts, empty=empty),
        }
        columns |= {name: _by_class(rate, positive)[0] for name, rate in rates.items()}
    present = [g for g in range(len(names)) if sizes[g] > 0]
    return GroupReport(
        {k: float(v) for k, v in group_values(counts, positive=positive, empty=empty).items()},
        {k: {names[g]: float(v[g]) for g in present} for k, v in columns.items()},
        tuple(name for name, size in zip(names, sizes, strict=True) if size == 0),
        tuple((names[g], int(c)) for g in present for c in np.flatnonzero(cells[g] == 0)),
    )


def marginal(counts: Counts, levels: Sequence[int], attribute: int) -> Counts:
    """Sum counts to one attribute from counts by the intersection of several.

    Parameters
    ----------
    counts : Counts
        `(..., G, C, C)` with G the product of `levels`; codes in mixed radix, the first
        attribute slowest.
    levels : sequence of int
        Number of levels of every attribute.
    attribute : int
        Index of the attribute to keep.

    Examples
    --------
    >>> one = Counts(torch.ones(6, 2, 2), torch.ones(6, 2), torch.zeros(6, 5))
    >>> marginal(one, levels=(2, 3), attribute=1).size.item(), marginal(one, (2, 3), 0).cells[0, 0]
    (24.0, tensor(6.))
    """
    groups = counts.confusion.shape[-3]
    if int(np.prod(levels)) != groups:
        raise DataError(f"levels {tuple(levels)} do not multiply to the {groups} groups counted")
    if not 0 <= attribute < len(levels):
        raise ConfigError(f"attribute is an index in 0..{len(levels) - 1}, got {attribute}")
    others = [a for a in range(len(levels)) if a != attribute]

    def keep(tensor: torch.Tensor, trailing: int) -> torch.Tensor:
        if not others:
            return tensor
        lead = tensor.ndim - trailing - 1
        split = tensor.reshape(*tensor.shape[:lead], *levels, *tensor.shape[lead + 1 :])
        return split.sum([lead + a for a in others])

    return replace(
        counts,
        confusion=keep(counts.confusion, 2),
        loss=keep(counts.loss, 1),
        moments=keep(counts.moments, 1),
    )
