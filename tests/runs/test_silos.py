"""Own silo files on the command line: run, study, resume, rebuild."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import evenfed as ef
from evenfed.cli import app

RUN = ("run", "--silos", "hospital_*.csv", "--rounds", "2", "--engine", "vectorized")
NAMED = ("--label", "died", "--sensitive", "sex")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


def rows(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    age = rng.integers(20, 80, n)
    died = (age + rng.normal(0, 10, n) > 50).astype(int)
    return pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], n), "died": died})


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, n in {"a": 60, "b": 90}.items():
        rows(n).to_csv(tmp_path / f"hospital_{name}.csv", index=False)


def test_a_run_shows_types_records_them_and_can_be_rebuilt() -> None:
    done = invoke(*RUN, *NAMED)
    assert done.exit_code == 0
    for line in ("label died: 0 or 1", "feature age: numbers", "schema written to silos.toml"):
        assert line in done.stderr
    folder = Path("runs/silos-fedavg-0")
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["data"]["files"] == ["hospital_*.csv"]
    assert config["data"]["levels"] == {"sex": ["f", "m"]}
    again = invoke("run", str(folder / "config.toml"), "--json")
    first = json.loads((folder / "result.json").read_text())
    assert json.loads(again.stdout)["metrics"] == first["metrics"]
    assert invoke("resume", str(folder)).exit_code == 0
    assert "evenfed run" in (folder / "report.html").read_text()


def test_a_run_goes_on_from_a_checkpoint_to_the_same_result() -> None:
    whole = json.loads(invoke(*RUN, *NAMED, "--json", "--set", "checkpoint_every=1").stdout)
    folder = Path(whole["folder"])
    (folder / "result.json").unlink()
    assert invoke("resume", str(folder), "--json").exit_code == 0
    assert json.loads((folder / "result.json").read_text())["metrics"] == whole["metrics"]


def test_a_changed_file_is_refused_with_all_that_is_wrong_and_no_folder_is_left() -> None:
    assert invoke(*RUN, *NAMED).exit_code == 0
    rows(60).assign(sex="x").to_csv("hospital_a.csv", index=False)
    rows(90).drop(columns="age").to_csv("hospital_b.csv", index=False)
    done = invoke(*RUN, "--out", "second")
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "error: 2 problems with the data; nothing was trained"
    assert lines[1].startswith("- hospital_a.csv, column 'sex': a level that is not among the 2")
    assert lines[2].startswith("- hospital_b.csv, column 'age': there is no such column")
    assert not Path("second").exists()
    Path("runs/silos-fedavg-0/result.json").unlink()
    assert "age" in invoke("resume", "runs/silos-fedavg-0").stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "--label", "died"], "--label is about silo files: name them with --silos"),
        ([*RUN, *NAMED, "--dataset", "loans"], "--silos and --dataset both name the data"),
        ([*RUN], "name the label"),
        ([*RUN, *NAMED, "--clients", "3"], "silo files are the clients"),
        ([*RUN, *NAMED, "--set", "data.nosuch=1"], "no option 'nosuch'"),
        (["run", "--silos", "hospital_a.csv", "hospital_b.csv", *NAMED], "without quotes?"),
        (["run", "--silos", "none_*.csv", *NAMED], "no file matches 'none_*.csv'"),
        (["run", "--set", "data.name=silos", "--set", "data.label=died"], "name the files"),
    ],
)
def test_a_mistake_is_named(words: list[str], complaint: str) -> None:
    done = invoke(*words)
    assert done.exit_code == 2
    assert complaint in done.stderr


def test_a_study_compares_methods_on_silos() -> None:
    done = invoke(
        "study", "--silos", "hospital_*.csv", *NAMED, "--methods", "fedavg,pffl", "--rounds", "1",
        "--seeds", "0", "--json", "--set", "engine.engine=vectorized",
    )  # fmt: skip
    assert done.exit_code == 0
    assert {run["method"] for run in json.loads(done.stdout)["runs"]} >= {"fedavg", "pffl"}
    config = tomllib.loads(Path("runs/study-silos/study.toml").read_text())
    assert config["datasets"][0]["files"] == ["hospital_*.csv"]
    assert invoke("resume", "runs/study-silos").exit_code == 0


def test_a_loaded_dataset_trains_and_its_config_names_the_files() -> None:
    data = ef.load_silos("hospital_*.csv", label="died", sensitive="sex")
    result = ef.train("fedavg", data, rounds=2, engine="vectorized")
    done = json.loads(invoke(*RUN, *NAMED, "--json").stdout)
    assert result.summary()["accuracy"] == done["metrics"]["accuracy"]
    Path("own.toml").write_text(result.config.completed().toml())
    assert json.loads(invoke("run", "own.toml", "--json").stdout)["metrics"] == done["metrics"]


def test_a_study_of_loaded_silos_has_a_folder_and_splits_anew_for_each_seed(tmp_path: Path) -> None:
    data = ef.load_silos("hospital_*.csv", label="died", sensitive="sex")
    found = ef.study(
        "fedavg", data, seeds=[0, 1], rounds=1, references=[], engine="vectorized", out="study"
    )
    assert not found.failed
    first, second = (
        pd.read_parquet(f"study/runs/fedavg-silos-{seed}/clients.parquet") for seed in (0, 1)
    )
    assert not first.equals(second)
    assert json.loads(Path("study/runs/fedavg-silos-0/result.json").read_text())["seed"] == 0


def changed(path: str, column: str, row: int, value: object) -> None:
    frame = pd.read_csv(path)
    frame.loc[row, column] = value
    frame.to_csv(path, index=False)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda: changed("hospital_b.csv", "age", 3, 99), "rows of client 'hospital_b' have"),
        (lambda: rows(70).to_csv("hospital_a.csv", index=False), "had 60 rows and has 70"),
        (lambda: Path("hospital_a.csv").unlink(), "client 'hospital_a' is gone"),
        (lambda: rows(50).to_csv("hospital_c.csv", index=False), "client 'hospital_c' is new"),
    ],
)
def test_an_interrupted_run_refuses_other_data(change: Callable[[], None], complaint: str) -> None:
    """One changed file changes the scaled features of all clients; only its own is named."""
    folder = Path(json.loads(invoke(*RUN, *NAMED, "--json").stdout)["folder"])
    (folder / "result.json").unlink()
    change()
    done = invoke("resume", str(folder), "--quiet")
    assert done.exit_code == 2, done.stdout
    assert complaint in done.stderr
    assert done.stderr.count("client '") == 1
    assert not (folder / "result.json").exists()
