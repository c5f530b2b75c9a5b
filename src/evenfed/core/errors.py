"""Every error that Evenfed raises on purpose, under one root.

The message says what was wrong, where, and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn


class EvenfedError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(EvenfedError):
    """An option, a name or a combination of options that cannot be used."""


class ConfigProblemsError(ConfigError):
    """Several options that cannot be used, a line each, in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = [f"{len(self.problems)} settings cannot be used"]
        super().__init__("\n".join([*lines, *(f"- {problem}" for problem in self.problems)]))


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


def refuse(problems: Iterable[str]) -> NoReturn:
    """Raise one error for all: a line where there is one problem, else a list."""
    found = list(dict.fromkeys(problems))
    raise ConfigError(found[0]) if len(found) == 1 else ConfigProblemsError(found)


def complaints(*checks: Callable[[], object]) -> list[str]:
    """What is wrong by any of the checks, each of which raises `ConfigError`.

    Examples
    --------
    >>> complaints(lambda: refuse(["a", "b"]), lambda: 1, lambda: refuse(["c"]))
    ['a', 'b', 'c']
    """
    found: list[str] = []
    for check in checks:
        try:
            check()
        except ConfigProblemsError as error:
            found += error.problems
        except ConfigError as error:
            found.append(str(error))
    return found


_LISTED = 12
"""Known words that a message names all; of more it names the nearest."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known word, or the known words.

    Of a dotted word the last part may be near, too.

    Examples
    --------
    >>> suggest("fedavgg", ["fedavg", "scaffold"])
    " Did you mean 'fedavg'?"
    >>> suggest("epoch", ["local.epochs", "q"])
    " Did you mean 'local.epochs'?"
    """
    words = sorted(known)
    near = difflib.get_close_matches(word, words, n=1)
    if not near:
        last = {each.rpartition(".")[2]: each for each in reversed(words)}
        near = [last[match] for match in difflib.get_close_matches(word, last, n=1)]
    if near:
        return f" Did you mean '{near[0]}'?"
    if len(words) > _LISTED:
        some = difflib.get_close_matches(word, words, n=5, cutoff=0.0)
        return f" Nearest of {len(words)} known: {', '.join(some)}."
    return f" Known: {', '.join(words)}." if words else ""
