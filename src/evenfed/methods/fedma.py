"""FedMA: networks matched and averaged layer by layer, with training in between.

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, "Federated Learning with Matched Averaging" (ICLR
2020), Algorithm 1 and its form with several rounds. For fully connected networks only (the paper
also has convolutions and LSTMs). The matching itself is `core.matching`.

Symbols: `W_jn` layer n of client j (a row is a neuron: incoming weights and bias), `N` layers,
`p_jk` the share of client j in the examples of class k. A round has N exchanges:

1. Every client trains its network and sends layer 1. The server matches its neurons. 2. For n = 2
to N: clients receive the global layer n - 1 and where their own neurons are in it, put the inputs
of their layer n in these places (0 elsewhere), train layers n to N with the global ones before them
frozen, and send layer n. The server matches its neurons; of the last layer, whose neurons are the
outputs, it takes the mean with weights `p_jk`.

In the next round a client begins with its part of the global network, as large as its first one.

With `local.regularizer` every training of a round is corrected. Behind frozen layers gradient, sign
entropy and correction are those of the layers that train: the frozen ones enter the loss as they
are and have no part in a step.

Where ours differs from the authors' code: see `core.matching`; biases have the prior mean 0; every
exchange trains with the same options; the server does not tune the last layer on data of its own; a
client whose network was not part of the last round begins with the neurons that most networks have
(the paper: everybody takes part).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from evenfed.core.composed import Whole
from evenfed.core.examples import Examples
from evenfed.core.matching import Matched
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.exchange import PerClient
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.matched import LABELS, MatchesNeurons, with_bias, without_bias


@dataclass(frozen=True)
class FedMA(MatchesNeurons):
    """FedMA; `exchanges` is that of a perceptron with one hidden layer."""

    name: ClassVar[str] = "fedma"
    title: ClassVar[str] = "FedMA"
    paper: ClassVar[str] = "Wang et al., ICLR 2020"
    exchanges: ClassVar[int] = 2
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "layer", "part", "the first layer of the client's network", False),
        LABELS,
        Reveal("train_on", "layer", "part", "each further layer, one an exchange", False),
        EVALUATION,
    )

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: train the whole network; sends its first layer."""
        new = self.trained_here(broadcast, state, data, draws)
        upload = {"layer": self.layers[0].of(new), "labels": self.labels(data)}
        return upload, {"params": new}

    def train_on(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: train the layers after the frozen ones; sends the first of them."""
        frozen, own = broadcast["frozen"], state["params"]
        n = sum(layer.weight in frozen for layer in self.layers)
        width = len(frozen[self.layers[n - 1].weight])
        # column i of the client's layer goes to the place of its neuron i in the global layer
        to = broadcast["places"].unsqueeze(-1) == torch.arange(width, device=data.y.device)
        weight = own[self.layers[n].weight]
        begin = {k: v for layer in self.layers[n:] for k, v in layer.of(own).items()}
        begin[self.layers[n].weight] = weight @ to.to(weight.dtype)
        new = self.local.follow(
            _Rest(self.task), begin, data, draws, lr=broadcast["lr"], context=frozen
        )
        rest = {k: new[k] for layer in self.layers[n + 1 :] for k in layer.of(new)}
        return {"layer": self.layers[n].of(new)}, {"params": {**own, **rest}}

    def round(self, federation: Federation, server: Server) -> Server:
        """An exchange a layer: train what is left, match; average the last one."""
        broadcast = self.local_models(federation, server)
        replies = federation.map(self.train, broadcast, draws=self.draw)
        clients, labels = replies.clients, replies.uploads["labels"]
        found: list[Matched] = []
        params: Params = {}
        for n, layer in enumerate(self.layers[:-1]):
            rows = with_bias(layer, replies.uploads["layer"])
            precisions = np.full((len(rows), rows.shape[-1]), 1 / self.sigma)
            found.append(self.matching(federation, n, rows, precisions))
            params |= without_bias(layer, found[-1].neurons, self.first)
            places = torch.from_numpy(np.stack(found[-1].places))
            replies = federation.map(
                self.train_on,
                {"frozen": dict(params), "places": PerClient(places), "lr": broadcast["lr"]},
                draws=self.draw,
                clients=clients,
            )
            # who sent something unusable is out for the rest of the round
            answered = np.flatnonzero(np.isin(clients, replies.clients))
            clients, labels = clients[answered], labels[answered]
            found = [one.only(answered) for one in found]
        last = self.layers[-1]
        rows = with_bias(last, replies.uploads["layer"])
        mean = (rows * self.shares(labels)[..., None]).sum(0)  # weights p_jk
        federation.note(widths=[len(one.counts) for one in found])
        return {
            "params": {**params, **without_bias(last, mean, self.first)},
            "places": self.places_after(federation, clients, found),
            "matched": torch.tensor(1),
        }


@dataclass(frozen=True)
class _Rest(Whole):
    """Gradient of the batch loss by the layers that are not frozen."""

    task: Task

    def batch_loss(self, part: Params, batch: Examples, context: Tree) -> Tensor:
        return self.task.mean_loss({**context, **part}, batch)

    def __call__(self, params: Params, batch: Examples, frozen: Tree) -> tuple[Params, Tree]:
        return grad(self.batch_loss)(params, batch, frozen), ()
