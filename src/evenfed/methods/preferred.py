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
_EVALUATED = 1 << 17
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

    def family(self, deployed: Tree, state: Tree, x: Tensor, preferences: Tensor) -> Tensor:
        """Outputs of the models of preferences `(N,)` for `x` `(n, ...)`: `(N, n, ...)`."""
        raise NotImplementedError

    def united_in(self, server: Server) -> bool:
        """Whether the server's state holds a family of the federation's own."""
        return True

    def outputs(self, deployed: Tree, state: Tree, x: Tensor) -> Tensor:
        """Outputs of the model of the one preference in use."""
        asked = torch.full((1,), self.preference, dtype=torch.float32, device=x.device)
        return self.family(deployed, state, x, asked)[0]

    def evaluate_front(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: counts `(N, G, C, C)` of the models of all preferences at once.

        `broadcast` holds what is deployed and `preferences` `(N,)`.
        """
        deployed, preferences = broadcast["deployed"], broadcast["preferences"]
        rows = max(1, _EVALUATED // len(preferences))
        total: Tensor | None = None
        for begin in range(0, max(len(data.y), 1), rows):
            part = trees.map(lambda t, a=begin: t[a : a + rows], data)
            outputs = self.family(deployed, state, part.x, preferences)
            counted = self._count(outputs, part).to(torch.float64)
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
