"""Methods that are fair between clients: two rounds by hand. Formulas: the papers named there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evenfed.engines.participation import Participation
from evenfed.methods.afl import AFL


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
