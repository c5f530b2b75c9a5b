"""What an answer is computed from: the runs on one dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evenfed.metrics.bootstrap import SeedSummary, over_seeds
from evenfed.runs.record import Record
from evenfed.runs.table import Section as Table


@dataclass(frozen=True)
class Chapter:
    """All runs on one dataset.

    Parameters
    ----------
    records : sequence of Record
        Those that came to their end; for a page that follows a run, also one that has not.
    table : Table, optional
        The comparison of a study; None for one run.
    references : sequence of str
        Methods that stand there for comparison only.
    """

    name: str
    records: Sequence[Record]
    table: Table | None = None
    references: Sequence[str] = ()
    legend: str = ""
    trained: bool = True
    """False for a model that was not trained here."""
    room: int = 2_500_000
    """Bytes that the front explorer of this dataset may take."""

    @cached_property
    def done(self) -> list[Record]:
        """The runs with a result."""
        return [r for r in self.records if r.measured is not None]

    @cached_property
    def methods(self) -> list[str]:
        """Labels of the methods that have a result; references come last."""
        found = list(dict.fromkeys(r.method for r in self.done))
        return sorted(found, key=lambda m: m in self.references)

    @property
    def single(self) -> bool:
        """Whether it is the report of one run."""
        return self.table is None

    @property
    def first(self) -> Mapping[str, Any]:
        """What the first run measured."""
        measured = self.done[0].measured
        assert measured is not None
        return measured

    @property
    def alone(self) -> Mapping[str, Any] | None:
        """What one run measured of its reference Local; None where that was not trained."""
        found = self.first.get("reference") if self.single else None
        return found if found and "metrics" in found else None

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return bool(self.first["task"]["kind"] == "regression")

    @property
    def classes(self) -> list[str]:
        """Names of the classes: as measured, or, by older runs, as set; empty: not known."""
        names = self.first["task"].get("class_names")
        if names is None:
            names = self.done[0].config.data.options.get("classes")
        count = self.first["task"]["classes"]
        return list(names) if isinstance(names, list | tuple) and len(names) == count else []

    @property
    def favourable(self) -> str:
        """The prediction that is counted as selected, e.g. `decision = approved`; or nothing."""
        names = self.classes
        return f"{self.first['task']['label']} = {names[1]}" if len(names) == 2 else ""

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return list(dict.fromkeys(r.seed for r in self.records))

    def of(self, method: str) -> list[Record]:
        """The finished runs of a method."""
        return [r for r in self.done if r.method == method]

    def by_method(self) -> Iterator[tuple[str, list[Record]]]:
        """Methods with their finished runs."""
        for method in self.methods:
            yield method, self.of(method)

    def label(self, method: str) -> str:
        """The method's name in figures and tables."""
        return f"{method} (reference)" if method in self.references else method

    def metric(self, method: str, name: str) -> SeedSummary | None:
        """A metric of a method over seeds; None where it is undefined."""
        values = [r.measured["metrics"].get(name) for r in self.of(method) if r.measured]
        found = [v for v in values if v is not None and math.isfinite(v)]
        return over_seeds(found) if found and len(found) == len(values) else None
