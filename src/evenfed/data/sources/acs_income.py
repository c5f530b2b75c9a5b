"""ACSIncome 2018 of folktables: income above 50,000 dollars, US states as clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError, suggest
from evenfed.data.dataset import FederatedDataset, stable_key
from evenfed.data.federate import Sensitive, federate
from evenfed.data.files import locate
from evenfed.data.fitting import Fit
from evenfed.data.partition import Partitioner
from evenfed.data.preprocess import Scale
from evenfed.data.registry import SourceInfo
from evenfed.data.table import Table, chosen, deal

NOTES = (
    "California is missing, and of Florida one third of the rows is there",
    "11 states lost some rows of one race (AK 83, AZ 56, LA 44, MN 30, OR 14, six others "
    "at most 5 each), which was dropped on purpose by the authors of the files",
    "marital status and race are coarse: married or not; five races, mixed ones under 'other'",
    "the threshold of 50,000 dollars is one choice of many, and disparities depend on it",
    "occupations and birthplaces are grouped (25 and 7), which costs some accuracy",
)
INFO = SourceInfo(
    name="acs_income",
    title="ACSIncome 2018: income above 50,000 dollars, 1.4 million people of 49 states and "
    "Puerto Rico",
    kind="binary",
    clients="the states",
    sensitive=("sex", "race"),
    needs="data files",
    source="Ding, Hardt, Miller and Schmidt, Retiring Adult, NeurIPS 2021; US Census Bureau, ACS "
    "PUMS 2018; files of FeDa4Fair (github.com/xheilmann/FeDa4Fair)",
    terms="public data of the US Census Bureau; FeDa4Fair's datasheet names no restriction",
    notes=NOTES,
)
FILE = "acs_income_2018.npz"
ADVICE = (
    "It holds the arrays ST, AGEP, COW, SCHL, MAR, OCCP, POBP, RELP, WKHP, SEX, RAC1P, PINCP of "
    "the CSV files of github.com/xheilmann/FeDa4Fair, put end to end; ask the project for it."
)
STATES = {
    1: "Alabama", 2: "Alaska", 4: "Arizona", 5: "Arkansas", 6: "California", 8: "Colorado",
    9: "Connecticut", 10: "Delaware", 11: "District of Columbia", 12: "Florida", 13: "Georgia",
    15: "Hawaii", 16: "Idaho", 17: "Illinois", 18: "Indiana", 19: "Iowa", 20: "Kansas",
    21: "Kentucky", 22: "Louisiana", 23: "Maine", 24: "Maryland", 25: "Massachusetts",
    26: "Michigan", 27: "Minnesota", 28: "Mississippi", 29: "Missouri", 30: "Montana",
    31: "Nebraska", 32: "Nevada", 33: "New Hampshire", 34: "New Jersey", 35: "New Mexico",
    36: "New York", 37: "North Carolina", 38: "North Dakota", 39: "Ohio", 40: "Oklahoma",
    41: "Oregon", 42: "Pennsylvania", 44: "Rhode Island", 45: "South Carolina",
    46: "South Dakota", 47: "Tennessee", 48: "Texas", 49: "Utah", 50: "Vermont", 51: "Virginia",
    53: "Washington", 54: "West Virginia", 55: "Wisconsin", 56: "Wyoming", 72: "Puerto Rico",
}  # fmt: skip
RACES = ("White", "Black", "Asian", "American Indian or Alaska Native", "other")
CLASSES = ("up to 50,000", "above 50,000")
# First census code of each major group of occupations, as PUMS prefixes them.
OCCUPATIONS = {
    0: "MGR", 500: "BUS", 800: "FIN", 1005: "CMM", 1305: "ENG", 1600: "SCI", 2001: "CMS",
    2100: "LGL", 2205: "EDU", 2600: "ENT", 3000: "MED", 3601: "HLS", 3700: "PRT", 4000: "EAT",
    4200: "CLN", 4330: "PRS", 4700: "SAL", 5000: "OFF", 6005: "FFF", 6200: "CON", 6800: "EXT",
    7000: "RPR", 7700: "PRD", 9005: "TRN", 9800: "MIL",
}  # fmt: skip
BIRTHPLACES = {
    0: "US states", 60: "US islands", 100: "Europe", 200: "Asia", 300: "Americas",
    400: "Africa", 500: "Oceania",
}  # fmt: skip


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | Sequence[str] = "sex",
    states: str | Sequence[str] = (),
    limit: int | None = None,
    sensitive_as_feature: Sensitive = False,
    scale: Scale = "standard",
    fit: Fit = "federated",
    val: float = 0.1,
    test: float = 0.2,
) -> FederatedDataset:
    """Load ACSIncome; label 1, the favourable one, is an income above 50,000 dollars.

    Parameters
    ----------
    clients : int, optional
        Without a partition: the so many states with most people.
    partition, seed
        The states are the clients; another partition mixes them.
    sensitive : str or sequence of str
        `"sex"`, `"race"`, or `"sex,race"`. The one that is not chosen is a feature.
    states : str or sequence of str
        Names of the states to keep, e.g. `"Texas,Ohio"`; all by default.
    limit : int, optional
        Keep at most so many people of a state, drawn at random; by default all, which takes
        some 600 MB of memory.
    sensitive_as_feature, scale, fit, val, test
        See `evenfed.data.federate.federate`.

    Examples
    --------
    >>> load(states="Texsa")
    Traceback (most recent call last):
    evenfed.core.errors.ConfigError: dataset 'acs_income': there is no state 'Texsa'. \
Did you mean 'Texas'?
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"dataset 'acs_income': limit must be at least 1, not {limit}")
    columns = chosen(sensitive, INFO.sensitive, "acs_income")
    wanted = _wanted(states)
    raw = _read()
    kept = _kept(raw["ST"], wanted, clients if partition is None else None, limit, seed)
    table = Table(
        "acs_income",
        _frame({name: values[kept] for name, values in raw.items()}),
        label="income",
        numeric=("age", "schooling", "hours"),
        categorical=(
            "class of worker", "married", "relationship", "occupation", "birthplace",
            *(c for c in INFO.sensitive if c not in columns),
        ),
        sensitive=columns,
        client="state",
        classes=CLASSES,
        levels={"sex": ("male", "female"), "race": RACES},
        notes=NOTES,
        origin=FILE,
    )  # fmt: skip
    return federate(
        table,
        deal(table, partition, clients, seed),
        val=val,
        test=test,
        seed=seed,
        scale=scale,
        fit=fit,
        sensitive_as_feature=sensitive_as_feature,
    )


def _wanted(states: str | Sequence[str]) -> list[int]:
    """Codes of the named states; all if none is named."""
    names = states.split(",") if isinstance(states, str) else states
    codes = {name: code for code, name in STATES.items()}
    for name in names:
        if name.strip() not in codes:
            hint = suggest(name, codes)
            hint = hint if "Did you mean" in hint else ""
            raise ConfigError(f"dataset 'acs_income': there is no state '{name}'.{hint}")
    return [codes[name.strip()] for name in names] or list(STATES)


def _read() -> dict[str, NDArray[np.uint16]]:
    path = locate(
        "acs_income",
        FILE,
        "de87bcdb2da583fdf348a162476c0b8453e255b86f5b14bcf2d732204d9b72c2",
        advice=ADVICE,
    )
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name].astype(np.uint16) for name in file.files}


def _kept(
    state: NDArray[np.uint16],
    wanted: Sequence[int],
    clients: int | None,
    limit: int | None,
    seed: int,
) -> NDArray[np.int64]:
    """Rows of the states that are asked for, ascending."""
    rows = {code: np.flatnonzero(state == code) for code in wanted}
    absent = [STATES[code] for code, found in rows.items() if len(found) == 0]
    if absent and len(wanted) < len(STATES):
        raise DataError(f"file '{FILE}' has no rows of {', '.join(absent)}")
    rows = {code: found for code, found in rows.items() if len(found)}
    if clients is not None:
        if not 1 <= clients <= len(rows):
            raise ConfigError(
                f"dataset 'acs_income' has {len(rows)} states, not {clients}; give a partition "
                "to make other clients"
            )
        largest = sorted(rows, key=lambda code: -len(rows[code]))[:clients]
        rows = {code: rows[code] for code in largest}
    if limit is not None:
        for code, found in rows.items():
            rng = np.random.default_rng((seed, stable_key(STATES[code])))
            rows[code] = rng.permutation(found)[:limit]
    return np.sort(np.concatenate(list(rows.values())))


def _frame(raw: dict[str, NDArray[np.uint16]]) -> pd.DataFrame:
    """Readable columns; categories, because a million rows of text are slow."""
    married = np.where(raw["MAR"] == 1, 1, 2)
    return pd.DataFrame(
        {
            "age": raw["AGEP"],
            "schooling": raw["SCHL"],
            "hours": raw["WKHP"],
            "class of worker": _named(raw["COW"], {k: str(k) for k in range(1, 9)}),
            "married": _named(married, {1: "yes", 2: "no"}),
            "relationship": _named(raw["RELP"], {k: str(k) for k in range(18)}),
            "occupation": _named(_floor(raw["OCCP"], OCCUPATIONS), OCCUPATIONS),
            "birthplace": _named(_floor(raw["POBP"], BIRTHPLACES), BIRTHPLACES),
            "sex": _named(raw["SEX"], {1: "male", 2: "female"}),
            "race": _named(raw["RAC1P"], dict(enumerate(RACES, start=1))),
            "state": _named(raw["ST"], STATES),
            "income": _named(raw["PINCP"], dict(enumerate(CLASSES))),
        }
    )


def _floor(values: NDArray[np.uint16], groups: dict[int, str]) -> NDArray[np.int64]:
    """First code of the group that each code falls in."""
    starts = np.array(list(groups))
    return np.asarray(starts[np.searchsorted(starts, values, side="right") - 1], dtype=np.int64)


def _named(values: NDArray[np.generic], names: dict[int, str]) -> pd.Categorical[str]:
    """Turn codes into a column of words; a code without a name becomes a missing value."""
    place = np.full(1 + max(*names, int(np.max(values))), -1, dtype=np.int64)
    place[list(names)] = np.arange(len(names))
    return pd.Categorical.from_codes(
        place[values.astype(np.int64)], categories=pd.Index(list(names.values()))
    )
