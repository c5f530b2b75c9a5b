"""Bank marketing: whether a customer of a Portuguese bank subscribes a deposit."""

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
    "marketing, not lending: to be predicted 'yes' means to be called, which is a weak benefit",
    "age is cut into bands to make groups; other bands give other disparities",
    "the duration of the call is known only after it, so it is no feature unless asked for",
    "11.7 % say yes: a constant prediction is already 88 % right",
)
INFO = SourceInfo(
    name="bank",
    title="Bank marketing: deposit subscribed, 45,211 calls of a Portuguese bank, 2008-2010",
    kind="binary",
    clients="10 by default, drawn so that they differ in the mix of groups",
    sensitive=("age", "marital"),
    needs="data files",
    source="Moro, Laureano and Cortez 2011; UCI Machine Learning Repository, doi:10.24432/C5K306",
    terms="public for research; the authors ask to be cited",
    notes=NOTES,
)
FILE = "bank-full.csv"
ADVICE = f"It is {FILE} in bank.zip of UCI's Bank Marketing, doi:10.24432/C5K306."
NUMERIC = ("balance", "day", "campaign", "pdays", "previous")
CATEGORICAL = (
    "job", "education", "default", "housing", "loan", "contact", "month", "poutcome",
)  # fmt: skip
BANDS = ("under 30", "30 to 44", "45 to 59", "60 and over")
CLASSES = ("no", "yes")


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | Sequence[str] | None = None,
    protocol: Literal["sound", "published"] = "sound",
    duration: bool = False,
    sensitive_as_feature: Sensitive = False,
    scale: Scale = "standard",
    fit: Fit = "federated",
    val: float = 0.1,
    test: float = 0.2,
) -> FederatedDataset:
    """Load the bank's calls; label 1, the favourable one, is a subscribed deposit.

    Parameters
    ----------
    clients, partition, seed
        10 clients by `Dirichlet("sensitive", alpha=0.5)` by default.
    sensitive : str or sequence of str, optional
        `"age"` (default; four bands), `"marital"`, or both. The one that is not chosen is a
        feature.
    protocol : {"sound", "published"}
        `"published"` rebuilds HetPFL's three clients (by whether there is a loan) with five
        bands of age, whose code is a feature. Only for comparison with printed figures.
    duration : bool
        Let the model see how long the call was (sound protocol only).
    sensitive_as_feature, scale, fit, val, test
        See `evenfed.data.federate.federate`.

    Examples
    --------
    >>> load(sensitive="sex")
    Traceback (most recent call last):
    evenfed.core.errors.ConfigError: dataset 'bank' has no sensitive attribute 'sex'. \
Known: age, marital.
    """
    published = check_protocol(
        protocol, "bank", clients=clients, partition=partition, sensitive=sensitive
    )
    if published:
        return _published(_read())
    columns = chosen("age" if sensitive is None else sensitive, INFO.sensitive, "bank")
    frame = _read()
    bands = np.array(BANDS)[np.digitize(frame["age"].to_numpy(), [30, 45, 60])]
    aged = "age" in columns
    table = Table(
        "bank",
        frame.assign(age=bands) if aged else frame,
        label="y",
        numeric=(() if aged else ("age",)) + NUMERIC + (("duration",) if duration else ()),
        categorical=CATEGORICAL + (() if "marital" in columns else ("marital",)),
        sensitive=columns,
        classes=CLASSES,
        levels={"age": BANDS} if aged else {},
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
        "bank",
        f"{FILE}.gz",
        "a33820520e31d26b498e31003e99eb0e477690b699a38eade375acf3b3004dcd",
        others=[Copy(FILE, "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d")],
        advice=ADVICE,
    )
    return pd.read_csv(path, sep=";")


def age_bands(age: pd.Series[int]) -> pd.Series[int]:
    """Codes 0..4: age cut at its 20, 40, 60 and 80 % quantiles, the lower end open.

    Examples
    --------
    >>> age_bands(pd.Series(range(10))).tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """
    cuts = age.quantile([0.2, 0.4, 0.6, 0.8]).to_numpy()
    return pd.Series(np.searchsorted(cuts, age.to_numpy(), side="left"), index=age.index)


def _published(frame: pd.DataFrame) -> FederatedDataset:
    """HetPFL: rows shuffled with seed 1, 70 % train, three clients by `loan`."""
    numeric = ("balance", "duration", "campaign", "pdays", "previous")
    categorical = (
        "job", "marital", "education", "default", "housing", "loan", "contact", "poutcome",
    )  # fmt: skip
    scaled = {column: unit(frame[column]) for column in numeric}
    frame = frame.assign(age=age_bands(frame["age"]), **scaled)
    # The paper's draws come from numpy's legacy generator, in this order.
    generator = np.random.RandomState(1)
    frame = frame.iloc[generator.permutation(len(frame))]
    table = Table(
        "bank",
        frame,
        label="y",
        numeric=numeric,
        categorical=categorical,
        sensitive=("age",),
        classes=CLASSES,
        levels={
            "age": tuple("01234"),
            **{column: level_codes(frame[column])[1] for column in categorical},
        },
        notes=NOTES,
        origin=FILE,
    )
    cut = int(0.7 * len(table))
    free = (table.frame["loan"] == "no").to_numpy()
    parts = []
    for start, stop in ((0, cut), (cut, len(table))):
        rows = np.arange(start, stop)
        a, b = rows[free[rows]], rows[~free[rows]]
        cuts = zip(
            np.split(a, [int(len(a) * 0.5), int(len(a) * 0.6)]),
            np.split(b, [int(len(b) * 0.2), int(len(b) * 0.8)]),
            strict=True,
        )
        parts.append([np.concatenate(pair) for pair in cuts])
    for rows in parts[0]:
        generator.shuffle(rows)
    return federate_published(table, train=parts[0], test=parts[1])
