"""The handle through which a method reaches its clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, QuorumError
from evenfed.core.tree import Tree
from evenfed.engines.exchange import (
    Chunk,
    ClientFunction,
    DrawFunction,
    Dropped,
    Mean,
    Population,
    Replies,
    Seat,
    Traffic,
    Work,
    bytes_of,
)
from evenfed.engines.fold import Fold, Weighting, Weights, check_weights
from evenfed.engines.options import Engine, EngineOptions
from evenfed.engines.participation import Participation
from evenfed.engines.pool import Pool
from evenfed.engines.stacking import finite_rows
from evenfed.engines.states import StateFunction, StateStore
from evenfed.engines.workers import single_threaded_kernels

__all__ = ["NOTED_CLIENTS", "EngineOptions", "Federation"]

NOTED_CLIENTS = 200
"""The largest federation whose history holds values of single clients."""


class _WrongShapeError(Exception):
    """Two clients sent uploads of different shape: which one is right must be found out."""


@dataclass
class Federation:
    """Clients, an engine and the run's seed; see `map` and `mean`.

    Parameters
    ----------
    population : Population
        Normally a `FederatedDataset`.
    seed : int
        Seed of the run.
    state : callable
        `(generator, size) -> state`: a client's first state.
    batch_hint : int
        Rows of a local step, for the choice of chunk sizes.
    rounds : int
        Length of the run, for schedules.
    prepare : callable
        Called in every thread before a client function runs there (copies the module).
    """

    population: Population
    seed: int = 0
    participation: Participation = field(default_factory=Participation)
    options: EngineOptions = field(default_factory=EngineOptions)
    state: StateFunction = lambda generator, size: ()
    batch_hint: int = 0
    rounds: int = 1
    prepare: Callable[[], object] = lambda: None
    say: Callable[[str], None] = lambda message: None

    def __post_init__(self) -> None:
        self.engine: Engine = self.options.build(self.say, self.participation.share(len(self)))
        make_states = getattr(self.engine, "state_store", StateStore)
        self.states: StateStore = make_states(self.state, self.seed)
        self.round = 0
        self.traffic = Traffic()
        self.dropped: list[Dropped] = []
        self.notes: dict[str, Any] = {}
        self._calls: Counter[str] = Counter()
        self._order = self.population.order()
        self._rank: NDArray[np.int64] | None = None
        self._names: dict[int, str] = {}
        self._cohort: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.population)

    @property
    def remote(self) -> bool:
        """Whether data and states are elsewhere, out of the server's reach."""
        return bool(getattr(self.engine, "remote", False))

    @property
    def everyone(self) -> NDArray[np.int64]:
        """Indices of all clients, in the order in which exchanges take them."""
        return np.arange(len(self)) if self._order is None else self._order

    @property
    def cohort(self) -> NDArray[np.int64]:
        """Indices of the clients of this round, in the order of the rows of a reply."""
        if self._cohort is None:
            sizes = self.population.sizes() if self.participation.sampling == "size" else None
            if sizes is not None and self._order is not None:
                sizes = sizes[self._order]
            ranks = self.participation.sample(len(self), sizes, self.seed, self.round)
            self._cohort = ranks if self._order is None else self._order[ranks]
        return self._cohort

    @property
    def weighting(self) -> Literal["size", "uniform"]:
        """Weights that make a mean over the cohort an unbiased mean over examples."""
        return "uniform" if self.participation.sampling == "size" else "size"

    @property
    def evenly(self) -> Weighting:
        """Weights that make a mean over the cohort an unbiased mean over clients."""
        drawn_by_size = self.participation.sampling == "size"
        return (lambda uploads, sizes: 1.0 / sizes) if drawn_by_size else "uniform"

    def begin(self, round: int) -> None:
        """Start a round: draw its cohort, forget what the last one left open."""
        self.round = round
        self._cohort = None
        self._calls.clear()
        self.notes = {}
        self.dropped = []
        self.traffic = Traffic()
        self.states.rollback()

    def commit(self) -> None:
        """End a round: clients keep what it changed."""
        self.states.commit()

    def note(self, **values: Any) -> None:
        """Remember values for this round's line of the history."""
        self.notes.update(values)

    def note_by_client(self, name: str, clients: NDArray[np.int64], values: Tensor) -> None:
        """Remember a value `(m,)` of each client, known to the server anyhow; quartiles of many."""
        if len(self) > NOTED_CLIENTS:
            quartiles = torch.quantile(values.double(), torch.linspace(0, 1, 5).double())
            self.note(**{f"{name}_quartiles": quartiles.tolist()})
            return
        found = zip(clients.tolist(), values.tolist(), strict=True)
        self.note(**{name: {self.name_of(i): round(v, 6) for i, v in found}})

    def name_of(self, client: int) -> str:
        """The name of a client, which is made once where the population is lazy."""
        if client not in self._names:
            self._names[client] = str(self.population.client(client).name)
        return self._names[client]

    def map(
        self,
        function: ClientFunction,
        broadcast: Tree,
        *,
        draws: DrawFunction | None = None,
        clients: Sequence[int] | NDArray[np.int64] | None = None,
        split: str = "train",
        finite: bool = True,
        counted: bool = True,
        alone: bool = False,
    ) -> Replies:
        """One exchange; uploads come back stacked on the clients' axis.

        Parameters
        ----------
        function : callable
            `(broadcast, state, data, draws) -> (upload, new_state)`, pure.
        broadcast : tree
            The same for all clients, but for parts marked `PerClient`.
        draws : callable, optional
            `(generator, state, size) -> draws`.
        clients : sequence of int, optional
            Indices to ask, all of which answer, and the order of the rows; default: the round's
            cohort, with its faults.
        split : {"train", "val", "test"}
        finite : bool
            Drop clients that send a value that is not finite.
        counted : bool
            False for what clients do by themselves, which is no traffic.
        alone : bool
            One client at a time, on every engine: for what stacking makes slower.
        """
        work = replace(self._work(function, broadcast, draws, split), alone=alone)

        def collect(chunks: Iterator[tuple[Chunk, NDArray[np.bool_]]]) -> list[Any]:
            rows: list[tuple[int, int, int, Tree]] = []
            for chunk, good in chunks:
                rows += [
                    (seat.position, seat.index, size, trees.row(chunk.uploads, i))
                    for i, (seat, size) in enumerate(zip(chunk.seats, chunk.sizes, strict=True))
                    if good[i]
                ]
            return sorted(rows, key=lambda row: row[0])

        before = replace(self.traffic)
        rows, dropped = self._exchange(work, clients, collect, finite)
        if not counted:
            self.traffic = before
        return Replies(
            trees.stack([row[3] for row in rows]),
            np.array([row[1] for row in rows], dtype=np.int64),
            torch.tensor([row[2] for row in rows], dtype=torch.float64),
            dropped,
        )

    def along(
        self,
        function: ClientFunction,
        broadcast: Tree,
        *,
        clients: Sequence[int] | NDArray[np.int64],
        split: str,
    ) -> None:
        """Let an exchange travel with the next one, where messages are costly; else do nothing.

        The same `map`, asked later, is then answered by what came along.
        """
        if self.remote:
            name = getattr(function, "__name__", type(function).__name__)
            work = Work(function, broadcast, None, split, name, self.round, self.seed)
            seats, _, _ = self._seats(clients)
            self.engine.along(work, self.population, seats, self.states)  # type: ignore[attr-defined]

    def mean(
        self,
        function: ClientFunction,
        broadcast: Tree,
        *,
        weights: Weights = "size",
        draws: DrawFunction | None = None,
        clients: Sequence[int] | NDArray[np.int64] | None = None,
        keep: Sequence[str] = (),
        each: Callable[[Tree], Tree] | None = None,
        split: str = "train",
    ) -> Mean:
        """One exchange; uploads are folded into their weighted mean as they arrive.

        Memory does not grow with the number of clients. The fold is in float64 and its order is
        that of the cohort, whatever the chunk size.

        Parameters
        ----------
        weights : "size", "uniform", Tensor `(len(cohort),)`, callable, `Tilted`, or a dict of those
            A callable gets the stacked uploads and sizes `(c,)` of a chunk and returns `(c,)`.
            Weights need not sum to one; clients that drop out take their weight with them.
            A dict gives each named part of the upload its own weights.
        keep : sequence of str
            Parts of the upload (a dict) to hand back stacked: small ones, such as losses.
        each : callable
            Server-side function of one upload, applied on arrival, before the fold.
        """
        check_weights(weights, len(self.cohort if clients is None else clients))
        work = self._work(function, broadcast, draws, split)

        def fold(chunks: Iterator[tuple[Chunk, NDArray[np.bool_]]]) -> Fold:
            result = Fold(weights, tuple(keep), each)
            for chunk, good in chunks:
                result.add(chunk, good)
            return result

        folded, dropped = self._exchange(work, clients, fold)
        return folded.mean(work.name, dropped)  # type: ignore[no-any-return]

    @cached_property
    def pool(self) -> Federation:
        """A federation of one client that holds everybody's data: for reference methods only."""
        if self.remote:
            raise ConfigError("engine 'flower' cannot pool the clients' data: no row leaves a node")
        options = EngineOptions("sequential", self.options.device, 1)
        return Federation(
            Pool(self.population), self.seed, Participation(), options, self.state,
            self.batch_hint, self.rounds, self.prepare, self.say,
        )  # fmt: skip

    def _work(
        self, function: ClientFunction, broadcast: Tree, draws: DrawFunction | None, split: str
    ) -> Work:
        name = getattr(function, "__name__", type(function).__name__)
        self._calls[name] += 1
        return Work(
            function, broadcast, draws, split, f"{name}/{self._calls[name]}", self.round, self.seed,
            self.batch_hint if draws is not None else 0, self.prepare,
        )  # fmt: skip

    def _seats(
        self, clients: Sequence[int] | NDArray[np.int64] | None
    ) -> tuple[list[Seat], list[Dropped], int]:
        """Seats of those that take part, and those that drop out beforehand."""
        asked = self.cohort if clients is None else np.asarray(clients, dtype=np.int64)
        seats: list[Seat] = []
        out: list[Dropped] = []
        for position in self._turns(asked).tolist():
            index = int(asked[position])
            key = self.population.key(index)
            share = self.participation.fate(self.seed, self.round, key) if clients is None else 1.0
            if share > 0:
                seats.append(Seat(position, index, key, share))
            else:
                out.append(Dropped(index, self.population.client(index).name, "did not answer"))
        return seats, out, len(asked)

    def _turns(self, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in the order in which clients take their turn, which no caller chooses."""
        if self._order is None:
            return np.argsort(asked, kind="stable")
        if self._rank is None:
            self._rank = np.empty(len(self), dtype=np.int64)
            self._rank[self._order] = np.arange(len(self))
        return np.argsort(self._rank[asked], kind="stable")

    def _exchange(
        self,
        work: Work,
        clients: Sequence[int] | NDArray[np.int64] | None,
        consume: Callable[[Iterator[tuple[Chunk, NDArray[np.bool_]]]], Any],
        finite: bool = True,
    ) -> tuple[Any, tuple[Dropped, ...]]:
        seats, out, asked = self._seats(clients)
        required = self.participation.required(asked) if clients is None else 1
        if len(seats) < required:
            self.dropped += out
            raise QuorumError(
                f"round {self.round + 1}: {len(seats)} of {asked} clients answered, {required} "
                "needed"
            )
        pending, up = dict(self.states.pending), self.traffic.up
        with single_threaded_kernels():
            dropped = list(out)
            try:
                result = consume(self._chunks(work, seats, dropped, None, finite))
            except _WrongShapeError:
                # which shape is right is for the majority to say: start over, as if not yet asked
                self.states.pending, self.traffic.up = pending, up
                dropped = list(out)
                right = self._usual_shape(work, seats)
                result = consume(self._chunks(work, seats, dropped, right, finite))
        self.traffic.exchanges += 1
        self.traffic.down += bytes_of(work.broadcast) * asked
        self.dropped += dropped
        answered = asked - len(dropped)
        if answered < required:
            reasons = Counter(d.reason for d in dropped).most_common(1)
            raise QuorumError(
                f"round {self.round + 1}: {answered} of {asked} clients sent a usable reply to "
                f"'{work.name}', {required} needed (most often: {reasons[0][0]})"
            )
        return result, tuple(dropped)

    def _chunks(
        self, work: Work, seats: list[Seat], dropped: list[Dropped], right: Any, finite: bool
    ) -> Iterator[tuple[Chunk, NDArray[np.bool_]]]:
        """Replies with a flag for each that is usable; keeps the states of those."""
        first = right
        for chunk in self.engine.run(work, self.population, seats, self.states):
            if isinstance(chunk, Dropped):
                dropped.append(chunk)
                continue
            count = len(chunk.seats)
            shape = trees.signature(trees.row(chunk.uploads, 0))
            first = first or shape
            if shape != first:
                if right is None:
                    raise _WrongShapeError
                good = np.zeros(count, dtype=np.bool_)
                reason = "sent an upload of the wrong shape"
            else:
                good = np.ones(count, dtype=np.bool_)
                if finite:
                    good = finite_rows((chunk.uploads, chunk.states), count)
                reason = "sent a value that is not finite"
            self.traffic.up += bytes_of(chunk.uploads)
            for i, seat in enumerate(chunk.seats):
                if good[i]:
                    if self.states.stateless is None:
                        self.states.put(seat.index, trees.row(chunk.states, i))
                else:
                    name = self.population.client(seat.index).name
                    dropped.append(Dropped(seat.index, name, reason))
            if good.any():
                yield chunk, good

    def _usual_shape(self, work: Work, seats: list[Seat]) -> Any:
        """Shape of most uploads; of the first one where two are as frequent."""
        shapes: Counter[Any] = Counter()
        for chunk in self.engine.run(work, self.population, seats, self.states):
            if isinstance(chunk, Dropped):
                continue
            shapes[trees.signature(trees.row(chunk.uploads, 0))] += len(chunk.seats)
        return shapes.most_common(1)[0][0]
