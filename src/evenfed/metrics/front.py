"""Fronts of error against disparity, both to be made small, and what a front is worth.

With reference (1, 1) the hypervolume is the integral over d in [0, 1] of the best accuracy at
disparity <= d. Disparities rarely exceed 0.3, so that number is within some points of the best
accuracy, and a predictor that always says the majority class already has most of it. Hence
`front_metrics` puts the constant predictor's value beside every one of its own, and offers a
tight reference and the accuracy at a given disparity.

References
----------
moocore: https://multi-objective.github.io/moocore/python/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import moocore
import numpy as np
import numpy.typing as npt

from evenfed.core.counts import Counts
from evenfed.core.errors import DataError
from evenfed.metrics.client import FloatArray, accuracy, to_numpy
from evenfed.metrics.group import demographic_parity_to_overall


def _points(points: npt.ArrayLike) -> FloatArray:
    """Check points `(N, 2)`: (error, disparity), no NaN."""
    array = np.asarray(points, dtype=np.float64)
    if array.size == 0:
        return np.empty((0, 2))
    if array.ndim != 2 or array.shape[1] != 2:
        raise DataError(f"points are (error, disparity) rows, got an array of shape {array.shape}")
    if np.isnan(array).any():
        raise DataError(f"point {int(np.isnan(array).any(1).argmax())} is NaN")
    return array


def front_points(
    counts: Counts, disparity: Callable[[Counts], FloatArray] = demographic_parity_to_overall
) -> FloatArray:
    """(error, disparity) of every model `(N, 2)`, from counts stacked over models `(N, G, C, C)`.

    A row is NaN where the disparity is undefined.

    Examples
    --------
    >>> import torch
    >>> confusion = torch.tensor([[[[3.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 2.0]]]])
    >>> front_points(Counts(confusion, torch.zeros(1, 2, 2), torch.zeros(1, 2, 5)))
    array([[0.125, 0.25 ]])
    """
    return np.stack([1.0 - accuracy(counts), disparity(counts)], -1)


def nondominated(points: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which points `(N, 2)` no other point beats; of equal points only the first.

    Examples
    --------
    >>> nondominated([[0.1, 0.3], [0.2, 0.1], [0.2, 0.3], [0.1, 0.3]])
    array([ True,  True, False, False])
    """
    return np.asarray(moocore.is_nondominated(_points(points)), dtype=np.bool_)


def hypervolume(points: npt.ArrayLike, reference: Sequence[float] = (1.0, 1.0)) -> float:
    """Area that the points `(N, 2)` dominate up to the reference; 0 for no points.

    Examples
    --------
    >>> hypervolume([[0.25, 0.5], [0.5, 0.25]])
    0.5
    """
    return float(moocore.hypervolume(_points(points), ref=reference))


def accuracy_at_disparity(points: npt.ArrayLike, limit: float) -> float:
    """Best accuracy of the points with disparity <= limit; NaN if there is none.

    Examples
    --------
    >>> accuracy_at_disparity([[0.25, 0.5], [0.5, 0.25]], limit=0.3)
    0.5
    """
    array = _points(points)
    allowed = array[array[:, 1] <= limit, 0]
    return float(1.0 - allowed.min()) if allowed.size else float("nan")


@dataclass(frozen=True)
class ConstantPredictor:
    """The predictor that always says the most frequent class: its disparity is 0.

    Parameters
    ----------
    label : int
        The majority class (the smallest of equally frequent ones).
    error : float
        Share of the other classes.
    """

    label: int
    error: float

    @property
    def point(self) -> tuple[float, float]:
        """(error, disparity)."""
        return self.error, 0.0

    def hypervolume(self, reference: Sequence[float] = (1.0, 1.0)) -> float:
        """Area that its one point dominates."""
        return hypervolume([self.point], reference)


def constant_predictor(counts: Counts) -> ConstantPredictor:
    """Majority class and its error on the examples counted in `(G, C, C)`.

    Examples
    --------
    >>> import torch
    >>> confusion = torch.tensor([[[1.0, 0.0], [2.0, 1.0]]])
    >>> counts = Counts(confusion, torch.zeros(1, 2), torch.zeros(1, 5))
    >>> constant_predictor(counts), constant_predictor(counts).hypervolume()
    (ConstantPredictor(label=1, error=0.25), 0.75)
    """
    cells = to_numpy(counts.cells)
    if cells.ndim != 2 or cells.shape[1] < 2:
        raise DataError(
            "a constant predictor needs one set of counts (G, C, C) of a classification, got "
            f"{tuple(counts.confusion.shape)}"
        )
    labels = cells.sum(0)
    if labels.sum() == 0:
        raise DataError("a constant predictor needs examples; these counts are all zero")
    label = int(labels.argmax())
    return ConstantPredictor(label, float(1.0 - labels[label] / labels.sum()))


def front_metrics(
    points: npt.ArrayLike,
    constant: Counts | ConstantPredictor,
    reference: Sequence[float] = (1.0, 1.0),
    tight: Sequence[float] | None = None,
    *,
    limits: Sequence[float] = (0.05,),
) -> dict[str, float]:
    """Measures of a front, each with the constant predictor's beside it (`..._constant`).

    Parameters
    ----------
    points : array `(N, 2)`
        (error, disparity) of every model; rows with NaN are left out and counted in
        `points_undefined`.
    constant : Counts or ConstantPredictor
        Counts `(G, C, C)` of the same examples by any model, or the predictor itself.
    reference, tight : (error, disparity)
        Reference points of `hypervolume` and `hypervolume_tight`. A tight one is (1, d) with d
        the disparity of the unconstrained model: the same for all methods compared.
    limits : sequence of float
        Disparities d for `accuracy_at_disparity_d`.

    Examples
    --------
    >>> metrics = front_metrics([[0.1, 0.2]], ConstantPredictor(0, 0.25), tight=(1.0, 0.2))
    >>> round(metrics["hypervolume"], 6), metrics["hypervolume_constant"]
    (0.72, 0.75)
    >>> metrics["hypervolume_tight"], round(metrics["hypervolume_tight_constant"], 6)
    (0.0, 0.15)
    """
    base = constant if isinstance(constant, ConstantPredictor) else constant_predictor(constant)
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    undefined = np.isnan(array).any(1)
    array = array[~undefined]
    result = {
        "hypervolume": hypervolume(array, reference),
        "hypervolume_constant": base.hypervolume(reference),
        "best_accuracy": accuracy_at_disparity(array, np.inf),
        "best_accuracy_constant": 1.0 - base.error,
    }
    if tight is not None:
        result["hypervolume_tight"] = hypervolume(array, tight)
        result["hypervolume_tight_constant"] = base.hypervolume(tight)
        result["tight_error"], result["tight_disparity"] = (float(value) for value in tight)
    for limit in limits:
        result[f"accuracy_at_disparity_{limit:g}"] = accuracy_at_disparity(array, limit)
        result[f"accuracy_at_disparity_{limit:g}_constant"] = 1.0 - base.error
    result["points"] = float(len(array))
    result["points_undefined"] = float(undefined.sum())
    result["points_nondominated"] = float(nondominated(array).sum())
    return result


def monotonicity(points: npt.ArrayLike) -> dict[str, float]:
    """How far a front is monotone in the preference; points `(N, 2)` from accurate to fair.

    `disparity_tau` and `error_tau` are Kendall's tau-b with the preference: -1 and 1 where the
    front is strictly monotone, NaN where a column is constant. `disparity_rise` and `error_fall`
    are the largest wrong-way changes between two preferences, 0 where there is none.

    Examples
    --------
    >>> found = monotonicity([[0.1, 0.3], [0.2, 0.1], [0.3, 0.2]])
    >>> round(found["disparity_rise"], 6), found["error_fall"], round(found["error_tau"], 6)
    (0.1, 0.0, 1.0)
    """
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    array = array[~np.isnan(array).any(1)]
    if not len(array):
        names = ("disparity_tau", "error_tau", "disparity_rise", "error_fall")
        return dict.fromkeys(names, float("nan"))
    error, disparity = array.T
    order = np.arange(len(array))
    return {
        "disparity_tau": _tau(order, disparity),
        "error_tau": _tau(order, error),
        "disparity_rise": float((disparity - np.minimum.accumulate(disparity)).max()),
        "error_fall": float((np.maximum.accumulate(error) - error).max()),
    }


def _tau(order: npt.NDArray[np.int64], values: FloatArray) -> float:
    if len(values) < 2 or (values == values[0]).all():
        return float("nan")
    from scipy.stats import kendalltau  # half a second that most runs need not wait for

    return float(kendalltau(order, values).statistic)


def least(points: npt.ArrayLike, column: int, limit: float = np.inf) -> int | None:
    """Index of the point with the lowest error (0) or disparity (1) whose other value is in limit.

    Of points that are equal in that value the other decides, so that no point of the front beats
    the one taken; of points equal in both it is the last, the fairest preference. None where no
    point is within the limit.

    Examples
    --------
    >>> least([[0.1, 0.3], [0.1, 0.4], [0.2, 0.1]], column=0)
    0
    """
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    other = 1 - column
    with np.errstate(invalid="ignore"):
        allowed = np.flatnonzero(~np.isnan(array).any(1) & (array[:, other] <= limit))
    if not len(allowed):
        return None
    found = array[allowed]
    order = np.lexsort((-allowed, found[:, other], found[:, column]))
    return int(allowed[order[0]])


def monotone(points: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Indices of the points that no other beats, by falling disparity (and so rising error).

    Examples
    --------
    >>> monotone([[0.2, 0.1], [0.1, 0.3], [0.3, 0.3]])
    array([1, 0])
    """
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    defined = np.flatnonzero(~np.isnan(array).any(1))
    best = defined[nondominated(array[defined])] if len(defined) else defined
    if not len(best):
        raise DataError("a monotone order needs points whose disparity is defined")
    return best[np.argsort(-array[best, 1], kind="stable")]
