"""Weights that follow from losses: entropy-based aggregation as one exchange.

Shared by the methods that give clients with larger losses more weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.entropy import entropy_weights
from evenfed.core.tree import Tree
from evenfed.engines.exchange import ClientFunction, DrawFunction
from evenfed.engines.federation import Federation
from evenfed.engines.fold import Tilted

Prior = Literal["size", "uniform"]


@dataclass(frozen=True)
class Answer:
    """Means over an exchange, and who answered with which loss."""

    value: dict[str, Tree]
    clients: NDArray[np.int64]
    losses: Tensor
    shares: Tensor
    """Entropy weights `(m,)` of those that answered."""
    kept: dict[str, Tensor]
    """Further scalars `(m,)` that were asked for, by part."""


@dataclass(frozen=True)
class Tilting:
    """Weights proportional to `prior * exp(loss / tau)`.

    Parameters
    ----------
    tau : float
        Temperature; `mode="relative"` multiplies it by the spread of the losses.
    decay, power : float
        `tau_t = tau / (1 + decay * t) ** power`.
    p_max : float
        Largest weight of a client; 1 is off.
    """

    tau: float
    mode: Literal["absolute", "relative"] = "absolute"
    decay: float = 0.0
    power: float = 1.0
    p_max: float = 1.0

    def temperature(self, round: int, losses: Tensor | None = None) -> float:
        """The temperature of a round."""
        tau: float = self.tau / (1 + self.decay * round) ** self.power
        if self.mode == "absolute" or losses is None or math.isinf(tau):
            return tau
        return max(tau * float(losses.double().std(correction=0)), 1e-12)

    @property
    def needs_all(self) -> bool:
        """Whether weights need the losses of all who answered before any of them is known."""
        return self.mode == "relative" or self.p_max < 1

    def weights(
        self, round: int, losses: Tensor, prior: Tensor, members: float = math.inf
    ) -> Tensor:
        """Weights `(m,)` of those that answered with these losses.

        `members` is how many of them the prior is about: none of so many is held below its share.
        """
        cap = max(self.p_max, 1.0 / members)
        return entropy_weights(losses, self.temperature(round, losses), prior, cap)

    def exchange(
        self,
        federation: Federation,
        function: ClientFunction,
        broadcast: Tree,
        *,
        draws: DrawFunction | None,
        prior: Prior,
        fair: tuple[str, ...] = ("update",),
        plain: dict[str, str] | None = None,
        weights: Tensor | None = None,
        keep: tuple[str, ...] = (),
    ) -> Answer:
        """One exchange whose uploads hold a `loss`.

        Parameters
        ----------
        fair : tuple of str
            Parts of the upload that are averaged with entropy weights.
        plain : dict
            New name to part of the upload, averaged uniformly.
        weights : Tensor `(len(cohort),)`, optional
            Weights known from an earlier exchange, instead of the losses in these uploads.
        keep : tuple of str
            Scalars of the upload to hand back for every client.
        """
        plain = plain or {}
        single = ("loss", *keep)

        def each(upload: Tree) -> Tree:
            parts = {part: upload[part] for part in fair}
            parts |= {k: upload[v] for k, v in plain.items()}
            return parts | {part: upload[part] for part in single}

        kind: Any = weights
        if kind is None:
            if self.needs_all:
                return self._stacked(
                    federation, function, broadcast, draws, prior, each, fair, plain, single
                )
            tau = self.temperature(federation.round)
            kind = Tilted(lambda upload, sizes: upload["loss"].double() / tau, prior)
        mean = federation.mean(
            function,
            broadcast,
            weights={**dict.fromkeys(fair, kind), **dict.fromkeys(plain, "uniform")},
            draws=draws,
            each=each,
            keep=single,
        )
        kept = {part: mean.kept[part].double().cpu() for part in single}
        shares = self._shares(federation, mean.clients, kept["loss"], mean.sizes, prior)
        return Answer(mean.value, mean.clients, kept.pop("loss"), shares, kept)

    def _stacked(
        self,
        federation: Federation,
        function: ClientFunction,
        broadcast: Tree,
        draws: DrawFunction | None,
        prior: Prior,
        each: Any,
        fair: tuple[str, ...],
        plain: dict[str, str],
        single: tuple[str, ...],
    ) -> Answer:
        """The same where weights need all losses first: holds the uploads of the cohort."""
        replies = federation.map(function, broadcast, draws=draws)
        uploads = each(replies.uploads)
        kept = {part: uploads[part].double().cpu() for part in single}
        shares = self._shares(federation, replies.clients, kept["loss"], replies.sizes, prior)
        even = torch.full_like(shares, 1.0 / len(shares))
        value = {part: weighted(uploads[part], shares) for part in fair}
        value |= {name: weighted(uploads[name], even) for name in plain}
        return Answer(value, replies.clients, kept.pop("loss"), shares, kept)

    def _shares(
        self,
        federation: Federation,
        clients: NDArray[np.int64],
        losses: Tensor,
        sizes: Tensor,
        prior: Prior,
    ) -> Tensor:
        """Weights of those that answered, with their diagnostics in the history."""
        base = sizes if prior == "size" else torch.ones_like(sizes)
        p = self.weights(federation.round, losses, base)
        federation.note(
            train_loss=float(losses.mean()),
            largest_weight=float(p.max()),
            effective_clients=float(1.0 / p.square().sum()),
        )
        federation.note_by_client("weights", clients, p)
        return p

    def weights_of(self, federation: Federation, answer: Answer) -> Tensor:
        """Weights of the cohort's rows from the losses of an earlier exchange of the round."""
        weights = torch.zeros(len(federation.cohort), dtype=torch.float64)
        rows = np.flatnonzero(np.isin(federation.cohort, answer.clients))
        weights[torch.from_numpy(rows)] = answer.shares
        return weights


def weighted(stacked: Tree, p: Tensor) -> Tree:
    """The mean of stacked uploads with weights `(m,)`."""
    return trees.map(
        lambda t: torch.tensordot(p.to(t.device), t.double(), dims=1).to(t.dtype), stacked
    )
