"""FedFair: training under a bound on the difference of the groups' losses, measured federally.

Chu, Wang, Dong, Pei, Zhou, Zhang, "FedFair: Training Fair Models In Cross-Silo Federated Learning"
(arXiv 2109.05662, 2021).

Symbols: `L_z = S_z / m_z` the mean loss of the examples of group z with label y over all clients
(sums `S_z` and numbers `m_z` of clients are added up: the federated estimate), `g_z = L_z - L_0`
the difference of generalized equal opportunities (DGEO), `f_k` the client's mean loss, `eps` the
bound. `min_w sum_k (n_k / n) f_k(w)` subject to `|g_z(w)| <= eps` for `z >= 1` (two groups in the
paper), by the Lagrangian `L = sum_k (n_k / n) f_k + sum_z nu_z g_z`, `nu = lambda_+ - lambda_-`,
and alternating projected gradient steps: `w` down, then `lambda <- [lambda + eta (+-g(w) - eps)]`
clipped to `[0, dual_max]`. Since `L` is a sum over examples, a client takes its part of it as
weights: an example with label y in group z counts `1 + n nu_z / m_z` times, in group 0 `1 - n sum_z
nu_z / m_0` times.

Sources: the paper's abstract and its later version's; the Lagrangian, the two multipliers and their
box follow from the constrained problem and are our reading of the text, not checked line by line.
Differences on purpose: the step of `w` is local training of any length, averaged (full batch and
one epoch: the paper's gradient step); more than two groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.core.two_sided import ascended, signed
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Need, Reveal, Server, check_not_negative
from evenfed.methods.fedavg import UPDATE, FedAvg


@dataclass(frozen=True)
class FedFair(FedAvg):
    """FedFair.

    Parameters
    ----------
    eps : float
        Bound on the difference of the groups' mean losses.
    dual_lr : float
        Step `eta` of the multipliers; 0 is FedAvg.
    dual_max : float
        Largest multiplier.
    label : int
        The label y whose examples are compared.
    """

    name: ClassVar[str] = "fedfair"
    title: ClassVar[str] = "FedFair"
    paper: ClassVar[str] = "Chu et al., 2021 (arXiv 2109.05662)"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        UPDATE,
        Reveal("measure", "size", "counts", "numbers of examples with the label by group", True),
        Reveal("measure", "loss", "counts", "sums of their losses by group, every round", True),
        EVALUATION,
    )
    exchanges: ClassVar[int] = 2
    needs: ClassVar[tuple[Need, ...]] = ("groups", "classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "eps": (0.01, 0.02, 0.05, 0.1),
        "dual_lr": (0.1, 0.3, 1.0),
    }

    eps: float = 0.02
    dual_lr: float = 0.3
    dual_max: float = 10.0
    label: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(
            self.name, eps=self.eps, dual_lr=self.dual_lr, dual_max=self.dual_max, label=self.label
        )

    def start(self, federation: Federation) -> Server:
        """The model and multipliers `(2, G - 1)` of zero."""
        if self.label >= self.task.classes:
            raise ConfigError(
                f"{self.name}: label is {self.label}, but classes are 0..{self.task.classes - 1}"
            )
        return {
            "params": self.first,
            "multipliers": torch.zeros(2, self.task.groups - 1, dtype=torch.float64),
            "trained": torch.zeros((), dtype=torch.float64),
        }

    def measure(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: numbers and loss sums of the examples with the label, by group."""
        counts = self.task.count(self.task.outputs(broadcast["params"], data.x), data)
        return {"size": counts.cells[:, self.label], "loss": counts.loss[:, self.label]}, state

    def example_weights(self, batch: Examples, extra: Tree) -> Tensor:
        """How often each example counts `(n,)`."""
        own: Tensor = extra[batch.group]
        return 1.0 + own * (batch.y == self.label)

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after local training on its part of the Lagrangian."""
        return self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], weights=self.example_weights, context=broadcast["extra"],
        )  # fmt: skip

    def round(self, federation: Federation, server: Server) -> Server:
        """Group losses and multipliers (not in the first round), then training."""
        multipliers = server["multipliers"]
        extra = torch.zeros(self.task.groups)
        if self.dual_lr and server["trained"] > 0:
            multipliers, extra = self.moved(federation, server)
        mean = federation.mean(
            self.train,
            {**self.broadcast(federation, server), "extra": extra},
            weights=self.weights(federation),
            draws=self.draw,
        )
        return {
            "params": trees.add(server["params"], mean.value["update"], self.server_lr),
            "multipliers": multipliers,
            "trained": server["trained"] + 1,
        }

    def moved(self, federation: Federation, server: Server) -> tuple[Tensor, Tensor]:
        """Multipliers after a step at the current model, and the extra weights `(G,)`."""
        mean = federation.mean(self.measure, {"params": server["params"]}, weights="uniform")
        size, loss = (mean.value[part].cpu() * mean.weight for part in ("size", "loss"))
        present = (size[1:] > 0) & (size[0] > 0)
        each = loss / size.clamp(min=1)
        gaps = torch.where(present, each[1:] - each[0], 0.0)  # DGEO; none without examples
        federation.note(group_loss_gap=float(gaps.abs().max()))
        multipliers = ascended(
            server["multipliers"], gaps, slack=self.eps, rate=self.dual_lr, bound=self.dual_max
        )
        nu = signed(multipliers) * present
        total = mean.sizes.sum()
        extra = torch.cat([-nu.sum(0, keepdim=True), nu]) * total / size.clamp(min=1)
        return multipliers, extra.to(torch.float32)
