"""Against `torch.optim`, whose numerics the steps promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from evenfed.core.errors import ConfigError
from evenfed.core.optimizer import Optimizer, Stepper

STEPS, CLIENTS, LR = 6, 4, 0.05
SHAPES = ((3, 2), (5,), ())

RULES: list[tuple[Optimizer, Any, dict[str, Any]]] = [
    (Optimizer(), torch.optim.SGD, {}),
    (Optimizer(weight_decay=0.3), torch.optim.SGD, {"weight_decay": 0.3}),
    (Optimizer(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (
        Optimizer(momentum=0.8, nesterov=True, weight_decay=0.1),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    (Optimizer("adam"), torch.optim.Adam, {}),
    (
        Optimizer("adam", weight_decay=0.2, beta1=0.7, beta2=0.95, eps=1e-3),
        torch.optim.Adam,
        {"weight_decay": 0.2, "betas": (0.7, 0.95), "eps": 1e-3},
    ),
    (Optimizer(clip=0.5), torch.optim.SGD, {"clip": 0.5}),
    (Optimizer("adam", clip=0.5), torch.optim.Adam, {"clip": 0.5}),
    (Optimizer(momentum=0.9, clip=100.0), torch.optim.SGD, {"momentum": 0.9, "clip": 100.0}),
]
rules = pytest.mark.parametrize(("rule", "cls", "options"), RULES)


def start(lead: tuple[int, ...] = ()) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn((*lead, *shape), generator=g) for shape in SHAPES]


def gradients(lead: tuple[int, ...] = ()) -> list[list[Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [[torch.randn((*lead, *s), generator=g) for s in SHAPES] for _ in range(STEPS)]


def reference(
    params: list[Tensor], grads: list[list[Tensor]], cls: Any, options: dict[str, Any]
) -> list[Tensor]:
    options = dict(options)
    clip = options.pop("clip", 0.0)
    leaves = [p.clone().requires_grad_() for p in params]
    optimizer = cls(leaves, lr=LR, **options)
    for step in grads:
        for leaf, g in zip(leaves, step, strict=True):
            leaf.grad = g.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(leaves, clip)
        optimizer.step()
    return [leaf.detach() for leaf in leaves]


@rules
def test_several_steps_are_those_of_torch(
    rule: Optimizer, cls: Any, options: dict[str, Any]
) -> None:
    params = start()
    stepper = Stepper(rule, params, lead=0)
    for grads in gradients():
        stepper.step(grads, LR, None)
    for got, expected in zip(params, reference(start(), gradients(), cls, options), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


@rules
def test_stacked_clients_are_single_ones(
    rule: Optimizer, cls: Any, options: dict[str, Any]
) -> None:
    params, grads = start((CLIENTS,)), gradients((CLIENTS,))
    stepper = Stepper(rule, params, lead=1)
    for step in grads:
        stepper.step(step, LR, None)
    for client in range(CLIENTS):
        own = [[g[client] for g in step] for step in grads]
        expected = reference([p[client] for p in start((CLIENTS,))], own, cls, options)
        for got, wanted in zip(params, expected, strict=True):
            torch.testing.assert_close(got[client], wanted, rtol=1e-5, atol=1e-7)


@rules
def test_a_client_that_stops_keeps_parameters_momentum_and_adam_state(
    rule: Optimizer, cls: Any, options: dict[str, Any]
) -> None:
    taken = [6, 1, 3, 4]
    params, grads = start((CLIENTS,)), gradients((CLIENTS,))
    stepper = Stepper(rule, params, lead=1)
    held: list[Tensor] = []
    for s, step in enumerate(grads):
        stepper.step(step, LR, torch.tensor([s < n for n in taken]))
        if s == 2:
            held = [t[2].clone() for t in (*stepper.first, *stepper.second)]
    for client, n in enumerate(taken):
        own = [[g[client] for g in step] for step in grads[:n]]
        expected = reference([p[client] for p in start((CLIENTS,))], own, cls, options)
        for got, wanted in zip(params, expected, strict=True):
            torch.testing.assert_close(got[client], wanted, rtol=1e-5, atol=1e-7)
    now = [t[2] for t in (*stepper.first, *stepper.second)]
    assert all(torch.equal(a, b) for a, b in zip(now, held, strict=True))


def test_every_client_may_have_its_own_rate() -> None:
    params, grads = start((2,)), gradients((2,))[0]
    Stepper(Optimizer(), params, lead=1).step(grads, torch.tensor([0.1, 0.2]), None)
    for got, old, g in zip(params, start((2,)), grads, strict=True):
        for client, lr in enumerate((0.1, 0.2)):
            torch.testing.assert_close(got[client], old[client] - lr * g[client])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"name": "rmsprop"}, "'sgd' or 'adam'"),
        ({"nesterov": True}, "momentum"),
        ({"name": "adam", "momentum": 0.9}, "beta1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"clip": -1.0}, "clip"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Optimizer(**options)


@rules
def test_a_pure_step_of_one_tensor_is_that_of_torch(
    rule: Optimizer, cls: Any, options: dict[str, Any]
) -> None:
    start_at, steps = start()[0], [g[0] for g in gradients()]
    expected = reference([start_at], [[g] for g in steps], cls, options)[0]
    param, memory = start_at, rule.memory(start_at)
    for g in steps:
        param, memory = rule.stepped(param, g, memory, torch.tensor(LR))
    torch.testing.assert_close(param, expected, rtol=1e-5, atol=1e-6)
