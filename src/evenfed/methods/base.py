"""What a method is: hyperparameters, client functions, the server's round, prediction."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, NotApplicableError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.perceptron import dense_layers
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.data.dataset import Schema
from evenfed.engines.federation import Federation

Server = dict[str, Tree]
"""The server's state: a dict of trees of tensors, so that it can be written to a file."""

_EVALUATED_ROWS = 4096
"""Rows in one forward pass of an evaluation: bounds its memory."""


@dataclass(frozen=True)
class Reveal:
    """One thing that leaves a client, for the privacy ledger.

    Parameters
    ----------
    function, part : str
        Client function and key of its upload.
    size : {"model", "square", "part", "network", "scalar", "counts", "sums", "rows"}
        How much that is: as many numbers as the model has, their number squared, fewer, the
        weights of a network beside the model, one number (each for every one of the method's
        `models`), counts by group and label (for every model asked about), a few sums over the
        client's examples, or the examples themselves.
    meaning : str
        In plain words.
    summed : bool
        Whether the server needs only the (weighted) sum over clients, so that secure aggregation
        can hide each client's own value.
    """

    function: str
    part: str
    size: Literal["model", "square", "part", "network", "scalar", "counts", "sums", "rows"]
    meaning: str
    summed: bool


Need = Literal["groups", "classes", "two classes", "perceptron"]
"""What a method asks of the data: a sensitive attribute, class labels, or just two of them; and of
the model: fully connected layers alone."""

EVALUATION = Reveal(
    "evaluate", "counts", "counts",
    "numbers of examples and sums of losses by group, label and prediction, and of squared losses "
    "by group (of numbers, sums of powers and products of label and prediction), when evaluated",
    True,
)  # fmt: skip


class Certificate(Protocol):
    """What a method can prove, or measure, about its result."""

    def table(self) -> dict[str, Any]:
        """As plain values, for a file."""

    def sentences(self) -> list[str]:
        """In words, for a reader."""


@dataclass(frozen=True)
class Method:
    """A federated training algorithm with its hyperparameters.

    A subclass is a frozen dataclass whose fields are the hyperparameters. It implements `round`
    and its client functions, pure methods `(broadcast, state, data, draws) -> (upload, state)`
    whose upload is a dict. See CONTRIBUTING for a walk through one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    reveals: ClassVar[tuple[Reveal, ...]]
    exchanges: ClassVar[int] = 1
    """Exchanges a round, without evaluation."""
    personal: ClassVar[bool] = False
    """Whether each client ends with its own model."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What data and model must have; a run is refused before training where they have not."""
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Values worth trying when the method is tuned, by option (dotted: `local.ser.rho`).

    The paper's grid of the method's own options; ours where the paper names none. The rate of
    local training is there only where it takes part in the method: a study tunes it for all alike.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named sets of options, for `preset = "..."` where a method is built by name."""

    task: Task = field(init=False, repr=False, compare=False)
    first: Params = field(init=False, repr=False, compare=False)

    def bound(self, task: Task, first: Params) -> Self:
        """A copy that knows its task and the first weights, ready to run."""
        check_needs(self.name, self.needs, task)
        method = copy.copy(self)
        object.__setattr__(method, "task", task)
        object.__setattr__(method, "first", first)
        return method

    @property
    def batch_hint(self) -> int:
        """Rows of one local step, for the choice of chunks; 0: all."""
        local = getattr(self, "local", None)
        return local.batch if isinstance(local, LocalTraining) else 0

    @property
    def models(self) -> int:
        """Number of models that the clients train together."""
        return 1

    def start(self, federation: Federation) -> Server:
        """The server's state before the first round."""
        return {"params": self.first}

    def round(self, federation: Federation, server: Server) -> Server:
        """One round: any number of exchanges, then the new state."""
        raise NotImplementedError

    def finish(self, federation: Federation, server: Server) -> Server:
        """What remains to be done after the last round."""
        return server

    def certificate(
        self, federation: Federation, server: Server, schema: Schema
    ) -> Certificate | None:
        """What can be said about a finished run, by exchanges of its own; None: nothing."""
        return None

    def diagnostics(self, federation: Federation, server: Server, schema: Schema) -> dict[str, Any]:
        """Plain values about the trained state for the result file; only what the server knows."""
        return {}

    def advice(self, federation: Federation) -> list[str]:
        """Warnings about this choice of hyperparameters on these clients, before training."""
        return []

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """The state of a client that took no part in training, from its labelled examples."""
        return self.client_state(torch.Generator().manual_seed(0), len(data))

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """What a client of `size` examples holds before its first exchange."""
        return ()

    def deployed(self, server: Server) -> Tree:
        """What the server hands out for prediction."""
        return server["params"]

    def outputs(self, deployed: Tree, state: Tree, x: Tensor) -> Tensor:
        """The model's outputs at a client; default: the global model's."""
        return self.task.outputs(self.parameters(deployed, state), x)

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """Weights of the one model that a client uses."""
        return deployed  # type: ignore[no-any-return]

    def point(self, deployed: Tree, state: Tree) -> tuple[Tree, Callable[[Tree, Tensor], Tensor]]:
        """All weights by which a client predicts, and its outputs as a function of them and x.

        Those of its one model; methods that predict with several give all of them.
        """
        return self.parameters(deployed, state), self.task.outputs

    def module(self, deployed: Tree, state: Tree) -> nn.Module:
        """The one model that a client uses as a plain module in evaluation mode."""
        return self.loaded(self.parameters(deployed, state))

    def loaded(self, params: Params) -> nn.Module:
        """The task's module with given weights, in evaluation mode."""
        module = copy.deepcopy(self.task.template)
        module.load_state_dict({k: v.detach().clone() for k, v in params.items()}, strict=False)
        return module.eval()

    def evaluate(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of an evaluation: counts and loss sums, never rows."""
        n = data.y.shape[0]
        parts = []
        for begin in range(0, max(n, 1), _EVALUATED_ROWS):
            rows = trees.map(lambda t, a=begin: t[a : a + _EVALUATED_ROWS], data)
            parts.append(self.task.count(self.outputs(broadcast, state, rows.x), rows))
        total = reduce(lambda a, b: trees.add(a, b), parts)
        return {"counts": total}, state


def check_choice(owner: str, option: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise where an option has none of its possible values."""
    if value not in choices:
        known = ", ".join(f"'{c}'" for c in choices)
        raise ConfigError(f"{owner}: {option} is {value!r}; it may be {known}")


def check_not_negative(owner: str, **values: float) -> None:
    """Raise where a number is negative."""
    for option, value in values.items():
        if value < 0:
            raise ConfigError(f"{owner}: {option} must not be negative, but is {value}")


def check_needs(owner: str, needs: tuple[Need, ...], task: Task) -> None:
    """Raise where data or model have not what the method needs."""
    if {"classes", "two classes"} & set(needs) and task.kind == "regression":
        raise NotApplicableError(f"{owner} needs class labels: it does not do regression")
    if "two classes" in needs and task.classes != 2:
        raise NotApplicableError(
            f"{owner} needs two classes, label 1 the favourable one; the data have {task.classes}"
        )
    if "groups" in needs and task.groups < 2:
        raise NotApplicableError(
            f"{owner} needs groups: the data have no sensitive attribute with two levels or more"
        )
    if "perceptron" in needs:
        dense_layers(owner, task.template)
