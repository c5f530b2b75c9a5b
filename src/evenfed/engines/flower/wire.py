"""Trees of tensors as Flower records.

A record holds two things: a description of the tree in JSON, and its tensors as one array of
bytes in the safetensors format. Neither can hold code: a dataclass is named, and only those that
this package registered are made. What is not well-formed raises `WireError`, whatever it is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import EvenfedError
from evenfed.core.tree import REGISTERED, Tree
from evenfed.engines.exchange import PerClient

SPEC, SHARED, OWN = "evenfed", "shared", "own"
"""Records of a message: what is asked, tensors for all clients, tensors for this one."""
_MOST_NODES = 1_000_000
_DEEPEST = 64


class WireError(EvenfedError):
    """A message that is not well-formed."""


class Packing:
    """Describes trees and collects their tensors, those of one client apart from the others.

    A tensor that stands in several places travels once.
    """

    def __init__(self) -> None:
        self.shared: list[Tensor] = []
        self.own: list[PerClient] = []
        self._numbers: dict[int, int] = {}

    def describe(self, tree: Tree) -> Any:
        """The structure as plain values; tensors are named by their number."""
        if isinstance(tree, PerClient):
            self.own.append(tree)
            return {"own": len(self.own) - 1}
        if isinstance(tree, Tensor):
            number = self._numbers.setdefault(id(tree), len(self.shared))
            if number == len(self.shared):
                self.shared.append(tree)
            return {"tensor": number}
        if isinstance(tree, Mapping):
            return {"dict": [[_key(k), self.describe(v)] for k, v in tree.items()]}
        if isinstance(tree, list):
            return {"list": [self.describe(v) for v in tree]}
        if isinstance(tree, tuple):
            return {"tuple": [self.describe(v) for v in tree]}
        if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            name = f"{type(tree).__module__}.{type(tree).__qualname__}"
            if REGISTERED.get(name) is not type(tree):
                raise WireError(f"a {type(tree).__name__} cannot be sent: it is no registered tree")
            parts = [getattr(tree, field.name) for field in dataclasses.fields(tree)]
            return {"class": name, "parts": [self.describe(part) for part in parts]}
        if tree is None or isinstance(tree, str | bool | int | float):
            return {"value": tree}
        raise WireError(f"a {type(tree).__name__} cannot be sent")


class _Unpacking:
    """Rebuilds a tree from its description."""

    def __init__(self, shared: list[Tensor], own: list[Tree]) -> None:
        self.shared = shared
        self.own = own
        self.nodes = 0

    def build(self, node: Any, depth: int = 0) -> Tree:
        self.nodes += 1
        if depth > _DEEPEST or self.nodes > _MOST_NODES:
            raise WireError("the tree of a message is too deep or too large")
        match node:
            case {"tensor": int(i)} if 0 <= i < len(self.shared):
                return self.shared[i]
            case {"own": int(i)} if 0 <= i < len(self.own):
                return self.own[i]
            case {"dict": list(items)}:
                return {_key(k): self.build(v, depth + 1) for k, v in items}
            case {"list": list(items)}:
                return [self.build(v, depth + 1) for v in items]
            case {"tuple": list(items)}:
                return tuple(self.build(v, depth + 1) for v in items)
            case {"class": str(name), "parts": list(parts)} if name in REGISTERED:
                return REGISTERED[name](*(self.build(part, depth + 1) for part in parts))
            case {"value": None | str() | bool() | int() | float() as value}:
                return value
        raise WireError("the tree of a message has a part that is not known here")


def _key(key: Any) -> str | int:
    if isinstance(key, str | int) and not isinstance(key, bool):
        return key
    raise WireError(f"a key of a dict must be text or a whole number, not {type(key).__name__}")


def to_bytes(tensors: list[Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors in the safetensors format, by their number."""
    seen: set[int] = set()
    flat = {}
    for i, tensor in enumerate(tensors):
        kept = tensor.detach().cpu().contiguous()
        pointer = kept.untyped_storage().data_ptr()
        # the format refuses tensors that share memory
        flat[str(i)] = kept.clone() if pointer in seen else kept
        seen.add(pointer)
    return save(flat, metadata)


def from_bytes(content: bytes) -> list[Tensor]:
    """Inverse of `to_bytes`."""
    try:
        flat = load(content)
        return [flat[str(i)] for i in range(len(flat))]
    except Exception as error:
        raise WireError(f"the tensors of a message cannot be read: {error}") from error


def record_of(tensors: list[Tensor]) -> ArrayRecord:
    """A record with all tensors as one array: an exchange takes few requests, not one a tensor."""
    content = np.frombuffer(to_bytes(tensors), dtype=np.uint8)
    return ArrayRecord({"tensors": Array(content)})


def _tensors(content: RecordDict, name: str) -> list[Tensor]:
    if name not in content:
        return []
    record = content[name]
    if not isinstance(record, ArrayRecord) or list(record) != ["tensors"]:
        raise WireError(f"record '{name}' of a message must hold the one array 'tensors'")
    try:
        array = record["tensors"].numpy()
    except Exception as error:
        raise WireError(f"record '{name}' of a message cannot be read: {error}") from error
    if array.dtype != np.uint8 or array.ndim != 1:
        raise WireError(f"record '{name}' of a message must hold bytes")
    return from_bytes(array.tobytes())


def message(spec: dict[str, Any], shared: ArrayRecord | None, own: list[Tensor]) -> RecordDict:
    """The content of a message."""
    content = RecordDict({SPEC: ConfigRecord({"json": json.dumps(spec)})})
    if shared is not None:
        content[SHARED] = shared
    if own:
        content[OWN] = record_of(own)
    return content


def with_tree(spec: dict[str, Any], tree: Tree) -> RecordDict:
    """A message with one tree, all of it for its receiver."""
    packing = Packing()
    spec = {**spec, "tree": packing.describe(tree)}
    return message(spec, record_of(packing.shared) if packing.shared else None, [])


def spec_of(content: RecordDict) -> dict[str, Any]:
    """What a message asks or answers."""
    record = content.get(SPEC)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        raise WireError(f"a message has no record '{SPEC}' with a text 'json'")
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the text of a message is not JSON: {error}") from error
    if not isinstance(spec, dict):
        raise WireError("the text of a message must be a JSON object")
    return spec


def tree_of(content: RecordDict, spec: dict[str, Any]) -> Tree:
    """The tree of a message."""
    shared, own = _tensors(content, SHARED), _tensors(content, OWN)
    # a part of one client may be a tree of its own: its leaves stand one after the other
    try:
        built = [_Unpacking(own, []).build(part) for part in spec.get("own", [])]
        return _Unpacking(shared, built).build(spec.get("tree"))
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"the tree of a message cannot be built: {error}") from error


def rebuilt(structure: Any, tensors: list[Tensor]) -> Tree:
    """A tree from its description and its tensors."""
    return _Unpacking(tensors, []).build(structure)


def own_parts(parts: list[tuple[PerClient, int]]) -> tuple[list[Any], list[Tensor]]:
    """Descriptions and tensors of one client's rows, each part with its row."""
    packing = Packing()
    described = [packing.describe(trees.row(part.rows, row)) for part, row in parts]
    return described, packing.shared


def bytes_of(content: RecordDict) -> int:
    """Bytes of a message's content, without what the transport adds."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        elif isinstance(record, ConfigRecord):
            total += sum(len(v) for v in record.values() if isinstance(v, str))
    return total
