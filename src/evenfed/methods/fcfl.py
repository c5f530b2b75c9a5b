"""FCFL: the least worst loss under a bound on every client's disparity, then a Pareto step for all.

Cui, Pan, Liang, Zhang, Wang, "Addressing Algorithmic Disparity and Performance Inconsistency in
Federated Learning" (NeurIPS 2021; arXiv 2108.08435 as "Fair and Consistent Federated Learning").

Symbols: `l_k` the loss of client k and `g_k` its disparity: the difference between the groups of
the mean of `sigmoid(c f)`, `f` the logit of class 1, `c = 10` (`eo`: among positives). Clients with
fewer than two groups have no disparity and no part in what follows about it. A maximum over clients
is smoothed: `delta log sum_k exp(v_k / delta)`, with gradient weights `softmax(v / delta)`. Both
`delta` begin at 0.5 and are multiplied by 0.01 when a tenth of the gradient's norm is below them,
down to about 1e-4.

Stage 1, with the gradients `D_l` and `D_g` of the two smoothed maxima: the step is `a_1 D_l + a_2
D_g`, where `a` in the simplex maximises `(a D) . D_l` if the largest disparity is at most `eps`,
and `(a D) . D_g` subject to `(a D) . D_l >= 0` otherwise. Stage 2: with all `K` gradients of
losses, and `D_g` (zero if the largest disparity is below `eps`), as rows of `G`, the step is `a G`,
where `a` in the simplex maximises `(a G) . mean_k grad l_k` subject to `(a G) . G_i >= 0` for every
row. All are linear programmes.

Sources: the authors' public code. Differences on purpose: a gradient is the change by local
training of any length (full batch and one epoch: theirs), once with the loss and once with the
disparity; where the disparity's row is zero, so is its part of the step (the code steps along the
disparity with the weight of the zero row); one bound for all clients; more than two groups by the
largest difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.linear_program import best_mix
from evenfed.core.local import LocalTraining
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import (
    EVALUATION,
    Need,
    Reveal,
    Server,
    check_choice,
    check_not_negative,
)
from evenfed.methods.training import TrainsLocally

DELTA = 0.5
SHRINK, NEAR, LEAST = 0.01, 0.1, 1e-4
"""How far `delta` shrinks, what share of the gradient's norm decides it, and where it ends."""


@dataclass(frozen=True)
class FCFL(TrainsLocally):
    """FCFL.

    Parameters
    ----------
    local : LocalTraining
        Training behind a gradient; one full batch by default, as published. Longer training
        overshoots: the disparity is steep.
    eps : float
        Bound on the disparity of every client.
    metric : {"dp", "eo"}
        Disparity of positive predictions, or of those among positives.
    stage1 : float
        Share of the rounds in stage 1.
    sharpness : float
        The factor c of the logit.
    """

    name: ClassVar[str] = "fcfl"
    title: ClassVar[str] = "FCFL"
    paper: ClassVar[str] = "Cui et al., NeurIPS 2021"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "update", "model", "change of the model by training on the loss", False),
        Reveal(
            "train", "fair_update", "model", "change of the model by training on disparity", False
        ),
        Reveal("train", "loss", "scalar", "loss of the received model", False),
        Reveal("train", "disparity", "scalar", "disparity of the received model", False),
        Reveal("train", "defined", "scalar", "whether the client has two groups", False),
        EVALUATION,
    )
    needs: ClassVar[tuple[Need, ...]] = ("groups", "two classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"eps": (0.01, 0.05, 0.1), "stage1": (0.3, 0.5)}

    local: LocalTraining = field(default_factory=lambda: LocalTraining(batch=0))
    eps: float = 0.05
    metric: Literal["dp", "eo"] = "dp"
    stage1: float = 0.5
    sharpness: float = 10.0

    def __post_init__(self) -> None:
        check_not_negative(self.name, eps=self.eps, sharpness=self.sharpness)
        check_choice(self.name, "metric", self.metric, ("dp", "eo"))
        if not 0 <= self.stage1 <= 1:
            raise ConfigError(f"{self.name}: stage1 must be in [0, 1], but is {self.stage1}")

    def start(self, federation: Federation) -> Server:
        """The model, and `delta` of losses and of disparities."""
        return {"params": self.first, "delta": torch.full((2,), DELTA, dtype=torch.float64)}

    def disparity(self, params: Params, batch: Examples, context: Tree = ()) -> Tensor:
        """`g_k`; 0 where it is not defined."""
        soft = torch.sigmoid(self.sharpness * self.task.margins(self.task.outputs(params, batch.x)))
        member = self.members(batch)
        size = member.sum(0)
        rates = soft @ member / size.clamp(min=1)
        there = size > 0
        # outside [0, 1], so that a group that is not there is neither largest nor smallest
        high = torch.where(there, rates, -1.0).amax()
        low = torch.where(there, rates, 2.0).amin()
        return torch.where(there.sum() > 1, high - low, 0.0)

    def members(self, batch: Examples) -> Tensor:
        """Which examples count for which group `(n, G)`."""
        counted = batch.weight * (batch.y == 1) if self.metric == "eo" else batch.weight
        code = torch.arange(self.task.groups, device=batch.group.device)
        return (batch.group.unsqueeze(-1) == code) * counted.unsqueeze(-1)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: both measures of the received model, and training on each of them."""
        params = broadcast["params"]
        fair = self.local.run(
            self.task, params, data, draws,
            lr=broadcast["lr"], weights=no_loss, term=self.disparity,
        )  # fmt: skip
        upload = {
            "update": trees.subtract(self.trained(broadcast, data, draws), params),
            "fair_update": trees.subtract(fair, params),
            "loss": self.task.mean_loss(params, data),
            "disparity": self.disparity(params, data),
            "defined": ((self.members(data).sum(0) > 0).sum() > 1).float(),
        }
        return upload, state

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange; then the linear programme of the stage, and a step."""
        broadcast = self.broadcast(federation, server)
        uploads = federation.map(self.train, broadcast, draws=self.draw).uploads
        g, fair = (flattened(uploads[part]) for part in ("update", "fair_update"))
        delta = server["delta"]
        defined = uploads["defined"].cpu() > 0
        disparities = torch.where(defined, uploads["disparity"].double().cpu(), 0.0)
        worst = float(disparities.max())
        p_fair = torch.where(defined, disparities / delta[1], -torch.inf).softmax(0).nan_to_num()
        first = federation.round < round(self.stage1 * federation.rounds)
        losses = uploads["loss"].double().cpu()
        if first:
            p_loss = (losses / delta[0]).softmax(0)
            rows = torch.stack([p_loss @ g, p_fair @ fair])
            a = stage_one(rows, worst > self.eps)
            on_loss, on_fair = a[0] * p_loss, a[1] * p_fair
            norms = rows.norm(dim=1) / broadcast["lr"]
            shrinks = (delta > LEAST) & (NEAR * norms <= delta)
            delta = torch.where(shrinks, SHRINK * delta, delta)
        else:
            p_fair = p_fair * (worst >= self.eps)
            a = stage_two(torch.cat([g, (p_fair @ fair).unsqueeze(0)]))
            on_loss, on_fair = a[:-1], a[-1] * p_fair
        federation.note(
            stage=1 if first else 2, worst_train_loss=float(losses.max()), worst_disparity=worst
        )
        step = trees.map(
            lambda u, v: mixed(on_loss, u) + mixed(on_fair, v),
            uploads["update"],
            uploads["fair_update"],
        )
        return {"params": trees.add(server["params"], step), "delta": delta}


def no_loss(batch: Examples, _: Tree) -> Tensor:
    """Weights `(n,)` that leave the loss out."""
    return torch.zeros_like(batch.weight)


def flattened(stacked: Tree) -> Tensor:
    """A stacked tree as a matrix `(m, P)`, float64."""
    leaves = trees.leaves(stacked)
    return torch.cat([leaf.reshape(len(leaf), -1).double().cpu() for leaf in leaves], 1)


def mixed(weights: Tensor, stacked: Tensor) -> Tensor:
    """`sum_k weights_k stacked_k`, in the precision of `stacked`."""
    value = torch.tensordot(weights.to(stacked.device), stacked.double(), dims=1)
    result: Tensor = value.to(stacked.dtype)
    return result


def stage_one(rows: Tensor, unfair: bool) -> Tensor:
    """Weights `(2,)` of the directions `(2, P)` for the loss and for the disparity.

    Examples
    --------
    >>> stage_one(torch.tensor([[1.0, 0.0], [-1.0, 2.0]]), unfair=True).tolist()
    [0.5, 0.5]
    """
    gram = rows @ rows.T
    return best_mix(gram[1], gram[:1]) if unfair else best_mix(gram[0])


def stage_two(rows: Tensor) -> Tensor:
    """Weights `(K + 1,)` of the clients' directions and of the disparity's, `(K + 1, P)`."""
    gram = rows @ rows.T
    return best_mix(gram[:-1].mean(0), gram)
