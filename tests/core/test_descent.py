"""One descent, written for one client: alone, stacked, nested and traced it is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from evenfed.core import tree as trees
from evenfed.core.batches import Batches, draw_batches
from evenfed.core.descent import descend
from evenfed.core.examples import Examples
from evenfed.core.optimizer import Optimizer

CLIENTS, ROWS, FEATURES, HIDDEN, LR = 4, 11, 3, 5, 0.1
Params = dict[str, Tensor]
Loss = Callable[[Params, Examples], Tensor]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_client(seed: int, rows: int = ROWS) -> Examples:
    x = draw(rows, FEATURES, seed=seed)
    return Examples.of(x, x @ torch.tensor([1.0, -1.0, 0.5]) + 0.1 * draw(rows, seed=seed + 50))


def one_drawn(seed: int, *, epochs: int = 2, batch: int = 4, rows: int = ROWS) -> Batches:
    return draw_batches(torch.Generator().manual_seed(seed), rows, batch=batch, epochs=epochs)


DATA = [one_client(i) for i in range(CLIENTS)]
DRAWN = [one_drawn(i) for i in range(CLIENTS)]
STACKED: Any = trees.stack(DATA)
STACKED_DRAWN: Any = trees.stack(DRAWN)


def masked_mean(errors: Tensor, batch: Examples) -> Tensor:
    return (errors * batch.weight).sum() / batch.weight.sum().clamp(min=1)


def moments(batch: Examples) -> Tensor:
    """Second moments of the real rows `(d, d)`."""
    x = batch.x * batch.weight.unsqueeze(-1)
    return x.T @ x / batch.weight.sum().clamp(min=1)


def mlp_params(seed: int = 0) -> Params:
    return {
        "w1": 0.5 * draw(FEATURES, HIDDEN, seed=seed),
        "b1": torch.zeros(HIDDEN),
        "w2": 0.5 * draw(HIDDEN, seed=seed + 1),
        "scale": torch.ones(()),
    }


def mlp_loss(p: Params, batch: Examples) -> Tensor:
    out = torch.tanh(batch.x @ p["w1"] + p["b1"]) @ p["w2"] * p["scale"]
    return masked_mean((out - batch.y).square(), batch)


def deep_linear_params(seed: int = 0) -> Params:
    """Factors without bias: the gradient of each is a product with a view of the others."""
    names = ("w2", "w3", "w1")
    return {name: 0.3 * draw(FEATURES, FEATURES, seed=seed + i) for i, name in enumerate(names)}


def deep_linear_loss(p: Params, batch: Examples) -> Tensor:
    out = (batch.x @ p["w1"] @ p["w2"] @ p["w3"]).sum(-1)
    return masked_mean((out - batch.y).square(), batch)


def bilinear_params(seed: int = 0) -> Params:
    return {name: draw(FEATURES, FEATURES, seed=seed + i) for i, name in enumerate("ba")}


def bilinear_loss(p: Params, batch: Examples) -> Tensor:
    """The gradient of `a` is a product of data with a view of `b` itself, and the reverse."""
    return (p["a"] @ p["b"] * moments(batch)).sum()


def unbound_params(seed: int = 0) -> Params:
    return {"both": draw(2, FEATURES, FEATURES, seed=seed), "a": draw(FEATURES, FEATURES, seed=9)}


def unbound_loss(p: Params, batch: Examples) -> Tensor:
    """As `bilinear_loss`, with the other factor cut out of a larger parameter."""
    first, _ = p["both"].unbind(0)
    return (p["a"] @ first * moments(batch)).sum()


def tied_params(seed: int = 0) -> Params:
    return {"w": 0.5 * draw(FEATURES, HIDDEN, seed=seed), "out": draw(FEATURES, seed=seed + 1)}


def tied_loss(p: Params, batch: Examples) -> Tensor:
    """An autoencoder with one matrix used twice."""
    out = torch.relu(batch.x @ p["w"]) @ p["w"].T @ p["out"]
    return masked_mean((out - batch.y).square(), batch)


def shared_params(seed: int = 0) -> Params:
    return {name: 0.3 * draw(FEATURES, FEATURES, seed=seed + i) for i, name in enumerate("ab")}


def shared_loss(p: Params, batch: Examples) -> Tensor:
    """Both parameters have one and the same gradient tensor."""
    out = (batch.x @ (p["a"] + p["b"])).sum(-1)
    return masked_mean((out - batch.y).square(), batch)


def mixed_params(seed: int = 0) -> Params:
    return {"w": draw(FEATURES, HIDDEN, seed=seed), "v": draw(HIDDEN, seed=seed + 1)}


def mixed_loss(p: Params, batch: Examples) -> Tensor:
    """Adds a wider and an integer type to a matrix product."""
    offset = torch.full((), 0.25, dtype=torch.float64)
    hidden = batch.x @ p["w"] + offset
    hidden = hidden @ torch.eye(HIDDEN) + batch.group.unsqueeze(-1)
    out = -torch.relu(-torch.relu(hidden)) + torch.sigmoid(hidden)
    return masked_mean((out @ p["v"] - batch.y).square(), batch)


START = mlp_params()
PROBLEMS: dict[str, tuple[Callable[[int], Params], Loss]] = {
    "mlp": (mlp_params, mlp_loss),
    "deep linear": (deep_linear_params, deep_linear_loss),
    "bilinear": (bilinear_params, bilinear_loss),
    "unbound": (unbound_params, unbound_loss),
    "tied": (tied_params, tied_loss),
    "shared gradient": (shared_params, shared_loss),
    "mixed types": (mixed_params, mixed_loss),
}
problems = pytest.mark.parametrize("problem", PROBLEMS)


class Gradient:
    """A direction that is traced: an object whose equality does not change."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, p: Params, batch: Examples, context: Any) -> tuple[Params, Any]:
        return grad(self.loss)(p, batch), ()


def untraced(loss: Loss) -> Any:
    def direction(p: Params, batch: Examples, context: Any) -> tuple[Params, Any]:
        return grad(loss)(p, batch), ()

    return direction


def by_hand(loss: Loss, params: Params, data: Examples, drawn: Batches) -> Params:
    """SGD with plain autograd, batch by batch, without any padding."""
    p = {name: t.clone() for name, t in params.items()}
    for rows, real in zip(drawn.index, drawn.mask, strict=True):
        if drawn.index.shape[-1] and not real.any():
            continue
        batch = data.take(rows[real]) if drawn.index.shape[-1] else data
        leaves = {name: t.clone().requires_grad_() for name, t in p.items()}
        loss(leaves, batch).backward()  # type: ignore[no-untyped-call]
        p = {name: (t - LR * t.grad).detach() for name, t in leaves.items()}  # type: ignore[operator]
    return p


def run(
    direction: Any, params: Params, data: Examples, drawn: Batches, lr: Any = LR, **options: Any
) -> Any:
    options.setdefault("optimizer", Optimizer())
    return descend(direction, params, data, drawn, lr=lr, **options)


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    for p, q in zip(trees.leaves(a), trees.leaves(b), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@problems
@pytest.mark.parametrize("form", [Gradient, untraced])
def test_one_client_descends_as_autograd_does(problem: str, form: Any) -> None:
    make, loss = PROBLEMS[problem]
    new, _ = run(form(loss), make(0), DATA[0], DRAWN[0])
    close(new, by_hand(loss, make(0), DATA[0], DRAWN[0]))


@problems
@pytest.mark.parametrize("form", [Gradient, untraced])
def test_stacked_clients_descend_as_autograd_does(problem: str, form: Any) -> None:
    make, loss = PROBLEMS[problem]
    direction, start = form(loss), make(0)
    new = vmap(lambda d, b: run(direction, start, d, b)[0])(STACKED, STACKED_DRAWN)
    for client in range(CLIENTS):
        expected = by_hand(loss, make(0), DATA[client], DRAWN[client])
        close(trees.row(new, client), expected)


@problems
def test_traced_equals_untraced(problem: str) -> None:
    make, loss = PROBLEMS[problem]
    starts = trees.stack([make(i) for i in range(CLIENTS)])

    def descended(direction: Any) -> Any:
        return vmap(lambda p, d, b: run(direction, p, d, b)[0])(starts, STACKED, STACKED_DRAWN)

    close(descended(Gradient(loss)), descended(untraced(loss)), 1e-6)


@pytest.mark.parametrize("problem", ["mlp", "deep linear", "bilinear"])
@pytest.mark.parametrize("form", [Gradient, untraced])
@pytest.mark.parametrize(
    "optimizer", [Optimizer(), Optimizer(momentum=0.9, weight_decay=0.1), Optimizer("adam")]
)
def test_nested_models_that_share_the_data_are_loops(
    problem: str, form: Any, optimizer: Optimizer
) -> None:
    make, loss = PROBLEMS[problem]
    models = 3
    direction = form(loss)
    starts = trees.stack([make(10 * m) for m in range(models)])

    def client(data: Examples, drawn: Batches) -> Any:
        return vmap(lambda p: run(direction, p, data, drawn, optimizer=optimizer)[0])(starts)

    nested = vmap(client)(STACKED, STACKED_DRAWN)
    assert trees.leaves(nested)[0].shape[:2] == (CLIENTS, models)
    for i in range(CLIENTS):
        for m in range(models):
            alone, _ = run(direction, make(10 * m), DATA[i], DRAWN[i], optimizer=optimizer)
            close(trees.row(trees.row(nested, i), m), alone)


def test_models_may_have_batches_of_their_own() -> None:
    direction = Gradient(mlp_loss)
    drawn = [one_drawn(20 + m) for m in range(2)]

    def client(data: Examples) -> Any:
        return vmap(lambda b: run(direction, START, data, b)[0])(trees.stack(drawn))

    nested = vmap(client)(STACKED)
    for i in range(CLIENTS):
        for m in range(2):
            alone, _ = run(direction, mlp_params(), DATA[i], drawn[m])
            close(trees.row(trees.row(nested, i), m), alone)


@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=0.5)])
@pytest.mark.parametrize("where", ["clients", "models", "both"])
def test_rates_may_differ_by_client_and_by_model(optimizer: Optimizer, where: str) -> None:
    direction = Gradient(mlp_loss)
    models = CLIENTS  # equal sizes, so that a mix-up of the axes would go unnoticed by shape
    by_client = torch.linspace(0.01, 0.1, CLIENTS)
    by_model = torch.linspace(0.1, 0.02, models)
    starts = trees.stack([mlp_params(10 * m) for m in range(models)])

    def rate(client_rate: Tensor, model_rate: Tensor) -> Tensor:
        return {
            "clients": client_rate,
            "models": model_rate,
            "both": client_rate * model_rate,
        }[where]

    def client(data: Examples, drawn: Batches, own: Tensor) -> Any:
        def model(p: Params, r: Tensor) -> Any:
            return run(direction, p, data, drawn, rate(own, r), optimizer=optimizer)[0]

        return vmap(model)(starts, by_model)

    nested = vmap(client)(STACKED, STACKED_DRAWN, by_client)
    for i in range(CLIENTS):
        for m in range(models):
            alone, _ = run(
                direction, mlp_params(10 * m), DATA[i], DRAWN[i],
                float(rate(by_client[i], by_model[m])), optimizer=optimizer,
            )  # fmt: skip
            close(trees.row(trees.row(nested, i), m), alone)


@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=0.9), Optimizer("adam")])
def test_padding_rows_and_padding_steps_change_nothing(optimizer: Optimizer) -> None:
    direction = Gradient(mlp_loss)
    small, drawn = one_client(3, rows=6), one_drawn(3, rows=6)
    alone, _ = run(direction, mlp_params(), small, drawn, optimizer=optimizer)
    larger = DRAWN[1]
    index, mask = torch.zeros_like(larger.index), torch.zeros_like(larger.mask)
    index[: drawn.steps], mask[: drawn.steps] = drawn.index, drawn.mask
    data = trees.stack([small.padded(ROWS), DATA[1]])
    batches = trees.stack([Batches(index, mask), larger])
    together, _ = vmap(lambda d, b: run(direction, START, d, b, optimizer=optimizer))(data, batches)
    close(trees.row(together, 0), alone)
    other, _ = run(direction, mlp_params(), DATA[1], larger, optimizer=optimizer)
    close(trees.row(together, 1), other)


def test_full_batch_is_gradient_descent() -> None:
    drawn = one_drawn(0, batch=0, epochs=4)
    new, _ = run(Gradient(mlp_loss), mlp_params(), DATA[0], drawn)
    close(new, by_hand(mlp_loss, mlp_params(), DATA[0], drawn))
    stacked = vmap(lambda d: run(Gradient(mlp_loss), START, d, drawn)[0])(STACKED)
    close(trees.row(stacked, 2), by_hand(mlp_loss, mlp_params(), DATA[2], drawn))


def test_context_may_differ_by_client() -> None:
    def pull(p: Params, batch: Examples, target: Params) -> tuple[Params, Any]:
        return trees.subtract(p, target), ()

    targets = trees.stack([mlp_params(100 + i) for i in range(CLIENTS)])
    new = vmap(lambda d, b, t: run(pull, START, d, b, context=t)[0])(
        STACKED, STACKED_DRAWN, targets
    )
    # p - t shrinks by (1 - lr) in each of the six steps
    for i in range(CLIENTS):
        target = mlp_params(100 + i)
        expected = trees.add(target, trees.subtract(mlp_params(), target), (1 - LR) ** 6)
        close(trees.row(new, i), expected)


class Recording:
    """Extras: the batch loss, and the iterate itself, which the step then changes in place."""

    def __call__(self, p: Params, batch: Examples, context: Any) -> tuple[Params, Any]:
        return grad(mlp_loss)(p, batch), {"loss": mlp_loss(p, batch), "at": p["w2"]}


def record_untraced() -> Any:
    def direction(p: Params, batch: Examples, context: Any) -> tuple[Params, Any]:
        return Recording()(p, batch, context)

    return direction


@pytest.mark.parametrize("form", [Recording, record_untraced])
@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=1e-9)])
def test_extras_are_those_before_each_step(form: Any, optimizer: Optimizer) -> None:
    direction = form()
    _, extras = vmap(lambda d, b: run(direction, START, d, b, optimizer=optimizer))(
        STACKED, STACKED_DRAWN
    )
    steps = DRAWN[0].steps
    assert extras["loss"].shape == (CLIENTS, steps)
    assert extras["at"].shape == (CLIENTS, steps, HIDDEN)
    for s in range(steps):
        taken = Batches(DRAWN[1].index[:s], DRAWN[1].mask[:s])
        before = by_hand(mlp_loss, mlp_params(), DATA[1], taken)
        batch = DATA[1].take(DRAWN[1].index[s][DRAWN[1].mask[s]])
        torch.testing.assert_close(extras["loss"][1, s], mlp_loss(before, batch))
        torch.testing.assert_close(extras["at"][1, s], before["w2"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stacked", [False, True])
def test_extras_of_steps_not_taken_are_zero(stacked: bool) -> None:
    """Their shape and values must not depend on who shares the chunk."""
    short = [drawn.shortened(0.5) for drawn in DRAWN]
    short[1] = DRAWN[1].shortened(0.2)
    if stacked:
        _, extras = vmap(lambda d, b: run(Recording(), START, d, b))(STACKED, trees.stack(short))
        losses = extras["loss"][1]
    else:
        losses = run(Recording(), mlp_params(), DATA[1], short[1])[1]["loss"]
    # six steps, of which a fifth, rounded up, is two
    assert losses.shape == (6,)
    assert (losses[:2] > 0).all()
    assert not losses[2:].any()


class Swap:
    """A direction whose gradient is a parameter itself, not a copy: rotates (a, b)."""

    def __call__(self, p: Params, batch: Examples, context: Any) -> tuple[Params, Any]:
        return {"a": p["b"], "b": p["a"]}, ()


def swap_untraced() -> Any:
    def direction(p: Params, batch: Examples, context: Any) -> tuple[Params, Any]:
        return {"a": p["b"], "b": p["a"]}, ()

    return direction


@pytest.mark.parametrize("form", [Swap, swap_untraced])
@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=1e-9)])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_gradient_that_is_a_parameter_is_read_before_it_is_written(
    form: Any, optimizer: Optimizer, stacked: bool
) -> None:
    start = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 5.0])}
    direction, drawn = form(), one_drawn(0, batch=0, epochs=1)
    if stacked:
        new = vmap(lambda d: run(direction, start, d, drawn, optimizer=optimizer)[0])(STACKED)
        new = trees.row(new, 1)
    else:
        new, _ = run(direction, start, DATA[0], drawn, optimizer=optimizer)
    # a - 0.1 b and b - 0.1 a
    close(new, {"a": torch.tensor([0.7, 1.5]), "b": torch.tensor([2.9, 4.8])})


def pull_to(value: float) -> Any:
    def direction(p: Tensor, batch: Examples, context: Any) -> tuple[Tensor, Any]:
        return p - value, {"towards": p * 0 + value}

    return direction


@pytest.mark.parametrize("stacked", [False, True])
def test_directions_of_a_tuple_take_turns(stacked: bool) -> None:
    turns = (pull_to(10.0), pull_to(-10.0))
    drawn = one_drawn(0, batch=0, epochs=3)
    if stacked:
        new, extras = vmap(lambda d: run(turns, torch.zeros(()), d, drawn))(STACKED)
        new, extras = new[2], trees.row(extras, 2)
    else:
        new, extras = run(turns, torch.zeros(()), DATA[0], drawn)
    # 0 -> 1 -> 1 - 0.1 * 11 = -0.1 -> -0.1 + 0.1 * 10.1 = 0.91
    assert new.item() == pytest.approx(0.91, rel=1e-5)
    assert extras["towards"].tolist() == [10.0, -10.0, 10.0]


def test_the_start_is_not_changed() -> None:
    start = mlp_params()
    run(Gradient(mlp_loss), start, DATA[0], DRAWN[0])
    assert all(torch.equal(start[k], v) for k, v in mlp_params().items())


def wide_loss(p: Params, batch: Examples) -> Tensor:
    out = torch.relu(batch.x @ p["w"].T) @ p["v"]
    return masked_mean((out - batch.y).square(), batch)


def wide_direction(p: Params, batch: Examples, context: Any) -> tuple[Params, tuple[()]]:
    return grad(wide_loss)(p, batch), ()


@pytest.mark.parametrize("shared", [True, False])
def test_large_matrices_are_held_transposed_and_nobody_sees_it(shared: bool) -> None:
    """128 x 130 numbers and ten steps: such a matrix is transposed for the descent."""
    rows, inputs, hidden = 20, 130, 128
    data = [
        Examples.of(draw(rows, inputs, seed=i) / 12, draw(rows, seed=i + 9)) for i in range(CLIENTS)
    ]
    drawn = [one_drawn(i, epochs=5 if i else 4, batch=10, rows=rows) for i in range(CLIENTS)]
    # the first client takes fewer steps than the others
    drawn[0] = Batches(
        *(torch.cat([t, torch.zeros_like(t[:2])]) for t in (drawn[0].index, drawn[0].mask))
    )
    starts = [
        {"w": draw(hidden, inputs, seed=20 + i) / 12, "v": draw(hidden, seed=30 + i) / 12}
        for i in ([0] * CLIENTS if shared else range(CLIENTS))
    ]

    def run(params: Params, one: Examples, batches: Batches) -> Any:
        return descend(wide_direction, params, one, batches, optimizer=Optimizer("sgd"), lr=LR)[0]

    together = vmap(run, in_dims=(None if shared else 0, 0, 0))(
        starts[0] if shared else trees.stack(starts), trees.stack(data), trees.stack(drawn)
    )
    pair = vmap(run, in_dims=(0, 0, 0))(
        trees.stack(starts[:2]), trees.stack(data[:2]), trees.stack(drawn[:2])
    )
    for name in ("w", "v"):
        assert together[name].is_contiguous()
        assert torch.equal(together[name][:2], pair[name])
        for i in range(CLIENTS):
            alone = run(starts[i], data[i], drawn[i])[name]
            torch.testing.assert_close(together[name][i], alone, rtol=1e-5, atol=1e-6)
            assert not torch.equal(alone, starts[i][name])
