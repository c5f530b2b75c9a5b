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

from evenfed.core.graphs import fused_step, simplify

_KEPT = 256
"""Traces that are kept."""


class Eager:
    """Runs a function as it is."""

    def __init__(
        self, function: Callable[..., Sequence[Tensor]], found: list[Any], n_params: int
    ) -> None:
        self.function = function
        self.found = found
        self.n_params = n_params

    def __call__(self, *args: Tensor) -> Sequence[Tensor]:
        """All outputs: the gradient's leaves, then the extras; none shares memory with a parameter.

        A step writes the parameters in place, so an output that shows one must be a copy.
        """
        written = {p.untyped_storage().data_ptr() for p in args[: self.n_params]}
        return [
            out.clone() if out.untyped_storage().data_ptr() in written else out
            for out in self.function(*args)
        ]

    def step(self, params: list[Tensor], rest: list[Tensor], lr: float) -> list[Tensor]:
        """Take `params -= lr * gradient` in place; return the extras."""
        out = self(*params, *rest)
        torch._foreach_add_(params, list(out[: self.n_params]), alpha=-lr)
        return list(out[self.n_params :])


class Traced(Eager):
    """Runs the recorded operations; a gradient that is a matrix product is added in one kernel."""

    def __init__(self, graph: fx.GraphModule, found: list[Any], n_params: int) -> None:
        super().__init__(graph.forward, found, n_params)
        self._step = fused_step(graph, n_params)

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
    simplify(graph)
    return Traced(graph, found, n_params)
