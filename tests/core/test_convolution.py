"""Convolutions as products: values and derivatives are those of PyTorch's layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, vjp, vmap

from evenfed.core import convolution
from evenfed.core.convolution import Convolution, convolve, correlate


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("kernel", "size"), [(1, (4, 5)), (3, (6, 4)), (5, (8, 8)), (5, (3, 2))])
def test_values_are_those_of_pytorch(kernel: int, size: tuple[int, int]) -> None:
    x, weight = drawn(7, 3, *size), drawn(4, 3, kernel, kernel)
    expected = torch.nn.functional.conv2d(x, weight, padding=kernel // 2)
    torch.testing.assert_close(convolve(x, weight), expected)


def test_derivatives_up_to_the_second_are_right() -> None:
    x, weight = drawn(2, 2, 4, 3).requires_grad_(), drawn(3, 2, 3, 3).requires_grad_()
    g = drawn(2, 3, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(convolve, (x, weight))
    assert torch.autograd.gradgradcheck(convolve, (x, weight))
    assert torch.autograd.gradcheck(lambda x, g: correlate(x, g, 3), (x, g))
    assert torch.autograd.gradgradcheck(lambda x, g: correlate(x, g, 3), (x, g))


@pytest.mark.parametrize("limit", [0, 1 << 19])
def test_hessian_products_of_many_clients_are_those_of_the_plain_layer(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "_LIMIT", limit)
    layer = Convolution(3, 4, 5).double()
    params = {
        name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in layer.named_parameters()
    }
    x = drawn(2, 6, 3, 8, 8)

    def products(layer: torch.nn.Module, params: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        def loss(params: dict[str, Tensor]) -> Tensor:
            return functional_call(layer, params, (x,)).tanh().square().sum()

        gradient, pull, *_ = vjp(grad(loss), params)
        (out,) = pull(gradient)
        return out  # type: ignore[no-any-return]

    plain = torch.nn.Conv2d(3, 4, 5, padding=2).double()
    found = vmap(lambda p, x: products(layer, p, x))(params, x)
    for client in range(2):
        own = {name: p[client] for name, p in params.items()}
        expected = products(plain, own, x[client])
        torch.testing.assert_close({k: v[client] for k, v in found.items()}, expected)


def test_outside_of_transforms_it_is_the_layer_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Tensor) -> Tensor:
        raise AssertionError("not here")

    monkeypatch.setattr(convolution, "convolve", refuse)
    layer, x = Convolution(1, 2, 3), torch.ones(2, 1, 4, 4)
    assert layer(x).shape == (2, 2, 4, 4)
    with pytest.raises(AssertionError, match="not here"):
        grad(lambda x: layer(x).sum())(x)
    monkeypatch.setattr(convolution, "_LIMIT", 0)
    assert grad(lambda x: layer(x).sum())(x).shape == x.shape


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own
def test_forward_derivatives_are_those_of_the_plain_layer() -> None:
    layer, plain = Convolution(1, 2, 3).double(), torch.nn.Conv2d(1, 2, 3, padding=1).double()
    plain.load_state_dict(layer.state_dict())
    x = drawn(2, 1, 3, 4)

    def second(layer: torch.nn.Module) -> object:
        def loss(weight: Tensor) -> Tensor:
            return functional_call(layer, {"weight": weight}, (x,)).tanh().sum()

        return hessian(loss)(plain.weight.detach())  # forward over reverse

    torch.testing.assert_close(second(layer), second(plain))


def test_an_export_is_open_in_the_number_of_examples() -> None:
    layer = Convolution(1, 2, 3)
    shapes = {"x": {0: torch.export.Dim("n")}}
    program = torch.export.export(layer, (torch.ones(3, 1, 8, 8),), dynamic_shapes=shapes)
    x = torch.randn(50, 1, 8, 8)
    torch.testing.assert_close(program.module()(x), layer(x))
