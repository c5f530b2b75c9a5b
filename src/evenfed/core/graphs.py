"""Rewrites of a traced graph of tensor operations that save work and keep the mathematics.

A trace of `vmap(grad(loss))` is full of operations that change nothing, computes a loss that
nobody asked for, and allocates for every elementwise step. These passes remove that.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from evenfed.core.bindings import quicken
from evenfed.core.recording import Seen
from evenfed.core.softmax import FEW, MANY

aten = torch.ops.aten
Run = Callable[..., Sequence[Tensor]]

_RESHAPES: set[Any] = {aten.view.default, aten.expand.default, aten._unsafe_view.default}
_PRODUCTS: dict[Any, tuple[Any, Any]] = {
    aten.bmm.default: (aten.baddbmm.default, aten.baddbmm_.default),
    aten.mm.default: (aten.addmm.default, aten.addmm_.default),
}
"""Products, and the kernels that add such a product to a tensor: to a new one, and in place."""
_UPDATES: set[Any] = {aten.add_.Tensor, *(kernels[1] for kernels in _PRODUCTS.values())}
_IN_PLACE: dict[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.neg.default: aten.neg_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
}

_WORTH_FLIPPING = 1 << 14
"""Numbers in a matrix from which holding it transposed pays."""


def simplify(graph: fx.GraphModule) -> None:
    """Apply all passes that do not depend on what the graph is for."""
    _drop_no_operations(graph.graph)
    _forget_values(graph.graph)
    graph.graph.eliminate_dead_code()
    _add_in_product(graph.graph)
    _softmax_of_few(graph.graph)
    _sum_to_shape(graph.graph)
    graph.graph.eliminate_dead_code()
    _reuse_memory(graph.graph)
    graph.recompile()


def _value(node: Any) -> Seen | None:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _shape(node: Any) -> list[int] | None:
    value = _value(node)
    return None if value is None else list(value.shape)


def _shares_memory(target: Any, *, unwritten: bool = False) -> bool:
    """Whether an operation returns memory of its first argument (`unwritten`: as it was)."""
    if target in (operator.getitem, aten._unsafe_view.default):
        return True
    schema = getattr(target, "_schema", None)
    marks = [r.alias_info for r in schema.returns if r.alias_info] if schema else []
    return any(not (unwritten and mark.is_write) for mark in marks)


def _owner(node: Any) -> Any:
    """The node that made the memory which `node` shows."""
    while isinstance(node, fx.Node) and node.op == "call_function" and _shares_memory(node.target):
        node = node.args[0]
    return node


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def _drop_no_operations(graph: fx.Graph) -> None:
    """Reshapes to the same shape, products with one, a transposition of a transposition."""
    for node in _calls(graph):
        source: Any = node.args[0] if node.args else None
        useless = (
            (node.target in _RESHAPES and _shape(node) == _shape(source))
            or (node.target is aten.mul.Scalar and node.args[1] == 1)
            or node.target is aten.detach.default
        )
        if (
            node.target is aten.transpose.int
            and source.target is aten.transpose.int
            and set(source.args[1:]) == set(node.args[1:])
        ) or (isinstance(source, fx.Node) and _flips(node) and _flips(source)):
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
    for node in _calls(graph):
        value = _value(node)
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


def _add_in_product(graph: fx.Graph) -> None:
    """`bias + a @ b` in one kernel."""
    for node in _calls(graph):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        both: tuple[Any, Any] = (node.args[0], node.args[1])
        for bias, product in (both, both[::-1]):
            one_use = isinstance(product, fx.Node) and len(product.users) == 1
            if not one_use or product.target not in _PRODUCTS:
                continue
            added, value = _value(bias), _value(product)
            if added is None or value is None or added.dtype != value.dtype:
                continue
            if _shape(product) != _shape(node):
                continue
            with graph.inserting_before(node):
                new = graph.call_function(_PRODUCTS[product.target][0], (bias, *product.args[:2]))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            break


def _softmax_of_few(graph: fx.Graph) -> None:
    """Log-softmax over few classes with the classes first: the kernel then has full vectors.

    Over a last axis shorter than a vector it works number by number, which is 3 to 7 times slower.
    """
    first: dict[Any, fx.Node] = {}
    for node in _calls(graph):
        shape, back = _shape(node), node.target is aten._log_softmax_backward_data.default
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
    for node in _calls(graph):
        source: Any = node.args[0] if node.args else None
        if (
            node.target is not aten.view.default
            or source.target is not aten.sum.dim_IntList
            or source.args[2:] != (True,)
            or source.kwargs
            or len(source.users) != 1
            or (shape := _shape(source.args[0])) is None
        ):
            continue
        axes = {axis % len(shape) for axis in source.args[1]}
        if axes and _shape(node) == [n for i, n in enumerate(shape) if i not in axes]:
            source.args = source.args[:2]
            source.meta = dict(node.meta)
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _reuse_memory(graph: fx.Graph) -> None:
    """Elementwise operations on a fresh tensor that nobody else reads happen in place."""
    for node in _calls(graph):
        source: Any = node.args[0] if node.args else None
        if (
            node.target in _IN_PLACE
            and isinstance(source, fx.Node)
            and source.op == "call_function"
            and not _shares_memory(source.target, unwritten=True)
            and len(source.users) == 1
            and (old := _value(source)) is not None
            and (new := _value(node)) is not None
            and old.dtype == new.dtype
        ):
            node.target = _IN_PLACE[node.target]


def flippable(graph: fx.GraphModule, n_params: int) -> tuple[bool, ...]:
    """Which parameters `fused_step` may hold transposed (its last two axes exchanged).

    Large matrices that the graph reads only as their transposition, and whose gradient is a
    product: then `x @ W` replaces `x @ W.T`, which the kernels do a fifth faster.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"][:n_params]
    gradients = next(n for n in graph.graph.nodes if n.op == "output").args[0][:n_params]
    return tuple(
        (value := _value(param)) is not None
        and value.ndim == 3
        and value.shape[-1] * value.shape[-2] >= _WORTH_FLIPPING
        and all(_flips(user) for user in param.users)
        and gradient.target is aten.bmm.default
        and len(gradient.users) == 1
        and not any(_owner(factor) in placeholders for factor in gradient.args[:2])
        for param, gradient in zip(placeholders, gradients, strict=True)
    )


def _flips(node: fx.Node) -> bool:
    """Whether a node is the transposition of a stack of matrices."""
    if node.target is aten.permute.default:
        return list(node.args[1]) == [0, 2, 1]  # type: ignore[arg-type]
    return node.target is aten.transpose.int and set(node.args[1:]) in ({1, 2}, {-1, -2})


def _flip(graph: fx.Graph, node: Any) -> Any:
    """The transposition of a node."""
    if _flips(node):
        return node.args[0]
    return graph.call_function(aten.transpose.int, (node, 1, 2))


def fused_step(
    graph: fx.GraphModule, n_params: int, flipped: Sequence[bool] = ()
) -> fx.GraphModule:
    """A graph of `(minus_lr, *inputs)` that ends in `p += minus_lr * gradient`, in place.

    The graph's first inputs are the parameters, its first outputs their gradients. Parameters
    marked in `flipped` (see `flippable`) are handed over and updated transposed.
    """
    g = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    minus_lr = g.placeholder("minus_lr")
    results: list[Any] = []
    flipped = flipped or [False] * n_params
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    turned = {p for p, flip in zip(inputs, flipped, strict=False) if flip}
    for node in graph.graph.nodes:
        if node.op == "output":
            results = list(node.args[0])
        elif node.args and node.args[0] in turned:
            nodes[node] = nodes[node.args[0]]
        else:
            nodes[node] = g.node_copy(node, lambda n: nodes[n])
    outputs = [nodes[n] for n in results]
    params = [nodes[n] for n in inputs[:n_params]]
    # what shows a parameter's memory must be read before the parameter is written
    outputs = [
        g.call_function(aten.clone.default, (n,)) if _owner(n) in params else n for n in outputs
    ]
    for param, gradient, flip in zip(params, outputs[:n_params], flipped, strict=True):
        kernel = _product_kernel(gradient, params)
        if kernel is None:
            g.call_function(aten.add_.Tensor, (param, gradient), {"alpha": minus_lr})
            continue
        factors = gradient.args[:2]
        if flip:
            factors = (_flip(g, factors[1]), _flip(g, factors[0]))
        g.call_function(kernel, (param, *factors), {"beta": 1, "alpha": minus_lr})
    g.output(outputs[n_params:])
    for node in reversed(_calls(g)):
        if not node.users and node.target not in _UPDATES:
            g.erase_node(node)
    g.lint()
    # made last: it takes over the constants that the nodes name
    return fx.GraphModule(graph, g)


def hoisted(
    graph: fx.GraphModule, steady: Sequence[int], standing: Sequence[int] = ()
) -> tuple[Run, Run]:
    """Split a graph into what need be done but once, and the rest.

    That is all that the `steady` inputs alone decide, and views of `standing` inputs, which are
    the same memory at every call, with other numbers in it.

    Returns
    -------
    before, rest : callables
        `before(*steady inputs, *standing inputs)` gives a list; `rest(*that list, *all inputs)` is
        the graph.
    """
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    first = [inputs[i] for i in (*steady, *standing)]
    fixed, shown = {inputs[i] for i in steady}, {inputs[i] for i in standing}
    for node in _calls(graph.graph):
        if node.target in _UPDATES:
            continue
        if all(n in fixed for n in node.all_input_nodes):
            fixed.add(node)
        elif _is_view(node) and all(n in shown for n in node.all_input_nodes):
            shown.add(node)
    early_nodes = fixed | shown
    carried = [
        n
        for n in graph.graph.nodes
        if n in early_nodes
        and n.op == "call_function"
        and any(user not in early_nodes for user in n.users)
    ]
    before, after = fx.Graph(), fx.Graph()
    early: dict[fx.Node, fx.Node] = {}
    late: dict[fx.Node, fx.Node] = {n: after.placeholder(f"fixed_{n.name}") for n in carried}
    for node in inputs:
        late[node] = after.placeholder(node.name)
    for node in first:
        early[node] = before.placeholder(node.name)
    for node in graph.graph.nodes:
        if node in early_nodes and node.op == "call_function":
            early[node] = before.node_copy(node, lambda n: early[n])
        if node not in late:
            late[node] = after.node_copy(node, lambda n: late[n])
    before.output([early[n] for n in carried])
    for made in (before, after):
        for node in reversed(_calls(made)):
            if not node.users and node.target not in _UPDATES:
                made.erase_node(node)
        made.lint()
    early_graph, late_graph = (quicken(fx.GraphModule(graph, made)) for made in (before, after))
    return early_graph.forward, late_graph.forward


def _is_view(node: fx.Node) -> bool:
    """Whether a node is one tensor that shows its input's memory, and writes none."""
    schema = getattr(node.target, "_schema", None)
    one = schema is not None and [str(r.type) for r in schema.returns] == ["Tensor"]
    return one and _shares_memory(node.target, unwritten=True)


def _product_kernel(gradient: fx.Node, params: Sequence[fx.Node]) -> Any:
    """The in-place kernel for a gradient that is a matrix product, or None.

    None too where a factor is a view of a parameter, which an earlier update may have changed.
    """
    if gradient.op != "call_function" or gradient.target not in _PRODUCTS or gradient.users:
        return None
    if any(_owner(factor) in params for factor in gradient.args[:2]):
        return None
    return _PRODUCTS[gradient.target][1]
