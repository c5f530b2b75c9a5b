from __future__ import annotations

import torch

from evenfed.core.examples import Examples


def some(n: int = 4) -> Examples:
    return Examples.of(
        torch.arange(2.0 * n).view(n, 2), torch.arange(n), torch.arange(n).remainder(2)
    )


def test_without_groups_all_are_in_group_zero() -> None:
    data = Examples.of(torch.zeros(3, 1), torch.zeros(3))
    assert data.group.tolist() == [0, 0, 0]
    assert data.group.dtype == torch.int64
    assert data.mask.all()


def test_padding_is_marked_and_repeats_a_real_row() -> None:
    data = some(3).padded(5)
    assert len(data) == 5
    assert data.mask.tolist() == [True, True, True, False, False]
    assert data.weight.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert data.x[3:].tolist() == [data.x[0].tolist()] * 2
    assert data.y[3:].tolist() == [0, 0]


def test_padding_to_a_smaller_size_changes_nothing() -> None:
    data = some(3)
    assert data.padded(3) is data
    assert data.padded(2) is data


def test_take_keeps_rows_together() -> None:
    for rows in (torch.tensor([2, 0]), torch.tensor([True, False, True, False])):
        taken = some().take(rows)
        assert sorted(taken.y.tolist()) == [0, 2]
        assert (taken.x[:, 0] == 2 * taken.y).all()
        assert (taken.group == taken.y % 2).all()


def test_concatenation_keeps_order_and_masks() -> None:
    joined = Examples.concatenate([some(2).padded(3), some(3)])
    assert joined.y.tolist() == [0, 1, 0, 0, 1, 2]
    assert joined.mask.tolist() == [True, True, False, True, True, True]
