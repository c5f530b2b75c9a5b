"""The faster calls do what the recorded ones do, for every operation of the tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenfed.core import bindings
from evenfed.core.bindings import quicken
from evenfed.core.recording import record

aten = torch.ops.aten


def everything(x: Tensor, y: Tensor, index: Tensor) -> Sequence[Tensor]:
    """Calls each operation of the tables with the arguments that traces hold."""
    one, two = x[0], y[0]
    unary = [
        op(x.clone())
        for op in (
            aten.abs.default, aten.exp.default, aten.neg.default, aten.neg_.default,
            aten.relu.default, aten.relu_.default, aten.sgn.default, aten.tanh.default,
            aten.tanh_.default, aten.erf.default, aten.exp_.default, aten.expm1.default,
            aten.reciprocal.default, aten.reciprocal_.default,
        )
    ]  # fmt: skip
    positive = aten.clamp.default(aten.add.Tensor(x, 3, alpha=2), 0.5)
    layout = {"memory_format": torch.contiguous_format}
    made = [
        aten.log.default(positive), aten.log1p.default(positive), aten.sqrt.default(positive),
        aten.clamp.default(x, None, 0.2),
        aten.add.Tensor(x, y, alpha=-0.5), aten.sub.Tensor(x, y), aten.mul.Tensor(x, 3.0),
        aten.div.Tensor(x, positive), aten.eq.Tensor(x, x).float(), aten.maximum.default(x, y),
        aten.minimum.default(x, y), aten.where.self(x > 0, x, y),
        aten.amax.default(x, [1], True), aten.sum.dim_IntList(x, [0, 1], True),
        aten.sum.dim_IntList(x, [2]), aten.bmm.default(x, y.mT), aten.mm.default(one, two.mT),
        aten.addmm.default(one[:, :1], one, two.mT, beta=1, alpha=0.5),
        aten.baddbmm.default(x[:, :, :1], x, y.mT), aten.cat.default([x, y], 2),
        aten.stack.default([x, y], 1), aten.gather.default(x, 2, index),
        aten.scatter_add.default(x, 2, index, y),
        aten.clone.default(aten.permute.default(x, [2, 0, 1]), **layout),
        aten.permute_copy.default(x, [2, 0, 1]),
        aten.select.int(x, 1, 0), aten.squeeze.dims(aten.unsqueeze.default(x, 1), [1]),
        aten.t.default(one), aten.transpose.int(x, 1, 2), aten.view.default(x, [2, 12]),
        aten.expand.default(x[:, :1], [2, 3, 4]), aten.add_.Tensor(x.clone(), y, alpha=0.1),
        aten.mul_.Tensor(x.clone(), y),
        aten.addmm_.default(torch.zeros(3, 3), one, two.mT, beta=1, alpha=-0.1),
        aten.baddbmm_.default(torch.zeros(2, 3, 3), x, y.mT, beta=1, alpha=-0.1),
    ]  # fmt: skip
    return [*unary, *made]


def test_every_faster_call_gives_the_same_bits() -> None:
    draw = torch.Generator().manual_seed(0)
    args = [torch.randn(2, 3, 4, generator=draw) for _ in range(2)]
    args.append(torch.randint(0, 4, (2, 3, 4), generator=draw))
    graph = record(everything, args)
    called = {node.target for node in graph.graph.nodes}
    assert {*bindings._FUNCTIONS, *bindings._METHODS} <= called
    expected = graph(*args)
    quick = quicken(graph)
    left = {node.target for node in quick.graph.nodes}
    assert not left & {*bindings._FUNCTIONS, *bindings._METHODS}
    for got, wanted in zip(quick(*args), expected, strict=True):
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()
