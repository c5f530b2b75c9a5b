"""Results as files: one JSON a finished job, and one a finished table.

    FOLDER/parts/NAME/DIGEST.json
    FOLDER/results/NAME-TABLE-PROTOCOL[-quick].json
    FOLDER/studies/NAME-STUDY.md

The digest is that of a job's settings, so tables that need the same job share it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import evenfed
from evenfed.core.errors import RunFolderError
from evenfed.papers.recipe import Job, Outcome, Setting, Table
from evenfed.runs.config import versions
from evenfed.runs.folder import write_atomically

FOLDER = Path("papers")
FILES = ("reviews",)
"""Settings that are checksums of files that the user named."""


def stem(paper: str, table: str, setting: Setting) -> str:
    """Name of a result's file, without its ending."""
    return f"{paper}-{table}-{setting.protocol}" + ("-quick" if setting.quick else "")


@dataclass(frozen=True)
class Run:
    """A finished job; `code` is the digest of the package that carried it out, on `processor`."""

    job: str
    rows: tuple[str, ...]
    column: str
    seed: int
    seconds: float
    settings: dict[str, Any]
    outcome: Outcome
    code: str = ""
    processor: str = ""

    @property
    def measured(self) -> bool:
        """Whether it gave any number."""
        rows = self.outcome.values.values()
        return any(math.isfinite(value) for values in rows for value in values.values())

    def table(self) -> dict[str, Any]:
        """As JSON; what is undefined is null."""
        values = {row: _nulls(of) for row, of in self.outcome.values.items()}
        found: dict[str, Any] = {
            "job": self.job, "rows": list(self.rows), "column": self.column, "seed": self.seed,
            "seconds": round(self.seconds, 2), "settings": self.settings, "values": values,
        }  # fmt: skip
        found |= {k: v for k, v in (("code", self.code), ("processor", self.processor)) if v}
        if self.outcome.facts:
            found["facts"] = self.outcome.facts
        if self.outcome.curves:
            found["curves"] = {
                row: [[round(x, 4) for x in point] for point in curve]
                for row, curve in self.outcome.curves.items()
            }
        trials = {row: _nulls(of) for row, of in self.outcome.trials.items() if of}
        if trials:
            found["trials"] = trials
        return found

    @classmethod
    def of(cls, table: dict[str, Any]) -> Run:
        """From JSON."""
        outcome = Outcome(
            _numbers(table["values"]), table.get("facts", {}), table.get("curves", {}),
            _numbers(table.get("trials", {})),
        )  # fmt: skip
        return cls(
            table["job"], tuple(table["rows"]), table["column"], table["seed"], table["seconds"],
            table["settings"], outcome, table.get("code", ""), table.get("processor", ""),
        )  # fmt: skip


@dataclass(frozen=True)
class Results:
    """A finished table."""

    paper: str
    table: str
    setting: Setting
    versions: dict[str, str]
    machine: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def minutes(self) -> float:
        """Minutes of processor time that its jobs took together."""
        return sum(run.seconds for run in self.runs) / 60

    def values(self, row: str, column: str, metric: str) -> list[float]:
        """One number a seed, in the order of the seeds; empty where the cell was not run."""
        found = {
            run.seed: run.outcome.values[row][metric]
            for run in self.runs
            if run.column == column and metric in run.outcome.values.get(row, {})
        }
        return [found[seed] for seed in self.setting.seeds if seed in found]

    def facts(self, row: str, column: str) -> dict[str, list[str]]:
        """Words of a cell, one a seed."""
        found: dict[str, list[str]] = {}
        for run in self.runs:
            if run.column == column:
                for name, word in run.outcome.facts.get(row, {}).items():
                    found.setdefault(name, []).append(word)
        return found

    def curves(self, column: str, seed: int) -> dict[str, list[list[float]]]:
        """Points by row, of one seed."""
        chosen = [run for run in self.runs if run.column == column and run.seed == seed]
        return {row: points for run in chosen for row, points in run.outcome.curves.items()}

    def text(self) -> str:
        """As JSON, one run a line."""
        head = {
            "paper": self.paper, "table": self.table, "protocol": self.setting.protocol,
            "quick": self.setting.quick, "seeds": list(self.setting.seeds),
            "versions": self.versions, "machine": self.machine,
        }  # fmt: skip
        lines = ",\n".join(f"  {_json(run.table())}" for run in self.runs)
        return _json(head, indent=1).removesuffix("\n}") + f',\n "runs": [\n{lines}\n ]\n}}\n'


def machine(jobs: int) -> dict[str, Any]:
    """Of the command that ended a table: processors, processes, threads of each."""
    return {
        "processor": _processor(), "cpus": os.cpu_count() or 1, "processes": jobs, "threads": 1,
    }  # fmt: skip


@cache
def _processor() -> str:
    """The processor's name; its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@cache
def code() -> str:
    """Digest of the package's sources: which code made a number.

    Examples
    --------
    >>> len(code())
    12
    """
    root = Path(evenfed.__file__).parent
    found = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    return found.hexdigest()[:12]


def collected(paper: str, table: str, setting: Setting, runs: Iterable[Run], jobs: int) -> Results:
    """The results of a table whose jobs are all finished."""
    return Results(paper, table, setting, versions(), machine(jobs), tuple(runs))


def write(results: Results, folder: Path) -> Path:
    """Write a table's results; returns the file."""
    path = result_path(results.paper, results.table, results.setting, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, results.text().encode())
    return path


def result_path(paper: str, table: str, setting: Setting, folder: Path) -> Path:
    """Where a table's results are."""
    return folder / "results" / f"{stem(paper, table, setting)}.json"


def read(path: Path) -> Results:
    """Read a table's results."""
    if not path.is_file():
        raise RunFolderError(
            f"there are no stored results at '{path}'; run the table first, or name the folder "
            "that has them with --out"
        )
    content = json.loads(path.read_text(encoding="utf-8"))
    setting = Setting(content["protocol"], content["quick"], tuple(content["seeds"]))
    runs = tuple(Run.of(run) for run in content["runs"])
    return Results(
        content["paper"], content["table"], setting, content["versions"], content["machine"], runs
    )


def stored(folder: Path, paper: str) -> list[Results]:
    """All stored results of a paper, full ones before quick ones."""
    files = sorted((folder / "results").glob(f"{paper}-*.json"))
    found = [read(file) for file in files]
    return sorted((r for r in found if r.paper == paper), key=lambda r: r.setting.quick)


def studies(folder: Path, paper: str) -> list[str]:
    """What was tried to find out why, as Markdown: a title, the command, and what it printed."""
    files = sorted((folder / "studies").glob(f"{paper}-*.md"))
    return [file.read_text(encoding="utf-8").strip() for file in files]


def kept(results: Iterable[Results], jobs: Iterable[Job]) -> dict[str, Run]:
    """Runs of stored results with a job's very settings and today's versions, by its key.

    They may be those of another table. A run that does not say which code made it, and on which
    processor, is not kept.
    """
    found = {
        _told(run.settings): run
        for table in results
        if table.versions == versions()
        for run in table.runs
        if run.measured and run.code and run.processor
    }
    wanted = [(job, found.get(_told(job.settings))) for job in jobs]
    return {job.key: _of_job(run, job) for job, run in wanted if run is not None}


class Parts:
    """The finished jobs of a paper, whichever of its tables asked for them."""

    def __init__(self, paper: str, folder: Path) -> None:
        self.folder = folder / "parts" / paper

    def get(self, job: Job) -> Run | None:
        """The stored result of a job, if it has these very settings and versions."""
        settings = _plain(job.settings)
        path = self._path(settings)
        if not path.is_file():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["settings"] != settings or content["versions"] != versions():
            return None
        found = Run.of(content)
        return _of_job(found, job) if found.measured else None

    def put(self, run: Run) -> None:
        """Store a finished job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {**run.table(), "versions": versions()}
        write_atomically(self._path(run.settings), _json(content, indent=1).encode())

    def _path(self, settings: Any) -> Path:
        text = json.dumps(settings, sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def finished(job: Job, outcome: Outcome, seconds: float) -> Run:
    """A job with what it measured."""
    settings = _plain(job.settings)
    return Run(
        job.key, job.rows, job.column, job.seed, seconds, settings, outcome, code(), _processor()
    )


def is_current(table: Table, results: Results) -> bool:
    """Whether a table would be run with the settings it was run with, and all of it was measured.

    Where it takes files of the user's, whatever they are, and what more was run with them.
    """
    if not all(run.measured for run in results.runs):
        return False
    wanted = {job.key: _plain(job.settings) for job in table.jobs(results.setting)}
    found = {run.job: run.settings for run in results.runs}
    if not table.options:
        return wanted == found
    return all(
        key in found and _without_files(found[key]) == _without_files(settings)
        for key, settings in wanted.items()
    )


def _without_files(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in FILES}


def _of_job(run: Run, job: Job) -> Run:
    """A run under the name that a table gives it."""
    return replace(run, job=job.key, rows=job.rows, column=job.column)


def _told(settings: Mapping[str, Any]) -> str:
    return json.dumps(_plain(settings), sort_keys=True)


def _plain(value: Any) -> Any:
    """As it comes back from a file: lists for tuples."""
    return json.loads(_json(value))


def _numbers(rows: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    return {
        row: {k: math.nan if v is None else float(v) for k, v in of.items()}
        for row, of in rows.items()
    }


def _nulls(values: dict[str, float]) -> dict[str, float | None]:
    return {k: float(v) if math.isfinite(v) else None for k, v in values.items()}


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False, default=dict)
