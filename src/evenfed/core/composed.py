"""A step of local training in its parts, so that a regulariser can work inside any of them.

A regulariser changes the gradient of the batch loss and leaves the rest of a step as it is. So a
step says which part of its parameters that loss trains, what the loss is, and what it makes of a
direction that follows from the loss alone: FedProx adds its pull, pFedMe moves its copy of the
global model too, a hypernetwork takes a step of its own optimizer.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from evenfed.core.examples import Examples
from evenfed.core.tree import Tree


class Composed(Protocol):
    """A step of local training. Equal ones share a trace."""

    def __call__(self, params: Tree, batch: Examples, context: Tree, /) -> tuple[Tree, Tree]:
        """The plain step's direction and extras, see `descent.Direction`."""

    def regarded(self, params: Tree, context: Tree) -> tuple[Tree, Tree]:
        """The part of `params` that the batch loss trains, and the context that its loss sees.

        All that a step draws (a preference) belongs to that context: it is the same at the
        look-ahead point.
        """

    def batch_loss(self, part: Tree, batch: Examples, context: Tree) -> Tensor:
        """The batch loss alone, of that part in that context."""

    def completed(self, direction: Tree, params: Tree, batch: Examples, context: Tree) -> Tree:
        """A direction of the part that follows from the batch loss, with all that a step adds."""

    def afterwards(self, params: Tree) -> Tree:
        """The end of a round, as the place of a correction on the round's first batch."""

    def late(self, correction: Tree, params: Tree) -> Tree:
        """A correction of the part after the last step, as a direction of all parameters."""


class Whole:
    """A step whose parameters are all trained by the batch loss; the defaults of `Composed`."""

    def regarded(self, params: Tree, context: Tree) -> tuple[Tree, Tree]:
        """Everything."""
        return params, context

    def completed(self, direction: Tree, params: Tree, batch: Examples, context: Tree) -> Tree:
        """Nothing is added."""
        return direction

    def afterwards(self, params: Tree) -> Tree:
        """The parameters as they are."""
        return params

    def late(self, correction: Tree, params: Tree) -> Tree:
        """The correction itself."""
        return correction
