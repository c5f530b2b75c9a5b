from __future__ import annotations

import numpy as np
import pytest
import torch

from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.data.shift import association, mean_differences, sums


def dataset(*clients: tuple[list[float], list[int], list[int]]) -> FederatedDataset:
    groups = Groups(("sex",), (("f", "m"),))
    schema = Schema("toy", "binary", 2, (1,), features=("age",), groups=groups)
    made = []
    for k, (x, y, group) in enumerate(clients):
        own = Examples.of(torch.tensor(x)[:, None], torch.tensor(y), torch.tensor(group))
        made.append(ClientData(f"c{k}", own, own, own))
    return FederatedDataset(schema, made)


def test_sums_are_those_of_the_training_rows() -> None:
    found = sums(dataset(([1.0, 2.0], [0, 1], [0, 0]), ([5.0], [1], [1])))
    assert found.size.tolist() == [2, 1]
    assert found.cells.tolist() == [[[1, 1], [0, 0]], [[0, 0], [0, 1]]]
    assert found.first.tolist() == [[3.0], [5.0]]
    assert found.second.tolist() == [[5.0], [25.0]]


def test_mean_differences_are_in_spreads_and_standard_errors() -> None:
    """Values 0, 2 and 6, 8: means 1 and 7, spread sqrt(26 - 16), standard error sqrt(1/2 + 1/2)."""
    found = sums(dataset(([0.0, 2.0], [0, 1], [0, 1]), ([6.0, 8.0], [0, 1], [0, 1])))
    largest, by_client = mean_differences(found)
    assert largest is not None
    assert largest.smd == pytest.approx(6 / np.sqrt(10))
    assert largest.z == pytest.approx(6 / np.sqrt(10))
    assert by_client == pytest.approx([6 / np.sqrt(10)] * 2)


def test_association_is_one_where_the_client_tells_the_label_and_small_by_chance() -> None:
    assert association(np.array([[500.0, 0.0], [0.0, 500.0]]))[0] == pytest.approx(1, abs=1e-3)
    rng = np.random.default_rng(0)
    table = np.array([rng.multinomial(100, [0.3, 0.7]) for _ in range(10)], dtype=np.float64)
    v, p = association(table)
    assert v < 0.1
    assert p > 0.01


def test_a_client_or_a_class_without_rows_is_left_out() -> None:
    assert association(np.array([[5.0, 0.0], [0.0, 0.0]])) == (0.0, 1.0)
