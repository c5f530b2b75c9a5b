"""A second set of reviews for FOCUS's text table: sentences of customers' reviews of products.

Hutto and Gilbert (ICWSM 2014) had 3,708 sentences of 309 reviews at Amazon rated from -4 to 4 by
twenty people each. Their source package of VADER (MIT licence) has them:

    $ pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    $ python -m benchmarks.reviews vaderSentiment-3.3.2.tar.gz reviews.csv
    $ evenfed paper focus --table table1_text --reviews reviews.csv

The label is 1 where the mean rating is above 0 and 0 where it is below; sentences of exactly 0 are
left out.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pandas as pd

ARCHIVE = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
FILE = "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt"


def member(archive: bytes, name: str) -> bytes:
    """A file of a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = tar.extractfile(name)
        assert found is not None
        return found.read()


def labelled(rated: bytes) -> pd.DataFrame:
    """Columns `text` and `label` from lines of id, mean rating and sentence."""
    lines = pd.read_csv(
        io.BytesIO(rated), sep="\t", names=["id", "rating", "text"], quoting=csv.QUOTE_NONE,
        encoding="latin-1",
    )  # fmt: skip
    lines = lines[lines["rating"] != 0]
    return pd.DataFrame({"text": lines["text"], "label": (lines["rating"] > 0).astype(int)})


def main() -> None:
    """Write the reviews; see the module."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    archive = source.read_bytes()
    if hashlib.sha256(archive).hexdigest() != ARCHIVE:
        sys.exit(f"{source} is not the source package of vaderSentiment 3.3.2")
    reviews = labelled(member(member(archive, INNER), FILE))
    reviews.to_csv(target, index=False)
    print(f"{target}: {len(reviews)} sentences, {reviews['label'].mean():.1%} positive")


if __name__ == "__main__":
    main()
