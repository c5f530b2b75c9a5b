"""Tuning looks at validation data alone, spends the same on every method and keeps a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import evenfed as ef
from evenfed.core.errors import ConfigError
from evenfed.methods.registry import methods
from evenfed.runs.plan import TuneConfig
from evenfed.runs.study import open_study
from evenfed.runs.tuning import candidates

FAST: dict[str, Any] = {"rounds": 2, "engine": "vectorized", "evaluate_every": 0}


@pytest.mark.parametrize("name", methods())
def test_no_method_gets_more_trials_than_another_and_defaults_are_among_them(name: str) -> None:
    tried = candidates(methods()[name], {}, TuneConfig(budget=4))
    assert tried[0] == {}
    assert 1 <= len(tried) <= 4
    assert len({json.dumps(t, sort_keys=True) for t in tried}) == len(tried)


def test_what_the_study_sets_is_not_tuned() -> None:
    tried = candidates(methods()["fedprox"], {"mu": None}, TuneConfig(budget=50))
    assert all("mu" not in options for options in tried)
    assert any("local.lr" in options for options in tried)


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
