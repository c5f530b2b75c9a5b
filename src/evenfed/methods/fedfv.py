"""FedFV: gradients that conflict are projected before they are averaged.

Wang, Fan, Qi, Wen, Wang, Yu, "Federated Learning with Fair Averaging" (IJCAI 2021).

With `g_i = w_t - w_i` the change by local training and `F_i` the loss of the received model:

1. Internal conflicts. Every `g_i` but those of the share `alpha` of clients with the largest losses
   is projected, in the order of ascending losses of j, off each `g_j` with which it conflicts:
   `g_i -= (g_j . g_i) / ||g_j||^2 g_j` where `g_j . g_i < 0`. So the largest losses have the last
   word. `g` is the mean of the results.
2. External conflicts, from round `tau` on. For each of the rounds `t - tau ... t - 1`, oldest
   first, the last known gradients of those clients that were last seen in it and conflict with `g`
   are summed, and `g` is projected off the sum.
3. `g` is scaled to the norm of the plain mean, and `w_{t+1} = w_t - server_lr * g`.

Computed through the inner products of all gradients, which is the same but cheaper.

Not as in the authors' code by default (easyFL): that looks, in step 2, at clients last seen in the
rounds `t - tau + 1 ... t`, so that for `tau = 1` it finds those of the present round only, whom the
paper does not call external. `external = "recent"` does that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.span import gram, mixture
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.reporting import LOSS, SINGLE, ReportsLoss, places, shares_of


@dataclass(frozen=True)
class FedFV(ReportsLoss):
    """FedFV.

    Parameters
    ----------
    alpha : float
        Share of the clients, those with the largest losses, whose gradients stay as they are.
    tau : int
        Rounds of which clients that are absent now are remembered; 0 is off.
    external : {"absent", "recent"}
        Whose gradients count in the second step: of clients that were in one of the `tau` rounds
        before this one and are absent now, or of those in the last `tau` rounds with this one.
    weighting : {"uniform", "size", "auto"}
        Weights of the mean; uniform is the paper's.
    """

    name: ClassVar[str] = "fedfv"
    title: ClassVar[str] = "FedFV"
    paper: ClassVar[str] = "Wang et al., IJCAI 2021"
    reveals: ClassVar[tuple[Reveal, ...]] = (SINGLE, LOSS, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"alpha": (0.1, 0.2, 0.5), "tau": (0, 1, 3, 10)}

    alpha: float = 0.1
    tau: int = 1
    external: Literal["absent", "recent"] = "absent"
    weighting: Literal["auto", "size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, tau=self.tau)
        check_choice(self.name, "external", self.external, ("absent", "recent"))
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"{self.name}: alpha must be in [0, 1], but is {self.alpha}")

    def start(self, federation: Federation) -> Server:
        """The model, and room for the gradients of `tau` rounds with their clients and rounds."""
        rows = self.tau * federation.participation.cohort_size(len(federation))
        if not rows:
            return {"params": self.first}
        return {
            "params": self.first,
            "past": trees.map(lambda p: p.new_zeros(rows, *p.shape), self.first),
            "owner": torch.full((rows,), -1),
            "seen": torch.full((rows,), -1),
        }

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, then project, average and scale at the server."""
        replies = federation.map(self.train, self.broadcast(federation, server), draws=self.draw)
        updates, losses = replies.uploads["update"], replies.uploads["loss"].double().cpu()
        now, shares = federation.round, shares_of(self.weights(federation), replies.sizes)
        n = len(losses)
        products, seen = gram(updates), torch.full((n,), now)
        new: Server = {}
        if self.tau:
            owners = places(federation, replies.clients)
            stale = torch.isin(server["owner"], owners)
            past = server["seen"].masked_fill(stale, -1)
            cross, seen = gram(updates, server["past"]), torch.cat([seen, past])
            lower = torch.cat([cross.T, gram(server["past"])], 1)
            products = torch.cat([torch.cat([products, cross], 1), lower])
            new = self.remembered(server, updates, owners, past, now)
        weights = torch.zeros(len(seen), dtype=torch.float64)
        weights[:n] = shares @ projected(products[:n, :n], losses, self.alpha)
        if self.tau and now >= self.tau:
            end = now if self.external == "absent" else now + 1
            weights = cleared(products, weights, seen, range(end - self.tau, end))
        weights *= _scale(_norm(products, weights), _norm(products[:n, :n], shares))
        self.noted(federation, losses, weights)
        move = mixture(weights[:n], updates)
        if self.tau:
            move = trees.add(move, mixture(weights[n:], server["past"]))
        return {"params": trees.add(server["params"], move, self.server_lr), **new}

    def remembered(
        self, server: Server, updates: Tree, owners: Tensor, seen: Tensor, now: int
    ) -> Server:
        """The memory with this round's gradients in place of those of `tau` rounds ago."""
        room = len(seen) // self.tau
        first, n = (now % self.tau) * room, len(owners)
        owner, seen = server["owner"].clone(), seen.clone()
        owner[first : first + room], seen[first : first + room] = -1, -1
        owner[first : first + n], seen[first : first + n] = owners, now

        def put(old: Tensor, update: Tensor) -> Tensor:
            kept = old.clone()
            kept[first : first + n] = update
            return kept

        return {"past": trees.map(put, server["past"], updates), "owner": owner, "seen": seen}


def projected(products: Tensor, losses: Tensor, alpha: float) -> Tensor:
    """Step 1: coefficients `(n, n)` of every projected gradient in the given ones."""
    n = len(losses)
    order = torch.argsort(losses, stable=True).tolist()
    kept = order[math.ceil((n - 1) * (1 - alpha)) :] if alpha > 0 else []
    result = torch.eye(n, dtype=torch.float64)
    for i in set(range(n)) - set(kept):
        for j in order:
            dot = float(products[j] @ result[i])
            if j != i and dot < 0:
                result[i, j] -= dot / float(products[j, j])
    return result


def cleared(products: Tensor, weights: Tensor, seen: Tensor, rounds: range) -> Tensor:
    """Step 2: the coefficients of `g` after projections off conflicts with each of `rounds`."""
    for past in rounds:
        conflicts = ((products @ weights < 0) & (seen == past)).double()
        size = float(conflicts @ products @ conflicts)
        if size > 0:
            dot = float(conflicts @ products @ weights)
            weights = weights - (dot / size) * conflicts
    return weights


def _scale(norm: float, wanted: float) -> float:
    """Step 3; where the projections left nothing but rounding, nothing stays."""
    return wanted / norm if norm > 1e-6 * wanted else 0.0


def _norm(products: Tensor, weights: Tensor) -> float:
    return float((weights @ products @ weights).clamp(min=0).sqrt())
