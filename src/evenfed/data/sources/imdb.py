"""IMDb: whether a film review praises or damns; alone, or beside reviews of another kind.

With `others`, the text task of FOCUS (Chu et al. 2022): clients with film reviews are a cluster of
their own beside clients with the reviews of a file that the user names.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError
from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Schema
from evenfed.data.encoders import Encoder, encoder_of
from evenfed.data.files import locate
from evenfed.data.partition import IID, Dirichlet, Partitioner, PartitionInput, Rows
from evenfed.data.registry import SourceInfo
from evenfed.data.split import follow_mix, split_rows

INFO = SourceInfo(
    name="imdb",
    title="12,000 film reviews, positive or negative",
    kind="binary",
    clients="a partition of the reviews: Dirichlet over labels unless another is given; with "
    "`others` three clients, and seven with reviews of another kind",
    needs="data files",
    source="Maas et al.: Learning Word Vectors for Sentiment Analysis, ACL 2011",
    terms="none stated with the file; cite Maas et al. 2011",
    notes=(
        "a sample: 8,000 of 25,000 training and 4,000 of 25,000 test reviews",
        "25 texts are there twice, as in the source",
    ),
)

FILE = ("imdb_12k.csv.gz", "fb5d69c7614ff0c341f7867ec9fe9a88fea8166e20d1a49db93cb585d0815492")
CLASSES = ("negative", "positive")
CLIENTS, FILM_CLIENTS = 10, 3


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    encoder: str = "hashing:2048",
    others: str | Path | None = None,
    other_clients: int = 7,
    val: float = 0.1,
    examples: int | None = None,
) -> FederatedDataset:
    """Load the reviews as vectors.

    Parameters
    ----------
    clients : int, optional
        Clients with film reviews: 10, or 3 beside `others`.
    partition : Partitioner, optional
        Of the film reviews: Dirichlet over labels, or even and random beside `others`.
    seed : int
    encoder : str
        "hashing:D", a bag of words in D places by a fixed hash, of length 1, which learns nothing
        from the texts; "sentence-transformers:MODEL", with that package installed; or
        "package:NAME", the model that an installed package of that name carries.
    others : path, optional
        CSV (.gz too) or Parquet file with columns `text` and `label` (0 or 1). It is dealt evenly
        to `other_clients`, as many reviews to each as a client with film reviews has on average,
        or all if it has fewer.
    other_clients : int
        How many; they come first, as cluster 0.
    val : float
        Share of a client's training reviews kept for validation.
    examples : int, optional
        Use only so many training reviews of films, drawn by the seed, and as large a share of
        the test reviews.

    Examples
    --------
    >>> load(clients=3, partition=IID(), examples=600)  # doctest: +SKIP
    """
    if not 0 <= val < 1:
        raise ConfigError(f"val is a share in [0, 1), not {val}")
    encode = encoder_of(encoder)
    films = _subsampled(read_reviews(locate("imdb", *FILE)), examples, seed)
    count = (CLIENTS if others is None else FILM_CLIENTS) if clients is None else clients
    if others is None:
        made = deal(films, partition or Dirichlet("label", 0.5), count, seed, encode, val)
        clusters = None
    else:
        made = deal(films, partition or IID(), count, seed, encode, val, "imdb")
        second = _cut(read_reviews(Path(others)), films, other_clients / count, seed)
        made = [*deal(second, IID(), other_clients, seed, encode, val, "other"), *made]
        clusters = [0] * other_clients + [1] * count
    shape = (made[0].train.x.shape[1],)
    schema = Schema(
        "imdb", "binary", 2, shape, label="sentiment", class_names=CLASSES, notes=INFO.notes
    )
    return FederatedDataset(schema, made, clusters=clusters)


@dataclass(frozen=True)
class Reviews:
    """Texts with labels `(n,)`; `held` marks those of the test set."""

    texts: NDArray[np.object_]
    label: Rows
    held: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: Rows) -> Reviews:
        """The reviews at `rows`."""
        return Reviews(self.texts[rows], self.label[rows], self.held[rows])


def read_reviews(path: Path) -> Reviews:
    """Read a table with columns `text`, `label` and perhaps `split` (train, test).

    Without `split`, every third review is of the test set, as in IMDb's sample.
    """
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError, pd.errors.ParserError, gzip.BadGzipFile) as error:
        raise DataError(f"reviews '{path}': cannot be read as CSV or Parquet") from error
    for column in ("text", "label"):
        if column not in table:
            raise DataError(f"reviews '{path}': there is no column '{column}'")
        if table[column].isna().any():
            row = int(table[column].isna().to_numpy().argmax())
            raise DataError(f"reviews '{path}': '{column}' is missing in row {row}")
    label = pd.to_numeric(table["label"], errors="coerce").to_numpy()
    if not np.isin(label, (0, 1)).all():
        row = int((~np.isin(label, (0, 1))).argmax())
        raise DataError(f"reviews '{path}': 'label' must be 0 or 1 and is not in row {row}")
    held = np.arange(len(table)) % 3 == 2
    if "split" in table:
        held = (table["split"] == "test").to_numpy()
        if not (held | (table["split"] == "train").to_numpy()).all():
            raise DataError(f"reviews '{path}': 'split' must be train or test")
    return Reviews(table["text"].astype(str).to_numpy(object), label.astype(np.int64), held)


def deal(
    reviews: Reviews, partition: Partitioner, clients: int, seed: int, encode: Encoder, val: float,
    prefix: str = "",
) -> list[ClientData]:  # fmt: skip
    """Deal training reviews by the partition, and test reviews by the clients' mix of labels."""
    train, test = (reviews.take(np.flatnonzero(reviews.held == held)) for held in (False, True))
    x = [torch.from_numpy(encode(part.texts.tolist())) for part in (train, test)]
    y = [torch.from_numpy(part.label) for part in (train, test)]
    rows = PartitionInput(train.label, np.zeros(len(train), np.int64))
    parts = partition.assign(rows, clients, seed)
    tests = follow_mix(train.label, parts, test.label, seed)
    made = []
    for k, name in enumerate(partition.names(rows, len(parts))):
        rest, (held,) = split_rows(parts[k], (val,), np.random.default_rng((seed, 2, k)))
        splits = [
            Examples.of(x[which][index], y[which][index])
            for which, index in ((0, rest), (0, held), (1, tests[k]))
        ]
        made.append(ClientData(name.replace("client", prefix or "client"), *splits))
    return made


def _subsampled(reviews: Reviews, examples: int | None, seed: int) -> Reviews:
    if examples is None:
        return reviews
    whole = int((~reviews.held).sum())
    if not 1 <= examples <= whole:
        raise ConfigError(f"examples must be in 1..{whole}, not {examples}")
    return _share(reviews, examples / whole, seed, 3)


def _cut(reviews: Reviews, films: Reviews, times: float, seed: int) -> Reviews:
    """At most `times` as many reviews as there are of films, in both sets."""
    if not times > 0:
        raise ConfigError("other_clients and clients must be at least 1")
    share = times * len(films) / len(reviews)
    return reviews if share >= 1 else _share(reviews, share, seed, 4)


def _share(reviews: Reviews, share: float, seed: int, purpose: int) -> Reviews:
    rng = np.random.default_rng((seed, purpose))
    kept = []
    for held in (False, True):
        rows = np.flatnonzero(reviews.held == held)
        kept.append(rng.permutation(rows)[: max(1, round(share * len(rows)))])
    return reviews.take(np.sort(np.concatenate(kept)))
