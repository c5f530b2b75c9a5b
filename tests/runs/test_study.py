from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import evenfed as ef
from evenfed.core.errors import ConfigError, RunFolderError
from evenfed.methods.registry import methods
from evenfed.runs import table as tables
from evenfed.runs.comparison import Study
from evenfed.runs.plan import parse_study, with_study_settings
from evenfed.runs.study import open_study, resume_study, run_study
from evenfed.runs.table import REFERENCE, Measurements, _tied

FAST = {"rounds": 2, "engine": "vectorized"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Study:
    out = tmp_path_factory.mktemp("study") / "s"
    return ef.study(["fedavg", "local"], ["synthetic", "linear"], seeds=[0, 1], out=out, **FAST)


def test_the_table_has_mean_and_interval_over_seeds(small: Study) -> None:
    frame = small.table()
    values = [
        ef.train("fedavg", "synthetic", seed=s, rounds=2, engine="vectorized").summary()["accuracy"]
        for s in (0, 1)
    ]
    row = frame.loc[("synthetic", "fedavg")]
    assert row["accuracy", "mean"] == pytest.approx(sum(values) / 2, abs=1e-12)
    # Student's t with one degree of freedom: 12.706 standard errors
    half = 12.706204736 * abs(values[0] - values[1]) / 2
    assert row["accuracy", "high"] - row["accuracy", "mean"] == pytest.approx(half, rel=1e-6)
    assert row["runs", "seeds"] == 2
    assert math.isnan(row["loss", "mean"])
    assert frame.loc[("linear", "local")]["client_loss_max", "mean"] >= 0


def test_the_constant_predictor_is_a_reference_that_is_never_marked(small: Study) -> None:
    synthetic, linear = small.sections()
    last = synthetic.rows[-1]
    assert (last.label, last.reference) == (REFERENCE, True)
    assert all(cell.mark == "" for cell in last.cells.values())
    measured = small.runs[0].measured
    assert measured is not None
    seeds = {r.seed: r.measured["metrics"]["constant_accuracy"] for r in small.runs if r.measured
             and r.dataset == "synthetic"}  # fmt: skip
    assert last.cells["accuracy"].summary.mean == pytest.approx(sum(seeds.values()) / 2)
    assert [row.label for row in linear.rows if row.reference] == [
        "centralized (reference)",
        REFERENCE,
    ]
    assert linear.rows[-1].cells["r2"].text == "0.000 ± 0.000"
    assert linear.rows[-1].cells["loss"].text == "-"


def test_formats_agree_on_numbers(small: Study) -> None:
    mean = small.table().loc[("synthetic", "fedavg")]["accuracy", "mean"]
    rows = list(csv.DictReader(io.StringIO(small.to_csv())))
    assert float(rows[0]["accuracy_mean"]) == pytest.approx(mean, abs=1e-15)
    for text in (small.to_markdown(), small.to_latex(), small.console()):
        assert f"{mean:.3f}" in text
        assert "95 % interval" in text
    assert "**" in small.to_markdown()
    assert r"\begin{tabular}" in small.to_latex()
    narrow = io.StringIO()
    small.console(to=Console(file=narrow, width=60))
    assert max(map(len, narrow.getvalue().splitlines())) <= 60


def test_a_study_can_be_read_again_and_resumed_without_running(small: Study) -> None:
    folder = small.folder
    assert folder is not None
    times = {p: p.stat().st_mtime_ns for p in folder.rglob("result.json")}
    for again in (open_study(folder), resume_study(folder)):
        pd.testing.assert_frame_equal(again.table(), small.table())
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("result.json")} == times


def test_a_folder_of_another_study_is_refused(small: Study) -> None:
    assert small.folder is not None
    with pytest.raises(RunFolderError, match="another study"):
        ef.study(["fedavg"], ["synthetic"], seeds=[0], out=small.folder, **FAST)


def test_a_failing_run_is_a_row_with_its_reason_and_the_study_goes_on(tmp_path: Path) -> None:
    result = ef.study(
        ["fedavg:lr=1e38", "local"], "synthetic", seeds=[0, 1], out=tmp_path / "s", **FAST
    )
    assert [run.method for run in result.failed] == ["fedavg", "fedavg"]
    note = result.table().loc[("synthetic", "fedavg")]["runs", "note"]
    assert "2 of 2 runs have no result" in note
    assert "not finite" in note
    assert "2 of 2 runs have no result" in result.to_markdown()
    assert not math.isnan(result.table().loc[("synthetic", "local")]["accuracy", "mean"])
    assert open_study(tmp_path / "s").failed[0].error == result.failed[0].error


def test_wrong_options_are_refused_before_any_run(tmp_path: Path) -> None:
    out = tmp_path / "s"
    with pytest.raises(ConfigError, match="has no option 'client'"):
        ef.study("fedavg", "synthetic:client=3", out=out)
    with pytest.raises(ConfigError, match="which is not in the study"):
        ef.study("fedavg", "synthetic", options={"fedprox": {"mu": 1.0}}, out=out)
    with pytest.raises(ConfigError, match="datasets and model by name"):
        ef.study("fedavg", ef.load("synthetic"), out=out)
    assert not out.exists()


def test_instances_own_data_and_options_by_name_are_taken() -> None:
    result = ef.study(
        [ef.FedProx(mu=0.5), "qffl"], ef.load("synthetic", seed=3), seeds=[0],
        options={"qffl": {"q": 3.0, "lr": 0.2}}, references=[], **FAST,
    )  # fmt: skip
    assert result.methods == ["fedprox", "qffl"]
    assert [m.options.get("q") for m in result.config.methods] == [None, 3.0]
    own = ef.train("qffl", ef.load("synthetic", seed=3), q=3.0, lr=0.2, **FAST)
    assert result.table().loc[("synthetic", "qffl")]["loss_group_max", "mean"] == pytest.approx(
        own.summary()["loss_group_max"], abs=1e-12
    )


def test_with_one_seed_there_is_no_interval_and_the_table_says_so() -> None:
    result = ef.study(["fedavg", "local"], "synthetic", seeds=[4], **FAST)
    row = result.table().loc[("synthetic", "fedavg")]
    assert math.isnan(row["accuracy", "low"])
    assert row["runs", "note"] == "one seed, hence no interval"
    assert "One seed" in result.to_markdown()
    assert "±" not in result.to_markdown()


def _runs(**values: list[float]) -> list[Measurements]:
    return [
        Measurements(name, {s: {"accuracy": v} for s, v in enumerate(found)}, {})
        for name, found in values.items()
    ]


def _marks(runs: list[Measurements]) -> list[str]:
    return [row.cells["accuracy"].mark for row in tables.section("d", runs, ["accuracy"]).rows]


def test_a_tie_within_the_paired_interval_is_said() -> None:
    # b is lower by about 0.1 at every seed, c by 0.01 give or take 0.05
    runs = _runs(a=[0.9, 0.7, 0.8], b=[0.8, 0.6, 0.701], c=[0.94, 0.64, 0.79])
    assert _marks(runs) == ["best", "", "tie"]


def test_equal_means_are_all_best_and_failed_methods_never() -> None:
    runs = _runs(a=[0.5, 0.5], b=[0.5, 0.5])
    runs.append(Measurements("c", {0: {"accuracy": 1.0}}, {1: "diverged"}))
    assert _marks(runs) == ["best", "best", ""]


def test_an_undefined_value_has_no_mean_and_no_mark() -> None:
    runs = [*_runs(a=[0.5, 0.6], b=[0.1, 0.1])]
    runs.append(Measurements("c", {0: {"accuracy": None}, 1: {"accuracy": 0.9}}, {}))
    part = tables.section("d", runs, ["accuracy"])
    assert part.rows[2].cells["accuracy"].text == "undefined"
    assert part.rows[2].cells["accuracy"].mark == ""


def test_an_unknown_metric_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        tables.section("d", _runs(a=[0.5]), ["acuracy"])


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("accuracy", True), ("client_accuracy_worst_tail", True), ("client_accuracy_std", False),
        ("client_accuracy_jain_index", True), ("demographic_parity_difference", False),
        ("demographic_parity_ratio", True), ("loss", False), ("client_loss_max", False),
        ("demographic_parity_to_overall", False), ("clients", None),
    ],
)  # fmt: skip
def test_direction_of_metrics(metric: str, higher: bool | None) -> None:
    assert tables.higher_is_better(metric) is higher


def test_local_and_centralized_are_references_unless_they_are_compared(small: Study) -> None:
    synthetic, _ = small.sections()
    labels = [row.label for row in synthetic.rows]
    assert labels == ["fedavg", "local", "centralized (reference)", REFERENCE]
    pooled = synthetic.rows[2]
    # pooled data give the best accuracy, yet a reference is not marked
    assert all(cell.mark == "" for cell in pooled.cells.values())
    assert pooled.cells["accuracy"].summary is not None
    config = parse_study({"methods": "fedavg", "datasets": "synthetic"})
    assert config.references == ["local", "centralized"]
    without = parse_study({"methods": "fedavg", "datasets": "synthetic", "references": []})
    assert [m.name for m in without.methods] == ["fedavg"]
    again = parse_study(config.model_dump())
    assert [m.name for m in again.methods] == ["fedavg", "local", "centralized"]


def test_all_methods_are_every_registered_one_and_settings_reach_them() -> None:
    config = parse_study(
        with_study_settings({"methods": "all", "datasets": "synthetic"}, ["rounds=1", "qffl.q=3"])
    )
    assert {m.name for m in config.methods} == set(methods())
    assert config.references == ["local", "centralized"]
    assert [m.options for m in config.methods if m.name == "qffl"] == [{"q": 3}]


def test_a_method_that_does_not_apply_is_a_row_with_the_reason_and_no_failure(
    tmp_path: Path,
) -> None:
    out = tmp_path / "s"
    result = ef.study(["fedfb", "fedavg"], "digits:clients=3", seeds=[0], out=out, **FAST)
    for study in (result, open_study(out)):
        assert not study.failed
        note = study.table().loc[("digits", "fedfb")]["runs", "note"]
        assert note.startswith("does not apply: fedfb needs")


def test_a_dataset_may_have_its_own_methods_model_and_geometry(tmp_path: Path) -> None:
    table = {
        "methods": ["fedavg", "qffl"],
        "references": ["local"],
        "datasets": [
            {"name": "synthetic", "methods": ["fedavg"], "model": "logistic", "geometry": True},
            {"name": "linear"},
        ],
        "seeds": [0],
        **{"rounds": 1, "engine": {"engine": "vectorized"}},
    }
    config = parse_study(table)
    found = {(p.dataset, p.method): p.config for p in config.planned()}
    assert set(found) == {
        ("synthetic", "fedavg"), ("synthetic", "local"),
        ("linear", "fedavg"), ("linear", "qffl"), ("linear", "local"),
    }  # fmt: skip
    assert found["synthetic", "fedavg"].model.name == "logistic"
    assert found["linear", "fedavg"].model.name == "auto"
    assert [found[d, "fedavg"].geometry for d in ("synthetic", "linear")] == [True, "panel"]
    study = run_study(config, tmp_path / "s")
    for one in (study, open_study(tmp_path / "s")):
        labels = {part.dataset: [row.label for row in part.rows] for part in one.sections()}
        assert labels["synthetic"] == ["fedavg", "local (reference)", REFERENCE]
        assert labels["linear"] == ["fedavg", "qffl", "local (reference)", REFERENCE]
    with pytest.raises(ConfigError, match=r"'qfl', which is not in the study.+'qffl'"):
        parse_study({**table, "datasets": [{"name": "linear", "methods": ["qfl"]}]})


def test_a_difference_without_spread_is_no_clear_one() -> None:
    """Two seeds on few test examples: both differ by just one example."""
    assert _tied({0: 0.9, 1: 0.8}, {0: 0.8, 1: 0.7}, 0.95)
    assert not _tied({0: 0.9, 1: 0.801}, {0: 0.8, 1: 0.7}, 0.95)


@pytest.mark.parametrize(
    ("metric", "low", "high"),
    [
        ("accuracy", 0.0, 1.0), ("client_accuracy_min", 0.0, 1.0),
        ("demographic_parity_difference", 0.0, 1.0), ("client_loss_jain_index", 0.0, 1.0),
        ("client_accuracy_angle", 0.0, math.inf), ("loss_group_max", 0.0, math.inf),
        ("clients", -math.inf, math.inf),
    ],
)  # fmt: skip
def test_intervals_end_where_a_metric_does(metric: str, low: float, high: float) -> None:
    """Student's interval of 0.99 and 0.01 is 0.5 +- 6.2."""
    runs = [Measurements("a", {0: {metric: 0.99}, 1: {metric: 0.01}}, {})]
    part = tables.section("d", runs, [metric])
    summary = part.rows[0].cells[metric].summary
    assert summary is not None
    row = tables.frame([part]).loc[("d", "a"), metric]
    assert (row["low"], row["high"]) == (max(summary.low, low), min(summary.high, high))
    assert row["mean"] == pytest.approx(0.5)
    assert summary.low < -5
    assert summary.high > 6


def test_ends_that_are_told_to_a_program_are_those_of_the_table(small: Study) -> None:
    table = small.table()
    found = 0
    for row in small.measured()["rows"]:
        for metric, value in row["metrics"].items():
            low, high = table.loc[(row["dataset"], row["method"]), metric][["low", "high"]]
            if value["low"] is not None:
                assert (value["low"], value["high"]) == (low, high)
                found += not 0.0 < low <= high < 1.0 and "accuracy" in metric
    assert found, "some interval over these seeds reaches an end"
