"""What clients reach alone: Local, trained after a run for the reference row of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evenfed.core.errors import EvenfedError
from evenfed.core.local import LocalTraining
from evenfed.core.randomness import numpy_generator
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.auto import AutoEngine
from evenfed.methods.base import EVALUATION
from evenfed.methods.local import Local
from evenfed.metrics.bootstrap import Interval
from evenfed.runs.evaluation import clean
from evenfed.runs.geometry import Wanted, extent_of, geometry_result, rate_of
from evenfed.runs.runner import Runner, Settings

WantedReference = bool | Literal["auto"]
"""The option `local_reference` of a config."""

_COSTLY = 3
"""Clients that `auto` trains for one of a cohort; of more it draws a sample."""
_LEAST = 5
"""Clients of the smallest sample."""


def reference_of(runner: Runner, wanted: WantedReference, geometry: Wanted) -> dict[str, Any]:
    """Local on the data, model, local training, rounds and seed of a finished run, evaluated.

    Every client that the run evaluates trains in every round, whatever the cohorts were; where that
    would cost far more than the run, a sample of them, drawn by the seed, and `sample` holds the
    run's own metrics on these. The regulariser of the run's local training is left out. Nothing of
    it is counted as the run's: it has a federation of its own. Where it is not trained, `absent`
    says why.
    """
    if why := _absent(runner):
        return {"method": Local.name, "absent": why}
    asked, chosen = runner.evaluated_clients(), _chosen(runner, wanted)
    rounds = runner.settings.rounds
    some = "" if len(chosen) == len(asked) else f" of {len(asked)}, drawn by the seed,"
    hint = "--no-reference leaves it out" + (", --reference takes all" if some else "")
    runner.observer.say(
        f"training what {len(chosen)} clients{some} reach alone in {rounds} rounds, for reference "
        f"({hint})"
    )
    try:
        trained = _trained(runner, chosen)
        found = _measured(runner, trained, geometry)
        return {**found, "sample": _beside(runner, chosen)} if some else found
    except EvenfedError as error:  # the run itself is not lost by it
        why = " ".join(str(error).split())
        runner.observer.say(f"warning: Local, the reference, has no result: {why}")
        return {"method": Local.name, "absent": f"its training failed: {why}"}


def _absent(runner: Runner) -> str:
    """Why there is no reference; nothing where there can be one."""
    if isinstance(runner.method, Local):
        return "the run itself is of Local"
    if runner.federation.remote:
        return (
            "the nodes of engine 'flower' train one method a run: "
            "`evenfed run --method local --engine flower` is a run of its own"
        )
    return ""


def _chosen(runner: Runner, wanted: WantedReference) -> NDArray[np.int64]:
    """The clients that train alone: all that are evaluated, or as many as cost little."""
    asked = runner.evaluated_clients()
    cohort = runner.federation.participation.cohort_size(len(runner.data))
    most = max(_COSTLY * cohort, _LEAST)
    if wanted != "auto" or len(asked) <= most:
        return asked
    rng = numpy_generator(runner.settings.seed, "reference clients")
    tested = runner.data.sizes("test")
    # a client without test examples could tell nothing
    may = asked if tested is None else asked[tested[asked] > 0]
    return may if len(may) <= most else may[np.sort(rng.choice(len(may), most, replace=False))]


def _beside(runner: Runner, chosen: NDArray[np.int64]) -> dict[str, Any]:
    """The run's own metrics on the clients that were drawn, for a fair comparison."""
    found = runner.evaluate("test", chosen.tolist())
    return {
        "clients": len(chosen),
        "of": len(runner.evaluated_clients()),
        "metrics": clean(found.summary()),
        "intervals": _ends(found.intervals(seed=runner.settings.seed)),
    }


def _ends(found: Mapping[str, Interval]) -> dict[str, list[float | None]]:
    return {name: [span.low, span.high] for name, span in found.items()}


def _trained(runner: Runner, chosen: NDArray[np.int64]) -> Runner:
    data = runner.data
    if len(chosen) < len(data):
        data = FederatedDataset(data.schema, [data.client(int(i)) for i in chosen])
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
    """As in the result of a run: metrics, intervals; and each client's value and loss."""
    seed = runner.settings.seed
    found = trained.evaluate("test")
    clients = found.clients()
    value = "loss" if found.regression else "accuracy"
    result: dict[str, Any] = {
        "method": Local.name,
        "metrics": clean(found.summary()),
        "intervals": _ends(found.intervals(seed=seed)),
        "ledger": [EVALUATION.meaning],
        "clients": clean(clients[value].to_dict()),
        "losses": clean(clients["loss"].to_dict()),
    }
    if (extent := extent_of(runner, geometry)) is not None:
        measured = geometry_result(trained, seed, extent, rate_of(runner.method))
        result["geometry"] = measured["geometry"]
    return result
