"""EBA, FedEBA+ and Prac-FedEBA+: rounds by hand.

With `q_i = n_i / n`: `p_i ~ q_i exp(F_i / tau)`, the fair gradient `g~ = sum_i p_i g_i`, an aligned
local step along `(1 - alpha) g + alpha g~`, and the server's step `w+ = w + eta_g sum_i p_i dw_i`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.core.local import LocalTraining
from evenfed.engines.federation import Federation
from evenfed.engines.participation import Participation
from evenfed.methods.eba import EBA
from evenfed.methods.fedeba import FedEBA
from evenfed.methods.prac_fedeba import PracFedEBA
from evenfed.methods.registry import build
from evenfed.methods.term import TERM
from evenfed.runs.config import parse, with_settings

Vector = np.ndarray
TAU, ALPHA = 4.0, 0.3
"""Losses of `line` are between 0.5 and 24, so that this temperature spreads the weights."""


def tilted(losses: Vector, tau: float, prior: Vector) -> Vector:
    """`p_i ~ prior_i exp(F_i / tau)`."""
    p = prior * np.exp((losses - losses.max()) / tau)
    return p / p.sum()


def losses_at(problem: Any, w: Vector, cohort: Any = None) -> Vector:
    return np.array([problem.loss(i, w) for i in (problem.clients if cohort is None else cohort)])


def gradients_at(problem: Any, w: Vector, cohort: Any = None) -> Vector:
    chosen = problem.clients if cohort is None else cohort
    return np.stack([problem.gradient(i, w) for i in chosen])


def moves(problem: Any, w: Vector, fair: Vector | None = None, alpha: float = ALPHA) -> Vector:
    """`w_i - w` of all clients, along `(1 - alpha) g + alpha g~` where `g~` is given."""

    def moved(i: int) -> Vector:
        pull = None if fair is None else (lambda at: alpha * (fair - problem.gradient(i, at)))
        return problem.trained(i, w, pull) - w

    return np.stack([moved(i) for i in problem.clients])


def angle(losses: Vector) -> float:
    """In degrees, from the definition: between the losses and (1, ..., 1)."""
    cosine = losses.sum() / (np.linalg.norm(losses) * np.sqrt(len(losses)))
    return float(np.degrees(np.arccos(cosine)))


def check(problem: Any, run: Any, w: Vector) -> None:
    np.testing.assert_allclose(problem.theta(run.runner.server["params"]), w, rtol=1e-5)


# EBA


@pytest.mark.proves("eba", "two rounds by hand")
@pytest.mark.parametrize(("loss_at", "server_lr"), [("global", 1.0), ("local_final", 0.5)])
def test_eba(line: Any, engine: str, loss_at: Any, server_lr: float) -> None:
    """The loss behind a weight is `F_i(w)`, or `F_i(w_i)` after local training."""
    w, weights = line.start, []
    for _ in range(line.rounds):
        steps = moves(line, w)
        at = [w] * 3 if loss_at == "global" else list(w + steps)
        losses = np.array([line.loss(i, at[i]) for i in line.clients])
        weights.append(tilted(losses, TAU, line.sizes))
        w = w + server_lr * weights[-1] @ steps
    method = EBA(local=line.local, tau=TAU, loss_at=loss_at, server_lr=server_lr)
    run = line.run(method, engine)
    check(line, run, w)
    for note, p in zip(run.runner.history, weights, strict=True):
        assert note["largest_weight"] == pytest.approx(p.max(), rel=1e-5)
        assert note["effective_clients"] == pytest.approx(1 / (p**2).sum(), rel=1e-5)


@pytest.mark.proves("eba", "two rounds with a schedule, a relative temperature and a cap by hand")
@pytest.mark.parametrize("mode", ["absolute", "relative"])
@pytest.mark.parametrize("p_max", [1.0, 0.5])
def test_eba_temperature(line: Any, mode: Any, p_max: float) -> None:
    """`tau_t = tau / (1 + kappa t)^a`, times the spread of the losses if relative.

    A cap holds the largest weight; what it takes goes to the others in proportion.
    """
    tau, w, capped = 1.5 if mode == "relative" else TAU, line.start, False
    for t in range(line.rounds):
        losses = losses_at(line, w)
        now = tau / (1 + 0.8 * t) ** 0.5 * (losses.std() if mode == "relative" else 1.0)
        p = tilted(losses, now, line.sizes)
        if p.max() > p_max:
            rest = np.arange(3) != p.argmax()
            p = np.where(rest, p / p[rest].sum() * (1 - p_max), p_max)
            capped = True
        w = w + p @ moves(line, w)
    assert capped == (p_max < 1)
    method = EBA(
        local=line.local, tau=tau, tau_mode=mode, tau_decay=0.8, tau_power=0.5, p_max=p_max
    )
    check(line, line.run(method), w)


@pytest.mark.proves("eba", "uniform prior by hand")
@pytest.mark.parametrize("p_max", [1.0, 0.999])
def test_eba_prior(line: Any, p_max: float) -> None:
    """A cap that never holds takes the path that stacks uploads; both know the prior."""
    w = line.start
    for _ in range(line.rounds):
        w = w + tilted(losses_at(line, w), TAU, np.ones(3)) @ moves(line, w)
    method = EBA(local=line.local, tau=TAU, weighting="uniform", p_max=p_max)
    check(line, line.run(method), w)


@pytest.mark.proves("eba", "a full-batch step descends the tilted loss: finite differences")
@pytest.mark.proves("fedeba", "a full-batch step descends the tilted loss: finite differences")
@pytest.mark.parametrize("cls", [EBA, FedEBA])
def test_one_step_descends_the_tilted_loss(logit: Any, cls: Any) -> None:
    """`sum_i p_i g_i` is the gradient of `tau log sum_i q_i exp(F_i / tau)`."""
    tau, share = 0.3, logit.sizes / logit.sizes.sum()

    def objective(w: Vector) -> float:
        return tau * float(np.log((share * np.exp(losses_at(logit, w) / tau)).sum()))

    eye = 1e-6 * np.eye(2)
    slope = [(objective(logit.start + e) - objective(logit.start - e)) / 2e-6 for e in eye]
    local = LocalTraining(lr=logit.eta, batch=0, epochs=1)
    run = logit.run(cls(local=local, tau=tau), rounds=1)
    found = (logit.start - logit.theta(run.runner.server["params"])) / logit.eta
    np.testing.assert_allclose(found, slope, rtol=1e-4)


@pytest.mark.proves("eba", "TERM with t = 1/tau bit for bit")
def test_eba_is_term(line: Any, engine: str) -> None:
    a = line.run(EBA(local=line.local, tau=TAU), engine)
    b = line.run(TERM(local=line.local, t=1 / TAU), engine)
    for name, value in a.runner.server["params"].items():
        assert torch.equal(value, b.runner.server["params"][name])


# FedEBA+ with an exchange of its own


@pytest.mark.proves("fedeba", "two rounds by hand")
@pytest.mark.parametrize("loss_at", ["global", "local_final"])
def test_fedeba(line: Any, engine: str, loss_at: Any) -> None:
    """`g~` weighs by `F_i(w)` always; the aggregation by `F_i(w)` or `F_i(w_i)`."""
    w = line.start
    for _ in range(line.rounds):
        p = tilted(losses_at(line, w), TAU, line.sizes)
        steps = moves(line, w, p @ gradients_at(line, w))
        if loss_at == "local_final":
            after = np.array([line.loss(i, w + steps[i]) for i in line.clients])
            p = tilted(after, TAU, line.sizes)
        w = w + 0.5 * p @ steps
    method = FedEBA(local=line.local, tau=TAU, alpha=ALPHA, loss_at=loss_at, server_lr=0.5)
    check(line, line.run(method, engine), w)


@pytest.mark.proves("fedeba", "two rounds with clipped alignment by hand")
def test_fedeba_clip(line: Any) -> None:
    """A step follows `(1 - alpha) g + alpha g~ min(1, |g| / |g~|)`; both cases occur."""
    w, clipped = line.start, set()
    for _ in range(line.rounds):
        p = tilted(losses_at(line, w), TAU, line.sizes)
        fair = p @ gradients_at(line, w)

        def moved(i: int, at: Vector = w, g: Vector = fair) -> Vector:
            def pull(here: Vector) -> Vector:
                own = line.gradient(i, here)
                factor = min(1.0, float(np.linalg.norm(own) / np.linalg.norm(g)))
                clipped.add(factor < 1)
                return ALPHA * (factor * g - own)

            return line.trained(i, at, pull) - at

        w = w + p @ np.stack([moved(i) for i in line.clients])
    assert clipped == {True, False}
    check(line, line.run(FedEBA(local=line.local, tau=TAU, alpha=ALPHA, align_clip=True)), w)


@pytest.mark.proves("fedeba", "two rounds of model alignment by hand")
def test_fedeba_model_alignment(line: Any) -> None:
    """Below the angle: `w+ = w + (1 - alpha) sum_i p_i dw_i - alpha eta mean_i g_i`."""
    w = line.start
    for _ in range(line.rounds):
        p = tilted(losses_at(line, w), TAU, line.sizes)
        one = -line.eta * gradients_at(line, w).mean(0)
        w = w + (1 - ALPHA) * p @ moves(line, w) + ALPHA * one
    check(line, line.run(FedEBA(local=line.local, tau=TAU, alpha=ALPHA, theta_deg=90.0)), w)


@pytest.mark.proves("fedeba", "the fair angle decides the branch: by hand, also as a CV")
@pytest.mark.parametrize("option", ["theta_deg", "cv_threshold"])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_fedeba_angle(line: Any, option: str, factor: float) -> None:
    """The angle is from its definition by a scalar product; its tangent is the CV."""
    losses = losses_at(line, line.start)
    border = angle(losses) if option == "theta_deg" else losses.std() / losses.mean()
    other = {"theta_deg": 0.0 if factor > 1 else 90.0} if option == "cv_threshold" else {}
    method = FedEBA(local=line.local, tau=TAU, **{option: factor * border, **other})
    note = line.run(method, rounds=1).runner.history[0]
    assert note["fair_angle"] == pytest.approx(angle(losses), rel=1e-5)
    assert note["aligned"] is (factor < 1)


# Prac-FedEBA+


@pytest.mark.proves("prac_fedeba", "three rounds of every fair gradient by hand")
@pytest.mark.parametrize("source", ["stale", "kept", "first_step"])
@pytest.mark.parametrize("loss_at", ["global", "local_final"])
def test_prac_fedeba(line: Any, engine: str, source: Any, loss_at: Any) -> None:
    """The first round is plain. After that, with all clients there:

    stale and kept, `g~ = (w_{t-1} - w_t) / (eta_g eta K)`; first_step, `g~` is the last round's
    `sum_i p_i g_i` at the received model, with the weights of its aggregation.
    """
    w, fair, server_lr = line.start, None, 0.7
    for _ in range(3):
        steps = moves(line, w, fair)
        at = [w] * 3 if loss_at == "global" else list(w + steps)
        losses = np.array([line.loss(i, at[i]) for i in line.clients])
        p = tilted(losses, TAU, line.sizes)
        new = w + server_lr * p @ steps
        fair = (w - new) / (server_lr * line.eta * line.steps)
        if source == "first_step":
            fair = p @ gradients_at(line, w)
        w = new
    method = PracFedEBA(
        local=line.local, tau=TAU, alpha=ALPHA, fair_gradient=source, loss_at=loss_at,
        server_lr=server_lr,
    )  # fmt: skip
    check(line, line.run(method, engine, rounds=3), w)


@pytest.mark.proves("prac_fedeba", "three rounds of model alignment by hand")
@pytest.mark.parametrize("source", ["stale", "kept", "first_step"])
def test_prac_model_alignment(line: Any, source: Any) -> None:
    """`w+ = w + (1 - alpha) sum_i p_i dw_i + alpha d`, from the second round on.

    first_step: `d` is the mean first step of the round, `-eta mean_i g_i`. Otherwise it is one
    step of the last round's mean change, `(1 / K) sum_i p_i dw_i` of then.
    """
    w, last = line.start, None
    for t in range(3):
        p, steps = tilted(losses_at(line, w), TAU, line.sizes), moves(line, w)
        move = p @ steps
        one = -line.eta * gradients_at(line, w).mean(0) if source == "first_step" else last
        last = move / line.steps
        w = w + (move if t == 0 else (1 - ALPHA) * move + ALPHA * one)
    method = PracFedEBA(
        local=line.local, tau=TAU, alpha=ALPHA, fair_gradient=source, theta_deg=90.0
    )
    check(line, line.run(method, rounds=3), w)


@pytest.mark.proves("prac_fedeba", "six rounds with two of three clients by hand")
def test_prac_kept_with_some_of_the_clients(line: Any) -> None:
    """A client that was last there in round s takes `g~ = (w_s - w_t) / (eta_g eta K (t - s))`.

    One that was never there trains plainly.
    """
    some = Participation(number=2)
    method = PracFedEBA(local=line.local, tau=TAU, alpha=ALPHA, server_lr=0.7)
    run = line.run(method, participation=some, rounds=6)
    w, last, seen = line.start, {}, set()
    for t in range(6):
        cohort = [i for i in line.clients if (t, "train/1 on train", f"c{i}") in run.uploads]
        steps = []
        for i in cohort:
            since = t - last[i][0] if i in last else 0
            seen.add(since if t else "begin")
            fair = (last[i][1] - w) / (0.7 * line.eta * line.steps * since) if since else None
            steps.append(moves(line, w, fair)[i])
            last[i] = (t, w)
        p = tilted(losses_at(line, w, cohort), TAU, line.sizes[cohort])
        w = w + 0.7 * p @ np.stack(steps)
    assert seen >= {"begin", 0, 1}, "a newcomer, and one that stayed"
    assert max(s for s in seen if s != "begin") > 1, "one that came back"
    check(line, run, w)


@pytest.mark.proves("prac_fedeba", "the angle is that of the losses of the received model")
@pytest.mark.parametrize("loss_at", ["global", "local_final"])
def test_prac_angle(line: Any, loss_at: Any) -> None:
    """Round 1 looks at round 0's `F_i(w_0)`, whatever the weights look at."""
    method = PracFedEBA(local=line.local, tau=TAU, alpha=ALPHA, loss_at=loss_at)
    history = line.run(method).runner.history
    assert "fair_angle" not in history[0]
    expected = angle(losses_at(line, line.start))
    assert history[1]["fair_angle"] == pytest.approx(expected, rel=1e-5)


# the robust loss


def robust_losses(problem: Any, i: int, theta: Vector, gamma: float) -> float:
    """`log sum_c exp(s_c) - s_y + gamma JS(sigma(3 z), sigma(3 z'))`, mean over the examples.

    `z` are the logits `theta x`, `z'` those of `0.8 x`; `m` the mean of their softmax `sigma`,
    and `s_c = m_c^2 / sum_d m_d^2`.
    """

    def softmax(z: Vector) -> Vector:
        return np.exp(z) / np.exp(z).sum()

    def divergence(a: Vector, b: Vector) -> float:
        return float((a * np.log(a / b)).sum())

    total = []
    for x, y in zip(problem.x[i], problem.y[i], strict=True):
        z, other = theta * x, theta * 0.8 * x
        s = ((softmax(z) + softmax(other)) / 2) ** 2
        s = s / s.sum()
        u, v = softmax(3 * z), softmax(3 * other)
        js = (divergence(u, (u + v) / 2) + divergence(v, (u + v) / 2)) / 2
        total.append(np.log(np.exp(s).sum()) - s[y] + gamma * js)
    return float(np.mean(total))


@pytest.mark.proves("eba", "two rounds of the robust loss by hand")
@pytest.mark.proves("fedeba", "two rounds of the robust loss by hand")
@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_robust_loss(logit: Any, engine: str, alpha: float) -> None:
    """Weights, fair gradient and local steps all see the robust loss; slopes by differences."""
    gamma, tau, w = 2.0, 0.2, logit.start

    def slope(i: int, at: Vector) -> Vector:
        eye = 1e-6 * np.eye(2)
        return (
            np.array(
                [
                    robust_losses(logit, i, at + e, gamma) - robust_losses(logit, i, at - e, gamma)
                    for e in eye
                ]
            )
            / 2e-6
        )

    for _ in range(logit.rounds):
        losses = np.array([robust_losses(logit, i, w, gamma) for i in logit.clients])
        p = tilted(losses, tau, logit.sizes)
        fair = p @ np.stack([slope(i, w) for i in logit.clients])
        models = np.stack([w] * 3)
        for _ in range(logit.steps):
            own = np.stack([slope(i, models[i]) for i in logit.clients])
            models = models - logit.eta * ((1 - alpha) * own + alpha * fair)
        w = w + p @ (models - w)
    cls = FedEBA if alpha else EBA
    options = {"alpha": alpha} if alpha else {}
    run = logit.run(cls(local=logit.local, tau=tau, robust=gamma, **options), engine)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=2e-5)
    assert run.runner.history[0]["largest_weight"] < 0.9


# advice


@pytest.mark.parametrize(("epochs", "warned"), [(2, False), (3, True)])
def test_advice_counts_the_steps_of_epochs(line: Any, epochs: int, warned: bool) -> None:
    """The largest client has 4 examples: 2 steps of batch 2 an epoch.

    With rate 0.2 and alpha 0.3, rate x steps x alpha is 0.24 after two epochs, 0.36 after three.
    """
    local = LocalTraining(lr=0.2, batch=2, epochs=epochs)
    found = FedEBA(local=local, alpha=0.3, tau=10.0).advice(Federation(line.dataset()))
    assert any("rate x steps x alpha" in sentence for sentence in found) is warned


def test_a_run_prints_the_advice_before_training(tmp_path: Any) -> None:
    command = ["run", "--method", "fedeba", "--dataset", "synthetic", "--rounds", "1"]
    command += ["--engine", "vectorized", "--out", str(tmp_path / "run")]
    risky = CliRunner().invoke(app, [*command, "--set", "alpha=0.9"], env={"COLUMNS": "200"})
    assert risky.exit_code == 0, risky.output
    assert "warning: fedeba: alpha = 0.9" in risky.stderr
    assert "warning: fedeba: local rate x steps x alpha = " in risky.stderr
    safe = [*command[:-1], str(tmp_path / "safe"), "--set", "lr=0.001"]
    done = CliRunner().invoke(app, safe, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "warning" not in done.stderr


def test_robust_is_refused_before_training_where_it_cannot_be(line: Any) -> None:
    with pytest.raises(ef.EvenfedError, match="robust needs classes"):
        line.run(EBA(local=line.local, robust=1.0))


# presets


def test_preset_paper_v5_is_expanded_and_what_is_given_beside_it_wins() -> None:
    settings = ["preset=paper_v5", "theta_deg=20", "alpha=0.4"]
    table = with_settings({"method": "fedeba"}, settings)
    config = parse(table).completed()
    method = config.built_method()
    assert isinstance(method, FedEBA)
    assert (method.theta_deg, method.alpha) == (20.0, 0.4)
    assert (method.loss_at, method.align_clip) == ("local_final", True)
    assert "preset" not in config.method.options, "a run's file holds the options themselves"
    assert build("prac_fedeba", {"preset": "paper_v5"}).alpha == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ef.EvenfedError, match="no preset 'paper_v4'; it has 'paper_v5'"):
        build("fedeba", {"preset": "paper_v4"})
