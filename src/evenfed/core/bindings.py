"""Calls of operations through the faster of their two doors.

`torch.ops.aten.add.Tensor` boxes its arguments; `torch.add`, which does the same, takes half of its
microseconds. On small models that is most of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

_FUNCTIONS: dict[Any, Any] = {
    aten.abs.default: torch.abs, aten.add.Tensor: torch.add, aten.addmm.default: torch.addmm,
    aten.amax.default: torch.amax, aten.baddbmm.default: torch.baddbmm,
    aten.bmm.default: torch.bmm, aten.cat.default: torch.cat, aten.clamp.default: torch.clamp,
    aten.clone.default: torch.clone, aten.div.Tensor: torch.div, aten.eq.Tensor: torch.eq,
    aten.erf.default: torch.erf, aten.exp.default: torch.exp, aten.exp_.default: torch.exp_,
    aten.expm1.default: torch.expm1, aten.gather.default: torch.gather, aten.log.default: torch.log,
    aten.log1p.default: torch.log1p,
    aten.maximum.default: torch.maximum, aten.minimum.default: torch.minimum,
    aten.mm.default: torch.mm, aten.mul.Tensor: torch.mul, aten.neg.default: torch.neg,
    aten.neg_.default: torch.neg_, aten.permute.default: torch.permute,
    aten.permute_copy.default: torch.permute_copy,
    aten.reciprocal.default: torch.reciprocal, aten.reciprocal_.default: torch.reciprocal_,
    aten.relu.default: torch.relu, aten.relu_.default: torch.relu_,
    aten.scatter_add.default: torch.scatter_add, aten.select.int: torch.select,
    aten.sgn.default: torch.sgn, aten.sqrt.default: torch.sqrt,
    aten.squeeze.dims: torch.squeeze, aten.stack.default: torch.stack, aten.sub.Tensor: torch.sub,
    aten.sum.dim_IntList: torch.sum, aten.t.default: torch.t, aten.tanh.default: torch.tanh,
    aten.tanh_.default: torch.tanh_, aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze, aten.where.self: torch.where,
}  # fmt: skip
_METHODS: dict[Any, str] = {
    aten.add_.Tensor: "add_",
    aten.addmm_.default: "addmm_",
    aten.baddbmm_.default: "baddbmm_",
    aten.expand.default: "expand",
    aten.mul_.Tensor: "mul_",
    aten.view.default: "view",
}


def quicken(graph: fx.GraphModule) -> fx.GraphModule:
    """The same graph with faster calls; for running, not for further rewriting."""
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in _FUNCTIONS:
            node.target = _FUNCTIONS[node.target]
        elif node.target in _METHODS:
            node.op, node.target = "call_method", _METHODS[node.target]
    graph.recompile()
    return graph
