from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.options import EngineOptions
from evenfed.engines.stacking import (
    Steps,
    capacities,
    finite_rows,
    grid_capacity,
    grow,
    stack_examples,
)
from evenfed.methods.fedavg import FedAvg


def part(n: int, start: float = 0.0) -> Examples:
    x = start + torch.arange(2.0 * n).view(n, 2)
    return Examples.of(x, torch.arange(n), torch.zeros(n, dtype=torch.int64))


def computed(found: dict[int, int], sizes: list[int]) -> int:
    """Rows of one pass over all clients; one that is alone in its capacity is computed twice."""
    alone = Counter(found[size] for size in sizes)
    return sum(capacity * max(2, clients) for capacity, clients in alone.items())


def by_waste(sizes: list[int]) -> dict[int, int]:
    """Capacities that waste at most 15 %, whoever is alone."""
    found: dict[int, int] = {}
    rest = sorted(set(sizes))
    while rest:
        group = [size for size in rest if size <= 1.15 * rest[0]]
        found.update(dict.fromkeys(group, group[-1]))
        rest = rest[len(group) :]
    return found


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40))
def test_capacities_hold_every_size_with_little_padding(sizes: list[int]) -> None:
    found, plain = capacities(np.array(sizes)), by_waste(sizes)
    assert set(found) == set(sizes)
    for size, capacity in found.items():
        assert capacity in found, "a capacity is the size of some client"
        assert size <= capacity
    assert computed(found, sizes) <= computed(plain, sizes)
    if 1 not in Counter(plain[size] for size in sizes).values():
        assert found == plain


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([100, 60], {60: 100, 100: 100}),  # 2 * 100 rows instead of 2 * 160
        ([100, 100, 60], {60: 100, 100: 100}),  # 300 instead of 320
        ([100, 100, 40], {40: 40, 100: 100}),  # 280 instead of 300
        ([100, 60, 60, 60], {60: 60, 100: 100}),  # 380 instead of 400
        ([100, 60, 60], {60: 100, 100: 100}),  # 300 instead of 320
        ([100, 100, 50, 50], {50: 50, 100: 100}),  # nobody is alone
    ],
)
def test_a_client_alone_joins_others_where_that_is_less_work(
    sizes: list[int], expected: dict[int, int]
) -> None:
    assert capacities(np.array(sizes)) == expected


def test_a_smaller_cohort_has_fewer_capacities() -> None:
    sizes = np.array([100 * 1.2**i for i in range(10)]).astype(np.int64)
    all_of_them, half = (len(set(capacities(sizes, share).values())) for share in (1.0, 0.5))
    assert half < all_of_them == 5


STEPS = st.none() | st.builds(
    Steps, st.integers(1, 20), st.integers(1, 400), st.integers(10, 10**6), st.integers(1, 20)
)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.floats(0.01, 1), STEPS)
def test_no_other_way_to_join_sizes_is_less_work(
    sizes: list[int], share: float, steps: Steps | None
) -> None:
    plain = sorted(set(by_waste(sizes).values()))
    counts = Counter(by_waste(sizes)[size] for size in sizes)

    def work(ends: tuple[int, ...]) -> float:
        """Of capacities at these positions of `plain`."""
        total, begin = 0.0, 0
        for end in ends:
            k = sum(counts[c] for c in plain[begin : end + 1])
            alone = k * share * (1 - share) ** (k - 1)
            each = plain[end] if steps is None else steps.client(plain[end])
            total += each * (k * share + alone)
            if steps is not None:
                total += steps.call * (1 - (1 - share) ** k)
            begin = end + 1
        return total

    last = len(plain) - 1
    ways = [
        (*some, last) for n in range(len(plain)) for some in itertools.combinations(range(last), n)
    ]
    found = sorted(set(capacities(np.array(sizes), share, steps).values()))
    assert work(tuple(plain.index(c) for c in found)) <= min(map(work, ways)) * (1 + 1e-9)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.floats(0.01, 1), STEPS)
def test_clients_without_examples_are_not_padded(
    sizes: list[int], share: float, steps: Steps | None
) -> None:
    """There is no row that could be repeated."""
    found = capacities(np.array([0, *sizes]), share, steps)
    assert [size for size, capacity in found.items() if capacity == 0] == [0]


@pytest.mark.parametrize(("steps", "expected"), [(4, {200}), (0, {20, 90, 200})])
def test_clients_with_as_many_steps_share_a_call(
    steps: int,
    expected: set[int],
    make_dataset: Callable[..., FederatedDataset],
    train_rounds: Callable[..., Any],
    distance: Callable[..., float],
) -> None:
    data = make_dataset(sizes=[20, 20, 90, 90, 200, 200])
    method = FedAvg(local=LocalTraining(lr=0.1, batch=10, steps=steps))
    trained = train_rounds(method, data, "vectorized")
    tables = trained.runner.federation.engine._capacities
    (table,) = (t for (_, split, _), t in tables.items() if split == "train")
    assert set(table.values()) == expected
    alone = train_rounds(method, data, "sequential")
    assert distance(trained.server, alone.server) < 1e-6
    for chunk in (1, 2, 4):
        again = train_rounds(method, data, EngineOptions("vectorized", workers=1, chunk=chunk))
        assert torch.equal(again.everything, trained.everything)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.randoms())
def test_capacities_do_not_depend_on_the_order(sizes: list[int], random: object) -> None:
    shuffled = list(sizes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert capacities(np.array(sizes)) == capacities(np.array(shuffled))


@given(st.integers(0, 10**7))
def test_grid_capacity_wastes_at_most_an_eighth(size: int) -> None:
    assert size <= grid_capacity(size) <= size * 1.125
    assert grid_capacity(grid_capacity(size)) == grid_capacity(size)


def test_stacked_examples_are_the_padded_parts() -> None:
    parts = [part(3), part(2, 100.0), part(3, 200.0)]
    stacked = stack_examples(parts, 3)
    assert stacked.x.shape == (3, 3, 2)
    assert stacked.mask.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    padded = trees.stack([p.padded(3) for p in parts])
    for ours, theirs in zip(trees.leaves(stacked), trees.leaves(padded), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_neighbours_in_memory_are_stacked_without_a_copy() -> None:
    table = torch.randn(12, 2)
    pieces = [Examples.of(table[i : i + 3], torch.zeros(3)) for i in (0, 4, 8)]
    stacked = stack_examples(pieces, 3)
    assert stacked.x.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
    assert torch.equal(stacked.x, torch.stack([p.x for p in pieces]))


def test_rows_that_overlap_or_run_backwards_are_copied_right() -> None:
    table = torch.randn(12, 2)
    for offsets in ((0, 2, 4), (8, 4, 0), (0, 4, 6), (5, 5, 5)):
        pieces = [Examples.of(table[i : i + 3], torch.zeros(3)) for i in offsets]
        assert torch.equal(stack_examples(pieces, 3).x, torch.stack([p.x for p in pieces]))


def test_columns_of_a_table_are_stacked_right() -> None:
    table = torch.randn(6, 4)
    pieces = [Examples.of(table[i : i + 3, ::2], torch.zeros(3)) for i in (0, 3)]
    assert torch.equal(stack_examples(pieces, 3).x, torch.stack([p.x for p in pieces]))


def test_grow_pads_with_zeros_at_the_end() -> None:
    grown = grow({"a": torch.ones(2, 1)}, {"a": torch.empty(3, 2)})
    assert grown["a"].tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]


def test_finite_rows_finds_every_kind_of_bad_number() -> None:
    values = torch.ones(5, 3)
    values[1, 0], values[2, 2] = float("nan"), float("inf")
    values[3, 0], values[3, 1] = float("inf"), float("-inf")
    tree = {"a": values, "count": torch.ones(5, dtype=torch.int64), "none": torch.zeros(5, 0)}
    assert finite_rows(tree, 5).tolist() == [True, False, False, False, True]


def test_large_finite_numbers_are_finite() -> None:
    largest = torch.finfo(torch.float32).max
    assert finite_rows({"a": torch.full((2, 1000), largest)}, 2).tolist() == [True, True]


def test_scalars_are_rows_too() -> None:
    assert finite_rows(torch.tensor([1.0, float("nan")]), 2).tolist() == [True, False]


def test_only_what_is_asked_twice_is_kept_stacked(
    binary: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    def kept(rounds: int) -> int:
        trained = train_rounds(FedAvg(), binary, "vectorized", rounds=rounds, evaluate=False)
        return len(trained.runner.federation.engine._stacked)

    assert kept(1) == 0
    assert kept(2) > 0
