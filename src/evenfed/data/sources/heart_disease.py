"""Heart disease at four hospitals, 1988: a natural federation with natural gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from evenfed.core.errors import ConfigError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.federate import Sensitive, federate
from evenfed.data.files import locate
from evenfed.data.fitting import Fit
from evenfed.data.partition import Partitioner
from evenfed.data.preprocess import Missing, Scale
from evenfed.data.registry import SourceInfo
from evenfed.data.table import Table, chosen, deal

NOTES = (
    "label 1 is disease: the harm to look at is a sick person who is missed",
    "four hospitals of the 1980s with patients sent for angiography: disease is far more common "
    "than among people at large, from 36 % (Hungary) to 93 % (Switzerland)",
    "few women: 97 in Cleveland, 81 in Hungary, 10 in Switzerland, 6 in Long Beach, before "
    "incomplete rows are left out; intervals of group metrics are wide",
)
COMPLETE = (
    "slope, ca and thal, large parts of which three hospitals did not record, are no features, "
    "and rows with another gap are left out: 740 of 920 rows stay, as in FLamby",
    "a cholesterol of 0 (every one in Switzerland, 49 of 200 in Long Beach) is an unmarked "
    "gap; it is kept as it is, so that the column tells hospitals apart",
)
IMPUTE = (
    "gaps are filled with the mean or form a level of their own, and a column says so; a model "
    "may recognise a hospital by its gaps",
)
INFO = SourceInfo(
    name="heart_disease",
    title="Heart disease: diagnosis at four hospitals, 740 patients (920 with gaps)",
    kind="binary",
    clients="the four hospitals",
    sensitive=("sex",),
    needs="data files",
    source="Janosi, Steinbrunn, Pfisterer and Detrano 1988, UCI Machine Learning Repository, "
    "doi:10.24432/C52P4X; as a federation: Ogier du Terrail et al., FLamby, NeurIPS 2022",
    terms="CC BY 4.0, as UCI lists it; the investigators ask to be named",
    notes=NOTES,
)
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
FILES = {
    "Cleveland": (
        "processed.cleveland.data",
        "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    ),
    "Hungary": (
        "processed.hungarian.data",
        "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    ),
    "Long Beach": (
        "processed.va.data",
        "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
    ),
    "Switzerland": (
        "processed.switzerland.data",
        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    ),
}
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)  # fmt: skip
NUMERIC = ("age", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
CATEGORICAL = ("cp", "restecg")
CLASSES = ("no disease", "disease")


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | Sequence[str] = "sex",
    missing: Literal["complete", "impute"] = "complete",
    sensitive_as_feature: Sensitive = False,
    scale: Scale = "standard",
    fit: Fit = "federated",
    val: float = 0.1,
    test: float = 0.2,
) -> FederatedDataset:
    """Load the four hospitals' patients; label 1 is disease (a narrowed vessel).

    Parameters
    ----------
    clients, partition, seed
        The hospitals are the clients; another partition mixes them.
    sensitive : str
        `"sex"`.
    missing : {"complete", "impute"}
        `"complete"` does as FLamby: without the columns slope, ca and thal, only rows that are
        complete. `"impute"` keeps all rows and columns: a gap in a number becomes the mean of
        the training rows, with a column that says so; a gap in a category is a level. A
        cholesterol or blood pressure of 0 counts as a gap then.
    sensitive_as_feature, scale, fit, val, test
        See `evenfed.data.federate.federate`.

    Examples
    --------
    >>> load(missing="guess")
    Traceback (most recent call last):
    evenfed.core.errors.ConfigError: dataset 'heart_disease': missing is 'complete' or \
'impute', not 'guess'
    """
    if missing not in ("complete", "impute"):
        raise ConfigError(
            f"dataset 'heart_disease': missing is 'complete' or 'impute', not '{missing}'"
        )
    columns = chosen(sensitive, INFO.sensitive, "heart_disease")
    table = _table(_read(), columns, impute=missing == "impute")
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


def _table(frame: pd.DataFrame, sensitive: tuple[str, ...], *, impute: bool) -> Table:
    numeric: tuple[str, ...] = NUMERIC
    categorical: tuple[str, ...] = CATEGORICAL
    policies: dict[str, Missing] = {}
    if impute:
        numeric, categorical = (*NUMERIC, "ca"), (*CATEGORICAL, "slope", "thal")
        frame[["chol", "trestbps"]] = frame[["chol", "trestbps"]].replace(0, np.nan)
        gaps = [c for c in numeric + categorical if frame[c].isna().any()]
        policies = dict.fromkeys(gaps, "indicator")
    else:
        frame = frame.drop(columns=["slope", "ca", "thal"]).dropna()
    return Table(
        "heart_disease",
        frame,
        label="diagnosis",
        numeric=numeric,
        categorical=categorical + (() if sensitive else ("sex",)),
        sensitive=sensitive,
        client="hospital",
        classes=CLASSES,
        levels={"sex": ("female", "male")},
        missing=policies,
        notes=NOTES + (IMPUTE if impute else COMPLETE),
    )


def _read() -> pd.DataFrame:
    frames = []
    for hospital, (name, sha256) in FILES.items():
        path = locate("heart_disease", name, sha256, f"{UCI}/{name}")
        frame = pd.read_csv(path, header=None, names=list(COLUMNS), na_values="?")
        frames.append(frame.assign(hospital=hospital))
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(
        sex=np.where(frame["sex"] == 1, "male", "female"),
        diagnosis=np.where(frame["num"] > 0, CLASSES[1], CLASSES[0]),
    )
