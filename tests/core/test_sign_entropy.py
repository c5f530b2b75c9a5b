"""The mathematics of sign entropy against finite differences and closed forms, in float64."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from evenfed.core import tree as trees
from evenfed.core.sign_entropy import (
    ahead,
    disagreement,
    disagreement_gradients,
    entropy,
    norm,
    regularizer_gradient,
    rescaled,
    same_batch_entropy,
    soft_sign,
    widths,
)

Params = dict[str, Tensor]
RATE = torch.tensor(0.3, dtype=torch.float64)
objectives = pytest.mark.parametrize("objective", ["js", "entropy"])
axes = pytest.mark.parametrize("axis", ["time", "coordinates"])
through = pytest.mark.parametrize("through", [False, True])
products = pytest.mark.parametrize("product", ["double", "difference"])


def draw(*shape: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=made, dtype=torch.float64)


def mlp(seed: int = 0) -> Params:
    return {
        "w1": draw(4, 6, seed=seed),
        "b1": 0.1 * draw(6, seed=seed + 1),
        "w2": draw(6, 3, seed=seed + 2),
        "scale": 1 + 0.1 * draw(seed=seed + 3),
    }


X, Y = draw(12, 4, seed=9), torch.arange(12) % 3


def mlp_loss(p: Params, x: Tensor = X) -> Tensor:
    out = torch.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] * p["scale"]
    return -out.log_softmax(-1).gather(-1, Y.unsqueeze(-1)).mean()


gradient = grad(mlp_loss)


def flat(tree: Any) -> Tensor:
    return torch.cat([t.reshape(-1) for t in trees.leaves(tree)])


def error(a: Any, b: Any) -> float:
    return float((flat(a) - flat(b)).norm() / flat(b).norm())


def numerical(f: Any, at: Params, step: float = 1e-6) -> Params:
    """Central differences of a scalar function, coordinate by coordinate."""
    found, structure = trees.flatten(at)
    out = [torch.zeros_like(t) for t in found]
    for i, leaf in enumerate(found):
        for j in range(leaf.numel()):
            sides = []
            for sign in (1, -1):
                moved = leaf.reshape(-1).clone()
                moved[j] += sign * step
                new = [*found[:i], moved.view(leaf.shape), *found[i + 1 :]]
                sides.append(f(trees.unflatten(new, structure)))
            out[i].view(-1)[j] = (sides[0] - sides[1]) / (2 * step)
    return trees.unflatten(out, structure)  # type: ignore[no-any-return]


@pytest.mark.proves("ser", "closed form of dR/dg against finite differences")
@objectives
@axes
def test_closed_form_of_v_is_the_derivative_in_gradient_space(objective: Any, axis: Any) -> None:
    g0 = gradient(mlp())
    g1 = gradient(ahead(mlp(), g0, RATE))
    at0, at1 = widths(g0, 1.0), widths(g1, 1.0)
    v0, v1 = disagreement_gradients(g0, g1, at0, at1, objective, axis)
    step = 1e-4 * float(norm(g0)) / 50
    expected = numerical(lambda g: disagreement(g, g1, at0, at1, objective, axis), g0, step)
    assert error(v0, expected) < 1e-5
    if axis == "time":
        other = numerical(lambda g: disagreement(g0, g, at0, at1, objective, axis), g1, step)
        assert v1 is not None
        assert error(v1, other) < 1e-5
    else:
        assert v1 is None


@pytest.mark.proves("ser", "grad R against finite differences in weight space")
@objectives
@axes
@products
@through
@pytest.mark.parametrize("kappa", [0.5, 2.0])
def test_gradient_of_r_in_weight_space(
    objective: Any, axis: Any, product: Any, through: bool, kappa: float
) -> None:
    start = mlp()
    g0 = gradient(start)
    g1 = gradient(ahead(start, g0, RATE))
    at0, at1 = widths(g0, kappa), widths(g1, kappa)

    def r(p: Params) -> Tensor:
        here = gradient(p)
        there = gradient(ahead(p, here if through else g0, RATE))
        return disagreement(here, there, at0, at1, objective, axis)

    options: Any = {"kappa": kappa, "objective": objective, "axis": axis, "product": product}
    same, found = regularizer_gradient(gradient, start, RATE, through=through, **options)
    assert error(same, g0) < 1e-12
    assert error(found, numerical(r, start)) < 1e-3


@pytest.mark.proves("ser", "both Hessian products under vmap and in a trace")
@products
def test_gradient_of_r_is_the_same_under_vmap_and_in_a_trace(product: Any) -> None:
    def one(p: Params, x: Tensor) -> Params:
        at = partial(grad(mlp_loss), x=x)
        return regularizer_gradient(at, p, RATE, product=product)[1]

    xs = torch.stack([X, X.flip(0), 2 * X])
    starts = trees.stack([mlp(0), mlp(10), mlp(20)])
    together = vmap(one)(starts, xs)
    traced = make_fx(vmap(one))(starts, xs)(starts, xs)
    for i in range(3):
        alone = one(mlp(10 * i), xs[i])
        assert error(trees.row(together, i), alone) < 1e-9
        assert error(trees.row(traced, i), alone) < 1e-9


signs = st.lists(st.booleans(), min_size=1, max_size=60)
blocks = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
    lambda n: [True, False] * n[0] + [True] * n[1]
)
"""Alternating first, then constant: as many changes as the rarer sign allows."""


@pytest.mark.proves("ser", "sign changes are at most E h2(p)")
@given(signs | blocks.filter(bool))
def test_sign_changes_are_bounded_by_the_sign_entropy(sequence: list[bool]) -> None:
    """`V <= 2 min(n+, n-) <= E h2(p)`."""
    steps, plus = len(sequence), sum(sequence)
    changes = sum(a != b for a, b in pairwise(sequence))
    assert changes <= 2 * min(plus, steps - plus)
    bits = float(entropy(torch.tensor(plus / steps, dtype=torch.float64)))
    assert 2 * min(plus, steps - plus) <= steps * bits + 1e-9


vectors = st.lists(st.floats(-50, 50), min_size=3, max_size=3)


@given(vectors, vectors)
def test_disagreement_is_between_zero_and_one_bit(a: list[float], b: list[float]) -> None:
    g0 = {"w": torch.tensor(a, dtype=torch.float64)}
    g1 = {"w": torch.tensor(b, dtype=torch.float64)}
    at0, at1 = widths(g0, 1.0), widths(g1, 1.0)
    r = float(disagreement(g0, g1, at0, at1))
    assert -1e-12 <= r <= 1
    assert r <= float(disagreement(g0, g1, at0, at1, "entropy")) + 1e-12
    assert abs(float(disagreement(g0, g0, at0, at0))) < 1e-12


@pytest.mark.proves("ser", "no reward for large gradients where signs agree")
def test_agreeing_signs_gain_nothing_from_growing_with_js_but_with_plain_entropy() -> None:
    g = {"w": draw(50)}
    at = widths(g, 1.0)
    v0, _ = disagreement_gradients(g, g, at, at, "js")
    assert not flat(v0).abs().max() > 1e-12
    v0, _ = disagreement_gradients(g, g, at, at, "entropy")
    # moving against v0 makes every |g| larger
    assert (flat(v0) * flat(g) <= 0).all()


def test_among_coordinates_it_is_the_entropy_of_the_share_of_positive_signs() -> None:
    """Of `pi = 0.9, 0.5`: `h2(0.7)`; with "js" less the mean of `h2(0.9)` and `h2(0.5) = 1`."""
    g = {"w": torch.tensor([4 / 3, 0.0], dtype=torch.float64)}
    other = {"w": torch.tensor([-1.0, 1.0], dtype=torch.float64)}
    at = {"w": torch.tensor(1.0, dtype=torch.float64)}
    p = torch.tensor([0.7, 0.9], dtype=torch.float64)
    mixed, one = entropy(p)
    plain = disagreement(g, other, at, at, axis="coordinates")
    torch.testing.assert_close(plain, mixed)
    torch.testing.assert_close(disagreement(g, other, at, at, "entropy", "coordinates"), mixed)
    torch.testing.assert_close(
        disagreement(g, other, at, at, "js", "coordinates"), mixed - (one + 1) / 2
    )


def test_soft_sign_has_its_values() -> None:
    u, width = torch.tensor([-4.0, 0.0, 3.0]), torch.tensor(3.0)
    # -4 / sqrt(16 + 9), 0, 3 / sqrt(18)
    expected = torch.tensor([-0.8, 0.0, 0.5**0.5])
    torch.testing.assert_close(soft_sign(u, width), expected)


def test_coordinates_without_gradient_do_not_count() -> None:
    g0, g1 = {"w": draw(5)}, {"w": draw(5, seed=1)}
    more0 = {**g0, "dead": torch.zeros(7, dtype=torch.float64)}
    more1 = {**g1, "dead": torch.zeros(7, dtype=torch.float64)}
    at = [widths(g, 1.0) for g in (g0, g1, more0, more1)]
    assert disagreement(more0, more1, at[2], at[3]) == disagreement(g0, g1, at[0], at[1])
    v0, v1 = disagreement_gradients(more0, more1, at[2], at[3])
    assert v1 is not None
    assert not v0["dead"].any()
    assert not v1["dead"].any()


def test_probabilities_stay_within_their_bounds() -> None:
    """One gradient of 1 among 10,000 zeros: the width is 0.01, so `pi` is above 1 - 1e-4."""
    g = {"w": torch.zeros(10_000, dtype=torch.float64)}
    g["w"][0] = 1.0
    at = widths(g, 1.0)
    p = torch.tensor(1e-4, dtype=torch.float64)
    torch.testing.assert_close(disagreement(g, g, at, at, "entropy"), entropy(p))
    v0, v1 = disagreement_gradients(g, g, at, at, "entropy")
    assert v1 is not None
    assert not v0["w"].any()
    assert not v1["w"].any()


CURVATURE = torch.tensor([0.5, 1.0, 1.6, 0.2, 1.9, 1.2], dtype=torch.float64)


def quadratic(p: Params) -> Tensor:
    return 0.5 * (CURVATURE * p["w"].square()).sum()


@pytest.mark.proves("ser", "steep coordinates flip, and a step lowers R")
@through
@pytest.mark.parametrize("seed", range(5))
def test_on_a_diagonal_quadratic_steep_coordinates_flip_and_one_step_lowers_r(
    through: bool, seed: int
) -> None:
    """With the widths (and without `through` the look-ahead step) held fixed, as R is defined."""
    rate = torch.tensor(1.0, dtype=torch.float64)
    p = {"w": draw(6, seed=seed)}
    slope = grad(quadratic)
    g0, away = regularizer_gradient(slope, p, rate, through=through)
    g1 = slope(ahead(p, g0, rate))
    # g1 = (1 - rate c) g0
    assert torch.equal(g0["w"] * g1["w"] < 0, rate * CURVATURE > 1)

    def r(q: Params) -> Tensor:
        here = slope(q)
        there = slope(ahead(q, here if through else g0, rate))
        return disagreement(here, there, widths(g0, 1.0), widths(g1, 1.0))

    step = trees.scale(away, float(0.02 * rate * norm(g0) / norm(away)))
    assert r(trees.subtract(p, step)) < r(p)


def rayleigh(p: Params) -> float:
    """`g'Hg / |g|^2`."""
    g = gradient(p)
    beyond, before = (gradient(trees.add(p, g, e)) for e in (1e-5, -1e-5))
    product = trees.scale(trees.subtract(beyond, before), 0.5e5)
    return float(trees.dot(g, product) / trees.squared_norm(g))


def after_descent_on_r(seed: int, through: bool) -> tuple[float, float]:
    """The curvature along the gradient before and after fifty short steps along `-grad R`."""
    p = mlp(seed)
    before = rayleigh(p)
    for _ in range(50):
        _, away = regularizer_gradient(gradient, p, RATE, through=through)
        p = trees.subtract(p, trees.scale(away, float(0.01 / norm(away))))
    return before, rayleigh(p)


@pytest.mark.proves("ser", "descent on R lowers the curvature along the gradient")
def test_descent_on_r_alone_lowers_the_curvature_along_the_gradient() -> None:
    runs = [after_descent_on_r(10 * seed, through=True) for seed in range(8)]
    assert all(after < before for before, after in runs)


def test_with_the_look_ahead_step_held_fixed_the_curvature_falls_on_average_only() -> None:
    runs = [after_descent_on_r(10 * seed, through=False) for seed in range(8)]
    assert sum(after for _, after in runs) < sum(before for before, _ in runs)


def test_same_batch_entropy_is_the_plain_objective_of_the_pair() -> None:
    g0 = gradient(mlp())
    g1 = gradient(ahead(mlp(), g0, RATE))
    expected = disagreement(g0, g1, widths(g0, 1.0), widths(g1, 1.0), "entropy")
    assert same_batch_entropy(gradient, mlp(), RATE) == expected
    assert 0 < float(expected) < 1


@pytest.mark.parametrize("size", [1e-30, 1e-24, 1.0, 1e25])
def test_a_direction_of_any_size_is_rescaled(size: float) -> None:
    """In float32 the squares of the first two and of the last are no floats."""
    tree = {"a": torch.tensor([3.0, 0.0]) * size, "b": torch.tensor(-4.0) * size}
    found = flat(rescaled(tree, torch.tensor(10.0)))
    torch.testing.assert_close(found, torch.tensor([6.0, 0.0, -8.0]))


def test_no_direction_stays_none_whatever_the_length() -> None:
    assert not flat(rescaled({"a": torch.zeros(3)}, torch.tensor(1e30))).any()


def test_a_rescaled_tree_keeps_its_precisions() -> None:
    tree = {"a": torch.ones(2, 3), "b": torch.full((4,), 2.0, dtype=torch.float64)}
    found = rescaled(tree, torch.tensor(1.0))
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in tree.items()
    }
