"""What a study leaves: its runs, compared in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from evenfed.core.errors import ConfigError, counted, suggest
from evenfed.metrics.bootstrap import SeedSummary
from evenfed.runs import rendering, reporting
from evenfed.runs import table as tables
from evenfed.runs.plan import StudyConfig
from evenfed.runs.record import Record


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
    applies: bool = True
    """False where the method does not fit these data at all, which is no failure."""
    record: Record | None = None
    """What its report shows, where there is no folder to read it from."""


@dataclass(frozen=True)
class Study:
    """Several runs compared.

    Examples
    --------
    >>> import evenfed as ef
    >>> result = ef.study(["fedavg", "local"], ["synthetic"], seeds=[0, 1], rounds=2)
    >>> [label for _, label in result.table().index]
    ['fedavg', 'local', 'centralized (reference)', 'constant predictor (reference)']
    """

    config: StudyConfig
    runs: list[StudyRun]
    folder: Path | None = None
    tuned: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By (dataset, method): on what the options of that row were chosen."""

    @property
    def failed(self) -> list[StudyRun]:
        """Runs without a result, but for those of methods that do not apply to the data."""
        return [run for run in self.runs if run.measured is None and run.applies]

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
            if not runs:  # the study has the method on other data only
                continue
            result.append(
                tables.Measurements(
                    method,
                    {r.seed: r.measured["metrics"] for r in runs if r.measured is not None},
                    {r.seed: r.error for r in runs if r.measured is None},
                    self._about(dataset, method, runs),
                    reference=method in self.config.references,
                    applies=all(r.applies for r in runs),
                )
            )
        return result

    def _about(self, dataset: str, method: str, runs: list[StudyRun]) -> tuple[str, ...]:
        remarks = [remark for r in runs if r.measured for remark in _remarks(r.measured)]
        how = self.tuned.get((dataset, method))
        return tuple([how, *remarks] if how and any(r.measured for r in runs) else remarks)

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
            With one seed there is no interval: low and high are NaN, and the note says so. Ends
            of an interval that a metric cannot reach are cut: a share lies in [0, 1].
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
        pairs: list[Any] = list(frame.columns)
        frame.columns = pd.Index([k if m == "runs" else f"{m}_{k}" for m, k in pairs])
        return frame.reset_index().to_csv(index=False)

    def to_markdown(self, metrics: Sequence[str] | None = None) -> str:
        """Markdown; the best value of a column is bold."""
        parts = [rendering.markdown(part) for part in self.sections(metrics)]
        return "\n".join([*parts, self.legend("Bold")]) + "\n"

    def to_latex(self, metrics: Sequence[str] | None = None) -> str:
        """LaTeX with booktabs; the best value of a column is bold."""
        parts = [rendering.latex(part) for part in self.sections(metrics)]
        return "\n\n".join([*parts, f"% {self.legend('Bold')}"]) + "\n"

    def console(self, metrics: Sequence[str] | None = None, *, to: Console | None = None) -> str:
        """Print the table to a console, or return it as text if none is given."""
        text = StringIO()
        out = to or Console(file=text, width=200, highlight=False)
        for part in self.sections(metrics):
            for table in rendering.console_tables(part, out.width):
                out.print(table)
            for note in part.notes:
                out.print(f"  {note}", markup=False, highlight=False)
        out.print(self.legend(), markup=False, highlight=False)
        return text.getvalue()

    def report(self, path: Path | str) -> Path:
        """Write the report as one HTML file, and return its path."""
        return reporting.write(self, path)

    def measured(self) -> dict[str, Any]:
        """All of it in plain values, for a program."""
        rows = []
        for part in self.sections():
            for row in part.rows:
                cells = {
                    m: tables.within(m, c.summary)
                    for m, c in row.cells.items()
                    if c.summary is not None
                }
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


def _remarks(measured: Mapping[str, Any]) -> list[str]:
    """What went wrong in a run that nevertheless came to its end."""
    remarks = []
    if void := measured["cost"]["void_rounds"]:
        remarks.append(f"{counted(void, 'round')} without a quorum with seed {measured['seed']}")
    for reason, count in measured["dropped"].items():
        if reason != "did not answer":
            remarks.append(
                f"{counted(count, 'upload')} left out with seed {measured['seed']}: {reason}"
            )
    return remarks


def _finite(value: float) -> float | None:
    return None if value != value else value
