"""Softmax with the classes first is softmax."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from evenfed.core.softmax import log_softmax, softmax


@pytest.mark.parametrize("shape", [(3, 2), (100, 2), (4, 50, 3), (2, 100, 16), (0, 2), (5, 1)])
@pytest.mark.parametrize("form", [softmax, log_softmax])
def test_values_and_gradients_are_those_of_the_plain_form(shape: tuple[int, ...], form) -> None:  # type: ignore[no-untyped-def]
    plain = getattr(torch.Tensor, form.__name__)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    factor = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(form(x), plain(x, -1))
    slope = grad(lambda t: (form(t) * factor).sum())(x)
    torch.testing.assert_close(slope, grad(lambda t: (plain(t, -1) * factor).sum())(x))
    stacked = torch.stack([x, 2 * x])
    torch.testing.assert_close(vmap(form)(stacked), plain(stacked, -1))


def test_an_exported_program_takes_any_number_of_rows() -> None:
    class Shares(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return softmax(x)

    rows = torch.export.Dim("rows")
    program = torch.export.export(Shares(), (torch.randn(9, 2),), dynamic_shapes=({0: rows},))
    many = torch.randn(500, 2)
    torch.testing.assert_close(program.module()(many), many.softmax(-1))
