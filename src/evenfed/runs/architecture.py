"""Describes a trained module in plain values, so that it can be built again without unpickling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from evenfed.core import models
from evenfed.core.errors import ModelError
from evenfed.data.dataset import Schema
from evenfed.methods.soft_labels import Mixture

Architecture = dict[str, Any]
OWN: Architecture = {"kind": "own"}
"""A module of the user's: only its code can build it again."""


def builtin(name: str, options: Mapping[str, Any], schema: Schema) -> Architecture:
    """A built-in model for the examples of a schema; `auto` is resolved.

    Examples
    --------
    >>> builtin("auto", {}, Schema("toy", "binary", 2, (4,)))["name"]
    'mlp'
    """
    if name == "auto":
        name = models.default_name(schema.shape, schema.vocabulary)
    return {
        "kind": "builtin", "name": name, "options": dict(options), "shape": list(schema.shape),
        "outputs": schema.classes, "vocabulary": schema.vocabulary,
    }  # fmt: skip


def described(module: nn.Module, base: Architecture) -> Architecture:
    """The architecture of what a method returns, `base` being that of the model it trained.

    Examples
    --------
    >>> base = builtin("mlp", {"hidden": [8]}, Schema("toy", "binary", 2, (4,)))
    >>> described(nn.Sequential(nn.Flatten(), nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2)), base)[
    ...     "options"]
    {'hidden': [9]}
    """
    if base == OWN:
        return OWN
    if isinstance(module, Mixture):
        members = [described(member, base) for member in module.members]
        return {"kind": "mixture", "regression": module.regression, "members": members}
    found = base
    template = built(base)
    if _shapes(module) != _shapes(template):
        if _shapes(module).keys() == _shapes(template).keys() and base["name"] == "mlp":
            # matched networks grow
            found = {**base, "options": {"hidden": _widths(module)}}
        else:
            found = _chain(module, base, template)
    if _shapes(built(found)) != _shapes(module):
        raise ModelError(f"cannot describe a {type(module).__name__} of this method in plain words")
    return found


def built(architecture: Architecture) -> nn.Module:
    """A module of a described architecture, in evaluation mode, with weights still to be loaded."""
    kind = architecture.get("kind")
    if kind == "builtin":
        with torch.random.fork_rng(devices=[]):
            module = models.build(
                architecture["name"], tuple(architecture["shape"]), architecture["outputs"],
                architecture["vocabulary"], **architecture["options"],
            )  # fmt: skip
        return module.eval()
    if kind == "mixture":
        members = [built(member) for member in architecture["members"]]
        share = torch.zeros(len(members), dtype=torch.float64)
        return Mixture(members, share, architecture["regression"]).eval()
    if kind == "chain":
        return _linked(architecture).eval()
    if kind == "own":
        raise ModelError(
            "the model is a module of its maker's own: give one, load_model(path, module=...)"
        )
    raise ModelError(f"there is no architecture of kind {kind!r}")


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in module.state_dict().items()}


def _widths(module: nn.Module) -> list[int]:
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return [layer.out_features for layer in layers[:-1]]


def _chain(module: nn.Module, base: Architecture, template: nn.Module) -> Architecture:
    """A body, which is the model without its last layer, and layers behind it."""
    if not isinstance(module, nn.Sequential):
        raise ModelError(f"cannot describe a {type(module).__name__} in plain words")
    first, *rest = module
    layers = []
    for layer in rest:
        if isinstance(layer, nn.Linear):
            layers.append([layer.in_features, layer.out_features])
        elif isinstance(layer, nn.ReLU):
            layers.append([])
        else:
            raise ModelError(f"cannot describe a layer {type(layer).__name__} in plain words")
    body = base if _shapes(first) else None
    whole = body is not None and _shapes(first) == _shapes(template)
    return {"kind": "chain", "body": body, "whole": whole, "layers": layers}


def _linked(architecture: Architecture) -> nn.Module:
    body: nn.Module = nn.Flatten()
    if architecture["body"] is not None:
        body = built(architecture["body"])
        if not architecture["whole"]:
            last = [n for n, layer in body.named_modules() if isinstance(layer, nn.Linear)][-1]
            parent, _, name = last.rpartition(".")
            setattr(body.get_submodule(parent), name, nn.Identity())
    layers = [nn.Linear(*size) if size else nn.ReLU() for size in architecture["layers"]]
    return nn.Sequential(body, *layers)


def parameter_count(module: nn.Module) -> int:
    """Numbers that were learned."""
    return sum(math.prod(p.shape) for p in module.parameters())
