"""What methods that match neurons share: local networks, their part of the global one, labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.matching import Array, Matched, Prior, match
from evenfed.core.perceptron import Dense, cut, dense_layers
from evenfed.core.randomness import numpy_generator
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.exchange import PerClient
from evenfed.engines.federation import Federation
from evenfed.methods.base import Need, Reveal, Server, check_choice
from evenfed.methods.training import TrainsLocally

LABELS = Reveal("train", "labels", "counts", "numbers of examples by label", False)


@dataclass(frozen=True)
class MatchesNeurons(TrainsLocally):
    """A method whose server matches the neurons of local networks.

    Parameters
    ----------
    sigma : float
        Variance of local neurons around their global one: the larger, the more are matched.
    sigma0 : float
        Variance of global neurons around 0. Small ones shrink what is averaged.
    gamma : float
        Mass of the process: the larger, the more global neurons.
    sweeps : int
        Times that every network is matched again.
    max_width : int
        Largest number of global neurons in a layer.
    init : {"common", "independent"}
        First weights of the clients: the same for all, or draws of their own.
    """

    needs: ClassVar[tuple[Need, ...]] = ("perceptron",)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "sigma": (0.1, 0.5, 1.0),
        "sigma0": (1.0, 10.0),
        "gamma": (0.001, 1.0, 7.0),
    }

    sigma: float = 1.0
    sigma0: float = 10.0
    gamma: float = 1.0
    sweeps: int = 5
    max_width: int = 700
    init: Literal["common", "independent"] = "common"

    def __post_init__(self) -> None:
        for option in ("sigma", "sigma0", "gamma"):
            if not getattr(self, option) > 0:
                raise ConfigError(f"{self.name}: {option} must be greater than 0")
        if self.sweeps < 0 or self.max_width < 1:
            raise ConfigError(f"{self.name}: sweeps must be at least 0 and max_width at least 1")
        check_choice(self.name, "init", self.init, ("common", "independent"))

    def bound(self, task: Task, first: Params) -> Self:
        """As of any method; refuses a limit below the width of the local networks."""
        method = super().bound(task, first)
        widest = max(len(first[layer.weight]) for layer in method.layers[:-1])
        if widest > self.max_width:
            raise ConfigError(
                f"{self.name}: max_width is {self.max_width}, but a hidden layer has {widest} "
                "neurons"
            )
        return method

    @cached_property
    def layers(self) -> tuple[Dense, ...]:
        """The layers of the perceptron, from input to output."""
        return dense_layers(self.name, self.task.template)

    def start(self, federation: Federation) -> Server:
        """The first model, as large as the local ones, and everybody's part of it: all."""
        everyone = [
            torch.arange(len(self.first[layer.weight])).repeat(len(federation), 1)
            for layer in self.layers[:-1]
        ]
        return {"params": self.first, "places": tuple(everyone), "matched": torch.tensor(0)}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The client's own network."""
        if self.init == "common":
            return {"params": self.first}
        seed = int(torch.randint(2**62, (), generator=generator))
        drawn = replace(self.task, seed=seed).init()
        if all(torch.equal(drawn[name], self.first[name]) for name in drawn):
            raise ConfigError(
                f"{self.name}: init='independent' draws weights anew, but this model has weights "
                "of its own; pass a function that makes one, or use init='common'"
            )
        return {"params": drawn}

    def module(self, deployed: Tree, state: Tree) -> nn.Module:
        """The global network as a plain module in evaluation mode, as wide as it has grown."""
        module = copy.deepcopy(self.task.template)
        for layer in self.layers:
            linear = module.get_submodule(layer.weight.rpartition(".")[0])
            for name, weight in layer.of(deployed).items():
                linear.register_parameter(name.rpartition(".")[2], nn.Parameter(weight.clone()))
            linear.out_features, linear.in_features = deployed[layer.weight].shape
        return module.eval()

    def labels(self, data: Examples) -> Tensor:
        """Examples by label `(C,)`; their number `(1,)` for one output."""
        real = data.mask.to(torch.float32)
        if len(self.first[self.layers[-1].weight]) == 1:
            return real.sum().unsqueeze(0)
        codes = torch.arange(self.task.classes, device=data.y.device)
        return ((data.y.unsqueeze(-1) == codes) * real.unsqueeze(-1)).sum(0)

    def shares(self, labels: Tensor) -> Array:
        """Share of each client in the examples of each output `(J, outputs)`; equal if none."""
        counts = labels.double().cpu().numpy()
        total = counts.sum(0)
        return np.where(total > 0, counts / np.maximum(total, 1), 1 / len(counts))

    def local_models(self, federation: Federation, server: Server) -> dict[str, Tree]:
        """The broadcast of a round: each client's part of the global network, once there is one."""
        broadcast: dict[str, Tree] = {"lr": self.local.rate(federation.round, federation.rounds)}
        if not server["matched"]:
            return broadcast
        rows = np.argsort(federation.everyone)[federation.cohort]
        parts = [
            cut(self.layers, server["params"], [places[row] for places in server["places"]])
            for row in rows
        ]
        return {**broadcast, "params": PerClient(trees.stack(parts))}

    def trained_here(self, broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Params:
        """The client's network after local training, from its part of the global one."""
        begin = broadcast.get("params", state["params"])
        return self.trained({**broadcast, "params": begin}, data, draws)

    def matching(
        self, federation: Federation, layer: int, networks: Array, precisions: Array
    ) -> Matched:
        """Match networks `(J, L, D)` with precisions `(J, D)`."""
        width = networks.shape[-1]
        prior = Prior(np.zeros(width), np.full(width, 1 / self.sigma0), self.gamma, self.max_width)
        rng = numpy_generator(federation.seed, f"matching/{layer}", federation.round)
        return match(list(networks), list(precisions), prior, sweeps=self.sweeps, rng=rng)

    def places_after(
        self, federation: Federation, clients: NDArray[np.int64], matched: list[Matched]
    ) -> tuple[Tensor, ...]:
        """Everybody's part of the new network `(K, L_n)` for each hidden layer.

        Clients whose network was not matched get the neurons that most networks have.
        """
        rows = np.argsort(federation.everyone)[clients]
        result = []
        for found in matched:
            width = len(found.places[0])
            common = np.sort(np.argsort(-found.counts, kind="stable")[:width])
            places = np.tile(common, (len(federation), 1))
            places[rows] = np.stack(found.places)
            result.append(torch.from_numpy(places))
        return tuple(result)


def with_bias(layer: Dense, params: Params) -> Array:
    """Rows of weights and, last, the bias `(J, L, D)` of stacked layers."""
    weight = params[layer.weight].double().cpu().numpy()
    if layer.bias is None:
        return weight
    bias = params[layer.bias].double().cpu().numpy()
    return np.concatenate([weight, bias[..., None]], -1)


def without_bias(layer: Dense, rows: Array, like: Params) -> Params:
    """The inverse of `with_bias`, in the precision of `like`."""
    dtype, device = like[layer.weight].dtype, like[layer.weight].device
    weight = rows if layer.bias is None else rows[..., :-1]
    made = {layer.weight: torch.from_numpy(np.ascontiguousarray(weight)).to(device, dtype)}
    if layer.bias is not None:
        made[layer.bias] = torch.from_numpy(rows[..., -1].copy()).to(device, dtype)
    return made
