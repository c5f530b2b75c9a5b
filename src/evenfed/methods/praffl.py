"""PraFFL: at every client a hypernetwork that writes the model of any preference.

Ye, Kou, Tang, "PraFFL: A Preference-Aware Scheme in Fair Federated Learning" (KDD 2025). Equation
numbers are those of its successor HetPFL (IJCAI 2025), whose first phase it is.

Symbols: `psi` the body that clients share (`params`), `beta_k` client k's hypernetwork, which stays
with it (`beta`), `lambda = (p, 1 - p)` the ray of preference p, `h_beta(lambda)` the classifier of
latent features that it writes, `l = (l_CE, l_F)` performance and fairness loss.

A round at a client. Body: steps on `psi` along the gradient of `l_CE` at `p = 1/2` (Eq. 11). Head:
steps on `beta_k` along the gradient of the mean over N drawn preferences of
`g_tch = max_j l_j / lambda_j` (Eqs. 3 and 12); preferences are uniform. Server: `psi` is the mean
of the clients' bodies (Eq. 15). At an optimum of `g_tch` the losses lie on the ray (Lemma 1): a
larger p allows more performance loss, so it is the fairer end.

With `local.regularizer` both phases are corrected, each against the sign entropy of its own
gradient: the body's of `l_CE`, the head's of the mean of `g_tch` over the step's N preferences,
which are the same at the look-ahead point. What trains no weights of a client's family (alpha of
HetPFL's sampler, its FusionNet) is not regularised.

Ours differs from the public code on purpose: the fairness loss is the absolute covariance with
the probability, not a per-sample square on logits; `g_tch` is the maximum (`logsumexp` is an
option); `lambda` is held `eps` away from 0; the mean counts every client; each round and client has
its own draws; the written classifier has a bias for each class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.randomness import generator as seeded
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice
from evenfed.methods.head_training import Phases
from evenfed.methods.preferred import FRONT
from evenfed.methods.sampling import Sampler, Uniform
from evenfed.methods.written import Written

BODY = Reveal(
    "train", "update", "part", "change of the shared body by the client's training, every round",
    True,
)  # fmt: skip
SHARED = (
    Reveal("share", "hypernetwork", "network", "the client's hypernetwork, once at the end", True),
    Reveal("share", "trained", "scalar", "whether the client ever took part in training", True),
)


@dataclass(frozen=True)
class PraFFL(Written):
    """PraFFL.

    Parameters
    ----------
    local : LocalTraining
        Local training of a round, for body and head together.
    body_share : float
        Share of the local epochs (or steps) that train the body; the others train the head.
    n_preferences : int
        Preferences drawn in each step of the head (N).
    refresh : int
        Epochs (or steps) that every client trains its head after the last round, behind the final
        body; 0 is the paper's.
    weighting : {"uniform", "size"}
        Weights of the clients in the mean of the bodies.
    average : bool
        Whether the clients send their hypernetworks after the last round for their mean, the
        federation's own family of models. Without it there is none.
    fairness, scalarization, eps, latent, head, activation, trunk
        Losses and networks, see `Written`.
    preference, deploy
        The model in use, see `Preferred`.
    """

    name: ClassVar[str] = "praffl"
    title: ClassVar[str] = "PraFFL"
    paper: ClassVar[str] = "Ye et al., KDD 2025"
    reveals: ClassVar[tuple[Reveal, ...]] = (BODY, *SHARED, EVALUATION, FRONT)

    local: LocalTraining = field(
        default_factory=lambda: LocalTraining(
            lr=0.005, batch=128, epochs=30, optimizer="adam", weight_decay=1e-4
        )
    )
    body_share: float = 16 / 30
    n_preferences: int = 16
    refresh: int = 5
    weighting: Literal["uniform", "size"] = "uniform"
    average: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "weighting", self.weighting, ("uniform", "size"))
        if not 0 < self.body_share < 1:
            raise ConfigError(f"{self.name}: body_share must be in (0, 1), not {self.body_share}")
        if self.n_preferences < 2:
            raise ConfigError(f"{self.name}: n_preferences must be at least 2")
        if self.refresh < 0:
            raise ConfigError(f"{self.name}: refresh must not be negative, but is {self.refresh}")
        _ = self.local.rule  # Entropy-SGD has none, and is refused
        if not self.average and self.deploy == "global":
            raise ConfigError(f"{self.name}: deploy='global' takes average=True")
        if not self.average:
            object.__setattr__(self, "reveals", (BODY, EVALUATION, FRONT))

    @property
    def sampler(self) -> Sampler:
        """Where preferences come from."""
        return Uniform()

    @property
    def phases(self) -> Phases:
        """The two phases of local training."""
        return Phases(
            self.body, self.front, self.local, self.sampler,
            self.body_share, self.n_preferences, self.eps,
        )  # fmt: skip

    def start(self, federation: Federation) -> Server:
        """The first body."""
        self.body.check(federation.population.client(0).split("train").x[:4].to(self.task.device))
        return {"params": self.body.first()}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The first hypernetwork, the same at every client, and the rounds that it took part in."""
        beta = self.front.hypernetwork.first(seeded(self.task.seed, "hypernetwork"))
        return {"beta": beta.to(self.task.device), "rounds": beta.new_zeros(())}

    def remembered(self, state: Tree) -> Tree:
        """What the sampler starts a round with."""
        return ()

    def kept(self, memory: Tree) -> dict[str, Tree]:
        """The part of a client's state that follows from the sampler's memory."""
        return {}

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of body and head, and noise for the head's preferences."""
        return self.phases.draw(generator, size)

    def draw_refresh(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The same for the head alone, after the last round."""
        return self.phases.draw_head(generator, size, self.refresh)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: train the body, then the head behind it; sends the body's change."""
        old, lr = broadcast["params"], broadcast["lr"]
        new = self.phases.trained_body(old, state["beta"], data, draws, lr)  # Eq. 11
        state = self._with_head(new, lr, state, data, draws)
        return {"update": trees.subtract(new, old)}, {**state, "rounds": state["rounds"] + 1}

    def refine(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of `refresh`: train the head behind the final body; sends nothing."""
        return {}, self._with_head(broadcast["params"], broadcast["lr"], state, data, draws)

    def _with_head(
        self, params: Params, lr: Tensor, state: Tree, data: Examples, draws: Tree
    ) -> dict[str, Tree]:
        """The client's state with its hypernetwork trained behind a body (Eq. 12)."""
        beta, memory = self.phases.trained_head(
            params, state["beta"], self.remembered(state), data, draws, lr
        )
        return {**state, "beta": beta, **self.kept(memory)}

    def share(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function after the last round: send the hypernetwork."""
        trained = (state["rounds"] > 0).to(torch.float64)
        return {"hypernetwork": state["beta"], "trained": trained}, state

    def take_over(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: one that never took part keeps the mean hypernetwork as its own."""
        beta = torch.where(state["rounds"] > 0, state["beta"], broadcast["beta"])
        return {}, {**state, "beta": beta}

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, and average the bodies (Eq. 15)."""
        rate = self.local.rate(federation.round, federation.rounds)
        mean = federation.mean(
            self.train, {"params": server["params"], "lr": rate},
            weights=self.weighting, draws=self.draw,
        )  # fmt: skip
        return {**server, "params": trees.add(server["params"], mean.value["update"])}

    def finish(self, federation: Federation, server: Server) -> Server:
        """Refresh the heads where asked, and take the mean of the hypernetworks."""
        if self.refresh:
            rate = self.local.rate(max(0, federation.rounds - 1), federation.rounds)
            federation.map(
                self.refine, {"params": server["params"], "lr": rate},
                draws=self.draw_refresh, clients=federation.everyone,
            )  # fmt: skip
        return self.united(federation, server) if self.average else server

    def united(self, federation: Federation, server: Server) -> Server:
        """The federation's hypernetwork: the mean of those that were trained."""
        mean = federation.mean(
            self.share, {}, clients=federation.everyone,
            weights={"hypernetwork": _trained, "trained": "uniform"},
        ).value  # fmt: skip
        self.hand_out(federation, mean["hypernetwork"], float(mean["trained"]))
        return {**server, "beta": mean["hypernetwork"]}

    def hand_out(self, federation: Federation, beta: Tensor, trained: float) -> None:
        """Give the mean hypernetwork to clients that never took part.

        Their own is the one that they drew at the start. `trained` is the share of the others.
        """
        if trained < 1:
            federation.map(self.take_over, {"beta": beta}, clients=federation.everyone)

    def united_in(self, server: Server) -> bool:
        """Once the clients' hypernetworks were united."""
        return "beta" in server

    def deployed(self, server: Server) -> Tree:
        """The body, and the federation's hypernetwork once there is one."""
        return dict(server)

    def hypernetworks(self, deployed: Tree, state: Tree, rays: Tensor) -> Tensor:
        """The client's own, or the federation's; evaluations during a run know only the former."""
        if trees.leaves(state) and (self.deploy == "own" or not self.united_in(deployed)):
            return state["beta"]  # type: ignore[no-any-return]
        if not self.united_in(deployed):
            raise ConfigError(
                f"{self.name}: there is no global model, which takes average=True; name a client, "
                "or use deploy='own'"
            )
        return deployed["beta"]  # type: ignore[no-any-return]

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """A client that took no part uses the federation's hypernetwork."""
        return ()


def _trained(uploads: Tree, _: Tensor) -> Tensor:
    weights: Tensor = uploads["trained"]
    return weights
