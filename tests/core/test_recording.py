"""A record of tensor operations is what the function does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from evenfed.core.recording import ValueNeededError, record

HELD = torch.tensor([2.0, -1.0, 0.5])


def third_powers(a: Tensor, b: Tensor) -> Sequence[Tensor]:
    """Gradients through a gradient, a constant from outside, one in place, two parts of one."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        inner = grad(lambda v: (v**3 * HELD).sum() * x.sum())(w)
        return (inner.tanh() * x).sum() + torch.tensor(3.0).item() * w.sum()

    out = vmap(grad(loss))(a, b)
    first, second = out.clone().mul_(2).split([1, 2], dim=1)
    return [out, first, second]


def inputs(seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 3, generator=draw) for _ in range(2)]


def test_a_record_gives_the_numbers_for_other_inputs() -> None:
    graph, theirs = record(third_powers, inputs(0)), make_fx(third_powers)(*inputs(0))
    for seed in (0, 1):
        expected = third_powers(*inputs(seed))
        for got in (graph(*inputs(seed)), theirs(*inputs(seed))):
            for one, other in zip(got, expected, strict=True):
                assert torch.equal(one, other)


def test_a_tensor_given_twice_is_two_inputs() -> None:
    x = torch.ones(2)
    graph = record(lambda a, b: [a - 2 * b], [x, x])
    assert graph(torch.tensor([5.0, 7.0]), x)[0].tolist() == [3.0, 5.0]


def test_nodes_know_shape_and_type() -> None:
    graph = record(lambda a: [(a.sum(0) > 0)], [torch.ones(2, 3)])
    (result,) = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    seen = result.meta["val"]
    assert (seen.shape, seen.dtype, seen.ndim) == (torch.Size([3]), torch.bool, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: [a if a.sum() > 0 else -a],
        lambda a: [a[a > 0].mean()],
        lambda a: [a.masked_select(a > 0)],
        lambda a: [(a > 0).nonzero()],
    ],
)
def test_numbers_of_inputs_cannot_decide(function: Callable[[Tensor], list[Tensor]]) -> None:
    with pytest.raises(ValueNeededError):
        record(function, [torch.ones(2)])


def test_places_may_be_numbers_of_inputs() -> None:
    graph = record(lambda a, at: [a[at]], [torch.arange(3.0), torch.tensor([0, 1])])
    assert graph(torch.arange(3.0), torch.tensor([2, 2]))[0].tolist() == [2.0, 2.0]
