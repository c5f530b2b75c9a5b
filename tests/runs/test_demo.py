from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evenfed.cli import app
from evenfed.data.registry import sources
from evenfed.runs import demo
from evenfed.runs.comparison import Study, StudyRun
from evenfed.runs.config import parse
from evenfed.runs.folder import CELLS, FRONT
from evenfed.runs.plan import PlannedRun
from evenfed.runs.table import REFERENCE
from evenfed.runs.train import run_config

SEEDS = (0, 1, 2)
FIVE = {"fedeba", "ser", "focus", "pffl", "hetpfl"}


def front(errors: list[int], selected: list[list[int]]) -> dict[str, Any]:
    """Front of one client with 10 examples in each of two groups, at preferences 0, 0.5, 1."""
    part = {
        "examples": [10, 10],
        "errors": [[e, e] for e in errors],
        "selected": selected,
    }
    return {"preferences": [0.0, 0.5, 1.0], "clients": {"a": {"test": part}, "b": {"test": None}}}


def written(plan: PlannedRun, values: dict[str, Any], folder: Path) -> StudyRun:
    """A run with given metrics, as if it had been carried out."""
    measured = {
        "metrics": values, "cost": {"void_rounds": 0}, "dropped": {}, "seed": plan.seed,
        "certificate": {"violation": values.get("violation")},
        "task": {"kind": "binary", "groups": ["a", "b"]},
    }  # fmt: skip
    return StudyRun(plan.method, plan.dataset, plan.seed, measured, folder=folder)


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Fronts by seed, read instead of files."""
    found = {s: front([1, 2, 3], [[8 + s % 2, 2], [7, 3], [5, 5]]) for s in SEEDS}
    monkeypatch.setattr(demo, "_front", lambda run: found[run.seed])
    return found


def study_of(worst: dict[str, float], **more: float) -> Study:
    """The demo's study with these accuracies of the worst client; seeds differ a little."""
    runs = []
    for plan in demo.demo_config().planned():
        values = {
            "client_accuracy_min": worst.get(plan.method, 0.5) + 0.001 * plan.seed,
            "client_accuracy_std": 0.1, "client_accuracy_mean": 0.7,
            "accuracy": 0.8 if plan.method == "pffl" else 0.9, "constant_accuracy": 0.88,
            "accuracy_group_min": 0.4, "demographic_parity_difference": 0.3,
            "loss_group_max": (0.7 if plan.method == "pffl" else 0.5) + 0.001 * plan.seed,
            "violation": -0.01 + 0.02 * (plan.seed == 2), **more,
        }  # fmt: skip
        runs.append(written(plan, values, Path()))
    return Study(demo.demo_config(), runs)


def test_all_five_methods_stand_beside_fedavg_and_every_dataset_has_its_references() -> None:
    plans = demo.demo_config().planned()
    assert {plan.method for plan in plans} >= FIVE
    for dataset in ("digits", "loans", "synthetic"):
        assert {"fedavg", "local"} <= {p.method for p in plans if p.dataset == dataset}
        assert sources()[dataset].needs == "nothing"
    # digits know which clients are of one kind: excess risk is FOCUS's own there
    assert {plan.dataset for plan in plans if plan.config.excess} == {"digits"}


def test_sentences_follow_the_numbers(fronts: dict[int, Any]) -> None:
    worst = {"fedavg": 0.2, "fedeba": 0.2, "ser": 0.1, "focus": 0.8, "local": 0.7}
    clients, groups, trade_off = demo.findings(study_of(worst))
    assert "0.20 with the one model of fedavg" in clients
    assert "0.80 with focus" in clients
    assert (
        "clearly better: focus, local; clearly worse: ser; no clear difference: fedeba" in clients
    )
    # excess -0.01, -0.01, +0.01: met in two of three; mean -1/300
    assert "did in 2 of 3 runs (largest loss 0.417 on average)" in groups
    assert "0.701 against 0.501 with fedavg (clearly higher)" in groups
    assert "0.800 against 0.900 (clearly lower" in groups
    # by hand: 0.6, 0.7, 0.6 at preference 0, then 0; accuracy 0.9 to 0.7
    assert "from 0.633 to 0.000 (clearly smaller)" in trade_off
    assert "accuracy from 0.900 to 0.700 (clearly lower)" in trade_off
    assert "fedavg has 0.300 and 0.900" in trade_off


def test_sentences_turn_with_the_numbers(fronts: dict[int, Any]) -> None:
    for seed in SEEDS:
        fronts[seed] = front([3, 2, 1], [[5, 5], [7, 3], [5 + seed, 5]])
    clients, _, trade_off = demo.findings(study_of({"fedavg": 0.9, "focus": 0.2}))
    assert "clearly worse: fedeba, ser, focus, local." in clients
    assert "clearly better" not in clients
    assert "from 0.000 to 0.100 (no clear difference)" in trade_off
    assert "accuracy from 0.700 to 0.900 (clearly higher)" in trade_off


def test_a_study_that_is_not_the_demo_or_has_failures_is_not_explained() -> None:
    study = study_of({})
    broken = [*study.runs[1:], StudyRun("fedavg", "digits", 0, error="diverged")]
    assert demo.findings(Study(study.config, broken)) == []


def test_tables_show_the_front_as_models_and_references_last(fronts: dict[int, Any]) -> None:
    digits, loans, synthetic = demo.tables(study_of({}))
    assert [row.label for row in digits.rows] == [
        "fedavg", "fedeba", "ser", "focus", "local (reference)", REFERENCE,
    ]  # fmt: skip
    assert "pffl" in [row.label for row in loans.rows]
    labels = [row.label for row in synthetic.rows]
    assert labels[1:4] == [f"hetpfl, preference {p}" for p in ("0", "0.5", "1")]
    assert synthetic.rows[1].cells["accuracy"].summary.mean == pytest.approx(0.9)  # type: ignore[union-attr]


def test_the_command_prints_tables_sentences_and_where_the_report_is(
    fronts: dict[int, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    study = replace(study_of({"focus": 0.8}), folder=tmp_path)
    monkeypatch.setattr(demo, "run_demo", lambda *a, **k: study)
    monkeypatch.setattr("evenfed.report.page.write_page", lambda folder: folder / "report.html")
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    for sentence in demo.findings(study):
        assert sentence in text
    for dataset, about in demo.ABOUT.items():
        assert f"{dataset}: {about}" in text
    assert "hetpfl, preference 0.5" in text
    assert done.stdout.splitlines()[-1] == f"report {tmp_path / 'report.html'}"


def test_the_front_of_a_real_run_agrees_with_its_metrics(tmp_path: Path) -> None:
    """At the preference in use, own models on test data are what an evaluation measures."""
    table = {
        "data": {"name": "synthetic", "examples": 400, "test_examples": 300}, "rounds": 1,
        "method": {"name": "hetpfl", "local": {"epochs": 2}, "fusion_steps": 1},
        "engine": {"engine": "vectorized"},
    }  # fmt: skip
    result = run_config(parse(table), tmp_path / "run")
    assert (tmp_path / "run" / CELLS).is_file()
    found = demo.of_preference(json.loads((tmp_path / "run" / FRONT).read_text()), 0.5)
    summary = result.summary()
    for name in ("accuracy", "demographic_parity_difference"):
        assert found[name] == pytest.approx(summary[name], abs=1e-12)
