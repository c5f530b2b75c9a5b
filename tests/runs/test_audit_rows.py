"""What an audit says about the rows it is given: the checks of a run, and what is too little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.data.problems import DataProblemsError


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 80, n),
            "job": rng.choice(["clerk", "nurse"], n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    return frame.assign(granted=np.where(frame["age"] + rng.normal(0, 9, n) > 50, "yes", "no"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that was trained on two silo files."""
    folder = tmp_path_factory.mktemp("trained")
    for i, name in enumerate("ab"):
        people(80, i).to_csv(folder / f"{name}.csv", index=False)
    data = ef.load_silos(f"{folder}/*.csv", label="granted", sensitive="sex")
    result = ef.train("fedavg", data, rounds=1, engine="sequential")
    return ef.export_model(result, folder / "m.safetensors").path


def audited(model: Path, folder: Path, **options: Any) -> Any:
    given = {"label": "granted", "sensitive": "sex", **options}
    return ef.audit_model(model, f"{folder}/*.csv", **given)


def problems(model: Path, folder: Path, **options: Any) -> list[str]:
    with pytest.raises(DataProblemsError) as caught:
        audited(model, folder, **options)
    assert "nothing was audited" in str(caught.value)
    return [str(problem) for problem in caught.value.problems]


def test_all_problems_of_all_files_are_told_at_once_with_the_rows_of_a_run(
    model: Path, tmp_path: Path
) -> None:
    north, south = people(40, 5), people(40, 6).drop(columns="job")
    north["age"] = north["age"].astype(object)
    north.loc[3, "age"] = "SECRET-1"
    north.loc[4, "age"] = "1e300"
    north.loc[8, "granted"] = "SECRET-2"
    south["sex"] = south["sex"].where(south.index != 0)
    north.to_csv(tmp_path / "north.csv", index=False)
    south.to_csv(tmp_path / "south.csv", index=False)
    (tmp_path / "empty.csv").write_text("")
    found = problems(model, tmp_path)
    assert sorted(found) == [
        f"{tmp_path}/empty.csv: is empty: there is not even a header",
        f"{tmp_path}/north.csv, column 'age': numbers beyond 3.4e+38, the largest that a model can "
        "take, in 1 row: 5",
        f"{tmp_path}/north.csv, column 'age': text where numbers belong, in 1 row: 4",
        f"{tmp_path}/north.csv, column 'granted': the label is none of no, yes, in 1 row: 9",
        f"{tmp_path}/south.csv, column 'job': there is no such column. Known: age, granted, sex.",
        f"{tmp_path}/south.csv, column 'sex': missing values, in 1 row: 1",
    ]
    with pytest.raises(DataProblemsError) as caught:
        ef.load_silos(f"{tmp_path}/*.csv", label="granted", sensitive="sex", classes="no,yes")
    in_a_run = [str(problem) for problem in caught.value.problems]
    same = [text for text in found if "missing values" not in text]
    assert set(same) <= set(in_a_run)


def test_a_column_that_no_file_has_is_told_once(model: Path, tmp_path: Path) -> None:
    for i, name in enumerate("ab"):
        people(40, i).drop(columns="age").to_csv(tmp_path / f"{name}.csv", index=False)
    assert problems(model, tmp_path, sensitive="sexx") == [
        "no file has a column 'age'. Known: granted, job, sex.",
        "no file has a column 'sexx'. Did you mean 'sex'?",
    ]


def test_levels_that_the_model_never_saw_are_noted_by_file_column_and_row(
    model: Path, tmp_path: Path
) -> None:
    frame = people(120, 7)
    frame.loc[[2, 5], "job"] = "pilot"
    frame.loc[9, "sex"] = "x"
    frame.to_csv(tmp_path / "north.csv", index=False)
    notes = audited(model, tmp_path).notes
    text = "a level that the model's training data did not have"
    assert f"{tmp_path}/north.csv, column 'job': {text}, in 2 rows: 3, 6" in notes
    assert f"{tmp_path}/north.csv, column 'sex': {text}, in 1 row: 10" in notes


def test_groups_and_clients_too_small_to_judge_are_flagged(model: Path, tmp_path: Path) -> None:
    frame = people(120, 7)
    frame.loc[:2, "sex"] = "x"
    women = frame.index[(frame["sex"] == "f") & (frame["granted"] == "yes")]
    frame = frame.drop(women[5:])
    frame.to_csv(tmp_path / "north.csv", index=False)
    people(8, 8).to_csv(tmp_path / "south.csv", index=False)
    plain = audited(model, tmp_path)
    assert plain.small_groups == ("x",)
    assert "group 'x' has 3 rows: too few to judge (fewer than 30)" in plain.notes
    assert "rows of client 'south' (8): too few to judge (fewer than 30)" in plain.notes
    assert not any("of class" in note for note in plain.notes)
    odds = audited(model, tmp_path, disparity="equal_opportunity").notes
    assert any(note.startswith("group 'f' has") and "of class 'yes'" in note for note in odds)
    words = ["audit", str(model), "--silos", f"{tmp_path}/*.csv", "--label", "granted"]
    words += ["--sensitive", "sex"]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert "note: group 'x' has 3 rows: too few to judge (fewer than 30)" in shown.stdout
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["small_groups"] == ["x"]


def test_a_foreign_model_that_fails_is_told_of_every_client_with_the_likely_cause(
    tmp_path: Path,
) -> None:
    sio = pytest.importorskip("skops.io")
    train = people(200, 3)
    sio.dump(LogisticRegression().fit(train[["age"]], train["granted"]), tmp_path / "m.skops")
    for i, name in enumerate("ab"):
        frame = people(40, i)
        frame["age"] = frame["age"].astype(object)
        frame.loc[6, "age"] = "SECRET"
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    found = problems(tmp_path / "m.skops", tmp_path)
    assert found == [
        text
        for name in "ab"
        for text in (
            f"{tmp_path}/{name}.csv, client '{name}': 'm.skops' fails on these rows (ValueError)",
            f"{tmp_path}/{name}.csv, column 'age': text in a column of numbers, in 1 row: 7",
        )
    ]
