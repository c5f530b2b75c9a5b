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

Ours differs from the public code on purpose: the fairness loss is the absolute covariance with
the probability, not a per-sample square on logits; `g_tch` is the maximum (`logsumexp` is an
option); `lambda` is held `eps` away from 0; the mean counts every client; each round and client has
its own draws; the written classifier has a bias for each class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.batches import Batches, draw_batches
from evenfed.core.body import Body
from evenfed.core.descent import descend
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.fairness_loss import FAIRNESS, Fairness
from evenfed.core.front_loss import FrontLoss
from evenfed.core.hypernetwork import Hypernetwork
from evenfed.core.local import LocalTraining
from evenfed.core.preferences import Scalarization, rays
from evenfed.core.randomness import generator as seeded
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Need, Reveal, Server, check_choice
from evenfed.methods.head_training import BodyStep, HeadStep, latent
from evenfed.methods.preferred import FRONT, Preferred
from evenfed.methods.sampling import Sampler, Uniform

BODY = Reveal(
    "train", "update", "part", "change of the shared body by the client's training, every round",
    True,
)  # fmt: skip
SHARED = (
    Reveal("share", "hypernetwork", "network", "the client's hypernetwork, once at the end", True),
    Reveal("share", "trained", "scalar", "whether the client ever took part in training", True),
)


@dataclass(frozen=True)
class PraFFL(Preferred):
    """PraFFL.

    Parameters
    ----------
    local : LocalTraining
        Local training of a round, for body and head together.
    body_share : float
        Share of the local epochs (or steps) that train the body; the others train the head.
    n_preferences : int
        Preferences drawn in each step of the head (N).
    fairness : {"covariance", "demographic_parity", "equal_opportunity", "squared_covariance"}
        The fairness loss, see `core.fairness_loss`.
    scalarization : {"tchebycheff", "logsumexp"}
        Eq. 3, or its smooth upper bound.
    eps : float
        Distance of `lambda` from 0 and 1.
    latent : int
        Width of one more layer behind the model's body; 0: the features before its last layer.
    head, activation : tuple of int, {"none", "relu"}
        Hidden layers of the classifier that the hypernetwork writes, and what lies between them.
    trunk : tuple of int
        Layers of the hypernetwork.
    refresh : int
        Epochs that every client trains its head after the last round, behind the final body.
    weighting : {"uniform", "size"}
        Weights of the clients in the mean of the bodies.
    average : bool
        Whether the clients send their hypernetworks after the last round for their mean, the
        federation's own family of models. Without it there is none.
    preference, deploy
        The model in use, see `Preferred`.
    """

    name: ClassVar[str] = "praffl"
    title: ClassVar[str] = "PraFFL"
    paper: ClassVar[str] = "Ye et al., KDD 2025"
    reveals: ClassVar[tuple[Reveal, ...]] = (BODY, *SHARED, EVALUATION, FRONT)
    needs: ClassVar[tuple[Need, ...]] = ("groups", "classes")

    local: LocalTraining = field(
        default_factory=lambda: LocalTraining(
            lr=0.005, batch=128, epochs=30, optimizer="adam", weight_decay=1e-4
        )
    )
    body_share: float = 16 / 30
    n_preferences: int = 16
    fairness: Fairness = "covariance"
    scalarization: Scalarization = "tchebycheff"
    eps: float = 0.01
    latent: int = 0
    head: tuple[int, ...] = (4,)
    activation: Literal["none", "relu"] = "none"
    trunk: tuple[int, ...] = (4, 4)
    refresh: int = 0
    weighting: Literal["uniform", "size"] = "uniform"
    average: bool = True

    body: Body = field(init=False, repr=False, compare=False)
    front: FrontLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "fairness", self.fairness, FAIRNESS)
        check_choice(self.name, "scalarization", self.scalarization, ("tchebycheff", "logsumexp"))
        check_choice(self.name, "activation", self.activation, ("none", "relu"))
        check_choice(self.name, "weighting", self.weighting, ("uniform", "size"))
        if not 0 < self.body_share < 1:
            raise ConfigError(f"{self.name}: body_share must be in (0, 1), not {self.body_share}")
        if not 0 < self.eps < 0.5:
            raise ConfigError(f"{self.name}: eps must be in (0, 0.5), but is {self.eps}")
        if self.n_preferences < 2:
            raise ConfigError(f"{self.name}: n_preferences must be at least 2")
        if self.latent < 0 or self.refresh < 0 or min((1, *self.head, *self.trunk)) < 1:
            raise ConfigError(
                f"{self.name}: latent and refresh must not be negative, widths of head and trunk "
                "must be at least 1"
            )
        if self.local.regularized:
            raise ConfigError(f"{self.name} does not go with local.regularizer='ser'")

    def bound(self, task: Task, first: Params) -> Self:
        """With the body of the task's model, and the shape of the hypernetworks."""
        method = super().bound(task, first)
        body = Body(task, self.latent)
        net = Hypernetwork(body.width, body.outputs, self.head, self.trunk, self.activation)
        object.__setattr__(method, "body", body)
        front = FrontLoss(task.loss_rule, task.groups, net, self.fairness, self.scalarization)
        object.__setattr__(method, "front", front)
        return method

    @property
    def sampler(self) -> Sampler:
        """Where preferences come from."""
        return Uniform()

    @property
    def head_step(self) -> HeadStep:
        """One step of the head."""
        return HeadStep(self.front, self.local.rule, self.sampler, self.eps)

    def start(self, federation: Federation) -> Server:
        """The first body."""
        self.body.check(federation.population.client(0).split("train").x[:4].to(self.task.device))
        return {"params": self.body.first()}

    def advice(self, federation: Federation) -> list[str]:
        """Warn of a fairness loss that is none."""
        if self.fairness != "squared_covariance":
            return []
        return [
            f"{self.name}: squared_covariance is zero only for a constant score, whatever the "
            "groups: it measures the spread of the score, not fairness"
        ]

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

    @property
    def shares(self) -> tuple[int, int]:
        """Epochs (or steps) of body and head, at least one each."""
        total = self.local.steps or self.local.epochs
        body = max(1, round(total * self.body_share))
        return body, max(1, total - body)

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of body and head, and noise for the head's preferences."""
        body, head = self.shares
        return {
            "body": self._batches(generator, size, body),
            **self._draw_head(generator, size, head),
        }

    def draw_refresh(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The same for the head alone, after the last round."""
        return self._draw_head(generator, size, self.refresh)

    def _draw_head(self, generator: torch.Generator, size: int, amount: int) -> dict[str, Tree]:
        batches = self._batches(generator, size, amount)
        noise = self.sampler.draw(generator, batches.steps, self.n_preferences)
        return {"head": batches, "noise": noise}

    def _batches(self, generator: torch.Generator, size: int, amount: int) -> Batches:
        steps = amount if self.local.steps else 0
        return draw_batches(generator, size, batch=self.local.batch, epochs=amount, steps=steps)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: train the body, then the head behind it; sends the body's change."""
        half = torch.full((1,), 0.5, dtype=state["beta"].dtype, device=state["beta"].device)
        layers = self.front.hypernetwork.classifiers(state["beta"], rays(half, self.eps))
        new, _ = descend(  # Eq. 11
            BodyStep(self.body, self.front), broadcast["params"], data, draws["body"],
            optimizer=self.local.rule, lr=broadcast["lr"], context=layers,
        )  # fmt: skip
        state = self._with_head(new, broadcast["lr"], state, data, draws)
        update = trees.subtract(new, broadcast["params"])
        return {"update": update}, {**state, "rounds": state["rounds"] + 1}

    def refine(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of `refresh`: train the head behind the final body; sends nothing."""
        return {}, self._with_head(broadcast["params"], broadcast["lr"], state, data, draws)

    def _with_head(
        self, params: Params, lr: Tensor, state: Tree, data: Examples, draws: Tree
    ) -> dict[str, Tree]:
        """The client's state with its hypernetwork trained behind a body (Eq. 12)."""
        beta, memory = self.head_step.trained(
            state["beta"], self.remembered(state), latent(self.body, params, data),
            draws["head"], draws["noise"], lr,
        )  # fmt: skip
        return {**state, "beta": beta, **self.kept(memory)}

    def share(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function after the last round: send the hypernetwork."""
        trained = (state["rounds"] > 0).to(torch.float64)
        return {"hypernetwork": state["beta"], "trained": trained}, state

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
        mean = federation.mean(self.share, {}, clients=federation.everyone, weights=_trained)
        return {**server, "beta": mean.value["hypernetwork"]}

    def united_in(self, server: Server) -> bool:
        """Once the clients' hypernetworks were united."""
        return "beta" in server

    def deployed(self, server: Server) -> Tree:
        """The body, and the federation's hypernetwork once there is one."""
        return dict(server)

    def hypernetworks(self, deployed: Tree, state: Tree, rays: Tensor) -> Tensor:
        """The hypernetwork for rays `(N, 2)`: one `(size,)`, or one a ray `(N, size)`."""
        if self.deploy == "own" and trees.leaves(state):
            return state["beta"]  # type: ignore[no-any-return]
        if "beta" not in deployed:
            raise ConfigError(
                f"{self.name}: there is no global model before the end of a run of average=True; "
                "name a client, or use deploy='own'"
            )
        return deployed["beta"]  # type: ignore[no-any-return]

    def family(self, deployed: Tree, state: Tree, x: Tensor, preferences: Tensor) -> Tensor:
        """Outputs of the models of all preferences, in one product."""
        asked = rays(preferences, self.eps)
        beta = self.hypernetworks(deployed, state, asked)
        layers = self.front.hypernetwork.classifiers(beta, asked)
        return self.front.outputs(layers, self.body.features(deployed["params"], x))

    def module(self, deployed: Tree, state: Tree) -> nn.Module:
        """The model of the preference in use as a plain module."""
        asked = rays(torch.tensor([self.preference]), self.eps).to(self.task.device)
        beta = self.hypernetworks(deployed, state, asked)
        layers = self.front.hypernetwork.classifiers(beta, asked)
        return self.body.module(deployed["params"], self.front.hypernetwork.module(layers))

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """Weights of the model of the preference in use, as those of `module`."""
        return dict(self.module(deployed, state).named_parameters())

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """A client that took no part uses the federation's hypernetwork."""
        return ()


def _trained(uploads: Tree, _: Tensor) -> Tensor:
    weights: Tensor = uploads["trained"]
    return weights
