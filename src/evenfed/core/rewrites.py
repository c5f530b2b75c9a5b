"""Rewrites of a traced graph of tensor operations that save work and keep the mathematics.

A trace of `vmap(grad(loss))` is full of operations that change nothing, computes a loss that
nobody asked for, and allocates for every elementwise step. These passes remove that.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from evenfed.core.recording import Seen
from evenfed.core.softmax import FEW, MANY

aten = torch.ops.aten

_RESHAPES: set[Any] = {aten.view.default, aten.expand.default, aten._unsafe_view.default}
PRODUCTS: dict[Any, tuple[Any, Any]] = {
    aten.bmm.default: (aten.baddbmm.default, aten.baddbmm_.default),
    aten.mm.default: (aten.addmm.default, aten.addmm_.default),
}
"""Products, and the kernels that add such a product to a tensor: to a new one, and in place."""
_IN_PLACE: dict[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.neg.default: aten.neg_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.exp.default: aten.exp_.default,
    aten.reciprocal.default: aten.reciprocal_.default,
}


def simplify(graph: fx.GraphModule) -> None:
    """Apply all passes that do not depend on what the graph is for."""
    _drop_no_operations(graph.graph)
    _forget_values(graph.graph)
    _merge_equal(graph.graph)
    graph.graph.eliminate_dead_code()
    _add_in_product(graph.graph)
    _softmax_of_few(graph.graph)
    _sum_to_shape(graph.graph)
    graph.graph.eliminate_dead_code()
    _reuse_memory(graph.graph)
    graph.recompile()


def value_of(node: Any) -> Seen | None:
    """What was seen of a node's tensor while it was recorded."""
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def shape_of(node: Any) -> list[int] | None:
    """The shape of a node's tensor."""
    value = value_of(node)
    return None if value is None else list(value.shape)


def shares_memory(target: Any, *, unwritten: bool = False) -> bool:
    """Whether an operation returns memory of its first argument (`unwritten`: as it was)."""
    if target in (operator.getitem, aten._unsafe_view.default):
        return True
    schema = getattr(target, "_schema", None)
    marks = [r.alias_info for r in schema.returns if r.alias_info] if schema else []
    return any(not (unwritten and mark.is_write) for mark in marks)


def owner(node: Any) -> Any:
    """The node that made the memory which `node` shows."""
    while isinstance(node, fx.Node) and node.op == "call_function" and shares_memory(node.target):
        node = node.args[0]
    return node


def calls(graph: fx.Graph) -> list[fx.Node]:
    """The operations, in their order."""
    return [node for node in graph.nodes if node.op == "call_function"]


def _drop_no_operations(graph: fx.Graph) -> None:
    """Reshapes to the same shape, products with one, a transposition of a transposition."""
    for node in calls(graph):
        source: Any = node.args[0] if node.args else None
        useless = (
            (node.target in _RESHAPES and shape_of(node) == shape_of(source))
            or (node.target is aten.mul.Scalar and node.args[1] == 1)
            or node.target is aten.detach.default
        )
        if (
            node.target is aten.transpose.int
            and source.target is aten.transpose.int
            and set(source.args[1:]) == set(node.args[1:])
        ) or (isinstance(source, fx.Node) and flips(node) and flips(source)):
            source, useless = source.args[0], True
        if useless:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _forget_values(graph: fx.Graph) -> None:
    """Let ones and zeros "like" a tensor stand alone: the loss itself is then not needed."""
    makers = {
        aten.ones_like.default: aten.ones.default,
        aten.zeros_like.default: aten.zeros.default,
        aten.new_zeros.default: aten.zeros.default,
    }
    for node in calls(graph):
        value = value_of(node)
        if node.target in makers and value is not None:
            with graph.inserting_before(node):
                made = graph.call_function(
                    makers[node.target],
                    (list(value.shape),),
                    {"dtype": value.dtype, "device": value.device},
                )
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _merge_equal(graph: fx.Graph) -> None:
    """Compute what is asked for twice once: a loss and a term both run the model.

    Not in graphs that write into tensors or draw numbers.
    """
    made = [n for n in graph.nodes if n.op in ("call_function", "get_attr")]
    schemas = [getattr(n.target, "_schema", None) for n in made]
    drawn = torch.Tag.nondeterministic_seeded
    if any(s is not None and s.is_mutable for s in schemas) or any(
        drawn in getattr(n.target, "tags", ()) for n in made
    ):
        return
    seen: dict[Any, fx.Node] = {}
    for node in made:
        known = seen.setdefault((node.op, node.target, _frozen((node.args, node.kwargs))), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)


def _frozen(value: Any) -> Any:
    """Arguments as something hashable; 1, 1.0 and True differ."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    return value if isinstance(value, fx.Node) else (type(value), value)


def _add_in_product(graph: fx.Graph) -> None:
    """`bias + a @ b` in one kernel."""
    for node in calls(graph):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        both: tuple[Any, Any] = (node.args[0], node.args[1])
        for bias, product in (both, both[::-1]):
            one_use = isinstance(product, fx.Node) and len(product.users) == 1
            if not one_use or product.target not in PRODUCTS:
                continue
            added, value = value_of(bias), value_of(product)
            if added is None or value is None or added.dtype != value.dtype:
                continue
            if shape_of(product) != shape_of(node):
                continue
            with graph.inserting_before(node):
                new = graph.call_function(PRODUCTS[product.target][0], (bias, *product.args[:2]))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            break


def _softmax_of_few(graph: fx.Graph) -> None:
    """Log-softmax over few classes with the classes first: the kernel then has full vectors.

    Over a last axis shorter than a vector it works number by number, which is 3 to 7 times slower.
    """
    first: dict[Any, fx.Node] = {}
    for node in calls(graph):
        shape, back = shape_of(node), node.target is aten._log_softmax_backward_data.default
        if shape is None or not (back or node.target is aten._log_softmax.default):
            continue
        given: Any = node.args[2 if back else 1]
        axis, last = int(given), len(shape) - 1
        if axis % len(shape) != last or shape[-1] >= FEW or shape[-1] * MANY > math.prod(shape):
            continue
        with graph.inserting_before(node):
            if back:
                gradient, output = node.args[:2]
                moved = first.get(output) or _axis_to_front(graph, output, last)
                front = _axis_to_front(graph, gradient, last)
                kernel = aten._log_softmax_backward_data.default
                made = graph.call_function(kernel, (front, moved, 0, *node.args[3:]))
            else:
                source = _axis_to_front(graph, node.args[0], last)
                kernel = aten._log_softmax.default
                made = graph.call_function(kernel, (source, 0, *node.args[2:]))
            new = _contiguous(graph, made, [*range(1, last + 1), 0])
        new.meta = dict(node.meta)
        first[new] = made
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _axis_to_front(graph: fx.Graph, node: Any, last: int) -> fx.Node:
    return _contiguous(graph, node, [last, *range(last)])


def _contiguous(graph: fx.Graph, node: Any, order: list[int]) -> fx.Node:
    return graph.call_function(aten.permute_copy.default, (node, order))


def _sum_to_shape(graph: fx.Graph) -> None:
    """A sum that keeps the axes it sums over, and loses them in a view, need not keep them."""
    for node in calls(graph):
        source: Any = node.args[0] if node.args else None
        if (
            node.target is not aten.view.default
            or source.target is not aten.sum.dim_IntList
            or source.args[2:] != (True,)
            or source.kwargs
            or len(source.users) != 1
            or (shape := shape_of(source.args[0])) is None
        ):
            continue
        axes = {axis % len(shape) for axis in source.args[1]}
        if axes and shape_of(node) == [n for i, n in enumerate(shape) if i not in axes]:
            source.args = source.args[:2]
            source.meta = dict(node.meta)
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _reuse_memory(graph: fx.Graph) -> None:
    """Elementwise operations on a fresh tensor that nobody else reads happen in place."""
    for node in calls(graph):
        source: Any = node.args[0] if node.args else None
        if (
            node.target in _IN_PLACE
            and isinstance(source, fx.Node)
            and source.op == "call_function"
            and not shares_memory(source.target, unwritten=True)
            and len(source.users) == 1
            and (old := value_of(source)) is not None
            and (new := value_of(node)) is not None
            and old.dtype == new.dtype
        ):
            node.target = _IN_PLACE[node.target]


def flips(node: fx.Node) -> bool:
    """Whether a node is the transposition of a stack of matrices."""
    if node.target is aten.permute.default:
        return list(node.args[1]) == [0, 2, 1]  # type: ignore[arg-type]
    return node.target is aten.transpose.int and set(node.args[1:]) in ({1, 2}, {-1, -2})
