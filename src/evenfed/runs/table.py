"""The table of a study: means over seeds with intervals, marked without claiming too much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from evenfed.core.errors import ConfigError, suggest
from evenfed.metrics.bootstrap import SeedSummary, over_seeds
from evenfed.metrics.client import tail_size

CLASSIFICATION = (
    "accuracy", "client_accuracy_mean", "client_accuracy_std", "client_accuracy_worst_tail",
    "client_accuracy_min",
)  # fmt: skip
GROUPS = (
    "demographic_parity_difference", "equalized_odds_difference", "accuracy_group_min",
    "loss_group_max",
)  # fmt: skip
REGRESSION = (
    "loss", "mean_squared_error", "r2", "client_loss_mean", "client_loss_std", "client_loss_max",
)  # fmt: skip
NUMBER_GROUPS = ("mean_prediction_difference", "mean_residual_difference", "loss_group_max")
HEADINGS = {
    "accuracy": "accuracy",
    "loss": "loss",
    "mean_squared_error": "mean squared error",
    "r2": "R²",
    "client_accuracy_mean": "client mean",
    "client_accuracy_std": "client std",
    "client_accuracy_worst_tail": "worst {tail} % of clients",
    "client_accuracy_min": "worst client",
    "client_loss_mean": "client mean loss",
    "client_loss_std": "client std of loss",
    "client_loss_max": "largest client loss",
    "demographic_parity_difference": "demographic parity diff.",
    "equalized_odds_difference": "equalized odds diff.",
    "mean_prediction_difference": "diff. of mean predictions",
    "mean_residual_difference": "diff. of mean residuals",
    "accuracy_group_min": "worst group accuracy",
    "loss_group_max": "largest group loss",
}
REFERENCE = "constant predictor (reference)"
LOCAL = "local (reference)"
"""Of a single run: what its clients reach alone."""


def local_label(reference: Mapping[str, Any], *, short: bool = False) -> str:
    """The row of what clients reach alone; which of them, where a sample was trained.

    `short`: for a figure.

    Examples
    --------
    >>> local_label({"sample": {"clients": 6, "of": 40}})
    'local, on 6 of 40 clients drawn by seed (reference)'
    """
    sample = reference.get("sample")
    if not sample:
        return LOCAL
    if short:
        return f"local, {sample['clients']} clients"
    return f"local, on {sample['clients']} of {sample['of']} clients drawn by seed (reference)"


_SPREAD = (
    "std", "variance", "gap", "difference", "to_overall", "coefficient_of_variation", "angle",
    "kl_to_uniform", "gini",
)  # fmt: skip
_RATES = ("demographic_parity", "equalized_odds", "equal_opportunity")
_EVENNESS = ("ratio", "jain_index", "normalised_entropy")

Mark = Literal["", "best", "tie"]


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

    summary: SeedSummary | None = None
    mark: Mark = ""

    @property
    def text(self) -> str:
        """Mean and half the interval, without a mark."""
        if self.summary is None:
            return "-"
        if math.isnan(self.summary.mean):
            return "undefined"
        half = (self.summary.high - self.summary.low) / 2
        return f"{self.summary.mean:.3f}" + ("" if math.isnan(half) else f" ± {half:.3f}")


@dataclass(frozen=True)
class Row:
    """A method, or the reference, on one dataset."""

    label: str
    cells: dict[str, Cell]
    seeds: int
    note: str = ""
    reference: bool = False


@dataclass(frozen=True)
class Section:
    """The rows of one dataset."""

    dataset: str
    headings: dict[str, str]
    """Heading of every metric, with an arrow where one direction is better."""
    rows: list[Row]

    @property
    def notes(self) -> list[str]:
        """What must be said about single rows."""
        return [f"{row.label}: {row.note}" for row in self.rows if row.note]


@dataclass(frozen=True)
class Measurements:
    """All runs of one method on one dataset: `metrics` by seed, and why others have none."""

    method: str
    metrics: dict[int, Mapping[str, float | None]]
    failures: dict[int, str]
    remarks: tuple[str, ...] = ()
    reference: bool = False
    applies: bool = True
    """False where the method does not fit these data at all."""

    @property
    def label(self) -> str:
        """The method, and whether it is there for comparison only."""
        return f"{self.method} (reference)" if self.reference else self.method

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed; what is undefined is NaN."""
        found = {s: m[metric] for s, m in self.metrics.items() if metric in m}
        return {s: math.nan if v is None else v for s, v in found.items()}


def higher_is_better(metric: str) -> bool | None:
    """Direction in which a metric improves; None where that cannot be said.

    Examples
    --------
    >>> higher_is_better("client_accuracy_min"), higher_is_better("client_accuracy_std")
    (True, False)
    """
    if metric.endswith(_EVENNESS) or metric == "r2":
        return True
    if metric.endswith(_SPREAD) or "loss" in metric or "squared_error" in metric:
        return False
    return True if "accuracy" in metric else None


def bounds(metric: str) -> tuple[float, float]:
    """Between what a metric lies, whatever was measured; infinite where nothing bounds it.

    Examples
    --------
    >>> bounds("accuracy"), bounds("client_loss_max"), bounds("r2")
    ((0.0, 1.0), (0.0, inf), (-inf, inf))
    """
    if metric.endswith(("jain_index", "normalised_entropy", "ratio", "gini")):
        return 0.0, 1.0
    if metric.endswith(("angle", "kl_to_uniform", "coefficient_of_variation")) or "loss" in metric:
        return 0.0, math.inf
    if "squared_error" in metric or metric.startswith(("mean_prediction", "mean_residual")):
        return 0.0, math.inf
    if "accuracy" in metric or metric.startswith(_RATES):
        return 0.0, 1.0
    return -math.inf, math.inf


def within(metric: str, summary: SeedSummary) -> SeedSummary:
    """The summary with its interval cut to what the metric can be.

    Student's interval knows nothing of that: three accuracies near 1 have one that ends above it.

    Examples
    --------
    >>> within("accuracy", over_seeds([1.0, 0.9])).high
    1.0
    """
    if math.isnan(summary.low) or math.isnan(summary.high):
        return summary
    low, high = bounds(metric)
    return replace(summary, low=max(summary.low, low), high=min(summary.high, high))


def default_metrics(measured: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns for a run, by its kind of prediction and whether it has groups.

    Where the worst tail is one client, the worst client stands there alone.
    """
    several = len(measured["task"]["groups"]) > 1
    if measured["task"]["kind"] == "regression":
        return REGRESSION + (NUMBER_GROUPS if several else ())
    metrics = measured["metrics"]
    clients, tail = metrics.get("clients"), metrics.get("tail")
    single = bool(clients and tail) and tail_size(tail, int(clients)) == 1
    return tuple(
        name for name in CLASSIFICATION if not (single and name == "client_accuracy_worst_tail")
    ) + (GROUPS if several else ())


def section(
    dataset: str, runs: Sequence[Measurements], metrics: Sequence[str], level: float = 0.95
) -> Section:
    """The table of one dataset.

    Examples
    --------
    >>> a = Measurements("a", {0: {"accuracy": 0.9}, 1: {"accuracy": 0.8}}, {})
    >>> section("toy", [a], ["accuracy"]).rows[0].cells["accuracy"].text
    '0.850 ± 0.635'
    """
    known = {name for run in runs for found in run.metrics.values() for name in found}
    for metric in metrics:
        if known and metric not in known:
            raise ConfigError(f"metric '{metric}' is unknown.{suggest(metric, known)}")
    marks = {m: _marks(m, runs, level) for m in metrics}
    rows = []
    for run in runs:
        cells = {}
        for metric in metrics:
            values = list(run.values(metric).values())
            summary = over_seeds(values, level) if values else None
            cells[metric] = Cell(summary, marks[metric].get(run.method, ""))
        rows.append(Row(run.label, cells, len(run.metrics), _note(run), run.reference))
    rows.sort(key=lambda row: row.reference)
    tail = next((m["tail"] for run in runs for m in run.metrics.values() if m.get("tail")), None)
    headings = {m: heading(m, tail) for m in metrics}
    return Section(dataset, headings, [*rows, *_reference(runs, metrics, level)])


def heading(metric: str, tail: float | None) -> str:
    """What a column is called, with an arrow where one direction is better."""
    text = HEADINGS.get(metric, metric).format(tail=f"{100 * (tail or 0.1):g}")
    return text + {True: " ↑", False: " ↓", None: ""}[higher_is_better(metric)]


def _note(run: Measurements) -> str:
    notes = list(run.remarks)
    if run.failures and not run.applies:
        notes.insert(0, "does not apply: " + "; ".join(dict.fromkeys(run.failures.values())))
    elif run.failures:
        reasons = "; ".join(dict.fromkeys(run.failures.values()))
        total = len(run.failures) + len(run.metrics)
        notes.insert(0, f"{len(run.failures)} of {total} runs have no result: {reasons}")
    return "; ".join(notes)


def _reference(runs: Sequence[Measurements], metrics: Sequence[str], level: float) -> list[Row]:
    """What always predicting the most frequent class, or the mean, would give, where known."""
    found: dict[int, dict[str, float]] = {}
    for run in runs:
        for seed, measured in run.metrics.items():
            if known := constant(measured):
                found.setdefault(seed, known)
    names = {name for known in found.values() for name in known if name in metrics}
    if not names & {"accuracy", "mean_squared_error"}:
        return []
    cells = {
        m: Cell(over_seeds([known[m] for known in found.values()], level) if m in names else None)
        for m in metrics
    }
    return [Row(REFERENCE, cells, len(found), reference=True)]


def constant(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics of the constant predictor: it says the most frequent class, or the mean of a number.

    A prediction that is the same for everybody is the same for every group.

    Examples
    --------
    >>> constant({"accuracy": 0.9, "constant_accuracy": 0.6})["accuracy"]
    0.6
    """
    if (right := metrics.get("constant_accuracy")) is not None:
        equal = ("demographic_parity_difference", "equalized_odds_difference")
        return {"accuracy": right} | dict.fromkeys(equal, 0.0)
    if (error := metrics.get("constant_mean_squared_error")) is not None:
        return {"mean_squared_error": error, "r2": 0.0, "mean_prediction_difference": 0.0}
    return {}


def _marks(metric: str, runs: Sequence[Measurements], level: float) -> dict[str, Mark]:
    """The best mean, and those that are not clearly different from it.

    A method of which a run failed is never the best: its mean is over the seeds that went well.
    Nor is a reference: it is not one of the methods compared.
    """
    higher = higher_is_better(metric)
    whole = [
        run
        for run in runs
        if run.metrics and not run.failures and not run.reference and run.values(metric)
    ]
    means = {run.method: over_seeds(list(run.values(metric).values())).mean for run in whole}
    means = {method: mean for method, mean in means.items() if not math.isnan(mean)}
    if higher is None or len(means) < 2:
        return {}
    top = (max if higher else min)(means.values())
    best = next(run for run in whole if means.get(run.method) == top)
    marks: dict[str, Mark] = {}
    for run in whole:
        if means.get(run.method) == top:
            marks[run.method] = "best"
        elif run.method in means and _tied(run.values(metric), best.values(metric), level):
            marks[run.method] = "tie"
    return marks


def _tied(a: Mapping[int, float], b: Mapping[int, float], level: float) -> bool:
    """Whether the interval of the difference over the same seeds contains 0.

    Differences that are equal by chance, as shares of a few test examples often are, have no
    spread from which an interval could follow.
    """
    summary = difference(a, b, level)
    return summary is not None and (summary.std < 1e-9 or summary.low <= 0 <= summary.high)


def difference(
    a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95
) -> SeedSummary | None:
    """Summary of `a - b` over the seeds that both have; None without any.

    Examples
    --------
    >>> round(difference({0: 0.9, 1: 0.8}, {0: 0.7, 1: 0.6, 2: 0.1}).mean, 6)
    0.2
    """
    shared = [seed for seed in a if seed in b]
    return over_seeds([a[s] - b[s] for s in shared], level) if shared else None


def legend(seeds: int, best: str, tie: str = "≈", level: float = 0.95) -> str:
    """What the table's figures and marks mean."""
    percent = f"{100 * level:g} %"
    arrows = "↑ higher is better, ↓ lower is better."
    constant = (
        "The constant predictor always gives the most frequent class, or the mean of a number: a "
        "reference, not a method."
    )
    if seeds < 2:
        return (
            f"One seed: values of a single run, without an interval over seeds. {best}: the best "
            "value of its column in this run, which says nothing about other seeds. "
            f"{arrows} {constant}"
        )
    return (
        f"Mean over {seeds} seeds ± half of its {percent} interval (Student's t). {best}: best "
        f"mean of its column; {tie}: not clearly different from it (the {percent} interval of the "
        "difference over the same seeds contains 0; not adjusted for the number of comparisons). "
        f"{arrows} {constant}"
    )


def frame(sections: Sequence[Section]) -> pd.DataFrame:
    """Rows (dataset, method), columns (metric, mean | low | high) and (runs, seeds | note).

    Intervals are cut to what a metric can be: those of shares to 0 and 1.
    """
    rows: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}
    for part in sections:
        for row in part.rows:
            values: dict[tuple[str, str], Any] = {}
            for metric, cell in row.cells.items():
                found = None if cell.summary is None else within(metric, cell.summary)
                for stat in ("mean", "low", "high"):
                    values[metric, stat] = getattr(found, stat, math.nan)
            single = "one seed, hence no interval" if row.seeds == 1 else ""
            note = "; ".join(part for part in (row.note, single) if part)
            values["runs", "seeds"], values["runs", "note"] = row.seeds, note
            rows[part.dataset, row.label] = values
    columns = dict.fromkeys(key for row in rows.values() for key in row if key[0] != "runs")
    ordered = [*columns, ("runs", "seeds"), ("runs", "note")]
    index = pd.MultiIndex.from_tuples(list(rows), names=["dataset", "method"])
    data = [[row.get(key, math.nan) for key in ordered] for row in rows.values()]
    return pd.DataFrame(data, index=index, columns=pd.MultiIndex.from_tuples(ordered))
