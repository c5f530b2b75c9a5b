"""The verbs of the Python interface: load, train, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evenfed.core.errors import ConfigError
from evenfed.core.task import Loss
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.methods.registry import build
from evenfed.runs.config import DataConfig, ModelConfig, RunConfig, method_table, parse, read
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
    takes = _participation(participation)
    runs_on = engine if isinstance(engine, EngineOptions) else EngineOptions(engine)
    name = model if isinstance(model, str) else "own"
    config = RunConfig(
        method=method_table(chosen),
        data=DataConfig(name=data.schema.name),
        model=ModelConfig(name=name),
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
    config: RunConfig, out: Path | None = None, observer: Observer | None = None
) -> Result:
    """Carry out a configured run, with its folder if `out` is given."""
    runner = _runner(config, observer)
    folder = None
    if out is not None:
        folder = RunFolder.create(out, config.completed().toml())
        runner.folder = folder
    return _finish(runner, config, folder)


def resume(path: Path, observer: Observer | None = None) -> Result:
    """Go on with an interrupted run from its last checkpoint, to the bits of an unbroken one."""
    folder = RunFolder.open(path)
    config = parse(read(path / CONFIG), str(path / CONFIG))
    runner = _runner(config, observer)
    runner.folder = folder
    runner.restore()
    if observer is not None:
        observer.say(f"going on with round {runner.next_round} of {config.rounds}")
    return _finish(runner, config, folder)


def _finish(runner: Runner, config: RunConfig, folder: RunFolder | None) -> Result:
    runner.run()
    result = Result(runner, config, None if folder is None else folder.path)
    if folder is not None:
        folder.save_result(result.measured(), result.clients)
    return result


def _settings(config: RunConfig) -> Settings:
    return Settings(
        config.rounds, config.seed, config.evaluate_every, config.evaluate_clients,
        config.checkpoint_every, config.tail,
    )  # fmt: skip


def _runner(config: RunConfig, observer: Observer | None) -> Runner:
    """Everything is built, and refused, before a folder is made."""
    method = config.built_method()
    engine = config.built_engine()
    data = load(
        config.data.name,
        clients=config.data.clients,
        partition=config.data.partition,
        seed=config.seed,
        **config.data.options,
    )
    task = build_task(
        data, config.model.name, seed=config.seed, device=engine.device, options=config.model.options
    )
    return Runner(
        method, data, task, _settings(config),
        participation=config.built_participation(), engine=engine, observer=observer,
    )  # fmt: skip


def _participation(value: Participation | float | int | None) -> Participation:
    if isinstance(value, Participation):
        return value
    if value is None:
        return Participation()
    return Participation(number=value) if isinstance(value, int) else Participation(fraction=value)
