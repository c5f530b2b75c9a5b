"""One client at a time: for big models, and for models that vmap cannot take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.errors import ClientError, DataError, EvenfedError
from evenfed.core.randomness import generator
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Chunk, Population, Seat, Work, row_for
from evenfed.engines.states import StateStore
from evenfed.engines.workers import Workers, on_device


def draws_for(work: Work, seat: Seat, state: Tree, size: int) -> Tree:
    """The random inputs of one client; a late client's batches are cut short."""
    if work.draws is None:
        return ()
    if size == 0:
        raise DataError(f"client {seat.index} has no {work.split} examples to draw from")
    draws = work.draws(generator(work.seed, work.purpose, work.round, seat.key), state, size)
    if seat.work >= 1:
        return draws
    return torch.utils._pytree.tree_map(
        lambda node: node.shortened(seat.work) if isinstance(node, Batches) else node,
        draws,
        is_leaf=lambda node: isinstance(node, Batches),
    )


class SequentialEngine:
    """Runs the client function for each client alone; several clients in parallel threads."""

    name = "sequential"

    def __init__(self, workers: Workers, device: torch.device) -> None:
        self.workers = workers
        self.device = device

    def run(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk]:
        """Yield one chunk a client, in the order of `seats`."""
        return self.workers.ordered(lambda seat: self.one(work, population, seat, states), seats)

    def one(self, work: Work, population: Population, seat: Seat, states: StateStore) -> Chunk:
        """One client's reply."""
        client = population.client(seat.index)
        data = client.split(work.split)
        size = len(data)
        state = states.get(seat.index, seat.key, size)
        broadcast = row_for(work.broadcast, seat.position)
        work.prepare()
        try:
            draws = draws_for(work, seat, state, size)
            inputs = on_device((broadcast, state, data, draws), self.device)
            with torch.no_grad():
                upload, new = work.function(*inputs)
        except EvenfedError:
            raise
        except Exception as error:
            raise ClientError(
                f"client function '{work.name}' failed at client '{client.name}': {error}"
            ) from error
        upload, new = trees.map(lambda t: t.detach().unsqueeze(0), (upload, new))
        return Chunk([seat], [size], upload, new)
