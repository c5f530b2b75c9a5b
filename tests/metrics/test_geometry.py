"""Loss geometry against exact Hessians of small models, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

import evenfed as ef
from evenfed.core import models
from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.noise import draw_salts, rademacher_like
from evenfed.core.sign_entropy import entropy
from evenfed.core.task import Params, Task
from evenfed.methods.registry import methods
from evenfed.metrics.geometry import geometry, hessian_trace, sign_pattern, top_eigenvalue

SALTS = draw_salts(torch.Generator().manual_seed(0), 401)


def draw(*shape: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=made, dtype=torch.float64)


def client(seed: int) -> Examples:
    return Examples.of(draw(20, 3, seed=seed), torch.arange(20) % 2)


DATA = client(0)


def start(seed: int = 5) -> Params:
    return {"w": draw(3, 4, seed=seed), "v": draw(4, seed=seed + 1), "b": draw(seed=seed + 2)}


def loss(p: Params, data: Examples) -> Tensor:
    out = torch.tanh(data.x @ p["w"]) @ p["v"] + p["b"]
    return (torch.nn.functional.softplus(out) - data.y * out).mean()


def vector(p: Params) -> Tensor:
    return torch.cat([t.reshape(-1) for t in p.values()])


def tree(v: Tensor) -> Params:
    return {"w": v[:12].view(3, 4), "v": v[12:16], "b": v[16]}


def exact(p: Params, data: Examples) -> Tensor:
    """The Hessian, reverse over reverse."""
    return jacrev(grad(lambda v: loss(tree(v), data)))(vector(p))  # type: ignore[no-any-return]


def test_hutchinson_is_within_its_error_of_the_exact_trace() -> None:
    trace, error = hessian_trace(loss, start(), DATA, SALTS[1:])
    expected = exact(start(), DATA).trace()
    assert (trace - expected).abs() < 3 * error
    assert error < 0.1 * expected.abs()


def test_hutchinson_is_the_mean_of_its_quadratic_forms() -> None:
    h = exact(start(), DATA)
    probes = [vector(rademacher_like(start(), salt)) for salt in SALTS[1:6]]
    forms = torch.stack([z @ h @ z for z in probes])
    trace, error = hessian_trace(loss, start(), DATA, SALTS[1:6])
    torch.testing.assert_close(trace, forms.mean())
    torch.testing.assert_close(error, forms.std() / 5**0.5)


def test_one_probe_has_no_standard_error() -> None:
    trace, error = hessian_trace(loss, start(), DATA, SALTS[:1])
    assert torch.isfinite(trace)
    assert torch.isnan(error)


def test_hutchinson_is_exact_for_a_diagonal_hessian() -> None:
    curvature = torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64)
    p = {"w": draw(3)}
    trace, error = hessian_trace(
        lambda q, data: 0.5 * (curvature * q["w"].square()).sum(), p, DATA, SALTS[:2]
    )
    assert trace.item() == pytest.approx(2.5)
    assert error.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_lanczos_finds_the_eigenvalue_of_largest_magnitude(seed: int) -> None:
    p = start(10 * seed)
    values = torch.linalg.eigvalsh(exact(p, DATA))
    expected = values[values.abs().argmax()]
    torch.testing.assert_close(top_eigenvalue(loss, p, DATA, SALTS[seed]), expected)


def test_lanczos_keeps_the_sign() -> None:
    curvature = torch.linspace(-9, 5, 40, dtype=torch.float64)
    p = {"w": draw(40)}
    found = top_eigenvalue(
        lambda q, data: 0.5 * (curvature * q["w"].square()).sum(), p, DATA, SALTS[0], steps=20
    )
    assert found.item() == pytest.approx(-9, rel=1e-3)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_lanczos_stops_where_the_krylov_space_is_exhausted(rank: int) -> None:
    """A Hessian of low rank has an invariant space smaller than the number of steps."""
    directions = torch.linalg.qr(draw(12, 2)).Q.T[:rank]
    sizes = torch.tensor([4.0, -1.0], dtype=torch.float64)[:rank]

    def low(q: Params, data: Examples) -> Tensor:
        return 0.5 * (sizes * (directions @ q["w"]).square()).sum() + 0 * q["w"].square().sum()

    found = top_eigenvalue(low, {"w": draw(12)}, DATA, SALTS[0])
    assert found.item() == pytest.approx(4.0 if rank else 0.0, abs=1e-6)


def test_signs_on_a_quadratic_flip_where_the_rate_is_too_large() -> None:
    """`g_{t+1} = (1 - rate c) g_t`: with `rate c` in (1, 2) the sign changes at every step."""
    curvature = torch.tensor([0.5, 1.5, 1.9, 0.9], dtype=torch.float64)
    p = {"w": torch.ones(4, dtype=torch.float64), "unused": torch.zeros(6, dtype=torch.float64)}
    bits, flips = sign_pattern(
        lambda q, data: 0.5 * (curvature * q["w"].square()).sum() + 0 * q["unused"].sum(),
        p, DATA, rate=1.0, steps=10,
    )  # fmt: skip
    # two of four coordinates alternate: five positive of ten signs is one bit
    assert bits.item() == pytest.approx(0.5)
    assert flips.item() == pytest.approx(0.5)


def test_sign_pattern_is_that_of_the_path() -> None:
    p, rate, steps = start(), 3.0, 7
    gradients = []
    for _ in range(steps):
        g = vector(grad(loss)(p, DATA))
        gradients.append(g)
        p = tree(vector(p) - rate * g)
    signs = torch.stack(gradients).sign()
    changes = (signs[1:] * signs[:-1] < 0).double().sum(0)
    each = entropy((signs > 0).double().mean(0))
    bits, flips = sign_pattern(loss, start(), DATA, rate=rate, steps=steps)
    torch.testing.assert_close(bits, each.mean())
    torch.testing.assert_close(flips, changes.mean() / (steps - 1))
    assert (changes <= steps * each + 1e-9).all()
    assert changes.sum() > 0


def test_clients_side_by_side_measure_as_alone() -> None:
    data = [client(i) for i in range(3)]

    def one(d: Examples, p: Params) -> dict[str, Tensor]:
        return geometry(loss, p, d, SALTS[:6], rate=0.5)

    starts = [start(i) for i in range(3)]
    together = vmap(one)(trees.stack(data), trees.stack(starts))
    for i in range(3):
        for name, value in one(data[i], starts[i]).items():
            torch.testing.assert_close(together[name][i], value)


def test_padding_changes_nothing() -> None:
    task = Task(lambda: torch.nn.Linear(3, 2), "binary", 2, 1)
    data = Examples.of(DATA.x.float(), DATA.y)
    a, b = (
        geometry(task.mean_loss, task.init(), d, SALTS[:4], rate=0.5)
        for d in (data, data.padded(27))
    )
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def results() -> list[Any]:
    data = ef.load("synthetic", seed=0)
    return [ef.train("fedavg", data, rounds=1, engine=e) for e in ("vectorized", "sequential")]


def test_a_result_measures_every_client_alike_on_both_engines(results: list[Any]) -> None:
    a, b = (result.geometry(probes=3, rows=50) for result in results)
    assert list(a.index) == list(results[0].clients.index)
    assert list(a.columns) == [
        "sign_entropy", "flip_rate", "hessian_trace", "hessian_trace_error", "top_eigenvalue",
    ]  # fmt: skip
    assert ((a - b).abs() <= 1e-3 * b.abs() + 1e-5).all(axis=None)
    assert a.equals(results[0].geometry(probes=3, rows=50)), "a measurement can be repeated"


def test_images_are_measured_one_client_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second derivatives of stacked convolutions take longer."""
    data = ef.load("digits", clients=4)

    def convolutions() -> torch.nn.Module:
        return models.cnn(data.schema.shape, 10, channels=[4], hidden=8)

    result = ef.train("fedavg", data, rounds=1, engine="vectorized", model=convolutions)
    whole = result.geometry(probes=2, rows=8)
    monkeypatch.setattr("evenfed.runs.geometry._outgrows_stacking", lambda model: False)
    stacked = result.geometry(probes=2, rows=8)
    assert not whole.equals(stacked), "the other way of computing rounds otherwise"
    assert ((whole - stacked).abs() <= 1e-3 * stacked.abs() + 1e-4).all(axis=None)


def test_measuring_leaves_the_run_as_it_was(results: list[Any]) -> None:
    federation = results[0]._runner.federation
    traffic, kept = (federation.traffic.down, federation.traffic.up), dict(federation.states.kept)
    results[0].geometry(probes=1, rows=10)
    assert (federation.traffic.down, federation.traffic.up) == traffic
    assert federation.states.kept == kept
    assert not federation.states.pending


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_geometry_of_every_method_is_finite(method: str, results: list[Any]) -> None:
    result = ef.train(method, results[0].data, rounds=1, engine="vectorized", steps=2)
    found = result.geometry(probes=2, path=2, lanczos=2, rows=20)
    assert len(found) == len(result.data)
    assert np.isfinite(found.to_numpy()).all()


def test_the_point_of_focus_is_all_of_its_models() -> None:
    """Of linear models `f_m` the loss of `sum_m pi_m f_m` has blocks `pi_m pi_l H` as its Hessian.

    Its largest eigenvalue is that of one model, which no weights change, times `sum_m pi_m^2`.
    """
    data = ef.load("linear", clients=4, n=30, n_val=5, n_test=10)
    options: dict[str, Any] = {"rounds": 1, "engine": "vectorized", "lr": 0.01, "model": "linear"}
    one = ef.train("fedavg", data, **options).geometry(probes=2)["top_eigenvalue"]
    result = ef.train("focus", data, init="common_noise", noise=0.5, m=2, **options)
    both = result.geometry(probes=2)["top_eigenvalue"]
    for name in both.index:
        share = float(result._state(name)["log_pi"].exp().square().sum())
        assert 0.5 <= share < 1
        assert both[name] == pytest.approx(share * one[name], rel=1e-3)
