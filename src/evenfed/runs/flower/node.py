"""What a node does with a message: read its own data, run a client function, answer.

Nothing of a message is executed. Names are looked up in this installation (`calls`), tensors and
trees are read strictly (`wire`), and an upload leaves only if the method's ledger names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import RecordDict

import evenfed
from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, DataError
from evenfed.core.randomness import generator
from evenfed.core.tree import Tree
from evenfed.data import fitting
from evenfed.data.dataset import SPLITS, ClientData, FederatedDataset, stable_key
from evenfed.data.preprocess import Preprocessor
from evenfed.data.silo import SILOS, Silo, SiloSchema, schema_of
from evenfed.engines.exchange import Seat, Work
from evenfed.engines.flower import wire
from evenfed.engines.sequential import SequentialEngine
from evenfed.engines.states import StateStore
from evenfed.engines.workers import Workers, single_threaded_kernels
from evenfed.methods.base import Method
from evenfed.runs.config import DataConfig
from evenfed.runs.flower import calls
from evenfed.runs.flower.store import NodeStates
from evenfed.runs.runner import build_task
from evenfed.runs.train import load_data


class Source(Protocol):
    """Where a node's data come from."""

    @property
    def name(self) -> str:
        """The client's name; empty where the data say it."""

    def client(self, data: dict[str, Any]) -> FederatedDataset:
        """A dataset of this one client, as a message describes the run's data."""


@dataclass(frozen=True)
class SiloFile:
    """A file on the node's own disk."""

    path: Path
    name: str
    column: str = ""
    """Column whose value is `name` in this client's rows, where a file holds several clients."""

    def silo(self, data: dict[str, Any]) -> Silo:
        """The file, read with the run's schema."""
        schema = data.get("schema")
        if data.get("name") != SILOS or not isinstance(schema, dict):
            raise ConfigError(
                f"this node holds a silo file, but the run's data are '{data.get('name')}': "
                f"set data.name = '{SILOS}' with data.label and the columns of the features"
            )
        changed = self.path.stat().st_mtime_ns
        return _silo(self.path, changed, json.dumps(schema), self.name, self.column)

    def client(self, data: dict[str, Any]) -> FederatedDataset:
        """The silo's examples, once the preprocessing is agreed on."""
        silo = self.silo(data)
        preprocessor = Preprocessor.from_dict(data["preprocessor"])
        client = silo.client(preprocessor, int(data["seed"]))
        return FederatedDataset(schema_of(silo.schema, preprocessor), [client])


@lru_cache(maxsize=4)
def _silo(path: Path, changed: int, schema: str, name: str, column: str) -> Silo:
    """Read a file once, and again after it `changed`."""
    del changed
    return Silo.read(path, SiloSchema.of(json.loads(schema)), name, column or None)


@dataclass(frozen=True)
class NamedData:
    """One client of a dataset that the node makes or reads itself: for trying out."""

    index: int
    name: str = ""

    def client(self, data: dict[str, Any]) -> FederatedDataset:
        """The client at the node's index."""
        if data.get("name") == SILOS:
            raise ConfigError("this node has no silo file: start it with --data FILE")
        config = DataConfig(**data["config"])
        everyone = load_data(config, int(data["seed"]))
        if not 0 <= self.index < len(everyone):
            raise DataError(
                f"client {self.index} does not exist: '{config.name}' has {len(everyone)} clients"
            )
        return FederatedDataset(everyone.schema, [everyone.client(self.index)])


@dataclass(frozen=True)
class _Only:
    """A population of one client whose key is that of its name."""

    data: ClientData

    def client(self, index: int) -> ClientData:
        return self.data


class Node:
    """Answers messages; knows nothing of the network that brings them."""

    def __init__(self, source: Source, folder: Path, device: str = "cpu") -> None:
        self.source = source
        self.states = NodeStates(folder)
        self.device = device
        self._data: tuple[str, FederatedDataset] | None = None
        self._methods: dict[str, Method] = {}
        self._engine = SequentialEngine(Workers(1), torch.device(device))
        self._answers: dict[str, Callable[[dict[str, Any], RecordDict], RecordDict]] = {
            "hello": self._hello,
            "levels": self._levels,
            "summary": self._summary,
            "squares": self._squares,
            "exchange": self._exchange,
        }

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to a message; raises `EvenfedError` where it cannot be answered."""
        spec = wire.spec_of(content)
        theirs, ours = spec.get("version"), evenfed.__version__
        if theirs != ours:
            raise ConfigError(
                f"the server runs evenfed {theirs}, this node evenfed {ours}: install the same"
            )
        kind = spec.get("kind")
        if not isinstance(kind, str) or kind not in self._answers:
            raise wire.WireError("a message asks for what no node does")
        try:
            return self._answers[kind](spec, content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # a field that is missing or of a wrong type; the text might quote data
            raise wire.WireError(
                f"a message of kind '{kind}' cannot be followed ({type(error).__name__})"
            ) from error

    def _hello(self, spec: dict[str, Any], content: RecordDict) -> RecordDict:
        """Who this is, after a check that its data fit the run."""
        data = spec["data"]
        answer: dict[str, Any] = {"version": evenfed.__version__, "torch": torch.__version__}
        if isinstance(self.source, SiloFile):
            silo = self.source.silo(data)
            answer |= {"name": silo.name, "sizes": self._silo_sizes(silo, data)}
        else:
            client = self._dataset(data).client(0)
            answer |= {"name": client.name, "sizes": _sizes(client)}
        return wire.message(answer, None, [])

    def _silo_sizes(self, silo: Silo, data: dict[str, Any]) -> dict[str, int]:
        if silo.schema.unknown_levels:
            return {}
        return {split: len(rows) for split, rows in silo.splits(int(data["seed"])).items()}

    def _own_silo(self, spec: dict[str, Any]) -> Silo:
        if not isinstance(self.source, SiloFile):
            raise ConfigError("this node has no silo file: start it with --data FILE")
        return self.source.silo(spec["data"])

    def _levels(self, spec: dict[str, Any], content: RecordDict) -> RecordDict:
        return wire.message({"levels": self._own_silo(spec).seen_levels()}, None, [])

    def _summary(self, spec: dict[str, Any], content: RecordDict) -> RecordDict:
        silo, seed = self._own_silo(spec), int(spec["data"]["seed"])
        summary = asdict(fitting.summarise(silo.training(seed), silo.schema.fitted_spec))
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in summary.items()}
        sizes = self._silo_sizes(silo, spec["data"])
        return wire.message({"summary": plain, "sizes": sizes}, None, [])

    def _squares(self, spec: dict[str, Any], content: RecordDict) -> RecordDict:
        silo, seed = self._own_silo(spec), int(spec["data"]["seed"])
        mean = np.array([float(m) for m in spec["mean"]])
        found = fitting.squares(silo.training(seed), silo.schema.fitted_spec, mean)
        return wire.message({"squares": found.tolist()}, None, [])

    def _exchange(self, spec: dict[str, Any], content: RecordDict) -> RecordDict:
        """Run the client function that a message names."""
        dataset = self._dataset(spec["data"])
        client = dataset.client(0)
        if spec["client"] != client.name:
            raise ConfigError(f"this node is client '{client.name}', not '{spec['client']}'")
        # calls share what the run says, not what the first one says of states
        own = ("base", "next", "keep", "along")
        run = {key: value for key, value in spec.items() if key not in own}
        asked = [spec, *({**run, **call} for call in spec.get("along", []))]
        found = [self._called(call, content, dataset) for call in asked]
        finite = [_finite(state) for _, _, state in found]
        for call, (_, _, state), good in zip(asked, found, finite, strict=True):
            if "next" in call:
                self._remember(call, state if good else None)
        replies = [[size, good] for (_, size, _), good in zip(found, finite, strict=True)]
        return wire.with_tree({"replies": replies}, [upload for upload, _, _ in found])

    def _called(
        self, call: dict[str, Any], content: RecordDict, dataset: FederatedDataset
    ) -> tuple[Tree, int, Tree]:
        """Upload, number of examples and new state of one client function."""
        client = dataset.client(0)
        method = self._method(call["method"], call, dataset)
        function = calls.client_function(method, call["function"])
        draws = calls.draw_function(call["draws"], lambda table: self._method(table, call, dataset))
        broadcast = wire.tree_of(content, call)
        if call["split"] not in SPLITS:
            raise wire.WireError("a message names no split")
        work = Work(
            function, broadcast, draws, call["split"], str(call["purpose"]), int(call["round"]),
            int(call["seed"]), prepare=method.task.module,
        )  # fmt: skip
        seat = Seat(0, 0, stable_key(client.name), float(call["work"]))
        before = self._state(method, call, client)
        with single_threaded_kernels():
            chunk = self._engine.one(work, _Only(client), seat, _States(before))  # type: ignore[arg-type]
        upload, state = trees.row(chunk.uploads, 0), trees.row(chunk.states, 0)
        asked = calls.Asked(work.name, broadcast, before, math.prod(dataset.schema.shape))
        calls.check_upload(method, asked, upload)
        return upload, chunk.sizes[0], state

    def _remember(self, call: dict[str, Any], state: Tree | None) -> None:
        """Keep the state that a call has reached, if it is finite; forget those not needed."""
        run, space, version = call["run"], call["space"], int(call["next"])
        if state is not None:
            self.states.put(run, space, version, state)
        if call["keep"] is not None:
            self.states.keep(run, space, [*(int(v) for v in call["keep"]), version])

    def _state(self, method: Method, spec: dict[str, Any], client: ClientData) -> Tree:
        version = int(spec.get("base", 0))
        if version:
            return self.states.get(spec["run"], spec["space"], version)
        size = len(client.split(spec["split"]))
        first = generator(int(spec["seed"]), "state", 0, stable_key(client.name))
        return method.client_state(first, size)

    def _dataset(self, data: dict[str, Any]) -> FederatedDataset:
        """This client's data, made once a run."""
        key = json.dumps(data, sort_keys=True)
        if self._data is None or self._data[0] != key:
            self._data = (key, self.source.client(data))
            self._methods.clear()
        return self._data[1]

    def _method(self, table: Any, spec: dict[str, Any], dataset: FederatedDataset) -> Method:
        """The method, bound to this node's task; made once a run for each set of options."""
        key = json.dumps([table, spec["model"], spec["seed"]], sort_keys=True)
        if key not in self._methods:
            model = spec["model"]
            task = build_task(
                dataset, str(model["name"]), seed=int(spec["seed"]), device=self.device,
                options=dict(model["options"]),
            )  # fmt: skip
            self._methods[key] = calls.built(table).bound(task, task.init())
        return self._methods[key]


class _States(StateStore):
    """Hands out the one state of this client."""

    def __init__(self, state: Tree) -> None:
        self.state = state

    def get(self, index: int, key: int, size: int) -> Tree:
        return self.state


def _finite(state: Tree) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in trees.leaves(state) if t.is_floating_point())


def _sizes(client: ClientData) -> dict[str, int]:
    return {split: len(client.split(split)) for split in SPLITS}
