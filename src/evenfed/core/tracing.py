"""Trace a stacked direction once to plain tensor operations, and run that.

`vmap(grad(f))` costs about a millisecond of dispatch a call before any arithmetic. Client
functions are pure and their randomness is data, so the operations they dispatch depend on shapes
alone: `make_fx` records them once and the record runs several times faster. A function that cannot
be recorded runs as it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

_VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten.transpose.int,
    aten.t.default,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.select.int,
    aten.slice.Tensor,
    aten.detach.default,
    aten.alias.default,
}
_KERNELS: dict[Any, Any] = {
    aten.bmm.default: aten.baddbmm_.default,
    aten.mm.default: aten.addmm_.default,
}
"""Products and the kernel that adds such a product in place."""
_IN_PLACE = {aten.add_.Tensor, *_KERNELS.values()}
_KEPT = 256


class Eager:
    """Runs a function as it is."""

    def __init__(
        self, function: Callable[..., Sequence[Tensor]], found: list[Any], n_params: int
    ) -> None:
        self.function = function
        self.found = found
        self.n_params = n_params

    def __call__(self, *args: Tensor) -> Sequence[Tensor]:
        """All outputs: the gradient's leaves, then the extras."""
        return self.function(*args)

    def step(self, params: list[Tensor], rest: list[Tensor], lr: float) -> list[Tensor]:
        """Take `params -= lr * gradient` in place; return the extras."""
        out = self(*params, *rest)
        torch._foreach_add_(params, list(out[: self.n_params]), alpha=-lr)
        return list(out[self.n_params :])


class Traced(Eager):
    """Runs the recorded operations; a gradient that is a matrix product is added in one kernel."""

    def __init__(self, graph: fx.GraphModule, found: list[Any], n_params: int) -> None:
        super().__init__(graph.forward, found, n_params)
        self._step = _fused_step(graph, n_params)

    def step(self, params: list[Tensor], rest: list[Tensor], lr: float) -> list[Tensor]:
        """Take the step inside the recorded operations."""
        return list(self._step(-lr, *params, *rest))


_cache: OrderedDict[Any, Eager] = OrderedDict()
_lock = threading.Lock()


def traced(
    function: Callable[..., Sequence[Tensor]],
    found: list[Any],
    key: Any,
    args: Sequence[Tensor],
    n_params: int,
) -> Eager:
    """The fast form of `function` on tensors shaped as `args`, made once for every `key`.

    Whether a function is traced never depends on what ran before: the traced and the plain form
    round differently, and a resumed run must give the numbers of the unbroken one.
    `found` is what the function fills in while it runs; it is kept with the trace.
    """
    full = (key, tuple((a.shape, a.dtype, a.device) for a in args))
    known = _cache.get(full)
    if known is None:
        with _lock:
            known = _cache.get(full)
            if known is None:
                known = _trace(function, found, args, n_params)
                _cache[full] = known
                _trim(_cache)
    return known


def _trim(store: OrderedDict[Any, Any]) -> None:
    while len(store) > _KEPT:
        store.popitem(last=False)


def _trace(
    function: Callable[..., Sequence[Tensor]],
    found: list[Any],
    args: Sequence[Tensor],
    n_params: int,
) -> Eager:
    # a trace that fails means only that the function keeps its slower form: if the function
    # itself is at fault, running it says so
    try:
        with torch.enable_grad():
            graph = make_fx(function)(*args)
    except Exception:
        return Eager(function, found, n_params)
    _simplify(graph)
    return Traced(graph, found, n_params)


def _shape(node: Any) -> list[int] | None:
    value = node.meta.get("val")
    return list(value.shape) if isinstance(value, Tensor) else None


def _simplify(graph: fx.GraphModule) -> None:
    """Drop operations that change nothing (vmap's rules leave many)."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        same_shape = node.target in (
            aten.view.default,
            aten.expand.default,
            aten._unsafe_view.default,
        ) and _shape(node) == _shape(node.args[0])
        times_one = node.target is aten.mul.Scalar and node.args[1] == 1
        if same_shape or times_one or node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif (
            node.target is aten.transpose.int
            and node.args[0].op == "call_function"
            and node.args[0].target is aten.transpose.int
            and set(node.args[0].args[1:]) == set(node.args[1:])
        ):
            node.replace_all_uses_with(node.args[0].args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _fused_step(graph: fx.GraphModule, n_params: int) -> Callable[..., Sequence[Tensor]]:
    """A copy of the graph that ends in `p += minus_lr * gradient` in place."""
    copy = fx.GraphModule(graph, fx.Graph())
    g = copy.graph
    nodes: dict[fx.Node, fx.Node] = {}
    minus_lr = g.placeholder("minus_lr")
    old_output = None
    for node in graph.graph.nodes:
        if node.op == "output":
            old_output = node
        else:
            nodes[node] = g.node_copy(node, lambda n: nodes[n])
    assert old_output is not None
    outputs = [nodes[n] for n in old_output.args[0]]
    placeholders = [nodes[n] for n in graph.graph.nodes if n.op == "placeholder"][:n_params]
    for param, gradient in zip(placeholders, outputs[:n_params], strict=True):
        product = _product(gradient, placeholders)
        if product is None:
            g.call_function(aten.add_.Tensor, (param, gradient), {"alpha": minus_lr})
        else:
            g.call_function(product, (param, *gradient.args[:2]), {"beta": 1, "alpha": minus_lr})
    g.output(outputs[n_params:])
    for node in reversed(list(g.nodes)):
        unused = node.op == "call_function" and not node.users
        if unused and node.target not in _IN_PLACE:
            g.erase_node(node)
    g.lint()
    copy.recompile()
    return copy.forward


def _product(gradient: fx.Node, params: Sequence[fx.Node]) -> Any:
    """The fused kernel for a gradient that is a matrix product, or None.

    None too where a factor is a view of a parameter, which an earlier update may have changed.
    """
    if gradient.op != "call_function" or len(gradient.users) > 1:
        return None
    kernel = _KERNELS.get(gradient.target)
    for factor in gradient.args[:2]:
        node = factor
        while isinstance(node, fx.Node) and node.op == "call_function" and node.target in _VIEWS:
            node = node.args[0]
        if node in params:
            return None
    return kernel
