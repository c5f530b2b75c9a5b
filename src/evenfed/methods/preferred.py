"""Methods that hold a model for every preference: how such a family is asked, evaluated, used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.methods.base import Method, Reveal, Server, check_choice

FRONT = Reveal(
    "evaluate_front", "counts", "counts",
    "numbers of examples by group, label and prediction, for each preference of a front", True,
)  # fmt: skip
_EVALUATED = 1 << 18
"""Predictions of a client in one pass of an evaluation: bounds its memory."""


@dataclass(frozen=True)
class Preferred(Method):
    """A method with a model for every preference in [0, 1].

    Parameters
    ----------
    preference : float
        The preference of the one model that ordinary predictions and evaluations use.
    deploy : {"own", "global"}
        Whose models a client uses: its own, or the federation's.
    """

    preference: float = 0.5
    deploy: Literal["own", "global"] = "own"

    def __post_init__(self) -> None:
        check_choice(self.name, "deploy", self.deploy, ("own", "global"))
        if not 0 <= self.preference <= 1:
            raise ConfigError(
                f"{self.name}: preference must be in [0, 1], but is {self.preference}"
            )

    def asked(self, deployed: Tree, preferences: Tensor) -> dict[str, Tree]:
        """What the server sends to ask about the models of preferences `(N,)`."""
        return {"deployed": deployed, "preferences": preferences}

    def written(self, asked: Tree, state: Tree) -> Tree:
        """The part of those models that depends on the preference, made once for all examples."""
        raise NotImplementedError

    def read(self, asked: Tree, written: Tree, x: Tensor) -> Tensor:
        """Outputs of those models for `x` `(n, ...)`: `(N, n, ...)`."""
        raise NotImplementedError

    def decisive(self, written: Tree) -> Tree:
        """The same, cheaper, where only the predicted classes count."""
        return written

    def united_in(self, server: Server) -> bool:
        """Whether the server's state holds a family of the federation's own."""
        return True

    def outputs(self, deployed: Tree, state: Tree, x: Tensor) -> Tensor:
        """Outputs of the model of the one preference in use."""
        one = torch.full((1,), self.preference, dtype=torch.float32, device=x.device)
        asked = {"deployed": deployed, "preferences": one}
        return self.read(asked, self.written(asked, state), x)[0]

    def evaluate_front(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: counts `(N, G, C, C)` of the models of all preferences at once.

        `broadcast` is what `asked` returns.
        """
        written = self.decisive(self.written(broadcast, state))
        rows = max(1, _EVALUATED // len(broadcast["preferences"]))
        total: Tensor | None = None
        for begin in range(0, max(len(data.y), 1), rows):
            part = trees.map(lambda t, a=begin: t[a : a + rows], data)
            counted = self._count(self.read(broadcast, written, part.x), part).to(torch.float64)
            total = counted if total is None else total + counted
        return {"counts": total}, state

    def _count(self, outputs: Tensor, data: Examples) -> Tensor:
        """`(N, G, C, C)` of outputs `(N, n, ...)`: products with indicators, exact in float32."""
        groups, classes = self.task.groups, self.task.classes
        cell = data.group * classes + data.y
        codes = torch.arange(groups * classes, device=cell.device)
        member = (cell.unsqueeze(-1) == codes).to(torch.float32) * data.weight.unsqueeze(-1)
        if outputs.ndim == 2 or classes == 2:
            said = outputs if outputs.ndim == 2 else outputs[..., 1] - outputs[..., 0]
            columns = [(said > 0).to(torch.float32) @ member]
        else:
            predicted = outputs.argmax(-1)
            columns = [(predicted == c).to(torch.float32) @ member for c in range(1, classes)]
        rest = member.sum(0) - torch.stack(columns).sum(0)
        counts = torch.stack([rest, *columns], -1)  # (N, G * C, C)
        return counts.reshape(-1, groups, classes, classes)
