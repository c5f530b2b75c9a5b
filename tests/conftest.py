"""Small federated datasets and a way to train on them, shared by all tests."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.runs.runner import Runner, Settings, build_task

torch.set_num_threads(1)
settings.register_profile("evenfed", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("evenfed")

DEPLOYMENT = "tests/engines/flower/test_deployment.py"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than processors: the worker with the deployment waits most of its time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take units of tests in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return ByUnit(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Among workers the deployment comes first: what waits longest should not begin last."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(DEPLOYMENT))


def pytest_collection_finish() -> None:
    """Modules, tests and traces stay: the collector of garbage need not look so often at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def unit_of(nodeid: str) -> str:
    """Tests of one unit go to one worker, for they share what is made once.

    A unit is a file with fixtures of its module; of the tests of every method those of one method;
    else a single test.
    """
    file, _, test = nodeid.partition("::")
    if file.endswith("/test_every_method.py"):
        return f"{file}::{test.rpartition('[')[2].rstrip(']').rpartition('-')[2]}"
    return file if _has_module_fixtures(file) else nodeid


@functools.cache
def _has_module_fixtures(file: str) -> bool:
    path = Path(__file__).parents[1] / file
    return file.startswith("tests/") and 'scope="module"' in path.read_text(encoding="utf-8")


SIZES = (8, 60, 1, 23, 57, 41, 17)
"""Unequal; 57 and 60 share a capacity, so that padding happens, and one client has one example."""
FEATURES = 3


def make_client(kind: str, index: int, size: int, seed: int = 0, classes: int = 3) -> ClientData:
    """A client whose data depend on its index and the seed alone, not on other clients."""
    rng = np.random.default_rng((seed, index))
    shift = rng.normal(size=FEATURES)

    def split(n: int) -> Examples:
        group = rng.integers(2, size=n)
        x = rng.normal(size=(n, FEATURES)) + 0.5 * shift + 0.3 * group[:, None]
        score = x @ np.array([1.0, -2.0, 0.5]) + 0.5 * rng.normal(size=n)
        y: Any = score.astype(np.float32)
        if kind == "binary":
            y = (score > 0).astype(np.int64)
        elif kind == "multiclass":
            y = np.digitize(score, np.linspace(-1.5, 1.5, classes - 1)).astype(np.int64)
        features = torch.from_numpy(x.astype(np.float32))
        return Examples.of(features, torch.from_numpy(y), torch.from_numpy(group))

    return ClientData(f"client-{index:02d}", split(size), split(4), split(6))


def make_schema(kind: str, classes: int = 3) -> Schema:
    count = {"binary": 2, "regression": 1, "multiclass": classes}[kind]
    groups = Groups(("sex",), (("f", "m"),))
    return Schema(f"toy-{kind}", kind, count, (FEATURES,), groups=groups)  # type: ignore[arg-type]


def make_dataset(
    kind: str = "binary", sizes: Sequence[int] = SIZES, seed: int = 0
) -> FederatedDataset:
    clients = [make_client(kind, i, size, seed) for i, size in enumerate(sizes)]
    return FederatedDataset(make_schema(kind), clients)


@dataclass
class Trained:
    """What a run left: the server's state, all uploads, and the counts of an evaluation."""

    runner: Runner
    uploads: dict[tuple[int, str, str], Tree] = field(default_factory=dict)
    """Upload by (round, exchange, client's name)."""

    @property
    def server(self) -> Tensor:
        return flat(self.runner.server)

    @property
    def stacked_uploads(self) -> Tensor:
        return flat([self.uploads[key] for key in sorted(self.uploads)])

    @property
    def everything(self) -> Tensor:
        """Server state, uploads (evaluations among them) and client states as one vector."""
        kept = self.runner.federation.states.kept
        names = self.runner.data.names
        states = [kept[i] for i in sorted(kept, key=lambda i: names[i])]
        return torch.cat([self.server, self.stacked_uploads, flat(states)])


def flat(tree: Tree) -> Tensor:
    """All numbers of a tree as one float64 vector."""
    parts = [leaf.detach().reshape(-1).to(torch.float64) for leaf in trees.leaves(tree)]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])


def run_rounds(
    method: Method,
    data: FederatedDataset,
    engine: str | EngineOptions = "vectorized",
    *,
    rounds: int = 2,
    seed: int = 0,
    participation: Participation | None = None,
    model: Any = "auto",
    loss: Any = None,
    evaluate: bool = True,
) -> Trained:
    options = engine if isinstance(engine, EngineOptions) else EngineOptions(engine, workers=1)
    task = build_task(data, model, loss=loss, seed=seed)
    plan = Settings(rounds=rounds, seed=seed, evaluate_every=0)
    recording = Recording(**asdict(options))
    runner = Runner(method, data, task, plan, participation=participation, engine=recording)
    runner.run()
    if evaluate:
        runner.evaluate("test")
    return Trained(runner, recording.uploads)


@dataclass(frozen=True)
class Recording(EngineOptions):
    """An engine that notes every upload, also those before the first round."""

    uploads: dict[tuple[int, str, str], Tree] = field(default_factory=dict)

    def build(self, say: Callable[[str], None], share: float = 1.0) -> Any:
        engine: Any = super().build(say, share)
        carry_out = engine.run

        def recorded(work: Any, population: Any, seats: Any, states: Any) -> Any:
            for chunk in carry_out(work, population, seats, states):
                for i, seat in enumerate(chunk.seats):
                    name = population.client(seat.index).name
                    exchange = f"{work.purpose} on {work.split}"
                    self.uploads[work.round, exchange, name] = trees.row(chunk.uploads, i)
                yield chunk

        engine.run = recorded
        return engine


def distance(a: Tensor, b: Tensor) -> float:
    """`||a - b||` relative to `||b||`."""
    assert a.shape == b.shape
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


@pytest.fixture(scope="session", name="make_dataset")
def _make_dataset() -> Callable[..., FederatedDataset]:
    return make_dataset


@pytest.fixture(scope="session", name="make_client")
def _make_client() -> Callable[..., ClientData]:
    return make_client


@pytest.fixture(scope="session", name="make_schema")
def _make_schema() -> Callable[..., Schema]:
    return make_schema


@pytest.fixture(scope="session", name="flat")
def _flat() -> Callable[[Tree], Tensor]:
    return flat


@pytest.fixture(scope="session", name="distance")
def _distance() -> Callable[[Tensor, Tensor], float]:
    return distance


@pytest.fixture(scope="session")
def train_rounds() -> Callable[..., Trained]:
    """Train a method for two rounds; see `run_rounds`."""
    return run_rounds


@pytest.fixture(scope="session")
def binary() -> FederatedDataset:
    return make_dataset("binary")


@pytest.fixture(scope="session")
def multiclass() -> FederatedDataset:
    return make_dataset("multiclass")


@pytest.fixture(scope="session")
def regression() -> FederatedDataset:
    return make_dataset("regression")
