"""Models of all preferences as a shared body and classifiers that a hypernetwork writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from evenfed.core.body import Body
from evenfed.core.errors import ConfigError
from evenfed.core.fairness_loss import FAIRNESS, Fairness
from evenfed.core.front_loss import FrontLoss
from evenfed.core.hypernetwork import Hypernetwork, Layers
from evenfed.core.preferences import Scalarization, rays
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Need, check_choice
from evenfed.methods.preferred import Preferred


@dataclass(frozen=True)
class Written(Preferred):
    """A family of models `(psi, h_beta(lambda))`, with the losses that train it.

    Parameters
    ----------
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
    """

    needs: ClassVar[tuple[Need, ...]] = ("groups", "classes")

    fairness: Fairness = "covariance"
    scalarization: Scalarization = "tchebycheff"
    eps: float = 0.01
    latent: int = 0
    head: tuple[int, ...] = (4,)
    activation: Literal["none", "relu"] = "none"
    trunk: tuple[int, ...] = (4, 4)

    body: Body = field(init=False, repr=False, compare=False)
    front: FrontLoss = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "fairness", self.fairness, FAIRNESS)
        check_choice(self.name, "scalarization", self.scalarization, ("tchebycheff", "logsumexp"))
        check_choice(self.name, "activation", self.activation, ("none", "relu"))
        if not 0 < self.eps < 0.5:
            raise ConfigError(f"{self.name}: eps must be in (0, 0.5), but is {self.eps}")
        if self.latent < 0 or min((1, *self.head, *self.trunk)) < 1:
            raise ConfigError(
                f"{self.name}: latent must not be negative, widths of head and trunk must be at "
                "least 1"
            )

    def bound(self, task: Task, first: Params) -> Self:
        """With the body of the task's model, and the shape of the hypernetworks."""
        method = super().bound(task, first)
        body = Body(task, self.latent)
        net = Hypernetwork(body.width, body.outputs, self.head, self.trunk, self.activation)
        front = FrontLoss(task.loss_rule, task.groups, net, self.fairness, self.scalarization)
        object.__setattr__(method, "body", body)
        object.__setattr__(method, "front", front)
        return method

    def advice(self, federation: Federation) -> list[str]:
        """Warn of a fairness loss that is none."""
        if self.fairness != "squared_covariance":
            return []
        return [
            f"{self.name}: squared_covariance is zero only for a constant score, whatever the "
            "groups: it measures the spread of the score, not fairness"
        ]

    def hypernetworks(self, deployed: Tree, state: Tree, rays: Tensor) -> Tensor:
        """The hypernetwork for rays `(N, 2)`: one `(size,)`, or one a ray `(N, size)`."""
        raise NotImplementedError

    def asked(self, deployed: Tree, preferences: Tensor) -> dict[str, Tree]:
        """The federation's own classifiers are written once, at the server."""
        if self.deploy == "own":
            return {"deployed": deployed, "preferences": preferences}
        layers = self._classifiers(deployed, (), preferences)
        body = {"params": deployed["params"]}
        return {"deployed": body, "preferences": preferences, "layers": layers}

    def written(self, asked: Tree, state: Tree) -> Tree:
        """The classifiers of all preferences."""
        if "layers" in asked:
            return asked["layers"]
        return self._classifiers(asked["deployed"], state, asked["preferences"])

    def _classifiers(self, deployed: Tree, state: Tree, preferences: Tensor) -> Layers:
        on = rays(preferences, self.eps)
        net = self.front.hypernetwork
        return net.collapsed(net.classifiers(self.hypernetworks(deployed, state, on), on))

    def read(self, asked: Tree, written: Tree, x: Tensor) -> Tensor:
        """Outputs of all models, in one product."""
        features = self.body.features(asked["deployed"]["params"], x)
        out = self.front.hypernetwork.outputs_of(written, features)
        return out.squeeze(-1) if out.shape[-1] == 1 else out

    def decisive(self, written: Tree) -> Tree:
        """Of two classes, the difference of the logits."""
        *before, (weight, bias) = written
        if weight.shape[1] == 2:
            weight, bias = weight[:, 1:] - weight[:, :1], bias[:, 1:] - bias[:, :1]
        return [*before, (weight, bias)]

    def module(self, deployed: Tree, state: Tree) -> nn.Module:
        """The model of the preference in use as a plain module."""
        one = torch.tensor([self.preference], device=self.task.device)
        layers = self._classifiers(deployed, state, one)
        return self.body.module(deployed["params"], self.front.hypernetwork.module(layers))

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """Weights of the model of the preference in use, where the task's own model can be it."""
        one = torch.tensor([self.preference], device=self.task.device)
        layers = self._classifiers(deployed, state, one)
        merged = None
        if len(layers) == 1:
            merged = self.body.merged(deployed["params"], layers[0][0][0], layers[0][1][0])
        if merged is None:
            raise ConfigError(
                f"{self.name}: with these networks a preference's model is not of the task's own "
                "kind; result.model(preference=...) is it"
            )
        return merged
