"""Every client function of every method against its ledger, by the check that nodes make."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import typing
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import evenfed as ef
from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.exchange import Chunk, row_for
from evenfed.engines.federation import EngineOptions
from evenfed.engines.sequential import SequentialEngine
from evenfed.methods.base import Method
from evenfed.methods.certificate import Certify
from evenfed.methods.preferred import Preferred
from evenfed.methods.registry import build, methods
from evenfed.runs.config import parse
from evenfed.runs.flower import calls
from evenfed.runs.flower.server import check
from evenfed.runs.fronts import front_counts
from evenfed.runs.runner import Runner, Settings, build_task

SHORT = {
    "local": LocalTraining(lr=0.02, batch=8, epochs=1), "fusion_steps": 2, "epochs": 1,
    "refresh": 0,
}  # fmt: skip
FEATURES = 3

every_method = pytest.mark.parametrize("name", methods())


def client_functions(cls: type[Method]) -> set[str]:
    """Names of the methods that have a client function's arguments."""
    found = inspect.getmembers(cls, inspect.isfunction)
    wanted = ["self", "broadcast", "state", "data", "draws"]
    return {n for n, f in found if not n.startswith("_") and [*_arguments(f)] == wanted}


def _arguments(function: Any) -> Iterator[str]:
    return iter(inspect.signature(function).parameters)


KNOWN = {function for cls in methods().values() for function in client_functions(cls)}
"""A method may also use another's: IFCA starts as FOCUS does."""


@dataclasses.dataclass
class Seen:
    """Parts that were sent, and the shape of every upload by exchange."""

    parts: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    shapes: dict[Any, set[Any]] = dataclasses.field(default_factory=dict)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Checks every upload as a node does."""
    found, one = Seen(), SequentialEngine.one

    def checked(self: Any, work: Any, population: Any, seat: Any, states: Any) -> Chunk:
        chunk = one(self, work, population, seat, states)
        method = work.function.__self__
        upload = trees.row(chunk.uploads, 0)
        broadcast = row_for(work.broadcast, seat.position)
        state = states.get(seat.index, seat.key, chunk.sizes[0])
        calls.check_upload(method, calls.Asked(work.name, broadcast, state, FEATURES), upload)
        found.parts |= {(work.name, part) for part in upload}
        key = (id(states), work.purpose, work.round, work.split)
        found.shapes.setdefault(key, set()).add(trees.signature(upload))
        return chunk

    monkeypatch.setattr(SequentialEngine, "one", checked)
    return found


def trained(name: str, data: FederatedDataset, model: str = "auto", **options: Any) -> Runner:
    fields = {f.name for f in dataclasses.fields(methods()[name])}
    short = {option: value for option, value in SHORT.items() if option in fields}
    runner = Runner(
        methods()[name](**{**short, **options}), data, build_task(data, model),
        Settings(rounds=2, evaluate_every=1), engine=EngineOptions("sequential", workers=1),
    )  # fmt: skip
    runner.run()
    return runner


def choices(name: str) -> Iterator[dict[str, Any]]:
    """Every other value of every option that has a few named ones."""
    hints = typing.get_type_hints(methods()[name])
    for f in dataclasses.fields(methods()[name]):
        if f.init and typing.get_origin(hints[f.name]) is typing.Literal:
            values = typing.get_args(hints[f.name])
            yield from ({f.name: value} for value in values if value != f.default)


@every_method
def test_what_every_client_function_sends_is_let_through_by_a_node(
    name: str, binary: FederatedDataset, seen: Seen
) -> None:
    """All that the ledger declares is sent by some choice of options, and passes, by name and size;
    what a client sends has the same shape whatever number of examples it has."""
    cls = methods()[name]
    if any(reveal.size == "rows" for reveal in cls.reveals):
        with pytest.raises(ConfigError, match="sends examples"):
            check(parse({"method": name}))
        return
    few = FederatedDataset(binary.schema, [binary.client(i) for i in (0, 1, 3)])
    expected = {(r.function, r.part) for r in cls.reveals}
    runner = trained(name, few)
    if isinstance(runner.method, Preferred):
        front_counts(runner, "val", torch.linspace(0, 1, 7), "own")
    for options in choices(name):
        if expected <= seen.parts:
            break
        with contextlib.suppress(ConfigError):
            if not any(r.size == "rows" for r in build(name, options).reveals):
                trained(name, few, **options)
    if not expected <= seen.parts:  # what a certificate asks for
        runner = trained(name, few, model="linear", certify=Certify(curved=True))
        runner.method.certificate(runner.federation, runner.server, few.schema)
    assert seen.parts == expected
    assert {function for function, _ in seen.parts} <= KNOWN
    assert all(len(shapes) == 1 for shapes in seen.shapes.values())


@every_method
def test_a_client_function_that_the_ledger_does_not_name_can_send_nothing(
    name: str, binary: FederatedDataset
) -> None:
    method = build(name).bound(task := build_task(binary), task.init())
    functions = client_functions(type(method))
    assert {r.function for r in method.reveals if r.size != "rows"} <= KNOWN
    for function in functions:
        with pytest.raises(calls.CallError, match="may not send 'other': not declared"):
            calls.check_upload(method, calls.Asked(function), {"other": torch.ones(1)})


@every_method
def test_a_node_sends_no_part_that_grows_with_its_examples(
    name: str, binary: FederatedDataset
) -> None:
    """As many numbers as a thousand examples have are refused for every part, whatever it is."""
    method = build(name).bound(task := build_task(binary), task.init())
    many = 1000 * FEATURES * max(1, method.models)
    for reveal in method.reveals:
        asked = calls.Asked(reveal.function, {"preferences": torch.ones(2)}, (), FEATURES)
        assert asked.most(method, reveal.size) < many
        assert math.isfinite(asked.most(method, reveal.size))
        with pytest.raises(calls.CallError, match=r"may send at most|no row leaves"):
            calls.check_upload(method, asked, {reveal.part: torch.ones(many)})


def test_numbers_may_send_the_moments_that_they_have() -> None:
    data = ef.load("linear", clients=3, n=30, n_val=5, n_test=20)
    task = build_task(data)
    method = build("fedavg").bound(task, task.init())
    deployed, examples = method.deployed({"params": task.init()}), data.client(0).test
    upload, _ = method.evaluate(deployed, (), examples, ())
    sent = sum(part.numel() for part in vars(upload["counts"]).values())
    assert calls.Asked("evaluate").most(method, "counts") == sent


def test_a_front_has_at_most_the_models_that_fronts_have(binary: FederatedDataset) -> None:
    method = build("praffl").bound(task := build_task(binary), task.init())
    few, many = (calls.Asked("evaluate_front", {"preferences": torch.ones(n)}) for n in (2, 10**6))
    assert few.most(method, "counts") == 2 * (2 * 2 * 2 + 2 * 2 + 2 * 6)
    assert many.most(method, "counts") == 1001 * (2 * 2 * 2 + 2 * 2 + 2 * 6)
