"""Tables that compare methods under one budget: who gets how many trials, on which data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from evenfed.core.errors import ConfigError
from evenfed.methods.registry import methods
from evenfed.papers import fedeba, pages, ser, tuned
from evenfed.papers.recipe import Claim, Column, Job, Joint, Metric, Outcome, Row, Setting, Table
from evenfed.papers.ser_cases import CASES
from evenfed.papers.store import collected, finished
from evenfed.runs.plan import TuneConfig
from evenfed.runs.result import Result
from evenfed.runs.tuning import Trials, trials

PAPERS = (fedeba.PAPER, ser.PAPER)
TABLES = [(p, table) for p in PAPERS for table in p.tables]
RECIPE = ("method", "options", "base", "matched")
"""What tells rows apart."""
SMALL: dict[str, Any] = {
    "seed": 0, "dataset": "digits", "data": {"clients": 6, "partition": "shards:2", "val": 0.2},
    "model": {"name": "mlp", "hidden": [8]}, "engine": "vectorized", "rounds": 2, "cohort": 3,
    "tail": 0.05, "every": 1, "last": 2, "method": "eba", "options": {"local.steps": 1},
    "tune": {"budget": 3, "rates": [0.2]},
}  # fmt: skip


def trials_of(settings: dict[str, Any]) -> Trials:
    """The settings that would be tried for a job's row."""
    cls = methods()[settings["method"]]
    fixed = dict.fromkeys(settings["options"])
    return trials(cls, fixed, TuneConfig(metric=tuned.METRIC, **settings["tune"]))


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=lambda part: getattr(part, "key", ""))
@pytest.mark.parametrize("quick", [False, True])
def test_every_tuned_row_of_a_column_has_as_many_different_trials(
    paper: Any, table: Table, quick: bool
) -> None:
    counts: dict[str, set[int]] = {}
    for job in table.jobs(table.setting("sound", quick)):
        if job.settings.get("tune"):
            found = trials_of(dict(job.settings))
            every = [*found.first, *found.further]
            different = {json.dumps(one, sort_keys=True) for one in every}
            assert len(different) == len(every), job.key
            assert len(every) + found.again == job.settings["tune"]["budget"], job.key
            counts.setdefault(job.column, set()).add(len(found))
    assert all(len(of) == 1 for of in counts.values())


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=lambda part: getattr(part, "key", ""))
def test_rows_of_a_column_differ_in_method_and_options_alone(paper: Any, table: Table) -> None:
    shared: dict[tuple[str, int], str] = {}
    for job in table.jobs(table.setting("sound", quick=False)):
        own = {k: v for k, v in job.settings.items() if k not in (*RECIPE, "target")}
        text = json.dumps(own, sort_keys=True, default=dict)
        assert shared.setdefault((job.column, job.seed), text) == text, job.key


def test_a_row_with_models_of_the_clients_own_has_their_target() -> None:
    for table in ser.PAPER.tables:
        for job in table.jobs(table.setting("sound", quick=False)):
            method = job.settings["method"]
            own = method in ("ser", "ditto", "pfedme")
            assert job.settings["target"] == CASES[job.column].targets[own], job.key


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=lambda part: getattr(part, "key", ""))
def test_no_table_has_the_seed_of_tuning(paper: Any, table: Table) -> None:
    assert tuned.TUNING_SEED not in {*table.seeds["sound"], *table.quick_seeds}


def test_the_seed_of_tuning_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed 100 is that of tuning"):
        tuned.measured({**SMALL, "seed": tuned.TUNING_SEED})


def test_trials_see_validation_data_of_another_seed_and_the_best_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, int]] = []
    carried_out = tuned.trained

    def watched(settings: Any, plan: Any, split: Any, every: int) -> tuned.Trained:
        seen.append((split, plan.seed))
        return carried_out(settings, plan, split, every)

    monkeypatch.setattr(tuned, "trained", watched)
    tuned._chosen.cache_clear()
    run, words = tuned.measured(SMALL)
    assert seen == [("val", 100), ("val", 100), ("val", 100), ("test", 0)]
    choice = tuned.chosen({**SMALL, "seed": 7})
    assert len(seen) == 4  # the jobs of a row share what was chosen
    best = max(choice.tried, key=lambda row: row["value"])
    assert choice.options == best["options"]
    assert words == tuned.worded(best["options"])
    rate = best["options"].get("local.lr", 0.1)
    assert run.result.config.method.model_dump()["local"].get("lr", 0.1) == rate


def test_figures_are_means_of_the_last_evaluations() -> None:
    run, _ = tuned.measured({**SMALL, "tune": None, "rounds": 3})
    assert list(run.evaluations) == [1, 2, 3]
    each = [e.summary()["client_accuracy_mean"] for e in run.evaluations.values()]
    values = tuned.client_values(run)
    assert values["mean"] == pytest.approx(100 * (each[1] + each[2]) / 2)
    names = [c.name for c in run.data]
    last = [run.evaluations[r].clients()["accuracy"][names[2:]].mean() for r in (2, 3)]
    assert tuned.mean_of(run, [2, 3, 4, 5]) == pytest.approx(50 * sum(last))
    assert run.rounds_to(each[1]) == (1.0 if each[0] >= each[1] else 2.0)
    finished = replace(run, last=0).summary("test")["client_accuracy_mean"]
    assert finished == run.result.summary("test")["client_accuracy_mean"]
    assert run.rounds_to(1.1) != run.rounds_to(1.1)  # NaN: never reached


def test_a_tiny_cell_of_the_table_runs() -> None:
    job = Job("digits-eba-0", ("eba",), "mnist-shards", 0, SMALL, 1.0)
    outcome = fedeba.run(job)
    assert set(outcome.values["eba"]) == {m.key for m in fedeba.METRICS}
    assert 0 <= outcome.values["eba"]["worst"] <= outcome.values["eba"]["mean"] <= 100
    assert set(outcome.facts["eba"]) == {"chosen"}


def test_accuracy_with_noisy_labels_is_that_of_clients_with_right_ones() -> None:
    settings = {**SMALL, "tune": None, "noise": [2, 0.9], "rounds": 1, "every": 1}
    run, _ = tuned.measured(settings)
    clean, noisy = (tuned.data_of({**settings, **more}, 0) for more in ({"noise": [0, 0.9]}, {}))
    changed = [bool((a.train.y != b.train.y).any()) for a, b in zip(clean, noisy, strict=True)]
    assert changed == [True, True, False, False, False, False]
    assert all(bool((a.test.y == b.test.y).all()) for a, b in zip(clean, noisy, strict=True))
    outcome = fedeba.run(Job("x", ("eba",), "some", 0, settings, 1.0))
    assert outcome.values["eba"]["clean"] == pytest.approx(tuned.mean_of(run, [2, 3, 4, 5]))


def test_a_joint_claim_needs_what_must_hold_and_bears_what_cannot_be_told() -> None:
    metrics = (Metric("mean", "mean"), Metric("variance", "variance", higher=False))
    claims = tuple(Claim(f"{m.key} ordering", "a", "b", m.key, tuple("wxyz")) for m in metrics)
    table = Table(
        "t", "T", (Row("a", "A"), Row("b", "B")),
        tuple(Column(c, c.upper(), "synthetic") for c in "wxyz"), {"sound": metrics},
        lambda setting: [], lambda job: Outcome({}), {"sound": (0, 1, 2)}, claims=claims,
        joint=(Joint("both", "Both", ("variance ordering",), ("mean ordering",)),),
    )  # fmt: skip
    # x: variance lower, means equal; y: variance lower, mean lower; z: variance higher; w has none
    made = {"x": ((0, 1, 2), (1, 1, 1), 1, 3), "y": ((0, 0, 0), (5, 5, 6), 1, 3),
            "z": ((5, 5, 6), (0, 0, 0), 3, 1), "w": ((1, 2, 3), (0, 0, 0), 0, 0)}  # fmt: skip
    runs = []
    for column, (ours, theirs, own, other) in made.items():
        for seed in range(3):
            for row, mean, var in (("a", ours[seed], own), ("b", theirs[seed], other)):
                job = Job(f"{column}-{row}-{seed}", (row,), column, seed, {"seed": seed}, 1.0)
                values = {"mean": float(mean), "variance": var + 0.01 * seed}
                if column == "w":
                    del values["variance"]
                runs.append(finished(job, Outcome({row: values}), 1.0))
    setting = Setting("sound", False, (0, 1, 2))
    results = collected("toy", "t", setting, runs, 1)
    (line,) = pages._joint(table, results)
    assert line == (
        "- Both: on X holds; on Y does not hold (mean ordering: fails); "
        "on Z does not hold (variance ordering: fails)."
    )
    assert pages._joint(table, replace(results, setting=replace(setting, quick=True))) == []


def test_a_table_without_its_data_is_skipped_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenfed import cli_papers
    from evenfed.cli import app
    from evenfed.papers import running

    done: list[str] = []

    def rebuilt(wanted: Any, table: Table, setting: Any, *rest: Any) -> int:
        if table.key == "fashion":
            raise running.MissingDataError("needs the dataset 'fashion_mnist'")
        done.append(table.key)
        return 0

    monkeypatch.setattr(cli_papers, "_run", rebuilt)
    found = CliRunner().invoke(app, ["paper", "fedeba", "--quick"])
    assert found.exit_code == 0
    assert "skipped: needs the dataset 'fashion_mnist'" in found.output
    assert done == [t.key for t in fedeba.PAPER.tables if t.key != "fashion"]
    alone = CliRunner().invoke(app, ["paper", "fedeba", "--quick", "--table", "fashion"])
    assert alone.exit_code != 0


def small_ser(row: str, **more: Any) -> Job:
    """A job of SER's tables on small data."""
    (job,) = (
        j for j in ser.PAPER.table("femnist").jobs(Setting("sound", False, (0,)))
        if j.rows == (row,)
    )  # fmt: skip
    sizes = {"probes": 2, "rows": 16, "clients": 2, "target": 0.0, "tune": {"budget": 1}}
    small = {k: v for k, v in SMALL.items() if k not in ("method", "options", "tune")}
    options = {**job.settings["options"], "local.steps": 1}
    return replace(job, settings={**job.settings, **small, **sizes, "options": options, **more})


def test_a_row_of_ser_has_accuracy_rounds_and_curvature() -> None:
    values = ser.run(small_ser("fedavg-ser")).values["fedavg-ser"]
    assert set(values) == {m.key for m in ser.METRICS}
    assert values["rounds_to"] == 1.0  # the target is 0
    assert 0 <= values["sign_entropy"] <= 1
    assert values["hessian_trace"] != values["spectral_norm"]


@pytest.mark.parametrize("table", [table.key for table in ser.PAPER.tables])
def test_every_row_of_ser_takes_its_options(table: str) -> None:
    corrected = {"random", "shrink", *ser.ARMS} - {"none"}
    for job in ser.PAPER.table(table).jobs(Setting("sound", False, (0,))):
        plan = tuned.planned(dict(job.settings), job.seed)
        local = plan.config.built_method().local  # type: ignore[attr-defined]
        with_ser = job.rows[0].endswith("-ser") or job.rows[0] in corrected
        assert local.regularized == with_ser, job.key


def test_strengths_of_ser_differ_in_rho_alone_and_share_the_runs_of_controls() -> None:
    setting = Setting("sound", False, (0, 1))
    found = {job.key: job for job in ser.PAPER.table("strength").jobs(setting)}
    options = {job.rows[0]: job.settings["options"] for job in found.values()}
    rhos = {row: options[row]["local.ser.rho"] for row in ser.STRENGTHS}
    assert sorted(rhos.values()) == [0.0, 0.01, 0.05, 0.1, 0.3, 0.5]
    for row, rho in rhos.items():
        assert ser.STRENGTHS[row][0] == f"rho = {rho:g}"
    assert set(options) == {*rhos, "posthoc", "plain"}
    assert {k for k, v in options["posthoc"].items() if options["weak"][k] != v} == {
        "local.ser.when"
    }
    assert options["plain"] == {**options["ser"], "local.ser.objective": "entropy"}
    shared = [job for job in ser.PAPER.table("controls").jobs(setting) if job.key in found]
    assert len(shared) == 2 * 3 * 2
    assert all(job.settings == found[job.key].settings for job in shared)


def test_the_rate_control_has_a_first_round_as_long_as_ser() -> None:
    small = {**small_ser("local").settings}
    size = {"local.steps": 2, "local.batch": 20}
    long = ser._first_length({**small, "options": {**size, **ser.STRENGTH}})
    control = {**small, "options": {**size, **ser.LOCAL}, "base": {**size, **ser.LOCAL},
               "matched": {**size, **ser.STRENGTH}}  # fmt: skip
    run, words = ser._controlled(control)
    rate = run.result.method.local.lr  # type: ignore[attr-defined]
    assert words == f"lr={round(rate, 4)}"
    assert rate != 0.1
    again = ser._first_length({**small, "options": {**size, **ser.LOCAL, "local.lr": rate}})
    plain = ser._first_length({**small, "options": {**size, **ser.LOCAL}})
    assert abs(again / long - 1) < abs(plain / long - 1)


@pytest.mark.parametrize("table", [table.key for table in ser.PAPER.tables])
def test_rows_of_ser_are_tuned_in_the_rate_alone(table: str) -> None:
    """What a method's grid names beside the rate is fixed, or trials would go to it."""
    for job in ser.PAPER.table(table).jobs(Setting("sound", False, (0,))):
        settings = job.settings
        plan, rates = TuneConfig(**settings["tune"]), settings["tune"]["rates"]
        options = settings.get("base", settings["options"])
        tried = trials(methods()[settings["method"]], options, plan)
        assert tried.first == [{}, *({"local.lr": rate} for rate in rates)], job.key
        assert tried.further == []


def test_curvature_and_signs_of_ser_are_measured_on_256_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (job,) = (
        j for j in ser.PAPER.table("femnist").jobs(Setting("sound", False, (0,)))
        if j.rows == ("local",)
    )  # fmt: skip
    small = {**small_ser("local").settings, "rows": job.settings["rows"]}
    run, _ = tuned.measured(small)
    asked: list[tuple[int, float]] = []

    def geometry(result: Any, **options: Any) -> pd.DataFrame:
        asked.append((options["rows"], options["rate"]))
        rate = options["rate"]
        measured = {key: [rate, rate] for key in ("sign_entropy", "hessian_trace")}
        return pd.DataFrame({**measured, "top_eigenvalue": [3.0, -1.0]})

    monkeypatch.setattr(Result, "geometry", geometry)
    values = ser._values(run, small)
    assert asked == [(256, 0.1), (256, 0.01)]
    assert (values["sign_entropy"], values["sign_entropy_short"]) == (0.1, 0.01)
    assert values["spectral_norm"] == 2.0, "of magnitudes, whose signs do not cancel"


def test_controls_differ_from_ser_in_the_correction_alone() -> None:
    jobs = ser.PAPER.table("controls").jobs(Setting("sound", False, (0,)))
    assert {job.rows[0] for job in jobs} == {"none", "ser", "random", "shrink", "rate"}
    for job in jobs:
        base, own = job.settings["base"], job.settings["options"]
        changed = {k for k in {**base, **own} if base.get(k) != own.get(k)}
        assert all(k.startswith("local.ser.") for k in changed)
        assert ("matched" in job.settings) == (job.rows[0] == "rate")
