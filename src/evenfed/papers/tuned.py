"""Runs of tables that compare methods under one budget of tuning.

Every row gets the same number of trials, on validation data of a seed that the table does not use;
the setting with the best mean over the last evaluations wins, and the table's seeds are run with
it, on test data. A trial is a full run. What was chosen is a function of the settings alone, so
the jobs of a row find the same setting, in whatever process they run.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd

from evenfed.core import models
from evenfed.core.errors import ConfigError
from evenfed.data.dataset import FederatedDataset, Split
from evenfed.data.registry import load
from evenfed.data.transforms import LabelNoise
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.runs.config import DataConfig, MethodConfig, RunConfig
from evenfed.runs.evaluation import Evaluation
from evenfed.runs.plan import PlannedRun, TuneConfig, method_entry
from evenfed.runs.result import Result
from evenfed.runs.runner import Runner, Settings, Silent, build_task
from evenfed.runs.tuning import Choice, tune

TUNING_SEED = 100
"""Data, first weights and batches of trials; no table has this seed."""
METRIC = "client_accuracy_mean"


@dataclass
class Watched(Silent):
    """Evaluates a run every so many rounds, and keeps what a table needs of it."""

    split: Split
    every: int
    runner: Runner | None = None
    found: dict[int, Evaluation] = field(default_factory=dict)

    def round_done(self, line: dict[str, Any]) -> None:
        """Evaluate, if it is the turn of this round."""
        done = line["round"] + 1
        if self.runner is not None and done % self.every == 0:
            self.found[done] = self.runner.evaluate(self.split)


@dataclass(frozen=True)
class Trained:
    """A finished run with its evaluations on one split, by round.

    Parameters
    ----------
    last : int
        How many of the last evaluations are averaged: with few clients a round, a single one
        says much of the last cohort. 0: the finished run alone, which for methods that end with
        local training is not what the last round left.
    """

    result: Result
    split: Split
    evaluations: dict[int, Evaluation]
    last: int

    @property
    def data(self) -> FederatedDataset:
        """The data it was trained on."""
        return self.result.data

    def _counted(self) -> list[Evaluation]:
        if self.last == 0:
            return [self.result.evaluation(self.split)]
        return list(self.evaluations.values())[-self.last :]

    def summary(self, split: Split = "val") -> pd.Series[float]:
        """Means of the last evaluations."""
        assert split == self.split
        frame = pd.DataFrame([evaluation.summary() for evaluation in self._counted()])
        return frame.mean(skipna=False)

    def accuracies(self) -> pd.DataFrame:
        """Accuracy by evaluation and client."""
        return pd.DataFrame([e.clients()["accuracy"] for e in self._counted()])

    def rounds_to(self, target: float) -> float:
        """First evaluated round with this mean accuracy over clients; NaN if there is none."""
        reached = (done for done, e in self.evaluations.items() if e.summary()[METRIC] >= target)
        return float(next(reached, math.nan))


@lru_cache(maxsize=2)
def _loaded(text: str, seed: int) -> FederatedDataset:
    settings = json.loads(text)
    data = load(settings["dataset"], seed=seed, **settings["data"])
    if "noise" in settings:
        clients, rate = settings["noise"]
        data = LabelNoise(range(clients), rate).apply(data, seed=seed)
    return data


def data_of(settings: Mapping[str, Any], seed: int) -> FederatedDataset:
    """The clients of a job, drawn by the seed; wrong labels only in training data."""
    wanted = {key: settings[key] for key in ("dataset", "data", "noise") if key in settings}
    return _loaded(json.dumps(wanted, sort_keys=True), seed)


def planned(settings: Mapping[str, Any], seed: int) -> PlannedRun:
    """The run of a job, with the options that its row fixes; refused here if they do not fit."""
    method = MethodConfig(**method_entry({"name": settings["method"], **settings["options"]}))
    config = RunConfig(
        method=method, data=DataConfig(name=settings["dataset"]), rounds=settings["rounds"],
        seed=seed, tail=settings["tail"],
    )  # fmt: skip
    config.built_method()
    return PlannedRun(settings["method"], settings["dataset"], seed, config)


def prepared(settings: Mapping[str, Any], plan: PlannedRun, watch: Watched | None = None) -> Runner:
    """A run before its first round."""
    data = data_of(settings, plan.seed)
    schema = data.schema
    model = partial(
        models.build, schema_shape=schema.shape, outputs=schema.classes,
        vocabulary=schema.vocabulary, **settings["model"],
    )  # fmt: skip
    return Runner(
        plan.config.built_method(), data, build_task(data, model, seed=plan.seed),
        Settings(settings["rounds"], plan.seed, evaluate_every=0, tail=settings["tail"]),
        participation=Participation(number=settings["cohort"]),
        engine=EngineOptions(settings["engine"], workers=1), observer=watch,
    )  # fmt: skip


def trained(settings: Mapping[str, Any], plan: PlannedRun, split: Split, every: int) -> Trained:
    """Carry out a run and evaluate it every so many rounds."""
    watch = Watched(split, every)
    runner = prepared(settings, plan, watch)
    watch.runner = runner
    runner.run()
    watch.runner = None
    gc.collect()  # what tracing leaves holds the data
    return Trained(Result(runner, plan.config), split, watch.found, settings["last"])


@cache
def _chosen(text: str) -> Choice:
    settings = json.loads(text)
    budget = TuneConfig(metric=METRIC, **settings["tune"])
    if budget.budget == 1:  # nothing to choose from
        return Choice(METRIC, TUNING_SEED, [], {})
    plan = planned(settings, TUNING_SEED)
    return tune(plan, budget, lambda one: trained(settings, one, "val", settings["every"]))


def chosen(settings: Mapping[str, Any]) -> Choice:
    """The setting that won on validation data of the tuning seed; the same for every seed."""
    if settings["seed"] == TUNING_SEED:
        raise ConfigError(f"seed {TUNING_SEED} is that of tuning; choose another for the table")
    shared = {key: value for key, value in settings.items() if key != "seed"}
    return _chosen(json.dumps(shared, sort_keys=True))


def tried(settings: Mapping[str, Any]) -> dict[str, float]:
    """What was tried for a job's row, in words, with its percentage on validation data."""
    if not settings.get("tune"):
        return {}
    return {
        worded(one["options"]): math.nan if one["value"] is None else round(100 * one["value"], 3)
        for one in chosen(settings).tried
    }


def measured(settings: Mapping[str, Any], split: Split = "test") -> tuple[Trained, str]:
    """A job's run, tuned if it asks for that, and its options in words."""
    plan = planned(settings, settings["seed"])
    options: dict[str, Any] = {}
    if settings.get("tune"):
        options = chosen(settings).options
        plan = plan.using(options)
    run = trained(settings, plan, split, settings["every"])
    return run, worded(options)


def worded(options: Mapping[str, Any]) -> str:
    """Options in a cell.

    Examples
    --------
    >>> worded({"tau": 0.5, "local.lr": 0.1})
    'tau=0.5, lr=0.1'
    """
    return ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in options.items()) or "defaults"


def client_values(run: Trained) -> dict[str, float]:
    """Mean, variance, tails and coefficient of variation over clients, in percent."""
    found = run.summary(run.split)
    return {
        "mean": 100 * float(found["client_accuracy_mean"]),
        "variance": 1e4 * float(found["client_accuracy_variance"]),
        "worst": 100 * float(found["client_accuracy_worst_tail"]),
        "best": 100 * float(found["client_accuracy_best_tail"]),
        "cv": 100 * float(found["client_accuracy_coefficient_of_variation"]),
    }


def mean_of(run: Trained, clients: list[int]) -> float:
    """Mean accuracy over some clients, in percent."""
    names = [run.data.client(i).name for i in clients]
    return 100 * float(np.mean(run.accuracies()[names].to_numpy()))
