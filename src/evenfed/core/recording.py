"""Record the tensor operations of a function as a graph.

`make_fx` of PyTorch does this too, but takes longer and patches modules for all threads. Here a
dispatch mode notes each operation that reaches the tensors themselves, below gradients and vmap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from evenfed.core import tree as trees
from evenfed.core.even import FORMS, Watching, uneven

aten = torch.ops.aten


@dataclass(frozen=True)
class Seen:
    """What is known of a node's value: the same for all inputs of these shapes."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


class ValueNeededError(Exception):
    """What a function does next depends on numbers in a tensor: no record can hold that."""


def record(function: Callable[..., Sequence[Tensor]], args: Sequence[Tensor]) -> fx.GraphModule:
    """The operations of `function(*args)`, as a graph of as many inputs.

    Tensors that the function finds elsewhere become constants. Every node has its `Seen` in
    `meta["val"]`.
    """
    recorder = _Recorder()
    # views of their own: one tensor may be given twice
    shown = [a.detach() for a in args]
    for index, tensor in enumerate(shown):
        recorder.keep(tensor, recorder.graph.placeholder(f"input_{index}"))
    with torch.enable_grad(), recorder:
        out = function(*shown)
    recorder.graph.output([recorder.node(t) for t in out])
    recorder.graph.lint()
    return fx.GraphModule(recorder.constants, recorder.graph)


class _Recorder(Watching):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.constants: dict[str, Any] = {}
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []
        """Nothing seen may be freed, or its id would name another tensor."""

    def keep(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        node.meta["val"] = Seen(tensor.shape, tensor.dtype, tensor.device)

    def node(self, tensor: Tensor) -> fx.Node:
        """The node of a tensor; a constant if no operation made it."""
        if id(tensor) not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            self.keep(tensor, self.graph.create_node("get_attr", name))
        return self._nodes[id(tensor)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if uneven(func, args, kwargs):
            with self:
                return FORMS[func](*args, **kwargs)
        given = trees.leaves((args, kwargs))
        fixed = bool(given) and all(self.node(t).op == "get_attr" for t in given)
        if not fixed and _reads_values(func, args):
            raise ValueNeededError
        out = func(*args, **kwargs)
        if fixed and func in (aten.lift_fresh.default, aten.detach.default):
            # a number that the function itself holds, such as torch.tensor(1.0)
            self.node(out)
            return out
        placed = fx.node.map_aggregate(
            (args, kwargs), lambda leaf: self.node(leaf) if isinstance(leaf, Tensor) else leaf
        )
        made = self.graph.call_function(func, *placed)
        if isinstance(out, Tensor):
            self.keep(out, made)
        elif isinstance(out, (tuple, list)):
            for index, part in enumerate(out):
                if isinstance(part, Tensor):
                    self.keep(part, self.graph.call_function(operator.getitem, (made, index)))
        return out


def _reads_values(func: Any, args: Any) -> bool:
    """Whether a number, or the shape of a result, depends on what a tensor holds."""
    if func is aten.index.Tensor:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return func is aten._local_scalar_dense.default or torch.Tag.dynamic_output_shape in func.tags
