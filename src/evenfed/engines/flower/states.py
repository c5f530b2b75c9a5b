"""The server's side of states that stay at the nodes: version numbers, nothing else."""

from __future__ import annotations

import torch

from evenfed.core.tree import Tree
from evenfed.engines.states import StateFunction, StateStore

EPOCH = 10**9
"""Versions that one start of the server may hand out; the next start begins above them."""


def token(version: int) -> Tree:
    """What the server keeps in place of a state; exact, because versions stay below 2^53."""
    return {"version": torch.tensor(float(version), dtype=torch.float64)}


def version_of(state: Tree) -> int:
    """The version that a token names; 0 is the state before a client's first exchange."""
    return int(state["version"])


class RemoteStates(StateStore):
    """Versions of the states by client index, committed and rolled back as states are.

    A node keeps the version that is committed, the one that a round in progress has reached, and
    the one of the last checkpoint: whatever the server goes back to is still there.
    """

    def __init__(self, start: StateFunction, seed: int, space: int, *, resumed: bool) -> None:
        super().__init__(start, seed)
        if self.stateless is None:
            self.start = lambda generator, size: token(0)
        self.space = space
        self._saved: dict[int, int] | None = None if resumed else {}

    def saved(self) -> None:
        """A checkpoint names the committed versions."""
        self._saved = {index: version_of(state) for index, state in self.kept.items()}

    def needed(self, index: int) -> list[int] | None:
        """Versions that the client must keep; None: all, until a checkpoint has been read."""
        if self._saved is None:
            return None
        stores = (self.kept, self.pending)
        found = {version_of(store[index]) for store in stores if index in store}
        return sorted(found | {self._saved.get(index, 0)} - {0})
