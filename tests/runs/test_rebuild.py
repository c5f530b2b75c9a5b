"""The command that a report prints rebuilds its numbers, given in a shell where it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from evenfed.cli import app
from evenfed.report.page import opened, page_of
from evenfed.runs.config import read
from evenfed.runs.folder import CONFIG, RunFolder
from evenfed.runs.train import resume

WORDS = ("--rounds", "1", "--method", "fedavg", "--engine", "sequential", "--no-reference", "-q")


def write_silos(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in "ab":
        n = 60
        frame = pd.DataFrame(
            {"age": rng.normal(50, 9, n).round(1), "sex": rng.choice(["f", "m"], n)}
        )
        frame["race"] = rng.choice(["p", "q"], n)
        frame["zip"] = rng.integers(1, 4, n)  # numbers, unless somebody says otherwise
        frame["died"] = (frame["age"] + rng.normal(0, 5, n) > 50).astype(int)
        frame.to_csv(folder / f"h_{name}.csv", index=False)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 0, done.stderr
    return done.stderr


def numbers(folder: Path) -> dict[str, Any]:
    found = RunFolder(folder).result()
    return {key: found[key] for key in ("metrics", "intervals", "groups")}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of files in one folder, with its result in another."""
    root = tmp_path_factory.mktemp("rebuild")
    write_silos(root / "in data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root / "in data")
        schema = ["--label", "died", "--favourable", "0", "--sensitive", "sex"]
        schema += ["--categorical", "zip", "--drop", "race"]
        run("--silos", "h_*.csv", *schema, *WORDS, "--out", "../results/my run")
    return root / "results" / "my run"


def command(folder: Path) -> tuple[str, str]:
    """The command that the page prints, and the folder in which it says to give it."""
    settings = page_of(opened(folder)).settings
    words = dict(settings.pre)["To rebuild it"]
    place = settings.sentences[0].partition("the folder that holds ")[2].removesuffix(".")
    return words, place


def test_the_printed_command_rebuilds_the_numbers_in_a_shell_of_another_folder(first: Path) -> None:
    words, place = command(first)
    assert place == "my run"
    assert str(first.parent.parent) not in words + page_of(opened(first)).settings.pre[-1][1]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        f"{words} -q", shell=True, cwd=first.parent, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert numbers(first.parent / "NEW") == numbers(first)
    # and so does that of the rebuilt one, which lies elsewhere
    assert read(first.parent / "NEW" / CONFIG)["data"]["files"] == ["h_*.csv"]


def test_a_config_finds_its_files_from_anywhere(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(str(first / CONFIG), *WORDS, "--out", "deep/er/again")
    assert numbers(Path("deep/er/again")) == numbers(first)
    assert resume(Path("deep/er/again")).summary()["accuracy"] > 0
    monkeypatch.chdir(first)
    assert resume(first).data.names == ["h_a", "h_b"]


def test_other_files_are_read_by_the_schema_of_the_config(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_silos(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    words = [w for w in WORDS if w != "-q"]
    said = run(str(first / CONFIG), "--silos", "moved/*.csv", *words, "--out", "out")
    assert "schema taken from the config" in said
    assert numbers(tmp_path / "out") == numbers(first)
    assert not (tmp_path / "moved" / "silos.toml").exists()


def test_options_go_before_the_schema_of_the_config(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_silos(tmp_path)
    monkeypatch.chdir(tmp_path)
    run(str(first / CONFIG), "--silos", "*.csv", "--sensitive", "race", "--numeric", "zip",
        *WORDS, "--out", "out")  # fmt: skip
    data = read(tmp_path / "out" / CONFIG)["data"]
    assert (data["label"], data["sensitive"], data["classes"]) == ("died", ["race"], ["1", "0"])
    assert (data["numeric"], data["categorical"]) == (["age", "zip"], [])
    assert RunFolder(tmp_path / "out").result()["task"]["groups"] == ["p", "q"]


def test_a_study_of_silo_files_is_rebuilt_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_silos(tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data")
    words = ["study", "--silos", "h_*.csv", "--label", "died", "--methods", "fedavg"]
    words += ["--seeds", "0", "--rounds", "1", "--engine", "sequential", "--no-references", "-q"]
    done = CliRunner().invoke(app, [*words, "--out", "../s"])
    assert done.exit_code == 0, done.stderr
    # the same words go on with it
    assert CliRunner().invoke(app, [*words, "--out", "../s"]).exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert command(tmp_path / "s") == ("evenfed study s/study.toml --out NEW", "s")
    done = CliRunner().invoke(app, ["study", "s/study.toml", "--out", "NEW", "-q"])
    assert done.exit_code == 0, done.stderr
    (ours,), (theirs,) = ((tmp_path / n / "runs").iterdir() for n in ("s", "NEW"))
    assert numbers(ours) == numbers(theirs)
