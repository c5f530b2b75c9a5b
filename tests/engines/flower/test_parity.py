"""Every registered method gives the numbers of `sequential` when its exchanges are messages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.federation import EngineOptions
from evenfed.engines.flower.engine import FlowerEngine, FlowerOptions
from evenfed.engines.flower.roster import Roster
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.methods.registry import methods
from evenfed.runs.flower.calls import described
from evenfed.runs.flower.population import RemoteDataset
from evenfed.runs.runner import Runner, Settings, build_task

TINY = LocalTraining(lr=0.02, batch=8, epochs=1)
FAULTY = Participation(fraction=0.8, dropout=0.2, straggler=0.5, late="partial")
TOLERANCE = 1e-5
RUN = "00" * 16


def tiny(name: str) -> Method:
    cls = methods()[name]
    short = {"local": TINY, "fusion_steps": 3}
    fields = {f.name for f in dataclasses.fields(cls)}
    return cls(**{option: value for option, value in short.items() if option in fields})


def on_grid(data: FederatedDataset, grid: Any, *, timeout: float = 5.0) -> tuple[Any, Any]:
    """The dataset as the server knows it, and an engine on the grid."""
    import evenfed

    common = {"version": evenfed.__version__, "run": RUN, "data": {"name": "given"}}
    common["model"] = {"name": "auto", "options": {}}
    names = {100 + i: data.client(i).name for i in range(len(data))}
    roster = Roster(grid, lambda: None, lambda answer: "", pause=0.01)  # type: ignore[arg-type,return-value]
    roster.nodes = {name: node for node, name in names.items()}
    roster._greeted = dict.fromkeys(names, "")
    roster.look()
    engine = FlowerEngine(roster, described, common, timeout=timeout)
    sizes = {
        client.name: {split: len(client.split(split)) for split in ("train", "val", "test")}
        for client in data
    }
    return RemoteDataset(data.schema, sizes), FlowerOptions("flower", running=engine)


def run(method: Method, data: FederatedDataset, options: Any, **more: Any) -> Runner:
    """Two rounds, each evaluated on validation data."""
    runner = Runner(
        method, data, build_task(data), Settings(rounds=2, evaluate_every=1),
        engine=options, **more,
    )  # fmt: skip
    runner.run()
    return runner


def alone(method: Method, data: FederatedDataset, **more: Any) -> Runner:
    return run(method, data, EngineOptions("sequential", workers=1), **more)


def measured(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key.startswith("val_")}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the exchanges that were really made."""
    found: list[int] = []
    ask = Roster.ask

    def counted(self: Roster, contents: Any, timeout: float) -> Any:
        found.append(len(contents))
        return ask(self, contents, timeout)

    monkeypatch.setattr(Roster, "ask", counted)
    return found


@pytest.mark.parametrize("name", methods())
def test_flower_gives_the_numbers_of_sequential(
    name: str, binary: FederatedDataset, grid_of: Any, distance: Any, flat: Any, asked: list[int]
) -> None:
    few = FederatedDataset(binary.schema, [binary.client(i) for i in range(3)])
    remote, options = on_grid(few, grid_of(few))
    # clients differ in size: an upload whose shape told it would be dropped as the wrong shape
    assert len(set(few.sizes().tolist())) == len(few)
    if any(reveal.size == "rows" for reveal in methods()[name].reveals):
        with pytest.raises(ConfigError, match="no row leaves a node"):
            run(tiny(name), remote, options)
        return
    ours, theirs = run(tiny(name), remote, options), alone(tiny(name), few)
    reasons = [line.get("dropped", {}) for line in ours.history]
    assert reasons == [line.get("dropped", {}) for line in theirs.history]
    assert not any("shape" in reason for found in reasons for reason in found)
    assert distance(flat(ours.server), flat(theirs.server)) < TOLERANCE
    for line, other in zip(ours.history, theirs.history, strict=True):
        assert measured(line)
        assert measured(line) == pytest.approx(measured(other), rel=TOLERANCE, nan_ok=True)
        assert line["exchanges"] == other["exchanges"]
    # evaluation travels with the next round: after the last one it is an exchange of its own
    rounds = sum(line["exchanges"] or 1 for line in ours.history)
    after = ours.federation.traffic.exchanges
    assert len(asked) == rounds + 1 + after
    a, b = ours.evaluate("test").counts, theirs.evaluate("test").counts
    assert torch.equal(a.confusion, b.confusion)
    torch.testing.assert_close(a.loss, b.loss, rtol=TOLERANCE, atol=1e-7, equal_nan=True)
    assert trees.leaves(
        ours.federation.states.kept
    ) == [] or ours.federation.states.kept.keys() == (theirs.federation.states.kept.keys())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto"])
def test_faults_and_partial_work_are_those_of_sequential(
    name: str, binary: FederatedDataset, grid_of: Any, distance: Any, flat: Any, asked: list[int]
) -> None:
    """Those outside the cohort are asked to evaluate in the same exchange, and nothing else."""
    remote, options = on_grid(binary, grid_of(binary))
    ours = run(tiny(name), remote, options, participation=FAULTY)
    theirs = alone(tiny(name), binary, participation=FAULTY)
    assert distance(flat(ours.server), flat(theirs.server)) < TOLERANCE
    dropped = [line.get("dropped") for line in ours.history]
    assert dropped == [line.get("dropped") for line in theirs.history]
    for line, other in zip(ours.history, theirs.history, strict=True):
        assert measured(line)
        assert measured(line) == pytest.approx(measured(other), rel=TOLERANCE)
    assert len(asked) == 3
    assert asked[0] < len(binary)
    assert asked[1:] == [len(binary)] * 2
