"""What clients reach alone: Local, trained after a run for the reference row of its report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from evenfed.core.errors import EvenfedError
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.auto import AutoEngine
from evenfed.engines.federation import NOTED_CLIENTS
from evenfed.methods.base import EVALUATION
from evenfed.methods.local import Local
from evenfed.runs.evaluation import clean
from evenfed.runs.geometry import Wanted, extent_of, geometry_result, rate_of
from evenfed.runs.runner import Runner, Settings

WantedReference = bool | Literal["auto"]
"""The option `local_reference` of a config."""

_COSTLY = 3
"""Clients that are evaluated for one of a cohort, beyond which `auto` does not train them."""


def reference_of(runner: Runner, wanted: WantedReference, geometry: Wanted) -> dict[str, Any]:
    """Local on the data, model, local training, rounds and seed of a finished run, evaluated.

    Every client that the run evaluates trains in every round, whatever the cohorts were. The
    regulariser of the run's local training is left out. Nothing of it is counted as the run's: it
    has a federation of its own. Where it is not trained, `absent` says why.
    """
    if why := _absent(runner, wanted):
        return {"method": Local.name, "absent": why}
    count, rounds = len(runner.evaluated_clients()), runner.settings.rounds
    runner.observer.say(
        f"training what {count} clients reach alone in {rounds} rounds, for reference "
        "(--no-reference leaves it out)"
    )
    try:
        trained = _trained(runner)
        return _measured(runner, trained, geometry)
    except EvenfedError as error:  # the run itself is not lost by it
        why = " ".join(str(error).split())
        runner.observer.say(f"warning: Local, the reference, has no result: {why}")
        return {"method": Local.name, "absent": f"its training failed: {why}"}


def _absent(runner: Runner, wanted: WantedReference) -> str:
    """Why there is no reference; nothing where there can be one."""
    if isinstance(runner.method, Local):
        return "the run itself is of Local"
    if runner.federation.remote:
        return (
            "the nodes of engine 'flower' train one method a run: "
            "`evenfed run --method local --engine flower` is a run of its own"
        )
    asked = len(runner.evaluated_clients())
    cohort = runner.federation.participation.cohort_size(len(runner.data))
    if wanted == "auto" and asked > _COSTLY * cohort:
        return (
            f"training {asked} clients in every round costs more than {_COSTLY} times the run, "
            f"which trains {cohort} of them in one: `--reference` does so nevertheless, and "
            f"`--set evaluate_clients={_COSTLY * cohort}` asks fewer clients"
        )
    return ""


def _trained(runner: Runner) -> Runner:
    asked = runner.evaluated_clients()
    data = runner.data
    if len(asked) < len(data):
        data = FederatedDataset(data.schema, [data.client(int(i)) for i in asked])
    local = getattr(runner.method, "local", None)
    plain = replace(local, regularizer="none") if isinstance(local, LocalTraining) else None
    settings = Settings(
        runner.settings.rounds, runner.settings.seed, evaluate_every=0, tail=runner.settings.tail
    )
    trained = Runner(
        Local() if plain is None else Local(local=plain), data, runner.task, settings,
        engine=runner.federation.options,
    )  # fmt: skip
    ours, theirs = trained.federation.engine, runner.federation.engine
    if isinstance(ours, AutoEngine) and theirs.name in ("vectorized", "sequential"):
        # no second probe, whose outcome could differ when the run is resumed
        ours.chosen = getattr(ours, theirs.name)
    trained.run()
    return trained


def _measured(runner: Runner, trained: Runner, geometry: Wanted) -> dict[str, Any]:
    """As in the result of a run: metrics, intervals; each client's value where they are few."""
    seed = runner.settings.seed
    found = trained.evaluate("test")
    intervals = {k: [v.low, v.high] for k, v in found.intervals(seed=seed).items()}
    clients = found.clients()
    value = "loss" if found.regression else "accuracy"
    result: dict[str, Any] = {
        "method": Local.name,
        "metrics": clean(found.summary()),
        "intervals": intervals,
        "ledger": [EVALUATION.meaning],
    }
    if len(clients) <= NOTED_CLIENTS:
        result["clients"] = clean(clients[value].to_dict())
        result["losses"] = clean(clients["loss"].to_dict())
    if (extent := extent_of(runner, geometry)) is not None:
        measured = geometry_result(trained, seed, extent, rate_of(runner.method))
        result["geometry"] = measured["geometry"]
    return result
