from __future__ import annotations

import hashlib
import io
import urllib.error
from pathlib import Path

import pytest

from evenfed.core.errors import DataError
from evenfed.data.files import Copy, cache_folder, data_folders, locate

CONTENT = b"age,paid\n30,1\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
URL = "https://example.org/toy.csv"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The named folder and the cache, both empty."""
    named = tmp_path / "named"
    monkeypatch.setenv("EVENFED_DATA", str(named))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return named, tmp_path / "cache" / "evenfed"


def write(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def serve(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(content))


def test_the_named_folder_comes_first_and_the_cache_last(folders: tuple[Path, Path]) -> None:
    assert data_folders() == list(folders)


def test_without_the_variable_a_shared_folder_beside_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("EVENFED_DATA", raising=False)
    assert data_folders() == [Path("..", "shared", "data"), cache_folder()]
    monkeypatch.chdir(tmp_path)
    assert data_folders() == [cache_folder()]


def test_a_file_with_the_right_checksum_is_found(folders: tuple[Path, Path]) -> None:
    path = write(folders[0] / "toy" / "toy.csv")
    assert locate("toy", "toy.csv", SHA256) == path


def test_another_accepted_form_is_found(folders: tuple[Path, Path]) -> None:
    path = write(folders[1] / "toy" / "toy.csv")
    assert locate("toy", "toy.csv.gz", "0" * 64, others=[Copy("toy.csv", SHA256)]) == path


def test_a_wrong_checksum_names_the_file_and_both_sums(folders: tuple[Path, Path]) -> None:
    path = write(folders[0] / "toy" / "toy.csv", b"changed")
    found = hashlib.sha256(b"changed").hexdigest()
    with pytest.raises(DataError) as caught:
        locate("toy", "toy.csv", SHA256)
    assert all(word in str(caught.value) for word in (str(path), found, SHA256))


def test_a_missing_file_says_where_it_was_looked_for_and_how_to_get_it(
    folders: tuple[Path, Path],
) -> None:
    with pytest.raises(DataError) as caught:
        locate("toy", "toy.csv", SHA256, URL, advice="Ask the bank.")
    message = str(caught.value)
    expected = [str(f / "toy" / "toy.csv") for f in folders]
    for word in [*expected, URL, "no network in tests", "EVENFED_DATA", "Ask the bank."]:
        assert word in message


def test_a_download_is_checked_and_kept_in_the_cache(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, CONTENT)
    path = locate("toy", "toy.csv", SHA256, URL)
    assert path == folders[1] / "toy" / "toy.csv"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["toy.csv"]


def test_a_wrong_download_leaves_nothing_behind(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, b"half a fi")
    with pytest.raises(DataError, match="was not kept"):
        locate("toy", "toy.csv", SHA256, URL)
    assert list((folders[1] / "toy").iterdir()) == []


def test_nothing_is_downloaded_without_leave_or_without_encryption(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, CONTENT)
    with pytest.raises(DataError, match="was not found"):
        locate("toy", "toy.csv", SHA256, URL, download=False)
    with pytest.raises(DataError, match="not https"):
        locate("toy", "toy.csv", SHA256, URL.replace("https", "http"))
