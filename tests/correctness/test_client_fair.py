"""Methods that are fair between clients: two rounds by hand. Formulas: the papers named there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from evenfed.engines.participation import Participation
from evenfed.methods.aaggff import DISTRIBUTIONS, AAggFF
from evenfed.methods.afl import AFL
from evenfed.methods.fedfv import FedFV
from evenfed.methods.fedmgda import FedMGDA
from evenfed.methods.gifair import GIFAIR
from evenfed.methods.propfair import PropFair
from evenfed.methods.qfedsgd import QFedSGD
from evenfed.methods.term import TERM


def losses_and_moves(problem: Any, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`F_i(w)` and the changes `w_i - w` of all clients' local trainings."""
    losses = np.array([problem.loss(i, w) for i in problem.clients])
    return losses, np.stack([problem.trained(i, w) - w for i in problem.clients])


def on_simplex(v: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by bisection for `theta` in `sum max(v - theta, 0) = 1`."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


@pytest.mark.proves("afl", "two rounds by hand")
@pytest.mark.parametrize("multi_step", [False, True])
@pytest.mark.parametrize("eta_lambda", [0.002, 0.1])
def test_afl(line: Any, engine: str, multi_step: bool, eta_lambda: float) -> None:
    """`w+ = w - eta sum_i lambda_i g_i` and `lambda+ = P(lambda + eta_lambda F)`.

    Both from the same point; handed out is the mean of the two iterates. The larger rate makes
    the projection cut a client off. In several steps, `-eta g_i` becomes `w_i - w`.
    """
    w, weights, seen = line.start, np.full(3, 1 / 3), []
    for _ in range(line.rounds):
        losses, moves = losses_and_moves(line, w)
        if not multi_step:
            moves = -line.eta * np.stack([line.gradient(i, w) for i in line.clients])
        w = w + weights @ moves
        weights = on_simplex(weights + eta_lambda * losses)
        seen.append(w)
    assert (weights.min() == 0) == (eta_lambda == 0.1)
    run = line.run(AFL(local=line.local, multi_step=multi_step, eta_lambda=eta_lambda), engine)
    server, method = run.runner.server, run.runner.method
    np.testing.assert_allclose(line.theta(server["params"]), w, rtol=1e-5)
    np.testing.assert_allclose(server["mixture"].numpy(), weights, rtol=1e-5)
    np.testing.assert_allclose(line.theta(method.deployed(server)), np.mean(seen, 0), rtol=1e-5)


@pytest.mark.proves("afl", "rounds with two of three clients by hand")
def test_afl_with_some_of_the_clients(line: Any, engine: str) -> None:
    """With `S` those that answer: `w` moves by `lambda` normalised over `S`, `lambda` by

    `eta_lambda (K / |S|) F_i` for those of `S`, and nothing for the rest.
    """
    some = Participation(number=2)
    run = line.run(AFL(local=line.local, eta_lambda=0.01), engine, participation=some, rounds=4)
    w, weights, cohorts = line.start, np.full(3, 1 / 3), set()
    for t in range(4):
        cohort = [i for i in line.clients if (t, "train/1 on train", f"c{i}") in run.uploads]
        cohorts.add(tuple(cohort))
        losses = np.array([line.loss(i, w) for i in line.clients])
        share = weights[cohort] / weights[cohort].sum()
        w = w - line.eta * sum(s * line.gradient(i, w) for s, i in zip(share, cohort, strict=True))
        gradient = np.zeros(3)
        gradient[cohort] = 3 / 2 * losses[cohort]
        weights = on_simplex(weights + 0.01 * gradient)
    assert len(cohorts) > 1
    server = run.runner.server
    np.testing.assert_allclose(line.theta(server["params"]), w, rtol=1e-5)
    np.testing.assert_allclose(server["mixture"].numpy(), weights, rtol=1e-5)


@pytest.mark.proves("qfedsgd", "two rounds by hand")
@pytest.mark.parametrize("q", [0.5, 2.0])
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_qfedsgd(line: Any, engine: str, q: float, weighting: Any) -> None:
    """With `L = 1 / eta` and the full gradients `g_i` and losses `F_i` at `w`:

    `w+ = w - sum_i F_i^q g_i / sum_i (q F_i^(q-1) |g_i|^2 + L F_i^q)`, in both sums `n_i` times
    where clients are sampled uniformly. The two steps of the problem's local training play no part.
    """
    share = np.ones(3) if weighting == "uniform" else line.sizes
    w = line.start
    for _ in range(line.rounds):
        losses = np.array([line.loss(i, w) for i in line.clients])
        g = np.stack([line.gradient(i, w) for i in line.clients])
        h = q * losses ** (q - 1) * (g**2).sum(1) + losses**q / line.eta
        w = w - (share * losses**q) @ g / (share @ h)
    run = line.run(QFedSGD(local=line.local, q=q, weighting=weighting), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("term", "two rounds by hand")
@pytest.mark.parametrize("t", [0.3, -0.5])
def test_term(line: Any, engine: str, t: float) -> None:
    """`w+ = w + sum_i p_i (w_i - w)` with `p_i` proportional to `n_i exp(t F_i(w))`."""
    w = line.start
    for _ in range(line.rounds):
        losses, moves = losses_and_moves(line, w)
        p = line.sizes * np.exp(t * losses)
        w = w + p @ moves / p.sum()
    run = line.run(TERM(local=line.local, t=t), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("term", "one step is a gradient step on the tilted loss")
def test_term_descends_the_tilted_loss(logit: Any) -> None:
    """The gradient of `(1/t) log sum_i a_i exp(t F_i)` by central differences."""
    t, h = 2.0, 1e-6
    share = logit.sizes / logit.sizes.sum()

    def tilted(w: np.ndarray) -> float:
        losses = np.array([logit.loss(i, w) for i in logit.clients])
        return float(np.log(share @ np.exp(t * losses)) / t)

    slope = [(tilted(logit.start + e) - tilted(logit.start - e)) / (2 * h) for e in h * np.eye(2)]
    local = dataclasses.replace(logit.local, epochs=1)
    run = logit.run(TERM(local=local, t=t), rounds=1)
    expected = logit.start - logit.eta * np.array(slope)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), expected, rtol=1e-5)


@pytest.mark.proves("propfair", "two rounds by hand")
@pytest.mark.parametrize("beyond", ["huber", "scaled"])
def test_propfair(line: Any, engine: str, beyond: Any) -> None:
    """A step follows `g / (M - F)`, where `M - F < epsilon` instead `g / epsilon` (or `g / M`).

    At the start the losses are about 13, 4.1 and 1: with `M = 6` the first client is beyond.
    """
    base, epsilon, w = 6.0, 1.5, line.start
    sides = set()
    for _ in range(line.rounds):
        models = []
        for i in line.clients:
            at = w
            for _ in range(line.steps):
                room = base - line.loss(i, at)
                sides.add(room >= epsilon)
                slope = 1 / room if room >= epsilon else 1 / (epsilon, base)[beyond == "scaled"]
                at = at - line.eta * slope * line.gradient(i, at)
            models.append(at)
        w = np.average(np.stack(models), axis=0, weights=line.sizes)
    assert sides == {True, False}
    method = PropFair(local=line.local, base=base, epsilon=epsilon, beyond=beyond)
    run = line.run(method, engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("propfair", "one step is a gradient step on the logarithm of the utilities")
def test_propfair_climbs_the_product_of_utilities(logit: Any) -> None:
    """The gradient of `-sum_i a_i log(M - F_i)` by central differences."""
    base, h = 2.0, 1e-6
    share = logit.sizes / logit.sizes.sum()

    def utility(w: np.ndarray) -> float:
        return float(share @ np.log([base - logit.loss(i, w) for i in logit.clients]))

    slope = [(utility(logit.start + e) - utility(logit.start - e)) / (2 * h) for e in h * np.eye(2)]
    local = dataclasses.replace(logit.local, epochs=1)
    run = logit.run(PropFair(local=local, base=base), rounds=1)
    expected = logit.start + logit.eta * np.array(slope)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), expected, rtol=1e-5)


def best_weights(units: np.ndarray, share: np.ndarray, eps: float) -> np.ndarray:
    """`argmin |sum lambda_i u_i|^2` on a fine grid of the triangle, then finer around the best."""
    middle, width = share, 1.0
    for _ in range(8):
        ticks = np.linspace(-width, width, 81)
        a, b = np.meshgrid(middle[0] + ticks, middle[1] + ticks)
        grid = np.stack([a.ravel(), b.ravel(), 1 - a.ravel() - b.ravel()], 1)
        low, high = np.maximum(share - eps, 0) - 1e-12, np.minimum(share + eps, 1) + 1e-12
        grid = np.vstack([grid[((grid >= low) & (grid <= high)).all(1)], middle])
        middle = grid[((grid @ units) ** 2).sum(1).argmin()]
        width /= 8
    return middle


@pytest.mark.proves("fedmgda", "two rounds by hand, the programme by search on a grid")
@pytest.mark.parametrize("eps", [0.05, 0.2, 1.0])
def test_fedmgda(line: Any, engine: str, eps: float) -> None:
    """`w+ = w + eta_t sum_i lambda*_i (w_i - w) / |w_i - w|`, with `eta_1 = 0.25 = eta_0 / 2`."""
    w, share = line.start, line.sizes / line.sizes.sum()
    for t in range(line.rounds):
        _, moves = losses_and_moves(line, w)
        units = moves / np.linalg.norm(moves, axis=1, keepdims=True)
        w = w + 0.5 * 0.5**t * best_weights(units, share, eps) @ units
    method = FedMGDA(local=line.local, eps=eps, server_lr=0.5, server_decay=0.5, weighting="size")
    run = line.run(method, engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-4)


def conflict_free(g: np.ndarray, losses: np.ndarray, kept: set[int]) -> np.ndarray:
    """FedFV's mean of gradients, each but the kept ones projected in the order of losses."""
    done = []
    for i, own in enumerate(g):
        for j in np.argsort(losses) if i not in kept else ():
            if j != i and own @ g[j] < 0:
                own = own - own @ g[j] / (g[j] @ g[j]) * g[j]
        done.append(own)
    return np.mean(done, axis=0)


@pytest.mark.proves("fedfv", "two rounds by hand")
@pytest.mark.parametrize(("alpha", "keeps"), [(0.0, 0), (0.1, 1), (0.5, 2), (1.0, 3)])
def test_fedfv(line: Any, engine: str, alpha: float, keeps: int) -> None:
    """`alpha` keeps the clients from place `ceil((n - 1)(1 - alpha))` on in ascending losses.

    For three clients: none for 0 (a switch), else the places from 2, 1 and 0 on.
    """
    w, changed = line.start, False
    for _ in range(line.rounds):
        losses, moves = losses_and_moves(line, w)
        kept = set(np.argsort(losses)[3 - keeps :].tolist())
        g = conflict_free(-moves, losses, kept)
        changed |= not np.allclose(g, -moves.mean(0))
        w = w - g / np.linalg.norm(g) * np.linalg.norm(moves.mean(0))
    assert changed == (keeps < 3), "clients must conflict, or the test shows nothing"
    run = line.run(FedFV(local=line.local, alpha=alpha, tau=0), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("fedfv", "external conflicts by hand")
@pytest.mark.parametrize("tau", [1, 2])
@pytest.mark.parametrize("external", ["absent", "recent"])
def test_fedfv_with_clients_that_are_absent(
    line: Any, engine: str, tau: int, external: Any
) -> None:
    """Two clients a round; the last known gradients of the third stand for it.

    From round tau on and oldest round first, `g` is projected off the sum of those gradients of
    clients last seen in that round that conflict with it, then scaled to its first norm.
    """
    rounds, w, memory, projections = 7, line.start, {}, 0
    method = FedFV(local=line.local, alpha=0.1, tau=tau, external=external)
    run = line.run(method, engine, participation=Participation(number=2), rounds=rounds)
    for t in range(rounds):
        here = [i for i in line.clients if (t, "train/1 on train", f"c{i}") in run.uploads]
        losses, moves = losses_and_moves(line, w)
        memory |= {i: (t, -moves[i]) for i in here}
        g = conflict_free(-moves[here], losses[here], {int(losses[here].argmax())})
        norm = np.linalg.norm(moves[here].mean(0))
        end = t if external == "absent" else t + 1
        for past in range(end - tau, end) if t >= tau else ():
            found = [h for seen, h in memory.values() if seen == past and g @ h < 0]
            if found:
                total = np.sum(found, axis=0)
                g = g - g @ total / (total @ total) * total
                projections += 1
        w = w - g / np.linalg.norm(g) * norm
    assert projections
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-4)


@pytest.mark.proves("gifair", "two rounds by hand")
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_gifair(line: Any, engine: str, weighting: Any) -> None:
    """Weights `a_i + c lambda_max r_i`, ranks -2, 0, 2, `lambda_max = min a_i / 2`."""
    share = np.ones(3) / 3 if weighting == "uniform" else line.sizes / line.sizes.sum()
    w, c = line.start, 0.9
    for _ in range(line.rounds):
        losses, moves = losses_and_moves(line, w)
        ranks = np.empty(3)
        ranks[np.argsort(losses)] = [-2, 0, 2]
        w = w + (share + c * share.min() / 2 * ranks) @ moves
    run = line.run(GIFAIR(local=line.local, c=c, weighting=weighting), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("gifair", "two rounds with factors in the local steps by hand")
def test_gifair_in_the_steps(line: Any, engine: str) -> None:
    """Local steps along `(1 + lambda r_i / a_i) g` with ranks of the losses after the last round.

    In the first round there are none, hence FedAvg.
    """
    share, c, w = line.sizes / line.sizes.sum(), 0.9, line.start
    factor = np.ones(3)
    for _ in range(line.rounds):
        models = []
        for i in line.clients:
            at = w
            for _ in range(line.steps):
                at = at - line.eta * factor[i] * line.gradient(i, at)
            models.append(at)
        w = share @ np.stack(models)
        ranks = np.empty(3)
        ranks[np.argsort([line.loss(i, m) for i, m in enumerate(models)])] = [-2, 0, 2]
        factor = 1 + c * share.min() / 2 * ranks / share
    run = line.run(GIFAIR(local=line.local, c=c, apply="steps"), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("gifair", "one step is a gradient step on the penalised loss")
def test_gifair_descends_the_spread(line: Any) -> None:
    """`sum_i a_i F_i + lambda sum_{i<j} |F_i - F_j|` by central differences."""
    share, h = line.sizes / line.sizes.sum(), 1e-6
    lam = 0.5 * share.min() / 2

    def penalised(w: np.ndarray) -> float:
        losses = np.array([line.loss(i, w) for i in line.clients])
        return float(share @ losses + lam * np.abs(losses[:, None] - losses).sum() / 2)

    ends = [(penalised(line.start + e), penalised(line.start - e)) for e in h * np.eye(2)]
    slope = np.array([(up - down) / (2 * h) for up, down in ends])
    local = dataclasses.replace(line.local, epochs=1)
    run = line.run(GIFAIR(local=local, c=0.5), rounds=1)
    expected = line.start - line.eta * slope
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), expected, rtol=1e-5)


CDF = {
    "weibull": lambda x: 1 - np.exp(-(x**2)),
    "exponential": lambda x: 1 - np.exp(-x),
    "frechet": lambda x: np.exp(-1 / x),
    "normal": stats.norm(1, 1).cdf,
    "gumbel": stats.gumbel_r(1, 1).cdf,
    "logistic": stats.logistic(1, 1).cdf,
}


@pytest.mark.proves("aaggff", "two rounds of the silo form by hand")
@pytest.mark.parametrize("cdf", ["weibull", "normal"])
def test_aaggff_for_silos(line: Any, engine: str, cdf: Any) -> None:
    """With `r = cdf(F / mean F) / K` and `g = -r / (1 + p r)`, the next `p` minimises

    `sum_s g_s p + 2 |p|^2 + (K/8) sum_s (g_s (p - p_s))^2` (`alpha = 4`, `beta = K/4`), by SciPy.
    It weighs the changes of the same round.
    """
    w, p, past = line.start, np.full(3, 1 / 3), []
    for _ in range(line.rounds):
        losses, moves = losses_and_moves(line, w)
        r = CDF[cdf](losses / losses.mean()) / 3
        past.append((-r / (1 + p @ r), p))

        def regret(x: np.ndarray, past: Any = past) -> float:
            newton = sum((g @ (x - at)) ** 2 for g, at in past)
            return float(sum(g @ x for g, _ in past) + 2 * x @ x + 3 / 8 * newton)

        found = optimize.minimize(
            regret,
            p,
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            options={"ftol": 1e-15},
            method="SLSQP",
        )
        p = found.x
        w = w + p @ moves
    assert np.ptp(p) > 0.02
    run = line.run(AAggFF(local=line.local, cdf=cdf), engine)
    np.testing.assert_allclose(run.runner.server["weights"].numpy(), p, atol=1e-5)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-4)


@pytest.mark.proves("aaggff", "rounds of the device form by hand")
def test_aaggff_for_devices(line: Any, engine: str) -> None:
    """Two of three clients a round, `C = 2/3`. With `r = C cdf(F / mean F)` and its mean `m`:

    `r~_i = m`, plus `(r_i - m) / C` where i answered; `g` is the first-order expansion at
    `r = (m, m, m)` of `-r / (1 + p r)`, here by central differences along `r~ - m`;
    `p` proportional to `exp(-sqrt(log 3) sum g / ((2 + C) sqrt(t + 1)))`, t = 1, 2, ...
    """
    rounds, c = 4, 2 / 3
    run = line.run(
        AAggFF(local=line.local), engine, participation=Participation(number=2), rounds=rounds
    )
    w, p, total = line.start, np.full(3, 1 / 3), np.zeros(3)
    for t in range(1, rounds + 1):
        here = [i for i in line.clients if (t - 1, "train/1 on train", f"c{i}") in run.uploads]
        losses, moves = losses_and_moves(line, w)
        r = c * CDF["weibull"](losses[here] / losses[here].mean())
        robust = np.full(3, r.mean())
        robust[here] += (r - r.mean()) / c
        middle, away, h = np.full(3, r.mean()), robust - r.mean(), 1e-5

        def slope(x: np.ndarray, p: np.ndarray = p) -> np.ndarray:
            return -x / (1 + p @ x)

        expansion = (slope(middle + h * away) - slope(middle - h * away)) / (2 * h)
        total = total + slope(middle) + expansion
        p = np.exp(-np.sqrt(np.log(3)) * total / ((2 + c) * np.sqrt(t + 1)))
        p /= p.sum()
        w = w + p[here] @ moves[here] / p[here].sum()
    np.testing.assert_allclose(run.runner.server["weights"].numpy(), p, rtol=1e-5)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("aaggff", "distribution functions against SciPy")
@pytest.mark.parametrize("cdf", list(CDF))
def test_aaggff_distribution_functions(cdf: str) -> None:
    """They rise from 0 towards 1 and are SciPy's."""
    x = np.linspace(0.01, 5, 50)
    ours = DISTRIBUTIONS[cdf](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, CDF[cdf](x), atol=1e-12)
    assert (np.diff(ours) > 0).all()
