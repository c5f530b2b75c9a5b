"""Group metrics of a regression, from the sums that clients send.

The sums are those of y, the prediction, their squares and their product, so means, squared
errors and R2 can be had. The mean absolute error cannot: where the task's loss is the
absolute error, it is the group loss.

Squared errors come from differences of sums in float64: they lose digits when the mean of y
is more than some 1e6 times the error.

Intervals of the mean squared error and of R2 are by the delta method. With `A` the mean of the
squared errors `e^2` and `B` that of `(y - mean)^2` they are of `A` and of `1 - A / B`, and an
example moves `A / B` by `(e^2 - A) / B - A / B^2 ((y - mean)^2 - B)`, over all. Clients are strata:
what varies inside each counts. Intervals are those of the logarithms of `A` and `A / B`, which lean
less than they do: no error is below 0, no R2 above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

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


def r2_interval(counts: Counts, level: float = 0.95) -> tuple[float, float] | None:
    """Interval of `r2` over all examples of counts stacked over clients `(K, G, 1, 1)`.

    Moments of both kinds must be in one unit. None where y or the errors do not vary, or where
    higher moments are not there.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y = torch.linspace(-1, 1, 50)
    >>> said, one = y + 0.5 * torch.sin(9 * y), torch.ones(50)
    >>> counts = count_values(said, y, one.long() * 0, one, one, groups=1)
    >>> low, high = r2_interval(Counts(*(part[None] for part in vars(counts).values())))
    >>> bool(low < r2(counts) < high < 1)
    True
    """
    sums, n = _by_client(counts)
    if sums is None or n.sum() < 2:
        return None
    total, size = sums.sum(0), n.sum()
    mean = total[0] / size
    errors = _squared_error(total) / size
    spread = total[2] / size - mean**2
    if not (np.isfinite(total).all() and errors > 0 and spread > 1e-13 * total[2] / size):
        return None
    ey, eyy, e4 = sums[:, 8:11].T
    ee, (away2, away4) = _squared_error(sums), _away(sums, n, mean)
    both = eyy - 2 * mean * ey + mean**2 * ee
    a, b = 1 / spread, errors / spread**2
    first, second = a * ee - b * away2, a * a * e4 - 2 * a * b * both + b * b * away4
    step = _error_of_mean(first, second, n) * NormalDist().inv_cdf((1 + level) / 2)
    ratio = errors / spread
    low, high = 1 - ratio * np.exp(step / ratio), 1 - ratio * np.exp(-step / ratio)
    return float(low), float(high)


def squared_error_interval(counts: Counts, level: float = 0.95) -> tuple[float, float] | None:
    """Interval of the mean squared error over all examples of counts `(K, G, 1, 1)`.

    Moments of both kinds must be in one unit. None without errors, or where higher moments are not
    there.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, one = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)  # squared errors 1, 4, 9
    >>> counts = count_values(0 * y, y, one.long() * 0, one, one, groups=1)
    >>> low, high = squared_error_interval(Counts(*(part[None] for part in vars(counts).values())))
    >>> error = (49 / 3 / 3) ** 0.5 / (14 / 3)  # standard error over the mean
    >>> round((low * high) ** 0.5, 4), round(float(np.log(high / low)) / 2 / 1.959964 / error, 4)
    (4.6667, 1.0)
    """
    sums, n = _by_client(counts)
    if sums is None or n.sum() < 2 or not np.isfinite(sums).all():
        return None
    return _of_squares(_squared_error(sums), sums[:, 10], n, level)


def constant_interval(counts: Counts, level: float = 0.95) -> tuple[float, float] | None:
    """Interval of `constant_mean_squared_error`, as of `squared_error_interval`.

    Examples
    --------
    >>> import torch
    >>> from evenfed.core.counts import count_values
    >>> y, one = torch.tensor([1.0, 2.0, 6.0]), torch.ones(3)  # 2, 1 and 3 away from their mean
    >>> def counted(y, p):
    ...     counts = count_values(p, y, one.long() * 0, one, one, groups=1)
    ...     return Counts(*(part[None] for part in vars(counts).values()))
    >>> known = squared_error_interval(counted(y, 0 * y + 3))
    >>> bool(np.allclose(constant_interval(counted(y, y)), known))
    True
    """
    sums, n = _by_client(counts)
    if sums is None or n.sum() < 2 or not np.isfinite(sums).all():
        return None
    away2, away4 = _away(sums, n, float(sums[:, 0].sum() / n.sum()))
    return _of_squares(np.maximum(away2, 0.0), away4, n, level)


def _of_squares(
    squares: FloatArray, fourths: FloatArray, n: FloatArray, level: float
) -> tuple[float, float] | None:
    """Interval of the mean of squares, from clients' sums of them and of their squares."""
    error, middle = _error_of_mean(squares, fourths, n), float(squares.sum() / n.sum())
    if middle <= 0:
        return None
    step = float(np.exp(NormalDist().inv_cdf((1 + level) / 2) * error / middle))
    return middle / step, middle * step


def _away(sums: FloatArray, n: FloatArray, mean: float) -> tuple[FloatArray, FloatArray]:
    """Clients' sums of second and fourth powers of `y - mean`, from moments `(K, 11)`."""
    y, yy, y3, y4 = sums[:, [0, 2, 6, 7]].T
    away4 = y4 - 4 * mean * y3 + 6 * mean**2 * yy - 4 * mean**3 * y + n * mean**4
    return yy - 2 * mean * y + n * mean**2, away4


def _by_client(counts: Counts) -> tuple[FloatArray | None, FloatArray]:
    """Moments `(K, 11)` and sizes `(K,)` of the clients that have examples."""
    moments, size = _moments(counts).sum(-2), group_sizes(counts).sum(-1)
    return (moments[size > 0] if moments.shape[-1] > 10 else None), size[size > 0]


def _error_of_mean(first: FloatArray, second: FloatArray, n: FloatArray) -> float:
    """Standard error of a mean over all examples from clients' sums of values and squares."""
    inside = np.maximum(second - first**2 / n, 0.0)
    # a client's mean is estimated too; of a client with one example nothing is known
    return float(np.sqrt((inside * n / np.maximum(n - 1, 1)).sum()) / n.sum())


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
