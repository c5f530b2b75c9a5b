"""The engine: an exchange becomes one message to each node of the cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import EvenfedError
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Chunk, Dropped, Population, Seat, Work
from evenfed.engines.flower import wire
from evenfed.engines.flower.roster import Roster
from evenfed.engines.flower.states import EPOCH, RemoteStates, token, version_of
from evenfed.engines.options import EngineOptions
from evenfed.engines.states import StateFunction, StateStore

Describe = Callable[[Work], dict[str, Any]]
"""Names a client function in plain values, so that a node finds it in its own package."""


class FlowerEngine:
    """Asks nodes; their data and states stay where they are.

    Parameters
    ----------
    describe : callable
        See `Describe`.
    common : dict
        What every message of the run says: versions, data, model.
    start : int
        How often the server of this run was started before.
    """

    name = "flower"
    remote = True

    def __init__(
        self,
        roster: Roster,
        describe: Describe,
        common: dict[str, Any],
        *,
        timeout: float,
        start: int = 0,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.roster = roster
        self.describe = describe
        self.common = common
        self.timeout = timeout
        self.say = say
        self._start = start
        self._count = 0
        self._spaces = 0
        self._waiting: list[_Part] = []
        self._held: list[_Part] = []

    def state_store(self, start: StateFunction, seed: int) -> RemoteStates:
        """Versions of the states of one federation, apart from those of any other."""
        self._spaces += 1
        return RemoteStates(start, seed, self._spaces - 1, resumed=self._start > 0)

    def along(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> None:
        """Let an exchange without draws travel in the messages of the next one.

        It sees the states as they are now and changes none. What it brings is held until the same
        function is asked for the same split with the same broadcast.
        """
        assert isinstance(states, RemoteStates)
        assert work.draws is None
        self._waiting.append(_Part(work, self._named(population, seats), states))

    def run(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk | Dropped]:
        """Yield the replies in the order of `seats`, and who did not send one."""
        assert isinstance(states, RemoteStates)
        for held in self._held:
            if held.answers(work, seats):
                self._held.remove(held)
                yield from (held.replies[seat.index] for seat in seats)
                return
        self._count += 1
        version = self._start * EPOCH + self._count
        main = _Part(work, self._named(population, seats), states, version)
        along = [part for part in self._waiting if not part.asks(work)]
        self._waiting, self._held = [], along or self._held
        parts = [main, *along]
        for name, reply in self.roster.ask(self._contents(parts), self.timeout).items():
            self._read(name, reply, [part for part in parts if name in part.seats])
        yield from (main.replies.pop(seat.index) for seat in seats)

    def _named(self, population: Population, seats: Sequence[Seat]) -> dict[str, Seat]:
        return {str(population.client(seat.index).name): seat for seat in seats}

    def _contents(self, parts: list[_Part]) -> dict[str, RecordDict]:
        """A message for each client that has a part; those with the same parts share tensors."""
        names = dict.fromkeys(name for part in parts for name in part.seats)
        alike: dict[tuple[int, ...], list[str]] = {}
        for name in names:
            having = tuple(i for i, part in enumerate(parts) if name in part.seats)
            alike.setdefault(having, []).append(name)
        contents: dict[str, RecordDict] = {}
        for having, members in alike.items():
            contents |= self._packed([parts[i] for i in having], members)
        return {name: contents[name] for name in names}

    def _packed(self, parts: list[_Part], names: list[str]) -> dict[str, RecordDict]:
        packing = wire.Packing()
        calls, rows = [], []
        for part in parts:
            work, before = part.work, len(packing.own)
            call = {
                **self.describe(work), "split": work.split, "purpose": work.purpose,
                "round": work.round, "space": part.states.space,
                "tree": packing.describe(work.broadcast),
            }  # fmt: skip
            calls.append(call)
            rows += [(own, part) for own in packing.own[before:]]
        spec = {**self.common, "kind": "exchange", "seed": parts[0].work.seed}
        shared = wire.record_of(packing.shared) if packing.shared else None
        contents = {}
        for name in names:
            own, tensors = wire.own_parts([(row, part.seats[name].position) for row, part in rows])
            first, *more = (
                {**call, **part.wants(name)} for call, part in zip(calls, parts, strict=True)
            )
            mine = {"client": name, "own": own, **first, "along": more}
            contents[name] = wire.message({**spec, **mine}, shared, tensors)
        return contents

    def _read(self, name: str, reply: Message | str, parts: list[_Part]) -> None:
        """Note a client's reply, or why there is none, in all parts that it has."""
        reason, _, detail = reply.partition(": ") if isinstance(reply, str) else ("", "", "")
        if isinstance(reply, Message):
            try:
                spec = wire.spec_of(reply.content)
                said = [(int(size), bool(finite)) for size, finite in spec["replies"]]
                uploads = wire.tree_of(reply.content, spec)
                for part, upload, (size, finite) in zip(parts, uploads, said, strict=True):
                    part.note(name, size, upload, finite)
                return
            except (EvenfedError, KeyError, TypeError, ValueError) as error:
                reason, detail = "sent what cannot be read", str(error)
        if detail:
            self.say(f"client '{name}' {reason}: {detail}")
        for part in parts:
            index = part.seats[name].index
            part.replies[index] = Dropped(index, name, reason)


@dataclass
class _Part:
    """One exchange of those that travel in the same messages.

    Parameters
    ----------
    version : int, optional
        Version of the states that clients reach by it; None: they keep what they have.
    """

    work: Work
    seats: dict[str, Seat]
    states: RemoteStates
    version: int | None = None
    replies: dict[int, Chunk | Dropped] = field(default_factory=dict)
    """By client index, once they are there."""

    def __post_init__(self) -> None:
        self.base = {s.index: self.states.get(s.index, s.key, 0) for s in self.seats.values()}

    def wants(self, name: str) -> dict[str, Any]:
        """What is asked of one client alone: its share of work, and its state by version."""
        seat = self.seats[name]
        mine: dict[str, Any] = {"work": seat.work}
        if self.states.stateless is None:
            mine["base"] = version_of(self.base[seat.index])
            if self.version is not None:
                mine |= {"next": self.version, "keep": self.states.needed(seat.index)}
        return mine

    def note(self, name: str, size: int, upload: Tree, finite: bool) -> None:
        """A client's reply."""
        seat = self.seats[name]
        state = self.base[seat.index] if self.version is None else token(self.version)
        if not finite:  # the state is known at the node alone: its token says so
            state = {"version": torch.tensor(torch.nan).double()}
        stacked = trees.map(lambda t: t.unsqueeze(0), (upload, state))
        self.replies[seat.index] = Chunk([seat], [size], *stacked)

    def asks(self, work: Work) -> bool:
        """Whether this is the same question."""
        mine = self.work
        if (mine.function, mine.split) != (work.function, work.split) or work.draws is not None:
            return False
        asked, known = trees.flatten(work.broadcast), trees.flatten(mine.broadcast)
        return asked[1] == known[1] and all(
            a is b or (isinstance(a, Tensor) and torch.equal(a, b))
            for a, b in zip(asked[0], known[0], strict=True)
        )

    def answers(self, work: Work, seats: Sequence[Seat]) -> bool:
        """Whether an exchange would bring just these replies."""
        return self.asks(work) and all(seat.index in self.replies for seat in seats)


@dataclass(frozen=True)
class FlowerOptions(EngineOptions):
    """Options of an engine whose nodes are there."""

    running: FlowerEngine | None = field(default=None, compare=False)

    def build(self, say: Callable[[str], None], share: float = 1.0) -> Any:
        """The one engine of the run: all federations of a method share its nodes."""
        assert self.running is not None
        return self.running
