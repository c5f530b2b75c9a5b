"""Fairness between clients: how evenly one performance value is spread over them.

Every function takes one value a client, in plain numbers (accuracy in [0, 1], or a loss).
Spread is always the population's (divided by m, not m - 1), as in q-FFL and FedEBA+;
those papers print the variance of accuracies in percent, which is `1e4 * variance`.
The relative measures tell the same story in different units: with CV the coefficient of
variation, `jain_index = 1 / (1 + CV^2) = cos^2(angle)` and `angle = arctan(CV)`.

References
----------
T. Li, M. Sanjabi, A. Beirami, V. Smith. Fair Resource Allocation in Federated Learning
(q-FFL). ICLR 2020: worst and best 10 %, angle, KL to uniform.
R. Jain, D. Chiu, W. Hawe. A Quantitative Measure of Fairness. DEC-TR-301, 1984.
R. Rockafellar, S. Uryasev. Optimization of Conditional Value-at-Risk. J. Risk, 2000.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from evenfed.core.counts import Counts
from evenfed.core.errors import DataError

FloatArray = npt.NDArray[np.float64]


def to_numpy(tensor: Tensor) -> FloatArray:
    """Copy a tensor's values to the host as float64."""
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def divide(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    """Quotient that is NaN where the denominator is 0.

    Examples
    --------
    >>> divide([1.0, 1.0], [2.0, 0.0])
    array([0.5, nan])
    """
    top, bottom = np.broadcast_arrays(
        np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    )
    quotient = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=quotient, where=bottom != 0)
    return quotient


def accuracy(counts: Counts) -> FloatArray:
    """Share of right predictions, `(...)` for counts `(..., G, C, C)`; NaN without examples.

    Examples
    --------
    >>> import torch
    >>> confusion = torch.tensor([[[[3.0, 1.0], [0.0, 4.0]]], [[[0.0, 0.0], [0.0, 0.0]]]])
    >>> accuracy(Counts(confusion, torch.zeros(2, 1, 2), torch.zeros(2, 1, 5)))
    array([0.875,   nan])
    """
    confusion = to_numpy(counts.confusion)
    if confusion.shape[-1] == 1:
        raise DataError("regression has no accuracy; use mean_loss or metrics.regression")
    return divide(np.einsum("...gcc->...", confusion), confusion.sum((-3, -2, -1)))


def mean_loss(counts: Counts) -> FloatArray:
    """Mean loss of an example, `(...)` for counts `(..., G, C, C)`; NaN without examples.

    Examples
    --------
    >>> import torch
    >>> counts = Counts(torch.ones(1, 2, 2), torch.tensor([[1.0, 3.0]]), torch.zeros(1, 5))
    >>> float(mean_loss(counts))
    1.0
    """
    return divide(to_numpy(counts.loss).sum((-2, -1)), to_numpy(counts.size))


def _vector(values: npt.ArrayLike) -> FloatArray:
    """Check that there is one finite value a client."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise DataError(f"expected one value a client, got an array of shape {vector.shape}")
    if not np.isfinite(vector).all():
        bad = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DataError(
            f"the value of client {bad} is {vector[bad]}; leave out clients without data first"
        )
    return vector


def mean(values: npt.ArrayLike) -> float:
    """Mean over clients, each counting the same.

    Examples
    --------
    >>> mean([0.5, 1.0])
    0.75
    """
    return float(_vector(values).mean())


def weighted_mean(values: npt.ArrayLike, sizes: npt.ArrayLike) -> float:
    """Mean over clients weighted by their number of examples.

    Examples
    --------
    >>> weighted_mean([0.5, 1.0], [3, 1])
    0.625
    """
    vector, weight = _vector(values), _vector(sizes)
    if vector.shape != weight.shape or weight.min() < 0 or weight.sum() == 0:
        raise DataError(f"expected {vector.size} sizes, none negative and not all zero")
    return float(vector @ weight / weight.sum())


def variance(values: npt.ArrayLike) -> float:
    """Return the population's variance over clients.

    Examples
    --------
    >>> variance([0.5, 1.0])
    0.0625
    """
    return float(_vector(values).var())


def std(values: npt.ArrayLike) -> float:
    """Return the population's standard deviation over clients.

    Examples
    --------
    >>> std([0.5, 1.0])
    0.25
    """
    return float(_vector(values).std())


def gap(values: npt.ArrayLike) -> float:
    """Largest value minus smallest.

    Examples
    --------
    >>> gap([0.5, 0.75, 1.0])
    0.5
    """
    return float(np.ptp(_vector(values)))


def parity_ratio(values: npt.ArrayLike) -> float:
    """Smallest value over largest; NaN if the largest is 0.

    Examples
    --------
    >>> parity_ratio([0.5, 1.0])
    0.5
    """
    vector = _vector(values)
    return float(divide(vector.min(), vector.max()))


def tail_size(share: float, m: int) -> int:
    """Clients in a tail that is this share of `m` clients: at least one."""
    if not 0 < share <= 1:
        raise DataError(f"a tail is a share in (0, 1], got {share}")
    # 0.29 * 100 is 28.999... in floating point and means 29 clients.
    return max(1, int(np.floor(share * m + 1e-9)))


def lowest(values: npt.ArrayLike, share: float = 0.1) -> float:
    """Mean of the `max(1, floor(share * m))` lowest values.

    Examples
    --------
    >>> lowest([0.25, 0.75, 1.0, 0.5], share=0.5)
    0.375
    """
    vector = np.sort(_vector(values))
    return float(vector[: tail_size(share, vector.size)].mean())


def highest(values: npt.ArrayLike, share: float = 0.1) -> float:
    """Mean of the `max(1, floor(share * m))` highest values.

    Examples
    --------
    >>> highest([0.25, 0.75, 1.0, 0.5], share=0.5)
    0.875
    """
    vector = np.sort(_vector(values))
    return float(vector[-tail_size(share, vector.size) :].mean())


def coefficient_of_variation(values: npt.ArrayLike) -> float:
    """Return the (population) standard deviation over the mean; NaN if the mean is 0.

    Examples
    --------
    >>> round(coefficient_of_variation([0.5, 1.0]), 6)
    0.333333
    """
    vector = _vector(values)
    return float(divide(vector.std(), vector.mean()))


def jain_index(values: npt.ArrayLike) -> float:
    """Jain's index `(sum a)^2 / (m sum a^2)`, from 1/m to 1 (even); NaN if all are 0.

    Examples
    --------
    >>> jain_index([0.5, 1.0])
    0.9
    """
    vector = _vector(values)
    return float(divide(vector.sum() ** 2, vector.size * (vector @ vector)))


def angle(values: npt.ArrayLike) -> float:
    """Angle in degrees between the values and the all-ones vector; NaN if all are 0.

    `arctan(std / mean)`, which unlike the arc cosine keeps its digits near 0.

    Examples
    --------
    >>> round(angle([0.5, 1.0]), 4)
    18.4349
    """
    vector = _vector(values)
    if not vector.any():
        return float("nan")
    return float(np.degrees(np.arctan2(vector.std(), vector.mean())))


def kl_to_uniform(values: npt.ArrayLike) -> float:
    """Kullback-Leibler divergence of `a / sum a` from the uniform distribution, in nats.

    NaN if all values are 0 or one is negative: they are then no distribution.

    Examples
    --------
    >>> kl_to_uniform([0.5, 0.5]), round(kl_to_uniform([0.0, 1.0]), 6)
    (0.0, 0.693147)
    """
    vector = _vector(values)
    if vector.min() < 0 or vector.sum() == 0:
        return float("nan")
    p = vector / vector.sum()
    positive = p[p > 0]
    return max(0.0, float(positive @ np.log(positive * vector.size)))


def normalised_entropy(values: npt.ArrayLike) -> float:
    """Entropy of `a / sum a` over `log m`: 1 is even; 1 for a single client.

    Examples
    --------
    >>> normalised_entropy([0.5, 0.5]), normalised_entropy([0.0, 1.0])
    (1.0, 0.0)
    """
    divergence, m = kl_to_uniform(values), _vector(values).size
    return 1.0 - divergence / float(np.log(m)) if m > 1 else 1.0 + divergence


def gini(values: npt.ArrayLike) -> float:
    """Gini coefficient: 0 is even, `1 - 1/m` all with one; NaN as in `kl_to_uniform`.

    Examples
    --------
    >>> gini([0.0, 1.0]), gini([0.5, 0.5])
    (0.5, 0.0)
    """
    vector = np.sort(_vector(values))
    m = vector.size
    if vector[0] < 0 or vector[-1] == 0:
        return float("nan")
    rank = 2.0 * np.arange(1, m + 1) - m - 1
    return float(rank @ vector / (m * vector.sum()))


def cvar(losses: npt.ArrayLike, share: float = 0.1) -> float:
    """Conditional value at risk: mean of the worst (highest) `share` of the losses.

    The client on the boundary counts with the fraction of it inside the share, so that
    this is `min_c c + mean(max(F - c, 0)) / share` for every share, not only whole ones.

    Examples
    --------
    >>> cvar([1.0, 2.0, 3.0, 4.0], share=0.375)
    3.6666666666666665
    """
    vector = np.sort(_vector(losses))[::-1]
    if not 0 < share <= 1:
        raise DataError(f"a tail is a share in (0, 1], got {share}")
    inside = np.clip(share * vector.size - np.arange(vector.size), 0.0, 1.0)
    return float(inside @ vector / inside.sum())


def tilted(losses: npt.ArrayLike, t: float = 1.0) -> float:
    """Tilted mean `log(mean(exp(t F))) / t`: the mean at t = 0, towards the maximum as t grows.

    Examples
    --------
    >>> tilted([1.0, 3.0], t=0.0), round(tilted([1.0, 3.0], t=100.0), 2)
    (2.0, 2.99)
    """
    vector = _vector(losses)
    if t == 0:
        return float(vector.mean())
    shift = vector.max() if t > 0 else vector.min()
    # exp and log of 1 + x lose no digits where t is close to 0
    return float(shift + np.log1p(np.expm1(t * (vector - shift)).mean()) / t)


def client_metrics(
    values: npt.ArrayLike,
    sizes: Sequence[int] | npt.ArrayLike | None = None,
    tail: float = 0.1,
    *,
    higher_is_better: bool = True,
) -> dict[str, float]:
    """All measures of this module under stable names.

    Parameters
    ----------
    values : array `(K,)`
        Accuracy or loss a client. NaN marks a client without examples in the split.
    sizes : array `(K,)`, optional
        Examples a client; gives `weighted_mean`, and tells a client without examples
        (size 0) from one whose value is not finite because its model diverged.
    tail : float
        Share of clients in `worst_tail` and `best_tail` (and `cvar`).
    higher_is_better : bool
        True for accuracies. False for losses: the worst are then the highest, and `cvar`
        and `tilted` (t = 1) are added.

    Returns
    -------
    dict
        `clients` are counted in the measures; `clients_without_data` and
        `clients_not_finite` are left out of them. With no client left every measure is NaN.

    Examples
    --------
    >>> metrics = client_metrics([0.5, 1.0, float("nan")], sizes=[30, 10, 0])
    >>> metrics["mean"], metrics["weighted_mean"], metrics["clients_without_data"]
    (0.75, 0.625, 1.0)
    """
    vector = np.asarray(values, dtype=np.float64)
    weight = None if sizes is None else np.asarray(sizes, dtype=np.float64)
    if vector.ndim != 1 or (weight is not None and weight.shape != vector.shape):
        raise DataError(f"expected one value and one size a client, got shape {vector.shape}")
    absent = np.isnan(vector) if weight is None else weight == 0
    usable = ~absent & np.isfinite(vector)
    kept = vector[usable]
    worst, best = (lowest, highest) if higher_is_better else (highest, lowest)
    measures = {
        "mean": mean,
        "std": std,
        "variance": variance,
        "min": lambda v: float(np.min(v)),
        "max": lambda v: float(np.max(v)),
        "gap": gap,
        "parity_ratio": parity_ratio,
        "worst_tail": lambda v: worst(v, tail),
        "best_tail": lambda v: best(v, tail),
        "coefficient_of_variation": coefficient_of_variation,
        "jain_index": jain_index,
        "angle": angle,
        "normalised_entropy": normalised_entropy,
        "kl_to_uniform": kl_to_uniform,
        "gini": gini,
    }
    if weight is not None:
        measures["weighted_mean"] = lambda v: weighted_mean(v, weight[usable])
    if not higher_is_better:
        measures |= {"cvar": lambda v: cvar(v, tail), "tilted": tilted}
    result = {name: f(kept) if kept.size else float("nan") for name, f in measures.items()}
    return result | {
        "tail": tail,
        "clients": float(kept.size),
        "clients_without_data": float(absent.sum()),
        "clients_not_finite": float((~absent & ~usable).sum()),
    }
