"""Finds the data sources: every module of `evenfed.data.sources` is one.

A source is one file with `INFO`, a `SourceInfo`, and
`load(*, clients=None, partition=None, seed=0, ...) -> FederatedDataset`. Its own options
are keyword parameters of `load`, so that a wrong one is refused by name.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal, cast

import evenfed.data.sources
from evenfed.core.errors import ConfigError, refuse, suggest
from evenfed.data.dataset import FederatedDataset, Kind
from evenfed.data.partition import Partitioner, parse_partition

if TYPE_CHECKING:
    Loader = Callable[..., FederatedDataset]

COMMON = ("clients", "partition", "seed")


@dataclass(frozen=True)
class SourceInfo:
    """What a reader should know of a source before loading it.

    Parameters
    ----------
    name : str
        The word used on the command line; the module's name.
    title : str
        One line.
    kind : {"binary", "multiclass", "regression"}
    clients : str
        What a client is.
    sensitive : tuple of str
        Sensitive attributes on offer; empty where there is no natural group.
    needs : {"nothing", "data files", "Debian package"}
    source : str
        Citation or origin.
    terms : str
        Licence or terms of use, as the origin states them.
    notes : tuple of str
        Known problems.
    """

    name: str
    title: str
    kind: Kind
    clients: str
    sensitive: tuple[str, ...] = ()
    needs: Literal["nothing", "data files", "Debian package"] = "nothing"
    source: str = ""
    terms: str = ""
    notes: tuple[str, ...] = ()


def source_names() -> list[str]:
    """Names of all sources, sorted, without importing any.

    Examples
    --------
    >>> "synthetic" in source_names()
    True
    """
    found = pkgutil.iter_modules(evenfed.data.sources.__path__)
    return sorted(module.name for module in found if not module.name.startswith("_"))


def sources() -> dict[str, SourceInfo]:
    """Describe every source, by name.

    Examples
    --------
    >>> sources()["digits"].kind
    'multiclass'
    """
    return {name: cast(SourceInfo, _module(name).INFO) for name in source_names()}


def source_title(name: str) -> str:
    """What a source is, in one line; nothing for data that are none.

    Examples
    --------
    >>> source_title("digits"), source_title("my own")
    ('1,797 handwritten digits, 8 x 8', '')
    """
    return cast(SourceInfo, _module(name).INFO).title if name in source_names() else ""


def source_options(name: str) -> dict[str, object]:
    """Options of a source beside `clients`, `partition` and `seed`, with their defaults.

    Examples
    --------
    >>> source_options("linear")["sigma"]
    0.1
    """
    parameters = inspect.signature(_loader(name)).parameters.values()
    return {
        p.name: p.default for p in parameters if p.name not in COMMON and p.kind != p.VAR_KEYWORD
    }


def load(
    name: str,
    *,
    clients: int | None = None,
    partition: Partitioner | str | None = None,
    seed: int = 0,
    **options: object,
) -> FederatedDataset:
    """Load a source by name.

    Parameters
    ----------
    name : str
        A key of `sources()`.
    clients : int, optional
        Number of clients; None for the source's own.
    partition : Partitioner or str, optional
        How examples are dealt to clients, e.g. `Dirichlet("label", alpha=0.5)` or
        `"dirichlet:label:0.5"`; None for the source's own.
    seed : int
        Seeds the partition and, where a source draws data, the draw.
    **options
        Options of the source, see `source_options`.

    Returns
    -------
    FederatedDataset

    Examples
    --------
    >>> len(load("digits", clients=5, partition="iid"))
    5
    """
    check_options(name, options)
    if isinstance(partition, str):
        partition = parse_partition(partition)
    return _loader(name)(clients=clients, partition=partition, seed=seed, **options)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse a source that does not exist, and options that it does not have."""
    allowed = source_options(name)
    known = [*COMMON, *allowed]
    wrong = []
    for option in options:
        if option not in allowed:
            hint = suggest(option, known)
            hint = hint if "Did you mean" in hint else ""
            wrong.append(
                f"dataset '{name}' has no option '{option}'.{hint} It accepts: {', '.join(known)}."
            )
    if wrong:
        refuse(wrong)


def _module(name: str) -> ModuleType:
    known = source_names()
    if name not in known:
        raise ConfigError(f"there is no dataset '{name}'.{suggest(name, known)}")
    return importlib.import_module(f"evenfed.data.sources.{name}")


def _loader(name: str) -> Loader:
    return cast("Loader", _module(name).load)
