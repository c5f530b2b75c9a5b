"""Regularised local training against steps computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.regularizer import SaltedBatches, SignEntropy, first_batch
from evenfed.core.sign_entropy import ahead, entropy, norm, regularizer_gradient, soft_sign, widths
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree

N, LR, RHO = 23, 0.2, 0.3
TASK = Task(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)), "multiclass", 3, 1)


def client(seed: int) -> Examples:
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(seed))
    return Examples.of(x, (x @ torch.tensor([1.0, -1.0, 0.5])).round().clamp(-1, 1).long() + 1)


DATA = client(0)
START = TASK.init()
RATE = torch.tensor(LR, dtype=torch.float64)


def local(batch: int = 8, **options: Any) -> LocalTraining:
    if options.get("mode") != "gate":
        options = {"when": "posthoc", **options}
    options = {"rho": RHO, **options}
    return LocalTraining(lr=LR, batch=batch, regularizer="ser", ser=SignEntropy(**options))


def drawn(training: LocalTraining, seed: int = 0) -> Any:
    return training.draw(torch.Generator().manual_seed(seed), (), N)


def train(training: LocalTraining, data: Examples = DATA, **hooks: Any) -> Params:
    return training.run(TASK, START, data, drawn(training), lr=RATE, **hooks)


def gradient_on(batch: Examples) -> Callable[[Params], Params]:
    return lambda p: grad(TASK.mean_loss)(p, batch)


def batches(training: LocalTraining) -> list[Examples]:
    found = drawn(training)
    return [DATA.take(i[m]) for i, m in zip(found.index, found.mask, strict=True)]


def flat(tree: Any) -> Tensor:
    return torch.cat([t.reshape(-1) for t in trees.leaves(tree)])


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(flat(a), flat(b), rtol=tolerance, atol=tolerance)


def correction(batch: Examples, p: Params, length: Tensor, **options: Any) -> Params:
    """Of one length, along `grad R` with the look-ahead step held fixed unless told otherwise."""
    _, away = regularizer_gradient(gradient_on(batch), p, RATE, **options)
    return trees.scale(away, length / norm(away))  # type: ignore[no-any-return]


def plain_steps(training: LocalTraining) -> tuple[Params, Tensor]:
    """The last iterate, and the sum of the gradients' norms."""
    p, path = START, torch.zeros(())
    for batch in batches(training):
        g = gradient_on(batch)(p)
        p, path = ahead(p, g, RATE), path + norm(g)
    return p, path


@pytest.mark.parametrize(
    "options",
    [{}, {"objective": "entropy"}, {"kappa": 2.0}, {"axis": "coordinates"}, {"through": True},
     {"axis": "coordinates", "objective": "js"}],
)  # fmt: skip
def test_post_hoc_corrects_the_result_of_the_plain_steps_once(options: dict[str, Any]) -> None:
    training = local(**options)
    p, path = plain_steps(training)
    u = correction(batches(training)[0], p, RHO * path, **options)
    close(train(training), ahead(p, u, RATE))


def test_finite_differences_come_near() -> None:
    close(train(local(product="difference")), train(local()), 1e-3)


@pytest.mark.parametrize(("when", "every"), [("step", 1), ("interval", 2), ("interval", 3)])
def test_every_so_many_steps_the_gradient_is_corrected(when: str, every: int) -> None:
    training = local(when=when, interval=every)
    p = START
    for t, batch in enumerate(batches(training), start=1):
        g = gradient_on(batch)(p)
        if t % every == 0:
            g = trees.add(g, correction(batch, p, RHO * norm(g), through=True))
        p = ahead(p, g, RATE)
    close(train(training), p)


def test_the_gate_multiplies_by_the_entropy_of_a_running_mean_of_signs() -> None:
    training = local(mode="gate", decay=0.6)
    p, mean = START, trees.zeros_like(START)
    for batch in batches(training):
        g = gradient_on(batch)(p)
        signs = trees.map(soft_sign, g, widths(g, 1.0))
        mean = trees.map(lambda m, s: 0.6 * m + 0.4 * s, mean, signs)
        gated = trees.map(lambda u, m: u * (1 - RHO * entropy((1 + m) / 2)), g, mean)
        p = ahead(p, gated, RATE)
    close(train(training), p)


@pytest.mark.proves("ser", "the random control has the norm of the correction")
def test_a_random_control_moves_as_far_and_elsewhere() -> None:
    p, path = plain_steps(local())
    moves = {}
    for seed in (0, 1):
        training = local(control="random")
        batch_draw = drawn(training)
        assert isinstance(batch_draw, SaltedBatches)
        other = SaltedBatches(batch_draw.index, batch_draw.mask, batch_draw.salt + seed)
        new = training.run(TASK, START, DATA, other, lr=RATE)
        moves[seed] = flat(trees.subtract(new, p))
        assert float(moves[seed].norm()) == pytest.approx(float(LR * RHO * path), rel=1e-3)
    cosine = torch.nn.functional.cosine_similarity(moves[0], moves[1], dim=0)
    assert cosine.abs() < 0.7


@pytest.mark.parametrize("when", ["step", "interval"])
def test_random_directions_differ_from_step_to_step(when: str) -> None:
    """One full-batch step from the same place as the second of two has another direction."""
    full = LocalTraining(
        lr=1e-9, batch=0, steps=4, regularizer="ser",
        ser=SignEntropy(rho=1e6, when=when, interval=2, control="random"),  # type: ignore[arg-type]
    )  # fmt: skip
    rate = torch.tensor(1e-9, dtype=torch.float64)
    short = drawn(full).shortened(0.5)
    two = flat(trees.subtract(full.run(TASK, START, DATA, short, lr=rate), START))
    four = flat(trees.subtract(full.run(TASK, START, DATA, drawn(full), lr=rate), START))
    cosine = torch.nn.functional.cosine_similarity(two, four - two, dim=0)
    assert cosine.abs() < 0.5


@pytest.mark.proves("ser", "the shrink control has the norm of the corrected update")
@pytest.mark.parametrize("options", [{}, {"when": "step"}, {"mode": "gate"}])
def test_the_shrink_control_has_the_length_of_the_corrected_update(options: dict[str, Any]) -> None:
    """One step: its direction is that of the plain one."""
    lengths, updates = [], []
    for control in ("none", "shrink"):
        training = local(batch=0, control=control, **options)
        update = flat(trees.subtract(train(training), START))
        lengths.append(float(update.norm()))
        updates.append(update)
    plain = flat(trees.subtract(train(LocalTraining(lr=LR, batch=0)), START))
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-4)
    torch.testing.assert_close(updates[1] / lengths[1], plain / plain.norm(), rtol=1e-3, atol=1e-5)
    assert (updates[0] - updates[1]).norm() > 1e-4 * lengths[0]


def test_strength_multiplies_rho() -> None:
    half = train(local(rho=2 * RHO), strength=torch.tensor(0.5))
    close(half, train(local()))


def pulled(params: Params, batch: Examples, received: Tree) -> Tensor:
    return 50.0 * trees.squared_norm(trees.subtract(params, received))


def shifted(direction: Params, params: Params, batch: Examples, shift: Tree) -> Params:
    return trees.add(direction, shift)  # type: ignore[no-any-return]


@pytest.mark.parametrize("when", ["posthoc", "step"])
def test_the_regulariser_sees_neither_the_term_nor_the_hook(when: str) -> None:
    """One full-batch step: what a term or a hook adds is added to the same regularised step."""
    training = local(batch=0, when=when)
    elsewhere = trees.map(lambda t: t - 0.1, START)
    one = train(training)
    with_term = train(training, term=pulled, context=elsewhere)
    with_hook = train(training, gradient=shifted, context=trees.map(torch.ones_like, START))
    if when == "step":
        close(with_term, trees.map(lambda p: p - LR * 100 * 0.1, one))
        close(with_hook, trees.map(lambda p: p - LR, one))
        return
    # after the fact the correction is that at the new place, of length rho |g| with g of F alone
    path = RHO * norm(gradient_on(DATA)(START))
    for new, moved in ((with_term, 100 * 0.1), (with_hook, 1.0)):
        place = trees.map(
            lambda p, m=moved: p - LR * m, ahead(START, gradient_on(DATA)(START), RATE)
        )
        close(new, ahead(place, correction(DATA, place, path), RATE), 1e-4)


@pytest.mark.proves("ser", "every form under vmap as alone")
@pytest.mark.parametrize(
    "options",
    [{}, {"when": "step"}, {"when": "interval", "interval": 2}, {"mode": "gate"},
     {"control": "random"}, {"control": "random", "when": "step"}, {"control": "shrink"},
     {"product": "difference"}, {"axis": "coordinates", "objective": "entropy"}],
)  # fmt: skip
def test_clients_side_by_side_train_as_alone(options: dict[str, Any]) -> None:
    training = local(**options)
    data = [client(i) for i in range(3)]
    draws = [drawn(training, i) for i in range(3)]
    strengths = torch.tensor([0.5, 1.0, 0.25])

    def one(d: Examples, b: Any, s: Tensor) -> Params:
        return training.run(TASK, START, d, b, lr=RATE, strength=s)

    together = vmap(one)(trees.stack(data), trees.stack(draws), strengths)
    tolerance = 1e-3 if options.get("product") else 1e-5
    for i in range(3):
        close(trees.row(together, i), one(data[i], draws[i], strengths[i]), tolerance)


@pytest.mark.parametrize(
    "off", [{"rho": 0.0}, {"rho": 0.0, "when": "step"}, {"rho": 0.0, "mode": "gate"}]
)
def test_without_strength_training_is_plain_to_the_bit(off: dict[str, Any]) -> None:
    plain = LocalTraining(lr=LR, batch=8)
    assert torch.equal(flat(train(local(**off))), flat(train(plain)))
    assert hash(local(**off)) != hash(plain)


def test_optimizers_with_memory_take_corrections() -> None:
    for optimizer in ({"momentum": 0.9}, {"optimizer": "adam"}, {"clip": 0.1}):
        for when in ("posthoc", "interval", "step"):
            training = LocalTraining(
                lr=0.01, batch=8, regularizer="ser",
                ser=SignEntropy(when=when, interval=2),  # type: ignore[arg-type]
                **optimizer,  # type: ignore[arg-type]
            )  # fmt: skip
            assert torch.isfinite(flat(train(training))).all()


def test_clipped_steps_count_with_their_clipped_length() -> None:
    ser = SignEntropy(rho=RHO, when="posthoc")
    training = LocalTraining(lr=LR, batch=0, clip=0.01, regularizer="ser", ser=ser)
    move = flat(trees.subtract(train(training), START))
    assert float(move.norm()) <= LR * 0.01 * (1 + RHO) * 1.001


def test_the_first_batch_is_the_first() -> None:
    training = local()
    batch = first_batch(DATA, drawn(training))
    assert torch.equal(batch.x, batches(training)[0].x)
    assert first_batch(DATA, drawn(local(batch=0))) is DATA


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"when": "never"}, "local.ser.when is 'never'"),
        ({"rho": -1.0}, "local.ser.rho must not be negative"),
        ({"kappa": 0.0}, "kappa greater than 0"),
        ({"interval": 0}, "interval must be at least 1"),
        ({"mode": "gate", "control": "random"}, "no direction that a random one could replace"),
        ({"mode": "gate", "rho": 1.5}, "at most 1"),
        ({"mode": "gate", "when": "posthoc"}, "local.ser.when does not go with mode='gate'"),
        ({"mode": "gate", "axis": "coordinates"}, "local.ser.axis does not go with mode='gate'"),
        ({"mode": "gate", "objective": "js"}, "local.ser.objective does not go"),
        ({"mode": "gate", "through": False}, "local.ser.through does not go"),
        ({"mode": "gate", "product": "difference"}, "local.ser.product does not go"),
        ({"axis": "coordinates", "through": True}, "local.ser.through: axis='coordinates'"),
        ({"objective": "gini"}, "local.ser.objective is 'gini'; it may be 'js', 'entropy'$"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SignEntropy(**options)


@pytest.mark.parametrize(
    ("options", "objective", "through"),
    [
        ({}, "js", True),
        ({"when": "interval"}, "js", True),
        ({"when": "posthoc"}, "js", False),
        ({"axis": "coordinates"}, "entropy", False),
        ({"axis": "coordinates", "objective": "js", "through": False}, "js", False),
        ({"when": "posthoc", "through": True, "objective": "entropy"}, "entropy", True),
    ],
)
def test_what_is_not_said_follows_from_the_form(
    options: dict[str, Any], objective: str, through: bool
) -> None:
    found = SignEntropy(**options)
    assert (found.measure, found.derives_through) == (objective, through)


def test_the_gate_needs_plain_sgd() -> None:
    gate = SignEntropy(mode="gate")
    with pytest.raises(ConfigError, match="plain SGD"):
        LocalTraining(regularizer="ser", ser=gate, momentum=0.9)
    LocalTraining(regularizer="none", ser=gate, momentum=0.9)


def test_a_random_control_needs_its_own_draws() -> None:
    foreign = drawn(LocalTraining(lr=LR, batch=8))
    with pytest.raises(ConfigError, match="own `draw`"):
        local(control="random").run(TASK, START, DATA, foreign, lr=RATE)


def test_an_unknown_regulariser_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.regularizer 'l3' is unknown"):
        LocalTraining(regularizer="l3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"mode": "gate"}, {"control": "random", "when": "step"}, {"control": "shrink"}]
)
def test_a_rate_of_zero_moves_nothing(options: dict[str, Any]) -> None:
    """Where a schedule ends at zero."""
    training = local(batch=0, **options)
    rate = torch.tensor(0.0, dtype=torch.float64)
    assert torch.equal(
        flat(training.run(TASK, START, DATA, drawn(training), lr=rate)), flat(START)
    )  # fmt: skip
