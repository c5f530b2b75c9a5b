"""A grid without a network: every message is taken apart and put together by Flower's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from evenfed.data.dataset import FederatedDataset
from evenfed.runs.flower import node as nodes
from evenfed.runs.flower.apps import reply_to


def travelled(message: Message) -> Message:
    """The message as its receiver gets it: rebuilt from bytes alone."""
    contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


class FakeGrid:
    """Nodes of one process; a node may be taken away, brought back, or made to misbehave."""

    def __init__(self, members: dict[int, nodes.Node]) -> None:
        self.members = members
        self.online = set(members)
        self.spoil: dict[int, Callable[[Message], Message]] = {}
        self.deaf: set[int] = set()
        self.replies: dict[str, Message] = {}
        self.sent: list[Message] = []
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            arrived = travelled(message)
            self.sent.append(arrived)
            identifier = arrived.metadata.message_id
            while identifier in identifiers or identifier in self.replies:
                identifier += "x"
            identifiers.append(identifier)
            node = message.metadata.dst_node_id
            if node in self.online - self.deaf:
                reply = travelled(reply_to(arrived, self.members[node]))
                reply = self.spoil.get(node, lambda m: m)(reply)
                reply.metadata.__dict__["_reply_to_message_id"] = identifier
                self.replies[identifier] = reply
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]


class Given:
    """A node's data, handed to it by a test."""

    def __init__(self, data: FederatedDataset, index: int) -> None:
        self.data = FederatedDataset(data.schema, [data.client(index)])
        self.name = self.data.client(0).name

    def client(self, data: dict[str, Any]) -> FederatedDataset:
        return self.data


@pytest.fixture
def grid_of(tmp_path: Path) -> Callable[[FederatedDataset], FakeGrid]:
    """A grid with one node for every client of a dataset."""

    def make(data: FederatedDataset) -> FakeGrid:
        return FakeGrid(
            {
                100 + i: nodes.Node(Given(data, i), tmp_path / "nodes" / str(i))
                for i in range(len(data))
            }
        )

    return make


@pytest.fixture(scope="session", name="travelled")
def _travelled() -> Callable[[Message], Message]:
    return travelled


@pytest.fixture(scope="session", name="FakeGrid")
def _grid_class() -> type[FakeGrid]:
    return FakeGrid
