"""IFCA: M models, and every client trains the one that fits it best.

Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning" (NeurIPS
2020), Algorithm 1 with model averaging.

Symbols: `w_m` the models (`params`, stacked on the first axis), `s_i` the cluster of client i (its
state). In a round the client receives all models, takes `s_i = argmin_m F_i(w_m)` on its training
data, trains that model alone, to `theta_i`, and sends `theta_i - w_{s_i}` and `s_i`. Server:
`w_m <- w_m + eta * mean of the changes of the clients with s_i = m`; a model that nobody took stays
as it is. FOCUS has soft labels, which add up over rounds, where IFCA decides anew each time.

Where ours differs from the paper and the authors' code: first models are FOCUS's (`init`; the paper
draws them independently and keeps the best of several restarts, its FEMNIST code trains them on
random groups of clients); for evaluation a client takes its model by the loss on training data (the
code: by the loss on the very data that are evaluated); weights shared between the models are not
there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Population, Traffic
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.focus import Focus
from evenfed.methods.focus_start import ALONE, count_in, first_models
from evenfed.methods.soft_labels import each_model, over_first

OWN = (
    Reveal("train", "update", "model", "change of the model that the client chose", False),
    Reveal("train", "cluster", "scalar", "which model the client chose, every round", False),
)


@dataclass(frozen=True)
class IFCA(FedAvg):
    """IFCA.

    Parameters
    ----------
    m : int
        Number of models; 1 is FedAvg.
    init : {"farthest_first", "common_noise", "independent"}
        First models, as FOCUS's.
    noise : float
        Noise of `common_noise`, relative to the root mean square of each weight tensor.
    weighting : {"uniform", "size", "auto"}
        Weights of the clients of a cluster; the paper's are uniform.
    """

    name: ClassVar[str] = "ifca"
    title: ClassVar[str] = "IFCA"
    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    personal: ClassVar[bool] = True
    reveals: ClassVar[tuple[Reveal, ...]] = (*ALONE, *OWN, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"m": (2, 3, 4)}

    m: int = 2
    init: Literal["farthest_first", "common_noise", "independent"] = "farthest_first"
    noise: float = 0.01
    weighting: Literal["auto", "size", "uniform"] = "uniform"

    opening: Traffic = field(default_factory=Traffic, init=False, repr=False, compare=False)
    """What the first models cost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m < 1:
            raise ConfigError(f"{self.name}: m must be at least 1, but is {self.m}")
        self.like_focus()  # checks init and noise
        alone = ALONE if self.init == "farthest_first" and self.m > 1 else ()
        object.__setattr__(self, "reveals", (*alone, *OWN, EVALUATION))

    def like_focus(self) -> Focus:
        """FOCUS with the same first models."""
        return Focus(local=self.local, m=self.m, init=self.init, noise=self.noise)

    def start(self, federation: Federation) -> Server:
        """The first models, and the clusters `(K,)` as far as the server knows them (-1: not)."""
        models = first_models(self.like_focus().bound(self.task, self.first), federation, 0)
        object.__setattr__(self, "opening", Traffic())
        count_in(self.opening, federation.traffic)
        return {"params": models, "cluster": torch.full((len(federation),), -1)}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The first model, until the client has chosen."""
        return {"cluster": torch.zeros((), dtype=torch.int64)}

    def chosen(self, models: Params, data: Examples) -> Tensor:
        """`argmin_m F_i(w_m)`, int64."""
        losses: Tensor = each_model(lambda params: self.task.mean_loss(params, data), models)
        return losses.nan_to_num(nan=torch.inf).argmin()

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: chooses a model, trains it, sends its change and the choice."""
        cluster = self.chosen(broadcast["params"], data)
        begin = picked(broadcast["params"], cluster)
        new = self.trained({**broadcast, "params": begin}, data, draws)
        return {"update": trees.subtract(new, begin), "cluster": cluster}, {"cluster": cluster}

    def choose(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function after the last round: chooses a model; sends nothing."""
        return {}, {"cluster": self.chosen(broadcast["params"], data)}

    def by_cluster(self, upload: Tree) -> dict[str, Tree]:
        """One client's upload with its change in the place of its model, zeros elsewhere."""
        mine = torch.arange(self.m, device=upload["cluster"].device) == upload["cluster"]
        changes = trees.map(
            lambda u: u * over_first(mine.to(u.dtype), u.unsqueeze(0)), upload["update"]
        )
        return {"update": changes, "share": mine.double(), "cluster": upload["cluster"]}

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: choose, train, average in each cluster."""
        if federation.round == 0:
            count_in(federation.traffic, self.opening)
        mean = federation.mean(
            self.train,
            self.broadcast(federation, server),
            weights=self.weights(federation),
            draws=self.draw,
            each=self.by_cluster,
            keep=("cluster",),
        )
        share = mean.value["share"]  # of the weight, by cluster
        scale = torch.where(share > 0, self.server_lr / share.clamp(min=1e-300), 0.0)
        params = trees.map(
            lambda w, u: w + over_first(scale.to(w.dtype), u) * u,
            server["params"],
            mean.value["update"],
        )
        known = server["cluster"].clone()
        known[np.argsort(federation.everyone)[mean.clients]] = mean.kept["cluster"].cpu()
        federation.note(clients_by_cluster=mean.kept["cluster"].bincount(minlength=self.m).tolist())
        return {"params": params, "cluster": known}

    def finish(self, federation: Federation, server: Server) -> Server:
        """Every client chooses among the last models."""
        federation.map(self.choose, {"params": server["params"]}, clients=federation.everyone)
        return server

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The model that the client chose."""
        return picked(deployed, state["cluster"])

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """A new client chooses by its own labelled examples."""
        with torch.no_grad():
            return {"cluster": self.chosen(deployed, data)}

    def cluster_of(self, state: Tree) -> Tensor:
        """The model that the client chose, from what it keeps."""
        found: Tensor = state["cluster"]
        return found

    def memberships(self, server: Server, population: Population) -> Tensor:
        """Labels `(K, M)` of 0 and 1 that the server last saw; 0 for clients it never saw."""
        labels: Tensor = (server["cluster"].unsqueeze(1) == torch.arange(self.m)).double()
        order = population.order()
        return labels if order is None else labels[np.argsort(order)]


def picked(models: Params, index: Tensor) -> Params:
    """The model at `index` (a scalar tensor) of stacked ones."""
    return trees.map(  # type: ignore[no-any-return]
        lambda t: t.index_select(0, index.view(1)).squeeze(0), models
    )
