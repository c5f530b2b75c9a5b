"""Convolutions of small images as matrix products, also of their derivatives of any order.

PyTorch computes a convolution with many clients' own weights in groups, one after another, and its
second derivatives by convolutions with kernels as large as the image. Here it is a product of the
weights with the columns of all windows, which a chunk of clients takes at once; second derivatives
gain most. The two functions here are each other's derivatives, so that none is ever taken
through the windows themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_LIMIT = 1 << 19
"""Numbers in the columns of a batch up to which a product is faster: they stay in the cache."""


class Convolution(nn.Conv2d):
    """`nn.Conv2d` with an odd kernel and as large an output as the input.

    Inside gradients and vmap small batches of small images are convolved by a product; elsewhere
    (in an export, in a loop of one's own) it is the layer of PyTorch. Values are the same to
    rounding.

    Examples
    --------
    >>> layer, x = Convolution(2, 3, 5), torch.ones(1, 2, 8, 8)
    >>> torch.allclose(layer(x), convolve(x, layer.weight) + layer.bias[:, None, None], atol=1e-6)
    True
    """

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__(before, after, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Turn `(n, C, H, W)` into `(n, O, H, W)`."""
        # asked first: an export has no number of examples to compare
        if torch._C._functorch.maybe_current_level() is None:
            return super().forward(x)
        kernel = self.weight.shape[-1]
        columns = x[:, :1].numel() * kernel**2 * max(self.in_channels, self.out_channels)
        if columns > _LIMIT:
            return super().forward(x)
        assert self.bias is not None
        return convolve(x, self.weight) + self.bias[:, None, None]


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution of `x` `(n, C, H, W)` with `weight` `(O, C, k, k)`: `(n, O, H, W)`.

    Examples
    --------
    >>> convolve(torch.ones(1, 1, 1, 3), torch.ones(1, 1, 3, 3))
    tensor([[[[2., 3., 2.]]]])
    """
    return _Convolve.apply(x, weight)  # type: ignore[no-any-return, no-untyped-call]


def correlate(x: Tensor, g: Tensor, kernel: int) -> Tensor:
    """How `g` `(n, O, H, W)` goes with the windows of `x` `(n, C, H, W)`: `(O, C, k, k)`.

    Examples
    --------
    >>> correlate(torch.ones(1, 1, 1, 3), torch.ones(1, 1, 1, 3), 1)
    tensor([[[[3.]]]])
    """
    return _Correlate.apply(x, g, kernel)  # type: ignore[no-any-return, no-untyped-call]


class _Convolve(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        n, _, height, width = x.shape
        out = weight.flatten(1) @ _columns(x, weight.shape[-1])
        return out.view(len(weight), height, width, n).permute(3, 0, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return convolve(g, _turned(weight)), correlate(x, g, weight.shape[-1])

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dw: Tensor) -> Tensor:
        x, weight = ctx.saved_tensors
        return convolve(dx, weight) + convolve(x, dw)


class _Correlate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, g: Tensor, kernel: int) -> Tensor:
        products = g.permute(1, 2, 3, 0).flatten(1) @ _columns(x, kernel).mT
        return products.view(g.shape[1], x.shape[1], kernel, kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        x, g, kernel = inputs
        ctx.save_for_backward(x, g)
        ctx.save_for_forward(x, g)
        ctx.kernel = kernel

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor, None]:
        x, g = ctx.saved_tensors
        return convolve(g, _turned(v)), convolve(x, v), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dg: Tensor, _: None) -> Tensor:
        x, g = ctx.saved_tensors
        return correlate(dx, g, ctx.kernel) + correlate(x, dg, ctx.kernel)


def _columns(x: Tensor, kernel: int) -> Tensor:
    """The window around every pixel, zeros outside: `(n, C, H, W)` to `(C k k, H W n)`.

    The examples come last, so that long runs of numbers are copied.
    """
    padded = functional.pad(x.permute(1, 2, 3, 0), [0, 0, *[kernel // 2] * 4])
    windows = padded.unfold(1, kernel, 1).unfold(2, kernel, 1)  # (C, H, W, n, k, k)
    return windows.permute(0, 4, 5, 1, 2, 3).flatten(3).flatten(0, 2)


def _turned(weight: Tensor) -> Tensor:
    """The weights `(C, O, k, k)` that carry a gradient back."""
    return weight.transpose(0, 1).flip(2, 3)
