"""Learns the schema of silo files from what clients say about their columns.

No row leaves a client. In a first exchange a client counts, of each column, its rows, missing
values and numbers (`describe`); in a second it names the levels of the columns that turned out to
be categorical, sensitive or the label (`seen`). `learn` is the server's side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import pandas as pd

from evenfed.core.errors import ConfigError, suggest
from evenfed.data.dataset import Kind
from evenfed.data.preprocess import POLICIES, Missing, Scale, level_codes, level_order
from evenfed.data.problems import Problem, in_rows
from evenfed.data.silo import SiloSchema
from evenfed.data.silo_checks import MISSING
from evenfed.data.silo_files import Part, as_levels, parsed
from evenfed.data.table import MAX_LEVELS

MANY = 10
"""A label of whole numbers with more values than these is a number, not a class."""
PAIRS = (("0", "1"), ("False", "True"), ("no", "yes"), ("No", "Yes"), ("NO", "YES"))


@dataclass(frozen=True)
class Wanted:
    """What a user says about silo files; what is left out is learnt from them.

    Parameters
    ----------
    label : str
        Column to predict.
    sensitive : tuple of str
        Columns whose (intersection of) levels are the groups; they are no features.
    features : tuple of str
        Columns that become features; empty: all others.
    drop : tuple of str
        Columns that do not.
    numeric, categorical : tuple of str
        Columns whose type is not to be inferred.
    missing : mapping of column to policy
        See `Spec`; `"level"` is another word for `"indicator"`, and column `"*"` names all features
        that have missing values. A sensitive column takes `"level"`: a group of its own.
    kind : {"binary", "multiclass", "regression"}, optional
    classes : tuple of str
        Values of the label in the order of their codes; for `binary` the second is favourable.
    favourable : str, optional
        The favourable one of two classes.
    levels : mapping of column to levels
        Levels that are known beforehand; others are refused.
    max_levels : int
        A column of words with more levels is taken for an identifier and refused.
    smallest_group : int
        A group, or a class that is not named in `classes`, with fewer rows over all clients is
        refused.
    learnt : tuple of str
        Columns of which an earlier use learnt what is said here.
    """

    label: str
    sensitive: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    kind: Kind | None = None
    classes: tuple[str, ...] = ()
    favourable: str | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    val: float = 0.1
    test: float = 0.2
    scale: Scale = "standard"
    max_levels: int = MAX_LEVELS
    smallest_group: int = 10
    learnt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in get_args(Kind):
            raise ConfigError(f"kind is one of {', '.join(get_args(Kind))}, not '{self.kind}'")
        known = {"level", *(word for words in POLICIES.values() for word in words)}
        for column, policy in self.missing.items():
            if policy not in known:
                raise ConfigError(
                    f"missing values of '{column}': there is no policy '{policy}'."
                    + suggest(policy, known)
                )
        if self.label in self.sensitive:
            raise ConfigError(f"column '{self.label}' is the label and sensitive at once")
        if self.label in self.drop:
            raise ConfigError(f"drop: column '{self.label}' is the label, which is needed")
        for column, times in Counter(self.sensitive).items():
            if times > 1:
                raise ConfigError(f"sensitive: column '{column}' is named {times} times")
        if self.smallest_group < 0:
            raise ConfigError(
                f"smallest_group is a number of rows, 0 or more, not {self.smallest_group}"
            )


def policy_word(policy: str) -> str:
    """A policy for missing values as the command line calls it."""
    return "level" if policy == "indicator" else policy


@dataclass(frozen=True)
class Described:
    """What a client says about a column in the first exchange; numbers add up over clients."""

    rows: int
    missing: int
    numbers: int
    whole: bool

    @property
    def present(self) -> int:
        """Values that are there."""
        return self.rows - self.missing


def describe(frame: pd.DataFrame) -> dict[str, Described]:
    """Count rows, missing values and numbers of each column: runs where the rows are.

    Examples
    --------
    >>> describe(pd.DataFrame({"age": ["30", "x", None]}))["age"]
    Described(rows=3, missing=1, numbers=1, whole=True)
    """
    found = {}
    for column in frame.columns:
        values = frame[column]
        x = parsed(values)
        x = x[~np.isnan(x)]
        numbers = 0 if pd.api.types.is_bool_dtype(values.dtype) else len(x)
        finite = x[np.isfinite(x)]
        whole = bool((finite == np.round(finite)).all())
        found[str(column)] = Described(len(values), int(values.isna().sum()), numbers, whole)
    return found


def seen(frame: pd.DataFrame, columns: Sequence[str], numbers: bool) -> dict[str, tuple[str, ...]]:
    """Levels of columns, as text: runs where the rows are; `numbers` leaves words out."""
    found = {}
    for column in columns:
        if column in frame.columns:
            values = frame[column]
            if numbers:
                values = values[np.isfinite(parsed(values))]
            found[column] = level_codes(as_levels(values))[1]
    return found


@dataclass(frozen=True)
class Learned:
    """The server's side of learning a schema."""

    parts: Sequence[Part]
    wanted: Wanted
    problems: list[Problem]
    columns: Mapping[str, Described]

    @classmethod
    def of(cls, parts: Sequence[Part], wanted: Wanted) -> Learned:
        """After the first exchange."""
        total: dict[str, Described] = {}
        for part in parts:
            for name, one in describe(part.frame).items():
                sofar = total.get(name, Described(0, 0, 0, True))
                total[name] = Described(
                    sofar.rows + one.rows, sofar.missing + one.missing,
                    sofar.numbers + one.numbers, sofar.whole and one.whole,
                )  # fmt: skip
        return cls(parts, wanted, [], total)

    def schema(self) -> SiloSchema:
        """The schema, as far as it can be had; what is wrong is in `problems`."""
        features = self._features()
        numeric = tuple(c for c in features if self._is_numeric(c))
        categorical = tuple(c for c in features if c not in numeric)
        sensitive = tuple(column for column in self.wanted.sensitive if self._known(column))
        levels = self._levels((*categorical, *sensitive))
        kind, classes = self._label() if self._known(self.wanted.label) else ("binary", ())
        missing = self._missing(numeric, categorical)
        for column in sensitive:
            if missing.get(column) == "indicator" and MISSING not in levels.get(column, ()):
                levels[column] = (*levels.get(column, ()), MISSING)
        if not features:
            self.problems.append(Problem("no column is left that could be a feature"))
        wanted = self.wanted
        return SiloSchema(
            wanted.label, numeric, categorical, sensitive, kind, classes, levels, missing,
            wanted.val, wanted.test, wanted.scale, wanted.max_levels, wanted.smallest_group,
            self._learnt(features, levels, classes),
        )  # fmt: skip

    def _learnt(
        self, features: Sequence[str], levels: Mapping[str, object], classes: Sequence[str]
    ) -> tuple[str, ...]:
        """Columns whose type or levels come from the files, now or at an earlier use."""
        wanted = self.wanted
        typed = {*wanted.numeric, *wanted.categorical}
        new = [c for c in features if c not in typed]
        new += [c for c in levels if c not in wanted.levels]
        if not wanted.classes and (classes or wanted.kind is None):
            new.append(wanted.label)
        return tuple(dict.fromkeys([*wanted.learnt, *new]))

    def _known(self, column: str) -> bool:
        if column in self.columns:
            return True
        hint = suggest(column, self.columns)
        self.problems.append(Problem(f"no file has a column '{column}'.{hint}"))
        return False

    def _features(self) -> tuple[str, ...]:
        wanted = self.wanted
        named = [*wanted.numeric, *wanted.categorical, *wanted.drop, *wanted.features]
        known = {column for column in named if self._known(column)}
        taken = {wanted.label, *wanted.sensitive, *wanted.drop}
        for column in wanted.features:
            if column in taken:
                self.problems.append(Problem(f"column '{column}' has two roles"))
        for column in set(wanted.numeric) & set(wanted.categorical):
            self.problems.append(Problem(f"column '{column}' is called numeric and categorical"))
        if wanted.features:
            return tuple(c for c in wanted.features if c in known and c not in taken)
        return tuple(c for c in self.columns if c not in taken)

    def _is_numeric(self, column: str) -> bool:
        """Numbers if most values are: the others are then problems, not levels."""
        if column in self.wanted.numeric:
            return True
        if column in self.wanted.categorical:
            return False
        found = self.columns[column]
        if not found.present:
            self.problems.append(
                Problem(f"column '{column}' has no value at any client: --drop it")
            )  # fmt: skip
        return 2 * found.numbers > found.present

    def _levels(self, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The second exchange: levels that any client has, in one order."""
        levels = {c: tuple(self.wanted.levels[c]) for c in columns if c in self.wanted.levels}
        asked = [c for c in dict.fromkeys(columns) if c not in levels and c in self.columns]
        union: dict[str, set[str]] = {column: set() for column in asked}
        for part in self.parts:
            for column, known in seen(part.frame, asked, False).items():
                union[column].update(known)
        for column, found in union.items():
            most = MAX_LEVELS if column in self.wanted.sensitive else self.wanted.max_levels
            if len(found) > most:
                self.problems.append(self._too_many(column, len(found), most))
            levels[column] = tuple(sorted(found, key=level_order))
        return levels

    def _too_many(self, column: str, count: int, most: int) -> Problem:
        text = f"column '{column}' has {count} levels, more than {most}"
        if column in self.wanted.sensitive:
            return Problem(f"{text}: cut the sensitive column into a few bands")
        return Problem(f"{text}: --drop it if it names persons or dates, or raise --max-levels")

    def _missing(
        self, numeric: Sequence[str], categorical: Sequence[str]
    ) -> dict[str, Missing]:  # fmt: skip
        policies: dict[str, Missing] = {}
        for column, word in self.wanted.missing.items():
            policy: Missing = "indicator" if word == "level" else word  # type: ignore[assignment]
            if column == "*":
                continue
            if column in self.wanted.sensitive:
                allowed: tuple[str, ...] = ("error", "indicator")
            elif column in numeric:
                allowed = POLICIES["numeric"]
            elif column in categorical:
                allowed = POLICIES["categorical"]
            else:
                text = f"a policy for missing values names no feature: '{column}'"
                self.problems.append(Problem(text))
                continue
            if policy not in allowed:
                kind = "a numeric" if column in numeric else "this"
                text = f"column '{column}': {kind} column's missing values take "
                may = ", ".join(policy_word(each) for each in allowed)
                self.problems.append(Problem(f"{text}{may}, not {word}"))
            policies[column] = policy
        return {**self._rest(numeric, categorical, policies), **policies}

    def _rest(
        self, numeric: Sequence[str], categorical: Sequence[str], named: Mapping[str, Missing]
    ) -> dict[str, Missing]:
        """What `*` says of the features that have missing values."""
        word = self.wanted.missing.get("*")
        if word is None:
            return {}
        policy: Missing = "indicator" if word == "level" else word  # type: ignore[assignment]
        kinds = {"numeric": numeric, "categorical": categorical}
        return {
            column: policy
            for kind, columns in kinds.items()
            for column in columns
            if self.columns[column].missing and column not in named and policy in POLICIES[kind]
        }

    def _label(self) -> tuple[Kind, tuple[str, ...]]:
        """Kind of prediction and the classes."""
        wanted, found = self.wanted, self.columns[self.wanted.label]
        numbers = 2 * found.numbers > found.present
        if wanted.kind == "regression":
            return "regression", ()
        if wanted.classes and wanted.favourable is not None:
            return self._classes(wanted.classes)
        if wanted.classes:
            return wanted.kind or ("binary" if len(wanted.classes) == 2 else "multiclass"), (
                wanted.classes
            )
        values: set[str] = set()
        for part in self.parts:
            values.update(*seen(part.frame, [wanted.label], numbers).values())
        many = len(values) > MANY or (len(values) > 2 and not found.whole)
        if wanted.kind is None and numbers and many:
            return "regression", ()
        known = tuple(sorted(values, key=level_order))
        if 2 <= len(known) <= MAX_LEVELS:
            self._doubtful(known)
        return self._classes(known)

    def _doubtful(self, known: tuple[str, ...]) -> None:
        """Refuse values of the label that look like typing errors; they are not shown."""
        label = self.wanted.label
        coded = [
            (part, *level_codes(as_levels(part.frame[label])))
            for part in self.parts
            if label in part.frame.columns
        ]
        counts: Counter[str] = Counter()
        for _, codes, names in coded:
            counts.update({name: int((codes == i).sum()) for i, name in enumerate(names)})
        spelt: dict[str, str] = {}
        for name in sorted(known, key=lambda name: -counts[name]):
            spelt.setdefault("".join(name.split()).casefold(), name)
        fewest = self.wanted.smallest_group
        alike = set(known) - set(spelt.values())
        rare = {name for name in known if counts[name] < fewest} - alike
        good = ",".join(name for name in known if name not in alike | rare)
        advice = f"correct it, or name the classes with --classes {good or 'A,B'}"
        few = f"a class with fewer than {fewest} rows at all clients together: {advice}"
        for part, codes, names in coded:
            for bad, text in (
                (alike, f"differs from another class only in case or spaces: {advice}"),
                (rare, f"{few}, or lower --smallest-group"),
            ):
                there = np.isin(codes, [i for i, name in enumerate(names) if name in bad])
                if there.any():
                    self.problems.append(part.at(in_rows(text, part.frame, there), label))

    def _classes(self, known: tuple[str, ...]) -> tuple[Kind, tuple[str, ...]]:
        wanted = self.wanted
        label = f"label '{wanted.label}'"
        kind: Kind = wanted.kind or ("binary" if len(known) <= 2 else "multiclass")
        text = ""
        if len(known) < 2:
            text = f"{label} has {'one value' if known else 'no value'}: nothing can be learnt"
        elif len(known) > MAX_LEVELS:
            text = f"{label} is text with {len(known)} values: classes are at most {MAX_LEVELS}"
        elif kind == "binary" and len(known) > 2:
            text = f"{label} has {len(known)} values; a binary one has two"
        elif kind != "binary" and wanted.favourable is not None:
            text = f"{label} has {len(known)} classes: a favourable one belongs to two classes"
        elif kind == "binary" and wanted.favourable is not None:
            if wanted.favourable not in known:
                text = f"{label} has the classes {' and '.join(known)}, not '{wanted.favourable}'"
            known = (*(v for v in known if v != wanted.favourable), wanted.favourable)
        elif kind == "binary" and known not in PAIRS:
            text = f"{label} has the classes {' and '.join(known)}: say which is --favourable"
        if text:
            self.problems.append(Problem(text))
        return kind, known
