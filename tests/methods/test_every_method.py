"""What holds for every method, parametrised over the registry."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.core.regularizer import SignEntropy
from evenfed.data.dataset import FederatedDataset, Groups
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.methods.certificate import Certify
from evenfed.methods.preferred import Preferred
from evenfed.methods.registry import build, methods
from evenfed.runs.config import method_table
from evenfed.runs.fronts import front_counts

TINY = LocalTraining(lr=0.1, batch=8, epochs=2)
FAULTY = Participation(fraction=0.8, dropout=0.2, straggler=0.5, late="partial")
ACROSS_ENGINES = 1e-5
ALONE = 1e-6

every_method = pytest.mark.parametrize("name", methods())
Baseline = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def baseline(train_rounds: Callable[..., Any], binary: FederatedDataset) -> Baseline:
    """Two rounds on the binary data by (method, engine), trained once for all tests."""
    return functools.cache(lambda name, engine: train_rounds(tiny(name), binary, engine))


def tiny(name: str, local: LocalTraining = TINY, **options: Any) -> Method:
    """The method with its own defaults, but for a short training."""
    cls = methods()[name]
    fields = {f.name for f in dataclasses.fields(cls)}
    if "local" in fields:
        if cls().local.optimizer == "adam":  # type: ignore[attr-defined]
            local = dataclasses.replace(local, optimizer="adam", lr=local.lr / 5)
        options["local"] = local
    if "fusion_steps" in fields:
        options["fusion_steps"] = 3
    if "refresh" in fields:
        options["refresh"] = 0
    return cls(**options)


def counts_and_losses(trained: Any) -> tuple[Tensor, Tensor]:
    """Confusion counts and loss sums of the last evaluation, by client."""
    last = max(round for round, _, _ in trained.uploads)
    found = {
        name: upload["counts"]
        for (round, exchange, name), upload in trained.uploads.items()
        if round == last and exchange.endswith("on test")
    }
    assert len(found) == len(trained.runner.data)
    rows = [found[name] for name in sorted(found)]
    return torch.stack([r.confusion for r in rows]), torch.stack([r.loss for r in rows])


class Own(nn.Module):
    """A user's module: parameters of its own, no built-in layer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 4) * 0.5)
        self.second = nn.Parameter(torch.randn(4, outputs) * 0.5)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second * self.temperature


def focal(outputs: Tensor, y: Tensor) -> Tensor:
    """A user's loss."""
    log_p = outputs.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -((1 - log_p.exp()) ** 2) * log_p


@every_method
def test_engines_agree(name: str, baseline: Baseline, distance: Any) -> None:
    a, b = baseline(name, "vectorized"), baseline(name, "sequential")
    assert distance(a.server, b.server) < ACROSS_ENGINES
    assert distance(a.everything, b.everything) < ACROSS_ENGINES
    (counts, losses), (other_counts, other_losses) = counts_and_losses(a), counts_and_losses(b)
    assert torch.equal(counts, other_counts)
    assert distance(losses, other_losses) < ACROSS_ENGINES


@every_method
def test_training_lowers_the_loss(name: str, baseline: Baseline) -> None:
    """Agreement of engines would be empty if nobody trained."""
    trained = baseline(name, "vectorized")
    _, after = counts_and_losses(trained)
    method, data = trained.runner.method, trained.runner.data
    first = method.task.init()
    before = [method.task.mean_loss(first, client.test) for client in data]
    # six test examples a client
    assert float(after.sum()) / 6 < 0.9 * float(sum(before))


@every_method
def test_chunk_size_changes_no_bit(
    name: str,
    binary: FederatedDataset,
    train_rounds: Callable[..., Any],
    baseline: Baseline,
    distance: Any,
) -> None:
    """Some processors round a product by how many there are: seen of clients alone in a chunk."""
    expected = baseline(name, "vectorized").everything
    for chunk in (1, 3):
        options = EngineOptions("vectorized", workers=1, chunk=chunk)
        found = train_rounds(tiny(name), binary, options).everything
        assert torch.equal(found, expected) or (chunk == 1 and distance(found, expected) < ALONE)


@every_method
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_order_of_the_clients_changes_no_bit(
    name: str, engine: str, binary: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    permuted = binary.permuted([4, 2, 6, 0, 5, 1, 3])
    some = Participation(fraction=0.6)
    a = train_rounds(tiny(name), binary, engine, participation=some)
    b = train_rounds(tiny(name), permuted, engine, participation=some)
    assert a.uploads.keys() == b.uploads.keys()
    assert torch.equal(a.everything, b.everything)


@every_method
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_workers_change_no_bit(
    name: str,
    engine: str,
    binary: FederatedDataset,
    train_rounds: Callable[..., Any],
    baseline: Baseline,
) -> None:
    two = train_rounds(tiny(name), binary, EngineOptions(engine, workers=2))
    assert torch.equal(two.everything, baseline(name, engine).everything)


@every_method
def test_threads_of_torch_change_no_bit(
    name: str, binary: FederatedDataset, train_rounds: Callable[..., Any], baseline: Baseline
) -> None:
    torch.set_num_threads(2)
    try:
        threads = train_rounds(tiny(name), binary, "vectorized")
        assert torch.get_num_threads() == 2, "the caller's setting must return"
    finally:
        torch.set_num_threads(1)
    assert torch.equal(threads.everything, baseline(name, "vectorized").everything)


@every_method
def test_padding_changes_no_upload(
    name: str, make_dataset: Any, train_rounds: Callable[..., Any], distance: Any
) -> None:
    """Clients of 57 and 60 are padded to 60 or to 64, as clients of 64 are there or not."""
    small = make_dataset(sizes=(57, 60, 20))
    large = make_dataset(sizes=(57, 60, 20, 64, 23, 22))
    a = train_rounds(tiny(name), small, rounds=1, evaluate=False)
    b = train_rounds(tiny(name), large, rounds=1, evaluate=False)
    # uploads of the very first exchange depend on the client's own data alone: all clients
    # start from one model
    training = [key for key in a.uploads if key[1].endswith("on train")]
    pairs = [(a.uploads[k], b.uploads[k]) for k in training if k[:2] == training[0][:2]]
    assert len(pairs) == 3 or not methods()[name].exchanges
    for left, right in pairs:
        for p, q in zip(trees.leaves(left), trees.leaves(right), strict=True):
            assert distance(p.double(), q.double()) < 1e-6


@every_method
def test_faults_and_partial_work_agree_on_both_engines(
    name: str, binary: FederatedDataset, train_rounds: Callable[..., Any], distance: Any
) -> None:
    a = train_rounds(tiny(name), binary, "vectorized", participation=FAULTY, rounds=3)
    b = train_rounds(tiny(name), binary, "sequential", participation=FAULTY, rounds=3)
    assert a.uploads.keys() == b.uploads.keys()
    assert distance(a.everything, b.everything) < ACROSS_ENGINES
    dropped = [line.get("dropped") for line in a.runner.history]
    assert dropped == [line.get("dropped") for line in b.runner.history]


def sent(trained: Any) -> set[tuple[str, str]]:
    """Every (function, part) that left a client; each must be declared, with its size."""
    declared = {(r.function, r.part): r.size for r in trained.runner.method.reveals}
    model = sum(t.numel() for t in trained.runner.task.init().values())
    # groups x labels (x predictions) and moments: 2 * 2 * 2 + 2 * 2 + 2 * 5
    models = trained.runner.method.models
    limits = {"model": models * model, "part": model - 1, "scalar": models, "counts": 22}
    limits |= {"sums": 100, "rows": math.inf, "network": math.inf, "square": model * model}
    kept = next(iter(trained.runner.federation.states.kept.values()), ())
    known = [*trained.runner.server.values(), *(kept.values() if kept else ())]
    networks = {sum(t.numel() for t in trees.leaves(tree)) for tree in known}
    seen = set()
    for (_, exchange, _), upload in trained.uploads.items():
        function = exchange.split("/")[0]
        assert isinstance(upload, dict)
        for part, value in upload.items():
            assert (function, part) in declared, f"{function} sends {part}, which is not declared"
            seen.add((function, part))
            size = declared[function, part]
            numbers = sum(t.numel() for t in trees.leaves(value))
            assert numbers <= limits[size], f"{function} sends {numbers} numbers as '{size}'"
            if size == "model":  # of every model, or of one
                assert numbers in (limits[size], model)
            if size == "network":  # as large as one that server or client hold
                assert numbers in networks, f"{function} sends {numbers} numbers as '{size}'"
    return seen


def choices(name: str) -> list[dict[str, Any]]:
    """Every value of every option that has a few named ones."""
    hints = typing.get_type_hints(methods()[name])
    return [
        {f.name: value}
        for f in dataclasses.fields(methods()[name])
        if f.init and typing.get_origin(hints[f.name]) is typing.Literal
        for value in typing.get_args(hints[f.name])
    ]


@every_method
def test_what_leaves_a_client_is_what_is_declared(
    name: str, binary: FederatedDataset, train_rounds: Callable[..., Any], baseline: Baseline
) -> None:
    """Nothing is sent undeclared; nothing is declared that no choice of options sends."""
    expected = {(r.function, r.part) for r in methods()[name].reveals if r.size != "rows"}
    seen = sent(baseline(name, "vectorized"))
    if seen != expected and issubclass(methods()[name], Preferred):  # fronts are asked for
        trained = train_rounds(tiny(name), binary, rounds=1)
        front_counts(trained.runner, "val", torch.tensor([0.25, 0.75]), "own")
        seen |= sent(trained)
    for options in choices(name) if seen != expected else []:
        with contextlib.suppress(ConfigError):
            seen |= sent(train_rounds(tiny(name, **options), binary))
    if seen != expected:  # what a certificate asks for is sent on demand
        method = tiny(name, certify=Certify(curved=True))
        trained = train_rounds(method, binary, model="linear", rounds=1)
        runner = trained.runner
        runner.method.certificate(runner.federation, runner.server, binary.schema)
        seen |= sent(trained)
    assert seen == expected


@every_method
def test_runs_on_many_classes(
    name: str, multiclass: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    if "two classes" in methods()[name].needs:
        with pytest.raises(ConfigError, match=f"{name} needs two classes.*the data have 3"):
            train_rounds(tiny(name), multiclass)
        return
    trained = train_rounds(tiny(name), multiclass, rounds=3)
    counts, _ = counts_and_losses(trained)
    assert counts.shape[1:] == (2, 3, 3)
    # six test examples a client
    assert counts.sum((1, 2, 3)).tolist() == [6.0] * len(multiclass)
    correct = torch.diagonal(counts.sum((0, 1))).sum() / counts.sum()
    assert float(correct) > 0.45  # one class in three by chance


@every_method
def test_runs_on_regression_or_says_that_it_does_not(
    name: str, regression: FederatedDataset, train_rounds: Callable[..., Any], distance: Any
) -> None:
    # squared errors are larger than log losses, so the rate is smaller
    method = tiny(name, local=LocalTraining(lr=0.02, batch=8))
    refused = ""
    try:
        a = train_rounds(method, regression, "vectorized")
    except ConfigError as error:
        refused = str(error)
    if refused:
        assert "regression" in refused
        return
    b = train_rounds(method, regression, "sequential")
    assert distance(a.everything, b.everything) < ACROSS_ENGINES


@every_method
def test_runs_without_groups_or_says_that_it_does_not(
    name: str, binary: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    clients = [
        dataclasses.replace(
            client,
            **{
                split: dataclasses.replace(part, group=torch.zeros_like(part.group))
                for split in ("train", "val", "test")
                for part in (client.split(split),)  # type: ignore[arg-type]
            },
        )
        for client in binary
    ]
    schema = dataclasses.replace(binary.schema, groups=Groups())
    alike = FederatedDataset(schema, clients)
    if "groups" in methods()[name].needs:
        with pytest.raises(ConfigError, match=f"{name} needs groups"):
            train_rounds(tiny(name), alike, rounds=1)
    else:
        train_rounds(tiny(name), alike, rounds=1)


@every_method
def test_trains_a_users_own_module_with_its_own_loss(
    name: str,
    binary: FederatedDataset,
    multiclass: FederatedDataset,
    train_rounds: Callable[..., Any],
    distance: Any,
) -> None:
    data = binary if "two classes" in methods()[name].needs else multiclass
    outputs = data.schema.classes
    if "perceptron" in methods()[name].needs:
        with pytest.raises(ConfigError, match=f"{name} needs a plain perceptron.*a Own"):
            train_rounds(tiny(name), data, model=lambda: Own(outputs), loss=focal)
        return
    runs = [
        train_rounds(tiny(name), data, engine, model=lambda: Own(outputs), loss=focal)
        for engine in ("vectorized", "sequential")
    ]
    assert distance(runs[0].everything, runs[1].everything) < ACROSS_ENGINES
    plain = train_rounds(
        tiny(name), data, model=lambda: Own(outputs),
        loss=lambda out, y: functional.cross_entropy(out, y, reduction="none"),
    )  # fmt: skip
    assert distance(runs[0].everything, plain.everything) > 1e-3, "the loss made no difference"


ONE_GRADIENT = {
    "afl": "a client sends one step along the gradient on all its data",
    "fedminmax": "a client sends one step along the gradient on all its data",
    "qfedsgd": "a client sends its gradient",
}
"""Methods that do not train locally by several steps: the regulariser is in the one they take."""


@every_method
def test_the_regulariser_of_local_training_works_inside_it(
    name: str, make_dataset: Any, train_rounds: Callable[..., Any], distance: Any
) -> None:
    """Both engines agree on what it does, and it does something.

    Two clients of one size and the regulariser at every second step: a corrected step takes a
    while to trace. Who takes a single one is corrected at every step.
    """
    method = tiny(name, replace(TINY, epochs=1))
    assert "local" in {f.name for f in dataclasses.fields(method)}, "every method trains somewhere"
    when: dict[str, Any] = {"when": "step" if name in ONE_GRADIENT else "interval", "interval": 2}
    local = method.local  # type: ignore[attr-defined]
    ser = replace(local, regularizer="ser", ser=SignEntropy(rho=0.3, **when))
    data = make_dataset(sizes=(24, 24))
    plain, a, b = (
        train_rounds(method, data, engine, rounds=1, evaluate=False).everything
        for method, engine in (
            (replace(method, local=replace(local, ser=SignEntropy(rho=0.0))), "vectorized"),
            (replace(method, local=ser), "vectorized"),
            (replace(method, local=ser), "sequential"),
        )
    )
    assert distance(a, b) < ACROSS_ENGINES
    assert distance(a, plain) > 10 * ACROSS_ENGINES, "the regulariser made no difference"


@every_method
def test_the_seed_decides_every_number(
    name: str,
    binary: FederatedDataset,
    train_rounds: Callable[..., Any],
    baseline: Baseline,
    distance: Any,
) -> None:
    expected = baseline(name, "vectorized").everything
    again, other = (train_rounds(tiny(name), binary, seed=seed).everything for seed in (0, 1))
    assert torch.equal(again, expected)
    assert distance(other, expected) > 1e-3


@every_method
def test_hyperparameters_survive_the_config(name: str) -> None:
    method = tiny(name, **changed_options(methods()[name]))
    table = method_table(method)
    assert build(table.name, table.options) == method
    assert method != tiny(name) or not changed_options(methods()[name])


@every_method
def test_the_grid_names_options_and_values_that_the_method_takes(name: str) -> None:
    for option, values in methods()[name].grid.items():
        built = [build(name, {option: value}) for value in values]
        assert len(set(map(repr, built))) == len(values) >= 2, option


def changed_options(cls: type[Method]) -> dict[str, Any]:
    """A value other than the default for every number, switch and nested local training."""
    defaults = cls()
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if not f.init:
            continue
        value = getattr(defaults, f.name)
        if isinstance(value, LocalTraining):
            changed[f.name] = dataclasses.replace(value, lr=0.0625, steps=7, weight_decay=1e-3)
        elif isinstance(value, float):
            changed[f.name] = value / 2 + 0.25
    return changed
