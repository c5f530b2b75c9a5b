"""FOCUS: its start, two rounds, its prediction and FAA by hand.

Chu et al., "FOCUS" (arXiv 2207.10265): Eq. 8 for the labels, Eq. 4 to 6 for the models, Eq. 7 for
predictions; Definition 1 for FAA.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import evenfed as ef
from evenfed.core import tree as trees
from evenfed.core.entropy import entropy_weights
from evenfed.core.errors import ConfigError
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.participation import Participation
from evenfed.methods.eba import EBA
from evenfed.methods.focus import Focus
from evenfed.methods.ifca import IFCA
from evenfed.methods.soft_labels import uniform

Vector = np.ndarray


def softmax(scores: Vector, axis: int) -> Vector:
    scaled = np.exp(scores - scores.max(axis, keepdims=True))
    return scaled / scaled.sum(axis, keepdims=True)


def farthest_first(problem: Any, models: int, first: int, times: int) -> Vector:
    """Every client trains alone, `times` rounds' worth; then the client whose least loss under
    the chosen models exceeds its own loss most gives the next one.
    """
    longer = replace(problem, steps=times * problem.steps)
    alone = [longer.trained(i, problem.start) for i in problem.clients]
    own = np.array([problem.loss(i, alone[i]) for i in problem.clients])
    chosen = [first]
    while len(chosen) < models:
        least = [min(problem.loss(i, alone[c]) for c in chosen) for i in problem.clients]
        excess = np.array(least) - own
        excess[chosen] = -np.inf
        chosen.append(int(excess.argmax()))
    return np.stack([alone[c] for c in chosen])


def capped(p: Vector, most: float) -> Vector:
    """`min(most, c p)` with the `c` for which it adds up to 1."""
    low, high = 1.0, 1e30
    for _ in range(200):
        c = np.sqrt(low * high)
        low, high = (c, high) if np.minimum(most, c * p).sum() < 1 else (low, c)
    return np.minimum(most, high * p)


def rounds(problem: Any, w: Vector, method: Focus) -> tuple[Vector, Vector]:
    """Models `(M, 2)` and labels `(K, M)` after the rounds of a problem.

    `pi_em <- pi_em exp(-l_em) / sum_m'`, with a floor `f` then `(1 - M f) pi_em + f`;
    `w_m <- w_m + eta_g (sum_e a_em theta_em - w_m)`, with `a_em` proportional to
    `pi_em n_e exp(F / tau)`; `F` is `sum_m pi_em l_em` (own) or `l_em` (model), `tau` times the
    spread of `F` if relative, and `tau / (1 + decay t)` in round t. No `a_em` is above `p_max`, nor
    held below one over the members of a cluster, `sum_e pi_em / max_e pi_em`.
    """
    sizes = problem.sizes if method.weighting == "size" else np.ones(3)
    labels, floor = np.full((len(problem.clients), len(w)), 1 / len(w)), method.pi_floor
    for t in range(problem.rounds):
        losses = np.array([[problem.loss(i, m) for m in w] for i in problem.clients])
        labels = (1 - len(w) * floor) * softmax(np.log(labels) - losses, 1) + floor
        theta = np.array([[problem.trained(i, m) for m in w] for i in problem.clients])
        own = (labels * losses).sum(1, keepdims=True)
        pull = losses if method.tau_loss == "model" else own
        tau = method.tau / (1 + method.tau_decay * t)
        tau = tau * pull.std(0) if method.tau_mode == "relative" else tau
        weight = labels * sizes[:, None] * np.exp(pull / tau)
        weight = weight / weight.sum(0)
        for m, share in enumerate(labels.max(0) / labels.sum(0)):
            weight[:, m] = capped(weight[:, m], max(method.p_max, share))
        mean = np.einsum("em,emd->md", weight, theta)
        w = w + method.server_lr * (mean - w)
    return w, labels


def models_of(problem: Any, run: Any) -> Vector:
    params = run.runner.server["params"]
    count = len(trees.leaves(params)[0])
    return np.stack([problem.theta(trees.row(params, m)) for m in range(count)])


CASES: list[dict[str, Any]] = [
    {},
    {"m": 3},
    {"weighting": "size"},
    {"tau": 2.0, "weighting": "size"},
    {"tau": 2.0, "tau_loss": "model", "alone_rounds": 1},
    {"pi_floor": 0.2, "server_lr": 0.5},
    {"tau": 1.0, "tau_decay": 1.5},
    {"tau": 1.0, "p_max": 0.4, "weighting": "size"},
    {"tau": 0.8, "tau_mode": "relative", "tau_loss": "model", "alone_rounds": 1},
]


@pytest.mark.proves("focus", "start and two rounds by hand, also with entropy weights")
@pytest.mark.parametrize("options", CASES, ids=str)
def test_focus(line: Any, engine: str, options: dict[str, Any]) -> None:
    """The client whose model is first is drawn: the run must be the one of just one of them."""
    method = Focus(local=line.local, **options)
    run = line.run(method, engine)
    found, labels = models_of(line, run), run.runner.server["log_pi"].exp().numpy()
    close = []
    for first in line.clients:
        start = farthest_first(line, method.models, first, method.alone_rounds)
        w, pi = rounds(line, start, method)
        close.append(np.allclose(found, w, rtol=1e-5) and np.allclose(labels, pi, rtol=1e-5))
        if method.p_max < 1:
            free, _ = rounds(line, start, replace(method, p_max=1.0))
            assert not np.allclose(w, free, rtol=1e-3), "the cap should hold somebody"
    assert sum(close) == 1
    kept = run.runner.federation.states.kept
    for i in line.clients:  # what the server knows is what the clients hold
        np.testing.assert_array_equal(kept[i]["log_pi"].exp().numpy(), labels[i])


@pytest.mark.proves("focus", "two rounds of classification and the ensemble's loss by hand")
def test_focus_on_classes(logit: Any, engine: str) -> None:
    """Eq. 7: a client's test loss is that of `sum_m pi_em p_m(y | x)`."""
    run = logit.run(Focus(local=logit.local, init="common_noise", noise=0.5), engine)
    w, pi = models_of(logit, run), run.runner.server["log_pi"].exp().numpy()
    for i in logit.clients:
        p = np.array([np.exp(-logit.losses(i, m)) for m in w])  # (M, n): p_m(y | x)
        expected = -np.log(pi[i] @ p).sum()
        sent = run.uploads[2, "evaluate/1 on test", f"c{i}"]["counts"]
        assert float(sent.loss.sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.proves("focus", "the ensemble's squared error by hand")
def test_focus_predicts_the_mean_of_values(line: Any, engine: str) -> None:
    """Regression: the loss of `sum_m pi_em f_m(x)`."""
    run = line.run(Focus(local=line.local), engine)
    w, pi = models_of(line, run), run.runner.server["log_pi"].exp().numpy()
    for i in line.clients:
        values = w[:, :1] * line.x[i] + w[:, 1:]  # (M, n)
        expected = ((pi[i] @ values - line.y[i]) ** 2).sum()
        sent = run.uploads[2, "evaluate/1 on test", f"c{i}"]["counts"]
        assert float(sent.loss.sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.proves("focus", "labels of clients that took no part, by hand")
@pytest.mark.parametrize("steps", [1, 3])
def test_labels_of_clients_that_took_no_part(line: Any, engine: str, steps: int) -> None:
    """`pi_em` proportional to `exp(-k l_em)` under the last models, `0.8 pi_em + 0.1` with a floor
    of 0.1: clients that no cohort held get them after the last round, unseen ones from `adapted`.
    """
    method = Focus(
        local=line.local, init="common_noise", noise=1.0, n_label_steps=steps, pi_floor=0.1
    )
    run = line.run(method, engine, participation=Participation(number=1), rounds=1)
    asked = [i for i in line.clients if (0, "train/1 on train", f"c{i}") in run.uploads]
    assert len(asked) == 1
    w, runner = models_of(line, run), run.runner
    for i in line.clients:
        expected = 0.8 * softmax(-steps * np.array([line.loss(i, m) for m in w]), 0) + 0.1
        new = runner.method.adapted(runner.server["params"], line.dataset().client(i).train)
        np.testing.assert_allclose(new["log_pi"].exp().numpy(), expected, rtol=1e-5)
        kept = runner.federation.states.kept[i]["log_pi"].exp().numpy()
        assert np.allclose(kept, expected, rtol=1e-5) == (i not in asked)


@pytest.mark.proves("focus", "one model with entropy weights is EBA")
@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("by", ["own", "model"])
def test_one_model_with_entropy_weights_is_eba(line: Any, weighting: Any, by: Any) -> None:
    options: dict[str, Any] = {"local": line.local, "tau": 0.5, "weighting": weighting}
    a, b = line.run(Focus(m=1, tau_loss=by, **options)), line.run(EBA(**options))
    expected = line.theta(b.runner.server["params"])
    np.testing.assert_allclose(models_of(line, a)[0], expected, rtol=1e-6)


WITHIN: list[dict[str, Any]] = [
    {"tau": 0.5, "p_max": 0.4},
    {"tau": 0.5, "tau_decay": 1.0, "tau_power": 0.5},
    {"tau": 0.7, "tau_mode": "relative"},
    {"tau": 0.5, "loss_at": "local_final"},
    {"tau": 0.5, "robust": 0.5},
    {"robust": 0.5, "p_max": 0.4, "tau": 0.3},
    {"tau": np.inf, "robust": 0.5},
]


@pytest.mark.proves("focus", "one model with all options of entropy weights is EBA with them")
@pytest.mark.parametrize("options", WITHIN, ids=str)
def test_one_model_with_all_options_is_eba(logit: Any, engine: str, options: Any) -> None:
    def last(method: Any) -> Vector:
        params = logit.run(method, engine).runner.server["params"]
        return logit.theta(trees.row(params, 0) if isinstance(method, Focus) else params)  # type: ignore[no-any-return]

    shared = {"local": logit.local, "weighting": "size"}
    expected = last(EBA(**shared, **options))
    np.testing.assert_allclose(last(Focus(m=1, **shared, **options)), expected, rtol=1e-6)
    plain = last(EBA(**shared, tau=options["tau"]))
    assert not np.allclose(plain, expected, rtol=1e-4), "the options made no difference"


@pytest.mark.proves("focus", "infinite temperature is FOCUS, weights are those of maximum entropy")
def test_entropy_weights_inside_a_cluster(line: Any) -> None:
    plain, hot = (line.run(Focus(local=line.local, tau=tau)) for tau in (np.inf, 1e12))
    np.testing.assert_allclose(models_of(line, plain), models_of(line, hot), rtol=1e-6)
    method = Focus(tau=0.7, tau_loss="model")
    labels = torch.tensor([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5]], dtype=torch.float64)
    losses = torch.tensor([[1.0, 0.2], [0.1, 2.0], [0.4, 0.3]])
    for m in range(2):
        score = method.score(m, {"log_pi": labels.log(), "loss": losses}, torch.ones(3))
        expected = entropy_weights(losses[:, m], 0.7, labels[:, m])
        torch.testing.assert_close(score.softmax(0), expected)


def pooled(problem: Any, members: list[int], steps: int) -> Vector:
    """A model trained on the union of the members' examples, full batch."""
    theta = problem.start.copy()
    for _ in range(steps):
        rows = np.concatenate([problem.gradients(i, theta) for i in members])
        theta = theta - problem.eta * rows.mean(0)
    return theta


@pytest.mark.proves("focus", "FAA with its surrogate references by hand")
def test_faa(line: Any) -> None:
    """Definition 1, with the loss of a model trained on the client's whole cluster as reference."""
    data = FederatedDataset(line.dataset().schema, list(line.dataset()), clusters=[0, 1, 1])
    result = ef.train(
        Focus(local=line.local), data, rounds=2, model=line.module(), engine="vectorized"
    )
    found = result.faa()
    assert found.reference == "true clusters"
    references = {0: pooled(line, [0], 4), 1: pooled(line, [1, 2], 4)}
    losses = result.clients["loss"].to_numpy()
    excess = losses - [line.loss(i, references[c]) for i, c in enumerate([0, 1, 1])]
    assert found.faa == pytest.approx(excess.max() - excess.min(), rel=1e-4)
    assert found.n_negative_excess == (excess < 0).sum()
    assert found.mean_loss == pytest.approx(losses.mean())


@pytest.mark.proves("focus", "clusters that are not the true ones are called estimated")
def test_estimated_clusters_are_called_so(line: Any) -> None:
    unknown = line.dataset()
    known = FederatedDataset(unknown.schema, list(unknown), clusters=[0, 1, 1])

    def result(method: Any, data: FederatedDataset) -> ef.Result:
        return ef.train(method, data, rounds=1, model=line.module(), engine="vectorized")

    with_truth = result(Focus(local=line.local), known)
    assert with_truth.faa([5, 2, 2]).reference == "true clusters"  # the same, by other names
    assert with_truth.faa([0, 0, 1]).reference == "estimated clusters"
    found = with_truth.method.memberships(with_truth.server, known).argmax(1).tolist()  # type: ignore[attr-defined]
    assert with_truth.faa("estimated") == with_truth.faa(found, estimated=True)
    assert with_truth.faa("estimated").reference == "estimated clusters"
    without = result("fedavg", unknown)
    assert without.faa([0, 1, 1]).reference == "estimated clusters"
    with pytest.raises(ConfigError, match="does not estimate"):
        without.faa("estimated")
    with pytest.raises(ConfigError, match="does not know them"):
        without.faa()


@pytest.mark.proves("focus", "clusters of clients that no cohort held are those of their labels")
@pytest.mark.parametrize("method", ["focus", "ifca"])
def test_estimated_clusters_of_clients_that_took_no_part(line: Any, method: str) -> None:
    """The most likely model is the one with the least loss, not the first one."""
    kind = {"focus": Focus, "ifca": IFCA}[method]
    result = ef.train(
        kind(local=line.local, init="common_noise", noise=1.0), line.dataset(), rounds=1, seed=2,
        model=line.module(), engine="vectorized", participation=Participation(number=1),
    )  # fmt: skip
    w = np.stack([line.theta(trees.row(result.server["params"], m)) for m in range(2)])
    best = [int(np.argmin([line.loss(i, m) for m in w])) for i in line.clients]
    asked = result.method.memberships(result.server, result.data).numpy()  # type: ignore[attr-defined]
    never = [i for i in line.clients if asked[i].max() < 0.51]
    assert len(never) == 2
    assert 1 in [best[i] for i in never]
    found = [int(result.method.cluster_of(result._state(i))) for i in line.clients]  # type: ignore[attr-defined]
    assert [found[i] for i in never] == [best[i] for i in never]
    assert result.faa("estimated") == result.faa(found, estimated=True)


@pytest.mark.proves("focus", "trials score clients that no cohort held by labels of their own")
def test_trials_score_clients_that_took_no_part_by_their_labels(line: Any) -> None:
    """A trial as long as the run ends with the run's own mean loss on validation data."""
    options: dict[str, Any] = {"local": line.local, "init": "common_noise", "noise": 1.0}
    given: dict[str, Any] = {
        "rounds": 1, "seed": 2, "model": line.module(), "engine": "vectorized",
        "participation": Participation(number=2),
    }  # fmt: skip
    chosen = ef.train(Focus(m="auto", max_models=2, **options), line.dataset(), **given)
    scores = chosen.history["validation_loss_by_m"][0]
    for m in (1, 2):
        alone = ef.train(Focus(m=m, **options), line.dataset(), **given)
        expected = alone.summary("val")["client_loss_mean"]
        assert scores[str(m)] == pytest.approx(expected, rel=1e-6)


@pytest.mark.proves("focus", "equal labels at the start")
def test_labels_start_equal() -> None:
    state = Focus(m=4).client_state(torch.Generator(), 3)
    torch.testing.assert_close(state["log_pi"].exp(), torch.full((4,), 0.25).double())
    assert torch.equal(state["log_pi"], uniform(4))
