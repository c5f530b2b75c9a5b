"""Steps made of a traced graph: updates in place, and what need be done but once taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from evenfed.core.bindings import quicken
from evenfed.core.rewrites import PRODUCTS, calls, flips, owner, shares_memory, value_of

aten = torch.ops.aten
Run = Callable[..., Sequence[Tensor]]

_UPDATES: set[Any] = {aten.add_.Tensor, *(kernels[1] for kernels in PRODUCTS.values())}

_WORTH_FLIPPING = 1 << 14
"""Numbers in a matrix from which holding it transposed pays."""


def flippable(graph: fx.GraphModule, n_params: int) -> tuple[bool, ...]:
    """Which parameters `fused_step` may hold transposed (its last two axes exchanged).

    Large matrices that the graph reads only as their transposition, and whose gradient is a
    product: then `x @ W` replaces `x @ W.T`, which the kernels do a fifth faster.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"][:n_params]
    gradients = next(n for n in graph.graph.nodes if n.op == "output").args[0][:n_params]
    return tuple(
        (value := value_of(param)) is not None
        and value.ndim == 3
        and value.shape[-1] * value.shape[-2] >= _WORTH_FLIPPING
        and all(flips(user) for user in param.users)
        and gradient.target is aten.bmm.default
        and len(gradient.users) == 1
        and not any(owner(factor) in placeholders for factor in gradient.args[:2])
        for param, gradient in zip(placeholders, gradients, strict=True)
    )


def _flip(graph: fx.Graph, node: Any) -> Any:
    """The transposition of a node."""
    if flips(node):
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
        g.call_function(aten.clone.default, (n,)) if owner(n) in params else n for n in outputs
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
    for node in reversed(calls(g)):
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
    for node in calls(graph.graph):
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
        for node in reversed(calls(made)):
            if not node.users and node.target not in _UPDATES:
                made.erase_node(node)
        made.lint()
    early_graph, late_graph = (quicken(fx.GraphModule(graph, made)) for made in (before, after))
    return early_graph.forward, late_graph.forward


def _is_view(node: fx.Node) -> bool:
    """Whether a node is one tensor that shows its input's memory, and writes none."""
    schema = getattr(node.target, "_schema", None)
    one = schema is not None and [str(r.type) for r in schema.returns] == ["Tensor"]
    return one and shares_memory(node.target, unwritten=True)


def _product_kernel(gradient: fx.Node, params: Sequence[fx.Node]) -> Any:
    """The in-place kernel for a gradient that is a matrix product, or None.

    None too where a factor is a view of a parameter, which an earlier update may have changed.
    """
    if gradient.op != "call_function" or gradient.target not in PRODUCTS or gradient.users:
        return None
    if any(owner(factor) in params for factor in gradient.args[:2]):
        return None
    return PRODUCTS[gradient.target][1]
