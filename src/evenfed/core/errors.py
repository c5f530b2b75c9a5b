"""Every error that Evenfed raises on purpose, under one root.

The message says what was wrong, where, and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvenfedError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(EvenfedError):
    """An option, a name or a combination of options that cannot be used."""


class NotApplicableError(ConfigError):
    """A method that does not fit the data or the model at all, whatever its options."""


class DataError(EvenfedError):
    """Data that cannot be used; names the file, column, row or client."""


class ModelError(EvenfedError):
    """A model that cannot be trained here; names the layer and the remedy."""


class ClientError(EvenfedError):
    """A client function failed; names the client."""


class QuorumError(EvenfedError):
    """Too few clients answered in an exchange."""


class RunFolderError(EvenfedError):
    """A run folder that cannot be read or written."""


def counted(n: int, noun: str) -> str:
    """A number and its noun: "1 row", "2 rows".

    Examples
    --------
    >>> counted(1, "client"), counted(0, "round")
    ('1 client', '0 rounds')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known word, or all known words.

    Examples
    --------
    >>> suggest("fedavgg", ["fedavg", "scaffold"])
    " Did you mean 'fedavg'?"
    """
    words = sorted(known)
    near = difflib.get_close_matches(word, words, n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Known: {', '.join(words)}." if words else ""
