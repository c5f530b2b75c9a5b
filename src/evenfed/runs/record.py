"""What a run leaves for its report, in a folder or in memory, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from evenfed.core.errors import RunFolderError
from evenfed.runs.config import RunConfig, parse, read
from evenfed.runs.folder import (
    CELLS,
    CLIENTS,
    CONFIG,
    FRONT,
    RunFolder,
    read_frame,
    read_json,
)

if TYPE_CHECKING:
    from evenfed.runs.result import Result


@dataclass(frozen=True)
class Record:
    """One run as its report sees it; of a run that is not finished only the history is there.

    Parameters
    ----------
    method : str
        Its label: the method's name, in a study with the options that tell it apart.
    history : list of dict
        One line a round, as in `history.jsonl`.
    measured : dict or None
        The content of `result.json`.
    clients : DataFrame or None
        One row a client, on test data.
    cells : DataFrame or None
        One row a (client, group) that has test examples; see `Evaluation.cells`.
    front : dict or None
        Counts of the models of many preferences; see `fronts.front_record`.

    Examples
    --------
    >>> import evenfed as ef
    >>> record = ef.train("fedavg", "synthetic", rounds=2).record()
    >>> len(record.history), list(record.cells.index.names)
    (2, ['client', 'group'])
    """

    method: str
    config: RunConfig
    history: list[dict[str, Any]] = field(default_factory=list)
    measured: Mapping[str, Any] | None = None
    clients: pd.DataFrame | None = None
    cells: pd.DataFrame | None = None
    front: Mapping[str, Any] | None = None
    folder: Path | None = None

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.seed

    @classmethod
    def of(cls, result: Result, method: str = "") -> Record:
        """The record of a result in memory."""
        return cls(
            method or result.method.name, result.config, list(result.lines), result.measured(),
            result.clients, result.cells, result.front_record(), result.folder,
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path, method: str = "") -> Record:
        """The record of a folder; nothing is trained or evaluated."""
        if not path.is_dir():
            raise RunFolderError(f"there is no folder '{path}'")
        folder = RunFolder.open(path)
        config = parse(read(path / CONFIG), str(path / CONFIG))
        label = method or config.method.name
        if not folder.finished:
            return cls(label, config, folder.history(), folder=path)
        front = path / FRONT
        return cls(
            label, config, folder.history(), folder.result(), read_frame(path / CLIENTS),
            read_frame(path / CELLS) if (path / CELLS).is_file() else None,
            read_json(front) if front.is_file() else None, path,
        )  # fmt: skip
