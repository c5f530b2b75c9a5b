"""Studies: methods x datasets x seeds, compared in one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from evenfed.core.errors import (
    ConfigError,
    EvenfedError,
    NotApplicableError,
    RunFolderError,
    suggest,
)
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import COMMON, source_options
from evenfed.data.silo import SILOS, SiloSchema
from evenfed.data.silos import SiloDataset
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.runs.comparison import Study, StudyRun
from evenfed.runs.config import read as read_toml
from evenfed.runs.folder import (
    CLIENTS,
    REPORT,
    RunFolder,
    made,
    read_frame,
    read_json,
    write_atomically,
)
from evenfed.runs.plan import (
    PlannedRun,
    StudyConfig,
    StudyData,
    data_entry,
    method_entry,
    parse_study,
)
from evenfed.runs.result import Result
from evenfed.runs.runner import Model, Observer, Silent
from evenfed.runs.train import as_participation, load_data, resume, run_config
from evenfed.runs.tuning import Choices, tuned

STUDY, RUNS, FAILURES = "study.toml", "runs", "failures.json"


class StudyObserver(Observer, Protocol):
    """Is told what happens in a study."""

    def run_begins(self, name: str) -> None:
        """The next run begins."""


class _Silent(Silent):
    def run_begins(self, name: str) -> None:
        """Do nothing."""


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
    references: Sequence[str] | None = None,
    tune: str | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    observer: StudyObserver | None = None,
) -> Study:
    """Compare methods on datasets over seeds.

    Parameters
    ----------
    methods : str, Method or sequence of them
        Names, `"name:option=value"` words, or instances; "all" is every registered method.
    datasets : str, FederatedDataset or sequence of them
        Names, words as for methods, or loaded data (which then is the same for every seed; silo
        files are split anew).
    options : mapping, optional
        Hyperparameters by method name: `{"fedprox": {"mu": 0.1}}`.
    data : mapping, optional
        Options by dataset name: `{"digits": {"clients": 10, "rounds": 60, "method.lr": 0.5}}`.
        `rounds` and `method.NAME`, an option of every method, hold on these data alone.
    references : sequence of str, optional
        Methods that stand in the table for comparison and are never marked; by default "local"
        and "centralized", if not among `methods`. The constant predictor is always there.
    tune : str or mapping, optional
        "val": choose the options of every method on validation data, each with the same number
        of trials; a mapping may set `budget`, `metric`, `rates` and `seed` (see `TuneConfig`).
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
    loaded = {
        d.schema.name: d
        for d in given_data
        if isinstance(d, FederatedDataset) and not isinstance(d, SiloDataset)
    }
    tables_d = [_data_table(d) for d in given_data]
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
            "references": None if references is None else list(references),
            "tune": tune if tune is None or isinstance(tune, str) else dict(tune),
        }
    )
    own = None if isinstance(model, str) else model
    done = run_study(config, None if out is None else Path(out), observer, data=loaded, model=own)
    if done.folder is not None:
        done.report(done.folder / REPORT)
    return done


def _data_table(data: str | FederatedDataset) -> dict[str, Any]:
    """What names the data; silo files are read again, so that each seed splits them anew."""
    if isinstance(data, str):
        return data_entry(data)
    return {"name": data.schema.name, **(data.options if isinstance(data, SiloDataset) else {})}


def _merge(entries: list[dict[str, Any]], more: Mapping[str, Mapping[str, Any]], what: str) -> None:
    names = {entry["name"] for entry in entries}
    for name, options in more.items():
        if name not in names:
            raise ConfigError(f"options for {what} '{name}', which is not in the study.")
        for entry in entries:
            if entry["name"] == name:
                read = method_entry if what == "method" else data_entry
                entry.update(read({**entry, **options}))


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
    >>> len(run_study(config).runs)  # FedAvg and two references, three seeds
    9
    """
    data = data or {}
    for wanted in config.datasets:
        if wanted.name not in data:
            _check_options(wanted)
    if out is not None:
        if data or model is not None:
            raise ConfigError(
                "the folder of a study needs datasets and model by name, so that it can be resumed"
            )
        out = _folder(config, out, counted)
    told = observer or _Silent()
    runs: list[StudyRun] = []
    reasons: dict[str, dict[str, Any]] = {}
    loaded = _Loaded()
    choices = Choices(out)
    if config.tune is not None:
        choices = tuned(config, out, _trial(told, data, model, loaded), told.run_begins)
    for plan in map(choices.apply, config.planned()):
        told.run_begins(plan.name)
        try:
            runs.append(_carried_out(plan, out, told, data.get(plan.dataset), model, loaded))
        except EvenfedError as error:
            reason, applies = (
                " ".join(str(error).split()),
                not isinstance(error, NotApplicableError),
            )
            reasons[plan.name] = {"reason": reason, "applies": applies}
            label = (plan.method, plan.dataset, plan.seed)
            runs.append(StudyRun(*label, error=reason, applies=applies))
            told.say(f"{'failed' if applies else 'does not apply'}: {reason}")
    if out is not None and reasons:
        write_atomically(out / FAILURES, json.dumps(reasons, indent=1).encode())
    elif out is not None:
        (out / FAILURES).unlink(missing_ok=True)
    return Study(config, runs, out, choices.remarks())


def _trial(
    told: StudyObserver,
    data: Mapping[str, FederatedDataset],
    model: Model | None,
    loaded: _Loaded,
) -> Callable[[PlannedRun], Result]:
    """What carries out one trial of a tuning; it leaves no folder."""

    def trial(plan: PlannedRun) -> Result:
        config = plan.config.model_copy(update={"evaluate_every": 0})
        own = data.get(plan.dataset) or loaded.get(plan)
        return run_config(config, None, told, data=own, model=model)

    return trial


def _check_options(data: StudyData) -> None:
    """Refuse a wrong name or option before the first run."""
    if data.name == SILOS:
        SiloSchema.of_config(data.options)
        return
    known = [*COMMON, *source_options(data.name)]
    for option in data.options:
        if option not in known:
            raise ConfigError(
                f"dataset '{data.name}' has no option '{option}'.{suggest(option, known)}"
            )


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
        record = result.record()
        return StudyRun(*label, result.measured(), result.clients, record=record)
    folder = RunFolder(out / RUNS / plan.name)
    if not folder.finished:
        if folder.exists:
            resume(folder.path, observer)
        else:
            run_config(plan.config, folder.path, observer, data=loaded.get(plan))
    return StudyRun(*label, folder.result(), read_frame(folder.path / CLIENTS), "", folder.path)


def _folder(config: StudyConfig, out: Path, counted: bool) -> Path:
    """The folder, new or of the same study."""
    text = config.completed().anchored(out).toml()
    path = out / STUDY
    if path.exists() and not counted:
        before = (
            parse_study(read_toml(path), str(path)).completed().model_copy(update={"versions": {}})
        )
        now = config.completed().model_copy(update={"versions": {}})
        if before.toml() != now.toml():
            raise RunFolderError(f"'{out}' holds another study; choose another --out")
        return out
    out = made(out, counted=counted)
    write_atomically(out / STUDY, text.encode())
    return out


def directory(folder: Path | None) -> str:
    """A folder as a command names it, without where it lies on this machine.

    It is named from where the command was given, where it lies below that. Elsewhere a run of a
    study stands below the study's folder, and either often below `runs`.
    """
    if folder is None:
        return "DIR"
    whole, here = folder.resolve(), Path.cwd()
    parts = whole.parts
    if here in whole.parents:
        return whole.relative_to(here).as_posix()
    if len(parts) > 3 and (whole.parents[1] / STUDY).is_file():
        return f"{directory(whole.parents[1])}/{parts[-2]}/{parts[-1]}"
    below_runs = len(parts) > 2 and parts[-2] == "runs"
    return "/".join(parts[-2 if below_runs else -1 :])


def resume_study(path: Path, observer: StudyObserver | None = None) -> Study:
    """Go on with a study: finished runs are read, unfinished ones resumed."""
    return run_study(study_config(path), path, observer)


def study_config(path: Path) -> StudyConfig:
    """The config of a study's folder."""
    if not (path / STUDY).is_file():
        raise RunFolderError(f"'{path}' is not the folder of a study: it has no {STUDY}")
    return parse_study(read_toml(path / STUDY), str(path / STUDY))


def open_study(path: Path) -> Study:
    """Read a study without running anything; what is missing is a row that says so."""
    config = study_config(path)
    failures = path / FAILURES
    reasons = read_json(failures) if failures.exists() else {}
    runs = []
    for plan in config.planned():
        label = (plan.method, plan.dataset, plan.seed)
        folder = RunFolder(path / RUNS / plan.name)
        if folder.finished:
            clients = read_frame(folder.path / CLIENTS)
            runs.append(StudyRun(*label, folder.result(), clients, "", folder.path))
        else:
            why = reasons.get(plan.name, {"reason": "not finished", "applies": True})
            runs.append(StudyRun(*label, error=why["reason"], applies=why["applies"]))
    return Study(config, runs, path, Choices(path).remarks())
