"""What the data of a run were: by it a run that goes on knows whether they are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from evenfed.core.errors import RunFolderError
from evenfed.data.dataset import SPLITS, ClientData, FederatedDataset

_NAMED = 3
"""Clients that a refusal names."""


def data_record(data: FederatedDataset) -> dict[str, Any] | None:
    """Rows and a digest of every client; None where clients are made when they are asked for.

    The digest is of raw rows where the data know them: features may be scaled by sums over all
    clients, so that one changed file would change the features of everybody.

    Examples
    --------
    >>> from evenfed.data.registry import load
    >>> data_record(load("synthetic", seed=0))["client-0"]["rows"]
    {'train': 1207, 'val': 134, 'test': 572}
    """
    if data.lazy:
        return None
    return {
        client.name: {
            "rows": {split: len(client.split(split)) for split in SPLITS},
            "digest": _digest(data, client),
        }
        for client in data
    }


def _digest(data: FederatedDataset, client: ClientData) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for split in SPLITS:
        examples = client.split(split)
        tensors = [examples.y, examples.group]
        if data.rows is None:
            tensors.append(examples.x)
        else:
            frame = data.rows(client.name, split)
            digest.update(repr(list(frame.columns)).encode())
            digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
        for tensor in tensors:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_same_data(before: Mapping[str, Any], data: FederatedDataset, where: str) -> None:
    """Refuse to go on with other data than those that a run began with."""
    now = data_record(data) or {}
    gone = [f"client '{name}' is gone" for name in before if name not in now]
    new = [f"client '{name}' is new" for name in now if name not in before]
    counts, values = [], []
    for name, (old, found) in ((n, (before[n], now[n])) for n in before if n in now):
        if old["rows"] != found["rows"]:
            rows = [sum(record["rows"].values()) for record in (old, found)]
            split = "" if rows[0] != rows[1] else ", dealt otherwise to train, val and test"
            counts.append(f"client '{name}' had {rows[0]} rows and has {rows[1]}{split}")
        elif old["digest"] != found["digest"]:
            values.append(f"rows of client '{name}' have other values")
    if problems := [*gone, *new, *counts, *values]:
        more = len(problems) - _NAMED
        said = "; ".join(problems[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
        raise RunFolderError(
            f"the data of '{where}' have changed since the run began: {said}; restore them, or "
            "begin a new run"
        )
