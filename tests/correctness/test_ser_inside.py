"""SER inside methods with steps of their own, by hand: pFedMe, lp-proj, FedMA, PraFFL, HetPFL,
and inside Entropy-SGD.

The regulariser is written here as it is defined, in float64, and differentiated as a whole by
autograd, without the closed forms of the package. For a loss `F` of a list of tensors, with `g_0`
its gradient at `w` and `g_1` the one at `w - lr g_0`, each coordinate has `pi_k = (1 + g_k /
sqrt(g_k^2 + nu_k^2)) / 2`, `nu_k` the root mean square of that tensor's `g_k`, held fixed, and

    R = mean over coordinates with a gradient of h2((pi_0 + pi_1) / 2) - (h2(pi_0) + h2(pi_1)) / 2

A corrected step follows `g_0 + rho |g_0| grad R / |grad R|`, where the derivative goes through the
look-ahead step; after the fact the correction is `rho (sum of |g|) grad R / |grad R|`, with that
step held fixed. Each test says which loss a method's `F` is, and what goes on around it.

The network is `W2 relu(W1 x + b1) + b2` with four hidden neurons; batches are full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from evenfed.core.entropy_sgd import EntropySGD
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.optimizer import Optimizer
from evenfed.core.regularizer import SignEntropy
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.methods.fedma import FedMA
from evenfed.methods.fedprox import FedProx
from evenfed.methods.hetpfl import HetPFL
from evenfed.methods.lp_proj import LpProj
from evenfed.methods.pfedme import PFedMe
from evenfed.methods.praffl import PraFFL
from evenfed.methods.sampling import Adaptive, Sampler, Uniform

LR, RHO, ROUNDS = 0.5, 0.4, 2
HIDDEN = 4
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
TABLE = torch.tensor([[0.2, 0.7, 0.9], [0.35, 0.5, 0.8]])
"""Preferences of the head's two steps."""
Weights = list[Tensor]
Loss = Callable[[Weights], Tensor]
FORMS: list[dict[str, Any]] = [{}, {"when": "interval", "interval": 3}, {"when": "posthoc"}]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.get("when", "step"))


def h2(p: Tensor) -> Tensor:
    return -(p * p.log2() + (1 - p) * (1 - p).log2())


def length(w: Sequence[Tensor]) -> Tensor:
    return torch.stack([t.square().sum() for t in w]).sum().sqrt()


def gradients(loss: Loss, at: Weights, *, through: bool) -> tuple[Weights, Weights]:
    """`g_0` and `grad R`."""
    w = [t.detach().requires_grad_() for t in at]
    g0 = torch.autograd.grad(loss(w), w, create_graph=True)
    ahead = [t - LR * (g if through else g.detach()) for t, g in zip(w, g0, strict=True)]
    g1 = torch.autograd.grad(loss(ahead), ahead, create_graph=True)
    found = []
    for pair in zip(g0, g1, strict=True):
        some = (pair[0] != 0) | (pair[1] != 0)
        p, q = (
            (1 + g[some] / (g[some].square() + g.detach().square().mean()).sqrt()) / 2 for g in pair
        )
        found.append(h2((p + q) / 2) - (h2(p) + h2(q)) / 2)
    back = torch.autograd.grad(torch.cat(found).mean(), w)
    return [g.detach() for g in g0], list(back)


@dataclass
class ByHand:
    """The steps of one round of a client, corrected where `form` says so."""

    form: dict[str, Any]
    taken: int = 0
    path: float = 0.0

    def direction(self, loss: Loss, w: Weights) -> Weights:
        """Of the next step."""
        self.taken += 1
        g, away = gradients(loss, w, through=True)
        self.path += float(length(g))
        when = self.form.get("when", "step")
        if when == "posthoc" or (when == "interval" and self.taken % self.form["interval"]):
            return g
        return [a + RHO * length(g) * b / length(away) for a, b in zip(g, away, strict=True)]

    def end(self, loss: Loss, w: Weights) -> Weights:
        """After the last step."""
        if self.form.get("when") != "posthoc":
            return w
        _, away = gradients(loss, w, through=False)
        return moved(w, [RHO * self.path * t / length(away) for t in away])

    def trained(self, loss: Loss, w: Weights, steps: int) -> Weights:
        """`steps` steps with nothing around them."""
        for _ in range(steps):
            w = moved(w, self.direction(loss, w))
        return self.end(loss, w)


def moved(w: Weights, direction: Weights, rate: float = LR) -> Weights:
    return [a - rate * b for a, b in zip(w, direction, strict=True)]


def mixed(w: Weights, other: Weights, share: float) -> Weights:
    """`w - share (w - other)`."""
    return [a - share * (a - b) for a, b in zip(w, other, strict=True)]


def logits(w: Weights, x: Tensor) -> Tensor:
    return functional.linear(torch.relu(functional.linear(x, w[0], w[1])), w[2], w[3])


@dataclass(frozen=True)
class Case:
    """Three clients, and the first weights."""

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]
    group: tuple[Tensor, ...]
    start: Weights
    train_rounds: Any

    def loss(self, i: int) -> Loss:
        return lambda w: functional.cross_entropy(logits(w, self.x[i]), self.y[i])

    def run(self, method: Any, engine: str, rounds: int = ROUNDS) -> Any:
        clients = []
        for i, (x, y, group) in enumerate(zip(self.x, self.y, self.group, strict=True)):
            data = Examples.of(x.float(), y, group)
            clients.append(ClientData(f"c{i}", data, data, data))
        groups = Groups(("sex",), (("f", "m"),))
        data = FederatedDataset(Schema("cells", "binary", 2, (3,), groups=groups), clients)
        module = nn.Sequential(nn.Linear(3, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
        module.load_state_dict(dict(zip(NAMES, self.start, strict=True)))
        return self.train_rounds(method, data, engine, rounds=rounds, model=module)


@pytest.fixture
def case(train_rounds: Any) -> Case:
    rng = np.random.default_rng(11)
    x = [torch.tensor(rng.normal(size=(8, 3))).float().double() for _ in range(3)]
    y = [(t[:, 0] - t[:, 1] + 0.5 * t[:, 2] ** 2 > 0.2).long() for t in x]
    group = [torch.tensor(rng.permutation([0, 1] * 4)) for _ in range(3)]
    shapes = ((HIDDEN, 3), (HIDDEN,), (2, HIDDEN), (2,))
    start = [torch.tensor(0.7 * rng.normal(size=s)).float().double() for s in shapes]
    return Case(tuple(x), tuple(y), tuple(group), start, train_rounds)


def local(steps: int, form: dict[str, Any] | None) -> LocalTraining:
    plain = LocalTraining(lr=LR, batch=0, steps=steps)
    if form is None:
        return plain
    return replace(plain, regularizer="ser", ser=SignEntropy(**{"rho": RHO, **form}))


def same(params: dict[str, Tensor], expected: Weights, names: Sequence[str] = NAMES) -> None:
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(params[name].double(), value, rtol=2e-3, atol=2e-4)


def kept(run: Any, i: int) -> Any:
    return run.runner.federation.states.kept[i]


@pytest.mark.proves("ser", "inside pFedMe by hand")
@pytest.mark.proves("pfedme", "with SER, two rounds by hand")
@forms
def test_inside_pfedme(case: Case, form: dict[str, Any], engine: str) -> None:
    """`F` is the client's loss at `theta`; `lambda (theta - w_i)` is added after the correction.

    A correction after the fact comes before the last step of the copy.
    """
    lam, eta, inner, steps = 0.5, 0.4, 2, 2
    w, personal = case.start, []
    for _ in range(ROUNDS):
        copies, personal = [], []
        for i in range(3):
            theta, copy, hand = w, w, ByHand(form)
            for r in range(steps):
                for _ in range(inner):
                    d = hand.direction(case.loss(i), theta)
                    d = [a + lam * (t - c) for a, t, c in zip(d, theta, copy, strict=True)]
                    theta = moved(theta, d)
                if r == steps - 1:
                    theta = hand.end(case.loss(i), theta)
                copy = mixed(copy, theta, eta * lam)
            copies.append(copy)
            personal.append(theta)
        w = [torch.stack(t).mean(0) for t in zip(*copies, strict=True)]
    method = PFedMe(local=local(steps, form), lam=lam, eta=eta, inner=inner)
    run = case.run(method, engine)
    same(run.runner.server["params"], w)
    for i in range(3):
        same(kept(run, i)["params"], personal[i])
    plain = case.run(replace(method, local=local(steps, None)), engine)
    with pytest.raises(AssertionError):
        same(plain.runner.server["params"], w)


@pytest.mark.proves("ser", "inside Entropy-SGD by hand")
@pytest.mark.proves("fedprox", "with SER inside Entropy-SGD, two rounds by hand")
def test_inside_entropy_sgd(case: Case, engine: str) -> None:
    """Two walks of two steps; `F` is the client's loss at the walk.

    FedProx's term and the walk's own pull are added after the correction.
    """
    mu, gamma, scoping, decay, rate = 0.4, 0.5, 0.3, 0.6, 0.9
    w = case.start
    for _ in range(ROUNDS):
        models = []
        for i in range(3):
            x, hand = w, ByHand({})
            for t in range(2):
                walk, mean, pull = x, x, gamma * (1 + scoping) ** t
                for _ in range(2):
                    d = hand.direction(case.loss(i), walk)
                    d = [a + mu * (b - c) for a, b, c in zip(d, walk, w, strict=True)]
                    d = [a + pull * (b - c) for a, b, c in zip(d, walk, x, strict=True)]
                    walk = moved(walk, d)
                    mean = mixed(mean, walk, 1 - decay)
                x = mixed(x, mean, rate)
            models.append(x)
        w = [torch.stack(t).mean(0) for t in zip(*models, strict=True)]
    walks = EntropySGD(walk=2, gamma=gamma, scoping=scoping, noise=0.0, decay=decay, rate=rate)
    trained = replace(local(4, {}), optimizer="entropy_sgd", entropy_sgd=walks)
    run = case.run(FedProx(mu=mu, local=trained), engine)
    same(run.runner.server["params"], w)
    plain = case.run(FedProx(mu=mu, local=replace(trained, regularizer="none")), engine)
    with pytest.raises(AssertionError):
        same(plain.runner.server["params"], w)


@pytest.mark.proves("ser", "inside lp-proj by hand")
@pytest.mark.proves("lp_proj", "with SER, two rounds by hand")
@forms
def test_inside_lp_proj(case: Case, form: dict[str, Any], engine: str) -> None:
    """`F` is the client's loss at `theta`; `-lambda P' u(c)` is added after the correction, with

    `u(c) = c / |c|` of the 2-norm. After the fact `theta` alone is corrected; it goes on from there
    in the next round.
    """
    lam, eta, inner, steps = 0.5, 0.3, 2, 2
    method = LpProj(local=local(steps, form), lam=lam, eta=eta, inner=inner, dim=3, p=2)
    run = case.run(method, engine)
    matrix = run.runner.method.projection.double()
    order = range(4)

    def pull(copy: Tensor, theta: Weights) -> Tensor:
        c = copy - matrix @ torch.cat([theta[k].flatten() for k in order])
        return c / c.norm()

    w, personal = torch.zeros(3, dtype=torch.float64), [case.start] * 3
    for _ in range(ROUNDS):
        copies = []
        for i in range(3):
            theta, copy, hand = personal[i], w, ByHand(form)
            for _ in range(steps):
                for _ in range(inner):
                    d = hand.direction(case.loss(i), theta)
                    back = (matrix.T @ pull(copy, theta)).split([theta[k].numel() for k in order])
                    for k, b in zip(order, back, strict=True):
                        d[k] = d[k] - lam * b.view(theta[k].shape)
                    theta = moved(theta, d)
                copy = copy - eta * lam * pull(copy, theta)
            personal[i] = hand.end(case.loss(i), theta)
            copies.append(copy)
        w = torch.stack(copies).mean(0)
    np.testing.assert_allclose(run.runner.server["shared"].double(), w, rtol=2e-3, atol=2e-4)
    for i in range(3):
        same(kept(run, i)["params"], personal[i])
    plain = case.run(replace(method, local=local(steps, None)), engine)
    with pytest.raises(AssertionError):
        same(kept(plain, 0)["params"], personal[0])


@pytest.mark.proves("ser", "inside FedMA by hand: frozen layers have no part in it")
@pytest.mark.proves("fedma", "with SER, both exchanges by hand; frozen layers stay")
@forms
def test_inside_fedma(case: Case, form: dict[str, Any], engine: str) -> None:
    """First exchange: `F` of all weights. Second: of `W2, b2` behind the global first layer, from

    the client's own `W2` in the places of its neurons; signs and lengths are those of these two.
    """
    run = case.run(FedMA(local=local(3, form), sigma=1e-3), engine, rounds=1)
    sent = {(key[1].split("/")[0], key[2]): value["layer"] for key, value in run.uploads.items()
            if "layer" in value}  # fmt: skip
    frozen = [run.runner.server["params"][name].double() for name in NAMES[:2]]
    assert len(frozen[0]) > HIDDEN, "some neurons should not be matched"
    for i in range(3):
        own = ByHand(form).trained(case.loss(i), case.start, 3)
        same(sent["train", f"c{i}"], own[:2], NAMES[:2])
        wide = torch.zeros(2, len(frozen[0]), dtype=torch.float64)
        wide[:, run.runner.server["places"][0][i]] = own[2]
        last = ByHand(form).trained(
            lambda rest, i=i: case.loss(i)([*frozen, *rest]), [wide, own[3]], 3
        )
        same(sent["train_on", f"c{i}"], last, NAMES[2:])
        assert set(sent["train_on", f"c{i}"]) == set(NAMES[2:])
        for name in NAMES[:2]:
            assert torch.equal(kept(run, i)["params"][name], sent["train", f"c{i}"][name])


@dataclass(frozen=True)
class Known(Uniform):
    """The preferences of `TABLE`, a row a step."""

    def draw(self, generator: torch.Generator, steps: int, n: int) -> Tensor:
        assert (steps, n) == TABLE.shape
        return TABLE


@dataclass(frozen=True)
class KnownAdaptive(Adaptive):
    """The same, whatever alpha has become."""

    def draw(self, generator: torch.Generator, steps: int, n: int) -> Tensor:
        return TABLE

    def preferences(self, memory: Any, noise: Any) -> Tensor:
        return noise  # type: ignore[no-any-return]


KAPPA, ALPHA = 0.4, 1.05
SAMPLER = KnownAdaptive(Optimizer("sgd"), KAPPA, (0.5, 5.0), "none")


class PraFFLByHand(PraFFL):
    @property
    def sampler(self) -> Sampler:
        return Known()


class HetPFLByHand(HetPFL):
    @property
    def sampler(self) -> Sampler:
        return SAMPLER


class Family:
    """A client's losses: `(W, b) = M lambda + m` behind `relu(W1 x + b1)`, `beta = (M, m)`."""

    def __init__(self, case: Case, i: int) -> None:
        self.x, self.y, self.group = case.x[i], case.y[i], case.group[i].double()

    def outputs(self, body: Weights, beta: Tensor, p: Tensor) -> Tensor:
        rows = 2 * HIDDEN + 2
        written = beta[: 2 * rows].view(rows, 2) @ torch.stack([p, 1 - p]) + beta[2 * rows :]
        head = [written[: 2 * HIDDEN].view(2, HIDDEN), written[2 * HIDDEN :]]
        return logits([*body, *head], self.x)

    def performance(self, body: Weights, beta: Tensor) -> Tensor:
        """The body's `F`: cross-entropy at the preference 1/2."""
        half = torch.tensor(0.5, dtype=torch.float64)
        return functional.cross_entropy(self.outputs(body, beta, half), self.y)

    def losses(self, body: Weights, beta: Tensor, asked: Tensor) -> Tensor:
        """Cross-entropy and |covariance of group and probability|, `(N, 2)`."""
        found = []
        for p in asked:
            out = self.outputs(body, beta, p)
            score, a = out.softmax(-1)[:, 1], self.group - self.group.mean()
            gap = (a * (score - score.mean())).mean().abs()
            found.append(torch.stack([functional.cross_entropy(out, self.y), gap]))
        return torch.stack(found)

    def front(self, heads: Weights, body: Weights, asked: Tensor) -> Tensor:
        """The head's `F`: the mean over a step's preferences of `max_j l_j / lambda_j`."""
        rays = torch.stack([asked, 1 - asked], -1)
        return (self.losses(body, heads[0], asked) / rays).max(-1).values.mean()


def families(case: Case, form: dict[str, Any], beta: Tensor) -> tuple[Weights, Any, Any]:
    """Two rounds: two steps of the body, two of the head behind it; bodies are averaged.

    Alpha moves by the sampler's own rule (proved elsewhere) on the losses before each step.
    """
    body, betas = case.start[:2], [beta] * 3
    memories: list[Any] = [
        {"alpha": torch.full((2,), ALPHA), "optimizer": SAMPLER.rule.memory(torch.ones(2))}
    ] * 3
    for _ in range(ROUNDS):
        bodies = []
        for i in range(3):
            of, b, hand = Family(case, i), betas[i], ByHand(form)
            mine = ByHand(form).trained(partial(of.performance, beta=b), body, 2)
            memory = {**memories[i], "reference": torch.ones(2)}
            for row in TABLE.double():
                losses = of.losses(mine, b, row)
                (b,) = moved([b], hand.direction(partial(of.front, body=mine, asked=row), [b]))
                memory = SAMPLER.updated(memory, row, losses)
            (b,) = hand.end(partial(of.front, body=mine, asked=TABLE[0].double()), [b])
            betas[i], memories[i] = b, memory
            bodies.append(mine)
        body = [torch.stack(t).mean(0) for t in zip(*bodies, strict=True)]
    return body, betas, [m["alpha"] for m in memories]


@pytest.mark.proves("ser", "inside PraFFL and HetPFL by hand: one preference for both gradients")
@pytest.mark.proves("praffl", "with SER, two rounds by hand")
@pytest.mark.proves("hetpfl", "with SER, two rounds of PSA by hand")
@pytest.mark.parametrize("cls", [PraFFLByHand, HetPFLByHand])
@pytest.mark.parametrize("form", [FORMS[0], FORMS[2]], ids=["step", "posthoc"])
def test_inside_preference_families(
    case: Case, form: dict[str, Any], cls: Any, engine: str
) -> None:
    options: dict[str, Any] = {
        "local": local(4, form), "body_share": 0.5, "head": (), "trunk": (), "refresh": 0,
        "n_preferences": 3,
    }  # fmt: skip
    if cls is HetPFLByHand:
        options |= {"phf": "none", "alpha_optimizer": "sgd"}
    run = case.run(cls(**options), engine)
    first = run.runner.method.client_state(torch.Generator(), 1)["beta"].double()
    body, betas, alphas = families(case, form, first)
    same(run.runner.server["params"], body, NAMES[:2])
    for i in range(3):
        same(kept(run, i), [betas[i]], ["beta"])
        if cls is HetPFLByHand:
            same(kept(run, i), [alphas[i]], ["alpha"])
            assert float((alphas[i] - ALPHA).abs().max()) > 1e-3
    options["local"] = local(4, None)
    plain = case.run(cls(**options), engine)
    with pytest.raises(AssertionError):
        same(kept(plain, 0), [betas[0]], ["beta"])


@pytest.mark.proves("ser", "rho = 0 changes no bit of pFedMe, lp-proj, FedMA, PraFFL and HetPFL")
@pytest.mark.parametrize("cls", [PFedMe, LpProj, FedMA, PraFFL, HetPFL])
def test_no_strength_changes_no_bit(case: Case, cls: Any, engine: str) -> None:
    options = {"fusion_steps": 2} if cls is HetPFL else {}
    a, b = (
        case.run(cls(local=replace(local(4, form), lr=0.05), **options), engine, 1).everything
        for form in (None, {"rho": 0.0})
    )
    assert a.isfinite().all()
    assert torch.equal(a, b)
