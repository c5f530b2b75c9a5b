from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from evenfed.core.batches import draw_batches
from evenfed.core.errors import ModelError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.models import build
from evenfed.core.task import Task, check_module, given

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 1, 0, 1, 0])
VALUES = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, 3.0])


def linear(outputs: int, kind: str = "binary", classes: int = 2, **options: Any) -> Task:
    return Task(lambda: nn.Linear(3, outputs), kind, classes, 2, **options)  # type: ignore[arg-type]


def test_a_binary_model_with_two_logits_has_cross_entropy() -> None:
    task = linear(2)
    task.check(X, LABELS)
    out = task.outputs(task.init(), X)
    assert out.shape == (6, 2)
    expected = functional.cross_entropy(out, LABELS, reduction="none")
    torch.testing.assert_close(task.losses(out, LABELS), expected)
    assert torch.equal(task.predictions(out), out.argmax(-1))
    torch.testing.assert_close(task.probabilities(out), out.softmax(-1))


def test_a_binary_model_with_one_logit_has_logistic_loss() -> None:
    task = linear(1)
    task.check(X, LABELS)
    out = task.outputs(task.init(), X)
    assert out.shape == (6,)
    expected = functional.binary_cross_entropy_with_logits(out, LABELS.float(), reduction="none")
    torch.testing.assert_close(task.losses(out, LABELS), expected)
    assert torch.equal(task.predictions(out), (out.sigmoid() > 0.5).long())
    p = task.probabilities(out)
    torch.testing.assert_close(p[:, 1], out.sigmoid())
    torch.testing.assert_close(p.sum(-1), torch.ones(6))


def test_logistic_loss_is_finite_for_extreme_logits() -> None:
    losses = linear(1).losses(torch.tensor([200.0, -200.0, 200.0]), torch.tensor([1, 0, 0]))
    torch.testing.assert_close(losses, torch.tensor([0.0, 0.0, 200.0]))


def test_many_classes() -> None:
    task = linear(4, "multiclass", 4)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    task.check(X, y)
    out = task.outputs(task.init(), X)
    expected = functional.cross_entropy(out, y, reduction="none")
    torch.testing.assert_close(task.losses(out, y), expected)


def test_regression_has_squared_error() -> None:
    task = linear(1, "regression", 1)
    task.check(X, VALUES)
    out = task.outputs(task.init(), X)
    assert out.shape == (6,)
    torch.testing.assert_close(task.losses(out, VALUES), (out - VALUES) ** 2)
    assert task.predictions(out) is out


def test_mean_loss_leaves_out_padding() -> None:
    task = linear(2)
    data = Examples.of(X, LABELS)
    assert task.mean_loss(task.init(), data.padded(9)).item() == pytest.approx(
        task.mean_loss(task.init(), data).item(), rel=1e-6
    )


def test_counts_leave_out_padding() -> None:
    task = linear(2)
    data = Examples.of(X, LABELS, LABELS).padded(9)
    counts = task.count(task.outputs(task.init(), data.x), data)
    assert counts.cells.tolist() == [[3.0, 0.0], [0.0, 3.0]]


def test_own_module_and_own_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([2.0, 0.0, -1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).sum(-1)

    huber = nn.HuberLoss(reduction="none")
    task = Task(Own, "regression", 1, 2, loss=lambda out, y: 3 * huber(out, y))
    task.check(X, VALUES)
    out = task.outputs(task.init(), X)
    torch.testing.assert_close(out, 2 * X[:, 0] - X[:, 2])
    torch.testing.assert_close(task.losses(out, VALUES), 3 * huber(out, VALUES))


def test_a_loss_with_tensors_of_its_own_trains() -> None:
    """Class weights are constants of the trace."""
    weight = torch.tensor([1.0, 5.0])
    task = linear(
        2, loss=lambda out, y: functional.cross_entropy(out, y, weight=weight, reduction="none")
    )
    data, local = Examples.of(X, LABELS), LocalTraining(lr=0.5, batch=0)
    drawn = local.draw(torch.Generator(), (), 6)
    start = task.init()
    new = local.run(task, start, data, drawn, lr=local.rate(0, 1))
    gradient = grad(task.mean_loss)(start, data)
    for name in start:
        torch.testing.assert_close(new[name], start[name] - 0.5 * gradient[name])


def test_first_weights_follow_from_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    a, b, other = linear(2, seed=4), linear(2, seed=4), linear(2, seed=5)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(a.init()["weight"], b.init()["weight"])
    assert not torch.equal(a.init()["weight"], other.init()["weight"])


def test_a_given_instance_keeps_its_weights_and_is_not_touched() -> None:
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    task = Task(given(module), "binary", 2, 1)
    params = task.init()
    assert torch.equal(params["weight"], before)
    params["weight"].zero_()
    task.template.weight.data.zero_()
    assert torch.equal(module.weight, before)


def test_frozen_parameters_stay_fixed() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    task = Task(given(module), "binary", 2, 1)
    assert sorted(task.init()) == ["2.bias", "2.weight"]
    data, local = Examples.of(X, LABELS), LocalTraining(lr=1.0, batch=2, epochs=3)
    drawn = draw_batches(torch.Generator(), 6, batch=2, epochs=3)
    start = task.init()
    new = local.run(task, start, data, drawn, lr=local.rate(0, 1))
    rest = (data.y, data.group, data.mask)
    many = vmap(lambda x: local.run(task, start, Examples(x, *rest), drawn, lr=local.rate(0, 1)))(
        torch.stack([data.x, data.x])
    )
    assert not torch.equal(new["2.weight"], start["2.weight"])
    torch.testing.assert_close(many["2.weight"][1], new["2.weight"])
    assert torch.equal(task.template[0].weight, module[0].weight)


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Linear(3, 3, bias=False)
            self.up = nn.Linear(3, 3, bias=False)
            self.up.weight = self.down.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.up(torch.tanh(self.down(x))).sum(-1)

    task = Task(Tied, "regression", 1, 1)
    assert list(task.init()) == ["down.weight"]
    w = torch.eye(3) * 2
    expected = (torch.tanh(X @ w) @ w).sum(-1)
    torch.testing.assert_close(task.outputs({"down.weight": w}, X), expected)


def test_every_thread_has_its_own_module() -> None:
    task = linear(2)
    found: list[nn.Module] = []
    threads = [threading.Thread(target=lambda: found.append(task.module())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(m) for m in (*found, task.module())}) == 3
    assert task.module() is task.module()
    for module in found:
        assert torch.equal(module.weight, task.module().weight)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(4), ("'1'", "BatchNorm1d", "without_batch_norm", "GroupNorm")),
        (nn.Dropout(0.1), ("'1'", "Dropout", "rate to 0")),
        (nn.InstanceNorm1d(4, track_running_stats=True), ("'1'", "track_running_stats=False")),
        (nn.GRU(4, 4, num_layers=2, dropout=0.2), ("'1'", "GRU", "rate to 0")),
    ],
)
def test_layers_that_cannot_be_trained_here_are_named_with_a_remedy(
    layer: nn.Module, words: tuple[str, ...]
) -> None:
    with pytest.raises(ModelError) as caught:
        check_module(nn.Sequential(nn.Linear(3, 4), layer))
    for word in words:
        assert word in str(caught.value)


def test_harmless_layers_pass() -> None:
    check_module(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0), nn.GroupNorm(2, 4)))
    check_module(build("cnn", (1, 8, 8), 3, 0))


class Counting(nn.Module):
    """Changes a buffer in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.layer(x)


class Functional(nn.Module):
    """Drops without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x), 0.5)


class Two(nn.Module):
    """Returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


def frozen() -> nn.Module:
    return nn.Linear(3, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Counting, ("passes", "buffer")),
        (Functional, ("random",)),
        (Two, ("tuple",)),
        (frozen, ("no trainable parameters",)),
        (lambda: nn.Linear(5, 2), ("(6, 3)",)),
        (lambda: nn.Linear(3, 7), ("(6, 7)", "(6, 2)")),
    ],
)
def test_models_that_cannot_be_trained_here_are_refused(make: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        Task(make, "binary", 2, 1).check(X, LABELS)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (functional.cross_entropy, "reduction='none'"),
        (lambda out, y: functional.cross_entropy(out, y, reduction="none")[:, None], r"\(6, 1\)"),
        (lambda out, y: functional.binary_cross_entropy_with_logits(out, y), "loss fails"),
    ],
)
def test_losses_that_cannot_be_used_are_refused(loss: Any, word: str) -> None:
    with pytest.raises(ModelError, match=word):
        linear(2, loss=loss).check(X, LABELS)
