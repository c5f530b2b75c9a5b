"""Second derivatives of an affine layer, against PyTorch's own."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.func import jacrev

from evenfed.core.convexity import affine_curvature
from evenfed.core.examples import Examples
from evenfed.core.task import Task


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "classes", "outputs"),
    [("binary", 2, 1), ("binary", 2, 2), ("multiclass", 3, 3), ("regression", 1, 1)],
)
def test_curvature_is_the_hessian_of_the_mean_loss(
    kind: Literal["binary", "multiclass", "regression"], classes: int, outputs: int, bias: bool
) -> None:
    """Six examples of 2 x 2 features, one of which is padding."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, 2, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    labels = y.double() if kind == "regression" else y
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    data = Examples(x, labels, torch.zeros(6, dtype=torch.int64), weight)

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, outputs, bias=bias)).double()

    task = Task(make, kind, classes=classes, groups=1)
    params = task.init()
    shapes = {name: p.shape for name, p in params.items()}

    def of_vector(v: Any) -> Any:
        parts = v.split([shape.numel() for shape in shapes.values()])
        named = {n: part.reshape(s) for part, (n, s) in zip(parts, shapes.items(), strict=True)}
        return task.mean_loss(named, data)

    expected = jacrev(jacrev(of_vector))(torch.cat([p.flatten() for p in params.values()]))
    torch.testing.assert_close(affine_curvature(task, params, data), expected)
