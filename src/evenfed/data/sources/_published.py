"""What the splits published with HetPFL and PraFFL have in common.

They are rebuilt to compare with printed figures, not to be imitated: scaling saw test rows,
validation rows are the last of a list that may be sorted, and the code of the group is a
feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.federate import federate
from evenfed.data.table import Rows, Table

SPLIT = "published split"
LEDGER = (
    "RAW ROWS: the published protocol scales with the smallest and largest values of pooled "
    "rows, test rows included",
)
NOTES = (
    "published protocol: scaled with test rows, validation rows cut by position, and the code "
    "of the group is a feature",
)


def check_protocol(protocol: str, name: str, **given: object) -> bool:
    """Whether the published protocol is asked for; it admits no other choice."""
    if protocol not in ("sound", "published"):
        raise ConfigError(f"dataset '{name}': protocol is 'sound' or 'published', not '{protocol}'")
    if protocol == "published":
        for option, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"dataset '{name}': the published protocol fixes '{option}'; leave it out, "
                    "or use protocol='sound'"
                )
    return protocol == "published"


def unit(values: pd.Series[float]) -> NDArray[np.float64]:
    """Bring a column to [0, 1]."""
    x = values.to_numpy(dtype=np.float64)
    return np.asarray((x - x.min()) / (x.max() - x.min()), dtype=np.float64)


def federate_published(
    table: Table, train: Sequence[Rows], test: Sequence[Rows]
) -> FederatedDataset:
    """Clients of given rows in given order; the last tenth of the training rows validates."""
    words = np.full(len(table), "", dtype=object)
    assignment = {}
    for k, (trained, tested) in enumerate(zip(train, test, strict=True)):
        cut = int(0.9 * len(trained))
        words[trained[:cut]], words[trained[cut:]], words[tested] = "train", "val", "test"
        assignment[f"client-{k}"] = np.concatenate([trained, tested])
    table = replace(
        table,
        frame=table.frame.assign(**{SPLIT: words}),
        split=SPLIT,
        notes=(*table.notes, *NOTES),
    )
    data = federate(table, assignment, scale="none", sensitive_as_feature="code")
    return data.with_schema(ledger=LEDGER)
