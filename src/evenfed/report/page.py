"""A plain page of a run or a study: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from evenfed.core.errors import EvenfedError, RunFolderError
from evenfed.runs.comparison import Study
from evenfed.runs.config import RunConfig, parse, read
from evenfed.runs.folder import CLIENTS, CONFIG, REPORT, RunFolder, write_atomically
from evenfed.runs.study import STUDY, open_study
from evenfed.runs.table import HEADINGS, Section, default_metrics, higher_is_better

_NAMED = 5
"""Worst clients that are named in a table."""


@dataclass(frozen=True)
class Grid:
    """A table: `cells` are texts, `marks` the rows' classes."""

    head: list[str]
    rows: list[list[str]]
    marks: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """Dots on a line for every method: one a client and seed."""

    label: str
    low: float
    high: float
    lines: list[tuple[str, list[float]]]

    @property
    def height(self) -> int:
        """Height of the drawing."""
        return 34 * len(self.lines) + 30

    def x(self, value: float) -> float:
        """Place of a value on the axis."""
        return round(150 + 430 * (value - self.low) / ((self.high - self.low) or 1.0), 1)


@dataclass(frozen=True)
class Dataset:
    """Everything on one dataset."""

    name: str
    facts: list[tuple[str, str]]
    table: Grid
    chart: Chart | None
    worst: Grid
    groups: Grid | None
    geometry: Grid | None
    certificates: list[tuple[str, list[str]]]
    cost: Grid
    notes: list[str]
    ledger: Grid


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    title: str
    legend: str
    datasets: list[Dataset]
    failures: list[str]
    settings: str
    command: str
    versions: dict[str, str]


@dataclass(frozen=True)
class _Run:
    method: str
    seed: int
    measured: dict[str, Any]
    clients: pd.DataFrame
    config: RunConfig


def write_page(folder: Path) -> Path:
    """Write the page of the run or study in a folder, and return its path.

    Examples
    --------
    >>> import tempfile
    >>> from evenfed.runs.train import run_config
    >>> out = Path(tempfile.mkdtemp()) / "run"
    >>> _ = run_config(parse({"data": "synthetic", "rounds": 1}), out)
    >>> write_page(out).name
    'report.html'
    """
    page = study_page(open_study(folder)) if (folder / STUDY).is_file() else run_page(folder)
    environment = Environment(
        loader=PackageLoader("evenfed.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    text = environment.get_template("template.html").render(page=page)
    write_atomically(folder / REPORT, text.encode())
    return folder / REPORT


def run_page(path: Path) -> Page:
    """The page of one run."""
    if not path.is_dir():
        raise RunFolderError(f"there is no folder '{path}'")
    folder = RunFolder.open(path)
    measured = folder.result()
    config = parse(read(path / CONFIG), str(path / CONFIG))
    run = _Run(
        config.method.name, config.seed, measured, pd.read_parquet(path / CLIENTS), config
    )  # fmt: skip
    return Page(
        title=f"{measured['task']['title']} on {measured['dataset']}",
        legend="One run, measured on test data. Intervals (95 %) are bootstrapped over the test "
        "examples of these clients; they say nothing about other seeds.",
        datasets=[_dataset(measured["dataset"], [run], _metrics_grid(measured))],
        failures=[],
        settings=config.toml(),
        command=f"evenfed run {path.name}/{CONFIG} --out NEW",
        versions=config.versions,
    )


def study_page(study: Study) -> Page:
    """The page of a study."""
    datasets = []
    plans = {(p.method, p.dataset, p.seed): p.config for p in study.config.planned()}
    for part in study.sections():
        runs = [
            _Run(r.method, r.seed, r.measured, r.clients, plans[r.method, r.dataset, r.seed])
            for r in study.runs
            if r.dataset == part.dataset and r.measured is not None and r.clients is not None
        ]
        if runs:
            datasets.append(_dataset(part.dataset, runs, _section_grid(part)))
    failures = [f"{r.method} on {r.dataset}, seed {r.seed}: {r.error}" for r in study.failed]
    assert study.folder is not None
    return Page(
        title=f"{', '.join(study.methods)} on {', '.join(study.datasets)}",
        legend=study.legend("Bold"),
        datasets=datasets,
        failures=failures,
        settings=study.config.toml(),
        command=f"evenfed study {study.folder.name}/{STUDY} --out NEW",
        versions=study.config.versions,
    )


def _dataset(name: str, runs: Sequence[_Run], table: Grid) -> Dataset:
    task = runs[0].measured["task"]
    trained = task["trained_on"]
    facts = [
        ("predicts", f"{task['label']} ({task['kind']}, {task['classes']} classes)"
         if task["kind"] != "regression" else f"{task['label']} (regression)"),
        ("clients", f"{task['clients']}"),
        ("examples", f"{task['tested_on']} in test data"
         + ("" if trained is None else f", {trained} in training data")),
        ("groups", ", ".join(task["groups"]) + f" ({', '.join(task['sensitive'])})"
         if len(task["groups"]) > 1 else "none"),
        ("model", f"{task['parameters']} parameters"),
        ("rounds", f"{runs[0].measured['rounds']}"),
        ("seeds", ", ".join(str(s) for s in dict.fromkeys(r.seed for r in runs))),
    ]  # fmt: skip
    value = "loss" if task["kind"] == "regression" else "accuracy"
    return Dataset(
        name, facts, table, _chart(runs, value), _worst(runs, value), _groups(runs),
        _geometry(runs),
        _certificates(runs), _cost(runs),
        list(dict.fromkeys(note for run in runs for note in run.measured["notes"])),
        _ledger(runs),
    )  # fmt: skip


def _metrics_grid(measured: dict[str, Any]) -> Grid:
    rows = []
    for name in (*default_metrics(measured), "constant_accuracy"):
        if name not in measured["metrics"]:
            continue
        low, high = measured["intervals"].get(name, (None, None))
        heading = HEADINGS.get(name, name).format(tail=f"{100 * measured['metrics']['tail']:g}")
        if name == "constant_accuracy":
            heading = "accuracy of the constant predictor (reference, not a method)"
        better = {True: "higher", False: "lower", None: ""}[higher_is_better(name)]
        span = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        rows.append([heading, _number(measured["metrics"][name]), span, better])
    return Grid(["metric", "value", "95 % interval", "better"], rows)


def _section_grid(part: Section) -> Grid:
    cells = [list(row.cells.values()) for row in part.rows]
    texts = [[c.text + (" ≈" if c.mark == "tie" else "") for c in row] for row in cells]
    rows = [[row.label, *line] for row, line in zip(part.rows, texts, strict=True)]
    marks = [["reference" if row.reference else "", *(c.mark for c in line)]
             for row, line in zip(part.rows, cells, strict=True)]  # fmt: skip
    return Grid(["method", *part.headings.values()], rows, marks, part.notes)


def _chart(runs: Sequence[_Run], value: str) -> Chart | None:
    lines: dict[str, list[float]] = {}
    for run in runs:
        found = [float(v) for v in run.clients[value] if math.isfinite(v)]
        lines.setdefault(run.method, []).extend(found)
    everything = [v for found in lines.values() for v in found]
    if not everything:
        return None
    low = min(everything) if value == "loss" else min(math.floor(min(everything) * 10) / 10, 0.9)
    high = max(everything) if value == "loss" else 1.0
    return Chart(f"{value} of every client", low, high, list(lines.items()))


def _worst(runs: Sequence[_Run], value: str) -> Grid:
    """The clients that are worst on average over seeds, by name."""
    rows = []
    for method, own in _by_method(runs):
        together = pd.concat([run.clients[[value, "examples"]] for run in own])
        means = together.groupby(level=0).mean().sort_values(value, ascending=value != "loss")
        for client, row in means.head(_NAMED if len(own) == len(runs) else 1).iterrows():
            rows.append([method, str(client), _number(row[value]), f"{row['examples']:g}"])
    return Grid(["method", "client", f"{value} (mean over seeds)", "test examples"], rows)


def _groups(runs: Sequence[_Run]) -> Grid | None:
    if len(runs[0].measured["task"]["groups"]) < 2:
        return None
    head: dict[str, None] = {}
    rows = []
    for method, own in _by_method(runs):
        frames = [pd.DataFrame(run.measured["groups"]).T.astype(float) for run in own]
        means = pd.concat(frames).groupby(level=0, sort=False).mean()
        head |= dict.fromkeys(str(c).replace("_", " ") for c in means.columns)
        for group, row in means.iterrows():
            rows.append([method, str(group), *(_number(v) for v in row)])
    return Grid(["method", "group", *head], rows)


def _certificates(runs: Sequence[_Run]) -> list[tuple[str, list[str]]]:
    """What methods proved, run by run."""
    made = [(f"{r.method}, seed {r.seed}", r.measured.get("certificate")) for r in runs]
    return [(run, certificate["sentences"]) for run, certificate in made if certificate]


def _geometry(runs: Sequence[_Run]) -> Grid | None:
    """Loss geometry of the runs that measured it, means over clients and seeds."""
    head = {
        "sign_entropy": "sign entropy, bits",
        "flip_rate": "flip rate",
        "hessian_trace": "Hessian trace",
        "top_eigenvalue": "top eigenvalue",
    }
    rows = []
    for method, own in _by_method([run for run in runs if "geometry" in run.measured]):
        means = pd.DataFrame([run.measured["geometry"] for run in own]).astype(float).mean()
        rows.append([method, *(_number(means[name]) for name in head)])
    return Grid(["method", *head.values()], rows) if rows else None


def _cost(runs: Sequence[_Run]) -> Grid:
    rows = []
    for method, own in _by_method(runs):
        costs = pd.DataFrame([run.measured["cost"] for run in own]).mean()
        rows.append(
            [method, f"{costs['seconds']:.1f} s", f"{costs['bytes_down'] / 1e6:.2f} MB",
             f"{costs['bytes_up'] / 1e6:.2f} MB", f"{costs['exchanges']:g}",
             f"{costs['void_rounds']:g}", own[0].measured["engine"].split(" ")[0]]
        )  # fmt: skip
    head = ["method", "time", "to clients", "from clients", "exchanges", "void rounds", "engine"]
    return Grid(head, rows, notes=["means over runs; evaluation is not counted in the traffic"])


def _ledger(runs: Sequence[_Run]) -> Grid:
    """What left the clients: before training, and by each method."""
    before: dict[str, None] = {}
    rows = []
    for method, own in _by_method(runs):
        said = own[0].measured["ledger"]
        try:
            reveals = own[0].config.built_method().reveals
        except EvenfedError:  # the method lives outside this package and is not registered now
            rows += [[method, text, "", ""] for text in said]
            continue
        before |= dict.fromkeys(said[: len(said) - len(reveals)])
        rows += [[method, r.meaning, r.size, "yes" if r.summed else "no"] for r in reveals]
    rows = [["all (before training)", text, "", ""] for text in before] + rows
    return Grid(["method", "what leaves a client", "size", "a sum over clients suffices"], rows)


def _by_method(runs: Sequence[_Run]) -> Iterable[tuple[str, list[_Run]]]:
    for method in dict.fromkeys(run.method for run in runs):
        yield method, [run for run in runs if run.method == method]


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "undefined"
    return f"{value:g}" if float(value).is_integer() and abs(value) > 1 else f"{value:.3f}"
