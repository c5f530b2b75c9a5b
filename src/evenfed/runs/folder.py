"""The folder of a run: written atomically, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import RunFolderError
from evenfed.core.tree import Tree

CONFIG, HISTORY, RESULT = "config.toml", "history.jsonl", "result.json"
CLIENTS, CHECKPOINT, REPORT = "clients.parquet", "checkpoint.safetensors", "report.html"
MODEL = "model.safetensors"
"""The model for all clients, where a method has one, with its preprocessing."""
CELLS, FRONT = "cells.parquet", "front.json"
DATA = "data.json"
"""Rows and digests of the data that the run began with; see `data_record`."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file of a run."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read '{path}': {error}") from error
    if not isinstance(found, dict):
        raise RunFolderError(f"cannot read '{path}': it holds no table of values")
    return found


def read_frame(path: Path) -> pd.DataFrame:
    """The table in a Parquet file of a run."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # what pyarrow raises is one of the two
        said = " ".join(str(error).split())
        raise RunFolderError(f"cannot read '{path}': {said}") from error


def made(path: Path, *, counted: bool = False) -> Path:
    """Make a folder; with `counted`, one that did not exist: `NAME`, `NAME-2`, `NAME-3`.

    Examples
    --------
    >>> root = Path(tempfile.mkdtemp())
    >>> [made(root / "run", counted=True).name for _ in range(3)]
    ['run', 'run-2', 'run-3']
    """
    for n in itertools.count(1):
        candidate = path if n == 1 else path.with_name(f"{path.name}-{n}")
        try:
            candidate.mkdir(parents=True, exist_ok=not counted)
        except FileExistsError as error:
            if counted:
                continue
            raise RunFolderError(f"'{path}' is a file, not a folder") from error
        except OSError as error:
            raise RunFolderError(f"cannot make the folder '{path}': {error}") from error
        return candidate
    raise AssertionError


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: str, *, counted: bool = False) -> RunFolder:
        """A new folder with its config; a folder that holds a run is refused.

        With `counted`, a path that exists gets a number: `NAME-2`, `NAME-3`, and so on.
        """
        if not counted and (path / CONFIG).exists():
            raise RunFolderError(
                f"'{path}' already holds a run; choose another --out, or go on with "
                f"`evenfed resume {path}`"
            )
        path = made(path, counted=counted)
        write_atomically(path / CONFIG, config.encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run."""
        folder = cls(path)
        if not folder.exists:
            raise RunFolderError(f"'{path}' is not a run folder: it has no {CONFIG}")
        return folder

    @property
    def exists(self) -> bool:
        """Whether there is a run at all."""
        return (self.path / CONFIG).is_file()

    @property
    def begun(self) -> bool:
        """Whether a round was carried out, so that there is something to keep."""
        trained = any("void" not in line for line in self.history())
        return trained or (self.path / CHECKPOINT).exists()

    def discard(self) -> None:
        """Take back a folder whose run failed before its first round; other files stay."""
        self.clear_leftovers()
        for name in (HISTORY, DATA, CONFIG):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def save_data(self, record: dict[str, Any] | None) -> None:
        """Save what the data of the run are."""
        if record is not None:
            write_atomically(self.path / DATA, json.dumps(record).encode())

    def data(self) -> dict[str, Any] | None:
        """What the data of the run were when it began; None where that was not recorded."""
        return read_json(self.path / DATA) if (self.path / DATA).is_file() else None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / RESULT).exists()

    def append_history(self, line: dict[str, Any]) -> None:
        """Add a line; a line cut short by a crash is dropped when the run goes on."""
        with (self.path / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def history(self, before: int | None = None) -> list[dict[str, Any]]:
        """Lines of the rounds below `before` (all of them by default)."""
        path = self.path / HISTORY
        if not path.exists():
            return []
        lines = []
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                break  # cut short by a crash
            if before is None or line["round"] < before:
                lines.append(line)
        return lines

    def rewrite_history(self, lines: list[dict[str, Any]]) -> None:
        """Replace the history."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.path / HISTORY, text.encode())

    def save_checkpoint(
        self, round: int, server: Tree, states: dict[str, Tree], notes: dict[str, str]
    ) -> None:
        """Save the server's state, and beside it what simulated clients hold.

        The checkpoint names its round, and a states file belongs to one round: whatever moment
        a process is killed at, the checkpoint and the states that it points to are both whole.
        """
        flat = {
            f"{name}/{part}": t.contiguous().cpu()
            for name, state in states.items()
            for part, t in trees.named(state).items()
        }
        states_file = self._states(round)
        if flat:
            write_atomically(states_file, save(flat))
        tensors = {k: t.contiguous().cpu() for k, t in trees.named(server).items()}
        write_atomically(
            self.path / CHECKPOINT, save(_unshared(tensors), {"round": str(round), **notes})
        )
        for old in self.path.glob("states-*.safetensors"):
            if old != states_file:
                old.unlink()

    def load_checkpoint(
        self, server: Tree, state_like: Tree
    ) -> tuple[int, Tree, dict[str, Tree], dict[str, str]] | None:
        """Round to go on with, server state, client states by name, notes; None without one."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        with _opened(path) as file:
            notes = dict(file.metadata())
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        round = int(notes.pop("round"))
        states: dict[str, Tree] = {}
        states_file = self._states(round)
        if trees.leaves(state_like) and states_file.exists():
            found: dict[str, dict[str, Tensor]] = {}
            with _opened(states_file) as file:
                for key in file.keys():  # noqa: SIM118
                    name, _, part = key.rpartition("/")
                    found.setdefault(name, {})[part] = file.get_tensor(key)
            states = {name: trees.from_named(parts, state_like) for name, parts in found.items()}
        return round, trees.from_named(flat, server), states, notes

    def _states(self, round: int) -> Path:
        return self.path / f"states-{round:06d}.safetensors"

    def save_result(
        self,
        result: dict[str, Any],
        clients: pd.DataFrame,
        cells: pd.DataFrame | None = None,
        front: dict[str, Any] | None = None,
    ) -> None:
        """Save the measured values; the presence of the result says that the run is finished."""
        for name, table in ((CLIENTS, clients), (CELLS, cells)):
            if table is not None:
                content = BytesIO()
                table.to_parquet(content)
                write_atomically(self.path / name, content.getvalue())
        if front is not None:
            write_atomically(self.path / FRONT, json.dumps(front).encode())
        text = json.dumps(result, indent=1, allow_nan=True)
        write_atomically(self.path / RESULT, text.encode())

    def result(self) -> dict[str, Any]:
        """The measured values of a finished run."""
        if not self.finished:
            raise RunFolderError(
                f"'{self.path}' holds a run that is not finished; `evenfed resume {self.path}`"
            )
        return read_json(self.path / RESULT)

    def clear_leftovers(self) -> None:
        """Remove temporary files that a killed process left."""
        for path in self.path.iterdir():
            if re.match(
                r"\.(config|data|history|result|clients|cells|front|checkpoint|states|report|model)",
                path.name,
            ):
                path.unlink()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        file = safe_open(str(path), framework="pt")
    except Exception as error:
        raise RunFolderError(f"cannot read '{path}': {error}") from error
    with file as opened:
        yield opened


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that share memory, which the file format refuses."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return result
