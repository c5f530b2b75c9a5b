"""How a client function is named in a message, and found again at a node.

A message holds names and plain options. A node looks them up in its own installed package: a
method in the registry, a client function among the method's own, by name and by the contract's
four arguments. What a function sends is checked against the method's `reveals` before it leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.core.tree import Tree
from evenfed.engines.exchange import ClientFunction, DrawFunction, Work
from evenfed.methods.base import Method
from evenfed.methods.preferred import Preferred
from evenfed.methods.registry import build, construct, methods
from evenfed.runs.config import asdict_options
from evenfed.runs.fronts import MODELS

SUMS = 16
"""Sums over examples that an upload may hold a group and label, beside two a feature."""
_CLIENT = ["self", "broadcast", "state", "data", "draws"]
_DRAW = ["self", "generator", "state", "size"]


class CallError(ConfigError):
    """A name that a node does not know, or an upload that was not declared."""


def described(work: Work) -> dict[str, Any]:
    """The method, client function and draws of an exchange, by name."""
    method = getattr(work.function, "__self__", None)
    if not isinstance(method, Method) or methods().get(method.name) is not type(method):
        raise ConfigError(
            f"'{work.name}' cannot run on engine 'flower': nodes know the client functions of "
            "registered methods only"
        )
    client_function(method, work.name)
    return {
        "method": _table(method),
        "function": work.name,
        "draws": None if work.draws is None else _draws(work.draws),
    }


def _table(method: Method) -> dict[str, Any]:
    return {"name": method.name, "options": asdict_options(method)}


def _draws(draws: DrawFunction) -> dict[str, Any]:
    owner, name = getattr(draws, "__self__", None), getattr(draws, "__name__", "")
    if isinstance(owner, Method):
        return {"method": _table(owner), "name": name}
    if isinstance(owner, LocalTraining):
        return {"local": asdict(owner), "name": name}
    raise ConfigError(
        f"draws '{name}' cannot be made at a node of engine 'flower': they are no method of a "
        "registered method"
    )


def built(table: Any) -> Method:
    """The method that a message names."""
    match table:
        case {"name": str(name), "options": dict(options)}:
            return build(name, options)
    raise CallError("a message names no method with its options")


def client_function(method: Method, name: Any) -> ClientFunction:
    """A client function of a method by its name."""
    return _named(method, name, _CLIENT, f"method '{method.name}' has no client function")  # type: ignore[no-any-return]


def draw_function(table: Any, bind: Callable[[Any], Method]) -> DrawFunction | None:
    """The draws that a message names; `bind` gives the bound method of a method's table."""
    match table:
        case None:
            return None
        case {"method": dict(owner), "name": str(name)}:
            method = bind(owner)
            return _named(method, name, _DRAW, f"method '{method.name}' has no draws")  # type: ignore[no-any-return]
        case {"local": dict(options), "name": str(name)}:
            local = construct(LocalTraining, options, "draws")
            return _named(local, name, _DRAW, "local training has no draws")  # type: ignore[no-any-return]
    raise CallError("a message names no draws that are known here")


def _named(owner: Any, name: Any, parameters: list[str], complaint: str) -> Any:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise CallError(f"{complaint} of that name")
    function = inspect.getattr_static(type(owner), name, None)
    if not inspect.isfunction(function) or list(inspect.signature(function).parameters) != (
        parameters
    ):
        raise CallError(f"{complaint} '{name}'")
    return getattr(owner, name)


@dataclass(frozen=True)
class Asked:
    """A call as far as the size of its upload depends on it.

    Parameters
    ----------
    features : int
        Numbers of one example.
    """

    function: str
    broadcast: Tree = ()
    state: Tree = ()
    features: int = 0

    def most(self, method: Method, size: str) -> int:
        """The most numbers that a part of a declared size may have; never by examples."""
        model, task = _numbers(method.first), method.task
        cells = task.groups * task.classes
        moments = 11 if task.kind == "regression" else 6  # see `Counts`
        limits = {
            "model": method.models * model,
            "square": model * model,
            "part": model,
            "scalar": method.models,
            # by group, label and prediction, losses by group and label, moments by group
            "counts": self.models(method) * (cells * task.classes + cells + moments * task.groups),
            "sums": SUMS * cells + 2 * self.features + 1,
            # a network beside the model is one that the client keeps, or that was sent to it
            "network": max(_numbers(self.state), _numbers(self.broadcast)),
        }
        return limits.get(size, 0)

    def models(self, method: Method) -> int:
        """Models that counts are asked about: one a preference for a front, no more than it has."""
        if isinstance(method, Preferred) and self.function == "evaluate_front":
            return min(_numbers(self.broadcast["preferences"]), MODELS)
        return method.models


def _numbers(tree: Tree) -> int:
    return sum(t.numel() for t in trees.leaves(tree))


def check_upload(method: Method, asked: Asked, upload: Tree) -> None:
    """Refuse what the method's ledger does not name, and rows of data whoever asks for them."""
    function = asked.function
    declared = {r.part: r.size for r in method.reveals if r.function == function}
    if not isinstance(upload, dict):
        raise CallError(f"'{function}' of method '{method.name}' does not send named parts")
    for part, value in upload.items():
        if part not in declared:
            raise CallError(f"'{function}' of '{method.name}' may not send '{part}': not declared")
        if declared[part] == "rows":
            raise CallError(
                f"'{function}' of '{method.name}' would send examples ('{part}'): no row leaves "
                "a node"
            )
        most, count = asked.most(method, declared[part]), _numbers(value)
        if count > most:
            raise CallError(
                f"'{function}' of '{method.name}' may send at most {most} numbers as '{part}' "
                f"({declared[part]}), not {count}"
            )
