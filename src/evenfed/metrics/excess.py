"""Excess risk and fairness by agent awareness (FAA): how far each is from its best.

A client's excess risk is its loss minus the least loss any model could have on its data. FAA is
the largest gap of excess risks between two clients; lower is fairer. The least loss is unknown;
FOCUS estimates it by one centralised model trained on all clients of the same true cluster.

References
----------
Chu, Xie, Wang, Li, Yin, Zhao, Li. FOCUS: Fairness via Agent-Awareness for Federated Learning on
Heterogeneous Data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from evenfed.core.errors import DataError
from evenfed.metrics.client import FloatArray

Reference = Literal["true clusters", "estimated clusters"]


def excess_risk(losses: npt.ArrayLike, reference_losses: npt.ArrayLike) -> FloatArray:
    """Loss minus reference loss a client `(K,)`; negative where the reference is the weaker model.

    Examples
    --------
    >>> excess_risk([1.0, 0.5], [0.75, 1.0])
    array([ 0.25, -0.5 ])
    """
    loss, reference = (np.asarray(v, dtype=np.float64) for v in (losses, reference_losses))
    if loss.ndim != 1 or loss.shape != reference.shape or loss.size == 0:
        raise DataError(
            f"expected one loss and one reference loss a client, got {loss.shape} and "
            f"{reference.shape}"
        )
    return loss - reference


@dataclass(frozen=True)
class FAA:
    """FAA with what is needed to read it.

    A uniformly bad model has a good FAA, so the mean loss and accuracy stand beside it.

    Parameters
    ----------
    faa : float
        Largest excess risk minus smallest. NaN or infinite where a loss is.
    n_negative_excess : int
        Clients that do better than their reference: a sign that the reference is weak.
    mean_loss : float
        Mean loss over the clients counted.
    mean_accuracy : float or None
        Mean accuracy over the same clients; None for a regression.
    reference : str
        Whether the references come from true or estimated clusters.
    clients, clients_without_data : int
        Clients counted, and clients left out for want of examples.
    """

    faa: float
    n_negative_excess: int
    mean_loss: float
    mean_accuracy: float | None
    reference: Reference
    clients: int
    clients_without_data: int


def faa(
    losses: npt.ArrayLike,
    reference_losses: npt.ArrayLike,
    *,
    mean_accuracy: float | None,
    reference: Reference,
    sizes: npt.ArrayLike | None = None,
) -> FAA:
    """Fairness by agent awareness: the largest gap of excess risks between two clients.

    Negative excess risks are counted, never clipped: clipping would hide a weak reference.

    Parameters
    ----------
    losses, reference_losses : array `(K,)`
        Test loss of the model each client uses, and of its reference model.
    mean_accuracy : float or None
        Mean test accuracy; None only where there is none (regression).
    reference : {"true clusters", "estimated clusters"}
        Where the references come from.
    sizes : array `(K,)`, optional
        Test examples a client; clients with none are left out.

    Examples
    --------
    >>> result = faa([1.0, 0.5], [0.75, 1.0], mean_accuracy=0.8, reference="true clusters")
    >>> result.faa, result.n_negative_excess, result.mean_loss, result.mean_accuracy
    (0.75, 1, 0.75, 0.8)
    """
    excess = excess_risk(losses, reference_losses)
    kept = np.ones(excess.shape, dtype=np.bool_)
    if sizes is not None:
        size = np.asarray(sizes, dtype=np.float64)
        if size.shape != excess.shape:
            raise DataError(f"expected {excess.size} sizes, got an array of shape {size.shape}")
        kept = size > 0
    if not kept.any():
        raise DataError("no client has test examples")
    # One diverged client must show in a maximum, so what is not finite is passed on.
    with np.errstate(invalid="ignore"):
        spread = float(excess[kept].max() - excess[kept].min())
    return FAA(
        faa=spread,
        n_negative_excess=int((excess[kept] < 0).sum()),
        mean_loss=float(np.asarray(losses, dtype=np.float64)[kept].mean()),
        mean_accuracy=mean_accuracy,
        reference=reference,
        clients=int(kept.sum()),
        clients_without_data=int((~kept).sum()),
    )


def surrogate_references(
    clusters: Sequence[int], train_on_cluster: Callable[[tuple[int, ...]], npt.ArrayLike]
) -> FloatArray:
    """Assemble reference losses `(K,)` from one centralised model a cluster.

    Parameters
    ----------
    clusters : sequence of int `(K,)`
        Cluster of every client: true where known, otherwise estimated (and then say so in
        `faa(reference=...)`).
    train_on_cluster : callable
        Takes the indices of a cluster's clients, trains one model on the union of their
        training data and returns its test loss on each of them, in that order.

    Examples
    --------
    >>> surrogate_references([0, 1, 0], lambda members: [float(len(members)) for _ in members])
    array([2., 1., 2.])
    """
    labels = np.asarray(clusters)
    if labels.ndim != 1 or labels.size == 0:
        raise DataError(f"expected one cluster a client, got an array of shape {labels.shape}")
    result = np.full(labels.shape, np.nan)
    for cluster in np.unique(labels):
        members = tuple(int(i) for i in np.flatnonzero(labels == cluster))
        losses = np.asarray(train_on_cluster(members), dtype=np.float64)
        if losses.shape != (len(members),):
            raise DataError(
                f"training on cluster {cluster} returned losses of shape {losses.shape} for "
                f"{len(members)} clients"
            )
        result[list(members)] = losses
    return result


def same_partition(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two clusterings of the same clients differ in the names of the clusters alone.

    Examples
    --------
    >>> same_partition([0, 0, 1], [7, 7, 3]), same_partition([0, 0, 1], [0, 1, 1])
    (True, False)
    """
    pairs = set(zip(a, b, strict=False))
    return len(a) == len(b) and len(pairs) == len(set(a)) == len(set(b))
