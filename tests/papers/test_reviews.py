"""The second set of reviews, made from the archive of a package."""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _module() -> Any:
    """Of `benchmarks`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("reviews", ROOT / "benchmarks" / "reviews.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reviews = _module()
LINES = b'1_1\t-0.9\tno picture.\n1_2\t0.0\tbought in "May"\n2_1\t2.35\tso good, \xe9tonnant\n'


def packed(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def test_sentences_get_the_sign_of_their_rating() -> None:
    frame = reviews.labelled(LINES)
    assert frame["text"].tolist() == ["no picture.", "so good, étonnant"]
    assert frame["label"].tolist() == [0, 1]


def test_a_file_is_found_in_an_archive_within_an_archive() -> None:
    archive = packed(reviews.INNER, packed(reviews.FILE, LINES))
    assert reviews.member(reviews.member(archive, reviews.INNER), reviews.FILE) == LINES


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "other.tar.gz", tmp_path / "reviews.csv"
    source.write_bytes(packed("a", b""))
    monkeypatch.setattr(sys, "argv", ["reviews", str(source), str(target)])
    with pytest.raises(SystemExit, match=r"other.tar.gz is not the source package"):
        reviews.main()
    assert not target.exists()
