"""Where a method must become another one: limits of its options, and of the clients it meets.

That the order of the clients changes no bit is among the tests of every method.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.span import gram
from evenfed.data.dataset import ClientData, FederatedDataset
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.afl import AFL
from evenfed.methods.base import Method
from evenfed.methods.centralized import Centralized
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedfv import FedFV, projected
from evenfed.methods.fedmgda import FedMGDA
from evenfed.methods.fedprox import FedProx
from evenfed.methods.local import Local
from evenfed.methods.registry import build, methods
from evenfed.methods.scaffold import Scaffold

BATCHES = LocalTraining(lr=0.1, batch=8, epochs=2)
FULL = LocalTraining(lr=0.1, batch=0, epochs=3)
ONE = replace(FULL, epochs=1)
ROUNDING = 1e-6
EXACT = 0.0
CHEAP: dict[str, Any] = {"model": "linear", "evaluate": False}
"""Engines and models agree elsewhere: here the smallest do."""
SHALLOW = {"equifl": {"shared": "weights"}}
"""What a method needs for a model without hidden layer."""
UNIFORM = {"weighting": "uniform"}
SIZE = {"weighting": "size"}
both_engines = pytest.mark.parametrize("engine", ["vectorized", "sequential"])
Train = Callable[..., Any]


@dataclass(frozen=True)
class Limit:
    """With these options, `method` is `other` with those."""

    method: str
    options: dict[str, Any]
    other: str = "fedavg"
    same: dict[str, Any] = field(default_factory=dict)
    local: LocalTraining = BATCHES
    within: float = ROUNDING


def made(name: str, local: LocalTraining, options: dict[str, Any]) -> Method:
    """The method with these options and, where it trains locally, this training."""
    given: dict[str, Any] = {}
    if "local" in {f.name for f in dataclasses.fields(methods()[name])}:
        given = {f"local.{k}": getattr(local, k) for k in ("lr", "batch", "epochs")}
    return build(name, given | SHALLOW.get(name, {}) | options)


def handed_out(trained: Any, flat: Any) -> Tensor:
    """The global model of a run, as one vector."""
    result = trained.runner.method.deployed(trained.runner.server)
    if isinstance(result, dict) and "params" in result:
        result = result["params"]
    vector: Tensor = flat(result)
    return vector


FIXED = {"eta_lambda": 0.0, "output": "last"}
"""AFL whose mixture does not move and that hands out its last iterate."""


@pytest.mark.parametrize("everybody", [True, False], ids=["all", "some"])
@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(
            Limit("fedprox", {"mu": 0.0}, within=EXACT),
            marks=pytest.mark.proves("fedprox", "mu = 0 is FedAvg"),
        ),
        pytest.param(
            Limit("fedprox", {"mu": 5.0}, local=ONE),
            marks=pytest.mark.proves("fedprox", "with one step the term is nothing: FedAvg"),
        ),
        pytest.param(
            Limit("qffl", {"q": 0.0}),
            marks=pytest.mark.proves("qffl", "q = 0 is FedAvg"),
        ),
        pytest.param(
            Limit("qffl", {"q": 0.0, **UNIFORM}, same=UNIFORM),
            marks=pytest.mark.proves("qffl", "q = 0 is FedAvg"),
        ),
        pytest.param(
            Limit("qfedsgd", {"q": 0.0}, local=ONE),
            marks=pytest.mark.proves("qfedsgd", "q = 0 is FedAvg with one full step"),
        ),
        pytest.param(
            Limit("qfedsgd", {"q": 2.0}, "qffl", {"q": 2.0}, local=ONE),
            marks=pytest.mark.proves("qfedsgd", "it is q-FedAvg with one full step"),
        ),
        pytest.param(
            Limit("term", {"t": 0.0}),
            marks=pytest.mark.proves("term", "t = 0 is FedAvg"),
        ),
        pytest.param(
            Limit("term", {"t": 1e-7}),
            marks=pytest.mark.proves("term", "t near 0 is FedAvg"),
        ),
        pytest.param(
            Limit("term", {"t": 4.0}, "eba", {"tau": 0.25}, within=EXACT),
            marks=pytest.mark.proves("term", "it is EBA of temperature 1/t, bit for bit"),
        ),
        pytest.param(
            Limit("term", {"t": 0.4, **UNIFORM}, "eba", {"tau": 2.5, **UNIFORM}, within=EXACT),
            marks=pytest.mark.proves("term", "it is EBA of temperature 1/t, bit for bit"),
        ),
        pytest.param(
            Limit("eba", {"tau": float("inf")}),
            marks=pytest.mark.proves("eba", "an infinite temperature is FedAvg"),
        ),
        pytest.param(
            Limit("fedeba", {"alpha": 0.0}, "eba", within=EXACT),
            marks=pytest.mark.proves("fedeba", "alpha = 0 is EBA, bit for bit"),
        ),
        pytest.param(
            Limit("prac_fedeba", {"alpha": 0.0}, "eba", within=EXACT),
            marks=pytest.mark.proves("prac_fedeba", "alpha = 0 is EBA, bit for bit"),
        ),
        pytest.param(
            Limit("afl", {**FIXED, "multi_step": True}, same=UNIFORM),
            marks=pytest.mark.proves("afl", "the last iterate of a fixed mixture is FedAvg"),
        ),
        pytest.param(
            Limit("afl", {**FIXED, "multi_step": True, **SIZE}, same=SIZE),
            marks=pytest.mark.proves("afl", "the last iterate of a fixed mixture is FedAvg"),
        ),
        pytest.param(
            Limit("afl", FIXED, same=UNIFORM, local=ONE),
            marks=pytest.mark.proves("afl", "one step a round is that of FedAvg with all data"),
        ),
        pytest.param(
            Limit("fedfv", {"alpha": 1.0, "tau": 0}, same=UNIFORM),
            marks=pytest.mark.proves("fedfv", "if all keep their gradients it is FedAvg"),
        ),
        pytest.param(
            Limit("fedfv", {"alpha": 1.0, "tau": 0, **SIZE}, same=SIZE),
            marks=pytest.mark.proves("fedfv", "if all keep their gradients it is FedAvg"),
        ),
        pytest.param(
            Limit("propfair", {"base": 1e6, "local.lr": 1e5}, within=1e-5),
            marks=pytest.mark.proves("propfair", "a large base is FedAvg at the rate lr / base"),
        ),
        pytest.param(
            Limit("gifair", {"c": 0.0}),
            marks=pytest.mark.proves("gifair", "c = 0 is FedAvg"),
        ),
        pytest.param(
            Limit("gifair", {"c": 0.0, "apply": "steps"}),
            marks=pytest.mark.proves("gifair", "c = 0 is FedAvg"),
        ),
    ],
    ids=lambda limit: f"{limit.method}-is-{limit.other}",
)
def test_limits(
    limit: Limit,
    everybody: bool,
    binary: FederatedDataset,
    train_rounds: Train,
    distance: Any,
    flat: Any,
) -> None:
    some = Participation() if everybody else Participation(fraction=0.6)
    pair = (
        made(limit.method, limit.local, limit.options),
        made(limit.other, limit.local, limit.same),
    )
    engine = "vectorized" if everybody else "sequential"
    a, b = (train_rounds(m, binary, engine, participation=some, **CHEAP) for m in pair)
    assert distance(handed_out(a, flat), handed_out(b, flat)) <= limit.within


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qffl", {}),
        ("qfedsgd", {}),
        ("term", {}),
        ("afl", {"output": "last"}),
        ("fedfv", {}),
        ("fedmgda", {}),
        ("propfair", {}),
        ("gifair", {}),
        ("gifair", {"apply": "steps"}),
        ("aaggff", {}),
    ],
)
def test_a_rate_of_zero_moves_nothing(
    name: str, options: dict[str, Any], binary: FederatedDataset, train_rounds: Train, flat: Any
) -> None:
    """A schedule may end at 0: the last round then leaves the model as it is."""
    end = {"local.schedule": "step", "local.decay": 0.0, "local.decay_every": 1}
    method = made(name, BATCHES, options | end)
    one, two = (
        handed_out(train_rounds(method, binary, "sequential", rounds=n, **CHEAP), flat)
        for n in (1, 2)
    )
    assert torch.equal(one, two)


def cloned(one: ClientData, names: str, schema: Any) -> FederatedDataset:
    """Clients with the same data under different names."""
    return FederatedDataset(schema, [ClientData(n, one.train, one.val, one.test) for n in names])


ALONE: dict[str, dict[str, Any]] = {
    "afl": {"eta_lambda": 0.1, "multi_step": True, "output": "last"},
    "fedavgm": {"beta": 0.0},
    "fedeba": {"alpha": 0.0},
    "fedprox": {"mu": 0.0},
    "prac_fedeba": {"alpha": 0.0},
    "qffl": {"q": 0.0},
}
"""Options with which a method that meets one client alone is FedAvg."""

ALONE_OTHERWISE = {
    "agnosticfair": "weighs examples by a kernel",
    "equifl": "trains with a fairness term",
    "fcfl": "descends two objectives",
    "fedadam": "scales every coordinate of the step",
    "fedfair": "trains under a constraint",
    "fedfb": "weighs examples by group",
    "fedma": "matches neurons and trains layer by layer",
    "fedmgda": "normalises the update",
    "fedminmax": "weighs examples by group",
    "fedyogi": "scales every coordinate of the step",
    "focus": "takes its models from as many clients",
    "group_weighted": "weighs examples by group",
    "hetpfl": "trains a hypernetwork",
    "ifca": "takes its models from as many clients",
    "lft_ensemble": "hands out the clients' own models",
    "lft_fedavg": "weighs examples by group",
    "local": "hands out nothing; see the test of Local and Centralized",
    "lp_proj": "shares a projection of the model",
    "pfedme": "steps along an envelope of the loss",
    "pffl": "weighs examples by group",
    "pfnm": "matches neurons, whose number may grow",
    "praffl": "trains a hypernetwork",
    "propfair": "descends the logarithm of the loss below a base",
    "qfedsgd": "takes one step; with q > 0 a shorter one",
    "ser": "regularises local training",
}
"""Methods that are not FedAvg even then, and why."""


@pytest.mark.parametrize("name", sorted(set(methods()) - set(ALONE_OTHERWISE)))
def test_one_client_alone_is_fedavg(
    name: str, make_client: Any, make_schema: Any, train_rounds: Train, distance: Any, flat: Any
) -> None:
    alone = cloned(make_client("binary", 0, 20), "a", make_schema("binary"))
    a, b = (
        handed_out(
            train_rounds(made(n, FULL, ALONE.get(n, {})), alone, "sequential", **CHEAP), flat
        )
        for n in (name, "fedavg")
    )
    assert distance(a, b) < ROUNDING


ALIKE_OTHERWISE = {
    "fedma": "neurons of equal models are matched by a prior that counts models",
    "focus": "takes its models from as many clients",
    "hetpfl": "clients draw their own preferences",
    "ifca": "takes its models from as many clients",
    "lft_ensemble": "hands out as many models as clients",
    "pfnm": "neurons of equal models are matched by a prior that counts models",
    "praffl": "clients draw their own preferences",
}
"""Methods whose clients differ though their data do not, and why."""


@pytest.mark.parametrize("name", sorted(set(methods()) - set(ALIKE_OTHERWISE)))
def test_clients_that_are_all_alike_are_one(
    name: str, make_client: Any, make_schema: Any, train_rounds: Train, distance: Any, flat: Any
) -> None:
    one, schema = make_client("binary", 0, 20), make_schema("binary")
    a, b = (
        train_rounds(made(name, FULL, {}), cloned(one, names, schema), "sequential", **CHEAP)
        for names in ("abc", "a")
    )
    assert distance(handed_out(a, flat), handed_out(b, flat)) < ROUNDING


TWICE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # a step of the mixture is shared by twice as many entries
    "afl": ({"eta_lambda": 0.1}, {"eta_lambda": 0.05}),
    # a share of the clients is a number of them, rounded
    "fedfv": ({"alpha": 0.0}, {"alpha": 0.0}),
    # two weights have twice the room
    "fedmgda": ({"eps": 0.1}, {"eps": 0.05}),
    # the strength is relative to min a_i / (n - 1): half of it by 5 instead of 2, ranks twice
    "gifair": ({"c": 0.4}, {"c": 0.5}),
}
"""Options for clients that are there once and twice, where the number of clients enters."""

TWICE_OTHERWISE = {
    "aaggff": "the number of clients enters the constants of its regret bound",
    "fairfed": "its weights move by differences from the clients' mean, not by shares",
    "fedma": "neurons are matched by a prior that counts models",
    "focus": "which clients the first models come from is drawn by name",
    "hetpfl": "clients draw their own preferences",
    "ifca": "which clients the first models come from is drawn by name",
    "lft_ensemble": "hands out as many models as clients",
    "pfnm": "neurons are matched by a prior that counts models",
    "praffl": "clients draw their own preferences",
}
"""Methods for which a client that is there twice is not one of twice the weight, and why."""


@pytest.mark.parametrize("name", sorted(set(methods()) - set(TWICE_OTHERWISE)))
def test_clients_that_are_there_twice_change_nothing(
    name: str, make_dataset: Any, train_rounds: Train, distance: Any, flat: Any
) -> None:
    once = make_dataset(sizes=(8, 21, 5))
    pairs = [
        ClientData(f"{c.name}{copy}", c.train, c.val, c.test) for c in once for copy in ("a", "b")
    ]
    twice = FederatedDataset(once.schema, pairs)
    options = TWICE.get(name, ({}, {}))
    a, b = (
        handed_out(train_rounds(made(name, FULL, given), data, "sequential", **CHEAP), flat)
        for data, given in zip((twice, once), reversed(options), strict=True)
    )
    assert distance(a, b) < 2 * ROUNDING


@pytest.mark.parametrize("table", [ALONE_OTHERWISE, ALIKE_OTHERWISE, TWICE_OTHERWISE, ALONE, TWICE])
def test_exceptions_name_methods(table: dict[str, Any]) -> None:
    assert set(table) <= set(methods())


@pytest.mark.proves("fedmgda", "eps = 0 is FedAvg on normalised updates")
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_fedmgda_without_room_is_fedavg_on_normalised_updates(
    weighting: Any, binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    method = FedMGDA(local=BATCHES, eps=0.0, weighting=weighting)
    trained = train_rounds(method, binary, rounds=1, evaluate=False)
    sizes = torch.tensor([float(len(c.train)) if weighting == "size" else 1.0 for c in binary])
    sent = [trained.uploads[0, "train/1 on train", c.name]["update"] for c in binary]
    units = torch.stack([flat(u) / flat(u).norm() for u in sent])
    expected = flat(trained.runner.task.init()) + (sizes.double() / sizes.sum()) @ units
    assert distance(trained.server, expected) < ROUNDING


@pytest.mark.proves("fedmgda", "eps = 1 opposes nobody, and its direction is the shortest")
def test_fedmgda_without_bound_opposes_nobody(
    binary: FederatedDataset, train_rounds: Train
) -> None:
    """The shortest vector d of a convex hull has `u . d >= |d|^2` for all of its points u."""
    trained = train_rounds(FedMGDA(local=BATCHES, eps=1.0), binary, rounds=1, evaluate=False)
    sent = [trained.uploads[0, "train/1 on train", c.name]["update"] for c in binary]
    stacked = trees.stack(sent)
    norms = gram(stacked).diagonal().sqrt()
    first = trained.runner.task.init()
    moved = trees.subtract(trained.runner.server["params"], first)
    along = gram(stacked, trees.stack([moved]))[:, 0] / norms
    assert float(along.min()) >= float(trees.squared_norm(moved)) - 1e-5


@pytest.mark.proves("fedfv", "of two gradients that conflict each loses its part along the other")
def test_fedfv_leaves_nothing_of_two_opposite_gradients(
    make_schema: Any, make_client: Any, train_rounds: Train, flat: Any
) -> None:
    """Of two gradients that conflict, each loses its part along the other: dot products are 0.

    Two opposite ones lose everything, and then the model must not move at all.
    """
    g = torch.tensor([[1.0, 0.2], [-1.0, 0.4]], dtype=torch.float64)
    rows = projected(g @ g.T, torch.tensor([0.0, 1.0]), 0.0) @ g
    torch.testing.assert_close((rows * g.flip(0)).sum(1), torch.zeros(2, dtype=torch.float64))
    one = make_client("regression", 0, 20)
    mirrored = replace(one.train, y=-one.train.y)
    pair = [ClientData("a", one.train, one.val, one.test)]
    pair.append(ClientData("b", mirrored, one.val, one.test))
    data = FederatedDataset(make_schema("regression"), pair)
    zero = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(zero.weight)
    torch.nn.init.zeros_(zero.bias)
    method = FedFV(local=ONE, alpha=0.0, tau=0)
    trained = train_rounds(method, data, model=zero, rounds=1, evaluate=False)
    assert float(trained.server.abs().max()) == 0
    sent = [trained.uploads[0, "train/1 on train", name]["update"] for name in "ab"]
    assert min(float(flat(update).norm()) for update in sent) > 0.01


@pytest.mark.proves("afl", "clients without weight move the mixture, not the model")
def test_afl_stays_where_nobody_of_the_cohort_has_weight(
    binary: FederatedDataset, train_rounds: Train, flat: Any
) -> None:
    """One client a round and a large rate: the first one takes the whole mixture.

    The next other client has weight 0: the model stays, and the mixture moves on to that client.
    """
    some = Participation(number=1)
    moved, holders = [], []
    for rounds in range(1, 6):
        trained = train_rounds(
            AFL(local=ONE, eta_lambda=10.0), binary, participation=some, rounds=rounds,
            evaluate=False,
        )  # fmt: skip
        moved.append(flat(trained.runner.server["params"]))
        holders.append(int(trained.runner.server["mixture"].argmax()))
    stays = [i for i in range(4) if holders[i + 1] != holders[i]]
    goes = [i for i in range(4) if holders[i + 1] == holders[i]]
    assert stays
    assert all(torch.equal(moved[i], moved[i + 1]) for i in stays)
    assert not any(torch.equal(moved[i], moved[i + 1]) for i in goes)


@pytest.mark.proves("fedprox", "a strong term holds the model")
def test_fedprox_with_a_strong_term_stays_near_the_received_model(
    binary: FederatedDataset, train_rounds: Train, flat: Any
) -> None:
    def moved(mu: float) -> float:
        trained = train_rounds(FedProx(local=BATCHES, mu=mu), binary, rounds=1)
        return float((trained.server - flat(trained.runner.task.init())).norm())

    assert moved(5.0) < 0.7 * moved(0.0)


@pytest.mark.proves("local", "one client alone is FedAvg and Centralized")
@pytest.mark.proves("centralized", "one client alone is FedAvg and Local")
def test_one_client_alone_is_fedavg_local_and_centralized(
    make_dataset: Any, train_rounds: Train, distance: Any, flat: Any
) -> None:
    """With full batches, as each of the three draws its batches for another purpose."""
    data = make_dataset(sizes=(30,))
    average = train_rounds(FedAvg(local=FULL), data, "sequential")
    pooled = train_rounds(Centralized(local=FULL), data, "sequential")
    alone = train_rounds(Local(local=FULL), data, "sequential")
    own = flat(alone.runner.federation.states.kept[0]["params"])
    assert distance(average.server, own) < ROUNDING
    assert distance(pooled.server, own) < ROUNDING
    assert distance(own, flat(alone.runner.task.init())) > 0.01


@pytest.mark.proves("centralized", "with one full step it is FedAvg by size")
def test_centralized_with_full_batches_is_one_step_fedavg_by_size(
    binary: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    """The mean gradient over all examples is the mean of the clients' gradients by size."""
    one = replace(FULL, epochs=1)
    a = train_rounds(Centralized(local=one), binary)
    b = train_rounds(FedAvg(local=one), binary)
    assert distance(a.server, b.server) < ROUNDING


@pytest.mark.proves("scaffold", "its first round is FedAvg, its second is not")
@both_engines
def test_scaffold_begins_as_fedavg_with_uniform_weights(
    engine: str, binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    a = train_rounds(Scaffold(local=BATCHES), binary, engine, rounds=1)
    b = train_rounds(FedAvg(local=BATCHES, weighting="uniform"), binary, engine, rounds=1)
    assert distance(flat(a.runner.server["params"]), b.server) < ROUNDING
    later = train_rounds(Scaffold(local=BATCHES), binary, engine, rounds=2)
    other = train_rounds(FedAvg(local=BATCHES, weighting="uniform"), binary, engine, rounds=2)
    assert distance(flat(later.runner.server["params"]), other.server) > 1e-4


@pytest.mark.proves("scaffold", "with one full step it is gradient descent")
@both_engines
def test_scaffold_with_one_full_step_is_gradient_descent_on_the_mean(
    engine: str, binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    """`mean(g_i - c_i + c) = mean(g_i)`, as `c` is the mean of the `c_i`."""
    trained = train_rounds(Scaffold(local=replace(FULL, epochs=1)), binary, engine, rounds=4)
    task = trained.runner.task
    params = task.init()
    for _ in range(4):
        gradients = trees.stack([grad(task.mean_loss)(params, c.train) for c in binary])
        params = trees.add(params, trees.map(lambda g: g.mean(0), gradients), -FULL.lr)
    assert distance(flat(trained.runner.server["params"]), flat(params)) < 1e-5


@pytest.mark.proves("scaffold", "the server holds the mean of the control variates")
def test_scaffolds_server_keeps_the_mean_of_the_clients_controls(
    binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    trained = train_rounds(Scaffold(local=BATCHES), binary, EngineOptions("vectorized", workers=1))
    kept = trained.runner.federation.states.kept
    controls = torch.stack([flat(kept[i]["control"]) for i in range(len(binary))])
    assert distance(flat(trained.runner.server["control"]), controls.mean(0)) < 1e-5


@functools.cache
def worst_loss(name: str, options: tuple[tuple[str, Any], ...], train: Train, schema: Any) -> float:
    """The largest training loss of a client after 60 rounds, where one of four disagrees."""
    rng = np.random.default_rng(0)
    clients = []
    for k, (w, n) in enumerate([((1, -2), 40), ((1, -2), 30), ((1, -1.5), 30), ((-1, 1), 20)]):
        x = rng.normal(size=(n, 3))
        y = (rng.random(n) < 1 / (1 + np.exp(-2 * x[:, :2] @ np.array(w)))).astype(np.int64)
        rows = Examples.of(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
        clients.append(ClientData(f"c{k}", rows, rows, rows))
    data = FederatedDataset(schema, clients)
    local = LocalTraining(lr=0.2, batch=0, epochs=2)
    trained = train(made(name, local, dict(options)), data, "sequential", rounds=60, **CHEAP)
    method = trained.runner.method
    params = method.deployed(trained.runner.server)
    return max(float(method.task.mean_loss(params, c.train)) for c in data)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qffl", {"q": 2.0}),
        ("qfedsgd", {"q": 2.0, "local.lr": 0.5}),
        ("term", {"t": 5.0}),
        ("afl", {"local.lr": 0.5, "eta_lambda": 1.0}),
        ("fedfv", {}),
        ("fedmgda", {"eps": 1.0, "server_lr": 0.3, "server_decay": 0.95}),
        ("propfair", {"base": 1.5}),
        ("gifair", {"c": 0.9}),
        ("gifair", {"c": 0.9, "apply": "steps"}),
        ("aaggff", {"setting": "silo"}),
        ("aaggff", {"setting": "device"}),
    ],
)
@pytest.mark.proves("qffl", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("qfedsgd", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("term", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("afl", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("fedfv", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("fedmgda", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("propfair", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("gifair", "the worst client's loss is below that of FedAvg")
@pytest.mark.proves("aaggff", "the worst client's loss is below that of FedAvg")
def test_the_worst_client_gains(
    name: str, options: dict[str, Any], train_rounds: Train, make_schema: Any
) -> None:
    """Against FedAvg with the same weights where losses or directions play no part.

    By size where the method starts from sizes; uniform for those that start from equal weights.
    """
    uniform = name in ("afl", "fedfv", "fedmgda", "aaggff")
    plain = (("weighting", "uniform"),) if uniform else ()
    schema = make_schema("binary")
    fair = worst_loss(name, tuple(options.items()), train_rounds, schema)
    assert fair < 0.95 * worst_loss("fedavg", plain, train_rounds, schema)
