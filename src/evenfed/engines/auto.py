"""Choose between the vectorised and the sequential engine by a short timed probe."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from evenfed.core.errors import ClientError
from evenfed.engines.exchange import Chunk, Population, Seat, Work
from evenfed.engines.sequential import SequentialEngine
from evenfed.engines.states import StateStore
from evenfed.engines.vectorized import VectorizedEngine

_MOST_CLIENTS = 16
_PROBED_STEPS = 3
"""Local steps that a probed client takes, at most."""
_PATIENCE = 0.5
"""Seconds that the sequential part of the probe should take."""
_CLEARLY = 0.95
"""Share of the sequential time below which vectorising is chosen."""


class AutoEngine:
    """Decides at the first exchange that trains; `reason` says what was chosen and why."""

    def __init__(
        self,
        vectorized: VectorizedEngine,
        sequential: SequentialEngine,
        say: Callable[[str], None],
    ) -> None:
        self.vectorized = vectorized
        self.sequential = sequential
        self.say = say
        self.chosen: VectorizedEngine | SequentialEngine | None = None
        self.reason = ""
        self._one_by_one: set[str] = set()
        """Client functions that vmap could not take."""

    @property
    def name(self) -> str:
        """Name of the chosen engine, `auto` before the choice."""
        return "auto" if self.chosen is None else self.chosen.name

    def run(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk]:
        """Probe if nothing is chosen yet, then hand over."""
        if self.chosen is None and work.draws is not None and seats:
            self._choose(work, population, seats, states)
        if self.chosen is self.sequential or work.name in self._one_by_one:
            return self.sequential.run(work, population, seats, states)
        return self._together(work, population, seats, states)

    def _together(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk]:
        """Vectorised, or one by one where vmap cannot take this client function."""
        chunks = self.vectorized.run(work, population, seats, states)
        try:
            first = list(itertools.islice(chunks, 1))
        except ClientError as error:
            self._one_by_one.add(work.name)
            self.say(f"'{work.name}' runs one client at a time: {_why(error)}")
            chunks, first = self.sequential.run(work, population, seats, states), []
        yield from itertools.chain(first, chunks)

    def _choose(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> None:
        few = [replace(s, work=self._share(work, population, s)) for s in seats[:_MOST_CLIENTS]]

        def seconds(engine: VectorizedEngine | SequentialEngine, count: int) -> float:
            begin = time.perf_counter()
            for _chunk in engine.run(work, population, few[:count], states):
                pass
            return time.perf_counter() - begin

        seconds(self.sequential, 1)  # the first call of each also traces
        one = seconds(self.sequential, 1)
        count = int(max(2, min(len(few), _PATIENCE / max(one, 1e-9))))
        alone = seconds(self.sequential, count)
        try:
            seconds(self.vectorized, count)
            together = seconds(self.vectorized, count)
        except ClientError as error:
            self._settle(self.sequential, _why(error))
            return
        engine = self.vectorized if together < _CLEARLY * alone else self.sequential
        self._settle(
            engine,
            f"a probe of {min(count, len(few))} clients took {together * 1e3:.0f} ms vectorized, "
            f"{alone * 1e3:.0f} ms sequential",
        )

    def _share(self, work: Work, population: Population, seat: Seat) -> float:
        """Share of a client's steps that makes `_PROBED_STEPS` of them."""
        rows = len(population.client(seat.index).split(work.split))
        steps = rows / max(1, work.batch_hint or rows)
        return min(1.0, _PROBED_STEPS / max(1.0, steps))

    def _settle(self, engine: VectorizedEngine | SequentialEngine, reason: str) -> None:
        self.chosen = engine
        self.reason = reason
        self.say(f"engine: {engine.name} ({reason})")


def _why(error: ClientError) -> str:
    reason = str(error.__cause__ or error).strip().split("\n")[0]
    return f"vmap cannot take this model: {reason}"
