"""The same run without SER's regulariser: what its loss geometry is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evenfed.core.errors import EvenfedError
from evenfed.runs.config import MethodConfig

if TYPE_CHECKING:
    from evenfed.runs.plan import PlannedRun


def has_ser(method: MethodConfig) -> bool:
    """Whether local training is regularised by sign entropy, with a strength above 0.

    Examples
    --------
    >>> has_ser(MethodConfig(name="ser")), has_ser(MethodConfig(name="fedavg"))
    (True, False)
    """
    local = _options(method).get("local") or {}
    used = method.name == "ser" or local.get("regularizer") == "ser"
    return bool(used and (local.get("ser") or {}).get("rho", 1.0) != 0)


def without_ser(method: MethodConfig) -> str:
    """What a method is without the regulariser; equal for two that differ in nothing else.

    `ser` without it is FedAvg, with `mu` FedProx; its clients predict with models of their own.

    Examples
    --------
    >>> without_ser(MethodConfig(name="ser")) == without_ser(MethodConfig(name="fedavg"))
    True
    >>> without_ser(MethodConfig(name="ser")) == without_ser(MethodConfig(name="fedavg", lr=0.5))
    False
    """
    options = _options(method)
    options["local"] = {
        k: v for k, v in (options.get("local") or {}).items() if k not in ("regularizer", "ser")
    }
    name = method.name
    if name == "ser":
        name = "fedprox" if options.get("mu") else "fedavg"
        for own in ("adaptive", "deploy", *(() if options.get("mu") else ("mu",))):
            options.pop(own, None)
    return json.dumps([name, options], sort_keys=True)


def _options(method: MethodConfig) -> dict[str, Any]:
    """All options written out; as they are where the method refuses them, as its run will say."""
    try:
        return dict(method.completed().options)
    except EvenfedError:
        return dict(method.options)


def with_twins(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The runs; where SER's loss geometry is measured, also that of the same run without it."""
    planned = list(runs)
    asked: dict[tuple[str, int], set[str]] = {}
    for run in planned:
        if run.config.geometry == "panel" and has_ser(run.config.method):
            asked.setdefault((run.dataset, run.seed), set()).add(without_ser(run.config.method))
    return [
        _measured(run, asked.get((run.dataset, run.seed), set())) if asked else run
        for run in planned
    ]


def _measured(run: PlannedRun, asked: set[str]) -> PlannedRun:
    method = run.config.method
    if run.config.geometry != "panel" or has_ser(method) or without_ser(method) not in asked:
        return run
    return replace(run, config=run.config.model_copy(update={"geometry": "few"}))
