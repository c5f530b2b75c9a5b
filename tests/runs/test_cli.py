from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from evenfed import __version__
from evenfed.cli import app

RUN = ["run", "--dataset", "synthetic", "--rounds", "2", "--engine", "vectorized"]
COMMANDS = (
    "run",
    "study",
    "resume",
    "methods",
    "datasets",
    "demo",
    "report",
    "watch",
    "export",
    "audit",
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


def evenfed(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "evenfed", *arguments],
        capture_output=True, text=True, cwd=cwd, check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_is_quick_and_does_not_import_torch() -> None:
    begin = os.times()
    done = evenfed("--help")
    end = os.times()
    assert done.returncode == 0
    # of the processor, since a loaded machine is slower: 0.2 to 0.3 s; PyTorch adds 1.5 s and more
    spent = end.children_user + end.children_system - begin.children_user - begin.children_system
    assert spent < 1.2
    code = "import sys, evenfed.cli; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(command: str) -> None:
    done = invoke(command, "--help")
    assert done.exit_code == 0
    assert f"Example: evenfed {command}" in done.stdout


def test_version() -> None:
    assert invoke("--version").stdout == f"evenfed {__version__}\n"


def test_run_prints_metrics_and_the_folder_it_wrote() -> None:
    for expected in ("runs/synthetic-fedavg-0", "runs/synthetic-fedavg-0-2"):
        done = invoke(*RUN)
        assert done.exit_code == 0
        assert "accuracy" in done.stdout
        assert f"folder {expected}\n" in done.stdout
        assert Path(expected, "report.html").is_file()


def test_json_is_one_object_and_nothing_else_even_where_the_run_speaks() -> None:
    done = evenfed("run", "--dataset", "synthetic", "--rounds", "1", "--json", "--out", "x")
    found = json.loads(done.stdout)
    assert found["folder"] == "x"
    assert 0 <= found["metrics"]["accuracy"] <= 1
    assert "engine:" in done.stderr
    assert "\x1b" not in done.stderr


def test_quiet_says_nothing_on_stderr() -> None:
    done = invoke("run", "--dataset", "synthetic", "--rounds", "1", "--quiet", "--out", "x")
    assert done.stderr == ""
    assert done.exit_code == 0


def test_options_win_over_the_file_and_set_over_options() -> None:
    Path("c.toml").write_text(
        'rounds = 1\nseed = 3\nmethod = "fedprox"\n[data]\nname = "synthetic"\n'
        '[engine]\nengine = "vectorized"\n'
    )
    done = invoke(
        "run", "c.toml", "--seed", "4", "--set", "mu=0.7", "--set", "seed=5", "--out", "x", "--json"
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["method"], found["seed"], found["rounds"]) == ("fedprox", 5, 1)
    assert "mu = 0.7" in Path("x/config.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--method", "fedagv"], "method 'fedagv' is unknown. Did you mean 'fedavg'?"),
        (["run", "--dataset", "lones"], "there is no dataset 'lones'"),
        (["run", "none.toml"], "config file 'none.toml' does not exist"),
        ([*RUN, "--set", "muu=1"], "has no option 'muu'"),
        ([*RUN, "--set", "data.client=1"], "has no option 'client'"),
        ([*RUN, "--set", "lr=1e38"], "round 2: 0 of 3 clients sent a usable reply to 'train', "),
        (["run", "--dataset", "loans", "--set", "data.test=0"], "no client has test examples"),
        ([*RUN, "--device", "abacus"], "device 'abacus' is unknown"),
        (["resume", "nowhere"], "not a run folder"),
        (["report", "nowhere"], "there is no folder"),
        (["methods", "fedav"], "Did you mean 'fedavg'?"),
        (["datasets", "loanz"], "Did you mean 'loans'?"),
        (["study", "--methods", "fedavg"], "needs datasets"),
        (["study", "--methods", "fedavg", "--datasets", "loans", "--seeds", "a"], "whole numbers"),
        (["study", "--methods", "fedavg", "--datasets", "loans", "--format", "pdf"], "--format"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(arguments: list[str], complaint: str) -> None:
    done = invoke(*arguments, *(["--quiet"] if arguments[0] == "run" else []))
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(Path().glob("runs/*"))


def test_a_mistake_in_a_real_process_has_no_traceback() -> None:
    done = evenfed("run", "--method", "fedagv")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: method 'fedagv' is unknown. Did you mean 'fedavg'?\n"


def test_a_misspelt_command_is_told_with_one_suggestion() -> None:
    for words, meant in ((["runn"], "'run'"), (["flower", "nod"], "'node'")):
        done = invoke(*words)
        assert done.exit_code == 2
        assert done.stderr.count(f"Did you mean {meant}") == 1


def test_several_mistakes_are_a_line_each() -> None:
    done = invoke("run", "--set", "foo=1", "--set", "rounds=0", "--method", "fedprox")
    assert done.exit_code == 2
    first, *lines = done.stderr.splitlines()
    assert first == "error: 2 settings cannot be used"
    assert [line[:2] for line in lines] == ["- ", "- "]
    assert not Path("runs").exists()


def test_a_run_says_which_data_and_method_it_takes_where_none_are_named() -> None:
    short = ("--rounds", "1", "--engine", "vectorized")
    line = "neither data nor method is named: training 'fedavg' on 'loans'; choose with --silos"
    done = invoke("run", *short)
    assert done.exit_code == 0
    assert line in done.stderr
    assert "FedAvg on loans: 5 clients, 1 round, seed 0" in done.stdout
    assert "is named" not in invoke("run", *short, "--quiet").stderr
    named = invoke("run", *short, "--dataset", "synthetic", "--method", "fedavg")
    assert "named" not in named.stderr
    Path("c.toml").write_text('method = "fedprox"\n')
    assert "no data are named: training on 'loans'" in invoke("run", "c.toml", *short).stderr


def test_an_existing_run_is_not_overwritten() -> None:
    assert invoke(*RUN, "--out", "x").exit_code == 0
    done = invoke(*RUN, "--out", "x", "-q")
    assert done.exit_code == 2
    assert "evenfed resume x" in done.stderr


def test_study_in_all_formats_and_again_from_its_folder() -> None:
    study = ["study", "--methods", "fedavg,qffl:q=2", "--datasets", "synthetic", "--seeds", "0,1",
             "--rounds", "1", "--engine", "vectorized", "--no-references", "--out", "s",
             "-q"]  # fmt: skip
    starts = {"console": "synthetic", "csv": "dataset,method,", "markdown": "### ", "latex": "% "}
    for name, start in starts.items():
        done = invoke(*study, "--format", name)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.startswith(start)
    found = json.loads(invoke(*study, "--json").stdout)
    assert [row["method"] for row in found["rows"]][:2] == ["fedavg", "qffl"]
    assert len(found["runs"]) == 4
    assert json.loads(invoke("resume", "s", "--json", "-q").stdout) == found
    page = invoke("report", "s")
    assert page.stdout == "s/report.html\n"
    rebuilt = invoke("study", "s/study.toml", "--out", "again", "--json", "-q")
    assert json.loads(rebuilt.stdout)["rows"] == found["rows"]


def test_a_study_with_a_failed_run_shows_the_rest_and_exits_with_1() -> None:
    done = invoke("study", "--methods", "fedavg:lr=1e38,local", "--datasets", "synthetic",
                  "--seeds", "0", "--rounds", "1", "--no-references", "--out", "s", "--json",
                  "-q")  # fmt: skip
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)["runs"]
    assert "not finite" in first["error"]
    assert second["metrics"]["accuracy"] > 0
    assert "1 of 2 runs have no result" in done.stderr


def test_methods_and_datasets_list_and_show() -> None:
    listed = json.loads(invoke("methods", "--json").stdout)["methods"]
    assert {"fedavg", "scaffold"} <= {card["name"] for card in listed}
    assert all(card["reveals"] and card["paper"] for card in listed)
    text = invoke("methods", "scaffold").stdout
    assert "Karimireddy" in text
    assert "control variate" in text
    assert "local.lr = 0.1" in text
    listed = json.loads(invoke("datasets", "--json").stdout)["datasets"]
    assert {"loans", "digits", "adult"} <= {card["name"] for card in listed}
    text = invoke("datasets", "loans").stdout
    assert "race" in text
    assert "constant prediction" in text
    assert invoke("methods").stdout.count("\n") == len(
        json.loads(invoke("methods", "--json").stdout)["methods"]
    )


def test_data_files_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFED_DATA", "nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "nothing")
    assert "files: not found; looked in nowhere/adult" in invoke("datasets", "adult").stdout
    Path("nowhere/adult").mkdir(parents=True)
    Path("nowhere/adult/adult.data").write_text("")
    assert "files: found in nowhere/adult" in invoke("datasets", "adult").stdout
