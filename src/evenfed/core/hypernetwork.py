"""A network that writes another network's last layers, and one that mixes several such networks.

All weights of a hypernetwork are one vector `beta`: a mean or a mixture of hypernetworks is then
a product of matrices, and a step of an optimizer a few kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

Layers = list[tuple[Tensor, Tensor]]
"""Weights `(N, out, in)` and biases `(N, out)` of N networks, layer by layer."""


def _first(shapes: Sequence[tuple[int, int]], generator: torch.Generator) -> list[Tensor]:
    """Weights and biases of linear layers (out, in), drawn as `nn.Linear` does."""
    return [
        (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(width)
        for out, width in shapes
        for shape in ((out, width), (out,))
    ]


@dataclass(frozen=True)
class Hypernetwork:
    """`h_beta`: from a ray to the weights of a classifier of latent features.

    The trunk, linear layers with ReLU between them, turns the ray into an embedding. From it one
    linear map reads out every weight and bias of the classifier.

    Parameters
    ----------
    latent, outputs : int
        Numbers that enter and leave the classifier.
    head : tuple of int
        Widths of its hidden layers.
    trunk : tuple of int
        Widths of the trunk's layers.
    activation : {"none", "relu"}
        Between the classifier's layers; with "none" it is an affine map.

    Examples
    --------
    >>> Hypernetwork(latent=4, outputs=2, head=(4,), trunk=(4, 4)).size
    182
    """

    latent: int
    outputs: int
    head: tuple[int, ...] = (4,)
    trunk: tuple[int, ...] = (4, 4)
    activation: Literal["none", "relu"] = "none"

    @property
    def written(self) -> list[tuple[int, int]]:
        """(out, in) of the classifier's layers."""
        sizes = (self.latent, *self.head, self.outputs)
        return [(out, width) for width, out in pairwise(sizes)]

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(out, in) of the hypernetwork's own layers; the last one reads out."""
        numbers = sum(out * (width + 1) for out, width in self.written)
        return [(out, width) for width, out in pairwise((2, *self.trunk, numbers))]

    @property
    def size(self) -> int:
        """Numbers in `beta`."""
        return sum(out * (width + 1) for out, width in self.layers)

    def first(self, generator: torch.Generator) -> Tensor:
        """A first `beta` `(size,)`, drawn as PyTorch draws linear layers."""
        return torch.cat([part.reshape(-1) for part in _first(self.layers, generator)])

    def classifiers(self, beta: Tensor, rays: Tensor) -> Layers:
        """The classifiers of rays `(N, 2)`, from one `beta` `(size,)` or one a ray `(N, size)`."""
        own = beta.ndim == 2
        if own:
            written = vmap(self._written)(beta, rays.unsqueeze(1)).squeeze(1)
        else:
            written = self._written(beta, rays)
        made, begin = [], 0
        for out, width in self.written:
            weight = written[:, begin : begin + out * width].reshape(-1, out, width)
            begin += out * width
            made.append((weight, written[:, begin : begin + out]))
            begin += out
        return made

    def _written(self, beta: Tensor, rays: Tensor) -> Tensor:
        """All numbers of the classifiers of rays `(N, 2)`."""
        value, begin = rays, 0
        for depth, (out, width) in enumerate(self.layers):
            weight = beta[begin : begin + out * width].view(out, width)
            begin += out * width
            if 0 < depth < len(self.layers) - 1:
                value = value.relu()
            value = value @ weight.mT + beta[begin : begin + out]
            begin += out
        return value

    def collapsed(self, layers: Layers) -> Layers:
        """Affine layers one after the other as one; with ReLU between them, as they are."""
        if self.activation == "relu" or len(layers) == 1:
            return layers
        weight, bias = layers[0]
        for after, shift in layers[1:]:
            weight = after @ weight
            bias = (after @ bias.unsqueeze(-1)).squeeze(-1) + shift
        return [(weight, bias)]

    def outputs_of(self, layers: Layers, features: Tensor) -> Tensor:
        """Outputs `(N, B, outputs)` of N classifiers for features `(B, latent)`."""
        (weight, bias), *rest = self.collapsed(layers)
        n, out, _ = weight.shape
        # all models in one product
        value = (features @ weight.reshape(n * out, -1).mT).view(-1, n, out).transpose(0, 1)
        value = value + bias.unsqueeze(1)
        for weight, bias in rest:
            value = value.relu() @ weight.mT + bias.unsqueeze(1)
        return value

    def module(self, layers: Layers, index: int = 0) -> nn.Sequential:
        """One classifier as a module: one linear layer, or several with ReLU between them."""
        made: list[nn.Module] = []
        for weight, bias in self.collapsed(layers):
            linear = nn.Linear(weight.shape[2], weight.shape[1])
            linear.load_state_dict({"weight": weight[index].clone(), "bias": bias[index].clone()})
            made += [linear, nn.ReLU()]
        return nn.Sequential(*made[:-1])


@dataclass(frozen=True)
class FusionNet:
    """`W_phi`: from a ray to weights over K hypernetworks, at least 0 and with sum 1.

    Linear layers with ReLU between them and a softmax; the last layer starts at zero, so that
    the first weights are equal ones.

    Examples
    --------
    >>> net = FusionNet(count=3, hidden=(16,))
    >>> net.weights(net.first(torch.Generator()), torch.tensor([[0.5, 0.5]]))
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    count: int
    hidden: tuple[int, ...] = (16,)

    def first(self, generator: torch.Generator) -> dict[str, Tensor]:
        """A first `phi`."""
        sizes = (2, *self.hidden, self.count)
        drawn = _first([(out, width) for width, out in pairwise(sizes)], generator)
        drawn[-2:] = [torch.zeros_like(part) for part in drawn[-2:]]
        return {f"{'wb'[i % 2]}{i // 2}": part for i, part in enumerate(drawn)}

    def weights(self, phi: dict[str, Tensor], rays: Tensor) -> Tensor:
        """Weights `(N, K)` for rays `(N, 2)`."""
        value = rays
        for depth in range(len(self.hidden) + 1):
            value = value.relu() if depth else value
            value = value @ phi[f"w{depth}"].mT + phi[f"b{depth}"]
        return value.softmax(-1)
