"""The words of an exchange: what goes out, what comes back, who did not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from evenfed.core.examples import Examples
from evenfed.core.tree import Tree

ClientFunction = Callable[[Tree, Tree, Examples, Tree], tuple[Tree, Tree]]
"""`(broadcast, state, data, draws) -> (upload, new_state)`, pure."""
DrawFunction = Callable[[torch.Generator, Tree, int], Tree]
"""`(generator, state, size) -> draws`: all the randomness of a client function."""


class ClientSource(Protocol):
    """One client's data as an engine needs them."""

    @property
    def name(self) -> str:
        """Name for messages."""

    def split(self, name: Any) -> Examples:
        """Examples of "train", "val" or "test"."""


class Population(Protocol):
    """All clients; `FederatedDataset` is one."""

    def __len__(self) -> int: ...

    def client(self, index: int) -> Any:
        """The client at `index`, made or read now (a `ClientSource`)."""

    def key(self, index: int) -> int:
        """Stable integer that seeds the client's randomness."""

    def order(self) -> NDArray[np.int64] | None:
        """Indices in the order in which exchanges take clients; None: as they are."""

    def sizes(self, split: Any = "train") -> NDArray[np.int64] | None:
        """Examples a client, where they are known without reading the data."""


@dataclass(frozen=True)
class PerClient:
    """Marks a part of a broadcast that has one row per client of the cohort, in its order."""

    rows: Tree


@dataclass(frozen=True)
class Dropped:
    """A client whose reply is not part of the result."""

    client: int
    name: str
    reason: str


@dataclass(frozen=True)
class Replies:
    """Uploads of the clients that answered, stacked on the first axis in the cohort's order."""

    uploads: Tree
    clients: NDArray[np.int64]
    """Indices `(m,)` of those clients."""
    sizes: Tensor
    """Their numbers of examples `(m,)`, float64."""
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True)
class Mean:
    """The weighted mean of the uploads, folded one by one."""

    value: Tree
    kept: dict[str, Tree]
    """Parts of the uploads named in `keep`, stacked `(m, ...)` instead of folded."""
    clients: NDArray[np.int64]
    sizes: Tensor
    weight: float
    """Sum of the weights."""
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True)
class Work:
    """One exchange as an engine sees it."""

    function: ClientFunction
    broadcast: Tree
    draws: DrawFunction | None
    split: str
    purpose: str
    round: int
    seed: int
    batch_hint: int = 0
    """Rows that the client function handles at once, for the choice of chunk; 0: all."""
    prepare: Callable[[], object] = lambda: None
    """Called in a thread before a client function runs there."""
    alone: bool = False
    """Whether clients are asked one by one even where an engine stacks them."""

    @property
    def name(self) -> str:
        """Name of the client function."""
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass
class Traffic:
    """Bytes that crossed between server and clients, and exchanges made."""

    down: int = 0
    up: int = 0
    exchanges: int = 0


@dataclass(frozen=True)
class Seat:
    """A client's place in an exchange."""

    position: int
    """Row in the cohort."""
    index: int
    """Index in the population."""
    key: int
    work: float = 1.0
    """Share of its local steps that the client manages in time."""


@dataclass(frozen=True)
class Chunk:
    """Replies of a few clients, stacked on the first axis in the order of `seats`."""

    seats: list[Seat]
    sizes: list[int]
    uploads: Tree
    states: Tree


def is_per_client(node: Any) -> bool:
    """Whether a node of a broadcast carries a row per client."""
    return isinstance(node, PerClient)


def rows_for(broadcast: Tree, positions: list[int]) -> tuple[Tree, Tree]:
    """The broadcast for some clients and its vmap axes.

    Scalars stay scalars (a learning rate); other tensors get the clients' axis by expansion, so
    that every client's arithmetic is its own and does not depend on who shares its chunk.
    """
    count = len(positions)
    index = torch.tensor(positions)

    def pick(node: Any) -> Any:
        if isinstance(node, PerClient):
            return pytree.tree_map(lambda t: t[index.to(t.device)], node.rows)
        if isinstance(node, Tensor) and node.ndim:
            return node.expand(count, *node.shape)
        return node

    def axis(node: Any) -> Any:
        if isinstance(node, PerClient):
            return pytree.tree_map(lambda t: 0, node.rows)
        return 0 if isinstance(node, Tensor) and node.ndim else None

    return (
        pytree.tree_map(pick, broadcast, is_leaf=is_per_client),
        pytree.tree_map(axis, broadcast, is_leaf=is_per_client),
    )


def row_for(broadcast: Tree, position: int) -> Tree:
    """The broadcast as one client sees it."""

    def pick(node: Any) -> Any:
        if isinstance(node, PerClient):
            return pytree.tree_map(lambda t: t[position], node.rows)
        return node

    return pytree.tree_map(pick, broadcast, is_leaf=is_per_client)


def bytes_of(tree: Tree) -> int:
    """Bytes of all tensors of a tree; a `PerClient` part counts one row."""
    total = 0
    for leaf in pytree.tree_leaves(tree, is_leaf=is_per_client):
        if isinstance(leaf, PerClient):
            total += sum(t[:1].numel() * t.element_size() for t in pytree.tree_leaves(leaf.rows))
        elif isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
    return total
