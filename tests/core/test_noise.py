"""Noise from a salt: right moments, independent of the engine."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from evenfed.core import tree as trees
from evenfed.core.noise import draw_salts, normal_like, rademacher_like

N = 200_000
TREE = {"a": torch.zeros(N // 2), "b": torch.zeros(N // 2), "c": torch.zeros(())}


def flat(tree: object) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in trees.leaves(tree)])


def test_normal_values_have_the_moments_of_a_normal_distribution() -> None:
    z = flat(normal_like(TREE, torch.tensor(3))).double()
    # standard errors: 1/sqrt(N) = 0.0022 of the mean, sqrt(2/N) = 0.0032 of the variance,
    # sqrt(96/N) = 0.022 of the fourth moment
    assert z.mean().abs() < 0.01
    assert (z.square().mean() - 1).abs() < 0.015
    assert (z.pow(4).mean() - 3).abs() < 0.1
    # P(|z| > 1.96) = 0.05
    assert ((z.abs() > 1.96).double().mean() - 0.05).abs() < 0.003


def test_signs_are_balanced() -> None:
    z = flat(rademacher_like(TREE, torch.tensor(3)))
    assert set(z.tolist()) == {-1.0, 1.0}
    assert z.mean().abs() < 0.01


@pytest.mark.parametrize("make", [normal_like, rademacher_like])
def test_positions_and_salts_are_independent(make: object) -> None:
    drawn = [flat(make(TREE, torch.tensor(s))) for s in (0, 1, 2**31)]  # type: ignore[operator]
    pairs = [(drawn[0], drawn[1]), (drawn[1], drawn[2]), (drawn[0][1:], drawn[0][:-1])]
    for a, b in pairs:
        assert (a * b).mean().abs() < 0.01


def test_clients_side_by_side_get_what_they_get_alone() -> None:
    salts = draw_salts(torch.Generator().manual_seed(0), 4)
    small = {"a": torch.zeros(3, 2), "b": torch.zeros(5)}
    together = vmap(lambda s: normal_like(small, s))(salts)
    for i, salt in enumerate(salts):
        torch.testing.assert_close(flat(trees.row(together, i)), flat(normal_like(small, salt)))
