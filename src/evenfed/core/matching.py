"""Neurons of several networks matched to global ones: MAP inference in a Beta-Bernoulli process.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, "Bayesian Nonparametric Federated Learning
of Neural Networks" (ICML 2019), section 3.

Symbols: `v_jl` neuron l of network j as a vector of weights, `theta_i` a global neuron, `p_j` the
precision `1 / sigma_j^2` of network j (a vector: one for each weight), `mu_0` and `p_0` mean and
precision of the prior of `theta`, `m_i` how many other networks have neuron i, `J` the number of
networks. Each `v_jl` is one `theta_i` with Gaussian noise; networks choose global neurons by an
Indian buffet of mass `gamma`. For given choices `theta_i = S_i / Q_i` with `S_i = mu_0 p_0 + sum v
p` and `Q_i = p_0 + sum p` over the neurons that chose it. For given other networks, the best
choices of network j are a linear assignment: neuron l gains at the global neuron i `|S_i + v p|^2 /
(Q_i + p) - |S_i|^2 / Q_i + 2 log(m_i / (J - m_i))`, and as the k-th new one `|mu_0 p_0 + v p|^2 /
(p_0 + p) - |mu_0|^2 p_0 + 2 log(gamma / J) - 2 log k`, summed over weights: twice the logarithm of
the posterior. Networks are matched one by one, then again in sweeps of random order.

The authors' code has `log(m / (J - m))` without the factor 2 and counts `m` up to 10 only; here the
gain is that of the posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """Of a global neuron; and what the process needs.

    Parameters
    ----------
    mean, precision : array `(D,)`
    gamma : float
        Mass: the larger, the more global neurons.
    most : int
        Largest number of global neurons.
    """

    mean: Array
    precision: Array
    gamma: float
    most: int


@dataclass(frozen=True)
class Matched:
    """Global neurons and who has them.

    Parameters
    ----------
    neurons : array `(L, D)`
    places : tuple of int arrays `(L_j,)`
        For every network, the global neuron of each of its own.
    counts : array `(L,)`
        Networks that have a global neuron.
    """

    neurons: Array
    places: tuple[NDArray[np.int64], ...]
    counts: NDArray[np.int64]

    def only(self, networks: NDArray[np.int64]) -> Matched:
        """The same global neurons, with the places of some networks."""
        return replace(self, places=tuple(self.places[j] for j in networks))


def match(
    networks: Sequence[Array],
    precisions: Sequence[Array],
    prior: Prior,
    *,
    sweeps: int = 0,
    rng: np.random.Generator | None = None,
) -> Matched:
    """Match the neurons `(L_j, D)` of networks with precisions `(D,)`.

    Examples
    --------
    >>> prior = Prior(np.zeros(2), np.full(2, 0.1), gamma=1.0, most=10)
    >>> a = np.array([[0.0, 5.0], [5.0, 0.0]])
    >>> [p.tolist() for p in match([a, a[::-1]], [np.ones(2)] * 2, prior).places]
    [[0, 1], [1, 0]]
    """
    state = _State(list(networks), list(precisions), prior)
    for j in range(len(networks)):
        state.place(j)
    for _ in range(sweeps):
        assert rng is not None
        for j in rng.permutation(len(networks)):
            state.remove(int(j))
            state.place(int(j))
    return Matched(state.sums / state.weights, tuple(state.places), state.counts)


class _State:
    """Sums over the networks that are placed so far."""

    def __init__(self, networks: list[Array], precisions: list[Array], prior: Prior) -> None:
        self.networks = networks
        self.precisions = precisions
        self.prior = prior
        width = len(prior.mean)
        self.sums: Array = np.zeros((0, width))
        self.weights: Array = np.zeros((0, width))
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.places: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64) for _ in networks]

    def place(self, j: int) -> None:
        """Match network j to what is there."""
        from scipy.optimize import linear_sum_assignment  # slow to load, and few runs need it

        v, p = self.networks[j] * self.precisions[j], self.precisions[j]
        known = len(self.counts)
        gain = np.hstack([self._known(v, p), self._new(v, p)])
        own, chosen = linear_sum_assignment(gain, maximize=True)
        assert len(own) == len(v)
        fresh = chosen >= known
        # new neurons in the order of the network's own
        chosen[fresh] = known + np.arange(fresh.sum())
        start: Any = self.prior.mean * self.prior.precision
        self.sums = np.vstack([self.sums, np.tile(start, (fresh.sum(), 1))])
        self.weights = np.vstack([self.weights, np.tile(self.prior.precision, (fresh.sum(), 1))])
        self.counts = np.concatenate([self.counts, np.zeros(fresh.sum(), dtype=np.int64)])
        self.sums[chosen] += v
        self.weights[chosen] += p
        self.counts[chosen] += 1
        self.places[j] = chosen

    def remove(self, j: int) -> None:
        """Take network j out, and the global neurons that only it had."""
        chosen = self.places[j]
        self.sums[chosen] -= self.networks[j] * self.precisions[j]
        self.weights[chosen] -= self.precisions[j]
        self.counts[chosen] -= 1
        alive = self.counts > 0
        where = np.cumsum(alive) - 1
        self.sums, self.weights = self.sums[alive], self.weights[alive]
        self.counts = self.counts[alive]
        self.places = [
            where[places] if k != j else places[:0] for k, places in enumerate(self.places)
        ]

    def _known(self, v: Array, p: Array) -> Array:
        """Gains `(L_j, L)` at the global neurons."""
        total = self.weights + p
        fit = (
            (self.sums**2 / total).sum(1)
            + 2 * v @ (self.sums / total).T
            + v**2 @ (1 / total).T
            - (self.sums**2 / self.weights).sum(1)
        )
        return np.asarray(fit + 2 * np.log(self.counts / (len(self.networks) - self.counts)))

    def _new(self, v: Array, p: Array) -> Array:
        """Gains `(L_j, k)` as the first, second, ... new neuron."""
        room = min(len(v), self.prior.most - len(self.counts))
        start = self.prior.mean * self.prior.precision
        fit = ((v + start) ** 2 / (self.prior.precision + p)).sum(1)
        fit -= (start**2 / self.prior.precision).sum()
        turn = np.log(self.prior.gamma / len(self.networks)) - np.log(np.arange(1, room + 1))
        return np.asarray(fit[:, None] + 2 * turn)
