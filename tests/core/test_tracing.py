from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenfed.core import tracing
from evenfed.core.batches import draw_batches
from evenfed.core.descent import descend
from evenfed.core.examples import Examples
from evenfed.core.local import Objective
from evenfed.core.optimizer import Optimizer
from evenfed.core.task import Task
from evenfed.core.tracing import Eager, First, Traced, traced


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_cache", type(tracing._cache)())


def quadratic(p: Tensor, a: Tensor) -> Sequence[Tensor]:
    return [a @ p, (p * (a @ p)).sum() / 2]


ARGS = (torch.tensor([1.0, -2.0]), torch.tensor([[3.0, 1.0], [1.0, 2.0]]))


def test_a_trace_gives_the_numbers_of_the_function() -> None:
    form = traced(quadratic, [], "key", ARGS, 1)
    assert isinstance(form, Traced)
    for steady in ((), (0,)):
        run = form.gradient(First([ARGS[0]], [ARGS[1]], steady=steady))
        for got, expected in zip(run([ARGS[0]], [ARGS[1]]), quadratic(*ARGS), strict=True):
            assert torch.equal(got, expected)


def test_a_step_changes_the_parameters_and_returns_the_extras() -> None:
    for form in (traced(quadratic, [], "key", ARGS, 1), Eager(quadratic, [], 1)):
        p = ARGS[0].clone()
        (value,) = form.step(First([p], [ARGS[1]]), 0.1, flipped=False)([p], [ARGS[1]])
        # A p = (1, -3), p' A p / 2 = 3.5
        torch.testing.assert_close(p, torch.tensor([0.9, -1.7]))
        assert value.item() == 3.5


def test_a_trace_is_made_once_a_key_and_shape() -> None:
    calls = []

    def counted(p: Tensor, a: Tensor) -> Sequence[Tensor]:
        calls.append(p.shape)
        return quadratic(p, a)

    first = traced(counted, [], "key", ARGS, 1)
    made = len(calls)
    assert traced(counted, [], "key", [t.clone() for t in ARGS], 1) is first
    first.gradient(First([ARGS[0]], [ARGS[1]]))([ARGS[0]], [ARGS[1]])
    assert len(calls) == made
    assert traced(counted, [], "other", ARGS, 1) is not first
    assert traced(counted, [], "key", (torch.ones(3), torch.eye(3)), 1) is not first
    assert traced(counted, [], "key", [t.double() for t in ARGS], 1) is not first


def test_what_cannot_be_traced_runs_as_it_is() -> None:
    def branching(p: Tensor) -> Sequence[Tensor]:
        return [p if float(p.sum()) > 0 else -p]

    form = traced(branching, [], "key", (torch.ones(2),), 1)
    assert type(form) is Eager
    negative = [-torch.ones(2)]
    assert form.gradient(First(negative, []))(negative, [])[0].tolist() == [1.0, 1.0]


def test_the_number_of_kept_traces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_KEPT", 2)
    for key in "abc":
        traced(quadratic, [], key, ARGS, 1)
    assert [key for key, _ in tracing._cache] == ["b", "c"]


def test_a_function_made_inside_another_is_not_kept() -> None:
    data = Examples.of(torch.ones(4, 2), torch.ones(4))
    drawn = draw_batches(torch.Generator(), 4, batch=2, epochs=1)

    def direction(p: Tensor, batch: Examples, context: Any) -> tuple[Tensor, Any]:
        return p, ()

    descend(direction, torch.ones(2), data, drawn, optimizer=Optimizer(), lr=0.1)
    assert not tracing._cache
    descend(module_direction, torch.ones(2), data, drawn, optimizer=Optimizer(), lr=0.1)
    assert len(tracing._cache) == 1


def module_direction(p: Tensor, batch: Examples, context: Any) -> tuple[Tensor, Any]:
    return p, ()


def test_a_trace_in_one_thread_does_not_touch_a_model_in_another() -> None:
    """Tracing patches `nn.Module` for the whole process: others must not see it."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.fixed = nn.Parameter(torch.eye(2), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x @ self.fixed)

    task = Task(Frozen, "binary", classes=2, groups=1)
    params, x = task.init(), torch.ones(3, 2)
    expected = task.outputs(params, x)
    inside, leave = threading.Event(), threading.Event()

    def slow(p: Tensor) -> Sequence[Tensor]:
        inside.set()
        assert leave.wait(20)
        return [p * 2]

    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(traced(slow, [], "slow", (torch.ones(2),), 1))
    )
    thread.start()
    try:
        assert inside.wait(20)
        got = task.outputs(params, x)
        assert type(got) is Tensor
        assert torch.equal(got, expected)
    finally:
        leave.set()
        thread.join()
    assert isinstance(found[0], Traced)
    ones = [torch.ones(2)]
    assert torch.equal(found[0].gradient(First(ones, []))(ones, [])[0], torch.full((2,), 2.0))


def test_frozen_parameters_are_constants_of_a_trace() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[0].weight.requires_grad_(False)
    task = Task(lambda: module, "binary", classes=2, groups=1)
    data = Examples.of(torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 0]))
    drawn = draw_batches(torch.Generator(), 6, batch=0, epochs=1)
    start = task.init()
    new, _ = descend(Objective(task), start, data, drawn, optimizer=Optimizer(), lr=0.5)
    leaf = start["1.weight"].clone().requires_grad_()
    task.mean_loss({"1.weight": leaf}, data).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    torch.testing.assert_close(new["1.weight"], (leaf - 0.5 * leaf.grad).detach())
    assert list(new) == ["1.weight"]
