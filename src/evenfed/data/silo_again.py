"""Silo files by the schema that a config holds, but for what a user says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from evenfed.data.silo import PLACES, SILOS, SiloSchema
from evenfed.data.silo_record import fixed
from evenfed.data.silo_types import Wanted
from evenfed.data.silos import Files, Silos, as_wanted, read_silos

_KNOWN = {f.name for f in fields(SiloSchema)}


def schema_options(entry: object) -> dict[str, Any] | None:
    """What a `[data]` says of the schema of silo files; None where it holds none.

    Examples
    --------
    >>> schema_options({"name": "silos", "label": "paid", "numeric": ["age"], "files": ["*.csv"]})
    {'label': 'paid', 'numeric': ['age'], 'files': ['*.csv']}
    >>> schema_options({"name": "loans"}) is None
    True
    """
    if not isinstance(entry, Mapping) or entry.get("name") != SILOS or "label" not in entry:
        return None
    if not entry.get("numeric") and not entry.get("categorical"):
        return None
    return {k: v for k, v in entry.items() if k in _KNOWN or k in PLACES}


def silos_again(files: Files, options: Mapping[str, Any], **given: Any) -> Silos:
    """Read files by the schema of a config; what is `given`, as to `as_wanted`, goes before it."""
    column = given.pop("client_column", options.get("client_column"))
    before = SiloSchema.of_config(options)
    wanted = fixed(before) if not given else _overridden(before, given)
    return read_silos(files, wanted, client_column=column)


def _overridden(before: SiloSchema, given: dict[str, Any]) -> Wanted:
    """The schema with what is given in place of its own; what depends on that is learnt."""
    old, said = fixed(before), as_wanted(**{"label": before.label, **given})
    new: dict[str, Any] = {name: getattr(said, name) for name in given}
    sensitive = new.setdefault("sensitive", old.sensitive)
    gone = {said.label, *said.drop, *sensitive}
    features = new.setdefault("features", tuple(c for c in old.features if c not in gone))
    used = {*features, *sensitive}
    for name, other in (("numeric", said.categorical), ("categorical", said.numeric)):
        kept = [c for c in getattr(old, name) if c in used and c not in other]
        new[name] = tuple(dict.fromkeys([*kept, *getattr(said, name)]))
    changed = {*said.numeric, *said.categorical}
    new["levels"] = {c: v for c, v in old.levels.items() if c in used and c not in changed}
    kept_policies = {c: v for c, v in old.missing.items() if c in used}
    new["missing"] = {**kept_policies, **said.missing}
    new["learnt"] = tuple(c for c in old.learnt if c in used)
    if said.label != old.label:
        new.setdefault("kind", None)
    if said.label != old.label or said.favourable is not None:
        new.setdefault("classes", ())
    return replace(old, label=said.label, **{k: v for k, v in new.items() if k != "label"})
