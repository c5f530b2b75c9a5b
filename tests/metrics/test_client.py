import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.counts import Counts
from evenfed.core.errors import DataError
from evenfed.metrics import client

performances = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=40).map(np.array)
shares = st.floats(0.01, 1.0)


def stacked(confusion: list) -> Counts:
    tensor = torch.tensor(confusion, dtype=torch.float64)
    clients, groups = tensor.shape[:2]
    return Counts(tensor, tensor.sum(-1) * 0.5, torch.zeros(clients, groups, 5))


@given(performances)
def test_jain_is_squared_cosine_and_function_of_cv(a):
    cv, jain = client.coefficient_of_variation(a), client.jain_index(a)
    cosine = a.sum() / (np.linalg.norm(a) * np.sqrt(a.size))
    assert jain == pytest.approx(1 / (1 + cv**2), abs=1e-12)
    assert jain == pytest.approx(cosine**2, abs=1e-12)
    assert client.variance(a) == pytest.approx(a.mean() ** 2 * (1 / jain - 1), abs=1e-12)


@given(performances)
def test_angle_is_arctan_of_cv_and_arccos_of_the_cosine(a):
    degrees = client.angle(a)
    assert degrees == pytest.approx(
        np.degrees(np.arctan(client.coefficient_of_variation(a))), abs=1e-9
    )
    cosine = np.clip(a.sum() / (np.linalg.norm(a) * np.sqrt(a.size)), -1, 1)
    # The arc cosine itself is only good to some 1e-8 near 1.
    assert degrees == pytest.approx(np.degrees(np.arccos(cosine)), abs=1e-5)


@given(performances)
def test_kl_is_log_m_minus_entropy(a):
    p = a / a.sum()
    entropy = -np.sum(p * np.log(p))
    assert client.kl_to_uniform(a) == pytest.approx(np.log(a.size) - entropy, abs=1e-12)
    if a.size > 1:
        expected = entropy / np.log(a.size)
        assert client.normalised_entropy(a) == pytest.approx(expected, abs=1e-12)


@given(performances)
def test_gini_is_mean_absolute_difference_over_twice_the_mean(a):
    pairs = np.abs(a[:, None] - a[None, :]).mean()
    assert client.gini(a) == pytest.approx(pairs / (2 * a.mean()), abs=1e-12)


@given(performances, shares)
def test_cvar_is_the_minimum_of_rockafellar_and_uryasev(losses, share):
    # The objective is piecewise linear in c with its kinks at the losses.
    objective = [c + np.maximum(losses - c, 0).mean() / share for c in losses]
    assert client.cvar(losses, share) == pytest.approx(min(objective), abs=1e-10)


@given(performances, st.floats(-20, 20))
def test_tilted_lies_between_extremes_and_on_the_side_of_its_sign(losses, t):
    value = client.tilted(losses, t)
    assert losses.min() - 1e-9 <= value <= losses.max() + 1e-9
    assert np.sign(t) * (value - losses.mean()) >= -1e-9


def test_tilted_does_not_overflow_and_has_its_limits():
    assert client.tilted([1.0, 1.0, 0.5], t=1e-8) == pytest.approx(2.5 / 3, abs=1e-9)
    assert client.tilted([1.0, 1000.0], t=10.0) == pytest.approx(1000 - np.log(2) / 10)
    assert client.tilted([1.0, 1000.0], t=-10.0) == pytest.approx(1 + np.log(2) / 10)
    assert client.tilted([1.0, 2.0], t=1.0) == pytest.approx(np.log((np.e + np.e**2) / 2))


@given(performances, st.floats(0.5, 4.0), st.randoms(use_true_random=False))
def test_relative_measures_ignore_scale_and_order(a, scale, random):
    other = a * scale
    random.shuffle(other)
    for measure in (client.jain_index, client.gini, client.kl_to_uniform, client.parity_ratio):
        assert measure(other) == pytest.approx(measure(a), abs=1e-12)


@pytest.mark.parametrize(
    ("share", "m", "k"), [(0.1, 30, 3), (0.1, 5, 1), (0.05, 39, 1), (0.29, 100, 29), (1.0, 7, 7)]
)
def test_tail_has_max_of_one_and_floor_clients(share, m, k):
    values = np.arange(m, dtype=float)
    assert client.lowest(values, share) == pytest.approx(np.mean(np.arange(k)))
    assert client.highest(values, share) == pytest.approx(np.mean(np.arange(m - k, m)))


def test_hand_computed_example():
    # a = (.2, .6, .7): mean .5, variance (.09 + .01 + .04) / 3.
    metrics = client.client_metrics([0.6, 0.2, 0.7], sizes=[1, 1, 2], tail=0.34)
    expected = {
        "mean": 0.5,
        "weighted_mean": 0.55,
        "variance": 0.14 / 3,
        "std": (0.14 / 3) ** 0.5,
        "min": 0.2,
        "max": 0.7,
        "gap": 0.5,
        "parity_ratio": 2 / 7,
        "worst_tail": 0.2,
        "best_tail": 0.7,
        "jain_index": 2.25 / (3 * 0.89),
        "gini": (-2 * 0.2 + 2 * 0.7) / (3 * 1.5),
        "clients": 3,
        "clients_without_data": 0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_even_clients_score_perfectly_and_one_winner_worst():
    even, winner = client.client_metrics([0.3] * 4), client.client_metrics([0, 0, 0, 1.0])
    for name, best, worst in (
        ("jain_index", 1.0, 0.25),
        ("gini", 0.0, 0.75),
        ("normalised_entropy", 1.0, 0.0),
        ("kl_to_uniform", 0.0, np.log(4)),
        ("angle", 0.0, 60.0),
        ("parity_ratio", 1.0, 0.0),
    ):
        assert (even[name], winner[name]) == pytest.approx((best, worst), abs=1e-12), name


def test_all_zero_accuracies_have_no_relative_measure():
    metrics = client.client_metrics([0.0, 0.0])
    for name in ("coefficient_of_variation", "jain_index", "angle", "gini", "kl_to_uniform"):
        assert np.isnan(metrics[name]), name
    assert metrics["mean"] == metrics["gap"] == 0.0


def test_worst_losses_are_the_highest():
    metrics = client.client_metrics([1.0, 2.0, 3.0], tail=0.34, higher_is_better=False)
    assert (metrics["worst_tail"], metrics["best_tail"]) == (3.0, 1.0)
    assert metrics["cvar"] == pytest.approx((3 + 0.02 * 2) / 1.02)
    assert "cvar" not in client.client_metrics([1.0, 2.0])


def test_clients_without_data_are_left_out_and_counted():
    counts = stacked([[[[3, 1], [0, 0]]], [[[0, 0], [0, 0]]], [[[1, 0], [1, 2]]]])
    accuracies, sizes = client.accuracy(counts), counts.size.numpy()
    np.testing.assert_array_equal(accuracies, [0.75, np.nan, 0.75])
    for metrics in (client.client_metrics(accuracies), client.client_metrics(accuracies, sizes)):
        assert metrics["mean"] == 0.75
        assert (metrics["clients"], metrics["clients_without_data"]) == (2, 1)


def test_diverged_client_is_not_taken_for_one_without_data():
    metrics = client.client_metrics(
        [1.0, np.nan, np.inf, np.nan], sizes=[5, 5, 5, 0], higher_is_better=False
    )
    assert metrics["clients_not_finite"] == 2
    assert metrics["clients_without_data"] == 1
    assert metrics["mean"] == metrics["weighted_mean"] == 1.0


def test_no_client_left_gives_nan_not_an_error():
    metrics = client.client_metrics([np.nan, np.nan])
    assert metrics["clients"] == 0
    assert np.isnan(metrics["mean"])
    assert np.isnan(metrics["worst_tail"])


@pytest.mark.parametrize("values", [[], [np.nan, 1.0], [[1.0]]])
def test_single_measures_refuse_what_they_cannot_use(values):
    with pytest.raises(DataError):
        client.mean(values)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_tail_must_be_a_share(share):
    for measure in (client.lowest, client.cvar):
        with pytest.raises(DataError, match="share"):
            measure([1.0, 2.0], share)


def test_weighted_mean_refuses_sizes_of_another_length():
    with pytest.raises(DataError, match="sizes"):
        client.weighted_mean([1.0, 2.0], [1.0])


def test_regression_has_no_accuracy():
    counts = Counts(torch.ones(2, 1, 1), torch.ones(2, 1), torch.ones(2, 5))
    with pytest.raises(DataError, match="regression"):
        client.accuracy(counts)
    assert client.mean_loss(counts) == 1.0
