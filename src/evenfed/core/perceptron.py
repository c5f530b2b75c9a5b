"""Plain perceptrons: which weights belong to which layer, for methods that match neurons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenfed.core.errors import NotApplicableError
from evenfed.core.task import Params

_ELEMENTWISE = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU,
    nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Softsign, nn.Tanh,
)  # fmt: skip
"""Act on every neuron alike and by itself, so that neurons may change places."""


@dataclass(frozen=True)
class Dense:
    """Names of the weights of one fully connected layer."""

    weight: str
    bias: str | None

    def of(self, params: Params) -> Params:
        """The layer's part of a model's weights."""
        return {name: params[name] for name in (self.weight, self.bias) if name is not None}


def dense_layers(owner: str, module: nn.Module) -> tuple[Dense, ...]:
    """The layers of a plain perceptron with at least one hidden layer, from input to output.

    Examples
    --------
    >>> [layer.weight for layer in dense_layers("x", nn.Sequential(
    ...     nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))]
    ['0.weight', '2.weight']
    """
    layers: list[Dense] = []
    for name, part in _leaves("", module):
        if isinstance(part, nn.Linear):
            prefix = f"{name}." if name else ""
            layers.append(
                Dense(f"{prefix}weight", f"{prefix}bias" if part.bias is not None else None)
            )
        elif not isinstance(part, _ELEMENTWISE) and not (
            isinstance(part, nn.Flatten) and not layers
        ):
            raise _refused(owner, f"'{name}' is a {type(part).__name__}" if name else
                           f"the model is a {type(part).__name__}")  # fmt: skip
    if len(layers) < 2:
        raise _refused(owner, "the model has no hidden layer")
    if not all(p.requires_grad for p in module.parameters()):
        raise _refused(owner, "some weights are frozen")
    return tuple(layers)


def _leaves(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of nested `nn.Sequential`, in the order in which they are applied."""
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from _leaves(f"{prefix}.{name}" if prefix else name, child)


def _refused(owner: str, why: str) -> NotApplicableError:
    return NotApplicableError(
        f"{owner} needs a plain perceptron: nn.Sequential of nn.Linear, elementwise activations "
        f"between them, at least one hidden layer, as model='mlp'; {why}"
    )


def cut(layers: Sequence[Dense], params: Params, places: Sequence[Tensor]) -> Params:
    """The part of a network at some of its hidden neurons.

    Parameters
    ----------
    params : Params
        Weights of a network whose hidden layers may be wider than the module's.
    places : sequence of Tensor `(L_n,)`, int64
        For every hidden layer, which neurons to take, in order.
    """
    part: Params = {}
    for n, layer in enumerate(layers):
        weight = params[layer.weight]
        if n > 0:
            weight = weight[:, places[n - 1]]
        rows = places[n] if n < len(places) else torch.arange(len(weight), device=weight.device)
        part[layer.weight] = weight[rows]
        if layer.bias is not None:
            part[layer.bias] = params[layer.bias][rows]
    return part
