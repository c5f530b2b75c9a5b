"""PraFFL and HetPFL by hand, and the statements that their papers rest on.

By hand: a body `q = relu(w x + v)` with two features, and a hypernetwork without a trunk, so that
the ray `lambda` is read out linearly: `(W, b) = M lambda + m`, logits `W q + b`. With full batches,
two local epochs are one step of the body and one of the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import moocore
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor, nn
from torch.func import vmap

from evenfed.core.hypernetwork import FusionNet
from evenfed.core.local import LocalTraining
from evenfed.core.optimizer import Optimizer
from evenfed.core.preferences import rays, scalarized
from evenfed.core.randomness import generator
from evenfed.methods.hetpfl import HetPFL
from evenfed.methods.praffl import PraFFL
from evenfed.methods.sampling import Adaptive, Sampler, Uniform

ASKED = (0.2, 0.7, 0.96)
EPS, KAPPA = 0.01, 0.4
SHORT: dict[str, Any] = {
    "local": LocalTraining(lr=0.02, batch=16, epochs=2, optimizer="adam"),
    "refresh": 1,
}


@dataclass(frozen=True)
class Given(Uniform):
    """The same preferences in every step."""

    def preferences(self, memory: Any, noise: Tensor) -> Tensor:
        return torch.tensor(ASKED)


@dataclass(frozen=True)
class GivenAdaptive(Adaptive):
    """The same preferences in every step, whatever alpha has become."""

    def preferences(self, memory: Any, noise: Any) -> Tensor:
        return torch.tensor(ASKED)


class PraFFLByHand(PraFFL):
    @property
    def sampler(self) -> Sampler:
        return Given()


class HetPFLByHand(HetPFL):
    @property
    def sampler(self) -> Sampler:
        return GivenAdaptive(Optimizer("sgd"), KAPPA, self.alpha_bounds, self.baseline)


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        made[0].weight.copy_(torch.tensor([[0.8], [-0.5]]))
        made[0].bias.copy_(torch.tensor([0.3, 0.4]))
    return made


class ByHand:
    """The formulas in NumPy: `psi` is (w, v), `beta` holds M (6 x 2) and m (6)."""

    def __init__(self, problem: Any, eta: float) -> None:
        self.problem, self.eta = problem, eta

    def features(self, i: int, psi: np.ndarray) -> np.ndarray:
        return np.maximum(self.problem.x[i][:, None] * psi[:2] + psi[2:], 0)

    def classifier(self, beta: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
        written = beta[:12].reshape(6, 2) @ np.array([p, 1 - p]) + beta[12:]
        return written[:4].reshape(2, 2), written[4:]

    def probabilities(self, i: int, psi: np.ndarray, beta: np.ndarray, p: float) -> np.ndarray:
        weight, bias = self.classifier(beta, p)
        logits = self.features(i, psi) @ weight.T + bias
        e = np.exp(logits)
        return e / e.sum(1, keepdims=True)

    def losses(self, i: int, psi: np.ndarray, beta: np.ndarray, p: float) -> tuple[float, float]:
        """Cross-entropy, and |mean (a - mean a)(f - mean f)|."""
        f, y, a = self.probabilities(i, psi, beta, p), self.problem.y[i], self.problem.group[i]
        ce = -np.log(f[np.arange(len(y)), y]).mean()
        return ce, abs(((a - a.mean()) * (f[:, 1] - f[:, 1].mean())).mean())

    def slope(self, i: int, psi: np.ndarray, beta: np.ndarray, p: float, which: int) -> np.ndarray:
        """Gradient of one of the losses with respect to the logits, (n, 2)."""
        f, y, a = self.probabilities(i, psi, beta, p), self.problem.y[i], self.problem.group[i]
        n = len(y)
        if which == 0:
            return (f - np.eye(2)[y]) / n
        away = (a - a.mean()) / n
        sign = np.sign((away * f[:, 1]).sum())
        one = sign * away * f[:, 0] * f[:, 1]
        return np.stack([-one, one], 1)

    def body_step(self, i: int, psi: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """Eq. 11: a step along the gradient of the cross-entropy at p = 1/2."""
        weight, _ = self.classifier(beta, 0.5)
        back = self.slope(i, psi, beta, 0.5, 0) @ weight * (self.features(i, psi) > 0)
        gradient = np.concatenate([(back * self.problem.x[i][:, None]).sum(0), back.sum(0)])
        return psi - self.eta * gradient

    def head_step(self, i: int, psi: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """Eq. 12: the mean over preferences of the gradient of `max_j l_j / lambda_j`."""
        total = np.zeros(18)
        for p in ASKED:
            ratios = np.array(self.losses(i, psi, beta, p)) / np.array([p, 1 - p])
            which = int(ratios.argmax())
            slope = self.slope(i, psi, beta, p, which) / np.array([p, 1 - p])[which]
            written = np.concatenate([(slope.T @ self.features(i, psi)).ravel(), slope.sum(0)])
            total += np.concatenate([np.outer(written, [p, 1 - p]).ravel(), written])
        return beta - self.eta * total / len(ASKED)

    def alpha_step(
        self, i: int, psi: np.ndarray, beta: np.ndarray, alpha: np.ndarray
    ) -> np.ndarray:
        """Eqs. 13 and 14 at the losses before the head's step, with HVC by its definition."""
        points = np.array([self.losses(i, psi, beta, p) for p in ASKED])
        reference = np.maximum(1.0, points.max(0))
        whole = moocore.hypervolume(points, ref=reference)
        gradient = np.zeros(2)
        for k, p in enumerate(ASKED):
            hvc = whole - moocore.hypervolume(np.delete(points, k, 0), ref=reference)
            psi_sum = scipy.special.digamma(alpha.sum())
            score = np.log([p, 1 - p]) - scipy.special.digamma(alpha) + psi_sum
            gradient -= hvc * score / len(ASKED)
        return np.clip(alpha - KAPPA * gradient, 0.5, 5.0)

    def rounds(self, beta: np.ndarray, rounds: int) -> dict[str, Any]:
        psi = np.array([0.8, -0.5, 0.3, 0.4])
        betas = [beta.copy() for _ in self.problem.clients]
        alphas = [np.full(2, 1.05) for _ in self.problem.clients]
        for _ in range(rounds):
            bodies = []
            for i in self.problem.clients:
                own = self.body_step(i, psi, betas[i])
                alphas[i] = self.alpha_step(i, own, betas[i], alphas[i])
                betas[i] = self.head_step(i, own, betas[i])
                bodies.append(own)
            psi = np.mean(bodies, axis=0)  # Eq. 15
        return {"psi": psi, "betas": np.stack(betas), "alphas": np.stack(alphas)}


def options(problem: Any) -> dict[str, Any]:
    return {"local": problem.local, "head": (), "trunk": (), "eps": EPS, "refresh": 0}


def of_server(server: Any) -> np.ndarray:
    params = server["params"]
    return np.concatenate([params["0.weight"].numpy().ravel(), params["0.bias"].numpy()])


@pytest.mark.proves("praffl", "two rounds by hand")
def test_praffl(logit: Any, engine: str) -> None:
    run = logit.run(PraFFLByHand(**options(logit)), engine, model=module())
    method, kept = run.runner.method, run.runner.federation.states.kept
    first = method.client_state(torch.Generator(), 1)["beta"].double().numpy()
    expected = ByHand(logit, logit.eta).rounds(first, logit.rounds)
    np.testing.assert_allclose(of_server(run.runner.server), expected["psi"], rtol=1e-5)
    for i in logit.clients:
        np.testing.assert_allclose(kept[i]["beta"], expected["betas"][i], rtol=1e-4, atol=1e-6)
    mean = expected["betas"].mean(0)
    np.testing.assert_allclose(run.runner.server["beta"], mean, rtol=1e-4, atol=1e-6)
    moved = np.abs(expected["betas"] - first).max(1)
    assert (moved > 0.01).all(), "a test without a step shows nothing"


@pytest.mark.proves("hetpfl", "two rounds of PSA by hand")
def test_hetpfl_adapts_its_preferences(logit: Any, engine: str) -> None:
    method = HetPFLByHand(phf="none", alpha_optimizer="sgd", **options(logit))
    run = logit.run(method, engine, model=module())
    kept = run.runner.federation.states.kept
    first = run.runner.method.client_state(torch.Generator(), 1)["beta"].double().numpy()
    expected = ByHand(logit, logit.eta).rounds(first, logit.rounds)
    for i in logit.clients:
        np.testing.assert_allclose(kept[i]["beta"], expected["betas"][i], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(kept[i]["alpha"], expected["alphas"][i], rtol=1e-4)
    assert (np.abs(expected["alphas"] - 1.05) > 1e-3).any(1).all()


@pytest.mark.proves("hetpfl", "first step of the FusionNet by hand")
def test_hetpfl_fuses(logit: Any, engine: str) -> None:
    """Eqs. 10 and 16: Adam's first step is `lr g / (|g| + 1e-8)`, g by differences of Eq. 10."""
    fusion = {"fusion_steps": 1, "fusion_lr": 0.02, "fusion_preferences": 4, "fusion_hidden": (3,)}
    method = HetPFLByHand(phf="federated", alpha_optimizer="sgd", **fusion, **options(logit))
    run = logit.run(method, engine, model=module())
    hand, psi = ByHand(logit, logit.eta), of_server(run.runner.server).astype(np.float64)
    betas = run.runner.server["hypernetworks"].double().numpy()
    draws = generator(0, "fusion")
    start = FusionNet(3, (3,)).first(draws)
    asked = np.clip(((torch.arange(4) + torch.rand(4, generator=draws)) / 4).numpy(), EPS, 1 - EPS)

    def objective(phi: dict[str, np.ndarray]) -> float:
        total = 0.0
        for p in asked:
            ray = np.array([p, 1 - p])
            hidden = np.maximum(phi["w0"] @ ray + phi["b0"], 0)
            logits = phi["w1"] @ hidden + phi["b1"]
            mixed = np.exp(logits) / np.exp(logits).sum() @ betas
            total += sum(max(np.array(hand.losses(i, psi, mixed, p)) / ray) for i in range(3)) / 3
        return total / len(asked)

    phi = {name: value.double().numpy().copy() for name, value in start.items()}
    found = run.runner.server["phi"]
    checked = 0
    for name, value in phi.items():
        for at in np.ndindex(value.shape):
            sides = []
            for step in (1e-6, -1e-6):
                value[at] += step
                sides.append(objective(phi))
                value[at] -= step
            g = (sides[0] - sides[1]) / 2e-6
            if abs(g) > 1e-5:  # below, rounding decides the sign
                expected = value[at] - 0.02 * g / (abs(g) + 1e-8)
                np.testing.assert_allclose(found[name][at], expected, atol=1e-5)
                checked += 1
    assert checked >= 8


@pytest.mark.proves("hetpfl", "fusion at the server equals fusion by gradients at home")
def test_features_need_not_leave_the_clients(
    make_dataset: Any, train_rounds: Callable[..., Any], distance: Any, flat: Any
) -> None:
    data = make_dataset(sizes=(32, 30))
    a, b = (
        train_rounds(HetPFL(phf=phf, fusion_steps=20, **SHORT), data, evaluate=False).runner
        for phf in ("server", "federated")
    )
    assert distance(flat(a.server["phi"]), flat(b.server["phi"])) < 1e-4
    even = FusionNet(2, (16,)).first(generator(0, "fusion"))
    assert distance(flat(a.server["phi"]), flat(even)) > 0.05
    assert a.federation.traffic.exchanges < b.federation.traffic.exchanges


@pytest.mark.proves("hetpfl", "without PSA and PHF it is PraFFL bit for bit")
def test_without_both_parts_it_is_praffl(
    make_dataset: Any, train_rounds: Callable[..., Any]
) -> None:
    data = make_dataset(sizes=(32, 30, 29))
    a = train_rounds(PraFFL(**SHORT), data)
    b = train_rounds(HetPFL(psa=False, phf="none", **SHORT), data)
    assert a.uploads.keys() == b.uploads.keys()
    assert torch.equal(a.everything, b.everything)


def curve(p: Tensor) -> Tensor:
    """Losses of a smooth front, (..., 2)."""
    return torch.stack([0.2 + 0.5 * p**2, 0.1 + 0.6 * (1 - p) ** 1.5], -1)


@pytest.mark.proves("hetpfl", "PSA follows the gradient of the expected area")
@pytest.mark.parametrize("baseline", ["none", "leave_one_out"])
def test_the_expected_step_of_psa_is_the_gradient_of_the_expected_area(baseline: Any) -> None:
    """`E[g] = -(1/N) d E[HV(S)] / d alpha` for N = 2, both sides by quadrature.

    The right side by central differences of the smoothed objective `E[HV(S)]`, with areas from
    another library; the left side through the code's own step of rate 1.
    """
    nodes, weights = np.polynomial.legendre.leggauss(60)
    p, w = (nodes + 1) / 2, weights / 2
    pairs = np.stack(np.meshgrid(p, p, indexing="ij"), -1).reshape(-1, 2)
    shares = np.outer(w, w).ravel()
    points = curve(torch.from_numpy(pairs))
    areas = np.array([moocore.hypervolume(s.numpy(), ref=[1, 1]) for s in points])

    def expected_area(alpha: np.ndarray) -> float:
        return float((scipy.stats.beta(*alpha).pdf(pairs).prod(1) * shares) @ areas)

    alpha, h = np.array([1.4, 3.0]), 1e-4
    sides = [[expected_area(alpha + s * h * e) for s in (1, -1)] for e in np.eye(2)]
    slope = [(up - down) / (2 * h) for up, down in sides]

    rule = Optimizer("sgd")
    step = Adaptive(rule, 1.0, (0.1, 50.0), baseline)
    start = torch.from_numpy(alpha)
    memory = {
        "alpha": start, "optimizer": rule.memory(start), "reference": torch.ones(2).double()
    }  # fmt: skip
    new = vmap(lambda asked, losses: step.updated(memory, asked, losses)["alpha"])(
        torch.from_numpy(pairs), points
    )
    density = scipy.stats.beta(*alpha).pdf(pairs).prod(1) * shares
    expected_step = density @ (new - start).numpy()
    assert np.abs(slope).min() > 1e-3, slope
    np.testing.assert_allclose(expected_step, np.array(slope) / 2, rtol=0.02)


@pytest.mark.proves("praffl", "Lemma 1 on a convex problem")
@pytest.mark.parametrize("p", [0.25, 0.5, 0.8])
def test_the_optimum_of_a_ray_lies_on_it_and_on_the_front(p: float) -> None:
    """`l = (x - a)^2 + 0.2`, two targets in the plane: the front is where x lies between them."""
    targets = torch.tensor([[0.0, 0.0], [1.0, 0.5]], dtype=torch.float64)

    def losses(x: Tensor) -> Tensor:
        return (x - targets).square().sum(-1) + 0.2

    ray = rays(torch.tensor(p, dtype=torch.float64), EPS)
    x = torch.tensor([0.9, -0.4], dtype=torch.float64, requires_grad=True)
    for t in range(4000):
        (g,) = torch.autograd.grad(scalarized(losses(x), ray, "tchebycheff"), x)
        with torch.no_grad():
            x -= 0.1 / (1 + t) ** 0.75 * g
    found = losses(x).detach()
    np.testing.assert_allclose(found[0] / found[1], ray[0] / ray[1], rtol=0.01)
    along = x.detach() @ targets[1] / targets[1].square().sum()
    assert 0 <= float(along) <= 1
    np.testing.assert_allclose(x.detach(), along * targets[1], atol=0.01)
