from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.errors import ConfigError
from evenfed.engines.participation import Participation


@given(st.integers(1, 200), st.floats(0.01, 1.0), st.integers(0, 1000), st.integers(0, 50))
def test_a_cohort_is_a_set_of_the_asked_size(
    clients: int, fraction: float, seed: int, round: int
) -> None:
    p = Participation(fraction=fraction)
    cohort = p.sample(clients, None, seed, round)
    assert len(cohort) == max(1, int(np.round(fraction * clients)))
    assert (np.diff(cohort) > 0).all()
    assert cohort.min() >= 0
    assert cohort.max() < clients
    assert np.array_equal(cohort, p.sample(clients, None, seed, round))


def test_a_number_goes_before_a_fraction() -> None:
    assert len(Participation(fraction=0.5, number=3).sample(20, None, 0, 0)) == 3
    assert Participation().sample(4, None, 0, 0).tolist() == [0, 1, 2, 3]


def test_rounds_and_seeds_draw_other_cohorts() -> None:
    p = Participation(number=10)
    cohorts = {tuple(p.sample(1000, None, seed, t)) for seed in range(3) for t in range(5)}
    assert len(cohorts) == 15


def test_uniform_sampling_draws_everybody_alike() -> None:
    p = Participation(number=2)
    seen = np.bincount(np.concatenate([p.sample(5, None, 0, t) for t in range(2000)]), minlength=5)
    # 800 expected each; a binomial's standard deviation is 22
    assert (np.abs(seen - 800) < 5 * 22).all()


def test_sampling_by_size_draws_in_proportion() -> None:
    p = Participation(number=1, sampling="size")
    sizes = np.array([1, 2, 3, 4])
    seen = np.bincount(np.concatenate([p.sample(4, sizes, 0, t) for t in range(3000)]), minlength=4)
    expected = 3000 * sizes / 10
    assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()


def test_sampling_by_size_needs_sizes() -> None:
    with pytest.raises(ConfigError, match="uniform"):
        Participation(number=1, sampling="size").sample(4, None, 0, 0)


def test_the_cost_does_not_grow_with_the_population() -> None:
    p = Participation(number=1000)
    p.sample(10**4, None, 0, 0)
    begin = time.perf_counter()
    cohort = p.sample(10**9, None, 0, 0)
    # a permutation of 10^9 would take 8 GB and many seconds
    assert time.perf_counter() - begin < 1.0
    assert len(np.unique(cohort)) == 1000


def fates(p: Participation, n: int = 4000) -> np.ndarray:
    return np.array([p.fate(seed=3, round=1, key=k) for k in range(n)])


def test_without_faults_everybody_answers() -> None:
    assert (fates(Participation(), 100) == 1).all()


def test_dropout_has_its_rate() -> None:
    # standard deviation of the share: sqrt(0.3 * 0.7 / 4000) = 0.007
    assert abs((fates(Participation(dropout=0.3)) == 0).mean() - 0.3) < 0.03
    assert (fates(Participation(dropout=1.0), 100) == 0).all()


def test_late_clients_are_dropped_or_send_part_of_their_work() -> None:
    dropped = fates(Participation(straggler=0.4))
    assert set(np.unique(dropped)) == {0.0, 1.0}
    assert abs((dropped == 0).mean() - 0.4) < 0.03
    partial = fates(Participation(straggler=0.4, late="partial"))
    late = partial[partial < 1]
    assert (late > 0).all()
    assert abs(len(late) / len(partial) - 0.4) < 0.03
    assert abs(late.mean() - 0.5) < 0.05, "a uniform share"


def test_a_fate_follows_from_seed_round_and_client() -> None:
    p = Participation(dropout=0.5)
    table = np.array([[p.fate(0, t, k) for k in range(40)] for t in range(5)])
    assert np.array_equal(table, [[p.fate(0, t, k) for k in range(40)] for t in range(5)])
    assert len({tuple(row) for row in table}) == 5


@pytest.mark.parametrize(
    ("quorum", "cohort", "needed"),
    [(0.0, 10, 1), (0.5, 10, 5), (0.55, 10, 6), (1.0, 10, 10), (0.07, 100, 7), (0.55, 100, 55)],
)
def test_a_quorum_is_rounded_up(quorum: float, cohort: int, needed: int) -> None:
    assert Participation(quorum=quorum).required(cohort) == needed


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"fraction": 0.0}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"number": -1}, "number"),
        ({"dropout": 1.5}, "dropout"),
        ({"straggler": -0.1}, "straggler"),
        ({"quorum": 2.0}, "quorum"),
        ({"sampling": "sizes"}, "'size'"),
        ({"late": "wait"}, "'partial'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Participation(**options)


def test_a_cohort_larger_than_the_population_is_refused() -> None:
    with pytest.raises(ConfigError, match="only 3 clients"):
        Participation(number=5).cohort_size(3)
