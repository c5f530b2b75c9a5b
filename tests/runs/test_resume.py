"""A run that is really killed goes on to the bits of one that was not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from evenfed.runs.folder import CHECKPOINT, CONFIG, HISTORY, REPORT, RESULT
from evenfed.runs.train import resume

RUN = [
    "run", "--method", "scaffold", "--dataset", "digits", "--clients", "8", "--rounds", "40",
    "--engine", "vectorized", "--set", "participation.fraction=0.5",
    "--set", "participation.dropout=0.1", "--set", "checkpoint_every=7", "--set", "local.epochs=3",
    "--quiet",
]  # fmt: skip


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "evenfed", *arguments], stdout=subprocess.DEVNULL
    )


def lines(folder: Path) -> int:
    path = folder / HISTORY
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(process: subprocess.Popen[bytes], folder: Path, rounds: int) -> None:
    while lines(folder) < rounds and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"


def contents(folder: Path) -> dict[str, Any]:
    history = [json.loads(line) for line in (folder / HISTORY).read_text().splitlines()]
    for line in history:
        line.pop("seconds")
    result = json.loads((folder / RESULT).read_text())
    result["cost"].pop("seconds")
    return {
        "history": history,
        "result": result,
        "config": (folder / CONFIG).read_text(),
        "files": {path.name for path in folder.iterdir()} - {REPORT},
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert start(*RUN, "--out", str(folder)).wait() == 0
    return folder


def assert_same_bits(folder: Path, unbroken: Path) -> None:
    assert contents(folder) == contents(unbroken)
    for name in (CHECKPOINT, "states-000040.safetensors"):
        ours, theirs = load_file(folder / name), load_file(unbroken / name)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert torch.equal(ours[key], tensor), f"{name}: {key}"
    frames = [pd.read_parquet(path / "clients.parquet") for path in (folder, unbroken)]
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_a_run_killed_before_its_first_checkpoint(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill_after(start(*RUN, "--out", str(folder)), folder, 1)
    assert not (folder / RESULT).exists()
    resume(folder)
    assert_same_bits(folder, unbroken)


def test_a_run_killed_twice_and_while_writing(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill_after(start(*RUN, "--out", str(folder)), folder, 9)
    assert (folder / CHECKPOINT).exists()
    # what a kill in the middle of a write would have left
    with (folder / HISTORY).open("a") as file:
        file.write('{"round": 99, "val_')
    (folder / ".checkpoint.safetensors.x1").write_bytes(b"half")
    (folder / "states-000039.safetensors").write_bytes(b"half")
    kill_after(start("resume", str(folder), "--quiet"), folder, 20)
    assert not (folder / RESULT).exists()
    assert start("resume", str(folder), "--quiet").wait() == 0
    assert_same_bits(folder, unbroken)
