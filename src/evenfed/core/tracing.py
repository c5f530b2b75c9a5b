"""Trace a stacked direction once to plain tensor operations, and run that.

`vmap(grad(f))` costs about a millisecond of dispatch a call before any arithmetic. Client
functions are pure and their randomness is data, so the operations they dispatch depend on shapes
alone: they are recorded once, and the record runs several times faster. A function that cannot
be recorded runs as it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from evenfed.core.even import Even
from evenfed.core.graphs import Run, flippable, fused_step, hoisted
from evenfed.core.recording import record
from evenfed.core.rewrites import simplify

_KEPT = 256
"""Traces that are kept."""


Step = Callable[[list[Tensor], list[Tensor]], Sequence[Tensor]]
"""`(params, batch) -> outputs` (gradient's leaves, then extras), or the extras of a step."""


@dataclass(frozen=True)
class First:
    """The tensors of a descent's first step, and which of them stay.

    Parameters
    ----------
    params, batch, context : lists of tensors
        Parameters are the same tensors in every step, written in place. So is the context, never
        written.
    steady : tuple of int
        Positions in the batch whose numbers are the same in every step.
    standing : tuple of int
        Positions in the batch that are the same tensor in every step, with other numbers in it.
    """

    params: Sequence[Tensor]
    batch: Sequence[Tensor]
    context: Sequence[Tensor] = ()
    steady: tuple[int, ...] = ()
    standing: tuple[int, ...] = ()


def _apart(outputs: Sequence[Tensor], params: Sequence[Tensor]) -> Sequence[Tensor]:
    """The outputs, those that show a parameter's memory as copies."""
    written = {p.untyped_storage().data_ptr() for p in params}
    return [out.clone() if out.untyped_storage().data_ptr() in written else out for out in outputs]


class Eager:
    """Runs a function as it is."""

    def __init__(
        self, function: Callable[..., Sequence[Tensor]], found: list[Any], n_params: int
    ) -> None:
        self.function = function
        self.found = found
        self.n_params = n_params
        self.flipped: tuple[bool, ...] = (False,) * n_params
        """Parameters that a step may receive and update with their last two axes exchanged."""

    def gradient(self, first: First) -> Step:
        """What computes all outputs; none of them shares memory with a parameter.

        A step writes the parameters in place, so an output that shows one must be a copy.
        """
        context = first.context

        def run(params: list[Tensor], batch: list[Tensor]) -> Sequence[Tensor]:
            with Even():
                return _apart(self.function(*params, *batch, *context), params)

        return run

    def step(self, first: First, lr: float, *, flipped: bool) -> Step:
        """What takes `params -= lr * gradient` in place, and returns the extras."""
        gradient = self.gradient(first)

        def run(params: list[Tensor], batch: list[Tensor]) -> Sequence[Tensor]:
            out = gradient(params, batch)
            torch._foreach_add_(params, list(out[: self.n_params]), alpha=-lr)
            return out[self.n_params :]

        return run


class Traced(Eager):
    """Runs the recorded operations; a gradient that is a matrix product is added in one kernel.

    What does not change between the steps of a descent is computed once.
    """

    def __init__(self, graph: fx.GraphModule, found: list[Any], n_params: int) -> None:
        super().__init__(graph.forward, found, n_params)
        self.graph = graph
        self.flipped = flippable(graph, n_params)
        self._variants: dict[Any, tuple[Run, Run]] = {}

    def gradient(self, first: First) -> Step:
        """See `Eager`."""
        rest, fixed = self._split("gradient", first)
        context = first.context
        return lambda params, batch: _apart(rest(*fixed, *params, *batch, *context), params)

    def step(self, first: First, lr: float, *, flipped: bool) -> Step:
        """See `Eager`; the step is part of the recorded operations."""
        rest, fixed = self._split("flipped" if flipped else "step", first)
        context = first.context
        return lambda params, batch: rest(*fixed, -lr, *params, *batch, *context)

    def _split(self, kind: str, first: First) -> tuple[Run, Sequence[Tensor]]:
        """What runs at every step, and what was made before for it."""
        key = (kind, first.steady, first.standing)
        n, batch = self.n_params, len(first.batch)
        if key not in self._variants:
            graph = self.graph
            if kind != "gradient":
                graph = fused_step(graph, n, self.flipped if kind == "flipped" else ())
            rate = int(kind != "gradient")  # comes before the parameters
            data = rate + n
            steady = (*first.steady, *range(batch, batch + len(first.context)))
            standing = (*range(rate, data), *(data + i for i in first.standing))
            self._variants[key] = hoisted(graph, [data + i for i in steady], standing)
        before, rest = self._variants[key]
        steady_tensors = (first.batch[i] for i in first.steady)
        standing_tensors = (first.batch[i] for i in first.standing)
        fixed = before(*steady_tensors, *first.context, *first.params, *standing_tensors)
        return rest, fixed


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
        graph = record(function, args)
    except Exception:
        return Eager(function, found, n_params)
    simplify(graph)
    return Traced(graph, found, n_params)
