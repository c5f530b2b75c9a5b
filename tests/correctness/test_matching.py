"""PFNM and FedMA: the matching against all possible ones, rounds by hand, permuted networks."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import evenfed as ef
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.core.matching import Prior, match
from evenfed.methods.fedma import FedMA
from evenfed.methods.pfnm import PFNM
from evenfed.runs.runner import Runner, Settings, build_task

Vector = np.ndarray


@dataclass
class Buffet:
    """Global neurons of the networks that have chosen; written from the model, not from the code.

    Local neuron `v` of network j: `v ~ N(theta_i, 1 / p_j)`, `theta_i ~ N(0, 1 / p_0)`. Network j
    takes a neuron that `m` of the others have with the odds `m / (J - m)`, and `k` new ones with a
    probability proportional to `(gamma / J)^k / k!`.
    """

    networks: list[Vector]
    precisions: list[Vector]
    p0: Vector
    gamma: float
    places: list[list[int]]

    def neuron(self, i: int) -> Vector:
        """The best `theta_i` for the choices made."""
        total, weight = np.zeros_like(self.p0), self.p0.copy()
        for v, p, places in zip(self.networks, self.precisions, self.places, strict=True):
            for row, place in zip(v, places, strict=False):
                if place == i:
                    total, weight = total + p * row, weight + p
        return total / weight

    @property
    def neurons(self) -> Vector:
        count = 1 + max(i for places in self.places for i in places)
        return np.stack([self.neuron(i) for i in range(count)])

    def log_likelihood(self) -> float:
        """Twice the logarithm of the Gaussian part, at the best neurons, up to a constant."""
        theta = self.neurons
        total = -(theta**2 * self.p0).sum()
        for v, p, places in zip(self.networks, self.precisions, self.places, strict=True):
            for row, place in zip(v, places, strict=False):
                total -= ((row - theta[place]) ** 2 * p).sum()
        return float(total)

    def choices(self, j: int) -> list[list[int]]:
        """All places that network j could take, given those of the others."""
        known = sorted({i for k, places in enumerate(self.places) if k != j for i in places})
        assert known == list(range(len(known)))
        count = len(self.networks[j])
        found = []
        for old in itertools.product([*known, None], repeat=count):
            taken = [i for i in old if i is not None]
            if len(set(taken)) == len(taken):
                fresh = itertools.count(len(known))
                found.append([next(fresh) if i is None else i for i in old])
        return found

    def score(self, j: int, places: list[int]) -> float:
        """Twice the logarithm of what network j's choice is worth, given those of the others."""
        others = [i for k, chosen in enumerate(self.places) if k != j for i in chosen]
        size, prior, fresh = len(self.networks), 0.0, 0
        for i in places:
            if m := others.count(i):
                prior += math.log(m / (size - m))
            else:
                prior, fresh = prior + math.log(self.gamma / size), fresh + 1
        self.places[j] = places
        return self.log_likelihood() + 2 * (prior - math.lgamma(fresh + 1))

    def place(self, j: int) -> float:
        """Take the best choice of network j; returns its score."""
        self.places[j] = []
        options = self.choices(j)
        scores = [self.score(j, option) for option in options]
        self.places[j] = options[int(np.argmax(scores))]
        return max(scores)


def some_networks(seed: int) -> tuple[list[Vector], list[Vector], Vector, float]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(4, 2)) * 2
    networks = [centres[rng.permutation(4)[:2]] + 0.5 * rng.normal(size=(2, 2)) for _ in range(3)]
    precisions = [rng.uniform(0.3, 2, size=2) for _ in range(3)]
    return networks, precisions, rng.uniform(0.05, 0.5, size=2), float(rng.uniform(0.2, 3))


@pytest.mark.proves("pfnm", "each network is matched as the best of all possible ways")
@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_the_matching_is_the_best_of_all(seed: int) -> None:
    """Three networks of two neurons, one after the other, against an enumeration of all choices."""
    networks, precisions, p0, gamma = some_networks(seed)
    hand = Buffet(networks, precisions, p0, gamma, [[], [], []])
    best = [hand.place(j) for j in range(3)]
    found = match(networks, precisions, Prior(np.zeros(2), p0, gamma, most=9))
    mine = Buffet(networks, precisions, p0, gamma, [p.tolist() for p in found.places])
    assert mine.score(2, mine.places[2]) == pytest.approx(best[2])
    assert mine.places == hand.places
    np.testing.assert_allclose(found.neurons, hand.neurons)
    taken = [i for places in hand.places for i in places]
    assert found.counts.tolist() == [taken.count(i) for i in range(len(found.counts))]


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_after_sweeps_the_network_placed_last_is_where_it_fits_best(seed: int) -> None:
    networks, precisions, p0, gamma = some_networks(seed)
    prior = Prior(np.zeros(2), p0, gamma, most=9)
    found = match(networks, precisions, prior, sweeps=2, rng=np.random.default_rng(seed))
    again = np.random.default_rng(seed)
    again.permutation(3)
    last = int(again.permutation(3)[-1])
    mine = Buffet(networks, precisions, p0, gamma, [p.tolist() for p in found.places])
    np.testing.assert_allclose(found.neurons, mine.neurons)
    # renumber so that the others' neurons come first
    others = sorted({i for k, p in enumerate(mine.places) if k != last for i in p})
    order = others + [i for i in range(len(found.counts)) if i not in others]
    mine.places = [[order.index(i) for i in p] for p in mine.places]
    score = mine.score(last, mine.places[last])
    assert score == pytest.approx(mine.place(last))


def test_no_layer_grows_beyond_its_limit() -> None:
    rng = np.random.default_rng(0)
    networks = [10 * rng.normal(size=(3, 2)) for _ in range(4)]
    prior = Prior(np.zeros(2), np.full(2, 0.01), gamma=5.0, most=5)
    found = match(networks, [np.ones(2)] * 4, prior, sweeps=2, rng=rng)
    assert len(found.neurons) == 5
    wide = match(networks, [np.ones(2)] * 4, Prior(np.zeros(2), np.full(2, 0.01), 5.0, most=50))
    assert len(wide.neurons) > 5


# Rounds by hand: a network x -> tanh(W1 x + b1) -> W2 h + b2 with two hidden neurons


@dataclass
class Net:
    """Weights, and descent on client i's data by hand."""

    w1: Vector
    b1: Vector
    w2: Vector
    b2: Vector

    def trained(self, problem: Any, i: int, frozen: bool = False) -> Net:
        net = self
        for _ in range(problem.steps):
            x, y = problem.x[i][:, None], problem.y[i]
            h = np.tanh(x @ net.w1.T + net.b1)
            out = h @ net.w2.T + net.b2
            if problem.kind == "line":
                error = 2 * (out - y[:, None]) / len(x)
            else:
                error = np.exp(out) / np.exp(out).sum(1, keepdims=True)
                error[np.arange(len(x)), y] -= 1
                error /= len(x)
            back = (error @ net.w2) * (1 - h**2)
            rate = 0.0 if frozen else problem.eta
            net = Net(
                net.w1 - rate * back.T @ x, net.b1 - rate * back.sum(0),
                net.w2 - problem.eta * error.T @ h, net.b2 - problem.eta * error.sum(0),
            )  # fmt: skip
        return net

    def part(self, places: list[int]) -> Net:
        return Net(self.w1[places], self.b1[places], self.w2[:, places], self.b2)


def first_net(problem: Any, seed: int = 0) -> tuple[Net, nn.Module]:
    outputs = 1 if problem.kind == "line" else 2
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, outputs))
    arrays = [p.detach().double().numpy() for p in module.parameters()]
    return Net(*arrays), module


def shares(problem: Any) -> Vector:
    """Share of each client in the examples (line) or in those of each class: (J, outputs)."""
    if problem.kind == "line":
        counts = problem.sizes[:, None]
    else:
        counts = np.stack([[float((y == c).sum()) for c in (0, 1)] for y in problem.y])
    return counts / counts.sum(0)


def compare(params: dict[str, torch.Tensor], net: Net) -> None:
    for value, expected in zip(params.values(), (net.w1, net.b1, net.w2, net.b2), strict=True):
        np.testing.assert_allclose(value.double().numpy(), expected, rtol=2e-4, atol=1e-6)


OPTIONS: dict[str, Any] = {"sigma0": 2.0, "gamma": 1.5, "sweeps": 0}
variances = pytest.mark.parametrize("sigma", [1.0, 1e-4])
"""A large one matches all neurons, a tiny one few or none."""


@pytest.mark.proves("pfnm", "two rounds by hand, matched and not")
@variances
@pytest.mark.parametrize("problem", ["line", "logit"])
def test_pfnm(problem: str, engine: str, sigma: float, request: pytest.FixtureRequest) -> None:
    """A neuron is `(w1, b1, w2)`; its part `w2_k` has the precision `y_jk / sigma`, the rest

    `1 / sigma`. The output bias: prior 0 of variance `sigma0`, precisions `y_jk / sigma`.
    The next round begins with each client's part of the global network.
    """
    case = request.getfixturevalue(problem)
    start, module = first_net(case)
    y = shares(case)
    nets = [start] * 3
    for _ in range(case.rounds):
        nets = [net.trained(case, i) for i, net in enumerate(nets)]
        vectors = [np.hstack([n.w1, n.b1[:, None], n.w2.T]) for n in nets]
        precisions = [np.concatenate([np.ones(2), y[j]]) / sigma for j in range(3)]
        hand = Buffet(vectors, precisions, np.full(2 + y.shape[1], 0.5), 1.5, [[], [], []])
        for j in range(3):
            hand.place(j)
        theta = hand.neurons
        bias = sum(y[j] / sigma * nets[j].b2 for j in range(3)) / (0.5 + y.sum(0) / sigma)
        merged = Net(theta[:, :1], theta[:, 1], theta[:, 2:].T, bias)
        nets = [merged.part(places) for places in hand.places]
    method = PFNM(local=case.local, sigma=sigma, one_shot=False, **OPTIONS)
    runner = case.run(method, engine, model=module).runner
    assert (len(merged.w1) == 2) == (sigma == 1.0)
    assert runner.history[-1]["widths"] == [len(merged.w1)]
    compare(runner.server["params"], merged)


@pytest.mark.proves("pfnm", "in one shot: training alone, then one match")
def test_pfnm_in_one_shot_matches_networks_that_trained_alone(line: Any, engine: str) -> None:
    start, module = first_net(line)
    nets = [start.trained(line, i).trained(line, i) for i in line.clients]
    y = shares(line)
    vectors = [np.hstack([n.w1, n.b1[:, None], n.w2.T]) for n in nets]
    hand = Buffet(
        vectors, [np.array([1, 1, y[j, 0]]) for j in range(3)], np.full(3, 0.5), 1.5, [[], [], []]
    )
    for j in range(3):
        hand.place(j)
    bias = sum(y[j] * nets[j].b2 for j in range(3)) / 1.5
    theta = hand.neurons
    run = line.run(PFNM(local=line.local, **OPTIONS), engine, model=module)
    compare(run.runner.server["params"], Net(theta[:, :1], theta[:, 1], theta[:, 2:].T, bias))
    assert [record["bytes_up"] > 0 for record in run.runner.history] == [False, True]


@pytest.mark.proves("fedma", "two rounds by hand, matched and not")
@variances
@pytest.mark.parametrize("problem", ["line", "logit"])
def test_fedma(problem: str, engine: str, sigma: float, request: pytest.FixtureRequest) -> None:
    """First exchange: train all, match neurons `(w1, b1)`, precision `1 / sigma`. Second: `w2` goes

    to the places of the client's neurons, 0 elsewhere; train `w2, b2` on the frozen layer; output k
    is the mean with weights `y_jk`. The next round begins with each client's part.
    """
    case = request.getfixturevalue(problem)
    start, module = first_net(case)
    y = shares(case)
    nets = [start] * 3
    for _ in range(case.rounds):
        nets = [net.trained(case, i) for i, net in enumerate(nets)]
        vectors = [np.hstack([n.w1, n.b1[:, None]]) for n in nets]
        precisions = [np.full(2, 1 / sigma)] * 3
        hand = Buffet(vectors, precisions, np.full(2, 0.5), 1.5, [[], [], []])
        for j in range(3):
            hand.place(j)
        theta, heads = hand.neurons, []
        for j, net in enumerate(nets):
            wide = np.zeros((len(net.b2), len(theta)))
            wide[:, hand.places[j]] = net.w2
            heads.append(Net(theta[:, :1], theta[:, 1], wide, net.b2).trained(case, j, frozen=True))
        w2 = sum(y[j][:, None] * heads[j].w2 for j in range(3))
        merged = Net(theta[:, :1], theta[:, 1], w2, sum(y[j] * heads[j].b2 for j in range(3)))
        nets = [merged.part(places) for places in hand.places]
    method = FedMA(local=case.local, sigma=sigma, **OPTIONS)
    runner = case.run(method, engine, model=module).runner
    assert (len(merged.w1) == 2) == (sigma == 1.0)
    assert runner.history[-1]["widths"] == [len(merged.w1)]
    assert runner.history[-1]["exchanges"] == 2
    compare(runner.server["params"], merged)


# Networks that are permutations of each other


def permuted(params: dict[str, torch.Tensor], rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The same function, with the hidden neurons in another order."""
    names = list(params)
    result, before = {}, None
    for n, (weight, bias) in enumerate(zip(names[::2], names[1::2], strict=True)):
        w, b = params[weight], params[bias]
        if before is not None:
            w = w[:, before]
        last = 2 * (n + 1) == len(names)
        rows = torch.arange(len(w)) if last else torch.from_numpy(rng.permutation(len(w)))
        result[weight], result[bias], before = w[rows], b[rows], rows
    return result


@pytest.mark.proves("pfnm", "networks that are permutations of each other give that network")
@pytest.mark.proves("fedma", "networks that are permutations of each other give that network")
@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
@pytest.mark.parametrize("method", [PFNM, FedMA])
def test_permuted_networks_are_matched_to_one(
    method: Any, hidden: tuple[int, ...], multiclass: Any, engine: str
) -> None:
    """Clients hold permuted copies and do not train (a rate that rounds to nothing).

    With a wide prior the matched network computes what each of them does; the plain mean does not.
    """
    still = LocalTraining(lr=1e-30, batch=0)
    matcher = method(local=still, sigma0=1e8, gamma=0.5)
    task = build_task(multiclass, "mlp", options={"hidden": hidden})
    options = ef.EngineOptions(engine, workers=1)
    runner = Runner(matcher, multiclass, task, Settings(1, evaluate_every=0), engine=options)
    first, rng = task.init(), np.random.default_rng(0)
    copies = [permuted(first, rng) for _ in range(len(multiclass))]
    runner.federation.states.kept = {i: {"params": copy} for i, copy in enumerate(copies)}
    runner.run()
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    expected = task.outputs(first, x)
    assert all(torch.allclose(task.outputs(copy, x), expected, atol=1e-5) for copy in copies)
    assert runner.history[-1]["widths"] == list(hidden)
    found = task.outputs(runner.server["params"], x)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    mean = {k: torch.stack([copy[k] for copy in copies]).mean(0) for k in first}
    assert not torch.allclose(task.outputs(mean, x), expected, atol=0.05)


@pytest.mark.parametrize("method", ["pfnm", "fedma"])
def test_a_client_goes_on_from_its_own_neurons(method: str, binary: Any, train_rounds: Any) -> None:
    """If no neuron was matched and none shrunk, its part of the global network is what it had."""
    cls = {"pfnm": PFNM, "fedma": FedMA}[method]
    options = {"one_shot": False} if method == "pfnm" else {}
    local = LocalTraining(lr=0.1, batch=8)
    matcher = cls(
        local=local, sigma=1e-6, sigma0=1e6, gamma=5.0, sweeps=0, init="independent", **options
    )
    runner = train_rounds(matcher, binary, rounds=1, evaluate=False).runner
    assert runner.history[-1]["widths"] == [64 * len(binary)]
    broadcast = runner.method.local_models(runner.federation, runner.server)
    begin = broadcast["params"].rows["1.weight"]
    assert begin.shape == (len(binary), 64, 3)
    runner.federation.begin(1)
    for row, client in enumerate(runner.federation.cohort):
        kept = runner.federation.states.kept[int(client)]["params"]["1.weight"]
        assert torch.allclose(begin[row], kept, atol=1e-4)


def test_a_grown_network_is_a_model() -> None:
    data = ef.load("synthetic", seed=0)
    result = ef.train("pfnm", data, rounds=2, sigma=1e-6, engine="vectorized")
    module: Any = result.method.module(result.method.deployed(result.server), ())
    assert module[1].out_features == result.history["widths"].iloc[-1][0] > 64
    x = data.client(0).test.x
    expected = result.method.task.outputs(result.parameters(), x)
    assert torch.allclose(module(x), expected, atol=1e-6)


@pytest.mark.parametrize("method", [PFNM, FedMA])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("logistic", "no hidden layer"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "LayerNorm"),
        (lambda: nn.Bilinear(3, 3, 2), "Bilinear"),
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 2)), "PReLU"),
        (lambda: nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 2)), "max_width is 8"),
    ],
)
def test_other_models_are_refused_before_training(
    method: Any, model: Any, why: str, binary: Any
) -> None:
    if why == "Bilinear":
        layer = type("Twice", (nn.Module,), {"forward": lambda self, x: self.inner(x, x)})()
        layer.inner = nn.Bilinear(3, 3, 2)
        model, why = layer, "Twice"
    task = build_task(binary, model)
    with pytest.raises(ConfigError, match=why):
        Runner(method(max_width=8), binary, task, Settings(1))


def test_layers_behind_frozen_ones_train_by_entropy_sgd(
    make_dataset: Any, train_rounds: Any, distance: Any
) -> None:
    local = LocalTraining(lr=0.1, batch=8, optimizer="entropy_sgd")
    data = make_dataset(sizes=(24, 24))
    a, b, plain = (
        train_rounds(FedMA(local=how), data, engine, rounds=1).everything
        for how, engine in (
            (local, "vectorized"), (local, "sequential"), (LocalTraining(batch=8), "vectorized"),
        )
    )  # fmt: skip
    assert distance(a, b) < 1e-5
    assert distance(a, plain) > 1e-3


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        (PFNM, {"sigma": 0.0}, "sigma"),
        (FedMA, {"gamma": -1.0}, "gamma"),
        (PFNM, {"sweeps": -1}, "sweeps"),
        (FedMA, {"init": "zeros"}, "init"),
    ],
)
def test_options_that_cannot_be_are_refused(method: Any, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        method(**options)


def test_independent_networks_cannot_be_drawn_from_a_given_instance(line: Any) -> None:
    _, module = first_net(line)
    with pytest.raises(ConfigError, match="independent"):
        line.run(PFNM(local=line.local, init="independent"), model=module)
