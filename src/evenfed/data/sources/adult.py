"""Adult: income above 50,000 dollars in the US census sample of 1994."""

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
from evenfed.data.table import Rows, Table, chosen, deal

NOTES = (
    "superseded: prefer acs_income, which has recent people, states as clients and all incomes",
    "the 50,000 dollars of 1994 are a high threshold (24 % lie above; 11 % of women), so a "
    "constant prediction is already 76 % right",
    "'?' is kept as a level of its own in workclass, occupation and native-country",
)
INFO = SourceInfo(
    name="adult",
    title="Adult: income above 50,000 dollars, 48,842 people of the 1994 US census sample",
    kind="binary",
    clients="10 by default, drawn so that they differ in the mix of groups",
    sensitive=("sex", "race"),
    needs="data files",
    source="Becker and Kohavi 1996, UCI Machine Learning Repository, doi:10.24432/C5XW20",
    terms="CC BY 4.0, as UCI lists it",
    notes=NOTES,
)
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
NUMERIC = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORICAL = ("workclass", "marital-status", "occupation", "relationship", "native-country")
CLASSES = ("<=50K", ">50K")


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | Sequence[str] | None = None,
    protocol: Literal["sound", "published"] = "sound",
    sensitive_as_feature: Sensitive = False,
    scale: Scale = "standard",
    fit: Fit = "federated",
    val: float = 0.1,
) -> FederatedDataset:
    """Load Adult; label 1, the favourable one, is an income above 50,000 dollars.

    The rows of adult.test, and no others, are test rows. The sampling weight (fnlwgt) and the
    name of the education, which education-num says as well, are no features.

    Parameters
    ----------
    clients, partition, seed
        10 clients by `Dirichlet("sensitive", alpha=0.5)` by default.
    sensitive : str or sequence of str, optional
        `"sex"` (default), `"race"`, or `"sex,race"`. The one that is not chosen is a feature.
    protocol : {"sound", "published"}
        `"published"` rebuilds HetPFL's two clients (mostly private workers, mostly others)
        with all 14 columns and the code of sex as a feature. Only for comparison with
        printed figures.
    sensitive_as_feature, scale, fit, val
        See `evenfed.data.federate.federate`.

    Examples
    --------
    >>> load(protocol="fast")
    Traceback (most recent call last):
    evenfed.core.errors.ConfigError: dataset 'adult': protocol is 'sound' or 'published', not 'fast'
    """
    published = check_protocol(
        protocol, "adult", clients=clients, partition=partition, sensitive=sensitive
    )
    if published:
        return _published(_read())
    columns = chosen("sex" if sensitive is None else sensitive, INFO.sensitive, "adult")
    table = Table(
        "adult",
        _read(),
        label="income",
        numeric=NUMERIC,
        categorical=CATEGORICAL + tuple(c for c in INFO.sensitive if c not in columns),
        sensitive=columns,
        fixed_test="tested",
        classes=CLASSES,
        notes=NOTES,
        origin="adult.data, adult.test",
    )
    partition = partition or Dirichlet("sensitive", alpha=0.5, min_size=50)
    return federate(
        table,
        deal(table, partition, clients, seed, default=10),
        val=val,
        seed=seed,
        scale=scale,
        fit=fit,
        sensitive_as_feature=sensitive_as_feature,
    )


def _read() -> pd.DataFrame:
    """Rows of adult.data, then those of adult.test, marked in the column "tested"."""
    paths = [
        locate(
            "adult",
            "adult.data.gz",
            "c7a2b4716a97f930123e0baf879188d701e798172631a654fc703d4b082907f3",
            others=[
                Copy(
                    "adult.data",
                    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                    f"{UCI}/adult.data",
                )
            ],
        ),
        locate(
            "adult",
            "adult.test.gz",
            "41743e91fe4d25fd353ea754bfdb850444d050bd14aaee06a5be952b6dbfa3ec",
            others=[
                Copy(
                    "adult.test",
                    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                    f"{UCI}/adult.test",
                )
            ],
        ),
    ]
    frames = [
        # UCI's adult.test opens with a line that begins with a bar.
        pd.read_csv(path, header=None, names=list(COLUMNS), skipinitialspace=True, comment="|")
        for path in paths
    ]
    frame = pd.concat([f.assign(tested=i == 1) for i, f in enumerate(frames)], ignore_index=True)
    return frame.assign(income=frame["income"].str.rstrip("."))


def _published(frame: pd.DataFrame) -> FederatedDataset:
    """HetPFL: each file scaled on its own; client 1 has 80 % of the private workers."""
    tested = frame["tested"].to_numpy()
    numeric = ("age", "fnlwgt", *NUMERIC[1:])
    categorical = (
        "workclass", "education", "marital-status", "occupation", "relationship", "race",
        "native-country",
    )  # fmt: skip
    scaled = {
        column: np.concatenate([unit(frame.loc[~tested, column]), unit(frame.loc[tested, column])])
        for column in numeric
    }
    table = Table(
        "adult",
        frame.assign(**scaled),
        label="income",
        numeric=numeric,
        categorical=categorical,
        sensitive=("sex",),
        classes=CLASSES,
        levels={
            "sex": ("Female", "Male"),
            **{column: level_codes(frame.loc[~tested, column])[1] for column in categorical},
        },
        notes=NOTES,
        origin="adult.data, adult.test",
    )
    private = (frame["workclass"] == "Private").to_numpy()
    # The paper's draws come from numpy's legacy generator, in this order.
    generator = np.random.RandomState(1)
    first, second = [], []
    for part in (~tested, tested):
        rows = np.flatnonzero(part)
        mine = [
            _share(generator, np.flatnonzero(part & p), s)
            for p, s in ((private, 0.8), (~private, 0.2))
        ]
        first.append(np.concatenate(mine))
        second.append(np.setdiff1d(rows, first[-1]))
    return federate_published(table, train=[first[0], second[0]], test=[first[1], second[1]])


def _share(generator: np.random.RandomState, rows: Rows, share: float) -> Rows:
    drawn: Rows = generator.choice(rows, int(share * len(rows)), replace=False)
    return drawn
