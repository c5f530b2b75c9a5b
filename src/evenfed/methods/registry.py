"""Finds the methods: named ones in the modules of this package, and registered ones."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import types
import typing
from collections.abc import Sequence
from typing import Any

from evenfed.core.errors import ConfigError, complaints, refuse, suggest
from evenfed.methods.base import Method

_registered: dict[str, type[Method]] = {}
_searched = False


def register(cls: type[Method]) -> type[Method]:
    """Add a method from outside this package, as a class decorator."""
    _check(cls)
    _registered[cls.name] = cls
    return cls


def methods() -> dict[str, type[Method]]:
    """All methods by name.

    Examples
    --------
    >>> "fedavg" in methods()
    True
    """
    global _searched
    if not _searched:
        package = importlib.import_module("evenfed.methods")
        for module in pkgutil.iter_modules(package.__path__):
            found = importlib.import_module(f"evenfed.methods.{module.name}")
            for value in vars(found).values():
                own = isinstance(value, type) and value.__module__ == found.__name__
                if own and issubclass(value, Method) and "name" in vars(value):
                    register(value)
        _searched = True
    return dict(sorted(_registered.items()))


def _check(cls: type[Method]) -> None:
    for attribute in ("name", "title", "paper", "reveals"):
        if not hasattr(cls, attribute):
            raise ConfigError(f"method {cls.__name__} does not declare '{attribute}'")
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"method {cls.__name__} must be a frozen dataclass")


def method_named(name: str) -> type[Method]:
    """The class of a method, or an error with the nearest name."""
    known = methods()
    if name not in known:
        raise ConfigError(f"method '{name}' is unknown.{suggest(name, known)}")
    return known[name]


def build(name: str, options: dict[str, Any] | None = None, beside: Sequence[str] = ()) -> Method:
    """A method with options by (dotted) name; a bare name may also be one of `local`.

    `preset` names a set of options of the method; those given beside it win. All options that
    cannot be are refused at once; `beside` are words that may have been meant, too.

    Examples
    --------
    >>> build("fedprox", {"mu": 0.1, "local.lr": 0.5}).local.lr
    0.5
    """
    cls = method_named(name)
    given = dict(options or {})
    if "preset" in given:
        preset = str(given.pop("preset"))
        if preset not in cls.presets:
            known = ", ".join(f"'{p}'" for p in cls.presets) or "none"
            raise ConfigError(f"method '{name}' has no preset {preset!r}; it has {known}")
        given = cls.presets[preset] | given
    method: Method = construct(cls, given, f"method '{name}'", beside=beside)
    return method


def nested(cls: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted and bare option names into nested dicts of the fields of `cls`."""
    own = {f.name for f in dataclasses.fields(cls) if f.init}
    shared = _fields(_field_type(cls, "local")) if "local" in own else {}
    result: dict[str, Any] = {}
    for key, value in options.items():
        head, _, tail = key.partition(".")
        if head in shared and head not in own:
            result.setdefault("local", {})[key] = value
        elif tail:
            result.setdefault(head, {})[tail] = value
        elif head in own:
            if isinstance(value, dict):
                result.setdefault(head, {}).update(value)
            else:
                result[head] = value
        else:
            result[head] = value
    return result


def _fields(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


def _field_type(cls: Any, name: str) -> Any:
    return typing.get_type_hints(cls)[name]


def option_names(cls: type[Any], prefix: str = "") -> list[str]:
    """Dotted names of all options."""
    names: list[str] = []
    for name, hint in _fields(cls).items():
        if dataclasses.is_dataclass(hint):
            names += option_names(typing.cast(type[Any], hint), f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def _default(cls: Any, name: str) -> Any:
    found = next(f for f in dataclasses.fields(cls) if f.name == name)
    if found.default_factory is not dataclasses.MISSING:
        return found.default_factory()
    return found.default


def construct(
    cls: Any,
    options: dict[str, Any],
    where: str,
    prefix: str = "",
    base: Any = None,
    beside: Sequence[str] = (),
) -> Any:
    """An instance of `cls`; what is not given is that of `base`, or the default of `cls`."""
    problems: list[str] = []
    hints = _fields(cls)
    values: dict[str, Any] = {} if base is None else {f: getattr(base, f) for f in hints}
    for name, value in nested(cls, options).items():
        if name not in hints:
            known = [*option_names(cls, prefix), *beside]
            said = suggest(prefix + name, known)
            problems.append(f"{where} has no option '{prefix}{name}'.{said}")
            continue
        hint = hints[name]

        def made(name: str = name, value: Any = value, hint: Any = hint) -> None:
            if dataclasses.is_dataclass(hint) and isinstance(value, dict):
                # what is not given keeps the method's own default, not that of the nested class
                inner = getattr(base, name) if base is not None else _default(cls, name)
                values[name] = construct(hint, value, where, f"{prefix}{name}.", inner)
            else:
                values[name] = _coerce(value, hint, f"{where}: option '{prefix}{name}'")

        problems += complaints(made)
    if problems:
        refuse(problems)
    return cls(**values)


def _coerce(value: Any, hint: Any, where: str) -> Any:
    """Accept a value of the field's type; an int for a float; a string from a command line."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value in choices:
            return value
        raise ConfigError(f"{where} is {value!r}; it may be {', '.join(map(repr, choices))}")
    if origin in (types.UnionType, typing.Union):
        for option in typing.get_args(hint):
            try:
                return _coerce(value, option, where)
            except ConfigError:
                continue
        raise ConfigError(f"{where} is {value!r}, which is not {hint}")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if origin is tuple and isinstance(value, list | tuple):
        item = typing.get_args(hint)[0]
        return tuple(_coerce(v, item, where) for v in value)
    if hint in (int, bool, str, type(None)) and type(value) is hint:
        return value
    expected = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{where} is {value!r}; it must be of type {expected}")
