"""HetPFL: PraFFL with preferences sampled where they help, and a fusion for all clients' data.

Ye, Tang, "Learning Heterogeneous Performance-Fairness Trade-offs in Federated Learning"
(IJCAI 2025).

Symbols beside those of `praffl`: `alpha_k` client k's parameters of the Dirichlet distribution
from which it samples preferences, `HVC` the area that one loss vector adds to that of its step
(Definition 1) up to the reference r, `phi` the weights of the FusionNet `W_phi`.

PSA (`psa`): each step of the head samples its N preferences from `p(lambda | alpha_k)`, then moves
`alpha_k` against `g = -(1/N) sum_i HVC_i d log p(lambda_i | alpha_k) / d alpha_k` (Eqs. 13, 14).
Since `HV(S without i)` does not depend on `lambda_i`, the expectation of g is `-1/N` times the
gradient of the expected area `HV(S)`: HVC is a baseline by itself. `baseline` subtracts one more.

PHF (`phf`), after the last round: `beta(lambda) = sum_k W_phi(lambda)_k beta_k`, where phi
minimises the mean over preferences and clients of `g_tch` on each client's data (Eqs. 10, 16).
`server` is the paper's: latent features, labels and groups leave the clients. `federated` takes
the same steps from gradients of phi that clients compute at home. `tuned` is the public code's:
no FusionNet but steps on the mean hypernetwork itself, with the rows at the server. `none`: the
mean.

Without both it is PraFFL, bit for bit. Ours differs from the public code on purpose: as `praffl`,
and every step of the head samples and adapts (there, one an epoch), alpha may fall below 1, and
the FusionNet is there at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.hypernetwork import FusionNet
from evenfed.core.optimizer import Optimizer
from evenfed.core.preferences import rays
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice
from evenfed.methods.fusion import Fusion
from evenfed.methods.head_training import latent
from evenfed.methods.praffl import BODY, SHARED, PraFFL
from evenfed.methods.preferred import FRONT
from evenfed.methods.sampling import Adaptive, Sampler

HYPERNETWORKS = tuple(Reveal(r.function, r.part, r.size, r.meaning, False) for r in SHARED)
GRADIENT = Reveal(
    "fuse", "gradient", "network", "gradients of the FusionNet, after the last round", True
)
ROWS = tuple(
    Reveal("send_rows", part, "rows", f"{what} of its training examples, once at the end", False)
    for part, what in (
        ("features", "latent features"),
        ("labels", "labels"),
        ("groups", "groups"),
        ("real", "number"),
    )
)


@dataclass(frozen=True)
class HetPFL(PraFFL):
    """HetPFL.

    Parameters
    ----------
    psa : bool
        Whether clients adapt the distribution of their preferences.
    phf : {"federated", "server", "tuned", "none"}
        How the clients' hypernetworks become the federation's.
    alpha : float
        First value of both parameters of the distribution; 1 is uniform.
    alpha_bounds : tuple of two floats
        Where they are held; below 1 both ends can be favoured.
    alpha_lr, alpha_optimizer : float, {"adam", "sgd"}
        Rate `kappa` and rule of their steps; Adam's memory lasts over the rounds.
    baseline : {"none", "leave_one_out"}
        What is subtracted from HVC: nothing (Eq. 13), or the others' mean HVC without the point.
    fusion_hidden : tuple of int
        Hidden layers of the FusionNet.
    fusion_steps, fusion_lr, fusion_preferences : int, float, int
        Adam steps on phi, their rate, and the preferences of a step.

    The other options are those of `PraFFL`.
    """

    name: ClassVar[str] = "hetpfl"
    title: ClassVar[str] = "HetPFL"
    paper: ClassVar[str] = "Ye and Tang, IJCAI 2025"
    reveals: ClassVar[tuple[Reveal, ...]] = (BODY, *HYPERNETWORKS, GRADIENT, EVALUATION, FRONT)

    psa: bool = True
    phf: Literal["federated", "server", "tuned", "none"] = "federated"
    alpha: float = 1.05
    alpha_bounds: tuple[float, ...] = (0.5, 5.0)
    alpha_lr: float = 0.05
    alpha_optimizer: Literal["adam", "sgd"] = "adam"
    baseline: Literal["none", "leave_one_out"] = "none"
    fusion_hidden: tuple[int, ...] = (16,)
    fusion_steps: int = 200
    fusion_lr: float = 0.01
    fusion_preferences: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "phf", self.phf, ("federated", "server", "tuned", "none"))
        check_choice(self.name, "alpha_optimizer", self.alpha_optimizer, ("adam", "sgd"))
        check_choice(self.name, "baseline", self.baseline, ("none", "leave_one_out"))
        bounds = self.alpha_bounds
        if len(bounds) != 2 or not 0 < bounds[0] <= self.alpha <= bounds[1]:
            raise ConfigError(
                f"{self.name}: alpha_bounds are two numbers with 0 < low <= alpha <= high, not "
                f"{bounds} with alpha {self.alpha}"
            )
        if min(self.alpha_lr, self.fusion_lr) <= 0:
            raise ConfigError(f"{self.name}: alpha_lr and fusion_lr must be greater than 0")
        if min(self.fusion_steps, self.fusion_preferences, *self.fusion_hidden, 1) < 1:
            raise ConfigError(
                f"{self.name}: fusion_steps, fusion_preferences, fusion_hidden must be at least 1"
            )
        if not self.average and self.phf != "none":
            raise ConfigError(f"{self.name}: average=False goes with phf='none' only")
        fused: dict[str, tuple[Reveal, ...]] = {
            "none": SHARED if self.average else (),
            "federated": (*HYPERNETWORKS, GRADIENT),
        }
        sent = fused.get(self.phf, (*HYPERNETWORKS, *ROWS))
        object.__setattr__(self, "reveals", (BODY, *sent, EVALUATION, FRONT))

    @property
    def sampler(self) -> Sampler:
        """PSA, or uniform preferences."""
        if not self.psa:
            return super().sampler
        rule = Optimizer(self.alpha_optimizer)
        return Adaptive(rule, self.alpha_lr, self.alpha_bounds, self.baseline)

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """PraFFL's, and the client's distribution of preferences."""
        state = super().client_state(generator, size)
        if not self.psa:
            return state
        alpha = torch.full((2,), self.alpha, device=self.task.device)
        memory = Optimizer(self.alpha_optimizer).memory(alpha)
        return {**state, "alpha": alpha, "alpha_memory": memory}

    def remembered(self, state: Tree) -> Tree:
        """Alpha and its optimizer, and a reference of (1, 1)."""
        if not self.psa:
            return super().remembered(state)
        alpha = state["alpha"]
        return {
            "alpha": alpha,
            "optimizer": state["alpha_memory"],
            "reference": torch.ones_like(alpha),
        }

    def kept(self, memory: Tree) -> dict[str, Tree]:
        """Alpha and its optimizer."""
        if not self.psa:
            return super().kept(memory)
        return {"alpha": memory["alpha"], "alpha_memory": memory["optimizer"]}

    def advice(self, federation: Federation) -> list[str]:
        """Warn of rows that leave the clients."""
        found = super().advice(federation)
        if self.phf in ("server", "tuned"):
            found.append(
                f"{self.name}: with phf='{self.phf}' latent features, labels and groups of all "
                "training examples leave the clients; features can tell much about an example. "
                "phf='federated' takes the same steps without them"
            )
        return found

    def united(self, federation: Federation, server: Server) -> Server:
        """Phase II: the federation's hypernetwork from those of the clients."""
        if self.phf == "none":
            return super().united(federation, server)
        return Fusion(self, federation, server).run()

    def fusion_loss(
        self, trained: Tree, hypernetworks: Tensor, data: Examples, preferences: Tensor
    ) -> Tensor:
        """Eq. 10 at one client: the mean over preferences of `g_tch`; `data.x` holds features."""
        asked = rays(preferences, self.eps)
        layers = self.front.hypernetwork.classifiers(
            self.fused({**trained, "hypernetworks": hypernetworks}, asked), asked
        )
        return self.front.mean(layers, data, asked)[0]

    def fused(self, united: Tree, rays: Tensor) -> Tensor:
        """The federation's hypernetwork: one a ray `(N, size)` by a FusionNet, or one for all."""
        if "phi" not in united:
            return united["beta"]  # type: ignore[no-any-return]
        net = FusionNet(len(united["hypernetworks"]), self.fusion_hidden)
        result: Tensor = net.weights(united["phi"], rays) @ united["hypernetworks"]
        return result

    def fuse(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of `federated`: the gradient of phi on the client's data (Eq. 16)."""
        features = latent(self.body, broadcast["params"], data)
        gradient = grad(self.fusion_loss)(
            broadcast["trained"], broadcast["hypernetworks"], features, broadcast["preferences"]
        )
        return {"gradient": gradient}, state

    def send_rows(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of `server` and `tuned`: latent features, labels and groups."""
        rows = latent(self.body, broadcast["params"], data)
        index = draws["index"]
        return {
            "features": rows.x[index],
            "labels": rows.y[index],
            "groups": rows.group[index],
            "real": draws["real"],
        }, state

    def united_in(self, server: Server) -> bool:
        """With a FusionNet, or as PraFFL."""
        return "phi" in server or super().united_in(server)

    def hypernetworks(self, deployed: Tree, state: Tree, rays: Tensor) -> Tensor:
        """The client's own, or the fused one."""
        if "phi" in deployed and (self.deploy == "global" or not trees.leaves(state)):
            return self.fused(deployed, rays)
        return super().hypernetworks(deployed, state, rays)
