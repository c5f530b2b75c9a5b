from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from evenfed.core.body import Body
from evenfed.core.errors import ModelError
from evenfed.core.hypernetwork import Hypernetwork
from evenfed.core.models import cnn, mlp
from evenfed.core.task import Task

X = torch.randn((5, 3), generator=torch.Generator().manual_seed(0))


class Tokens(nn.Module):
    """A last layer that is a child of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"hidden": nn.Linear(3, 6), "out": nn.Linear(6, 2)})

    def forward(self, x: Tensor) -> Tensor:
        return self.inner["out"](torch.tanh(self.inner["hidden"](x)))  # type: ignore[no-any-return]


class Whole(nn.Module):
    """No linear layer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Scaled(Tokens):
    """Its last linear layer is not its last operation."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def task(make: Callable[[], nn.Module]) -> Task:
    return Task(make, "binary", classes=2, groups=2)


@pytest.mark.parametrize("make", [lambda: mlp(3, 2, (4, 7)), Tokens, lambda: nn.Linear(3, 2)])
def test_the_last_layer_of_the_features_is_the_model(make: Callable[[], nn.Module]) -> None:
    body = Body(task(make))
    features = body.features(body.first(), X)
    assert features.shape == (5, body.width)
    last = body.task.template.get_submodule(body.head or "")
    torch.testing.assert_close(last(features), body.task.template(X))


def test_images_and_one_more_layer() -> None:
    body = Body(task(lambda: cnn((1, 8, 8), 2, channels=(2,), hidden=6)), latent=3)
    x = torch.randn((2, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    body.check(x)
    params = body.first()
    plain = Body(body.task).features(params, x)
    expected = (plain @ params["latent.weight"].T + params["latent.bias"]).relu()
    assert torch.equal(body.features(params, x), expected)
    assert body.width == 3


def test_a_module_without_linear_layers_is_a_body_as_a_whole() -> None:
    body = Body(task(Whole))
    body.check(X)
    assert body.head is None
    assert torch.equal(body.features(body.first(), X), body.task.template(X))


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Scaled, "must end with an nn.Linear"), (lambda: nn.Linear(3, 2), "one linear layer")],
)
def test_what_cannot_be_parted_is_refused(make: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        Body(task(make)).check(X)


@pytest.mark.parametrize("latent", [0, 3])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize(
    "make", [lambda: mlp(3, 2, (4, 7)), Tokens, Whole, lambda: nn.Linear(3, 2)]
)
def test_the_plain_module_says_what_body_and_classifier_say(
    make: Callable[[], nn.Module], activation: str, latent: int
) -> None:
    body = Body(task(make), latent)
    net = Hypernetwork(body.width, 2, head=(4,), activation=activation)  # type: ignore[arg-type]
    rays = torch.tensor([[0.3, 0.7]])
    layers = net.classifiers(net.first(torch.Generator().manual_seed(0)), rays)
    params = {name: value + 0.1 for name, value in body.first().items()}
    module = body.module(params, net.module(layers))
    expected = net.outputs_of(layers, body.features(params, X))[0]
    torch.testing.assert_close(module(X), expected)
    if make is Tokens and not latent and activation == "none":
        assert isinstance(module, Tokens), "a model of the task's own kind where it can be one"
