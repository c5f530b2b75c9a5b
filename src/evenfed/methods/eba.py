"""EBA: aggregation with weights of maximum entropy; the aggregation part of FedEBA+.

Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning"
(arXiv 2301.12407; ICML 2026), rebuilt: docs/methods/fedeba.md says which part rests on what.

Symbols: `F_i` loss of client i, `q_i` its share of the examples (the prior), `tau` the temperature.
Among all weights with a given mean loss, `p_i` proportional to `q_i exp(F_i / tau)` has the largest
entropy relative to the prior. With `tau = 1/t` these are the weights of the tilted loss (TERM).

Robust loss (`robust` = `gamma` > 0), against wrong labels. The paper replaces `F_i` by a
cross-entropy plus `gamma` times a self-distillation loss on augmented data, after Jiang, Sun, Wang,
Liu, "Towards Federated Learning against Noisy Labels via Local Self-Regularization" (CIKM 2022).
With logits `z` of an input, `z'` of its augmented view and `sigma` the softmax:
`m = (sigma(z) + sigma(z')) / 2`, `s_c = m_c^2 / sum_d m_d^2`,
`l = log sum_c exp(s_c) - s_y + gamma JS(sigma(3 z), sigma(3 z'))`.
The cross-entropy takes the sharpened prediction `s` where logits are usual, as the public code of
Jiang et al. does. That is what makes it robust: labels at random cost at most 1 more than right
ones, and almost the same for every prediction. Ours on purpose: the mean of the two views (there a
random mixture), inputs shrunk to 80 % (there rotated images), JS as a sum over classes (there their
mean), no warm-up of `gamma` and no entropy term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.tilted import Tilts

UPDATE = Reveal("train", "update", "model", "change of the model by the client's training", False)
LOSS = Reveal("train", "loss", "scalar", "loss of the model on the training data", False)


@dataclass(frozen=True)
class EBA(Tilts):
    """Entropy-based aggregation; options as of `Tilts`."""

    name: ClassVar[str] = "eba"
    title: ClassVar[str] = "EBA"
    paper: ClassVar[str] = "Wang et al., ICML 2026 (rebuilt)"
    reveals: ClassVar[tuple[Reveal, ...]] = (UPDATE, LOSS, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"tau": (0.05, 0.1, 0.5, 1.0, 2.0, 5.0)}

    def steps(self, federation: Federation) -> int:
        """Local steps of the largest client in a round, where its size is known."""
        sizes = federation.population.sizes()
        if self.local.steps or sizes is None or not self.local.batch:
            return self.local.steps or self.local.epochs
        return self.local.epochs * -(-int(sizes.max()) // self.local.batch)

    def advice(self, federation: Federation) -> list[str]:
        """Warn where weights this sharp were seen to make training swing."""
        reach = self.local.lr * self.steps(federation)
        if self.tau_mode == "relative" or self.tau > 0.2 or reach < 0.3:
            return []
        return [
            f"{self.name}: tau = {self.tau} with local rate x steps = {reach:.2g} lets one client "
            "decide a round, and training swing; raise tau (2) or set tau_mode='relative'"
        ]

    def sent(self, broadcast: Tree, new: Params, data: Examples) -> dict[str, Tree]:
        """The upload: the change of the model and the loss behind its weight."""
        at = new if self.loss_at == "local_final" else broadcast["params"]
        update = trees.subtract(new, broadcast["params"])
        return {"update": update, "loss": self.loss(at, data)}

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training; sends the change of the model and a loss."""
        return self.sent(broadcast, self.trained(broadcast, data, draws), data), state

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average with entropy weights."""
        answer = self.tilting.exchange(
            federation,
            self.train,
            self.broadcast(federation, server),
            draws=self.draw,
            prior=self.weights(federation),
        )
        return {"params": self.moved(server["params"], answer.value["update"])}

    def moved(self, params: Params, update: Tree) -> Params:
        """The model after the server's step."""
        return trees.add(params, update, self.server_lr)  # type: ignore[no-any-return]
