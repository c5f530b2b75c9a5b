"""AgnosticFair: fair and accurate for the worst reweighing of the examples that kernels can make.

Du, Xu, Wu, Tong, "Fairness-aware Agnostic Federated Learning" (SDM 2021; arXiv 2010.05057).

Symbols: `K_m` Gaussian kernels with centres `c_m`, `theta_a(x) = sum_m a_m K_m(x) / mean(K_m)` the
weight of an example, `a` in the simplex with `a_m <= a_max`, so that weights have mean one;
`s_w(x)` the score of class 1, `z` the group. `min_w max_a (1/n) sum_i theta_a(x_i) l_i(w)` subject
to `|C_g| <= tau` with `C_g = (1/n) sum_i theta_a(x_i) (1[z_i = g] - p_g) s_w(x_i)` for every group
but the first, `p_g` its share: for two groups, the reweighed covariance of group and score.

A round alternates: clients send the kernel sums of losses and scores at the model they receive; the
server finds `a` by a linear programme in the losses, and moves the multipliers of the constraints
by `lambda <- [lambda + eta (+-C_g - tau)]` in `[0, dual_max]`; clients train on `theta_a l + sum_g
nu_g theta_a (1[z = g] - p_g) s`, whose sum over clients is the Lagrangian.

Sources: the paper's abstract and descriptions of it by others; the details below are our reading.
The paper leaves open how the constraint is kept while `w` moves (here: multipliers), whether the
adversary sees it (here: it maximises the loss alone), and where centres come from (here: drawn from
a normal distribution with the features' federated mean and spread). Dividing by `mean(K_m)` only
rescales `a_m`. Differences on purpose from the code that FedFB's and HetPFL's authors ran under
this name: that one is central, without kernels, adversary or federation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.kernels import Kernels, feature_sums
from evenfed.core.linear_program import best_mix
from evenfed.core.randomness import generator
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.core.two_sided import ascended, signed
from evenfed.engines.federation import Federation
from evenfed.methods.base import (
    EVALUATION,
    Need,
    Reveal,
    Server,
    check_choice,
    check_not_negative,
)
from evenfed.methods.fedavg import UPDATE, FedAvg


@dataclass(frozen=True)
class AgnosticFair(FedAvg):
    """AgnosticFair.

    Parameters
    ----------
    tau : float
        Bound on the reweighed covariance of group and score.
    kernels : int
        Number of kernels.
    width : float
        Their width, in standard deviations of the features; `inf` weighs all examples alike.
    a_max : float
        Largest share of one kernel; `1 / kernels` leaves the adversary no choice.
    dual_lr, dual_max : float
        Step and largest value of the constraints' multipliers; without steps no constraint.
    score : {"logit", "probability"}
        The score: the logit (signed distance to the boundary, as published) or the probability.
    """

    name: ClassVar[str] = "agnosticfair"
    title: ClassVar[str] = "AgnosticFair"
    paper: ClassVar[str] = "Du et al., SDM 2021"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        UPDATE,
        Reveal("moments", "sums", "sums", "sums of features and of their squares, once", True),
        Reveal(
            "measure", "sums", "sums",
            "kernel-weighted sums of losses and scores (by group), every round", True,
        ),
        Reveal("measure", "groups", "counts", "numbers of examples by group", True),
        EVALUATION,
    )  # fmt: skip
    exchanges: ClassVar[int] = 2
    needs: ClassVar[tuple[Need, ...]] = ("groups", "two classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tau": (0.0, 0.02, 0.05, 0.1),
        "width": (0.5, 1.0, 2.0),
        "a_max": (0.25, 0.5, 1.0),
    }

    tau: float = 0.02
    kernels: int = 8
    width: float = 1.0
    a_max: float = 0.5
    dual_lr: float = 0.3
    dual_max: float = 10.0
    score: Literal["logit", "probability"] = "logit"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, tau=self.tau, dual_lr=self.dual_lr, dual_max=self.dual_max)
        check_choice(self.name, "score", self.score, ("logit", "probability"))
        if self.kernels < 1 or not self.width > 0:
            raise ConfigError(f"{self.name}: kernels must be at least 1, width greater than 0")
        if not 1 / self.kernels <= self.a_max <= 1:
            raise ConfigError(
                f"{self.name}: a_max must be in [1 / kernels, 1] = [{1 / self.kernels:.3g}, 1], "
                f"but is {self.a_max}"
            )

    def start(self, federation: Federation) -> Server:
        """The model, multipliers `(2, G - 1)` of zero, and no kernels yet."""
        none = Kernels(torch.zeros(0, 0), torch.zeros(0), torch.zeros(0), torch.ones(()))
        multipliers = torch.zeros(2, self.task.groups - 1, dtype=torch.float64)
        return {"params": self.first, "multipliers": multipliers, "kernels": none}

    def moments(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: sums of the features and of their squares."""
        return {"sums": feature_sums(data.x, data.weight)}, state

    def scores(self, params: Params, x: Tensor) -> Tensor:
        """`s_w(x)` `(n,)`."""
        margins = self.task.margins(self.task.outputs(params, x))
        return margins if self.score == "logit" else torch.sigmoid(margins)

    def measure(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: sums `(M, 2 + G)` of `K`, `K l` and, by group, `K s`; group sizes."""
        params, x = broadcast["params"], data.x
        losses = self.task.losses(self.task.outputs(params, x), data.y)
        code = torch.arange(self.task.groups, device=data.group.device)
        member = (data.group.unsqueeze(-1) == code).double() * data.weight.unsqueeze(-1)
        columns = torch.stack([torch.ones_like(losses), losses], -1) * data.weight.unsqueeze(-1)
        scored = self.scores(params, x).double().unsqueeze(-1) * member
        sums = broadcast["kernels"](x).double().mT @ torch.cat([columns.double(), scored], -1)
        return {"sums": sums, "groups": member.sum(0)}, state

    def example_weights(self, batch: Examples, context: Tree) -> Tensor:
        """`theta_a` `(n,)`."""
        theta: Tensor = context["kernels"](batch.x) @ context["a"]
        return theta

    def constraint(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """`sum_g nu_g C_g` on a batch."""
        own = context["nu"][batch.group] - context["shift"]  # nu of group 0 is 0
        weight = batch.weight * self.example_weights(batch, context)
        total = (weight * own * self.scores(params, batch.x)).sum()
        result: Tensor = total / batch.weight.sum().clamp(min=1)
        return result

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after local training on its part of the Lagrangian."""
        context = {key: broadcast[key] for key in ("kernels", "a", "nu", "shift")}
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            weights=self.example_weights, term=self.constraint if self.dual_lr else None,
            context=context,
        )  # fmt: skip

    def round(self, federation: Federation, server: Server) -> Server:
        """Kernel sums, the adversary's `a`, the multipliers, then training."""
        kernels = server["kernels"]
        if not len(kernels.centres):
            kernels = self.drawn(federation)
        multipliers, parts = self.played(federation, {**server, "kernels": kernels})
        mean = federation.mean(
            self.train,
            {**self.broadcast(federation, server), "kernels": kernels, **parts},
            weights=self.weights(federation),
            draws=self.draw,
        )
        params = trees.add(server["params"], mean.value["update"], self.server_lr)
        return {"params": params, "multipliers": multipliers, "kernels": kernels}

    def drawn(self, federation: Federation) -> Kernels:
        """The kernels, from sums over the clients of the first round."""
        mean = federation.mean(self.moments, {}, weights="uniform")
        return Kernels.drawn(
            generator(federation.seed, "kernels"), mean.value["sums"].cpu() * mean.weight,
            float(mean.sizes.sum()), self.kernels, self.width,
        )  # fmt: skip

    def played(self, federation: Federation, server: Server) -> tuple[Tensor, dict[str, Tensor]]:
        """New multipliers, and what clients need of `a` and `nu`."""
        broadcast = {"params": server["params"], "kernels": server["kernels"]}
        mean = federation.mean(self.measure, broadcast, weights="uniform")
        sums, groups = (mean.value[k].cpu() * mean.weight for k in ("sums", "groups"))
        mass = sums[:, 0].clamp(min=1e-12)
        a = best_mix(sums[:, 1] / mass, largest=self.a_max)  # n mean(K_m) = mass
        share = groups / groups.sum()
        scores = (a / mass) @ sums[:, 2:]  # (G,): (1/n) sum theta s by group
        c = (scores - share * scores.sum())[1:]
        multipliers = ascended(
            server["multipliers"], c, slack=self.tau, rate=self.dual_lr, bound=self.dual_max
        )
        federation.note(
            adversary_loss=float((a * sums[:, 1] / mass).sum()), covariance=float(c.abs().max())
        )
        nu = torch.cat([torch.zeros(1, dtype=torch.float64), signed(multipliers)])
        parts = {"a": a * groups.sum() / mass, "nu": nu, "shift": (nu * share).sum()}
        return multipliers, {key: value.float() for key, value in parts.items()}
