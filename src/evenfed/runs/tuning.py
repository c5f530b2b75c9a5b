"""Tuning: every method gets the same number of trials on validation data, all written down."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evenfed.core.errors import ConfigError, EvenfedError, suggest
from evenfed.data.dataset import FederatedDataset, Split
from evenfed.methods.base import Method
from evenfed.methods.registry import methods
from evenfed.runs.folder import write_atomically
from evenfed.runs.plan import PlannedRun, StudyConfig, TuneConfig
from evenfed.runs.table import higher_is_better

if TYPE_CHECKING:
    import pandas as pd

TUNING = "tuning.json"
Options = dict[str, Any]
RATE = "local.lr"
_NONE = object()


class Measured(Protocol):
    """What a trial gives: a result, or a mean of several evaluations of one."""

    @property
    def data(self) -> FederatedDataset:
        """The data it was trained on."""

    def summary(self, split: Split = "test") -> pd.Series[float]:
        """Metrics of a split by name."""


@dataclass(frozen=True)
class Choice:
    """What was tried for a method on a dataset, and what was best.

    Parameters
    ----------
    tried : list of dict
        `options`, `value` (None where the run failed) and `error` of each trial, in order.
    options : dict
        The chosen ones; empty if every trial failed or did not apply.
    """

    metric: str
    seed: int
    tried: list[dict[str, Any]]
    options: Options

    @property
    def remark(self) -> str:
        """For the table."""
        found = ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in self.options.items())
        return (
            f"tuned: best of {len(self.tried)} settings by {self.metric} on validation data "
            f"of seed {self.seed} ({found or 'its defaults'})"
        )


@dataclass(frozen=True)
class Trials:
    """The settings that are tried.

    Parameters
    ----------
    first : list of dict
        The defaults, and rates with all else at its default.
    further : list of dict
        Settings of the method's own options, each tried with the best of the first.
    again : int
        How many rates are tried again, with the best of all these.
    rates : list of float
        All rates that there are, those of `first` at the head.
    """

    first: list[Options]
    further: list[Options]
    again: int
    rates: list[float]

    def __len__(self) -> int:
        return len(self.first) + len(self.further) + self.again

    def beside(self, best: Options, tried: list[Options]) -> list[Options]:
        """The best setting with the rates next to its own, from above and below in turn.

        Where an option of the method's own won, these are rates that all methods have tried;
        where none did, they lie between those.
        """
        if not self.again:
            return []
        own = _own(best)
        used = {options.get(RATE, self.rates[0]) for options in tried if _own(options) == own}
        left = [rate for rate in self.rates[: len(self.first)] if rate not in used]
        left = left or [rate for rate in self.rates if rate not in used]
        now = best.get(RATE, self.rates[0])
        above = sorted(rate for rate in left if rate > now)
        below = sorted((rate for rate in left if rate < now), reverse=True)
        pairs = itertools.zip_longest(above, below)
        turns = [rate for pair in pairs for rate in pair if rate is not None]
        return [{**best, RATE: rate} for rate in turns[: self.again]]


def _own(options: Options) -> Options:
    return {k: v for k, v in options.items() if k != RATE}


AGAIN = 2
"""Rates that are tried again with the best options, where there are trials enough."""
_ENOUGH = 8
"""Trials beside the defaults from which on rates are tried again."""


def trials(cls: type[Method], fixed: Mapping[str, Any], plan: TuneConfig) -> Trials:
    """As many settings as the budget has, for every method, or all there are.

    A method's own options take less than half of them, more only where rates are few, and rates
    the others, in the order in which they are given: so every method has the first rates, and one
    without options of its own has more of them. If rates and options were drawn together, a method
    with many options would be tried with few rates, and lose to one with none by its rate alone.
    Options are tried one at a time, with the others at their defaults, each from end to end: a bad
    value of one then does not hide what another does. With nine trials or more the last two are
    the best options with rates next to theirs, since the best rate may not be that of the defaults.

    Parameters
    ----------
    fixed : mapping
        Options that the study sets itself (dotted); they are not tuned.

    Examples
    --------
    >>> from evenfed.methods.fedprox import FedProx
    >>> found = trials(FedProx, {}, TuneConfig(budget=5, rates=[0.05, 0.5, 0.2]))
    >>> found.first
    [{}, {'local.lr': 0.05}, {'local.lr': 0.5}]
    >>> found.further
    [{'mu': 0.001}, {'mu': 1.0}]
    """
    grid: dict[str, tuple[Any, ...]] = dict(cls.grid)
    if "local" in {f.name for f in dataclasses.fields(cls)}:
        grid.setdefault(RATE, tuple(plan.rates))
    grid = {option: values for option, values in grid.items() if option not in fixed}
    defaults = _defaults(cls)
    usual = defaults.get(RATE, math.nan)
    rates = [rate for rate in grid.pop(RATE, ()) if rate != usual]
    own = _by_option(grid, defaults)
    left = plan.budget - 1
    again = AGAIN if own and left >= _ENOUGH and len(rates) > AGAIN else 0
    left -= again
    further = min(len(own), max(left // 2, left - len(rates)))
    first = [{RATE: rate} for rate in rates[: left - further]]
    return Trials([{}, *first], _spread(own, further), again, [usual, *rates])


def _by_option(grid: Mapping[str, tuple[Any, ...]], defaults: Options) -> list[Options]:
    """Settings that differ from the defaults in one option."""
    return [
        {option: value}
        for option, values in grid.items()
        for value in values
        if defaults.get(option, _NONE) != value
    ]


def _spread(settings: list[Options], count: int) -> list[Options]:
    """Some of them, as many of each option as can be, each from its first value to its last."""
    groups = [list(of) for _, of in itertools.groupby(settings, key=lambda one: [*one])]
    shares = [0] * len(groups)
    while sum(shares) < count:
        open_ = (i for i, group in enumerate(groups) if shares[i] < len(group))
        shares[min(open_, key=shares.__getitem__)] += 1
    return [
        group[i]
        for group, share in zip(groups, shares, strict=True)
        for i in np.linspace(0, len(group) - 1, share).round().astype(int).tolist()
    ]


def _defaults(cls: type[Method]) -> Options:
    """Defaults of a method's options (dotted), of those that have one."""
    found: Options = {}
    for f in dataclasses.fields(cls):
        if f.default is not dataclasses.MISSING:
            found[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            made = f.default_factory()
            if dataclasses.is_dataclass(made):
                inner = dataclasses.fields(made)
                found |= {f"{f.name}.{g.name}": getattr(made, g.name) for g in inner}
    return found


def tune(plan: PlannedRun, settings: TuneConfig, trial: Callable[[PlannedRun], Measured]) -> Choice:
    """Try the settings of a run's method; `trial` carries a run out.

    A setting that fails, or whose metric is undefined, cannot win. Of equals the first wins.
    """
    cls = methods()[plan.config.method.name]
    fixed = set(_dotted(plan.config.method.model_dump(exclude={"name"})))
    tried: list[dict[str, Any]] = []
    metric = settings.metric

    def attempt(options: Options) -> None:
        nonlocal metric
        row: dict[str, Any] = {"options": options, "value": None, "error": ""}
        try:
            result = trial(plan.using(options))
        except EvenfedError as error:
            row["error"] = " ".join(str(error).split())
        else:
            kind = result.data.schema.kind
            metric = metric or ("loss" if kind == "regression" else "accuracy")
            row["value"] = _value(result, metric)
        tried.append(row)

    found = trials(cls, dict.fromkeys(fixed), settings)
    for options in found.first:
        attempt(options)
    best = _best(tried, metric)
    for options in found.further:
        attempt({**best, **options})
    for options in found.beside(_best(tried, metric), [row["options"] for row in tried]):
        attempt(options)
    return Choice(metric, plan.seed, tried, _best(tried, metric))


def _value(result: Measured, metric: str) -> float | None:
    found = result.summary("val")
    if metric not in found:
        raise ConfigError(f"tune.metric '{metric}' is unknown.{suggest(metric, found.index)}")
    value = float(found[metric])
    return value if math.isfinite(value) else None


def _best(tried: list[dict[str, Any]], metric: str) -> Options:
    usable = [row for row in tried if row["value"] is not None]
    if not usable:
        return {}
    higher = higher_is_better(metric)
    if higher is None:
        raise ConfigError(f"tune.metric '{metric}' has no better direction")
    pick = max if higher else min
    chosen: Options = pick(usable, key=lambda row: row["value"])["options"]
    return chosen


def _dotted(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        names += _dotted(value, f"{prefix}{key}.") if inner else [prefix + key]
    return names


class Choices:
    """What was chosen by (dataset, method), kept in the study's folder as it grows."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / TUNING
        self.found: dict[tuple[str, str], Choice] = {}
        if self.path is not None and self.path.exists():
            for row in json.loads(self.path.read_text(encoding="utf-8")):
                key = (row.pop("dataset"), row.pop("method"))
                self.found[key] = Choice(**row)

    def add(self, plan: PlannedRun, choice: Choice) -> None:
        """Keep a choice."""
        self.found[plan.dataset, plan.method] = choice
        if self.path is not None:
            rows = [
                {"dataset": dataset, "method": method, **dataclasses.asdict(one)}
                for (dataset, method), one in self.found.items()
            ]
            write_atomically(self.path, json.dumps(rows, indent=1).encode())

    def remarks(self) -> dict[tuple[str, str], str]:
        """A remark for each tuned row of the table."""
        return {key: choice.remark for key, choice in self.found.items()}

    def apply(self, plan: PlannedRun) -> PlannedRun:
        """The run with the options that were chosen for it."""
        choice = self.found.get((plan.dataset, plan.method))
        return plan if choice is None else plan.using(choice.options)


def tuned(
    config: StudyConfig,
    folder: Path | None,
    trial: Callable[[PlannedRun], Measured],
    begins: Callable[[str], None],
) -> Choices:
    """Tune every method on every dataset, with the study's first seed."""
    choices = Choices(folder)
    assert config.tune is not None
    for plan in config.planned():
        if plan.seed == config.seeds[0] and (plan.dataset, plan.method) not in choices.found:
            begins(f"tuning {plan.name}")
            choices.add(plan, tune(plan, config.tune, trial))
    return choices
