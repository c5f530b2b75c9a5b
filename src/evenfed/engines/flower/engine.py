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
        self._ahead: tuple[str, ...] = ()
        self._held: dict[str, _Held] = {}

    def state_store(self, start: StateFunction, seed: int) -> RemoteStates:
        """Versions of the states of one federation, apart from those of any other."""
        self._spaces += 1
        return RemoteStates(start, seed, self._spaces - 1, resumed=self._start > 0)

    def ahead(self, *splits: str) -> None:
        """Let the next exchange without draws also answer for other splits, in the same reply.

        What it brings is held until the same function is asked for them with the same broadcast.
        """
        self._ahead = splits

    def run(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk | Dropped]:
        """Yield the replies in the order of `seats`, and who did not send one."""
        assert isinstance(states, RemoteStates)
        held = self._held.pop(work.split, None)
        if held is not None and held.answers(work, seats):
            yield from (held.chunks[seat.index] for seat in seats)
            return
        also = [s for s in self._ahead if work.draws is None and s != work.split]
        self._ahead, self._held = (), {split: _Held(work) for split in also}
        self._count += 1
        version = self._start * EPOCH + self._count
        names = {seat.position: str(population.client(seat.index).name) for seat in seats}
        contents = self._contents(work, seats, states, names, version)
        replies = self.roster.ask(contents, self.timeout)
        for seat in seats:
            yield self._read(seat, names[seat.position], replies.pop(names[seat.position]), version)

    def _contents(
        self,
        work: Work,
        seats: Sequence[Seat],
        states: RemoteStates,
        names: dict[int, str],
        version: int,
    ) -> dict[str, RecordDict]:
        packing = wire.Packing()
        spec = {
            **self.common, **self.describe(work),
            "kind": "exchange", "split": work.split, "purpose": work.purpose,
            "round": work.round, "seed": work.seed, "space": states.space,
            "tree": packing.describe(work.broadcast), "also": list(self._held),
        }  # fmt: skip
        shared = wire.record_of(packing.shared) if packing.shared else None
        contents = {}
        for seat in seats:
            name = names[seat.position]
            parts, tensors = wire.own_parts(packing.own, seat.position)
            mine: dict[str, Any] = {"client": name, "work": seat.work, "own": parts}
            if states.stateless is None:
                base = version_of(states.get(seat.index, seat.key, 0))
                mine |= {"base": base, "next": version, "keep": states.needed(seat.index)}
            contents[name] = wire.message({**spec, **mine}, shared, tensors)
        return contents

    def _read(self, seat: Seat, name: str, reply: Message | str, version: int) -> Chunk | Dropped:
        if isinstance(reply, str):
            reason, _, detail = reply.partition(": ")
            if detail:
                self.say(f"client '{name}' {reason}: {detail}")
            return Dropped(seat.index, name, reason)
        try:
            spec = wire.spec_of(reply.content)
            upload = wire.tree_of(reply.content, spec)
            size, finite = int(spec["size"]), bool(spec["finite"])
            also = [(str(split), int(count)) for split, count in spec.get("also", [])]
            if also:
                upload, *more = upload
        except (EvenfedError, KeyError, TypeError, ValueError) as error:
            self.say(f"client '{name}' sent what cannot be read: {error}")
            return Dropped(seat.index, name, "sent what cannot be read")
        # a state that is not finite is known at the node alone: its token says so
        state = token(version) if finite else {"version": torch.tensor(torch.nan).double()}
        for i, (split, count) in enumerate(also):
            if split in self._held:
                self._held[split].chunks[seat.index] = _chunk(seat, count, more[i], state)
        return _chunk(seat, size, upload, state)


def _chunk(seat: Seat, size: int, upload: Tree, state: Tree) -> Chunk:
    stacked = trees.map(lambda t: t.unsqueeze(0), (upload, state))
    return Chunk([seat], [size], *stacked)


@dataclass
class _Held:
    """Replies for a split that came along with another."""

    work: Work
    chunks: dict[int, Chunk] = field(default_factory=dict)

    def answers(self, work: Work, seats: Sequence[Seat]) -> bool:
        """Whether an exchange would bring just these replies."""
        if work.function != self.work.function or work.draws is not None:
            return False
        asked, known = trees.flatten(work.broadcast), trees.flatten(self.work.broadcast)
        same = asked[1] == known[1] and all(
            a is b or (isinstance(a, Tensor) and torch.equal(a, b))
            for a, b in zip(asked[0], known[0], strict=True)
        )
        return same and all(seat.index in self.chunks for seat in seats)


@dataclass(frozen=True)
class FlowerOptions(EngineOptions):
    """Options of an engine whose nodes are there."""

    running: FlowerEngine | None = field(default=None, compare=False)

    def build(self, say: Callable[[str], None]) -> Any:
        """The one engine of the run: all federations of a method share its nodes."""
        assert self.running is not None
        return self.running
