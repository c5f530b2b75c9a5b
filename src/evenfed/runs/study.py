"""Studies: methods x datasets x seeds, compared in one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from rich.console import Console

from evenfed.core.errors import ConfigError, EvenfedError, RunFolderError, suggest
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.metrics.bootstrap import SeedSummary
from evenfed.runs import table as tables
from evenfed.runs.config import read
from evenfed.runs.folder import CLIENTS, RunFolder, made, write_atomically
from evenfed.runs.plan import PlannedRun, StudyConfig, method_entry, named, parse_study
from evenfed.runs.runner import Model, Observer, Silent
from evenfed.runs.train import as_participation, load_data, resume, run_config

STUDY, RUNS, FAILURES = "study.toml", "runs", "failures.json"


class StudyObserver(Observer, Protocol):
    """Is told what happens in a study."""

    def run_begins(self, name: str) -> None:
        """The next run begins."""


class _Silent(Silent):
    def run_begins(self, name: str) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class StudyRun:
    """One run of a study: what it measured, or why there is nothing.

    Parameters
    ----------
    measured : dict or None
        The content of `result.json`.
    clients : DataFrame or None
        One row a client, on test data.
    """

    method: str
    dataset: str
    seed: int
    measured: dict[str, Any] | None = None
    clients: pd.DataFrame | None = None
    error: str = ""
    folder: Path | None = None


@dataclass(frozen=True)
class Study:
    """Several runs compared.

    Examples
    --------
    >>> result = study(["fedavg", "local"], ["synthetic"], seeds=[0, 1], rounds=2)
    >>> [label for _, label in result.table().index]
    ['fedavg', 'local', 'constant predictor (reference)']
    """

    config: StudyConfig
    runs: list[StudyRun]
    folder: Path | None = None

    @property
    def failed(self) -> list[StudyRun]:
        """Runs without a result."""
        return [run for run in self.runs if run.measured is None]

    @property
    def datasets(self) -> list[str]:
        """Labels of the datasets, in order."""
        return list(dict.fromkeys(run.dataset for run in self.runs))

    @property
    def methods(self) -> list[str]:
        """Labels of the methods, in order."""
        return list(dict.fromkeys(run.method for run in self.runs))

    def measurements(self, dataset: str) -> list[tables.Measurements]:
        """The runs on a dataset, by method."""
        result = []
        for method in self.methods:
            runs = [r for r in self.runs if (r.dataset, r.method) == (dataset, method)]
            result.append(
                tables.Measurements(
                    method,
                    {r.seed: r.measured["metrics"] for r in runs if r.measured is not None},
                    {r.seed: r.error for r in runs if r.measured is None},
                )
            )
        return result

    def sections(self, metrics: Sequence[str] | None = None) -> list[tables.Section]:
        """One table a dataset."""
        result = []
        for dataset in self.datasets:
            some = next(
                (r.measured for r in self.runs if r.dataset == dataset and r.measured), None
            )
            chosen = metrics or (() if some is None else tables.default_metrics(some))
            result.append(tables.section(dataset, self.measurements(dataset), chosen))
        return result

    def table(self, metrics: Sequence[str] | None = None) -> pd.DataFrame:
        """Mean and interval over seeds.

        Parameters
        ----------
        metrics : sequence of str, optional
            Names from `result.json`; by default what fits the kind of prediction.

        Returns
        -------
        DataFrame
            Rows (dataset, method), columns (metric, mean | low | high) and (runs, seeds | note).
            With one seed there is no interval: low and high are NaN, and the note says so.
        """
        return tables.frame(self.sections(metrics))

    def difference(self, metric: str, dataset: str, a: str, b: str) -> SeedSummary | None:
        """Mean and interval of `metric` of method `a` minus that of `b`, over the same seeds."""
        values = {run.method: run.values(metric) for run in self.measurements(dataset)}
        for method in (a, b):
            if method not in values:
                raise ConfigError(f"method '{method}' is unknown.{suggest(method, values)}")
        return tables.difference(values[a], values[b])

    def legend(self, best: str = "*") -> str:
        """What figures and marks mean."""
        return tables.legend(len(self.config.seeds), best)

    def to_csv(self, metrics: Sequence[str] | None = None) -> str:
        """One row a dataset and method, with columns such as `accuracy_mean`."""
        frame = self.table(metrics)
        frame.columns = pd.Index([k if m == "runs" else f"{m}_{k}" for m, k in frame.columns])
        return frame.reset_index().to_csv(index=False)

    def to_markdown(self, metrics: Sequence[str] | None = None) -> str:
        """Markdown; the best value of a column is bold."""
        parts = [tables.markdown(part) for part in self.sections(metrics)]
        return "\n".join([*parts, self.legend("Bold")]) + "\n"

    def to_latex(self, metrics: Sequence[str] | None = None) -> str:
        """LaTeX with booktabs; the best value of a column is bold."""
        parts = [tables.latex(part) for part in self.sections(metrics)]
        return "\n\n".join([*parts, f"% {self.legend('Bold')}"]) + "\n"

    def console(self, metrics: Sequence[str] | None = None, *, to: Console | None = None) -> str:
        """Print the table to a console, or return it as text if none is given."""
        text = StringIO()
        out = to or Console(file=text, width=200, highlight=False)
        for part in self.sections(metrics):
            out.print(tables.console_table(part))
            for note in part.notes:
                out.print(f"  {note}", markup=False, highlight=False)
        out.print(self.legend(), markup=False, highlight=False)
        return text.getvalue()

    def measured(self) -> dict[str, Any]:
        """All of it in plain values, for a program."""
        rows = []
        for part in self.sections():
            for row in part.rows:
                cells = {m: c.summary for m, c in row.cells.items() if c.summary is not None}
                values = {
                    m: {k: _finite(v) for k, v in asdict(s).items()} for m, s in cells.items()
                }
                rows.append(
                    {"dataset": part.dataset, "method": row.label, "seeds": row.seeds,
                     "reference": row.reference, "note": row.note, "metrics": values}
                )  # fmt: skip
        runs = [
            {"method": r.method, "dataset": r.dataset, "seed": r.seed, "error": r.error or None,
             "folder": None if r.folder is None else str(r.folder),
             "metrics": None if r.measured is None else r.measured["metrics"]}
            for r in self.runs
        ]  # fmt: skip
        folder = None if self.folder is None else str(self.folder)
        return {"folder": folder, "rows": rows, "runs": runs, "legend": self.legend("best")}


def _finite(value: float) -> float | None:
    return None if value != value else value


def study(
    methods: str | Method | Sequence[str | Method],
    datasets: str | FederatedDataset | Sequence[str | FederatedDataset],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = 30,
    model: Model = "auto",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    data: Mapping[str, Mapping[str, Any]] | None = None,
    participation: Participation | float | int | None = None,
    engine: str | EngineOptions = "auto",
    evaluate_every: int = 5,
    tail: float = 0.1,
    out: Path | str | None = None,
    observer: StudyObserver | None = None,
) -> Study:
    """Compare methods on datasets over seeds.

    Parameters
    ----------
    methods : str, Method or sequence of them
        Names, `"name:option=value"` words, or instances.
    datasets : str, FederatedDataset or sequence of them
        Names, words as for methods, or loaded data (which then is the same for every seed).
    options : mapping, optional
        Hyperparameters by method name: `{"fedprox": {"mu": 0.1}}`.
    data : mapping, optional
        Options by dataset name: `{"digits": {"clients": 10}}`.
    out : path, optional
        Folder of the study. If it holds the same study, finished runs are read and unfinished
        ones are resumed. Needs datasets and model by name.

    Returns
    -------
    Study
        A run that fails is a row that says why; the others go on.

    Examples
    --------
    >>> result = study(["fedavg", "fedprox:mu=0.1"], "synthetic", seeds=[0], rounds=1)
    >>> print(result.to_csv(["accuracy"]).splitlines()[0])
    dataset,method,accuracy_mean,accuracy_low,accuracy_high,seeds,note
    """
    given_methods = [methods] if isinstance(methods, str | Method) else list(methods)
    given_data = [datasets] if isinstance(datasets, str | FederatedDataset) else list(datasets)
    tables_m = [method_entry(m) for m in given_methods]
    loaded = {d.schema.name: d for d in given_data if isinstance(d, FederatedDataset)}
    tables_d = [
        {"name": d.schema.name} if isinstance(d, FederatedDataset) else named(d) for d in given_data
    ]
    _merge(tables_m, options or {}, "method")
    _merge(tables_d, data or {}, "dataset")
    runs_on = engine if isinstance(engine, EngineOptions) else EngineOptions(engine)
    config = parse_study(
        {
            "methods": tables_m,
            "datasets": tables_d,
            "seeds": list(seeds),
            "rounds": rounds,
            "model": model if isinstance(model, str) else "own",
            "participation": asdict(as_participation(participation)),
            "engine": asdict(runs_on),
            "evaluate_every": evaluate_every,
            "tail": tail,
        }
    )
    own = None if isinstance(model, str) else model
    return run_study(config, None if out is None else Path(out), observer, data=loaded, model=own)


def _merge(entries: list[dict[str, Any]], more: Mapping[str, Mapping[str, Any]], what: str) -> None:
    names = {entry["name"] for entry in entries}
    for name, options in more.items():
        if name not in names:
            raise ConfigError(f"options for {what} '{name}', which is not in the study.")
        for entry in entries:
            if entry["name"] == name:
                merged = {**entry, **options}
                entry.update(method_entry(merged) if what == "method" else merged)


def run_study(
    config: StudyConfig,
    out: Path | None = None,
    observer: StudyObserver | None = None,
    *,
    counted: bool = False,
    data: Mapping[str, FederatedDataset] | None = None,
    model: Model | None = None,
) -> Study:
    """Carry out a study; see `study`.

    Examples
    --------
    >>> config = parse_study({"methods": ["fedavg"], "datasets": ["synthetic"], "rounds": 1})
    >>> len(run_study(config).runs)
    3
    """
    data = data or {}
    if out is not None:
        if data or model is not None:
            raise ConfigError(
                "the folder of a study needs datasets and model by name, so that it can be resumed"
            )
        out = _folder(config, out, counted)
    told = observer or _Silent()
    runs: list[StudyRun] = []
    reasons: dict[str, str] = {}
    loaded = _Loaded()
    for plan in config.planned():
        told.run_begins(plan.name)
        try:
            runs.append(_carried_out(plan, out, told, data.get(plan.dataset), model, loaded))
        except EvenfedError as error:
            reason = reasons[plan.name] = " ".join(str(error).split())
            runs.append(StudyRun(plan.method, plan.dataset, plan.seed, error=reason))
            told.say(f"failed: {reason}")
    if out is not None:
        write_atomically(out / FAILURES, json.dumps(reasons, indent=1).encode())
    return Study(config, runs, out)


class _Loaded:
    """The data that were loaded last: runs on the same data follow each other."""

    def __init__(self) -> None:
        self._key: tuple[str, int] | None = None
        self._data: FederatedDataset | None = None

    def get(self, plan: PlannedRun) -> FederatedDataset:
        key = (plan.dataset, plan.seed)
        if self._data is None or self._key != key:
            self._data, self._key = load_data(plan.config.data, plan.seed), key
        return self._data


def _carried_out(
    plan: PlannedRun,
    out: Path | None,
    observer: StudyObserver,
    own: FederatedDataset | None,
    model: Model | None,
    loaded: _Loaded,
) -> StudyRun:
    """Read a finished run, resume an unfinished one, or begin."""
    label = (plan.method, plan.dataset, plan.seed)
    if out is None:
        data = own or loaded.get(plan)
        result = run_config(plan.config, None, observer, data=data, model=model)
        return StudyRun(*label, result.measured(), result.clients)
    folder = RunFolder(out / RUNS / plan.name)
    if not folder.finished:
        if folder.exists:
            resume(folder.path, observer)
        else:
            run_config(plan.config, folder.path, observer, data=loaded.get(plan))
    return StudyRun(
        *label, folder.result(), pd.read_parquet(folder.path / CLIENTS), "", folder.path
    )


def _folder(config: StudyConfig, out: Path, counted: bool) -> Path:
    """The folder, new or of the same study."""
    text = config.completed().toml()
    path = out / STUDY
    if path.exists() and not counted:
        before = parse_study(read(path), str(path)).completed().model_copy(update={"versions": {}})
        now = config.completed().model_copy(update={"versions": {}})
        if before.toml() != now.toml():
            raise RunFolderError(f"'{out}' holds another study; choose another --out")
        return out
    out = made(out, counted=counted)
    write_atomically(out / STUDY, text.encode())
    return out


def resume_study(path: Path, observer: StudyObserver | None = None) -> Study:
    """Go on with a study: finished runs are read, unfinished ones resumed."""
    return run_study(study_config(path), path, observer)


def study_config(path: Path) -> StudyConfig:
    """The config of a study's folder."""
    if not (path / STUDY).is_file():
        raise RunFolderError(f"'{path}' is not the folder of a study: it has no {STUDY}")
    return parse_study(read(path / STUDY), str(path / STUDY))


def open_study(path: Path) -> Study:
    """Read a study without running anything; what is missing is a row that says so."""
    config = study_config(path)
    failures = path / FAILURES
    reasons = json.loads(failures.read_text(encoding="utf-8")) if failures.exists() else {}
    runs = []
    for plan in config.planned():
        label = (plan.method, plan.dataset, plan.seed)
        folder = RunFolder(path / RUNS / plan.name)
        if folder.finished:
            clients = pd.read_parquet(folder.path / CLIENTS)
            runs.append(StudyRun(*label, folder.result(), clients, "", folder.path))
        else:
            runs.append(StudyRun(*label, error=reasons.get(plan.name, "not finished")))
    return Study(config, runs, path)
