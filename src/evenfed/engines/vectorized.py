"""Many clients at once: parameters and data stacked, the client function under vmap."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import vmap

from evenfed.core import tree as trees
from evenfed.core.errors import ClientError, EvenfedError
from evenfed.core.even import Known
from evenfed.core.examples import Examples
from evenfed.core.randomness import generator
from evenfed.core.tree import Tree
from evenfed.engines.allocator import keep_freed_memory
from evenfed.engines.exchange import Chunk, Population, Seat, Work, bytes_of, rows_for
from evenfed.engines.sequential import SequentialEngine, draws_for
from evenfed.engines.stacking import Steps, capacities, grid_capacity, grow, stack_examples
from evenfed.engines.states import StateStore
from evenfed.engines.workers import Workers, on_device

_WORKING_SET = 12 << 20
"""Bytes of parameters and batches a chunk should touch in a step: more falls out of the cache."""
_WINDOWS = 10
"""How many times its images a step of convolutions touches, about: windows around every pixel."""
_LARGEST_CHUNK = 256
_LAZY_WINDOW = 1024
"""Clients of a lazy population that are in memory at once."""


class VectorizedEngine:
    """Runs the client function under `torch.func.vmap` on chunks of clients of like size.

    Parameters
    ----------
    chunk : int
        Clients in one call; 0 chooses by the size of model and batch.
    memory : int
        Bytes that stacked data, parameters and activations may take.
    share : float
        Share of the clients in a round's cohort.
    """

    name = "vectorized"

    def __init__(
        self,
        workers: Workers,
        device: torch.device,
        *,
        chunk: int = 0,
        memory: int = 2 << 30,
        share: float = 1.0,
    ) -> None:
        keep_freed_memory()
        self.workers = workers
        self.device = device
        self.chunk = chunk
        self.memory = memory
        self.share = share
        self._capacities: dict[tuple[int, str, Steps | None], dict[int, int]] = {}
        self._stacked: OrderedDict[Any, tuple[Examples, int]] = OrderedDict()
        self._stacked_bytes = 0
        self._asked: set[Any] = set()
        self._even = Known()
        self._lock = threading.Lock()

    def run(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk]:
        """Yield chunks in an order that depends on the cohort alone, not on the chunk size."""
        if work.alone:
            yield from SequentialEngine(self.workers, self.device).run(
                work, population, seats, states
            )
            return
        window = len(seats) if population.sizes(work.split) is not None else _LAZY_WINDOW
        for start in range(0, len(seats), max(1, window)):
            part = list(seats[start : start + window])
            data: dict[int, Examples] = {}
            plan = self._plan(work, population, part, states, data)
            yield from self.workers.ordered(
                lambda item, data=data: self._chunk(  # type: ignore[misc]
                    work, population, item[0], item[1], states, data
                ),
                plan,
            )

    def _plan(
        self,
        work: Work,
        population: Population,
        seats: list[Seat],
        states: StateStore,
        data: dict[int, Examples],
    ) -> list[tuple[list[Seat], int]]:
        """Chunks of seats with their capacity."""
        sizes = population.sizes(work.split)
        if sizes is None:
            for seat in seats:
                data[seat.index] = population.client(seat.index).split(work.split)
            capacity = {s.index: grid_capacity(len(data[s.index])) for s in seats}
        else:
            steps = self._steps(work, population, seats[0], states)
            table = self._capacities.get((id(population), work.split, steps))
            if table is None:
                # all clients are evaluated, a cohort trains
                share = self.share if work.split == "train" else 1.0
                table = capacities(sizes, share, steps)
                self._capacities[id(population), work.split, steps] = table
            capacity = {s.index: table[int(sizes[s.index])] for s in seats}
        groups: dict[int, list[Seat]] = {}
        for seat in seats:
            groups.setdefault(capacity[seat.index], []).append(seat)
        plan: list[tuple[list[Seat], int]] = []
        for cap, members in sorted(groups.items()):
            example = data[members[0].index] if data else None
            state = states.get(members[0].index, members[0].key, cap)
            limit = self._limit(work, population, members[0], cap, example, bytes_of(state))
            count = math.ceil(len(members) / limit)
            if count > 1 or len(members) >= 8 * self.workers.count:
                # an even share for every worker
                count = math.ceil(count / self.workers.count) * self.workers.count
            count = min(count, max(1, len(members) // 2)) if limit > 1 else len(members)
            parts = np.array_split(np.arange(len(members)), count)
            plan += [([members[i] for i in part], cap) for part in parts]
        return plan

    @staticmethod
    def _steps(work: Work, population: Population, seat: Seat, states: StateStore) -> Steps | None:
        """Steps of clients, if the smallest and the largest have as many; by the data alone."""
        sizes = population.sizes(work.split)
        if work.draws is None or not work.batch_hint or sizes is None or not sizes.any():
            return None
        ends = sorted({int(sizes[sizes > 0].min()), int(sizes.max())})
        if len(ends) == 1:
            return None
        data = population.client(int(sizes.argmax())).split(work.split)
        tokens = 1 if data.x.is_floating_point() or data.x.dim() < 2 else data.x.shape[1]
        found = set()
        for size in ends:
            state = states.get(seat.index, seat.key, size)
            drawn = trees.leaves(work.draws(generator(work.seed, "shape"), state, size))
            index = [t for t in drawn if t.dtype == torch.int64 and t.dim() == 2]
            count, rows = sum(len(t) for t in index), sum(t.numel() for t in index)
            found.add(Steps(count, rows, bytes_of(data) // len(data), tokens))
        steps = found.pop()
        return steps if not found and steps.rows else None

    def _limit(
        self,
        work: Work,
        population: Population,
        seat: Seat,
        capacity: int,
        data: Examples | None,
        state: int,
    ) -> int:
        """Clients in one call; `state` is the size of a client's state in bytes."""
        if self.chunk:
            return self.chunk
        data = data if data is not None else population.client(seat.index).split(work.split)
        row = bytes_of(data) / max(1, len(data))
        params = bytes_of(work.broadcast) + state
        batch = row * min(work.batch_hint or capacity, max(1, capacity))
        if data.x.dim() == 4:
            batch *= _WINDOWS
        by_cache = _WORKING_SET / (params + batch + 1)
        # a step holds gradient, optimizer state and activations besides; counted generously
        by_memory = (
            self.memory / self.workers.count / (6 * params + 24 * batch + row * capacity + 1)
        )
        return int(max(1, min(by_cache, by_memory, _LARGEST_CHUNK)))

    def _examples(
        self,
        work: Work,
        population: Population,
        seats: list[Seat],
        capacity: int,
        data: dict[int, Examples],
    ) -> tuple[Examples, list[int]]:
        """Stacked data `(c, capacity, ...)`; kept for later rounds where memory allows."""
        if data:
            parts = [data[s.index] for s in seats]
            return stack_examples(parts, capacity), [len(p) for p in parts]
        sizes = population.sizes(work.split)
        assert sizes is not None
        counts = [int(sizes[s.index]) for s in seats]
        key = (id(population), work.split, capacity, tuple(s.index for s in seats))
        with self._lock:
            if key in self._stacked:
                self._stacked.move_to_end(key)
                return self._stacked[key][0], counts
        parts = [population.client(s.index).split(work.split) for s in seats]
        stacked = on_device(stack_examples(parts, capacity), self.device)
        base = parts[0].x.untyped_storage().data_ptr()
        copied = stacked.x.untyped_storage().data_ptr() != base
        size = bytes_of(stacked) if copied else 0
        with self._lock:
            if key not in self._asked:
                # a cohort drawn at random seldom returns: only what is asked twice is kept
                self._asked.add(key)
                return stacked, counts
            while self._stacked and self._stacked_bytes + size > self.memory // 2:
                self._stacked_bytes -= self._stacked.popitem(last=False)[1][1]
            if size <= self.memory // 2 and key not in self._stacked:
                self._stacked[key] = (stacked, size)
                self._stacked_bytes += size
        return stacked, counts

    def _chunk(
        self,
        work: Work,
        population: Population,
        seats: list[Seat],
        capacity: int,
        states: StateStore,
        data: dict[int, Examples],
    ) -> Chunk:
        if len(seats) == 1:
            # products of one matrix may take other kernels, and round otherwise, than those of
            # several: a client alone is computed twice, so that its numbers stay the same
            pair = self._chunk(work, population, seats * 2, capacity, states, data)
            uploads, new = trees.map(lambda t: t[:1], (pair.uploads, pair.states))
            return Chunk(seats, pair.sizes[:1], uploads, new)
        examples, sizes = self._examples(work, population, seats, capacity, data)
        rows = [states.get(s.index, s.key, n) for s, n in zip(seats, sizes, strict=True)]
        work.prepare()
        try:
            draws = self._draws(work, seats, rows, sizes, capacity)
            broadcast, axes = rows_for(work.broadcast, [s.position for s in seats])
            state = trees.stack(rows) if trees.leaves(rows[0]) else rows[0]
            broadcast, state, examples, draws = on_device(
                (broadcast, state, examples, draws), self.device
            )
            of_state = 0 if trees.leaves(state) else None
            dims = (axes, of_state, 0, 0 if trees.leaves(draws) else None)
            shapes = tuple(t.shape for t in trees.leaves((broadcast, state, examples, draws)))
            with torch.no_grad(), self._even.mode(work.function, shapes):
                upload, new = vmap(work.function, in_dims=dims)(broadcast, state, examples, draws)
        except EvenfedError:
            raise
        except Exception as error:
            names = ", ".join(f"'{population.client(s.index).name}'" for s in seats[:3])
            raise ClientError(
                f"client function '{work.name}' failed under vmap for {len(seats)} clients "
                f"({names}{', ...' if len(seats) > 3 else ''}): {error}\n"
                "engine='sequential' runs clients one by one and names the one that fails"
            ) from error
        upload, new = trees.map(torch.Tensor.detach, (upload, new))
        return Chunk(seats, sizes, upload, new)

    def _draws(
        self, work: Work, seats: list[Seat], states: list[Tree], sizes: list[int], capacity: int
    ) -> Tree:
        if work.draws is None:
            return ()
        drawn = [
            draws_for(work, seat, state, size)
            for seat, state, size in zip(seats, states, sizes, strict=True)
        ]
        if any(size != capacity for size in sizes):
            # shapes as at full capacity; the values of this draw are not used
            like = work.draws(generator(work.seed, "shape"), states[0], capacity)
            drawn = [grow(d, like) for d in drawn]
        return trees.stack(drawn)
