"""The verbs of the Python interface: load, train, resume."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from evenfed.core.errors import ConfigError
from evenfed.core.task import Loss
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.data.silo import SILOS
from evenfed.data.silos import SiloDataset, silos_of_config
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.methods.registry import build
from evenfed.runs.artifact import save_model
from evenfed.runs.config import (
    DataConfig,
    ModelConfig,
    RunConfig,
    configured,
    method_table,
    parse,
    plain,
    read,
    versions,
)
from evenfed.runs.data_record import check_same_data, data_record
from evenfed.runs.folder import CONFIG, RunFolder
from evenfed.runs.result import Result
from evenfed.runs.runner import Model, Observer, Runner, Settings, build_task


def train(
    method: str | Method,
    data: str | FederatedDataset,
    *,
    rounds: int = 30,
    seed: int = 0,
    model: Model = "auto",
    loss: Loss | None = None,
    participation: Participation | float | int | None = None,
    engine: str | EngineOptions = "auto",
    evaluate_every: int = 5,
    evaluate_clients: int = 0,
    tail: float = 0.1,
    observer: Observer | None = None,
    **options: Any,
) -> Result:
    """Train a method on a federated dataset.

    Parameters
    ----------
    method : str or Method
        A name (`evenfed methods` lists them) or an instance.
    data : str or FederatedDataset
        A name (`evenfed datasets` lists them) or what `ef.load` returned.
    model : str, module or callable
        A built-in model's name, your own `nn.Module` (its weights are the first ones), or a
        function that makes one.
    loss : callable, optional
        `(outputs, y) -> (n,)`, one loss an example.
    participation : Participation, float or int
        A float is the share of clients in a round, an int their number.
    **options
        Hyperparameters of a method given by name: `mu=0.1`, `lr=0.05` (short for `local.lr`).

    Examples
    --------
    >>> result = train("fedprox", "synthetic", rounds=2, mu=0.1, lr=0.05)
    >>> result.method.local.lr
    0.05
    """
    if isinstance(method, Method):
        if options:
            raise ConfigError(
                f"options {', '.join(options)} were given beside a method instance; "
                "set them in the instance"
            )
        chosen = method
    else:
        chosen = build(method, options)
    if isinstance(data, str):
        data = load(data, seed=seed)
    takes = as_participation(participation)
    runs_on = engine if isinstance(engine, EngineOptions) else EngineOptions(engine)
    name = model if isinstance(model, str) else "own"
    found = data.options if isinstance(data, SiloDataset) else {}
    config = configured(
        method=method_table(chosen),
        data=DataConfig(name=data.schema.name, **plain(found)),
        model=ModelConfig(name=name),
        participation=asdict(takes),
        engine=asdict(runs_on),
        rounds=rounds,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_clients=evaluate_clients,
        tail=tail,
    )
    task = build_task(data, model, loss=loss, seed=seed, device=runs_on.device)
    runner = Runner(
        chosen, data, task, _settings(config),
        participation=takes, engine=runs_on, observer=observer,
    )  # fmt: skip
    runner.run()
    return Result(runner, config)


def run_config(
    config: RunConfig,
    out: Path | None = None,
    observer: Observer | None = None,
    *,
    counted: bool = False,
    data: FederatedDataset | None = None,
    model: Model | None = None,
    engine: EngineOptions | None = None,
) -> Result:
    """Carry out a configured run, with its folder if `out` is given.

    Parameters
    ----------
    counted : bool
        Whether a folder that exists gets a number instead of being refused.
    data, model, engine
        Used instead of building those that the config names. With a folder they must be just
        those: `resume` builds them from the config.

    Examples
    --------
    >>> config = parse({"data": "synthetic", "rounds": 1})
    >>> run_config(config)
    Result(FedAvg on synthetic, 1 round)
    """
    runner = _runner(config, observer, data, model, engine)
    if out is None:
        return _finish(runner, config, None)
    written = config.completed().anchored(out).toml()
    folder = RunFolder.create(out, written, counted=counted)
    folder.save_data(data_record(runner.data))
    runner.folder = folder
    try:
        return _finish(runner, config, folder)
    except BaseException:
        if not folder.begun:
            folder.discard()
        raise


def resume(
    path: Path | str,
    observer: Observer | None = None,
    *,
    data: FederatedDataset | None = None,
    engine: EngineOptions | None = None,
) -> Result:
    """Go on with an interrupted run from its last checkpoint, to the bits of an unbroken one.

    Data that are not those that the run began with are refused. A run that is finished is read
    again, and its folder left as it is. `data` and `engine` are
    used instead of building those that the config names.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> first = run_config(parse({"data": "synthetic", "rounds": 1}), folder)
    >>> bool(resume(folder).summary()["accuracy"] == first.summary()["accuracy"])
    True
    """
    path = Path(path)
    folder = RunFolder.open(path)
    config = parse(read(path / CONFIG), str(path / CONFIG))
    runner = _runner(config, observer, data, None, engine)
    if (before := folder.data()) is not None:
        check_same_data(before, runner.data, str(path))
    runner.folder = folder
    for name, version in config.versions.items():
        if (now := versions().get(name, "")) != version:
            runner.observer.say(
                f"the run was begun with {name} {version} and goes on with {now or 'none'}; "
                "it may differ from an unbroken run in the last bits"
            )
    runner.restore()
    if not folder.finished:
        runner.observer.say(f"going on with round {runner.next_round + 1} of {config.rounds}")
    return _finish(runner, config, folder)


def _finish(runner: Runner, config: RunConfig, folder: RunFolder | None) -> Result:
    runner.run()
    result = Result(runner, config, None if folder is None else folder.path)
    if folder is not None and not folder.finished:
        if config.local_reference:
            _ = result.reference  # from here on it is part of what was measured
        if problem := save_model(result, folder.path):
            runner.observer.say(f"warning: {problem}")
        folder.save_result(result.measured(), result.clients, result.cells, result.front_record())
    return result


def _settings(config: RunConfig) -> Settings:
    return Settings(
        config.rounds, config.seed, config.evaluate_every, config.evaluate_clients,
        config.checkpoint_every, config.tail,
    )  # fmt: skip


def load_data(config: DataConfig, seed: int) -> FederatedDataset:
    """The data that a config names."""
    if config.name == SILOS:
        if config.clients is not None or config.partition is not None:
            raise ConfigError("silo files are the clients: leave data.clients and partition out")
        return silos_of_config(config.options).federated(seed)
    return load(
        config.name,
        clients=config.clients,
        partition=config.partition,
        seed=seed,
        **config.options,
    )


def _runner(
    config: RunConfig,
    observer: Observer | None,
    data: FederatedDataset | None = None,
    model: Model | None = None,
    engine: EngineOptions | None = None,
) -> Runner:
    """Everything is built, and refused, before a folder is made."""
    method = config.built_method()
    engine = engine or config.built_engine()
    if data is None:
        data = load_data(config.data, config.seed)
    options = config.model.options if model is None else None
    task = build_task(
        data, model or config.model.name, seed=config.seed, device=engine.device, options=options
    )
    tested = data.sizes("test")
    if tested is not None and not tested.sum():
        raise ConfigError(
            f"no client has test examples in '{data.schema.name}', so that nothing could be "
            "measured: make data.test larger"
        )
    runner = Runner(
        method, data, task, _settings(config),
        participation=config.built_participation(), engine=engine, observer=observer,
    )  # fmt: skip
    if config.excess and data.clusters is None:
        raise ConfigError(
            f"excess = true needs the true clusters of the clients, which '{data.schema.name}' "
            "does not know; leave it out, and ask result.faa(clusters=...)"
        )
    return runner


def as_participation(value: Participation | float | int | None) -> Participation:
    """A float is the share of clients in a round, an int their number."""
    if isinstance(value, Participation):
        return value
    if value is None:
        return Participation()
    return Participation(number=value) if isinstance(value, int) else Participation(fraction=value)
