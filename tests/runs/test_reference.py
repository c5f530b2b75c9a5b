"""What clients reach alone stands beside a run: trained once, kept in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.core.errors import EvenfedError
from evenfed.methods.base import EVALUATION
from evenfed.metrics.proportion import wilson
from evenfed.report.page import opened, page_of, write_page
from evenfed.report.sections import Section
from evenfed.runs.config import parse
from evenfed.runs.folder import RESULT, RunFolder
from evenfed.runs.plan import parse_study
from evenfed.runs.result import Result
from evenfed.runs.run_text import run_text
from evenfed.runs.runner import Runner
from evenfed.runs.train import resume, run_config

ENGINE = {"engine": "vectorized"}
TABLE: dict[str, Any] = {
    "data": "loans", "rounds": 2, "engine": ENGINE, "method": {"name": "qffl", "lr": 0.05}
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    run_config(parse(TABLE), folder)
    return folder


def section(folder: Path, key: str) -> Section:
    return next(s for s in page_of(opened(folder)).parts[0].sections if s.key == key)


def test_the_reference_is_a_run_of_local_on_the_same_data(run: Path) -> None:
    own = run_config(parse({**TABLE, "method": {"name": "local", "lr": 0.05}}))
    found = RunFolder(run).result()["reference"]
    assert found["metrics"] == own.measured()["metrics"]
    assert found["intervals"] == own.measured()["intervals"]
    assert found["clients"] == own.clients["accuracy"].to_dict()


def test_the_reference_is_a_row_with_intervals_and_the_constant_predictor_another(
    run: Path,
) -> None:
    good = section(run, "good")
    (grid,) = good.grids
    assert [row[0] for row in grid.rows] == [
        "qffl", "local (reference)", "constant predictor (reference)"
    ]  # fmt: skip
    assert [grid.mark(i, 0) for i in range(3)] == ["", "reference", "reference"]
    found = RunFolder(run).result()
    low, high = found["reference"]["intervals"]["accuracy"]
    column = list(grid.head).index("accuracy ↑")
    value = found["reference"]["metrics"]["accuracy"]
    assert grid.rows[1][column] == f"{value:.3f}\n({low:.3f} to {high:.3f})"
    always, n = found["metrics"]["constant_accuracy"], found["task"]["tested_on"]
    low, high = wilson(always * n, n) or (0, 0)
    assert grid.rows[2][column] == f"{always:.3f}\n({low:.3f} to {high:.3f})"
    assert f"alone (Local) are right in {100 * value:.0f} %" in " ".join(good.sentences)


def test_the_page_counts_who_is_better_off_than_alone(run: Path) -> None:
    clients = section(run, "clients")
    own, alone = opened(run).clients["accuracy"], RunFolder(run).result()["reference"]["clients"]  # type: ignore[union-attr,index]
    better = sum(own[name] > alone[name] for name in alone)
    worse = sum(own[name] < alone[name] for name in alone)
    said = " ".join(clients.sentences)
    assert f"{better} client" in said
    assert f"of {len(alone)} {'is' if better == 1 else 'are'} better off" in said
    assert f"{worse} worse" in said
    dots = next(f for f in clients.figures if f.key == "clients")
    assert [row.label for row in dots.rows] == ["qffl", "local (reference)"]  # type: ignore[union-attr]
    assert {d.name: d.value for d in dots.rows[1].dots} == alone  # type: ignore[union-attr]


def test_excess_risks_of_a_run_are_over_the_lower_loss_of_it_and_local(run: Path) -> None:
    clients = section(run, "clients")
    record = opened(run)
    own, alone = record.clients["loss"], RunFolder(run).result()["reference"]["losses"]  # type: ignore[union-attr,index]
    bars = next(f for f in clients.figures if f.key == "excess")
    assert [row.label for row in bars.rows] == ["qffl", "local (reference)"]  # type: ignore[union-attr]
    for i, name in enumerate(own.index):
        lower = min(own[name], alone[name])
        expected = [own[name] - lower, alone[name] - lower]
        assert [row.values[i] for row in bars.rows] == pytest.approx(expected)  # type: ignore[union-attr]
    assert "lower of the run's loss and Local's" in " ".join(clients.notes)


def test_the_ledger_names_what_the_reference_sends_and_the_cost_leaves_it_out(run: Path) -> None:
    rows = section(run, "ledger").grids[0].rows
    assert [row[1] for row in rows if row[0] == "local (reference)"] == [EVALUATION.meaning]
    without = run_config(parse({**TABLE, "local_reference": False}))
    cost, theirs = RunFolder(run).result()["cost"], without.measured()["cost"]
    assert {**cost, "seconds": 0} == {**theirs, "seconds": 0}
    assert "Training Local for reference is no part of it." in section(run, "cost").notes


def test_the_page_is_built_again_without_training(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = write_page(run).read_text()
    again = resume(run)

    def refuse(self: Runner) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Runner, "run", refuse)
    assert write_page(run).read_text() == page
    assert again.reference == RunFolder(run).result()["reference"]


def test_a_run_killed_while_its_reference_trains_goes_on_to_the_same_result(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("evenfed.runs.result.reference_of", killed)
        with pytest.raises(KeyboardInterrupt):
            run_config(parse(TABLE), tmp_path / "run")
    assert not (tmp_path / "run" / RESULT).exists()
    resume(tmp_path / "run")
    ours, theirs = (RunFolder(path).result() for path in (tmp_path / "run", run))
    for result in (ours, theirs):
        result["cost"].pop("seconds")
    assert ours == theirs


def test_python_trains_it_only_for_a_report(tmp_path: Path) -> None:
    result = ef.train("fedavg", "synthetic", rounds=1, engine="vectorized")
    assert "reference" not in result.measured()
    assert "reference" not in result.record().measured  # type: ignore[operator]
    plain = result.report(tmp_path / "plain.html", reference=False).read_text()
    assert "local (reference)" not in plain
    assert "<code>evenfed study</code> puts it beside" in plain
    assert "local (reference)" in result.report(tmp_path / "whole.html").read_text()
    assert result.measured()["reference"] == result.reference


def test_a_run_can_leave_it_out(tmp_path: Path) -> None:
    result = run_config(parse({**TABLE, "local_reference": False}), tmp_path / "run")
    assert "reference" not in RunFolder(tmp_path / "run").result()
    (grid,) = section(tmp_path / "run", "good").grids
    assert [row[0] for row in grid.rows] == ["qffl", "constant predictor (reference)"]
    assert "`local_reference` is false" in grid.notes[1]
    assert "local (reference)" not in result.report(tmp_path / "own.html").read_text()


def test_local_itself_needs_no_second_and_a_regression_has_one(tmp_path: Path) -> None:
    local = ef.train("local", "synthetic", rounds=1, engine="vectorized")
    assert "itself" in local.reference["absent"]
    text = local.report(tmp_path / "local.html").read_text()
    assert "itself" in text
    assert "there is neither here: <code>evenfed study</code>" in text  # no second Local
    number = ef.train("fedavg", "linear", rounds=1, engine="vectorized")
    alone = ef.train("local", "linear", rounds=1, engine="vectorized")
    assert number.reference["metrics"]["r2"] == alone.summary()["r2"]
    text = number.report(tmp_path / "number.html").read_text()
    value = number.reference["metrics"]["loss"]
    assert f"alone (Local) have a mean loss of {value:.3f}" in text


def cohorts(**more: Any) -> Result:
    data = ef.load("digits", clients=8, seed=0)
    return ef.train("fedavg", data, rounds=2, participation=2, engine="vectorized", **more)


def test_of_few_clients_a_round_a_sample_is_the_reference_beside_the_run_on_the_same() -> None:
    result = cohorts()
    found = result.reference
    data = ef.load("digits", clients=8, seed=0)
    alone = ef.train("local", data, rounds=2, engine="vectorized")
    drawn = list(found["clients"])
    assert (found["sample"]["clients"], found["sample"]["of"]) == (6, 8)  # 3 for one of a cohort
    assert len(drawn) == 6
    assert set(drawn) < set(alone.clients.index)
    # each client alone, whoever else was drawn
    expected = alone.clients.loc[drawn, "accuracy"].to_dict()
    assert found["clients"] == pytest.approx(expected, abs=1e-6)
    # the run on just these clients
    own = result.clients.loc[drawn]
    sample = found["sample"]["metrics"]
    right = (own["accuracy"] * own["examples"]).sum()
    assert sample["accuracy"] == pytest.approx(right / own["examples"].sum())
    assert sample["client_accuracy_min"] == own["accuracy"].min()
    assert cohorts().reference == found  # the seed decides who


def test_all_clients_are_trained_alone_where_that_is_asked_for() -> None:
    asked = cohorts()
    asked.config = asked.config.model_copy(update={"local_reference": True})
    data = ef.load("digits", clients=8, seed=0)
    alone = ef.train("local", data, rounds=2, engine="vectorized")
    assert "sample" not in asked.reference
    # every client trains in every round, whatever the cohorts were
    assert asked.reference["metrics"]["accuracy"] == alone.summary()["accuracy"]


def test_the_page_and_the_terminal_compare_a_sample_with_the_run_on_the_same_clients() -> None:
    result = cohorts()
    found = result.reference
    parts = {s.key: s for s in page_of(result.record()).parts[0].sections}
    (grid,) = parts["good"].grids
    labels = ["fedavg", "fedavg, on the same 6 clients",
              "local, on 6 of 8 clients drawn by seed (reference)"]  # fmt: skip
    assert [row[0] for row in grid.rows][:3] == labels
    column = list(grid.head).index("accuracy ↑")
    for row, measured in zip(grid.rows, (result.measured(), found["sample"], found), strict=False):
        low, high = measured["intervals"]["accuracy"]
        value = measured["metrics"]["accuracy"]
        assert row[column] == f"{value:.3f}\n({low:.3f} to {high:.3f})"
    own, alone = found["sample"]["metrics"]["accuracy"], found["metrics"]["accuracy"]
    said = " ".join(parts["good"].sentences)
    who = "6 of 8 clients, drawn by the seed, that train alone (Local)"
    assert f"{who} are right in {100 * alone:.0f} %" in said
    assert f"on the same clients the run has {100 * own:.0f} %" in said
    assert "`--reference` trains all" in " ".join(grid.notes)
    bars = next(f for f in parts["clients"].figures if f.key == "excess")
    assert set(bars.categories) == set(found["clients"])  # type: ignore[union-attr]
    text = run_text(result.measured())
    assert f"on 6 of 8 clients drawn by seed; the run on the same 6: {own:.3f}" in text


def test_a_sample_has_at_least_five_clients() -> None:
    data = ef.load("digits", clients=8, seed=0)
    result = ef.train("fedavg", data, rounds=1, participation=1, engine="vectorized")
    assert result.reference["sample"]["clients"] == 5


def test_of_many_clients_the_worst_have_bars_and_all_have_quantiles() -> None:
    data = ef.load("synthetic", clients=300, seed=0)
    result = ef.train("fedavg", data, rounds=1, engine="vectorized")
    losses = result.reference["losses"]
    own = result.clients["loss"]
    excess = {name: own[name] - min(own[name], losses[name]) for name in own.index}
    clients = next(s for s in page_of(result.record()).parts[0].sections if s.key == "clients")
    bars = next(f for f in clients.figures if f.key == "excess")
    worst = sorted(excess, key=lambda name: -excess[name])[:60]
    assert [round(v or 0, 9) for v in bars.rows[0].values] == [round(excess[n], 9) for n in worst]  # type: ignore[union-attr]
    grid = next(g for g in clients.grids if g.key == "excess_quantiles")
    column = list(grid.head).index("median")
    assert grid.rows[0][column] == f"{np.median(list(excess.values())):.3f}"
    assert "Of 300 clients the 60 with the largest excess risk are drawn" in " ".join(clients.notes)


def test_only_clients_that_are_evaluated_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    result = cohorts(evaluate_clients=5)
    sizes = []
    begin = Runner.run
    monkeypatch.setattr(Runner, "run", lambda self: (sizes.append(len(self.data)), begin(self)))
    found = result.reference["clients"]
    assert sizes == [5]
    assert list(found) == list(result.clients.index)
    data = ef.load("digits", clients=8, seed=0)
    alone = ef.train("local", data, rounds=2, engine="vectorized", evaluate_clients=5)
    assert found == pytest.approx(alone.clients["accuracy"].to_dict(), abs=1e-6)


def test_a_reference_that_fails_does_not_lose_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(runner: Runner, chosen: Any) -> Runner:
        raise EvenfedError("no memory")

    monkeypatch.setattr("evenfed.runs.reference._trained", failed)
    run_config(parse(TABLE), tmp_path / "run")
    assert RunFolder(tmp_path / "run").result()["metrics"]["accuracy"] > 0
    (grid,) = section(tmp_path / "run", "good").grids
    assert "is not beside it: its training failed: no memory." in grid.notes[1]


def test_the_terminal_compares_numbers_in_the_unit_of_the_label(tmp_path: Path) -> None:
    number = ef.train("fedavg", "linear", rounds=1, engine="vectorized")
    _ = number.reference
    measured = number.measured()
    measured["task"]["scale"] = 2.5
    alone = number.reference["metrics"]["mean_squared_error"]
    always = measured["metrics"]["constant_mean_squared_error"]
    lines = run_text(measured).splitlines()
    (local,) = (line for line in lines if "clients alone (Local)" in line)
    (constant,) = (line for line in lines if "constant predictor" in line)
    assert local.split()[3:] == [f"{alone:.3f}", "mean", "squared", "error,", "for", "reference"]
    assert constant.split()[2:5] == [f"{always:.3f}", "mean", "squared"]
    label = number.data.schema.label
    assert f"in the square of the unit of {label}" in lines[-1]
    assert f"losses are those of training, of {label} divided by 2.500" in lines[-1]


def test_runs_of_a_study_train_none_and_a_study_without_local_says_how_to_add_it(
    tmp_path: Path,
) -> None:
    config = parse_study({"methods": ["fedavg"], "datasets": ["synthetic"]})
    assert {plan.config.local_reference for plan in config.planned()} == {False}
    ef.study("fedavg", "synthetic", seeds=[0], rounds=1, engine="vectorized", references=[],
             out=tmp_path / "s")  # fmt: skip
    result = RunFolder(tmp_path / "s" / "runs" / "fedavg-synthetic-0").result()
    assert "reference" not in result
    assert "name `local` among its methods" in " ".join(section(tmp_path / "s", "good").notes)


def test_the_command_line_shows_it_and_leaves_it_out(tmp_path: Path) -> None:
    words = ["run", "--dataset", "synthetic", "--rounds", "1", "--engine", "vectorized"]
    said = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "a")])
    assert "clients alone (Local)" in said.stdout
    assert "training what 3 clients reach alone" in said.stderr
    shown = CliRunner().invoke(app, [*words, "--json", "--out", str(tmp_path / "b")])
    found = json.loads(shown.stdout)["reference"]
    assert found["method"] == "local"
    assert found["metrics"]["accuracy"] > 0.5
    without = CliRunner().invoke(
        app, [*words, "--no-reference", "--json", "--out", str(tmp_path / "c")]
    )
    assert "reference" not in json.loads(without.stdout)
