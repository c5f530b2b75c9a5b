"""Whether a task's loss is convex in the parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from evenfed.core.examples import Examples
from evenfed.core.task import Params, Task


def why_not_convex(task: Task) -> str:
    """The reason why the loss is not known to be convex in the parameters; empty if it is.

    It is for one affine layer with a built-in loss: cross-entropy, logistic or squared error.

    Examples
    --------
    >>> from evenfed.core.models import linear, mlp
    >>> why_not_convex(Task(lambda: linear(3, 2), "binary", classes=2, groups=2))
    ''
    >>> why_not_convex(Task(lambda: mlp(3, 2), "binary", classes=2, groups=2))
    'the model is not one affine layer'
    """
    if task.loss is not None:
        return "convexity of a loss of your own is not known"
    layers = list(task.template.modules())
    known = all(type(m) in (nn.Sequential, nn.Flatten, nn.Identity, nn.Linear) for m in layers)
    if not known or sum(isinstance(m, nn.Linear) for m in layers) != 1:
        return "the model is not one affine layer"
    if not all(p.requires_grad for p in task.template.parameters()):
        return "some parameters of the model are fixed"
    return ""


def affine_curvature(task: Task, params: Params, data: Examples) -> Tensor:
    """Second derivatives `(P, P)` of the mean loss of one affine layer, in the order of `params`.

    With features `x` (and a 1 for the bias) and `h = d^2 l / d out^2` of an example it is the mean
    of `h_ce x_i x_j` for weights `(c, i)` and `(e, j)`.
    """
    names = list(params)
    features = data.x.flatten(1)  # (n, d)
    if any(name.endswith("bias") for name in names):
        features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    outputs = task.outputs(params, data.x)
    shape = outputs.shape[1:]

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return task.losses(out.reshape(1, *shape), y[None]).squeeze(0)

    bent = vmap(jacrev(jacrev(loss)))(outputs.flatten(1) if shape else outputs[:, None], data.y)
    bent = bent * (data.weight / data.weight.sum().clamp(min=1))[:, None, None]
    count = bent.shape[-1]
    rows = [
        torch.cat([features.T @ (features * bent[:, c, e, None]) for e in range(count)], 1)
        for c in range(count)
    ]
    order = _places(params, count).to(features.device)
    return torch.cat(rows).index_select(0, order).index_select(1, order)


def _places(params: Params, count: int) -> Tensor:
    """Where each parameter stands among outputs times (features and bias)."""
    inputs = sum(p.numel() for p in params.values()) // count
    grid = torch.arange(count * inputs).reshape(count, inputs)
    parts = [
        grid[:, -1] if name.endswith("bias") else grid[:, : p.numel() // count]
        for name, p in params.items()
    ]
    return torch.cat([part.reshape(-1) for part in parts])
