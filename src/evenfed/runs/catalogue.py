"""What there is: methods and datasets in plain values, for people and programs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from evenfed.data.files import data_folders
from evenfed.data.registry import COMMON, source_options, sources
from evenfed.methods.base import Method
from evenfed.methods.registry import build, method_named, methods
from evenfed.runs.config import asdict_options


def method_card(name: str) -> dict[str, Any]:
    """A method: paper, hyperparameters with their defaults, what it reveals.

    Examples
    --------
    >>> method_card("fedprox")["hyperparameters"]["mu"]
    0.01
    """
    cls: type[Method] = method_named(name)
    options: dict[str, Any] = {}
    for option, value in asdict_options(build(name)).items():
        if isinstance(value, dict):
            options |= {f"{option}.{inner}": v for inner, v in value.items()}
        else:
            options[option] = value
    return {
        "name": name,
        "title": cls.title,
        "paper": cls.paper,
        "exchanges": cls.exchanges,
        "personal": cls.personal,
        "needs": list(cls.needs),
        "hyperparameters": {
            option: _finite(value)
            for option, value in sorted(options.items(), key=lambda item: "." in item[0])
        },
        "grid": {option: [_finite(v) for v in values] for option, values in cls.grid.items()},
        "presets": cls.presets,
        "reveals": [asdict(reveal) for reveal in cls.reveals],
    }


def _finite(value: Any) -> Any:
    """A value as JSON can hold it; infinity by name."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def method_cards() -> list[dict[str, Any]]:
    """All methods.

    Examples
    --------
    >>> "fedavg" in [card["name"] for card in method_cards()]
    True
    """
    return [method_card(name) for name in methods()]


def dataset_card(name: str) -> dict[str, Any]:
    """A dataset: clients, sensitive columns, whether its files are there, notes, options.

    Examples
    --------
    >>> dataset_card("loans")["files"]
    'needs none'
    """
    options = {k: _shown(v) for k, v in source_options(name).items()}
    info = sources()[name]
    return {
        "name": name,
        "title": info.title,
        "kind": info.kind,
        "clients": info.clients,
        "sensitive": list(info.sensitive),
        "needs": info.needs,
        "files": _files(name, info.needs),
        "source": info.source,
        "terms": info.terms,
        "options": dict.fromkeys(COMMON[:2]) | options,
        "notes": list(info.notes),
    }


def dataset_cards() -> list[dict[str, Any]]:
    """All datasets."""
    return [dataset_card(name) for name in sources()]


def _shown(value: object) -> Any:
    """What JSON can hold, as it is; anything else as text."""
    if isinstance(value, tuple | list):
        return [_shown(v) for v in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def _files(name: str, needs: str) -> str:
    """Where the files seem to be; whether they are the right ones is checked when they are read."""
    if needs == "nothing":
        return "needs none"
    for folder in data_folders():
        if (folder / name).is_dir() and any((folder / name).iterdir()):
            return f"found in {folder / name}, checked when loaded"
    if needs == "Debian package":
        return "not in the data folders; a Debian package may hold them"
    return "not found; looked in " + ", ".join(str(folder / name) for folder in data_folders())
