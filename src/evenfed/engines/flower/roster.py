"""Which node is which client, and how they are asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Message, MessageType, RecordDict

from evenfed.core.errors import ConfigError, EvenfedError, QuorumError
from evenfed.engines.flower import wire

_LOOK = 10
"""Looks for replies, at least, between two looks at which nodes are connected."""


class Grid(Protocol):
    """The part of Flower's `Grid` that is used."""

    def get_node_ids(self) -> Iterable[int]:
        """Nodes that are connected."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; identifiers by which replies are asked for."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies that have come."""


@dataclass
class Roster:
    """Nodes by the name of their client.

    Parameters
    ----------
    hello : callable
        The first message to a node: what it must fit.
    accept : callable
        Checks a node's answer to it and returns the client's name; raises where it does not fit.
    pause : float
        Seconds between two looks for replies.
    """

    grid: Grid
    hello: Callable[[], RecordDict]
    accept: Callable[[dict[str, Any]], str]
    say: Callable[[str], None] = lambda message: None
    pause: float = 0.2
    nodes: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each client answered to the first message."""
    bytes_down: int = 0
    bytes_up: int = 0
    _online: set[int] = field(default_factory=set)
    _greeted: dict[int, str] = field(default_factory=dict)
    _waiting: dict[str, int] = field(default_factory=dict)
    _looked: float = -1e9

    def gather(self, count: int, wait: float, names: set[str] | None = None) -> None:
        """Wait until `count` clients (of `names`, where given) are there."""
        end = time.monotonic() + wait
        while True:
            self.look(strict=True)
            here = set(self.nodes) if names is None else set(self.nodes) & names
            if len(here) >= count:
                return
            if time.monotonic() > end:
                present = ", ".join(sorted(here)) or "none"
                raise QuorumError(
                    f"{len(here)} of {count} nodes joined within {wait:.0f} s (there: {present}); "
                    "start the others, raise engine.wait or lower engine.nodes"
                )
            time.sleep(self.pause)

    def look(self, *, strict: bool = False) -> None:
        """Greet nodes that are new, and note the answers of those greeted before.

        With `strict` a node that does not fit stops the run; later it is only left out.
        """
        self._looked = time.monotonic()
        self._online = set(self.grid.get_node_ids())
        for node in sorted(self._online - set(self._greeted)):
            for identifier in self._push([(node, self.hello())], MessageType.QUERY, 600.0):
                self._greeted[node] = identifier
                self._waiting[identifier] = node
        for reply in self.grid.pull_messages(list(self._waiting)) if self._waiting else []:
            node = self._waiting.pop(reply.metadata.reply_to_message_id)
            try:
                self._seat(node, reply)
            except EvenfedError as error:
                if strict:
                    raise
                self.say(f"node {node} is left out: {error}")

    def _seat(self, node: int, reply: Message) -> None:
        if reply.has_error():
            if node not in self._online:
                return
            raise ConfigError(f"node {node} refused the run: {short(reply.error.reason)}")
        answer = wire.spec_of(reply.content)
        name = self.accept(answer)
        if name in self.nodes and self.nodes[name] != node:
            self.say(f"client '{name}' is now at node {node}")
        self.nodes[name] = node
        self.answers[name] = answer

    def ask(self, contents: dict[str, RecordDict], timeout: float) -> dict[str, Message | str]:
        """One exchange: the reply of each client, or in words why there is none.

        A client whose node comes back in the meantime, under a new number, is asked again.
        """
        end = time.monotonic() + timeout
        missing = not all(self._there(name) for name in contents)
        if missing or time.monotonic() - self._looked > _LOOK * self.pause:
            self.look()
        found: dict[str, Message | str] = {}
        open_: dict[str, str] = {}
        sent: dict[str, int] = {}
        while True:
            again = [n for n in contents if n not in found and self._reachable(n, sent)]
            pairs = [(self.nodes[name], contents[name]) for name in again]
            identifiers = self._push(pairs, MessageType.TRAIN, timeout + 60)
            for name, identifier in zip(again, identifiers, strict=True):
                sent[name] = self.nodes[name]
                open_[identifier] = name
            for reply in self.grid.pull_messages(list(open_)) if open_ else []:
                name = open_.pop(reply.metadata.reply_to_message_id)
                found[name] = self._read(reply)
            gone = [n for n in contents if n not in found and not self._there(n)]
            if len(found) + len(gone) == len(contents) or time.monotonic() > end:
                break
            if time.monotonic() - self._looked > _LOOK * self.pause:
                self.look()
            time.sleep(self.pause)
        return {name: found.get(name, "did not answer") for name in contents}

    def _there(self, name: str) -> bool:
        return self.nodes.get(name) in self._online

    def _reachable(self, name: str, sent: dict[str, int]) -> bool:
        return self._there(name) and sent.get(name) != self.nodes[name]

    def _read(self, reply: Message) -> Message | str:
        if reply.has_error():
            return f"answered with an error: {short(reply.error.reason)}"
        self.bytes_up += wire.bytes_of(reply.content)
        return reply

    def _push(self, pairs: list[tuple[int, RecordDict]], kind: str, lifetime: float) -> list[str]:
        """Send a content to each node; identifiers in their order."""
        if not pairs:
            return []
        messages = [Message(content, node, kind, ttl=lifetime) for node, content in pairs]
        self.bytes_down += sum(wire.bytes_of(content) for _, content in pairs)
        return [str(identifier) for identifier in self.grid.push_messages(messages)]


def short(text: str | None) -> str:
    """One line of at most a few hundred letters."""
    line = " ".join((text or "no reason given").split())
    return line if len(line) <= 400 else line[:400] + "..."
