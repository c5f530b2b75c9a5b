"""LFT+Ensemble: clients train fair models alone; predictions are averaged.

Zeng, Chen, Lee, "Improving Fairness via Federated Learning" (2021), who compare FedFB with it:
local fair training (FairBatch) without any exchange, and at the end the ensemble
`p(x) = sum_k (n_k / n) p_k(x)` of the clients' class probabilities.

Symbols: see `evenfed.core.fairbatch`; counts, losses and factors are the client's own. A round is
`local.epochs` epochs of every client of the cohort, each going on with its own model. After the
last round every client sends its model, once; those that never trained have no vote. Until then
an evaluation uses each client's own model.

Differences on purpose from public code: probabilities are those of a row, not divided by their sum
over the batch; the last model is taken, not the best epoch on validation data; all clients share
one step `alpha`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, QuorumError
from evenfed.core.examples import Examples
from evenfed.core.fairbatch import FairBatch
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Need, Reveal, Server, check_not_negative
from evenfed.methods.soft_labels import Mixture, each_model, mixture
from evenfed.methods.training import TrainsLocally


@dataclass(frozen=True)
class LFTEnsemble(TrainsLocally):
    """LFT+Ensemble.

    Parameters
    ----------
    alpha : float
        Step of FairBatch's factors at a client; 0 is plain training.
    """

    name: ClassVar[str] = "lft_ensemble"
    title: ClassVar[str] = "LFT+Ensemble"
    paper: ClassVar[str] = "Zeng et al., 2021 (baseline of FedFB)"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("share", "params", "model", "the client's own model, once, after training", False),
        Reveal("share", "trained", "scalar", "whether that model was trained, once", False),
        EVALUATION,
    )
    exchanges: ClassVar[int] = 0
    needs: ClassVar[tuple[Need, ...]] = ("groups", "two classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"alpha": (0.01, 0.05, 0.1, 0.3, 1.0)}

    alpha: float = 0.1

    def __post_init__(self) -> None:
        check_not_negative(self.name, alpha=self.alpha)

    @property
    def fairbatch(self) -> FairBatch:
        """The local debiasing."""
        return FairBatch(self.alpha)

    def start(self, federation: Federation) -> Server:
        """No members yet: a first model in their place, without effect."""
        return {
            "members": trees.map(lambda t: t.unsqueeze(0), self.first),
            "log_share": torch.zeros(1, dtype=torch.float64),
            "gathered": torch.zeros(()),
        }

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The client's own model and FairBatch's factors."""
        fair = self.fairbatch.start(self.task.groups)
        return {"params": self.first, "fair": fair, "rounds": torch.zeros(())}

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of each epoch."""
        return self.fairbatch.draw(self.local, generator, state, size)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: go on training the client's own model; sends nothing."""
        new, fair = self.fairbatch.run(
            self.local, self.task, state["params"], data, draws, state["fair"], lr=broadcast["lr"]
        )
        return {}, {"params": new, "fair": fair, "rounds": state["rounds"] + 1}

    def share(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: sends the client's model."""
        return {"params": state["params"], "trained": (state["rounds"] > 0).float()}, state

    def round(self, federation: Federation, server: Server) -> Server:
        """Everybody in the cohort trains alone."""
        rate = self.local.rate(federation.round, federation.rounds)
        federation.map(self.train, {"lr": rate}, draws=self.draw, counted=False)
        return server

    def finish(self, federation: Federation, server: Server) -> Server:
        """One exchange with all clients: their models become the members of the ensemble."""
        replies = federation.map(self.share, {}, clients=federation.everyone)
        rows = replies.uploads["trained"].cpu() > 0
        if not rows.any():
            raise QuorumError(f"{self.name}: no client has trained, so there is no ensemble")
        sizes = replies.sizes[rows]
        return {
            "members": trees.map(lambda t: t[rows.to(t.device)], replies.uploads["params"]),
            "log_share": (sizes / sizes.sum()).log(),
            "gathered": torch.ones(()),
        }

    def deployed(self, server: Server) -> Tree:
        """The ensemble."""
        return server

    def outputs(self, deployed: Tree, state: Tree, x: Tensor) -> Tensor:
        """Outputs whose probabilities are `sum_k (n_k / n) p_k(x)`; before that, the client's."""
        members: Tensor = each_model(lambda p: self.task.outputs(p, x), deployed["members"])
        together = mixture(members, deployed["log_share"], False)
        if not trees.leaves(state):
            return together
        return torch.where(
            deployed["gathered"] > 0, together, self.task.outputs(state["params"], x)
        )

    def point(self, deployed: Tree, state: Tree) -> tuple[Tree, Callable[[Tree, Tensor], Tensor]]:
        """All members together."""
        return deployed["members"], lambda members, x: self.outputs(
            {**deployed, "members": members}, state, x
        )

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The one member, if there is but one."""
        count = len(deployed["log_share"])
        if count > 1:
            raise ConfigError(
                f"'{self.name}' predicts with a mean of {count} models, so that no client has one "
                "model's weights; result.server['members'] holds the models, stacked"
            )
        return trees.row(deployed["members"], 0)  # type: ignore[no-any-return]

    def module(self, deployed: Tree, state: Tree) -> nn.Module:
        """The ensemble as one module."""
        count = len(deployed["log_share"])
        members = [self.loaded(trees.row(deployed["members"], i)) for i in range(count)]
        return Mixture(members, deployed["log_share"], False).eval()
