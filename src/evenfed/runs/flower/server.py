"""The server's side of a run: gather the nodes, agree on data, carry the run out."""

from __future__ import annotations

import json
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import evenfed
from evenfed.core.errors import ConfigError, EvenfedError, QuorumError, RunFolderError
from evenfed.data.silo import SILOS, SiloSchema
from evenfed.engines.flower import wire
from evenfed.engines.flower.engine import FlowerEngine, FlowerOptions
from evenfed.engines.flower.roster import Grid, Roster
from evenfed.methods.base import Method
from evenfed.runs.config import RunConfig, parse
from evenfed.runs.flower.calls import described
from evenfed.runs.flower.population import RemoteDataset, checked_sizes
from evenfed.runs.flower.prepare import Agreement, agreed_inputs, agreed_schema, silo_data
from evenfed.runs.folder import CONFIG, RESULT, RunFolder, write_atomically
from evenfed.runs.result import Result
from evenfed.runs.runner import Observer, Silent
from evenfed.runs.train import load_data, resume

SESSION = "flower.json"
"""File of a run folder: what the server must know to go on with the same nodes."""


@dataclass(frozen=True)
class Order:
    """What is submitted: a config, the name of the run's folder, whether to go on with it."""

    config: dict[str, Any]
    name: str
    resume: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w][\w.-]{0,99}", self.name):
            raise ConfigError(f"'{self.name}' cannot name a run: letters, digits, dots, dashes")

    @classmethod
    def read(cls, text: str) -> Order:
        """From JSON."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Session:
    """What outlives the server's process: the run's number, its clients, how data are read."""

    run: str
    starts: int
    sizes: dict[str, dict[str, int]]
    data: dict[str, Any]


def check(config: RunConfig) -> Method:
    """Refuse what cannot run where data stay at nodes, before anybody is asked."""
    method = config.built_method()
    if sends_rows(method):
        raise ConfigError(
            f"'{method.name}' with these options sends examples, and no row leaves a node of "
            f"engine 'flower': {_instead(method)}"
        )
    if config.geometry in (True, "auto"):
        raise ConfigError(
            "engine 'flower' cannot measure loss geometry, which is no client function of a "
            "method: set geometry = false, or use engine 'sequential' where all data are"
        )
    if config.excess:
        raise ConfigError(
            "engine 'flower' cannot measure excess risks, which pool the data of a cluster: set "
            "excess = false, or use engine 'sequential' where all data are"
        )
    return method


def sends_rows(method: Method) -> bool:
    """Whether examples leave the clients."""
    return any(reveal.size == "rows" for reveal in method.reveals)


def _instead(method: Method) -> str:
    """What to do about a method that sends examples: options under which it does not, if any."""
    hints = get_type_hints(type(method))
    for option in fields(method):
        values = get_args(hints[option.name]) if option.init else ()
        for value in values if get_origin(hints[option.name]) is Literal else ():
            with suppress(ConfigError):
                if not sends_rows(replace(method, **{option.name: value})):
                    return f"set method.{option.name} = '{value}'"
    return "it is a reference for engine 'sequential' where all data are; choose another method"


def serve(
    grid: Grid,
    order: Order,
    root: Path,
    observer: Observer | None = None,
    *,
    pause: float = 0.2,
) -> Result:
    """Carry out an order; the folder is `root / order.name`."""
    observer = observer or Silent()
    path = root / order.name
    error = root / f".{order.name}.error"
    error.unlink(missing_ok=True)
    try:
        config = parse(order.config, "the submitted config")
        check(config)
        return _Run(grid, config, path, observer, pause, order.resume).carry_out()
    except EvenfedError as problem:
        root.mkdir(parents=True, exist_ok=True)
        write_atomically(error, str(problem).encode())
        raise


class _Run:
    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        path: Path,
        observer: Observer,
        pause: float,
        resumed: bool,
    ) -> None:
        self.config = config
        self.path = path
        self.observer = observer
        self.options = config.built_engine()
        if not resumed and (path / CONFIG).is_file():
            raise RunFolderError(
                f"the server already holds a run '{path.name}'; choose another name, or --resume"
            )
        if (path / RESULT).is_file():
            raise RunFolderError(f"run '{path.name}' is finished")
        self.before = self._session() if resumed else None
        self.run = secrets.token_hex(16) if self.before is None else self.before.run
        self.common: dict[str, Any] = {
            "version": evenfed.__version__,
            "run": self.run,
            "model": {"name": config.model.name, "options": config.model.options},
        }
        self.data = self._first_data() if self.before is None else self.before.data
        self.roster = Roster(grid, self._hello, self._accept, observer.say, pause)

    def _session(self) -> Session | None:
        if not (self.path / CONFIG).is_file():
            raise RunFolderError(f"there is no run '{self.path.name}' to go on with")
        file = self.path / SESSION
        return Session(**json.loads(file.read_text())) if file.is_file() else None

    def _first_data(self) -> dict[str, Any]:
        config, seed = self.config.data, self.config.seed
        if config.name == SILOS:
            return silo_data(SiloSchema.of_config(config.options), seed)
        table = config.model_dump(exclude_none=True)
        return {"name": config.name, "config": table, "seed": seed}

    def _hello(self) -> Any:
        # a node checks its file against the schema as the config has it: what was agreed on
        # since comes with every exchange
        spec = {**self.common, "kind": "hello", "data": self.data}
        return wire.message(spec, None, [])

    def _accept(self, answer: dict[str, Any]) -> str:
        name, theirs = answer.get("name"), answer.get("version")
        if theirs != evenfed.__version__:
            raise ConfigError(
                f"node '{name}' runs evenfed {theirs}, the server evenfed {evenfed.__version__}: "
                "install the same"
            )
        if not isinstance(name, str) or not name:
            raise wire.WireError("a node did not say its name")
        return name

    def carry_out(self) -> Result:
        """Gather, agree, train, measure."""
        if self.before is None:
            dataset, starts = self._begin(), 0
        else:
            dataset, starts = self._again(self.before), self.before.starts + 1
        engine = FlowerEngine(
            self.roster, described, {**self.common, "data": self.data},
            timeout=self.options.timeout, start=starts, say=self.observer.say,
        )  # fmt: skip
        options = FlowerOptions(**asdict(self.options), running=engine)
        folder = RunFolder(self.path)
        if not folder.exists:
            RunFolder.create(self.path, self.config.completed().toml())
        # the folder is there with its session from the first moment: a killed server can go on
        self._remember(dataset, starts)
        try:
            return resume(self.path, self.observer, data=dataset, engine=options)
        except EvenfedError:
            if not folder.begun:
                (self.path / SESSION).unlink()
                folder.discard()
            raise

    def _begin(self) -> RemoteDataset:
        if self.config.data.name == SILOS:
            if not self.options.nodes:
                raise ConfigError("set engine.nodes, the number of silos that take part")
            self.roster.gather(self.options.nodes, self.options.wait)
            names = sorted(self.roster.nodes)
            agreement = Agreement(self.roster, names, self.common, self.options.timeout)
            schema, self.data, sizes = agreement.reach(
                SiloSchema.of_config(self.config.data.options), self.config.seed
            )
            return RemoteDataset(schema, sizes, agreed_inputs(self.data))
        named = load_data(self.config.data, self.config.seed)
        self.roster.gather(len(named), self.options.wait, set(named.names))
        answers = self.roster.answers
        return RemoteDataset(
            named.schema, {name: checked_sizes(answers[name]["sizes"]) for name in named.names},
            named.inputs,
        )  # fmt: skip

    def _again(self, before: Session) -> RemoteDataset:
        """Go on: data are read as before; after `engine.wait` a quorum of the nodes is enough."""
        names = set(before.sizes)
        participation = self.config.built_participation()
        needed = participation.required(participation.cohort_size(len(names)))
        try:
            # nodes come back one after the other: the first of them are not all
            self.roster.gather(len(names), self.options.wait, names)
        except QuorumError as error:
            if len(names & set(self.roster.nodes)) < needed:
                raise
            self.observer.say(f"going on with a quorum: {error}")
        if self.config.data.name == SILOS:
            inputs = agreed_inputs(before.data)
            return RemoteDataset(agreed_schema(before.data), before.sizes, inputs)
        named = load_data(self.config.data, self.config.seed)
        return RemoteDataset(named.schema, before.sizes, named.inputs)

    def _remember(self, dataset: RemoteDataset, starts: int) -> None:
        session = Session(self.run, starts, dataset.counts, self.data)
        write_atomically(self.path / SESSION, json.dumps(asdict(session)).encode())
