"""Where data files are found, and how they are checked and fetched.

A file is read only if its SHA-256 is one that was named beforehand: a result must never
rest on data that are not those it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenfed.core.errors import DataError

VARIABLE = "EVENFED_DATA"
TIMEOUT = 20.0
"""Seconds without an answer after which a download is given up."""


@dataclass(frozen=True)
class Copy:
    """One acceptable form of a data file.

    Parameters
    ----------
    name : str
        File name inside the dataset's folder.
    sha256 : str
        Hexadecimal digest of the file as it lies on disk.
    url : str, optional
        Public https address of exactly these bytes.
    """

    name: str
    sha256: str
    url: str | None = None


def cache_folder() -> Path:
    """Folder of this user's downloads: `$XDG_CACHE_HOME/evenfed`, or `~/.cache/evenfed`.

    Examples
    --------
    >>> cache_folder().name
    'evenfed'
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "evenfed"


def data_folders() -> list[Path]:
    """Folders in which data files are looked for, in order.

    First `$EVENFED_DATA`; without it `../shared/data` where that exists; last the
    cache, into which downloads go.

    Examples
    --------
    >>> data_folders()[-1] == cache_folder()
    True
    """
    named = os.environ.get(VARIABLE)
    shared = Path("..", "shared", "data")
    if named:
        return [Path(named), cache_folder()]
    return [shared, cache_folder()] if shared.is_dir() else [cache_folder()]


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Examples
    --------
    >>> import os
    >>> checksum(Path(os.devnull))[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def locate(
    dataset: str,
    filename: str,
    sha256: str,
    url: str | None = None,
    *,
    others: Sequence[Copy] = (),
    advice: str = "",
    download: bool = True,
) -> Path:
    """Path of a data file whose checksum is right, downloaded if need be.

    Parameters
    ----------
    dataset : str
        Name of the dataset: the folder of the file in each of `data_folders()`.
    filename, sha256, url : str
        The preferred form of the file.
    others : sequence of Copy
        Other acceptable forms, e.g. the uncompressed original.
    advice : str
        How to get the file where no address is known.
    download : bool
        Whether to fetch a file that is not there from its address.

    Returns
    -------
    Path

    Raises
    ------
    DataError
        If the file is nowhere, or is not the one that was asked for.

    Examples
    --------
    >>> locate("none", "none.csv", "0" * 64)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    evenfed.core.errors.DataError: dataset 'none': file 'none.csv' was not found. Looked for: ...
    """
    copies = [Copy(filename, sha256, url), *others]
    places = [(folder / dataset / copy.name, copy) for folder in data_folders() for copy in copies]
    for path, copy in places:
        if path.is_file():
            found = checksum(path)
            if found != copy.sha256:
                raise DataError(
                    f"dataset '{dataset}': file '{path}' is not the expected one: its sha256 is "
                    f"{found}, expected {copy.sha256}. Replace it, or remove it."
                )
            return path
    failures = []
    if download:
        for copy in copies:
            if copy.url is not None:
                try:
                    return _fetch(dataset, copy)
                except OSError as error:
                    failures.append(f"Downloading {copy.url} failed: {error}.")
    raise DataError(_missing(dataset, filename, [p for p, _ in places], copies, advice, failures))


def _missing(
    dataset: str,
    filename: str,
    places: Sequence[Path],
    copies: Sequence[Copy],
    advice: str,
    failures: Sequence[str],
) -> str:
    looked = ", ".join(str(path) for path in places)
    urls = ", ".join(copy.url for copy in copies if copy.url is not None)
    parts = [
        f"dataset '{dataset}': file '{filename}' was not found. Looked for: {looked}.",
        *failures,
        f"Put the file there, or set {VARIABLE} to the folder that holds '{dataset}/{filename}'.",
    ]
    if urls:
        parts.append(f"It can be had from {urls}.")
    if advice:
        parts.append(advice)
    return " ".join(parts)


def _fetch(dataset: str, copy: Copy) -> Path:
    """Download into the cache; the file appears under its name only once it is whole and right."""
    assert copy.url is not None
    if not copy.url.startswith("https://"):
        raise DataError(f"dataset '{dataset}': will not download from '{copy.url}': not https")
    folder = cache_folder() / dataset
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{copy.name}.")
    part = Path(name)
    try:
        with (
            os.fdopen(handle, "wb") as file,
            urllib.request.urlopen(copy.url, timeout=TIMEOUT) as reply,
        ):
            while block := reply.read(1 << 20):
                file.write(block)
        found = checksum(part)
        if found != copy.sha256:
            raise DataError(
                f"dataset '{dataset}': {copy.url} gave a file with sha256 {found}, "
                f"expected {copy.sha256}; it was not kept"
            )
        target = folder / copy.name
        part.replace(target)
        return target
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
