"""Rewrites of recorded operations keep the numbers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from evenfed.core.graphs import flippable, fused_step, hoisted
from evenfed.core.recording import record
from evenfed.core.rewrites import simplify

CLIENTS, ROWS, INPUTS, HIDDEN = 3, 40, 160, 120


def loss(params: tuple[Tensor, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    scores = torch.relu(x @ params[0].T) @ params[1].T
    picked = scores.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -(picked * mask).sum() / mask.sum().clamp(min=1)


def gradient(first: Tensor, second: Tensor, *batch: Tensor) -> Sequence[Tensor]:
    return list(vmap(grad(loss))((first, second), *batch))


def inputs(classes: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randn(CLIENTS, HIDDEN, INPUTS, generator=draw) / 10,
        torch.randn(CLIENTS, classes, HIDDEN, generator=draw) / 10,
        torch.randn(CLIENTS, ROWS, INPUTS, generator=draw),
        torch.randint(0, classes, (CLIENTS, ROWS), generator=draw),
        (torch.rand(CLIENTS, ROWS, generator=draw) < 0.8).float(),
    ]


@pytest.mark.parametrize("classes", [2, 10, 20])
def test_log_softmax_with_the_classes_first_gives_the_same_gradient(classes: int) -> None:
    args = inputs(classes)
    graph = record(gradient, args)
    simplify(graph)
    axis = next(n.args[1] for n in graph.graph.nodes if "_log_softmax." in str(n.target))
    assert axis == (0 if classes < 16 else 2)
    for got, expected in zip(graph(*args), gradient(*args), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_matrix_held_transposed_takes_the_same_step() -> None:
    args = inputs(10)
    graph = record(gradient, args)
    simplify(graph)
    # the second matrix is also read as it is, for the gradient of the hidden layer
    assert flippable(graph, 2) == (True, False)
    step = fused_step(graph, 2, (True, False))
    held = [args[0].mT.contiguous(), args[1].clone()]
    step(-0.5, *held, *args[2:])
    first, second = gradient(*args)
    torch.testing.assert_close(held[0].mT, args[0] - 0.5 * first)
    torch.testing.assert_close(held[1], args[1] - 0.5 * second)


def test_small_matrices_are_not_turned() -> None:
    args = inputs(10)
    args[0], args[1], args[2] = args[0][:, :8], args[1][:, :, :8].contiguous(), args[2]
    graph = record(gradient, args)
    simplify(graph)
    assert flippable(graph, 2) == (False, False)


def test_what_steady_inputs_decide_is_computed_before() -> None:
    args = inputs(10)
    graph = record(gradient, args)
    simplify(graph)
    before, rest = hoisted(graph, (4,))
    fixed = before(args[4])
    for got, expected in zip(rest(*fixed, *args), gradient(*args), strict=True):
        torch.testing.assert_close(got, expected)
    # the factor of each example's loss has been computed: another mask no longer matters
    other = [*args[:4], torch.zeros_like(args[4])]
    for got, expected in zip(rest(*fixed, *other), gradient(*args), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_step_may_be_split_too() -> None:
    args = inputs(10)
    graph = record(gradient, args)
    simplify(graph)
    before, rest = hoisted(fused_step(graph, 2), (5,))
    held = [args[0].clone(), args[1].clone()]
    rest(*before(args[4]), -0.5, *held, *args[2:])
    for now, start, moved in zip(held, args[:2], gradient(*args), strict=True):
        torch.testing.assert_close(now, start - 0.5 * moved)


def test_views_of_standing_memory_are_made_before_and_show_what_is_written_later() -> None:
    args = inputs(10)
    graph = record(gradient, args)
    simplify(graph)
    before, rest = hoisted(graph, (4,), (0, 1, 2))
    turned = "permute(input_"
    assert turned in inspect.getsource(before)
    assert turned not in inspect.getsource(rest)
    standing = [t.clone() for t in args[:3]]
    fixed = before(args[4], *standing)
    torch._foreach_mul_(standing, 0.5)  # what is computed from them must not be made before
    expected = gradient(*(0.5 * t for t in args[:3]), *args[3:])
    for got, wanted in zip(rest(*fixed, *standing, *args[3:]), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_sum_does_not_keep_axes_that_a_view_drops() -> None:
    def summed(x: Tensor) -> Sequence[Tensor]:
        both = x.sum((0, 2), True)
        return [x.sum(1, True).view(2, 4), both.view(3), both.view(1, 3)]

    x = torch.arange(24.0).view(2, 3, 4)
    graph = record(summed, [x])
    simplify(graph)
    # the second sum is read twice, and stays
    assert sum("view" in str(n.target) for n in graph.graph.nodes) == 2
    for got, expected in zip(graph(x), summed(x), strict=True):
        assert torch.equal(got, expected)


def test_what_is_asked_for_twice_is_computed_once() -> None:
    def twice(x: Tensor, w: Tensor) -> Sequence[Tensor]:
        first, again = torch.relu(x @ w.T), torch.relu(x @ w.T)
        return [first.exp() * 2, again.sum(0) * 2.0, again.exp() * 3]

    args = [torch.randn(4, 3), torch.randn(2, 3)]
    graph = record(twice, args)
    simplify(graph)
    names = [str(n.target) for n in graph.graph.nodes]
    assert [sum(k in n for n in names) for k in (".mm", "relu", "exp", "mul")] == [1, 1, 1, 3]
    for got, expected in zip(graph(*args), twice(*args), strict=True):
        assert torch.equal(got, expected)


def test_draws_and_writes_are_not_merged() -> None:
    def drawn(x: Tensor) -> Sequence[Tensor]:
        return [torch.bernoulli(x), torch.bernoulli(x)]

    def written(x: Tensor) -> Sequence[Tensor]:
        first, second = torch.zeros(3), torch.zeros(3)
        return [first.add_(x), second.add_(2 * x)]

    for function, kind in ((drawn, "bernoulli"), (written, "zeros")):
        graph = record(function, [torch.full((3,), 0.5)])
        simplify(graph)
        assert sum(kind in str(n.target) for n in graph.graph.nodes) == 2
