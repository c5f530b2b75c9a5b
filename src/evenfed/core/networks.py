"""Layers of the built-in models that PyTorch has not, or not in a form that vmap takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class GRULayer(nn.Module):
    """`nn.GRU` of one layer in matrix operations, with its weights' shapes and draws."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(3 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(3 * hidden))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Turn inputs `(T, n, d)` into the `T` states `(n, hidden)`."""
        parts = (2 * self.hidden, self.hidden)
        gates, proposals = functional.linear(x, self.weight_ih, self.bias_ih).split_with_sizes(
            parts, -1
        )
        state = gates.new_zeros(x.shape[1], self.hidden)
        states = []
        # unbind, not indexing: its backward is one stack instead of a zero-filled copy per step.
        for gate, proposal in zip(gates.unbind(0), proposals.unbind(0), strict=True):
            own_gate, own = functional.linear(state, self.weight_hh, self.bias_hh).split_with_sizes(
                parts, -1
            )
            reset, keep = torch.sigmoid(gate + own_gate).chunk(2, -1)
            candidate = torch.tanh(proposal + reset * own)
            state = candidate + keep * (state - candidate)
            states.append(state)
        return states


class CharGRU(nn.Module):
    """Embedding, GRU layers, and a linear map of the last state."""

    def __init__(
        self, vocabulary: int, outputs: int, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        sizes = (embedding, *[hidden] * layers)
        self.layers = nn.ModuleList(GRULayer(*pair) for pair in pairwise(sizes))
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Turn tokens `(n, T)` into logits `(n, outputs)`."""
        inputs: Tensor = self.embedding(x.transpose(0, 1))
        states: list[Tensor] = []
        for depth, layer in enumerate(self.layers):
            states = layer(inputs if depth == 0 else torch.stack(states))
        logits: Tensor = self.head(states[-1])
        return logits


class ImageLayers(nn.Sequential):
    """Layers that take images with their channels last in memory.

    Values and names of weights are those of `nn.Sequential`; on processors PyTorch pools such
    images several times as fast.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Turn `(n, C, H, W)` into what the last layer gives."""
        # Not `contiguous(memory_format=...)`: vmap has it not, and one channel it leaves alone.
        x = x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)
        for layer in self:
            x = layer(x)
        return x


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions added to a shortcut."""

    def __init__(
        self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv3x3(before, after, stride),
            norm(after),
            nn.ReLU(),
            conv3x3(after, after, 1),
            norm(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            projection = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(after))

    def forward(self, x: Tensor) -> Tensor:
        """Turn `(n, before, H, W)` into `(n, after, H / stride, W / stride)`."""
        return functional.relu(self.residual(x) + self.shortcut(x))


def conv3x3(before: int, after: int, stride: int) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size but for its stride."""
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
