"""Ditto, pFedMe, lp-proj and fine-tuning: rounds by hand, and where each becomes another method.

With full batches every step of client i sees all its data, so `problem.gradient(i, theta)` is the
gradient of any batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.engines.participation import Participation
from evenfed.methods.ditto import Ditto
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.finetune import FineTuning
from evenfed.methods.local import Local
from evenfed.methods.lp_proj import LpProj
from evenfed.methods.pfedme import PFedMe


def own(problem: Any, run: Any, client: int) -> Any:
    """The two parameters of the model that a client uses."""
    method, server = run.runner.method, run.runner.server
    state = run.runner.federation.states.kept[client]
    return problem.theta(method.parameters(method.deployed(server), state))


@pytest.mark.proves("ditto", "two rounds by hand")
def test_ditto(line: Any, engine: str) -> None:
    """`w` as FedAvg; beside it `v_i <- v_i - eta (g_i(v_i) + lambda (v_i - w))`, `w` as received.

    The personal models go on from round to round, from the common first model.
    """
    lam, w = 0.7, line.start
    v = [line.start] * 3
    for _ in range(line.rounds):
        v = [line.trained(i, v[i], lambda p, at=w: lam * (p - at)) for i in line.clients]
        models = np.stack([line.trained(i, w) for i in line.clients])
        w = np.average(models, axis=0, weights=line.sizes)
    run = line.run(Ditto(local=line.local, lam=lam), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)
    for i in line.clients:
        np.testing.assert_allclose(own(line, run, i), v[i], rtol=1e-5)


@pytest.mark.proves("ditto", "without pull the personal models are Local's, bit for bit")
def test_ditto_without_pull_is_local_training(
    binary: Any, engine: str, train_rounds: Any, flat: Any
) -> None:
    local = LocalTraining(lr=0.1, batch=8, epochs=2)
    a = train_rounds(Ditto(local=local, lam=0.0), binary, engine, evaluate=False)
    b = train_rounds(Local(local=local), binary, engine, evaluate=False)
    c = train_rounds(FedAvg(local=local), binary, engine, evaluate=False)
    for i, state in b.runner.federation.states.kept.items():
        mine = a.runner.federation.states.kept[i]["params"]
        assert torch.equal(flat(mine), flat(state["params"]))
    assert torch.equal(flat(a.runner.server["params"]), c.server)


@pytest.mark.proves("ditto", "with a strong pull the personal models are the received global one")
def test_ditto_with_a_strong_pull_stays_at_the_global_model(line: Any) -> None:
    """`lambda = 1 / eta`: a step gives `v = w - eta g(v_before)`, so `|v - w| <= eta |g|`."""
    eta = 1e-4
    local = LocalTraining(lr=eta, batch=0, epochs=2)
    strong = line.run(Ditto(local=local, lam=1 / eta), rounds=3)
    two = line.run(FedAvg(local=local), rounds=2)
    received = line.theta(two.runner.server["params"])
    for i in line.clients:
        bound = eta * np.linalg.norm(line.gradient(i, received)) * 1.01 + 1e-6
        assert np.linalg.norm(own(line, strong, i) - received) < bound


@pytest.mark.proves("ditto", "a client that never took part uses the global model")
def test_a_client_without_a_personal_model_uses_the_global_one(line: Any) -> None:
    """One client of three a round, one round."""
    run = line.run(Ditto(local=line.local), rounds=1, participation=Participation(fraction=0.3))
    runner = run.runner
    trained = set(runner.federation.states.kept)
    assert len(trained) == 1
    deployed = runner.method.deployed(runner.server)
    first = runner.method.client_state(torch.Generator(), 1)
    after = line.theta(runner.server["params"])
    assert np.abs(after - line.start).max() > 0.01
    np.testing.assert_array_equal(line.theta(runner.method.parameters(deployed, first)), after)


def envelope(problem: Any, w: Any, *, lam: float, eta: float, lr: float, inner: int) -> Any:
    """Round of pFedMe at every client: new copies of `w` and personal models."""
    copies, personal = [], []
    for i in problem.clients:
        theta, copy = w, w
        for _ in range(problem.steps):
            for _ in range(inner):
                theta = theta - lr * (problem.gradient(i, theta) + lam * (theta - copy))
            copy = copy - eta * lam * (copy - theta)
        copies.append(copy)
        personal.append(theta)
    return np.stack(copies), personal


@pytest.mark.proves("pfedme", "two rounds by hand")
@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_pfedme(logit: Any, engine: str, beta: float) -> None:
    """`steps` local rounds of `inner` personal steps and one of the copy; then

    `w = (1 - beta) w + beta mean_i w_i`, a plain mean. `theta_i` is what the client keeps.
    """
    options: dict[str, Any] = {"lam": 3.0, "eta": 0.1, "inner": 3}
    w = logit.start
    for _ in range(logit.rounds):
        copies, personal = envelope(logit, w, lr=logit.eta, **options)
        w = (1 - beta) * w + beta * copies.mean(0)
    run = logit.run(PFedMe(local=logit.local, server_lr=beta, **options), engine)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)
    for i in logit.clients:
        np.testing.assert_allclose(own(logit, run, i), personal[i], rtol=1e-5)


@pytest.mark.proves("pfedme", "one personal step is FedAvg of rate eta lambda lr")
def test_pfedme_with_one_step_is_fedavg(line: Any, engine: str) -> None:
    """One batch, one personal step from `w`: `theta = w - lr g(w)`, so the copy becomes

    `w - eta lambda (w - theta) = w - eta lambda lr g(w)`.
    """
    lam, eta, lr = 4.0, 0.5, 0.05
    one = {"batch": 0, "epochs": 1}
    a = line.run(PFedMe(local=LocalTraining(lr=lr, **one), lam=lam, eta=eta, inner=1), engine)
    rate = eta * lam * lr
    b = line.run(FedAvg(local=LocalTraining(lr=rate, **one), weighting="uniform"), engine)
    np.testing.assert_allclose(
        line.theta(a.runner.server["params"]), line.theta(b.runner.server["params"]), rtol=1e-5
    )


@pytest.mark.proves("pfedme", "many personal steps give the proximal point")
def test_pfedme_with_many_steps_finds_the_proximal_point(line: Any) -> None:
    """`F_i` is quadratic, `F_i' = A theta - b` with `A` its Hessian, so that

    `argmin F_i + lambda/2 |theta - w|^2 = (A + lambda I)^-1 (b + lambda w)`.
    """
    lam = 5.0
    local = LocalTraining(lr=0.05, batch=0, epochs=1)
    run = line.run(PFedMe(local=local, lam=lam, eta=0.1, inner=300), rounds=1)
    for i in line.clients:
        design = np.stack([line.x[i], np.ones_like(line.x[i])], 1)
        hessian = 2 * design.T @ design / len(design)
        b = 2 * design.T @ line.y[i] / len(design)
        nearest = np.linalg.solve(hessian + lam * np.eye(2), b + lam * line.start)
        np.testing.assert_allclose(own(line, run, i), nearest, rtol=1e-4)


def penalty_gradient(c: Any, p: int, penalty: str) -> Any:
    """Of `||c||_p`, or of `||c||^2 / 2`."""
    if penalty == "square":
        return c
    return np.sign(c) * (np.abs(c) / np.linalg.norm(c, p)) ** (p - 1)


@pytest.mark.proves("lp_proj", "two rounds by hand")
@pytest.mark.parametrize(("p", "penalty"), [(1, "norm"), (2, "norm"), (3, "norm"), (1, "square")])
def test_lp_proj(logit: Any, engine: str, p: int, penalty: Any) -> None:
    """`u` the penalty's gradient at `c = w_i - P theta`: `inner` times

    `theta <- theta - lr (g(theta) - lambda P' u)`, then `w_i <- w_i - eta lambda u`, `steps` times;
    `w <- (1 - beta) w + beta mean_i w_i`. `theta` goes on from round to round, `w` starts at 0.
    """
    lam, eta, inner, beta = 0.3, 0.2, 2, 0.9
    method = LpProj(
        local=logit.local, lam=lam, eta=eta, inner=inner, dim=3, p=p, penalty=penalty,
        server_lr=beta,
    )  # fmt: skip
    run = logit.run(method, engine)
    matrix = run.runner.method.projection.double().numpy()
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, rtol=1e-6)
    w, theta = np.zeros(3), [logit.start] * 3
    for _ in range(logit.rounds):
        copies = []
        for i in logit.clients:
            copy = w
            for _ in range(logit.steps):
                for _ in range(inner):
                    u = penalty_gradient(copy - matrix @ theta[i], p, penalty)
                    gradient = logit.gradient(i, theta[i])
                    theta[i] = theta[i] - logit.eta * (gradient - lam * matrix.T @ u)
                u = penalty_gradient(copy - matrix @ theta[i], p, penalty)
                copy = copy - eta * lam * u
            copies.append(copy)
        w = (1 - beta) * w + beta * np.mean(copies, axis=0)
    np.testing.assert_allclose(run.runner.server["shared"].numpy(), w, rtol=1e-4, atol=1e-6)
    for i in logit.clients:
        np.testing.assert_allclose(own(logit, run, i), theta[i], rtol=1e-4)


@pytest.mark.proves("lp_proj", "without agreement the personal models are Local's")
def test_lp_proj_without_agreement_is_local_training(line: Any, engine: str) -> None:
    """With `inner = 1` it takes as many steps."""
    a = line.run(LpProj(local=line.local, lam=0.0, inner=1), engine)
    b = line.run(Local(local=line.local), engine)
    for i in line.clients:
        np.testing.assert_allclose(own(line, a, i), own(line, b, i), rtol=1e-6)


@pytest.mark.proves("finetune", "two rounds by hand")
@pytest.mark.parametrize("tune_lr", [None, 0.02])
def test_finetune(line: Any, engine: str, tune_lr: Any) -> None:
    """FedAvg; then `tune_epochs` steps of each client from the last model, at its own rate."""
    w = line.start
    for _ in range(line.rounds):
        models = np.stack([line.trained(i, w) for i in line.clients])
        w = np.average(models, axis=0, weights=line.sizes)
    method = FineTuning(local=line.local, tune_epochs=3, tune_lr=tune_lr)
    run = line.run(method, engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)
    for i in line.clients:
        u = w
        for _ in range(3):
            u = u - (tune_lr or line.eta) * line.gradient(i, u)
        np.testing.assert_allclose(own(line, run, i), u, rtol=1e-5)


@pytest.mark.proves("finetune", "tuning by hand where a schedule ends at a rate of 0")
def test_finetune_after_a_schedule_that_ends_at_zero(line: Any, engine: str) -> None:
    """The first of two rounds has the base rate, the second none; tuning has the base rate."""
    models = np.stack([line.trained(i, line.start) for i in line.clients])
    w = np.average(models, axis=0, weights=line.sizes)
    local = replace(line.local, schedule="cosine", decay=0.0)
    run = line.run(FineTuning(local=local, tune_epochs=1), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)
    for i in line.clients:
        expected = w - line.eta * line.gradient(i, w)
        np.testing.assert_allclose(own(line, run, i), expected, rtol=1e-5)


@pytest.mark.proves("finetune", "without tuning it is FedAvg, bit for bit")
def test_finetune_without_epochs_is_fedavg(
    binary: Any, engine: str, train_rounds: Any, flat: Any
) -> None:
    local = LocalTraining(lr=0.1, batch=8, epochs=2)
    a = train_rounds(FineTuning(local=local, tune_epochs=0), binary, engine)
    b = train_rounds(FedAvg(local=local), binary, engine)
    assert torch.equal(flat(a.runner.server["params"]), b.server)
    tested = [key for key in b.uploads if key[1].endswith("on test")]
    assert tested
    for key in tested:
        assert torch.equal(a.uploads[key]["counts"].loss, b.uploads[key]["counts"].loss)


@pytest.mark.parametrize("method", [Ditto, PFedMe, FineTuning])
def test_a_new_client_makes_the_global_model_its_own(line: Any, method: Any) -> None:
    """As a round of training from the global model does: a lower loss on its examples."""
    runner = line.run(method(local=line.local)).runner
    deployed, data = runner.method.deployed(runner.server), runner.data.client(1).train
    state = runner.method.adapted(deployed, data)
    loss = runner.method.task.mean_loss
    before = loss(runner.server["params"], data)
    assert float(loss(runner.method.parameters(deployed, state), data)) < 0.95 * float(before)


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        (Ditto, {"lam": -1.0}, "lam"),
        (PFedMe, {"lam": 0.0}, "lam"),
        (PFedMe, {"inner": 0}, "inner"),
        (PFedMe, {"local": LocalTraining(momentum=0.9)}, "local.momentum"),
        (LpProj, {"p": 0}, "p, dim"),
        (LpProj, {"penalty": "cube"}, "penalty"),
        (LpProj, {"local": LocalTraining(optimizer="adam")}, "local.optimizer"),
        (FineTuning, {"tune_epochs": -1}, "tune_epochs"),
        (FineTuning, {"tune_lr": 0.0}, "tune_lr"),
    ],
)
def test_options_that_cannot_be_are_refused(method: Any, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        method(**options)


def test_lp_proj_warns_where_the_projection_is_larger_than_the_model(line: Any) -> None:
    runner = line.run(LpProj(local=line.local, dim=5), rounds=1).runner
    assert "only 2" in runner.method.advice(runner.federation)[0]


@pytest.mark.parametrize("method", [PFedMe, LpProj])
def test_a_rate_of_zero_moves_nothing(line: Any, method: Any) -> None:
    """A cosine to 0 has the rate 0 in the last of two rounds."""
    local = replace(line.local, schedule="cosine", decay=0.0)
    one = line.run(method(local=replace(local, schedule="constant")), rounds=1).runner
    two = line.run(method(local=local), rounds=2).runner
    shared = "params" if method is PFedMe else "shared"
    assert torch.equal(flattened(two.server[shared]), flattened(one.server[shared]))


def flattened(tree: Any) -> torch.Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in trees.leaves(tree)])
