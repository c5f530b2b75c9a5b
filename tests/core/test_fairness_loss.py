"""Fairness losses against NumPy, and against what they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core.counts import count_classes
from evenfed.core.fairness_loss import fairness_loss
from evenfed.metrics.group import demographic_parity_to_overall, true_positive_rates

N, B = 3, 40


def batch(groups: int, classes: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "outputs": rng.normal(size=(N, B, classes)),
        "y": rng.integers(classes, size=B),
        "group": rng.integers(groups, size=B),
        "weight": (np.arange(B) < 33).astype(float),
    }


def loss(kind: Any, groups: int, **given: Any) -> np.ndarray:
    tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in given.items()}
    return fairness_loss(kind, groups=groups, **tensors).numpy()


def softmax(outputs: np.ndarray) -> np.ndarray:
    e = np.exp(outputs - outputs.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.proves("praffl", "fairness loss by hand")
def test_covariance_of_two_groups_and_two_classes_is_equation_2() -> None:
    given = batch(2, 2)
    real = given["weight"] > 0
    f, a = softmax(given["outputs"])[:, real, 1], given["group"][real]
    expected = np.abs(((a - a.mean()) * (f - f.mean(1, keepdims=True))).mean(1))
    np.testing.assert_allclose(loss("covariance", 2, **given), expected, rtol=1e-6)
    one_logit = given["outputs"][..., 1] - given["outputs"][..., 0]
    single = loss("covariance", 2, **{**given, "outputs": one_logit})
    np.testing.assert_allclose(single, expected, rtol=1e-6)


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (4, 2), (3, 5)])
def test_covariance_of_more_groups_adds_up_indicators(groups: int, classes: int) -> None:
    given = batch(groups, classes)
    real = given["weight"] > 0
    f, a = softmax(given["outputs"])[:, real], given["group"][real]
    total = np.zeros(N)
    for g in range(groups):
        for c in range(classes):
            member = (a == g) - (a == g).mean()
            total += np.abs((member * (f[..., c] - f[..., c].mean(1, keepdims=True))).mean(1))
    np.testing.assert_allclose(loss("covariance", groups, **given), total / 4, rtol=1e-5)


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (4, 2), (3, 5)])
@pytest.mark.parametrize("kind", ["demographic_parity", "equal_opportunity"])
def test_surrogates_equal_the_metric_of_sharp_predictions(
    kind: Any, groups: int, classes: int
) -> None:
    """Probabilities of 0 and 1 make the expectation a rate, so the loss the measured disparity."""
    given = batch(groups, classes)
    given["outputs"] = given["outputs"] * 1e4
    found = loss(kind, groups, **given)
    for n in range(N):
        predicted, y, group, w = (
            torch.from_numpy(np.asarray(v))
            for v in (given["outputs"][n].argmax(-1), given["y"], given["group"], given["weight"])
        )
        counts = count_classes(predicted, y, group, w, w, groups, classes)
        if kind == "demographic_parity":
            expected = float(demographic_parity_to_overall(counts))
        else:
            rates = true_positive_rates(counts)  # (G, C)
            total = counts.confusion.sum(0).numpy()
            overall = np.diag(total) / total.sum(1)
            away = np.abs(rates - overall)
            expected = float(np.nanmax(away[:, 1] if classes == 2 else away))
        np.testing.assert_allclose(found[n], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["covariance", "demographic_parity", "equal_opportunity"])
def test_predictions_that_ignore_the_group_are_fair_and_squares_do_not_see_it(kind: Any) -> None:
    """Every score stands once in each group and class: independent by construction."""
    score = np.repeat(np.array([-2.0, 0.5, 3.0]), 4)
    given = {
        "outputs": np.stack([np.zeros(12), score], -1)[None],
        "y": np.tile([0, 0, 1, 1], 3),
        "group": np.tile([0, 1, 0, 1], 3),
        "weight": np.ones(12),
    }
    np.testing.assert_allclose(loss(kind, 2, **given), 0, atol=1e-7)
    # Var(group) Var(score): the public code's quantity is positive all the same
    np.testing.assert_allclose(loss("squared_covariance", 2, **given), 0.25 * score.var())


def test_a_batch_without_some_groups_has_finite_losses_and_gradients() -> None:
    for kind in ("covariance", "demographic_parity", "equal_opportunity", "squared_covariance"):
        outputs = torch.randn((2, 4, 3), generator=torch.Generator().manual_seed(0))
        outputs.requires_grad_()
        y, group = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 1, 1])
        for weight in (torch.ones(4), torch.zeros(4)):
            value = fairness_loss(kind, outputs, y, group, weight, 4)
            (gradient,) = torch.autograd.grad(value.sum(), outputs)
            assert torch.isfinite(value).all()
            assert torch.isfinite(gradient).all()
            if kind != "squared_covariance":
                torch.testing.assert_close(value, torch.zeros(2), atol=1e-6, rtol=0)
