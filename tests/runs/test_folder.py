from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from evenfed.cli import app
from evenfed.core.errors import EvenfedError, RunFolderError
from evenfed.data.dataset import FederatedDataset
from evenfed.runs.config import parse
from evenfed.runs.folder import (
    CELLS,
    CHECKPOINT,
    CLIENTS,
    CONFIG,
    DATA,
    FRONT,
    HISTORY,
    MODEL,
    RESULT,
    RunFolder,
    write_atomically,
)
from evenfed.runs.train import load_data, resume, run_config


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_holds_a_run_is_refused_or_counted(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", "")
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", "")
    assert RunFolder.create(tmp_path / "run", "", counted=True).path.name == "run-2"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create(tmp_path / "file", "")
    with pytest.raises(RunFolderError, match=r"has no config.toml"):
        RunFolder.open(tmp_path)


def test_a_history_line_cut_short_is_dropped(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "")
    folder.append_history({"round": 0})
    folder.append_history({"round": 1})
    with (folder.path / HISTORY).open("a") as file:
        file.write('{"round": 2, "val_acc')
    assert folder.history() == [{"round": 0}, {"round": 1}]
    assert folder.history(before=1) == [{"round": 0}]


def test_a_checkpoint_gives_back_server_and_states(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "")
    shared = torch.randn(3)
    server = {"params": {"w": shared, "v": shared}}
    states = {"a/b": {"control": torch.randn(2)}, "c": {"control": torch.randn(2)}}
    folder.save_checkpoint(4, server, states, {"engine": "vectorized"})
    folder.save_checkpoint(5, server, states, {"engine": "vectorized"})
    found = folder.load_checkpoint(server, {"control": torch.zeros(2)})
    assert found is not None
    round_, loaded, kept, notes = found
    assert (round_, notes) == (5, {"engine": "vectorized"})
    assert torch.equal(loaded["params"]["v"], shared)
    assert torch.equal(kept["a/b"]["control"], states["a/b"]["control"])
    assert [p.name for p in folder.path.glob("states-*")] == ["states-000005.safetensors"]


def test_a_checkpoint_that_is_not_one_is_an_error_with_its_name(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "")
    (folder.path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(RunFolderError, match=CHECKPOINT):
        folder.load_checkpoint({}, ())


def test_a_run_that_fails_before_its_first_round_leaves_nothing(tmp_path: Path) -> None:
    config = parse({"data": "synthetic", "rounds": 1, "method": {"name": "fedavg", "lr": 1e38}})
    with pytest.raises(EvenfedError):
        run_config(config, tmp_path / "runs" / "run")
    assert not (tmp_path / "runs" / "run").exists()


def test_a_failing_run_does_not_touch_files_that_were_there(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    config = parse({"data": "synthetic", "rounds": 1, "method": {"name": "fedavg", "lr": 1e38}})
    with pytest.raises(EvenfedError):
        run_config(config, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_in_which_every_round_is_void_is_an_error() -> None:
    table = {"data": "synthetic", "rounds": 3, "method": {"name": "fedavg", "lr": 1e38}}
    with pytest.raises(EvenfedError, match="round 3"):
        run_config(parse(table))


def test_the_folder_of_a_run_holds_what_the_design_names(tmp_path: Path) -> None:
    result = run_config(parse({"data": "synthetic", "rounds": 2}), tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {CONFIG, DATA, HISTORY, RESULT, CHECKPOINT, CLIENTS, CELLS, MODEL}
    saved = json.loads((tmp_path / "run" / RESULT).read_text())
    assert saved == json.loads(json.dumps(result.measured()))
    assert saved["task"]["clients"] == 3


def test_resuming_a_finished_run_changes_no_file(tmp_path: Path) -> None:
    config = parse({"data": "synthetic", "rounds": 2, "method": "local"})
    first = run_config(config, tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    again = resume(tmp_path / "run")
    assert again.summary().equals(first.summary())
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_a_finished_run_is_printed_from_its_result_whatever_its_data_are(tmp_path: Path) -> None:
    run_config(parse({"data": "synthetic", "rounds": 2}), tmp_path / "run")
    saved = json.loads((tmp_path / "run" / RESULT).read_text())
    saved["metrics"]["accuracy"] = 0.125  # no run on the data as they are now gives this
    (tmp_path / "run" / RESULT).write_text(json.dumps(saved))
    done = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {**saved, "folder": str(tmp_path / "run")}


@pytest.mark.parametrize("name", [RESULT, FRONT, CLIENTS, CELLS])
@pytest.mark.parametrize("command", ["report", "export"])
def test_a_damaged_file_is_one_line_with_its_name(tmp_path: Path, name: str, command: str) -> None:
    run_config(parse({"data": "synthetic", "rounds": 1}), tmp_path / "run")
    (tmp_path / "run" / name).write_text("{")
    done = CliRunner().invoke(app, [command, str(tmp_path / "run")])
    if (command, name) == ("export", FRONT):
        assert done.exit_code == 0, "an export does not need it"
        return
    assert done.exit_code == 2
    assert f"cannot read '{tmp_path / 'run' / name}'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_record_of_its_data_goes_on(tmp_path: Path) -> None:
    first = run_config(parse({"data": "synthetic", "rounds": 2}), tmp_path / "run")
    for name in (RESULT, DATA):
        (tmp_path / "run" / name).unlink()
    assert resume(tmp_path / "run").summary().equals(first.summary())


def test_a_client_that_a_checkpoint_knows_and_the_data_do_not_is_named(tmp_path: Path) -> None:
    config = parse({"data": "synthetic", "rounds": 2, "method": "local"})
    data = load_data(config.data, 0)
    run_config(config, tmp_path / "run", data=data)
    for name in (RESULT, DATA):
        (tmp_path / "run" / name).unlink()
    fewer = FederatedDataset(data.schema, list(data)[1:])
    with pytest.raises(RunFolderError, match=r"have no client 'client-0'"):
        resume(tmp_path / "run", data=fewer)
