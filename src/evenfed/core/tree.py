"""Trees of tensors: nested dicts, tuples, lists and registered dataclasses.

One vocabulary for parameters, uploads, states and draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
"""A tensor, or a nested dict, tuple, list or registered dataclass of tensors."""

T = TypeVar("T", bound=type)

REGISTERED: dict[str, type] = {}
"""Dataclasses that are trees, by the name that a file or a message gives them."""


def register_dataclass(cls: T) -> T:
    """Make a dataclass of tensors a tree, as a class decorator."""
    names = [field.name for field in dataclasses.fields(cls)]
    name = f"{cls.__module__}.{cls.__qualname__}"
    REGISTERED[name] = cls

    def flatten(node: Any) -> tuple[list[Any], None]:
        return [getattr(node, name) for name in names], None

    def unflatten(children: Any, _: None) -> Any:
        return cls(*children)

    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)
    return cls


def flatten(tree: Tree) -> tuple[list[Any], Any]:
    """Leaves and the structure that `unflatten` needs."""
    leaves, structure = pytree.tree_flatten(tree)
    return leaves, structure


def unflatten(leaves: Sequence[Any], structure: Any) -> Tree:
    """Inverse of `flatten`."""
    return pytree.tree_unflatten(list(leaves), structure)


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in a fixed order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `function` to every tensor of trees of one structure.

    Examples
    --------
    >>> map(lambda a, b: a + b, {"w": torch.ones(2)}, {"w": torch.ones(2)})
    {'w': tensor([2., 2.])}
    """

    def apply(leaf: Any, *others: Any) -> Any:
        return function(leaf, *others) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(apply, tree, *rest)


def add(a: Tree, b: Tree, scale: float | Tensor = 1.0) -> Tree:
    """`a + scale * b`."""
    return map(lambda p, q: p + scale * q, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    """`a - b`."""
    return map(lambda p, q: p - q, a, b)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    """`factor * tree`."""
    return map(lambda p: p * factor, tree)


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same structure."""
    return map(torch.zeros_like, tree)


def dot(a: Tree, b: Tree) -> Tensor:
    """Inner product over all leaves, a scalar."""
    products = [(p * q).sum() for p, q in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(products).sum()


def squared_norm(tree: Tree) -> Tensor:
    """Sum of squares over all leaves, a scalar."""
    return torch.stack([(leaf * leaf).sum() for leaf in leaves(tree)]).sum()


def joined(tree: Tree) -> Tensor:
    """All numbers of a tree as one vector `(N,)`: one operation on it does the work of many.

    Examples
    --------
    >>> joined({"a": torch.ones(1, 2), "b": torch.zeros(1)})
    tensor([1., 1., 0.])
    """
    return torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])


def parted(vector: Tensor, like: Tree) -> Tree:
    """Inverse of `joined`: the numbers of `vector` in the shapes and precision of `like`.

    Examples
    --------
    >>> parted(torch.arange(3), {"a": torch.ones(1, 2), "b": torch.zeros(1)})
    {'a': tensor([[0., 1.]]), 'b': tensor([2.])}
    """
    pieces = iter(torch.split(vector, [leaf.numel() for leaf in leaves(like)]))
    return map(lambda leaf: next(pieces).view(leaf.shape).to(leaf.dtype), like)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of one structure along a new first axis.

    Walks the structure once, not once a tree: a chunk stacks hundreds of small trees.
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.stack(list(trees))
    if isinstance(first, Mapping):
        return {key: stack([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(stack([tree[i] for tree in trees]) for i in range(len(first)))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        return type(first)(*(stack([getattr(tree, name) for tree in trees]) for name in names))
    return first


def row(tree: Tree, index: int) -> Tree:
    """Row `index` of a stacked tree."""
    return map(lambda leaf: leaf[index], tree)


def signature(tree: Tree) -> tuple[str, tuple[tuple[torch.Size, torch.dtype], ...]]:
    """Structure, shapes and dtypes, comparable and hashable."""
    found, structure = flatten(tree)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in found if isinstance(leaf, Tensor))
    return str(structure), shapes


def named(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Flat mapping from dotted paths to tensors, for files.

    Examples
    --------
    >>> sorted(named({"a": {"w": torch.zeros(1)}, "b": (torch.zeros(1),)}))
    ['a.w', 'b.0']
    """
    if isinstance(tree, Tensor):
        return {prefix: tree}
    items: Sequence[tuple[Any, Any]]
    if isinstance(tree, Mapping):
        items = list(tree.items())
    elif isinstance(tree, tuple | list):
        items = list(enumerate(tree))
    elif dataclasses.is_dataclass(tree):
        items = [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    else:
        return {}
    flat: dict[str, Tensor] = {}
    for name, child in items:
        flat.update(named(child, f"{prefix}.{name}" if prefix else str(name)))
    return flat


def from_named(flat: Mapping[str, Tensor], like: Tree, prefix: str = "") -> Tree:
    """Rebuild a tree of the structure of `like` from the mapping made by `named`."""
    names = list(named(like, prefix))
    found, structure = flatten(like)
    values = iter([flat[name] for name in names])
    return unflatten(
        [next(values) if isinstance(leaf, Tensor) else leaf for leaf in found], structure
    )
