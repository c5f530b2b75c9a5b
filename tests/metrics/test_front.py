from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.counts import Counts
from evenfed.core.errors import DataError
from evenfed.metrics import front
from evenfed.metrics.group import demographic_parity_difference

coordinate = st.integers(0, 12).map(lambda i: i / 10)
point_sets = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=12)


def of_classes(labels: list) -> Counts:
    cells = torch.tensor(labels, dtype=torch.float64)
    confusion = torch.diag_embed(cells)
    return Counts(confusion, torch.zeros_like(cells), torch.zeros(len(cells), 5))


def area_by_grid(points, reference):
    """Sum of the cells of a grid through all coordinates that some point dominates."""
    xs = sorted({min(x, reference[0]) for x, _ in points} | {reference[0]})
    ys = sorted({min(y, reference[1]) for _, y in points} | {reference[1]})
    return sum(
        (x2 - x1) * (y2 - y1)
        for x1, x2 in pairwise(xs)
        for y1, y2 in pairwise(ys)
        if any(x <= x1 and y <= y1 for x, y in points)
    )


@given(point_sets, st.sampled_from([(1.0, 1.0), (1.0, 0.25), (0.55, 0.85)]))
def test_hypervolume_is_the_area_of_the_dominated_grid(points, reference):
    expected = area_by_grid(points, reference)
    assert front.hypervolume(points, reference) == pytest.approx(expected, abs=1e-12)


@given(point_sets)
def test_nondominated_is_what_no_other_point_beats(points):
    seen, expected = set(), []
    for x, y in points:
        beaten = any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
        expected.append(not beaten and (x, y) not in seen)
        seen.add((x, y))
    assert front.nondominated(points).tolist() == expected
    kept = np.array(points)[front.nondominated(points)]
    assert front.hypervolume(kept) == pytest.approx(front.hypervolume(points), abs=1e-12)


@given(point_sets)
def test_hypervolume_is_the_integral_of_accuracy_at_disparity(points):
    # On a grid of tenths the best accuracy is constant between two of its lines.
    accuracies = [front.accuracy_at_disparity(points, i / 10) for i in range(10)]
    integral = np.sum(np.clip(np.nan_to_num(accuracies), 0, None)) / 10
    assert front.hypervolume(points) == pytest.approx(integral, abs=1e-12)


def test_single_model_is_accuracy_times_one_minus_disparity():
    assert front.hypervolume([[0.2, 0.1]]) == pytest.approx(0.8 * 0.9)


def test_constant_predictor_is_the_majority_over_all_groups():
    # Labels by group (3, 1) and (2, 6): five of class 0, seven of class 1.
    constant = front.constant_predictor(of_classes([[3, 1], [2, 6]]))
    assert (constant.label, constant.point) == (1, pytest.approx((5 / 12, 0.0)))
    assert constant.hypervolume() == pytest.approx(7 / 12)
    assert constant.hypervolume((1.0, 0.2)) == pytest.approx(7 / 12 * 0.2)


def test_front_points_are_error_and_disparity_of_every_model():
    rng = np.random.default_rng(0)
    confusion = torch.tensor(rng.integers(1, 9, (5, 2, 2, 2)), dtype=torch.float64)
    counts = Counts(confusion, torch.zeros(5, 2, 2), torch.zeros(5, 2, 5))
    points = front.front_points(counts, demographic_parity_difference)
    for i in range(5):
        c = confusion[i].numpy()
        rates = c[:, :, 1].sum(1) / c.sum((1, 2))
        error = 1 - (c[:, 0, 0] + c[:, 1, 1]).sum() / c.sum()
        assert points[i] == pytest.approx([error, abs(rates[0] - rates[1])])


def test_front_metrics_always_hold_the_constant_predictor_beside():
    counts = of_classes([[9, 1]])
    points = [[0.05, 0.2], [0.1, 0.04], [0.3, 0.3], [np.nan, 0.1]]
    metrics = front.front_metrics(points, counts, tight=(1.0, 0.1), limits=(0.05, 0.01))
    expected = {
        "hypervolume": 0.9 * 0.96 + 0.05 * 0.8,
        "hypervolume_constant": 0.9,
        "hypervolume_tight": 0.9 * 0.06,
        "hypervolume_tight_constant": 0.09,
        "tight_error": 1.0,
        "tight_disparity": 0.1,
        "best_accuracy": 0.95,
        "best_accuracy_constant": 0.9,
        "accuracy_at_disparity_0.05": 0.9,
        "accuracy_at_disparity_0.05_constant": 0.9,
        "accuracy_at_disparity_0.01": np.nan,
        "accuracy_at_disparity_0.01_constant": 0.9,
        "points": 3,
        "points_undefined": 1,
        "points_nondominated": 2,
    }
    assert metrics == pytest.approx(expected, nan_ok=True)
    assert "hypervolume_tight" not in front.front_metrics(points, counts)


@given(point_sets, coordinate, st.sampled_from([0, 1]))
def test_what_is_least_within_a_limit_is_beaten_by_no_point(points, limit, column):
    chosen = front.least(points, column, limit)
    allowed = [p for p in points if p[1 - column] <= limit]
    if not allowed:
        assert chosen is None
        return
    assert chosen is not None
    x, y = points[chosen]
    assert points[chosen][column] == min(p[column] for p in allowed)
    assert not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)
    assert (x, y) not in points[chosen + 1 :], "of equal points the last"


def test_points_without_a_disparity_are_never_the_least():
    points = [[0.1, np.nan], [0.2, 0.3]]
    assert front.least(points, 0) == front.least(points, 1) == 1
    assert front.least(points[:1], 0) is None


def test_no_points_have_no_area():
    assert front.hypervolume([]) == 0.0
    metrics = front.front_metrics([], front.ConstantPredictor(0, 0.3))
    assert (metrics["hypervolume"], metrics["points_nondominated"]) == (0.0, 0.0)
    assert np.isnan(metrics["best_accuracy"])


def test_unusable_points_and_counts_are_refused():
    with pytest.raises(DataError, match="point 1 is NaN"):
        front.hypervolume([[0.1, 0.1], [0.1, np.nan]])
    with pytest.raises(DataError, match="rows"):
        front.nondominated([[0.1, 0.1, 0.1]])
    with pytest.raises(DataError, match="all zero"):
        front.constant_predictor(of_classes([[0, 0]]))
    with pytest.raises(DataError, match="classification"):
        front.constant_predictor(Counts(torch.ones(1, 1, 1), torch.ones(1, 1), torch.ones(1, 5)))
