"""States of a client, kept in files at its node: they outlive the process and the round."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open

from evenfed.core.errors import EvenfedError
from evenfed.core.tree import Tree
from evenfed.engines.flower import wire
from evenfed.runs.folder import write_atomically

_RUNS_KEPT = 8
"""Runs whose states a node keeps, the newest ones."""


class StateLostError(EvenfedError):
    """A version that the server asks for is not at the node."""


class NodeStates:
    """Versions of one client's state, by run and space; version 0 is the first state, no file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _place(self, run: str, space: int) -> Path:
        # both come out of a message: nothing but a name may become a path
        if not re.fullmatch(r"[0-9a-f]{8,64}", run) or not 0 <= space < 10**6:
            raise wire.WireError("a message names no run")
        return self.folder / run / str(int(space))

    def get(self, run: str, space: int, version: int) -> Tree:
        """The state of a version."""
        path = self._place(run, space) / f"{int(version)}.safetensors"
        if not path.is_file():
            raise StateLostError(
                f"version {version} of this client's state is not here; was its folder removed?"
            )
        with safe_open(str(path), framework="pt") as file:
            structure = json.loads(file.metadata()["structure"])
            tensors = [file.get_tensor(str(i)) for i in range(len(file.keys()))]
        return wire.rebuilt(structure, tensors)

    def put(self, run: str, space: int, version: int, state: Tree) -> None:
        """Write a version; a process that is killed leaves the others whole."""
        place = self._place(run, space)
        if not place.parent.exists():
            self._forget_runs()
        place.mkdir(parents=True, exist_ok=True)
        packing = wire.Packing()
        structure: Any = packing.describe(state)
        content = wire.to_bytes(packing.shared, {"structure": json.dumps(structure)})
        write_atomically(place / f"{int(version)}.safetensors", content)

    def keep(self, run: str, space: int, versions: list[int]) -> None:
        """Remove all other versions."""
        place = self._place(run, space)
        names = {f"{int(version)}.safetensors" for version in versions}
        for path in place.glob("*") if place.is_dir() else ():
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _forget_runs(self) -> None:
        runs = [p for p in self.folder.glob("*") if p.is_dir()] if self.folder.is_dir() else []
        runs.sort(key=lambda path: path.stat().st_mtime)
        for old in runs[: max(0, len(runs) + 1 - _RUNS_KEPT)]:
            shutil.rmtree(old, ignore_errors=True)
