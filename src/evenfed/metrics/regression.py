"""Group metrics of a regression, from the sums that clients send.

The sums are those of y, the prediction, their squares and their product, so means, squared
errors and R2 can be had. The mean absolute error cannot: where the task's loss is the
absolute error, it is the group loss.

Squared errors come from differences of sums in float64: they lose digits when the mean of y
is more than some 1e6 times the error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenfed.core.counts import Counts
from evenfed.core.errors import DataError
from evenfed.metrics.client import FloatArray, divide, mean_loss, to_numpy
from evenfed.metrics.group import Empty, GroupReport, check_labels, difference
from evenfed.metrics.rates import group_losses, group_sizes


def _moments(counts: Counts) -> FloatArray:
    if counts.confusion.shape[-1] != 1:
        raise DataError("these are counts of a classification; use metrics.group")
    return to_numpy(counts.moments)


def mean_predictions(counts: Counts) -> FloatArray:
    """Mean prediction by group `(..., G)`; NaN for a group without examples.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> mean_predictions(counts)
    array([1.5])
    """
    return divide(_moments(counts)[..., 1], group_sizes(counts))


def mean_residuals(counts: Counts) -> FloatArray:
    """Mean of y minus prediction by group `(..., G)`: positive where the model says too little.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> mean_residuals(counts)
    array([-1.])
    """
    moments = _moments(counts)
    return divide(moments[..., 0] - moments[..., 1], group_sizes(counts))


def _squared_error(moments: FloatArray) -> FloatArray:
    """Sum of squared errors `(...)` from moments `(..., 5)`; rounding may not make it negative."""
    return np.maximum(moments[..., 2] - 2 * moments[..., 4] + moments[..., 3], 0.0)


def mean_squared_errors(counts: Counts) -> FloatArray:
    """Mean squared error by group `(..., G)`; NaN for a group without examples.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> mean_squared_errors(counts)
    array([1.])
    """
    return divide(_squared_error(_moments(counts)), group_sizes(counts))


def r2(counts: Counts) -> FloatArray:
    """Coefficient of determination over all groups `(...)`; NaN where y does not vary.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> float(r2(counts))
    -3.0
    """
    total, size = _moments(counts).sum(-2), group_sizes(counts).sum(-1)
    spread = total[..., 2] - divide(total[..., 0] ** 2, size)
    # Below float64's rounding of the two sums, y is constant as far as they can tell.
    spread = np.where(spread > 1e-13 * total[..., 2], spread, 0.0)
    return 1.0 - divide(_squared_error(total), spread)


def constant_mean_squared_error(counts: Counts) -> FloatArray:
    """What always predicting the mean of y would give `(...)`: a reference, not a result.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> float(constant_mean_squared_error(counts))
    0.25
    """
    total, size = _moments(counts).sum(-2), group_sizes(counts).sum(-1)
    return np.maximum(divide(total[..., 2], size) - divide(total[..., 0], size) ** 2, 0.0)


def regression_values(counts: Counts, *, empty: Empty = "omit") -> dict[str, FloatArray]:
    """Every scalar metric under its stable name, each `(...)`.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> float(regression_values(counts)["mean_squared_error"])
    1.0
    """
    errors, losses, size = mean_squared_errors(counts), group_losses(counts), group_sizes(counts)
    squared = divide(_squared_error(_moments(counts).sum(-2)), size.sum(-1))
    return {
        "mean_prediction_difference": difference(mean_predictions(counts), empty=empty),
        "mean_residual_difference": difference(mean_residuals(counts), empty=empty),
        "mean_squared_error": squared,
        "mean_squared_error_difference": difference(errors, empty=empty),
        "mean_squared_error_group_max": np.asarray(np.fmax.reduce(errors, -1)),
        "r2": r2(counts),
        "loss": mean_loss(counts),
        "loss_difference": difference(losses, empty=empty),
        "loss_group_max": np.asarray(np.fmax.reduce(losses, -1)),
    }


def regression_metrics(
    counts: Counts, labels: Sequence[str] | None = None, *, empty: Empty = "omit"
) -> GroupReport:
    """Report of one set of counts `(G, 1, 1)`: a client's, or the sum over clients.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, p, group, one = torch.tensor([[0.0, 1.0], [1.0, 2.0], [0, 0], [1.0, 1.0]])
    >>> counts = count_values(p, y, group.long(), one, one, groups=1)
    >>> regression_metrics(counts, labels=("all",)).by_group["mean_prediction"]
    {'all': 1.5}
    """
    names = check_labels(counts, labels)
    sizes = group_sizes(counts)
    columns = {
        "examples": sizes,
        "mean_prediction": mean_predictions(counts),
        "mean_residual": mean_residuals(counts),
        "mean_squared_error": mean_squared_errors(counts),
        "loss": group_losses(counts),
    }
    present = [g for g in range(len(names)) if sizes[g] > 0]
    return GroupReport(
        {name: float(value) for name, value in regression_values(counts, empty=empty).items()},
        {name: {names[g]: float(v[g]) for g in present} for name, v in columns.items()},
        tuple(name for name, size in zip(names, sizes, strict=True) if size == 0),
        (),
    )
