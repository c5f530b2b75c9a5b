"""What a node answers, refuses and keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import evenfed
from evenfed.core import tree as trees
from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.exchange import PerClient
from evenfed.engines.flower import wire
from evenfed.methods.registry import build, methods
from evenfed.runs.config import asdict_options
from evenfed.runs.flower import calls
from evenfed.runs.flower.apps import reply_to
from evenfed.runs.flower.store import NodeStates, StateLostError

RUN = "ab" * 16


@pytest.fixture
def node(binary: FederatedDataset, grid_of: Any) -> Any:
    return grid_of(binary).members[100]


def exchange(method: str = "fedavg", function: str = "train", **changes: Any) -> dict[str, Any]:
    table = {"name": method, "options": asdict_options(build(method))}
    spec = {
        "version": evenfed.__version__, "run": RUN, "kind": "exchange", "space": 0,
        "data": {"name": "given"}, "model": {"name": "linear", "options": {}},
        "method": table, "function": function, "draws": {"method": table, "name": "draw"},
        "split": "train", "purpose": "train/1", "round": 0, "seed": 0, "work": 1.0,
        "client": "client-00", "own": [],
    }  # fmt: skip
    return {**spec, **changes}


def asked(spec: dict[str, Any], tree: Any = None) -> RecordDict:
    packing = wire.Packing()
    spec = {**spec, "tree": packing.describe(tree)}
    return wire.message(spec, wire.record_of(packing.shared) if packing.shared else None, [])


def broadcast(node: Any) -> dict[str, Any]:
    method = node._method(exchange()["method"], exchange(), node._dataset({"name": "given"}))
    return {"params": method.first, "lr": torch.tensor(0.1)}


def answered(node: Any, content: RecordDict) -> Message:
    message = Message(content, 1, "train")
    return reply_to(message, node)


def works(node: Any) -> bool:
    reply = answered(node, asked(exchange(), broadcast(node)))
    return reply.has_content() and wire.spec_of(reply.content)["replies"][0][0] > 0


def test_trees_survive_the_wire() -> None:
    counts = Counts(torch.ones(2, 3, 3).double(), torch.zeros(2, 3).double(), torch.zeros(0))
    tree = {
        "params": {"a.weight": torch.randn(3, 2), "b": torch.tensor(1.5)},
        "flags": (torch.tensor([True, False]), [torch.arange(3)], None, 2, 0.5, "word"),
        "counts": counts,
        "own": PerClient({"row": torch.arange(6).reshape(3, 2)}),
    }
    packing = wire.Packing()
    described = packing.describe(tree)
    parts, tensors = wire.own_parts([(part, 1) for part in packing.own])
    content = wire.message(
        {"tree": described, "own": parts}, wire.record_of(packing.shared), tensors
    )
    back = wire.tree_of(content, wire.spec_of(content))
    expected = {**tree, "own": {"row": torch.tensor([2, 3])}}
    assert trees.signature(back) == trees.signature(expected)
    for a, b in zip(trees.leaves(back), trees.leaves(expected), strict=True):
        assert torch.equal(a, b)


MALFORMED = {
    "nothing": RecordDict(),
    "no json": RecordDict({"evenfed": ConfigRecord({"json": "{"})}),
    "json of a list": RecordDict({"evenfed": ConfigRecord({"json": "[]"})}),
    "number for text": RecordDict({"evenfed": ConfigRecord({"json": 3})}),
    "deep json": RecordDict({"evenfed": ConfigRecord({"json": "[" * 100_000})}),
    "wrong record": RecordDict({"evenfed": ArrayRecord({"json": Array(np.zeros(1))})}),
    "unknown kind": asked({"version": evenfed.__version__, "kind": "shell"}),
    "no kind": asked({"version": evenfed.__version__}),
    "fields missing": asked({"version": evenfed.__version__, "kind": "exchange"}),
    "squares of nothing": asked({"version": evenfed.__version__, "kind": "squares"}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_message_gets_an_error_and_the_node_lives_on(what: str, node: Any) -> None:
    reply = answered(node, MALFORMED[what])
    assert reply.has_error()
    assert works(node)


BAD_TREES = {
    "no such tensor": {"tensor": 7},
    "negative tensor": {"tensor": -1},
    "class outside the package": {"class": "os.system", "parts": [{"value": "true"}]},
    "class with wrong parts": {"class": "evenfed.core.counts.Counts", "parts": []},
    "key that is a list": {"dict": [[[1], {"value": 1}]]},
    "nonsense": {"pickle": "gASV"},
    "text": "x",
    "too deep": json.loads('{"list":[' * 200 + "1" + "]}" * 200),
}


@pytest.mark.parametrize("what", BAD_TREES)
def test_a_malformed_tree_gets_an_error_and_the_node_lives_on(what: str, node: Any) -> None:
    content = asked(exchange(), {"x": torch.ones(1)})
    spec = {**wire.spec_of(content), "tree": BAD_TREES[what]}
    content["evenfed"] = ConfigRecord({"json": json.dumps(spec)})
    assert answered(node, content).has_error()
    assert works(node)


@pytest.mark.parametrize("bad", [b"", b"\x80\x04pickle", b"\xff" * 64, b"\x08" + b"\0" * 7 + b"{}"])
def test_malformed_tensors_get_an_error_and_the_node_lives_on(bad: bytes, node: Any) -> None:
    content = asked(exchange(), broadcast(node))
    content["shared"] = ArrayRecord({"tensors": Array(np.frombuffer(bad, dtype=np.uint8))})
    assert answered(node, content).has_error()
    assert works(node)


UNKNOWN = {
    "method": {"method": {"name": "nosuch", "options": {}}},
    "option": {"method": {"name": "fedavg", "options": {"nosuch": 1}}},
    "function": {"function": "nosuch"},
    "private function": {"function": "__init__"},
    "function of the server": {"function": "round"},
    "attribute": {"function": "task"},
    "path": {"function": "train.__globals__"},
    "draws": {"draws": {"method": exchange()["method"], "name": "client_state"}},
    "split": {"split": "secret"},
    "client": {"client": "somebody else"},
    "model": {"model": {"name": "nosuch", "options": {}}},
    "run as a path": {"run": "../../etc", "base": 0, "next": 1, "keep": []},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_an_unknown_name_gets_an_error_and_the_node_lives_on(
    what: str, node: Any, tmp_path: Path
) -> None:
    method = "scaffold" if what.startswith("run") else "fedavg"
    reply = answered(node, asked({**exchange(method), **UNKNOWN[what]}, broadcast(node)))
    assert reply.has_error()
    assert works(node)
    assert not (tmp_path / "etc").exists()


def test_a_node_refuses_a_server_of_another_version_and_names_both(node: Any) -> None:
    reply = answered(node, asked({**exchange(), "version": "0.0.0"}))
    assert "0.0.0" in reply.error.reason
    assert evenfed.__version__ in reply.error.reason


def test_an_error_of_a_client_function_says_nothing_of_the_data(node: Any) -> None:
    wrong = trees.map(lambda t: torch.ones(1), broadcast(node))
    reply = answered(node, asked(exchange(), wrong))
    assert "a client function failed" in reply.error.reason
    assert works(node)


def test_versions_of_a_state_are_kept_as_asked(tmp_path: Path) -> None:
    states = NodeStates(tmp_path)
    for version in (1, 2, 3):
        states.put(RUN, 0, version, {"w": torch.full((2,), float(version))})
    states.keep(RUN, 0, [1, 3])
    again = NodeStates(tmp_path)
    assert torch.equal(again.get(RUN, 0, 3)["w"], torch.full((2,), 3.0))
    assert torch.equal(again.get(RUN, 0, 1)["w"], torch.full((2,), 1.0))
    with pytest.raises(StateLostError):
        again.get(RUN, 0, 2)


def test_no_client_function_can_send_what_its_ledger_does_not_name(node: Any) -> None:
    """Whatever a function returns: the node checks names and sizes before anything leaves."""
    dataset = node._dataset({"name": "given"})
    method = node._method(exchange()["method"], exchange(), dataset)
    data: Examples = dataset.client(0).train
    for upload in (
        {"update": method.first, "rows": data.x},
        {"update": {"x": data.x, "more": torch.zeros(1000)}},
        data,
    ):
        with pytest.raises(calls.CallError):
            calls.check_upload(method, calls.Asked("train"), upload)
    calls.check_upload(method, calls.Asked("train"), {"update": method.first})


@pytest.mark.parametrize("name", methods())
def test_rows_are_sent_by_no_client_function_that_a_node_runs(name: str) -> None:
    """A function whose ledger says "rows" is refused by every node; no other may send rows."""
    method = build(name)
    for reveal in method.reveals:
        if reveal.size == "rows":
            object.__setattr__(method, "first", {})
            asked = calls.Asked(reveal.function)
            with pytest.raises(ConfigError, match="no row leaves a node"):
                calls.check_upload(method, asked, {reveal.part: torch.ones(1)})
