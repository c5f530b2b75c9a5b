"""Tuning looks at validation data alone, spends the same on every method and keeps a record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evenfed as ef
from evenfed.core.errors import ConfigError
from evenfed.methods.registry import methods
from evenfed.runs.config import DataConfig, MethodConfig, RunConfig
from evenfed.runs.plan import PlannedRun, TuneConfig
from evenfed.runs.study import open_study
from evenfed.runs.tuning import trials, tune

FAST: dict[str, Any] = {"rounds": 2, "engine": "vectorized", "evaluate_every": 0}


@pytest.mark.parametrize("name", methods())
def test_no_method_gets_more_trials_than_another_and_defaults_are_among_them(name: str) -> None:
    cls = methods()[name]
    found = trials(cls, {}, TuneConfig())
    assert found.first[0] == {}
    if "local" in cls.__dataclass_fields__:
        assert len(found) == TuneConfig().budget
    assert len(found) <= TuneConfig().budget
    every = [*found.first, *found.further]
    assert len({json.dumps(t, sort_keys=True) for t in every}) == len(every)


@pytest.mark.parametrize("name", methods())
def test_every_method_that_trains_locally_has_the_first_rates(name: str) -> None:
    cls = methods()[name]
    rates = [0.3, 0.7, 0.05, 0.02]
    found = trials(cls, {}, TuneConfig(budget=6, rates=rates))
    if "local" in cls.__dataclass_fields__ and "local.lr" not in cls.grid:
        assert found.first[:3] == [{}, {"local.lr": 0.3}, {"local.lr": 0.7}]
    assert all("local.lr" not in options for options in found.further)


def test_trials_that_a_grid_does_not_need_go_to_more_rates() -> None:
    plan = TuneConfig(budget=6, rates=[0.3, 0.7, 0.05, 0.02, 0.01])
    plain, term = (trials(methods()[name], {}, plan) for name in ("fedavg", "term"))
    assert (len(plain.first), len(plain.further)) == (6, 0)
    assert (len(term.first), len(term.further)) == (4, 2)
    few = TuneConfig(budget=6, rates=[0.3])
    assert len(trials(methods()["term"], {}, few).further) == 4


def test_values_of_one_option_are_tried_from_end_to_end() -> None:
    grid = methods()["qffl"].grid["q"]
    found = trials(methods()["qffl"], {}, TuneConfig(budget=10))
    tried = [options["q"] for options in found.further]
    assert (tried[0], tried[-1]) == (min(grid), max(grid))
    assert tried == sorted(tried)


def test_options_are_tried_one_at_a_time_each_from_end_to_end() -> None:
    cls = methods()["fedeba"]  # tau = 2 and alpha = 0.3 are its defaults
    rates = [0.05, 0.2, 0.4, 0.8, 0.02, 0.3]
    found = trials(cls, {}, TuneConfig(budget=12, rates=rates))
    assert found.further == [{"tau": 0.05}, {"tau": 5.0}, {"alpha": 0.1}, {"alpha": 0.9}]
    odd = trials(cls, {}, TuneConfig(budget=10, rates=rates[:4]))
    assert odd.further == [{"tau": 0.05}, {"tau": 5.0}, {"alpha": 0.1}]
    single = {"tau": (0.05, 0.1, 0.5, 1.0, 5.0), "alpha": (0.1, 0.5, 0.9)}
    every = trials(cls, {}, TuneConfig(budget=100, rates=rates)).further
    assert every == [{option: value} for option, values in single.items() for value in values]


def test_rates_next_to_the_best_are_tried_again_with_the_best_options() -> None:
    rates = [0.05, 0.2, 0.4, 0.8, 0.02, 0.07, 0.12]
    found = trials(methods()["fedeba"], {}, TuneConfig(budget=12, rates=rates))
    assert (len(found.first), len(found.further), found.again) == (6, 4, 2)
    first = [{}, *({"local.lr": rate} for rate in rates[:5])]
    assert found.first == first

    def beside(best: dict[str, float]) -> list[dict[str, float]]:
        at = {k: v for k, v in best.items() if k == "local.lr"}
        return found.beside(best, [*first, *({**at, **own} for own in found.further)])

    # an option of its own won: rates that every method has tried
    assert beside({"local.lr": 0.05, "alpha": 0.1}) == [
        {"local.lr": 0.1, "alpha": 0.1}, {"local.lr": 0.02, "alpha": 0.1}
    ]  # fmt: skip
    assert beside({"local.lr": 0.8, "tau": 5.0}) == [
        {"local.lr": 0.4, "tau": 5.0}, {"local.lr": 0.2, "tau": 5.0}
    ]  # fmt: skip
    assert [options["local.lr"] for options in beside({"alpha": 0.9})] == [0.2, 0.05]
    # none did: rates between those
    assert beside({}) == [{"local.lr": 0.12}, {"local.lr": 0.07}]


def test_few_trials_leave_none_for_trying_rates_again() -> None:
    rates = [0.05, 0.2, 0.4, 0.8, 0.02, 0.07, 0.12]
    assert trials(methods()["fedeba"], {}, TuneConfig(budget=8, rates=rates)).again == 0
    assert trials(methods()["fedavg"], {}, TuneConfig(budget=12, rates=rates)).again == 0


def test_no_trial_repeats_the_defaults() -> None:
    plan = TuneConfig(budget=50, rates=[0.1, 0.3])
    found = trials(methods()["fedprox"], {}, plan)  # mu = 0.01 and a rate of 0.1 are its defaults
    assert found.first == [{}, {"local.lr": 0.3}]
    default = methods()["fedprox"]().mu  # type: ignore[attr-defined]
    assert {"mu": default} not in found.further
    assert len(found.further) == len([v for v in methods()["fedprox"].grid["mu"] if v != default])


def test_what_the_study_sets_is_not_tuned() -> None:
    found = trials(methods()["fedprox"], {"mu": None}, TuneConfig(budget=50))
    assert found.further == []
    assert any("local.lr" in options for options in found.first)
    assert trials(methods()["fedprox"], {"local.lr": None}, TuneConfig(budget=50)).first == [{}]


@dataclass
class Said:
    """A trial whose loss was made up."""

    loss: float
    data: Any = field(default_factory=lambda: ef.load("synthetic", examples=100))

    def summary(self, split: str = "test") -> pd.Series[float]:
        return pd.Series({"loss": self.loss})


def test_own_options_are_tried_at_the_best_rate() -> None:
    config = RunConfig(method=MethodConfig(name="fedprox"), data=DataConfig(name="synthetic"))
    seen: list[tuple[float, float]] = []

    def trial(plan: PlannedRun) -> Said:
        method = plan.config.built_method()
        lr, mu = method.local.lr, method.mu  # type: ignore[attr-defined]
        seen.append((lr, mu))
        return Said(abs(lr - 0.5) + abs(mu - 0.001))

    plan = TuneConfig(budget=6, rates=[0.3, 0.5, 0.7], metric="loss")
    choice = tune(PlannedRun("fedprox", "synthetic", 0, config), plan, trial)
    assert seen == [(0.1, 0.01), (0.3, 0.01), (0.5, 0.01), (0.7, 0.01), (0.5, 0.001), (0.5, 1.0)]
    assert choice.options == {"local.lr": 0.5, "mu": 0.001}


def test_a_rate_that_suits_the_best_options_is_found() -> None:
    config = RunConfig(method=MethodConfig(name="fedprox"), data=DataConfig(name="synthetic"))

    def trial(plan: PlannedRun) -> Said:
        method = plan.config.built_method()
        lr, mu = method.local.lr, method.mu  # type: ignore[attr-defined]
        return Said(abs(lr - 0.3) if mu < 0.01 else abs(lr - 0.1) + 0.5)

    plan = TuneConfig(budget=10, rates=[0.3, 0.5, 0.7, 0.9], metric="loss")
    choice = tune(PlannedRun("fedprox", "synthetic", 0, config), plan, trial)
    assert len(choice.tried) == 10
    assert choice.options == {"local.lr": 0.3, "mu": 0.001}


def test_the_choice_is_the_best_on_validation_data_and_the_table_says_so(tmp_path: Path) -> None:
    out = tmp_path / "s"
    rates = [0.0001, 0.3]
    result = ef.study(
        "fedavg", "synthetic", seeds=[0, 1], references=[], out=out,
        tune={"budget": 3, "rates": rates, "metric": "loss"}, **FAST,
    )  # fmt: skip
    (record,) = json.loads((out / "tuning.json").read_text())
    expected = [
        ef.train("fedavg", "synthetic", **options, **FAST).summary("val")["loss"]
        for options in ({}, {"lr": rates[0]}, {"lr": rates[1]})
    ]
    assert [row["value"] for row in record["tried"]] == pytest.approx(expected, abs=1e-12)
    best = expected.index(min(expected))
    assert record["options"] == record["tried"][best]["options"]
    chosen = record["options"].get("local.lr", 0.1)
    own = ef.train("fedavg", "synthetic", seed=1, lr=chosen, **FAST)
    measured = {run.seed: run.measured for run in result.runs}[1]
    assert measured is not None
    assert measured["metrics"]["accuracy"] == pytest.approx(own.summary()["accuracy"], abs=1e-12)
    for study in (result, open_study(out)):
        note = study.table().loc[("synthetic", "fedavg")]["runs", "note"]
        assert "tuned: best of 3 settings by loss on validation data" in note


def test_a_broken_study_does_not_tune_again(tmp_path: Path) -> None:
    out = tmp_path / "s"
    options: dict[str, Any] = {"seeds": [0], "references": [], "out": out, "tune": {"budget": 2}}
    ef.study("fedavg", "synthetic", **options, **FAST)
    record = json.loads((out / "tuning.json").read_text())
    record[0]["options"] = {"local.lr": 0.25}
    (out / "tuning.json").write_text(json.dumps(record))
    again = ef.study("fedavg", "synthetic", **options, **FAST)
    assert "lr=0.25" in again.table().loc[("synthetic", "fedavg")]["runs", "note"]


def test_a_setting_that_diverges_cannot_win() -> None:
    result = ef.study(
        "fedavg:lr=0.1", "synthetic", seeds=[0], references=[], tune={"budget": 2}, **FAST
    )
    assert not result.failed
    result = ef.study(
        "fedavg", "synthetic", seeds=[0], references=[],
        tune={"budget": 3, "rates": [1e38, 0.2]}, **FAST,
    )  # fmt: skip
    assert "1e+38" not in result.table().loc[("synthetic", "fedavg")]["runs", "note"]


def test_a_wrong_metric_or_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="metric 'acuracy' is unknown"):
        ef.study("fedavg", "synthetic", seeds=[0], tune={"metric": "acuracy"}, **FAST)
    with pytest.raises(ConfigError, match=r"tune.on.*'val'"):
        ef.study("fedavg", "synthetic", seeds=[0], tune="test", **FAST)
