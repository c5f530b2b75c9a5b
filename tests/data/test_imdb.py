"""The reviews: dealing, encoding, a second file; and the real sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.encoders import Hashing
from evenfed.data.partition import IID
from evenfed.data.sources import imdb

ENCODE = Hashing(64)


def table(count: int, **columns: object) -> pd.DataFrame:
    words = ["dull film", "fine film"]
    made = {"text": [f"{words[i % 2]} number {i}" for i in range(count)]}
    return pd.DataFrame({**made, "label": [i % 2 for i in range(count)], **columns})


@pytest.fixture
def films(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ninety reviews in place of the sample, thirty of them in its test set."""
    path = tmp_path / "films.csv"
    table(90, split=["train"] * 60 + ["test"] * 30).to_csv(path, index=False)
    monkeypatch.setattr(imdb, "locate", lambda *_: path)
    return path


def test_words_are_counted_by_a_fixed_hash_to_vectors_of_length_one():
    one, same, other = ENCODE(["good good film", "film<br />good GOOD", "bad film"])
    assert np.allclose(one, same)
    assert not np.allclose(one, other)
    # "good" twice, "film" once, at different places: sqrt(4 + 1) divides both
    assert np.allclose(sorted(np.abs(one[one != 0])), [1 / 5**0.5, 2 / 5**0.5])


def test_every_training_review_is_dealt_once_and_the_test_set_stays_apart(films: Path):
    data = imdb.load(clients=3, partition=IID(), encoder="hashing:4096")
    assert (data.sizes("train") + data.sizes("val")).tolist() == [20, 20, 20]
    assert data.sizes("test").sum() == 30
    texts = pd.read_csv(films)["text"]
    expected = torch.from_numpy(Hashing(4096)(texts[:60].tolist()))
    dealt = torch.cat([part.x for c in data for part in (c.train, c.val)])
    assert torch.equal(dealt.unique(dim=0), expected.unique(dim=0))
    held = torch.cat([c.test.x for c in data])
    assert torch.equal(
        held.unique(dim=0),
        torch.from_numpy(Hashing(4096)(texts[60:].tolist())).unique(dim=0),
    )


def test_labels_stay_with_their_reviews(films: Path):
    fine, dull = (Hashing(4096)([word])[0] != 0 for word in ("fine", "dull"))
    for client in imdb.load(clients=2, partition=IID(), encoder="hashing:4096"):
        for part in (client.train, client.val, client.test):
            assert torch.equal((part.x[:, fine] != 0).any(1), part.y == 1)
            assert torch.equal((part.x[:, dull] != 0).any(1), part.y == 0)


def test_the_seed_decides_who_has_which_review(films: Path):
    first, same, other = (imdb.load(clients=3, seed=s) for s in (0, 0, 1))
    assert torch.equal(first.client(0).train.x, same.client(0).train.x)
    assert not torch.equal(first.client(0).train.y, other.client(0).train.y)


def test_other_reviews_are_a_cluster_of_their_own_with_clients_as_large(
    films: Path, tmp_path: Path
):
    path = tmp_path / "others.csv.gz"
    table(600).to_csv(path, index=False)
    data = imdb.load(others=path, val=0.0)
    assert data.clusters == (0,) * 7 + (1,) * 3
    assert data.names[0].startswith("other")
    assert data.names[-1].startswith("imdb")
    sizes = data.sizes("train")
    assert sizes is not None
    assert sizes.tolist() == [20] * 10


def test_a_small_second_file_is_used_whole(films: Path, tmp_path: Path):
    path = tmp_path / "others.parquet"
    table(60).to_parquet(path)
    data = imdb.load(others=path, val=0.0, other_clients=4, clients=2)
    # two of three reviews are for training: 40 of 60
    assert data.sizes("train").tolist() == [10] * 4 + [30] * 2


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (table(3).drop(columns="text"), "no column 'text'"),
        (table(3, label=[0, 1, 5]), "must be 0 or 1 and is not in row 2"),
        (table(3, text=["a", None, "c"]), "'text' is missing in row 1"),
        (table(3, split=["train", "dev", "test"]), "must be train or test"),
    ],
)
def test_a_second_file_that_does_not_fit_is_refused_by_column_and_row(
    made: pd.DataFrame, message: str, tmp_path: Path
):
    path = tmp_path / "others.csv"
    made.to_csv(path, index=False)
    with pytest.raises(DataError, match=message):
        imdb.read_reviews(path)
    with pytest.raises(DataError, match="cannot be read"):
        imdb.read_reviews(tmp_path / "none.csv")


def test_options_out_of_range_are_refused(films: Path):
    with pytest.raises(ConfigError, match=r"examples must be in 1\.\.60"):
        imdb.load(examples=61)
    with pytest.raises(ConfigError, match="val is a share"):
        imdb.load(val=1.0)
    with pytest.raises(ConfigError, match="cannot read encoder 'hash'"):
        imdb.load(encoder="hash")


@pytest.mark.data
def test_the_sample_is_whole_and_balanced(needs):
    needs("imdb/imdb_12k.csv.gz")
    path = imdb.locate("imdb", *imdb.FILE)
    reviews = imdb.read_reviews(path)
    # 4,000 of each class for training, 2,000 for testing
    assert np.bincount(reviews.label[~reviews.held]).tolist() == [4000, 4000]
    assert np.bincount(reviews.label[reviews.held]).tolist() == [2000, 2000]
    assert len(set(reviews.texts)) == 12_000 - 25
    data = imdb.load(clients=3, partition=IID(), examples=600, encoder="hashing:256")
    assert data.schema.shape == (256,)
    assert (data.sizes("train") + data.sizes("val")).tolist() == [200, 200, 200]
    assert data.sizes("test").sum() == 300
