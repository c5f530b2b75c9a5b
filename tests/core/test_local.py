"""Local training against single steps computed by hand.

The model is `out = w x` with squared error, so the loss of a batch is the mean of `(w x - y)^2`
and its gradient the mean of `2 x (w x - y)`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining, Objective
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree

TASK = Task(lambda: nn.Linear(1, 1, bias=False), "regression", 1, 2)
DATA = Examples.of(
    torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0, 1, 1])
)
START = {"weight": torch.tensor([[2.0]])}
# at w = 2: residuals 1, 4, 4; x * residual = 1, 8, 12
GRADIENT = 2 * (1 + 8 + 12) / 3


def train(local: LocalTraining, data: Examples = DATA, **hooks: Any) -> float:
    drawn = local.draw(torch.Generator().manual_seed(0), (), 3)
    new = local.run(TASK, START, data, drawn, lr=local.rate(0, 1), **hooks)
    return float(new["weight"])


ONE = LocalTraining(lr=0.01, batch=0, epochs=1)


def proximal(params: Params, batch: Examples, received: Tree) -> Tensor:
    return 0.5 * 3.0 * trees.squared_norm(trees.subtract(params, received))


def by_group(batch: Examples, factors: Tree) -> Tensor:
    return factors[batch.group]


def corrected(gradient: Params, params: Params, batch: Examples, shift: Tree) -> Params:
    return trees.add(gradient, shift)  # type: ignore[no-any-return]


def test_one_step_follows_the_mean_gradient() -> None:
    assert train(ONE) == pytest.approx(2 - 0.01 * GRADIENT, rel=1e-6)


def test_padding_counts_nowhere() -> None:
    assert train(ONE, DATA.padded(7)) == pytest.approx(2 - 0.01 * GRADIENT, rel=1e-6)


def test_an_extra_term_adds_its_gradient() -> None:
    received = {"weight": torch.tensor([[0.5]])}
    # d/dw 3/2 (w - 0.5)^2 = 3 * 1.5
    expected = 2 - 0.01 * (GRADIENT + 4.5)
    assert train(ONE, term=proximal, context=received) == pytest.approx(expected, rel=1e-6)


def test_example_weights_multiply_losses_and_do_not_change_the_divisor() -> None:
    factors = torch.tensor([3.0, 0.5])
    expected = 2 - 0.01 * 2 * (3 * 1 + 0.5 * 8 + 0.5 * 12) / 3
    assert train(ONE, weights=by_group, context=factors) == pytest.approx(expected, rel=1e-6)


def test_a_gradient_hook_has_the_last_word() -> None:
    shift = {"weight": torch.tensor([[-5.0]])}
    expected = 2 - 0.01 * (GRADIENT - 5)
    assert train(ONE, gradient=corrected, context=shift) == pytest.approx(expected, rel=1e-6)


def test_weight_decay_pulls_to_zero() -> None:
    local = LocalTraining(lr=0.01, batch=0, weight_decay=0.5)
    assert train(local) == pytest.approx(2 - 0.01 * (GRADIENT + 0.5 * 2), rel=1e-6)


def test_clipping_bounds_the_step() -> None:
    local = LocalTraining(lr=0.01, batch=0, clip=1.5)
    assert train(local) == pytest.approx(2 - 0.01 * 1.5, rel=1e-6)


def test_momentum_is_fresh_in_every_training() -> None:
    local = LocalTraining(lr=0.01, batch=0, momentum=0.9)
    assert train(local) == train(local) == pytest.approx(2 - 0.01 * GRADIENT, rel=1e-6)


def test_adam_moves_by_its_rate_first() -> None:
    """The first step of Adam is `lr * g / (|g| + eps)`."""
    local = LocalTraining(lr=0.01, batch=0, optimizer="adam")
    assert train(local) == pytest.approx(2 - 0.01, rel=1e-6)


def test_batches_of_one_take_a_step_an_example() -> None:
    local = LocalTraining(lr=0.01, batch=1)
    drawn = local.draw(torch.Generator().manual_seed(0), (), 3)
    w = 2.0
    for row in drawn.index[:, 0].tolist():
        x, y = DATA.x[row, 0].item(), DATA.y[row].item()
        w -= 0.01 * 2 * x * (w * x - y)
    assert train(local) == pytest.approx(w, rel=1e-6)
    assert LocalTraining().step_count(drawn).item() == 3
    assert LocalTraining().step_count(drawn.shortened(0.5)).item() == 2


def test_the_objective_is_the_weighted_loss_plus_the_term() -> None:
    received = {"weight": torch.tensor([[0.5]])}
    loss = Objective(TASK, term=proximal).loss(START, DATA, received)
    # mean of 1, 16, 16, and 3/2 * 1.5^2
    assert loss.item() == pytest.approx(11 + 3.375, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "exponential", "decay": 0.5}, [1.0, 0.5, 0.25, 0.125, 0.0625]),
        ({"schedule": "step", "decay": 0.1, "decay_every": 2}, [1.0, 1.0, 0.1, 0.1, 0.01]),
        (
            {"schedule": "cosine", "decay": 0.2},
            [0.2 + 0.4 * (1 + math.cos(math.pi * t / 4)) for t in range(5)],
        ),
    ],
)
def test_rates_follow_the_schedule(options: dict[str, Any], expected: list[float]) -> None:
    local = LocalTraining(lr=2.0, **options)
    rates = [local.rate(t, 5).item() for t in range(5)]
    assert rates == pytest.approx([2.0 * factor for factor in expected], rel=1e-12)


def test_a_cosine_of_one_round_starts_at_the_full_rate() -> None:
    assert LocalTraining(lr=2.0, schedule="cosine", decay=0.0).rate(0, 1).item() == 2.0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lr": 0.0}, "local.lr"),
        ({"lr": float("nan")}, "local.lr"),
        ({"batch": -1}, "local.batch"),
        ({"epochs": 0}, "local.epochs"),
        ({"schedule": "linear"}, "'cosine'"),
        ({"decay": -0.1}, "local.decay"),
        ({"decay_every": 0}, "decay_every"),
        ({"optimizer": "lion"}, "'adam'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LocalTraining(**options)
