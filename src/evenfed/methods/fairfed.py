"""FairFed: clients whose fairness is far from the federation's lose weight in the average.

Ezzeldin, Yan, He, Ferrara, Avestimehr, "FairFed: Enabling Group Fairness in Federated Learning"
(AAAI 2023).

Symbols: `F_k` the fairness of the received model on client k's training data (difference between
the groups' rates), `F` the same on all clients' data, `D_k = |F_k - F|`, or `|accuracy_k -
accuracy|` where `F_k` is not defined (fewer than two groups have the rate at the client). Weights
begin at `w_k = n_k / n`; every round `w_k <- w_k - beta (D_k - mean_j D_j)`, and the models are
averaged with `w_k / sum_j w_j`. Local training may be debiased by any method; here FairBatch. `form
= "exponential"` is the first preprint's: `w_k` proportional to `(n_k / n) exp(-beta D_k)`, without
memory.

More than two groups: `D_k = max_z d_z - min_z d_z` with `d_z` the client's rate less the
federation's, over the groups that the client has; with two groups this is `|F_k - F|`.

Sources: the weights' rule and the case of an undefined `F_k` agree in two independent public
reimplementations of the paper; the exponential form is the one in FedFB's public code. Differences
on purpose: weights are not let below `floor` (a client with a steady gap would get an ever more
negative weight; `floor = -inf` is the published rule); one exchange, in which the server sees the
clients' counts, where the paper hides them behind three secure sums; FedFB's code drops the first
client's weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, EvenfedError, QuorumError
from evenfed.core.examples import Examples
from evenfed.core.fairbatch import FairBatch
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
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FairFed(FedAvg):
    """FairFed.

    Parameters
    ----------
    beta : float
        Strength; 0 is FedAvg (with the local debiasing).
    form : {"published", "exponential"}
        Rule of the weights.
    metric : {"dp", "eo"}
        Rates behind `F`: of positive predictions, or of positive predictions among positives.
    debiasing : {"none", "fairbatch"}
        What clients do about fairness in local training.
    alpha : float
        Step of FairBatch's factors.
    floor : float
        Least weight of a client (`published`); `-inf` is none.
    """

    name: ClassVar[str] = "fairfed"
    title: ClassVar[str] = "FairFed"
    paper: ClassVar[str] = "Ezzeldin et al., AAAI 2023"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "update", "model", "change of the model by the client's training", False),
        Reveal(
            "train", "counts", "counts",
            "numbers of training examples by group, label and prediction, every round", False,
        ),
        EVALUATION,
    )  # fmt: skip
    needs: ClassVar[tuple[Need, ...]] = ("groups", "two classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "beta": (0.3, 1.0, 2.0),
        "debiasing": ("none", "fairbatch"),
        "alpha": (0.05, 0.1, 0.3),
    }

    beta: float = 1.0
    form: Literal["published", "exponential"] = "published"
    metric: Literal["dp", "eo"] = "dp"
    debiasing: Literal["none", "fairbatch"] = "none"
    alpha: float = 0.1
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, beta=self.beta, alpha=self.alpha)
        check_choice(self.name, "form", self.form, ("published", "exponential"))
        check_choice(self.name, "metric", self.metric, ("dp", "eo"))
        check_choice(self.name, "debiasing", self.debiasing, ("none", "fairbatch"))

    @property
    def fairbatch(self) -> FairBatch:
        """The local debiasing; a step of 0 is none."""
        return FairBatch(self.alpha if self.debiasing == "fairbatch" else 0.0)

    def start(self, federation: Federation) -> Server:
        """The model and the weights `(K,)`, in the order of `federation.everyone`."""
        sizes = federation.population.sizes()
        if sizes is None:
            raise ConfigError(f"{self.name} needs the sizes of all clients, which are not known")
        share = torch.from_numpy(sizes[federation.everyone]).to(torch.float64)
        if self.weights(federation) == "uniform":
            share = torch.ones_like(share)
        return {"params": self.first, "weights": share / share.sum()}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """FairBatch's factors, where there is FairBatch."""
        return self.fairbatch.start(self.task.groups) if self.fairbatch.alpha else ()

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of each epoch."""
        return self.fairbatch.draw(self.local, generator, state, size)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: counts of the received model, then (debiased) local training."""
        params = broadcast["params"]
        counts = self.task.count(self.task.outputs(params, data.x), data).confusion
        new, state = self.fairbatch.run(
            self.local, self.task, params, data, draws, state, lr=broadcast["lr"]
        )
        return {"update": trees.subtract(new, params), "counts": counts}, state

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: counts and models; weights from the counts, then the average."""
        replies = federation.map(self.train, self.broadcast(federation, server), draws=self.draw)
        gaps = metric_gaps(replies.uploads["counts"].cpu(), self.metric)
        rows = torch.from_numpy(np.argsort(federation.everyone)[replies.clients])
        known, old = server["weights"].clone(), server["weights"][rows]
        if self.form == "exponential":
            weights = old * torch.exp(-self.beta * gaps)
        else:
            weights = (old - self.beta * (gaps - gaps.mean())).clamp(min=self.floor)
            known[rows] = weights
        share = normalised(weights)
        federation.note(
            mean_metric_gap=float(gaps.mean()),
            largest_weight=float(share.max()),
            smallest_weight=float(share.min()),
        )
        update = trees.map(
            lambda t: torch.tensordot(share.to(t.device), t.double(), dims=1).to(t.dtype),
            replies.uploads["update"],
        )
        params = trees.add(server["params"], update, self.server_lr)
        return {"params": params, "weights": known}


def normalised(weights: Tensor) -> Tensor:
    """Weights `(m,)` that sum to one."""
    total = float(weights.sum())
    if total == 0:
        raise QuorumError("fairfed: nobody with any weight answered")
    if total < 0:
        raise EvenfedError(f"fairfed: the weights sum to {total}; raise floor or lower beta")
    return weights / total


def metric_gaps(confusion: Tensor, metric: str) -> Tensor:
    """`D_k` `(m,)` from counts `(m, G, 2, 2)` by group, label and prediction.

    Examples
    --------
    >>> one = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[8.0, 0.0], [0.0, 0.0]]])
    >>> other = torch.tensor([[[4.0, 0.0], [0.0, 4.0]], [[0.0, 8.0], [0.0, 0.0]]])
    >>> metric_gaps(torch.stack([one, other]), "dp")
    tensor([0.5000, 0.5000])
    """
    labels = slice(1, None) if metric == "eo" else slice(None)

    def rates(counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        among = counts[..., labels, :].sum(-2)
        size = among.sum(-1)
        correct = counts.diagonal(dim1=-2, dim2=-1).sum((-2, -1))
        accuracy = correct / counts.sum((-3, -2, -1)).clamp(min=1)
        return among[..., 1] / size.clamp(min=1), size > 0, accuracy

    own, present, accuracy = rates(confusion)
    overall, _, overall_accuracy = rates(confusion.sum(0))
    away = own - overall  # d_z; where a client has the group, the federation has it
    spread = torch.where(present, away, -torch.inf).amax(-1) - torch.where(
        present, away, torch.inf
    ).amin(-1)
    return torch.where(present.sum(-1) > 1, spread, (accuracy - overall_accuracy).abs())
