"""How a table of a paper is described: as data, and one function that carries out a job."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, Literal

from evenfed.core.errors import ConfigError, suggest

Protocol = Literal["published", "sound"]
PROTOCOLS: tuple[Protocol, ...] = ("published", "sound")


@dataclass(frozen=True)
class Metric:
    """A number of a cell.

    Parameters
    ----------
    higher : bool
        Whether more is better.
    wide : float
        Half-width of an interval over seeds beyond which agreement with a printed figure would
        say nothing.
    """

    key: str
    title: str
    higher: bool = True
    wide: float = 0.05
    digits: int = 3


@dataclass(frozen=True)
class Row:
    """A method with its options; a `reference` row is not in the paper."""

    key: str
    title: str
    reference: bool = False


@dataclass(frozen=True)
class Column:
    """A dataset, or a setting of one."""

    key: str
    title: str
    dataset: str


@dataclass(frozen=True)
class Setting:
    """Which version of a table is run."""

    protocol: Protocol
    quick: bool
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """One piece of work, stored when it is finished; it may fill several rows.

    Parameters
    ----------
    key : str
        Unique in its table; the name of its file.
    settings : mapping
        All that decides its numbers, as JSON: a stored result with other settings is not used.
    seconds : float
        Expected CPU seconds.
    together : str
        Jobs with the same word share what a process works out once (trials): where jobs run
        beside each other, all of them go to one process. Empty: it shares nothing.
    """

    key: str
    rows: tuple[str, ...]
    column: str
    seed: int
    settings: Mapping[str, Any]
    seconds: float
    together: str = ""


Curve = list[list[float]]


@dataclass(frozen=True)
class Outcome:
    """What a job measured.

    Parameters
    ----------
    values : mapping of row to mapping of metric to number
        NaN where a number is undefined.
    facts : mapping of row to mapping of name to word
        What is not a number, e.g. whether a bound can be met.
    curves : mapping of row to points
        Points of a figure.
    trials : mapping of row to words and number
        Settings that were tried on validation data, with what they gave; NaN where one failed.
    """

    values: dict[str, dict[str, float]]
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    trials: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """A printed figure; `sd` where the paper gives one, `runs` where it says how many."""

    value: float
    sd: float | None = None
    runs: int | None = None

    @property
    def rounding(self) -> float:
        """Half a unit of the last digit, taken as the third or that of the figure if finer."""
        text = f"{self.value:.10f}".rstrip("0")
        digits = max(len(text.split(".")[1]), 3 if abs(self.value) < 2 else 1)
        return float(0.5 * 10.0**-digits)


@dataclass(frozen=True)
class Claim:
    """An ordering that is judged: `row` is better than `than` in `metric`.

    Parameters
    ----------
    columns : sequence of str
        Where it is stated; each is judged by itself.
    ours : bool
        Whether it is a question of ours, which the paper does not ask.
    """

    text: str
    row: str
    than: str
    metric: str
    columns: tuple[str, ...]
    ours: bool = False


@dataclass(frozen=True)
class Joint:
    """A claim of several orderings: it holds where some hold and others at least do not fail.

    Parameters
    ----------
    short : str
        Its name in the table of all verdicts.
    hold, not_fail : sequence of str
        Texts of the table's claims.
    ours : bool
        Whether it is a question of ours.
    """

    short: str
    text: str
    hold: tuple[str, ...]
    not_fail: tuple[str, ...] = ()
    ours: bool = False


@dataclass(frozen=True)
class Plot:
    """How a table becomes a figure a column.

    Parameters
    ----------
    kind : {"front", "line", "spans"}
        Points joined as a front; values along x; or means of metrics with their intervals, a line
        a row, beside printed figures where there are any.
    metrics : sequence of str
        Where given, points are means over seeds of these metrics, those of x and y, or of spans;
        otherwise they are the curves that the first seed's jobs stored.
    series : sequence of (title, rows)
        Rows whose points are joined; by default each row by itself.
    key : str
        Tells the plots of a table apart.
    """

    title: str
    x: str
    y: str
    kind: Literal["front", "line", "spans"] = "front"
    metrics: tuple[str, ...] | None = None
    series: tuple[tuple[str, tuple[str, ...]], ...] = ()
    key: str = ""


def spans(title: str, axis: str, *metrics: str, key: str = "") -> Plot:
    """A figure of intervals."""
    return Plot(title, axis, "", "spans", metrics, key=key)


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Parameters
    ----------
    metrics : mapping of protocol to metrics
    jobs : callable
        The jobs of a setting.
    run : callable
        Carries out a job; must depend on nothing but it.
    seeds : mapping of protocol to seeds
        Of the full version; `quick_seeds` of the quick one.
    incomparable, reasons : mapping of pattern to sentence
        Patterns `protocol/row/column/metric` with `*`. The former cells get no verdict against
        the printed figure; the latter say why a cell differs, where that was looked into.
    options : str
        What a command must name beside the table, e.g. a file.
    """

    key: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    metrics: Mapping[Protocol, tuple[Metric, ...]]
    jobs: Callable[[Setting], Sequence[Job]]
    run: Callable[[Job], Outcome]
    seeds: Mapping[Protocol, tuple[int, ...]]
    quick_seeds: tuple[int, ...] = (0, 1)
    incomparable: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    plots: tuple[Plot, ...] = ()
    note: str = ""
    joint: tuple[Joint, ...] = ()
    options: str = ""

    def setting(
        self, protocol: Protocol, quick: bool, seeds: Sequence[int] | None = None
    ) -> Setting:
        """The setting that is asked for, with this table's own seeds if none are named."""
        if protocol not in self.seeds:
            raise ConfigError(
                f"{self.key} has no protocol '{protocol}'; it has {' and '.join(self.seeds)}"
            )
        own = self.quick_seeds if quick else self.seeds[protocol]
        return Setting(protocol, quick, own if seeds is None else tuple(seeds))

    def minutes(self, setting: Setting) -> float:
        """Expected CPU minutes."""
        return sum(job.seconds for job in self.jobs(setting)) / 60


@dataclass(frozen=True)
class Paper:
    """A paper and those of its tables that can be rebuilt.

    Parameters
    ----------
    methods : sequence of str
        Methods of its tables, whose pages its own page names.
    """

    name: str
    title: str
    citation: str
    tables: tuple[Table, ...]
    protocols: Mapping[Protocol, str]
    methods: tuple[str, ...] = ()

    def table(self, key: str) -> Table:
        """A table by its key."""
        for table in self.tables:
            if table.key == key:
                return table
        known = [table.key for table in self.tables]
        raise ConfigError(
            f"paper '{self.name}' has no table '{key}'; it has {', '.join(known)}."
            f"{suggest(key, known)}"
        )


def matched(patterns: Mapping[str, str], *parts: str) -> str | None:
    """The sentence of the first pattern that fits `protocol/row/column/metric`.

    Examples
    --------
    >>> matched({"sound/*": "other clients"}, "sound", "fedfb", "adult", "local")
    'other clients'
    """
    path = "/".join(parts)
    return next((text for pattern, text in patterns.items() if fnmatchcase(path, pattern)), None)


def names() -> list[str]:
    """Names of the papers.

    Examples
    --------
    >>> "hetpfl" in names()
    True
    """
    folder = resources.files("evenfed.papers") / "published"
    return sorted(
        file.name.removesuffix(".json") for file in folder.iterdir() if file.name.endswith(".json")
    )


def paper(name: str) -> Paper:
    """A paper by name."""
    if name not in names():
        raise ConfigError(f"there is no paper '{name}'.{suggest(name, names())}")
    found = importlib.import_module(f"evenfed.papers.{name}").PAPER
    assert isinstance(found, Paper)
    return found


def findings(name: str) -> str:
    """Plain sentences on what agrees and what does not and why, of what was looked into.

    Examples
    --------
    >>> findings("hetpfl").startswith("- ")
    True
    """
    file = resources.files("evenfed.papers") / "findings" / f"{name}.md"
    return file.read_text(encoding="utf-8").strip()


Figures = dict[tuple[str, str, str], Published]


def published(name: str, table: str) -> Figures:
    """Printed figures of a table by row, column and metric; empty where the paper prints none.

    Examples
    --------
    >>> published("hetpfl", "table1")["hetpfl", "synthetic", "local_hypervolume"].value
    0.83
    """
    file = resources.files("evenfed.papers") / "published" / f"{name}.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = content["tables"].get(table, {}).get("cells", {})
    runs = content.get("runs")
    return {
        (row, column, metric): replace(_figure(value), runs=runs)
        for row, columns in rows.items()
        for column, metrics in columns.items()
        for metric, value in metrics.items()
    }


def _figure(value: float | list[float]) -> Published:
    """A number, or a number and its standard deviation."""
    if isinstance(value, list):
        return Published(float(value[0]), float(value[1]))
    if not math.isfinite(value):
        raise ConfigError(f"a published figure is {value}")
    return Published(float(value))
