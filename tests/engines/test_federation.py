"""The exchange: what a method gets back from its clients, on every engine."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ClientError, ConfigError, EvenfedError, QuorumError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.tree import Tree
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.engines.auto import AutoEngine
from evenfed.engines.exchange import PerClient
from evenfed.engines.federation import EngineOptions, Federation
from evenfed.engines.fold import Tilted
from evenfed.engines.participation import Participation
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.scaffold import Scaffold

Reply = tuple[Tree, Tree]
both_engines = pytest.mark.parametrize("engine", ["vectorized", "sequential"])
SCHEMA = Schema("toy", "binary", 2, (3,), groups=Groups(("sex",), (("f", "m"),)))
FLAG = 1000.0
"""A feature that no ordinary example has; it marks the client that misbehaves."""


def federation(data: Any, engine: str = "sequential", **options: Any) -> Federation:
    chunk = options.pop("chunk", 0)
    options.setdefault("options", EngineOptions(engine, workers=1, chunk=chunk))
    fed = Federation(data, **options)
    fed.begin(0)
    return fed


def flagged(data: FederatedDataset, index: int) -> FederatedDataset:
    """The same clients, of which one has the mark in its first example."""
    clients = [data.client(i) for i in range(len(data))]
    bad = clients[index]
    x = bad.train.x.clone()
    x[0, 0] = FLAG
    train = Examples(x, bad.train.y, bad.train.group, bad.train.mask)
    clients[index] = ClientData(bad.name, train, bad.val, bad.test)
    return FederatedDataset(data.schema, clients)


def is_flagged(data: Examples) -> Tensor:
    return ((data.x[:, 0] == FLAG) & data.mask).any()


def centre(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
    """Mean of the features, shifted by the broadcast, and the number of examples."""
    w = data.weight
    mean = (data.x * w.unsqueeze(-1)).sum(0) / w.sum()
    return {"mean": mean + broadcast["shift"], "n": w.sum()}, state


def broken(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
    """As `centre`, but the flagged client sends NaN; everybody counts its exchanges."""
    upload, _ = centre(broadcast, state, data, draws)
    nan = torch.where(is_flagged(data), torch.nan, 0.0)
    return {**upload, "mean": upload["mean"] + nan}, trees.map(lambda c: c + 1, state)


def misshapen(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
    """As `centre`, but the flagged client sends too many numbers; sequential only."""
    upload, _ = centre(broadcast, state, data, draws)
    if bool(is_flagged(data)):
        upload["mean"] = torch.zeros(7)
    return upload, trees.map(lambda c: c + 1, state)


def failing(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
    if bool(is_flagged(data)):
        raise ValueError("no such column")
    return centre(broadcast, state, data, draws)


def nothing(generator: torch.Generator, state: Tree, size: int) -> Tree:
    return torch.rand(size, generator=generator)


def counter(generator: torch.Generator, size: int) -> Tree:
    return {"count": torch.zeros(())}


SHIFT = {"shift": torch.tensor([0.0, 1.0, 2.0])}


def means(data: FederatedDataset) -> np.ndarray:
    """What `centre` should say, in NumPy, by index."""
    return np.stack([c.train.x.double().numpy().mean(0) for c in data]) + SHIFT["shift"].numpy()


@both_engines
def test_map_stacks_uploads_in_the_cohorts_order(engine: str, binary: FederatedDataset) -> None:
    fed = federation(binary, engine)
    replies = fed.map(centre, SHIFT)
    assert replies.clients.tolist() == fed.cohort.tolist()
    np.testing.assert_allclose(
        replies.uploads["mean"].numpy(), means(binary)[replies.clients], rtol=1e-5
    )
    sizes = binary.sizes()
    assert sizes is not None
    assert replies.sizes.tolist() == sizes[replies.clients].tolist()
    assert replies.uploads["n"].tolist() == replies.sizes.tolist()


@pytest.mark.parametrize("engine", ["vectorized", "sequential", "auto"])
def test_map_asks_one_by_one_where_that_is_wanted(engine: str, binary: FederatedDataset) -> None:
    """A function that looks at its values, which no stacked client lets it do."""

    def looks(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        return {"rows": torch.tensor(float(data.weight.sum()))}, state

    replies = federation(binary, engine).map(looks, (), alone=True)
    assert replies.uploads["rows"].tolist() == replies.sizes.tolist()


@both_engines
def test_mean_is_numpys_average(engine: str, binary: FederatedDataset) -> None:
    sizes = binary.sizes()
    assert sizes is not None
    order = federation(binary, engine).cohort
    given = torch.tensor([0.5, 3.0, 0.0, 1.0, 2.0, 0.25, 7.0])
    by_index = np.empty(len(binary))
    by_index[order] = given.numpy()
    weightings: list[tuple[Any, np.ndarray]] = [
        ("size", sizes),
        ("uniform", np.ones(len(binary))),
        (given, by_index),
        (lambda uploads, n: uploads["n"] ** 2 + n, sizes**2 + sizes),
    ]
    for weights, expected in weightings:
        mean = federation(binary, engine).mean(centre, SHIFT, weights=weights)
        wanted = np.average(means(binary), axis=0, weights=expected)
        np.testing.assert_allclose(mean.value["mean"].numpy(), wanted, rtol=1e-5)
        assert mean.weight == pytest.approx(expected.sum())
        assert mean.clients.tolist() == order.tolist()
        assert mean.value["mean"].dtype == torch.float32


def shapes_of_all_kinds(broadcast: Any, state: Any, data: Examples, draws: Any) -> Any:
    """Small and large leaves, of several types, one without numbers."""
    n = data.mask.sum()
    return {
        "large": n * torch.arange(70_000.0), "table": n * torch.arange(6.0).view(2, 3),
        "wide": n.double() * 3, "scalar": n.float(), "count": n.long(),
        "none": torch.zeros(0), "last": n * torch.ones(3, 1),
    }, state  # fmt: skip


@both_engines
def test_a_mean_has_the_shapes_and_types_of_the_uploads(
    engine: str, binary: FederatedDataset
) -> None:
    sizes = np.array(binary.sizes(), dtype=float)
    value = federation(binary, engine).mean(shapes_of_all_kinds, ()).value
    n = float((sizes**2).sum() / sizes.sum())
    expected = {
        "large": n * np.arange(70_000.0), "table": n * np.arange(6.0).reshape(2, 3),
        "wide": n * 3, "scalar": n, "count": n, "none": np.zeros(0), "last": n * np.ones((3, 1)),
    }  # fmt: skip
    assert list(value) == list(expected)
    for name, wanted in expected.items():
        np.testing.assert_allclose(value[name].numpy(), wanted, rtol=1e-6)
        wide = name in ("wide", "count")
        assert value[name].dtype == (torch.float64 if wide else torch.float32)


@both_engines
@pytest.mark.parametrize("base", ["size", "uniform"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_tilted_weights_are_a_softmax(
    engine: str, base: str, scale: float, binary: FederatedDataset
) -> None:
    """Exponents up to 6,000, of which no exponential exists."""
    sizes = np.array(binary.sizes(), dtype=float)
    tilt = Tilted(lambda uploads, n: scale * uploads["n"], base)  # type: ignore[arg-type]
    mean = federation(binary, engine).mean(centre, SHIFT, weights=tilt)
    factor = sizes if base == "size" else np.ones(len(sizes))
    weights = factor * np.exp(scale * (sizes - sizes.max()))
    wanted = np.average(means(binary), axis=0, weights=weights)
    np.testing.assert_allclose(mean.value["mean"].numpy(), wanted, rtol=1e-5)


def test_a_tilt_of_minus_infinity_leaves_a_client_out(binary: FederatedDataset) -> None:
    fed = federation(binary)
    out = torch.zeros(7)
    out[[0, 3]] = -torch.inf
    left = iter(out.tolist())
    tilt = Tilted(lambda uploads, n: torch.tensor([next(left) for _ in n]), "uniform")
    mean = fed.mean(centre, SHIFT, weights=tilt)
    wanted = means(binary)[fed.cohort[out.numpy() == 0]].mean(0)
    np.testing.assert_allclose(mean.value["mean"].numpy(), wanted, rtol=1e-5)


@both_engines
def test_parts_of_an_upload_may_have_their_own_weights(
    engine: str, binary: FederatedDataset
) -> None:
    sizes = np.array(binary.sizes(), dtype=float)
    mean = federation(binary, engine).mean(
        centre, SHIFT, weights={"mean": "uniform", "n": lambda uploads, n: n**2}
    )
    np.testing.assert_allclose(mean.value["mean"].numpy(), means(binary).mean(0), rtol=1e-5)
    assert mean.value["n"].item() == pytest.approx(np.average(sizes, weights=sizes**2), rel=1e-5)


def test_unknown_weights_are_refused(binary: FederatedDataset) -> None:
    with pytest.raises(ConfigError, match="'uniform'"):
        federation(binary).mean(centre, SHIFT, weights="sizes")  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [6, 8])
def test_weights_of_the_wrong_length_are_refused(length: int, binary: FederatedDataset) -> None:
    with pytest.raises(EvenfedError, match="7"):
        federation(binary).mean(centre, SHIFT, weights=torch.ones(length))


@both_engines
def test_mean_agrees_with_map(engine: str, binary: FederatedDataset) -> None:
    replies = federation(binary, engine).map(centre, SHIFT)
    mean = federation(binary, engine).mean(centre, SHIFT)
    rows = replies.uploads["mean"].double()
    expected = (rows * replies.sizes.unsqueeze(-1)).sum(0) / replies.sizes.sum()
    torch.testing.assert_close(mean.value["mean"].double(), expected, rtol=1e-6, atol=1e-7)


@both_engines
def test_each_is_applied_before_the_fold_and_keep_hands_parts_back(
    engine: str, binary: FederatedDataset
) -> None:
    def squared(upload: Tree) -> Tree:
        return {"square": upload["mean"] ** 2, "n": upload["n"]}

    fed = federation(binary, engine)
    mean = fed.mean(centre, SHIFT, weights="uniform", each=squared, keep=("n",))
    assert list(mean.value) == ["square"]
    np.testing.assert_allclose(
        mean.value["square"].numpy(), (means(binary) ** 2).mean(0), rtol=1e-5
    )
    sizes = binary.sizes()
    assert sizes is not None
    assert mean.kept["n"].tolist() == sizes[fed.cohort].tolist()


def test_keep_needs_an_upload_with_names(binary: FederatedDataset) -> None:
    def bare(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        return data.x.sum(), state

    with pytest.raises(ConfigError, match="dict"):
        federation(binary).mean(bare, {}, keep=("n",))


def test_weights_without_a_positive_sum_are_refused(binary: FederatedDataset) -> None:
    for bad in (torch.zeros(7), torch.full((7,), float("nan"))):
        with pytest.raises(EvenfedError, match="positive, finite sum"):
            federation(binary).mean(centre, SHIFT, weights=bad)


@both_engines
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_a_row_per_client_reaches_its_client(
    engine: str, fraction: float, binary: FederatedDataset
) -> None:
    fed = federation(binary, engine, participation=Participation(fraction=fraction))
    rows = torch.arange(3.0 * len(fed.cohort)).view(-1, 3)
    replies = fed.map(centre, {"shift": PerClient(rows)})
    plain = fed.map(centre, {"shift": torch.zeros(3)})
    torch.testing.assert_close(replies.uploads["mean"] - plain.uploads["mean"], rows)


@both_engines
def test_a_client_may_be_asked_alone_or_on_another_split(
    engine: str, binary: FederatedDataset
) -> None:
    fed = federation(binary, engine, participation=Participation(dropout=1.0))
    replies = fed.map(centre, SHIFT, clients=[5, 2], split="test")
    assert sorted(replies.clients.tolist()) == [2, 5]
    assert replies.sizes.tolist() == [6.0, 6.0]


@both_engines
def test_clients_without_examples_may_be_asked(engine: str, make_client: Any) -> None:
    """A validation split may be empty; then a sum is zero, on both engines."""
    base = [make_client("binary", i, 5) for i in range(3)]
    none = torch.zeros(0, dtype=torch.int64)
    one = torch.zeros(1, dtype=torch.int64)
    splits = [base[0].val.take(none), base[1].val.take(one), base[2].val]
    clients = [
        ClientData(c.name, c.train, val, c.test) for c, val in zip(base, splits, strict=True)
    ]
    data = FederatedDataset(SCHEMA, clients)

    def total(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        return {"n": data.weight.sum()}, state

    replies = federation(data, engine).map(total, {}, split="val")
    by_client = dict(zip(replies.clients.tolist(), replies.uploads["n"].tolist(), strict=True))
    assert by_client == {0: 0.0, 1: 1.0, 2: 4.0}


@both_engines
@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_a_nan_is_dropped_counted_reported_and_its_weight_taken_out(
    engine: str, chunk: int, binary: FederatedDataset
) -> None:
    data = flagged(binary, 4)
    fed = federation(data, engine, state=counter, chunk=chunk)
    mean = fed.mean(broken, SHIFT)
    assert [(d.client, d.name) for d in mean.dropped] == [(4, "client-04")]
    assert "not finite" in mean.dropped[0].reason
    assert fed.dropped == list(mean.dropped)
    sizes = np.array(binary.sizes())
    sizes[4] = 0
    expected = np.average(means(binary), axis=0, weights=sizes)
    np.testing.assert_allclose(mean.value["mean"].numpy(), expected, rtol=1e-5)
    assert mean.weight == sizes.sum()
    fed.commit()
    assert 4 not in fed.states.kept, "a client that is left out keeps its state"
    assert {int(s["count"]) for s in fed.states.kept.values()} == {1}
    replies = fed.map(broken, SHIFT)
    assert len(replies.clients) == 6
    assert 4 not in replies.clients
    assert torch.isfinite(replies.uploads["mean"]).all()


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("exchange", ["map", "mean"])
def test_an_upload_of_the_wrong_shape_is_dropped_and_the_rest_survives(
    place: int, exchange: str, binary: FederatedDataset
) -> None:
    index = int(federation(binary).everyone[place])
    fed = federation(flagged(binary, index), state=counter)
    result: Any = getattr(fed, exchange)(misshapen, SHIFT)
    assert [d.client for d in result.dropped] == [index]
    assert "wrong shape" in result.dropped[0].reason
    assert len(result.clients) == 6
    fed.commit()
    counts = {i: int(s["count"]) for i, s in fed.states.kept.items()}
    assert counts == {i: 1 for i in range(7) if i != index}, "one exchange, one change of state"


def test_traffic_counts_every_upload_once(binary: FederatedDataset) -> None:
    right = federation(binary)
    right.map(centre, SHIFT)
    # three shifts down; three means and a count up; four bytes each
    assert (right.traffic.down, right.traffic.up) == (7 * 3 * 4, 7 * 4 * 4)
    assert right.traffic.exchanges == 1
    wrong = federation(flagged(binary, int(right.everyone[3])))
    wrong.map(misshapen, SHIFT)
    assert wrong.traffic.up == 6 * 4 * 4 + 8 * 4, "the misshapen one has eight numbers"


@both_engines
def test_too_few_answers_are_no_round(engine: str, binary: FederatedDataset) -> None:
    fed = federation(binary, engine, participation=Participation(dropout=0.99, quorum=0.5))
    with pytest.raises(QuorumError, match="needed"):
        fed.map(centre, SHIFT)
    assert len(fed.dropped) >= 4
    assert {d.reason for d in fed.dropped} == {"did not answer"}


@both_engines
def test_unusable_uploads_count_against_the_quorum(engine: str, binary: FederatedDataset) -> None:
    fed = federation(
        flagged(binary, 4), engine, state=counter, participation=Participation(quorum=1.0)
    )
    with pytest.raises(QuorumError, match=r"6 of 7.*7 needed.*not finite"):
        fed.mean(broken, SHIFT)
    fed.begin(1)
    fed.commit()
    assert not fed.states.kept, "a void round leaves no trace at the clients"


def test_a_run_goes_on_after_a_round_without_quorum(
    binary: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    method = Scaffold(local=LocalTraining(lr=0.1, batch=8))
    faults = Participation(dropout=0.5, quorum=0.7)
    trained = train_rounds(method, binary, rounds=6, participation=faults)
    void = {line["round"] for line in trained.runner.history if "void" in line}
    held = {line["round"] for line in trained.runner.history} - void
    assert void, "choose another seed"
    assert held, "choose another seed"
    trained_in = {round for round, exchange, _ in trained.uploads if "train/" in exchange}
    assert trained_in == held


def test_a_run_in_which_nobody_ever_answers_ends_with_the_reason(
    binary: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    method = FedAvg(local=LocalTraining(lr=0.1, batch=8))
    with pytest.raises(QuorumError, match="0 of 7 clients answered, 1 needed"):
        train_rounds(method, binary, participation=Participation(dropout=1.0))


def test_a_failing_client_is_named(binary: FederatedDataset) -> None:
    with pytest.raises(ClientError, match="'failing' failed at client 'client-03': no such column"):
        federation(flagged(binary, 3)).map(failing, SHIFT)


def test_a_client_whose_draws_fail_is_named(binary: FederatedDataset) -> None:
    def impossible(generator: torch.Generator, state: Tree, size: int) -> Tree:
        return torch.rand(1 // (size - 1), generator=generator)

    with pytest.raises(ClientError, match="failed at client 'client-02'"):
        federation(binary).map(centre, SHIFT, draws=impossible)


def test_a_failure_under_vmap_names_the_way_out(binary: FederatedDataset) -> None:
    with pytest.raises(ClientError, match="engine='sequential'"):
        federation(flagged(binary, 3), "vectorized").map(failing, SHIFT)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_fold_does_not_depend_on_the_chunk(workers: int, make_dataset: Any) -> None:
    data = make_dataset(sizes=[20 + i % 3 for i in range(23)])

    def noisy(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        upload, state = centre(broadcast, state, data, draws)
        return {"mean": upload["mean"] * (1 + draws[:3])}, state

    results = []
    for chunk in (0, 1, 2, 5, 23):
        options = EngineOptions("vectorized", workers=workers, chunk=chunk)
        mean = federation(data, options=options).mean(noisy, SHIFT, draws=nothing)
        results.append(mean.value["mean"])
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("where", ["broadcast", "state"])
def test_chunks_keep_to_the_memory_budget(where: str, make_dataset: Any) -> None:
    """A client needs six times its model of 40 kB, be it sent or kept: 1 MB holds at most four."""
    data = make_dataset(sizes=[10] * 24)
    model = {"w": torch.ones(10_000)}

    def scale(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        new = trees.scale({**broadcast, **state}, 0.5)
        return {"size": new["w"].sum()}, state

    fed = federation(
        data,
        options=EngineOptions("vectorized", workers=1, memory=1 / 1024),
        state=lambda generator, size: dict(model) if where == "state" else (),
    )
    carry_out, chunks = fed.engine.run, []

    def recorded(*args: Any) -> Any:
        for chunk in carry_out(*args):
            chunks.append(len(chunk.seats))
            yield chunk

    fed.engine.run = recorded  # type: ignore[method-assign]
    if where == "state":
        fed.map(scale, {})
    else:
        fed.map(lambda b, s, d, r: scale(b, {}, d, r), model)
    assert sum(chunks) == 24
    assert max(chunks) <= 4


def lazy(size: int, make_client: Any, calls: list[int]) -> FederatedDataset:
    def make(index: int) -> ClientData:
        calls.append(index)
        return make_client("binary", index, 5 + index % 7)

    return FederatedDataset(SCHEMA, make, size=size)


@both_engines
def test_a_lazy_population_makes_only_the_cohort(engine: str, make_client: Any) -> None:
    calls: list[int] = []
    data = lazy(10**7, make_client, calls)
    fed = federation(data, engine, participation=Participation(number=12))
    mean = fed.mean(centre, SHIFT)
    assert sorted(set(calls)) == fed.cohort.tolist() == mean.clients.tolist()
    assert len(calls) <= 2 * 12
    everyone = [make_client("binary", i, 5 + i % 7).train for i in fed.cohort.tolist()]
    rows = np.stack([c.x.numpy().mean(0) for c in everyone]) + SHIFT["shift"].numpy()
    expected = np.average(rows, axis=0, weights=[len(c) for c in everyone])
    np.testing.assert_allclose(mean.value["mean"].numpy(), expected, rtol=1e-5)


@both_engines
def test_a_lazy_population_gives_the_numbers_of_an_eager_one(engine: str, make_client: Any) -> None:
    made = lazy(9, make_client, [])
    eager = FederatedDataset(SCHEMA, [made.client(i) for i in range(9)])
    a = federation(made, engine).mean(centre, SHIFT)
    b = federation(eager, engine).mean(centre, SHIFT)
    torch.testing.assert_close(a.value["mean"], b.value["mean"])


def test_peak_memory_does_not_grow_with_the_number_of_clients() -> None:
    """2,000 uploads of 200,000 floats would be 1.6 GB; the fold holds a chunk of them."""
    code = """
    import resource
    import torch
    from evenfed.core.examples import Examples
    from evenfed.data.dataset import ClientData, FederatedDataset, Schema
    from evenfed.engines.federation import EngineOptions, Federation

    def make(index):
        data = Examples.of(torch.full((2, 3), float(index)), torch.zeros(2, dtype=torch.int64))
        return ClientData(str(index), data, data, data)

    def upload(broadcast, state, data, draws):
        return {"w": broadcast["w"] + data.x.mean()}, state

    def peak(clients):
        data = FederatedDataset(Schema("lazy", "binary", 2, (3,)), make, size=clients)
        fed = Federation(data, options=EngineOptions("vectorized", workers=1))
        fed.begin(0)
        mean = fed.mean(upload, {"w": torch.ones(200_000)})
        assert abs(mean.value["w"][7].item() - (1 + (clients - 1) / 2)) < 1e-3
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    print(peak(200), peak(2000))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    few, many = (float(word) for word in done.stdout.split())
    assert many - few < 150, f"{few:.0f} MB for 200 clients, {many:.0f} MB for 2,000"


class Branching(nn.Module):
    """Control flow that depends on data: vmap cannot take it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if bool(out.sum() > 0) else 2 * out


class Recurrent(nn.Module):
    """PyTorch's fused GRU over the features as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.gru(x.unsqueeze(-1))[0][:, -1]
        out: Tensor = self.out(hidden)
        return out


def test_auto_falls_back_where_vmap_cannot_take_the_model(
    binary: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    method = FedAvg(local=LocalTraining(lr=0.1, batch=8))
    trained = train_rounds(method, binary, EngineOptions("auto", workers=1), model=Branching)
    engine = trained.runner.federation.engine
    assert isinstance(engine, AutoEngine)
    assert engine.name == "sequential"
    assert "vmap cannot take this model" in engine.reason
    expected = train_rounds(method, binary, "sequential", model=Branching)
    assert torch.equal(trained.everything, expected.everything)


def test_auto_runs_a_model_that_vmap_takes_only_to_train(
    binary: FederatedDataset, train_rounds: Callable[..., Any], distance: Any
) -> None:
    """PyTorch has a rule for the gradient of its GRU, but none for the forward pass alone."""
    method = FedAvg(local=LocalTraining(lr=0.1, batch=8))
    trained = train_rounds(method, binary, EngineOptions("auto", workers=1), model=Recurrent)
    expected = train_rounds(method, binary, "sequential", model=Recurrent)
    assert distance(trained.everything, expected.everything) < 1e-5


def test_auto_falls_back_in_an_exchange_that_draws_nothing(binary: FederatedDataset) -> None:
    """A method may ask for losses before it trains."""
    said: list[str] = []
    fed = federation(binary, "auto", say=said.append)
    replies = fed.map(misshapen, SHIFT)
    assert len(replies.clients) == 7
    np.testing.assert_allclose(
        replies.uploads["mean"].numpy(), means(binary)[replies.clients], rtol=1e-5
    )


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_auto_says_what_it_chose_and_why(
    engine: str, binary: FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the measured times decide: a threshold of 0 or infinity makes the choice certain
    limit = float("inf") if engine == "vectorized" else 0.0
    monkeypatch.setattr("evenfed.engines.auto._CLEARLY", limit)
    said: list[str] = []
    fed = federation(binary, "auto", say=said.append)
    assert fed.engine.name == "auto"
    mean = fed.mean(centre, SHIFT, draws=nothing)
    assert fed.engine.name == engine
    assert len(said) == 1
    assert said[0].startswith(f"engine: {engine} (")
    assert "ms vectorized" in said[0]
    assert "ms sequential" in said[0]
    fed.mean(centre, SHIFT, draws=nothing)
    assert len(said) == 1, "it chooses once"
    wanted = np.average(means(binary), axis=0, weights=binary.sizes())
    np.testing.assert_allclose(mean.value["mean"].numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"engine": "vectorised"}, "Did you mean 'vectorized'"),
        ({"device": "gpu"}, "gpu"),
        ({"workers": -1}, "workers"),
        ({"memory": 0.0}, "memory"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        EngineOptions(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(ConfigError, match="'cuda' is not available"):
        EngineOptions(device="cuda")


@both_engines
def test_draws_are_those_of_the_client_and_the_round(engine: str, make_dataset: Any) -> None:
    data = make_dataset(sizes=(9, 10, 9, 4))

    def sent(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        return {"first": draws[:4]}, state

    fed = federation(data, engine, seed=5)
    a = fed.map(sent, {}, draws=nothing).uploads["first"]
    again = fed.map(sent, {}, draws=nothing).uploads["first"]
    assert len(torch.unique(a)) == a.numel(), "clients draw apart"
    assert not torch.equal(a, again), "a second exchange of the round draws anew"
    fed.begin(0)
    assert torch.equal(fed.map(sent, {}, draws=nothing).uploads["first"], a)
    fed.begin(1)
    assert not torch.equal(fed.map(sent, {}, draws=nothing).uploads["first"], a)
    other = federation(data, "sequential" if engine == "vectorized" else "vectorized", seed=5)
    assert torch.equal(other.map(sent, {}, draws=nothing).uploads["first"], a)


def soft_labels(generator: torch.Generator, size: int) -> Tree:
    return {"soft": torch.full((size,), 0.5)}


def soften(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
    soft = state["soft"] * 0.5
    return {"total": (soft * data.weight).sum()}, {"soft": soft}


def test_a_state_may_have_a_row_per_example(binary: FederatedDataset) -> None:
    fed = federation(binary, "sequential", state=soft_labels)
    for t, left in enumerate((0.25, 0.125)):
        fed.begin(t)
        replies = fed.map(soften, {})
        torch.testing.assert_close(replies.uploads["total"].double(), left * replies.sizes)
        fed.commit()


def test_states_of_different_shapes_name_the_way_out(binary: FederatedDataset) -> None:
    """Clients of 57 and 60 examples share a chunk, but not the shape of their states."""
    with pytest.raises(ClientError, match="engine='sequential'"):
        federation(binary, "vectorized", state=soft_labels).map(soften, {})


@both_engines
def test_states_last_from_round_to_round(engine: str, binary: FederatedDataset) -> None:
    def count(broadcast: Tree, state: Tree, data: Examples, draws: Tree) -> Reply:
        return {"before": state["count"]}, {"count": state["count"] + 1}

    fed = federation(binary, engine, state=counter, participation=Participation(fraction=0.5))
    seen = np.zeros(len(binary))
    for t in range(4):
        fed.begin(t)
        replies = fed.map(count, {})
        assert replies.uploads["before"].tolist() == seen[replies.clients].tolist()
        seen[replies.clients] += 1
        fed.commit()
    fed.begin(4)
    fed.map(count, {})
    fed.begin(4)
    assert fed.map(count, {}).uploads["before"].tolist() == seen[fed.cohort].tolist()
