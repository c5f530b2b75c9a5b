"""PFNM: local networks trained apart, their neurons matched once and averaged.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, "Bayesian Nonparametric Federated Learning
of Neural Networks" (ICML 2019). The matching itself is `core.matching`; see there for its symbols.

All rounds but the last are local training, each client alone. In the last one clients send their
networks and the server matches neurons layer by layer, from the last hidden layer to the first. A
neuron of the last hidden layer is its bias and its outgoing weights; of a layer below, likewise,
with outgoing weights in the places of the matched neurons above (0 to those that the client does
not have); in the first hidden layer its incoming weights count as well. Weights to output k have
the precision `y_jk / sigma`, with `y_jk` the share of client j in the examples of class k, others
`1 / sigma`. The global network is the mean of the posterior; its layers may be wider than the local
ones. With `one_shot=False` there is a match in every round, and clients go on from their part of
it.

Where ours differs from the authors' code: see `core.matching`; the prior mean of biases is 0 (there
0.1); `init="common"` is the default of this library, the paper's networks start independently; in
rounds with `one_shot=False` networks are matched anew (there from the last round's matches, with a
penalty on leaving the global weights).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from evenfed.core.errors import EvenfedError
from evenfed.core.examples import Examples
from evenfed.core.matching import Array, Matched
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Replies
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.matched import LABELS, MatchesNeurons


@dataclass(frozen=True)
class PFNM(MatchesNeurons):
    """PFNM.

    Parameters
    ----------
    one_shot : bool
        Whether networks are sent and matched in the last round only.
    """

    name: ClassVar[str] = "pfnm"
    title: ClassVar[str] = "PFNM"
    paper: ClassVar[str] = "Yurochkin et al., ICML 2019"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "network", "model", "the whole network, where networks are matched", False),
        LABELS,
        EVALUATION,
    )

    one_shot: bool = True

    def practise(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: go on training the client's own network; sends nothing."""
        return {}, {"params": self.trained_here(broadcast, state, data, draws)}

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: train; sends the network and the numbers of examples by label."""
        new = self.trained_here(broadcast, state, data, draws)
        return {"network": new, "labels": self.labels(data)}, {"params": new}

    def round(self, federation: Federation, server: Server) -> Server:
        """Train apart; in the last round (or every one) match."""
        broadcast = self.local_models(federation, server)
        if self.one_shot and federation.round + 1 < federation.rounds:
            federation.map(self.practise, broadcast, draws=self.draw, counted=False)
            return server
        return self.merged(federation, federation.map(self.train, broadcast, draws=self.draw))

    def merged(self, federation: Federation, replies: Replies) -> Server:
        """The global network of the clients' ones."""
        networks = {k: v.double().cpu().numpy() for k, v in replies.uploads["network"].items()}
        shares = self.shares(replies.uploads["labels"])
        found: list[Matched] = []
        params: Params = {}
        for n in reversed(range(len(self.layers) - 1)):
            above = found[0] if found else None
            neurons, precisions = self._neurons(n, networks, shares, above)
            found.insert(0, self.matching(federation, n, neurons, precisions))
            params |= self._weights(n, found[0].neurons)
        params |= self._output_bias(networks, shares)
        like = self.first
        federation.note(widths=[len(f.counts) for f in found])
        return {
            "params": {k: params[k].to(like[k].device, like[k].dtype) for k in like},
            "places": self.places_after(federation, replies.clients, found),
            "matched": torch.tensor(1),
        }

    def _neurons(
        self, n: int, networks: dict[str, Array], shares: Array, above: Matched | None
    ) -> tuple[Array, Array]:
        """Hidden layer n as neurons `(J, L, D)` and their precisions `(J, D)`.

        A neuron: its incoming weights (first layer only), its bias, its outgoing weights.
        """
        layer, following = self.layers[n], self.layers[n + 1]
        outgoing = networks[following.weight].swapaxes(1, 2)  # (J, L, L above)
        count = len(outgoing)
        weights = shares
        if above is not None:
            wide = np.zeros((*outgoing.shape[:2], len(above.counts)))
            for j, places in enumerate(above.places):
                wide[j][:, places] = outgoing[j]
            outgoing, weights = wide, np.ones((count, wide.shape[-1]))
        parts = [outgoing]
        if layer.bias is not None:
            parts.insert(0, networks[layer.bias][..., None])
        if n == 0:
            parts.insert(0, networks[layer.weight])
        neurons = np.concatenate(parts, -1)
        plain = np.ones((count, neurons.shape[-1] - outgoing.shape[-1]))
        return neurons, np.concatenate([plain, weights], -1) / self.sigma

    def _weights(self, n: int, neurons: Array) -> Params:
        """Weights that the global neurons `(L, D)` of hidden layer n stand for."""
        layer, following = self.layers[n], self.layers[n + 1]
        inputs = self.first[layer.weight].shape[1] if n == 0 else 0
        biases = 0 if layer.bias is None else 1
        made: dict[str, Array] = {following.weight: neurons[:, inputs + biases :].T}
        if n == 0:
            made[layer.weight] = neurons[:, :inputs]
        if layer.bias is not None:
            made[layer.bias] = neurons[:, inputs]
        return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in made.items()}

    def _output_bias(self, networks: dict[str, Array], shares: Array) -> Params:
        """Bias of the outputs: the mean of its posterior, with the outputs' precisions."""
        bias = self.layers[-1].bias
        if bias is None:
            return {}
        precisions = shares / self.sigma
        total = 1 / self.sigma0 + precisions.sum(0)
        return {bias: torch.from_numpy((networks[bias] * precisions).sum(0) / total)}

    def finish(self, federation: Federation, server: Server) -> Server:
        """Nothing is left to do; but there must be a global network."""
        if federation.rounds and not server["matched"]:
            raise EvenfedError(
                "pfnm: too few clients answered in the last round, so no network was matched"
            )
        return server
