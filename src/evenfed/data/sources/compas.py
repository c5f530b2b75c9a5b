"""COMPAS: re-arrest within two years, Broward County, Florida (ProPublica, 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from evenfed.data.dataset import FederatedDataset
from evenfed.data.federate import Sensitive, federate
from evenfed.data.files import Copy, locate
from evenfed.data.fitting import Fit
from evenfed.data.partition import Dirichlet, Partitioner
from evenfed.data.preprocess import Scale, level_codes
from evenfed.data.registry import SourceInfo
from evenfed.data.sources._published import check_protocol, federate_published, unit
from evenfed.data.table import Table, chosen, deal

NOTES = (
    "the label is re-arrest within two years, not crime: it carries the bias of policing",
    "ProPublica's sample keeps repeat offenders beyond its two-year window, which inflates the "
    "rate of re-arrest; 'filtered' applies their own row filter, which does not cure it",
    "race is as the sheriff's office recorded it; Asian and Native American (50 people) are "
    "counted under Other",
    "people of one county in 2013-2014: no other use of a model is supported",
)
INFO = SourceInfo(
    name="compas",
    title="COMPAS: re-arrest within two years, 6,172 defendants (7,214 unfiltered)",
    kind="binary",
    clients="10 by default, drawn so that they differ in the mix of groups",
    sensitive=("race", "sex"),
    needs="data files",
    source="Angwin et al., Machine Bias, ProPublica 2016; github.com/propublica/compas-analysis",
    terms="the repository states no licence",
    notes=NOTES,
)
FILE = "compas-scores-two-years.csv"
COMMIT = "bafff5da3f2e45eca6c2d5055faad269defd135a"
ORIGINAL = Copy(
    FILE,
    "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    f"https://raw.githubusercontent.com/propublica/compas-analysis/{COMMIT}/{FILE}",
)
NUMERIC = ("age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count")
CLASSES = ("re-arrested", "not re-arrested")


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | Sequence[str] | None = None,
    protocol: Literal["sound", "published"] = "sound",
    filtered: bool = True,
    sensitive_as_feature: Sensitive = False,
    scale: Scale = "standard",
    fit: Fit = "federated",
    val: float = 0.1,
    test: float = 0.2,
) -> FederatedDataset:
    """Load COMPAS; label 1, the favourable one, is no re-arrest.

    Parameters
    ----------
    clients, partition, seed
        10 clients by `Dirichlet("sensitive", alpha=0.5)` by default.
    sensitive : str or sequence of str, optional
        `"race"` (default), `"sex"`, or `"sex,race"`. The one that is not chosen is a feature.
    protocol : {"sound", "published"}
        `"published"` rebuilds HetPFL's two clients (younger and older people) in its row
        order, with sex x race as four groups, whose code is a feature. Only for comparison
        with printed figures.
    filtered : bool
        Apply ProPublica's filter of unreliable rows (sound protocol only).
    sensitive_as_feature, scale, fit, val, test
        See `evenfed.data.federate.federate`.

    Examples
    --------
    >>> load(protocol="published", clients=3)
    Traceback (most recent call last):
    evenfed.core.errors.ConfigError: dataset 'compas': the published protocol fixes 'clients'; \
leave it out, or use protocol='sound'
    """
    published = check_protocol(
        protocol, "compas", clients=clients, partition=partition, sensitive=sensitive
    )
    if published:
        return _published(_read())
    columns = chosen("race" if sensitive is None else sensitive, INFO.sensitive, "compas")
    frame = _read()
    if filtered:
        frame = frame[_reliable(frame)]
    race = frame["race"].replace({"Asian": "Other", "Native American": "Other"})
    table = Table(
        "compas",
        frame.assign(race=race),
        label="outcome",
        numeric=NUMERIC,
        categorical=("c_charge_degree", *(c for c in INFO.sensitive if c not in columns)),
        sensitive=columns,
        classes=CLASSES,
        notes=NOTES,
        origin=FILE,
    )
    partition = partition or Dirichlet("sensitive", alpha=0.5, min_size=50)
    return federate(
        table,
        deal(table, partition, clients, seed, default=10),
        val=val,
        test=test,
        seed=seed,
        scale=scale,
        fit=fit,
        sensitive_as_feature=sensitive_as_feature,
    )


def _read() -> pd.DataFrame:
    path = locate(
        "compas",
        f"{FILE}.gz",
        "e6afe34c6f68e873e89b0a6c6981446564d0ebc8eba5f81f282706d92f1757b3",
        others=[ORIGINAL],
    )
    # The file has two columns named priors_count; pandas renames the second.
    frame = pd.read_csv(path)
    return frame.assign(outcome=np.where(frame["two_year_recid"] == 0, CLASSES[1], CLASSES[0]))


def _reliable(frame: pd.DataFrame) -> pd.Series[bool]:
    """ProPublica's filter: charge within 30 days of the score, a case, no traffic offence."""
    return (
        frame["days_b_screening_arrest"].between(-30, 30)
        & (frame["is_recid"] != -1)
        & (frame["c_charge_degree"] != "O")
        & frame["score_text"].notna()
    )


def _published(frame: pd.DataFrame) -> FederatedDataset:
    """HetPFL: rows in file order, 70 % train, two clients by age, no row filtered."""
    categorical = ("age_cat", "c_charge_degree", "c_charge_desc")
    scaled = {column: unit(frame[column]) for column in NUMERIC}
    sex = np.where(frame["sex"] == "Female", "Female", "Male")
    race = np.where(frame["race"] == "African-American", "African-American", "other")
    table = Table(
        "compas",
        frame.assign(**scaled, sex=sex, race=race),
        label="outcome",
        numeric=NUMERIC,
        categorical=categorical,
        sensitive=("sex", "race"),
        classes=CLASSES,
        levels={
            "sex": ("Male", "Female"),
            "race": ("other", "African-American"),
            **{column: level_codes(frame[column])[1] for column in categorical},
        },
        missing={"c_charge_desc": "zeros"},
        notes=NOTES,
        origin=FILE,
    )
    rows = np.arange(len(frame))
    first = rows < int(0.7 * len(frame))
    older = scaled["age"] > 0.1
    return federate_published(
        table,
        train=[rows[first & older], rows[first & ~older]],
        test=[rows[~first & older], rows[~first & ~older]],
    )
