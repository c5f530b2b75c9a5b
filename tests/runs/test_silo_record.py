"""What a command about own silo files leaves behind: the record, and the ledger of the run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import evenfed as ef
from evenfed.cli import app

RUN = ("run", "--silos", "hospital_*.csv", "--rounds", "1", "--engine", "vectorized")
NAMED = ("--label", "died", "--favourable", "0", "--sensitive", "sex")
AGREED = ("rows, missing values and numbers of each column", "which levels 2 columns have")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, n in {"a": 60, "b": 90}.items():
        rng = np.random.default_rng(n)
        age = rng.integers(20, 80, n)
        died = (age + rng.normal(0, 10, n) > 50).astype(int)
        frame = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m"], n), "died": died})
        frame.to_csv(f"hospital_{name}.csv", index=False)


def test_the_ledger_says_how_types_and_levels_were_agreed_on() -> None:
    """Whether by this run, by an earlier one, or by the one whose config is run again."""
    first = invoke(*RUN, *NAMED, "--out", "first")
    assert first.exit_code == 0, first.output
    for words in ([*RUN, "--out", "second"], ["run", "first/config.toml", "--out", "third"]):
        assert invoke(*words).exit_code == 0
    loaded = ef.load_silos("hospital_*.csv").schema.ledger
    for agreed in AGREED:
        assert any(line.startswith(agreed) for line in loaded)
        for folder in ("first", "second", "third"):
            assert agreed in Path(folder, "result.json").read_text()
    config = tomllib.loads(Path("first/config.toml").read_text())
    record = tomllib.loads(Path("silos.toml").read_text())
    assert config["data"]["learnt"] == record["data"]["learnt"] == ["age", "sex", "died"]


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "fedavgg"],
        ["--set", "data.val=2"],
        ["--set", "rounds=abc"],
        ["--model", "resnet18"],
        ["--out", "hospital_a.csv"],
    ],
)
def test_a_refused_command_leaves_no_record(words: list[str]) -> None:
    assert invoke(*RUN, *NAMED, *words).exit_code == 2
    assert sorted(path.name for path in Path().glob("*")) == ["hospital_a.csv", "hospital_b.csv"]


def test_a_place_that_takes_no_record_is_refused_before_training() -> None:
    done = invoke(*RUN, *NAMED, "--schema", "no/where.toml", "--out", "run")
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
    assert not Path("run").exists()


def test_a_study_records_the_schema() -> None:
    words = ["--methods", "fedavg", "--rounds", "1", "--seeds", "0", "--json"]
    done = invoke("study", "--silos", "hospital_*.csv", *NAMED, *words, "--no-references")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["runs"]
    assert "schema written to silos.toml" in done.stderr
    assert Path("silos.toml").is_file()
