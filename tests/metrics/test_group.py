import warnings

import fairlearn.metrics as fm
import numpy as np
import pytest
import sklearn.metrics as skm
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenfed.core.counts import Counts, count_classes, count_values
from evenfed.core.errors import ConfigError, DataError
from evenfed.metrics import group, regression

EXACT = {"rel": 0, "abs": 1e-12, "nan_ok": True}
GROUPS = 4

# Fairlearn takes no single row.
rows = st.integers(2, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 1), min_size=n, max_size=n),
        st.lists(st.integers(0, 1), min_size=n, max_size=n),
        st.lists(st.integers(0, GROUPS - 1), min_size=n, max_size=n),
    ).map(lambda columns: tuple(np.array(c) for c in columns))
)
quick = settings(max_examples=40, deadline=None)


def count(y, p, z, groups=GROUPS, classes=2, loss=None) -> Counts:
    y, p, z = (torch.as_tensor(np.asarray(v), dtype=torch.int64) for v in (y, p, z))
    one = torch.ones(len(y), dtype=torch.float64)
    loss = one if loss is None else torch.as_tensor(loss)
    return count_classes(p, y, z, loss, one, groups, classes)


def random_rows(rng, n, groups, classes=2):
    return rng.integers(0, classes, n), rng.integers(0, classes, n), rng.integers(0, groups, n)


FAIRLEARN = [
    (group.demographic_parity_difference, fm.demographic_parity_difference),
    (group.demographic_parity_ratio, fm.demographic_parity_ratio),
    (group.equal_opportunity_difference, fm.equal_opportunity_difference),
    (group.equal_opportunity_ratio, fm.equal_opportunity_ratio),
    (group.equalized_odds_difference, fm.equalized_odds_difference),
]


@quick
@given(rows)
def test_zero_mode_agrees_with_fairlearn_with_empty_groups_and_cells(data):
    y, p, z = data
    counts = count(y, p, z)
    for ours, theirs in FAIRLEARN:
        expected = theirs(y, p, sensitive_features=z)
        assert float(ours(counts, empty="zero")) == pytest.approx(expected, **EXACT), theirs


@quick
@given(rows)
def test_omit_mode_agrees_with_fairlearn_without_empty_cells(data):
    # One example of every (group, label) fills every cell.
    y, p, z = (
        np.concatenate([a, b])
        for a, b in zip(
            data,
            (np.arange(8) % 2, np.array([0, 1, 1, 0, 1, 1, 0, 0]), np.arange(8) // 2),
            strict=True,
        )
    )
    counts = count(y, p, z)
    for ours, theirs in FAIRLEARN:
        expected = theirs(y, p, sensitive_features=z)
        assert float(ours(counts)) == pytest.approx(expected, **EXACT), theirs


@quick
@given(rows)
def test_to_overall_and_accuracy_agree_with_fairlearn(data):
    y, p, z = data
    counts = count(y, p, z)
    frame = fm.MetricFrame(
        metrics={"accuracy": skm.accuracy_score, "selection": fm.selection_rate},
        y_true=y,
        y_pred=p,
        sensitive_features=z,
    )
    values = group.group_values(counts, empty="zero")
    expected = {
        "accuracy": frame.overall["accuracy"],
        "accuracy_group_min": frame.group_min()["accuracy"],
        "accuracy_difference": frame.difference()["accuracy"],
        "accuracy_ratio": frame.ratio()["accuracy"],
        "demographic_parity_to_overall": frame.difference(method="to_overall")["selection"],
    }
    assert {k: float(values[k]) for k in expected} == pytest.approx(expected, **EXACT)


@quick
@given(rows)
def test_equalized_odds_ratio_agrees_with_fairlearn_where_both_ratios_exist(data):
    y, p, z = data
    counts = count(y, p, z)
    tpr = group.ratio(group.true_positive_rates(counts, empty="zero")[:, 1], empty="zero")
    fpr = group.ratio(group.false_positive_rates(counts, empty="zero")[:, 1], empty="zero")
    assume(not np.isnan([tpr, fpr]).any())
    expected = fm.equalized_odds_ratio(y, p, sensitive_features=z)
    assert float(group.equalized_odds_ratio(counts, empty="zero")) == pytest.approx(
        expected, **EXACT
    )


def test_equalized_odds_ratio_leaves_out_a_rate_that_is_zero_everywhere():
    # No true positives in either group (TPR 0, 0); FPR 1/2 and 1.
    counts = count([1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 0, 1, 1], groups=2)
    assert float(group.equalized_odds_ratio(counts)) == 0.5


@quick
@given(rows)
def test_group_loss_max_agrees_with_fairlearn_on_log_loss(data):
    y, p, z = data
    score = 0.2 + 0.6 * p
    loss = -np.where(y == 1, np.log(score), np.log(1 - score))
    expected = fm.MetricFrame(
        metrics=lambda t, s: skm.log_loss(t, s, labels=[0, 1]),
        y_true=y,
        y_pred=score,
        sensitive_features=z,
    ).group_max()
    values = group.group_values(count(y, p, z, loss=loss))
    assert float(values["loss_group_max"]) == pytest.approx(expected, **EXACT)
    cells = [loss[(z == g) & (y == c)] for g in range(GROUPS) for c in range(2)]
    largest = max(cell.mean() for cell in cells if len(cell))
    assert float(values["loss_cell_max"]) == pytest.approx(largest, **EXACT)


def test_empty_positives_are_zero_for_fairlearn_and_left_out_by_default():
    # Group 1 has no positives; groups 0 and 2 have TPR 1 and 1/2.
    y, p, z = [1, 0, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0], [0, 0, 1, 1, 2, 2]
    counts = count(y, p, z, groups=3)
    assert fm.true_positive_rate([0, 0], [1, 0]) == 0.0
    assert float(group.equal_opportunity_difference(counts, empty="zero")) == 1.0
    assert float(group.equal_opportunity_difference(counts)) == 0.5
    np.testing.assert_array_equal(group.true_positive_rates(counts)[:, 1], [1, np.nan, 0.5])


def test_one_group_left_has_no_difference_by_default_and_zero_for_fairlearn():
    counts = count([1, 0, 1], [1, 1, 0], [1, 1, 1], groups=2)
    for metric in (group.demographic_parity_difference, group.equalized_odds_difference):
        assert np.isnan(metric(counts))
        assert metric(counts, empty="zero") == 0.0
    assert group.demographic_parity_to_overall(counts) == 0.0


def test_no_examples_at_all_is_nan_without_warnings():
    counts = count([], [], [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for empty in ("omit", "zero"):
            values = group.group_values(counts, empty=empty)
            assert all(np.isnan(value) for value in values.values())


def test_report_names_groups_without_data_and_empty_cells():
    counts = count([1, 0, 0], [1, 0, 1], [0, 0, 2], groups=3)
    report = group.group_metrics(counts, labels=("a", "b", "c"))
    assert report.groups_without_data == ("b",)
    assert report.empty_cells == (("c", 1),)
    assert report.by_group["selection_rate"] == {"a": 0.5, "c": 1.0}
    assert report.by_group["examples"] == {"a": 2.0, "c": 1.0}
    assert report.metrics["demographic_parity_difference"] == 0.5
    assert np.isnan(report.by_group["true_positive_rate"]["c"])
    assert np.isnan(report.metrics["equal_opportunity_difference"])
    # FPR 0 and 1 can still be compared.
    assert report.metrics["equalized_odds_difference"] == 1.0


def test_hand_computed_to_overall_is_not_the_pairwise_difference():
    # 3 of group 0 (rate 1/3) and 1 of group 1 (rate 1): overall 1/2.
    counts = count([0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1], groups=2)
    assert float(group.demographic_parity_to_overall(counts)) == pytest.approx(1 / 2)
    assert float(group.demographic_parity_difference(counts)) == pytest.approx(2 / 3)


def test_values_over_clients_equal_those_of_each_client():
    rng = np.random.default_rng(0)
    clients = [count(*random_rows(rng, n, 3, 3), groups=3, classes=3) for n in (0, 1, 5, 40)]
    stacked = Counts(
        *(torch.stack([getattr(c, f) for c in clients]) for f in ("confusion", "loss", "moments"))
    )
    for empty in ("omit", "zero"):
        together = group.group_values(stacked, empty=empty)
        for k, one in enumerate(clients):
            for name, value in group.group_values(one, empty=empty).items():
                np.testing.assert_array_equal(together[name][k], value, err_msg=name)


def test_multiclass_is_the_worst_class_against_the_rest():
    rng = np.random.default_rng(1)
    y, p, z = random_rows(rng, 200, 3, 4)
    counts = count(y, p, z, groups=3, classes=4)
    for ours, theirs in (FAIRLEARN[0], FAIRLEARN[2], FAIRLEARN[4]):
        by_class = [theirs(y == c, p == c, sensitive_features=z) for c in range(4)]
        assert float(ours(counts)) == pytest.approx(max(by_class), **EXACT)
        for c in range(4):
            assert float(ours(counts, positive=c)) == pytest.approx(by_class[c], **EXACT)
    worst_ratio = min(
        fm.demographic_parity_ratio(y == c, p == c, sensitive_features=z) for c in range(4)
    )
    assert float(group.demographic_parity_ratio(counts)) == pytest.approx(worst_ratio, **EXACT)
    assert "selection_rate" not in group.group_metrics(counts).by_group
    assert "selection_rate" in group.group_metrics(counts, positive=2).by_group


def test_marginal_equals_counting_by_one_attribute():
    rng = np.random.default_rng(2)
    levels, n = (2, 3, 4), 300
    columns = [rng.integers(0, level, n) for level in levels]
    code = (columns[0] * 3 + columns[1]) * 4 + columns[2]
    y, p, _ = random_rows(rng, n, 1)
    loss = rng.random(n)
    joint = count(y, p, code, groups=24, loss=loss)
    for attribute, level in enumerate(levels):
        alone = count(y, p, columns[attribute], groups=level, loss=loss)
        ours = group.marginal(joint, levels, attribute)
        torch.testing.assert_close(ours.confusion, alone.confusion, rtol=0, atol=0)
        torch.testing.assert_close(ours.loss, alone.loss, rtol=1e-12, atol=1e-12)
        stacked = Counts(joint.confusion[None], joint.loss[None], joint.moments[None])
        one = group.marginal(stacked, levels, attribute)
        assert one.moments.shape == (1, level, 5)
        torch.testing.assert_close(one.confusion[0], alone.confusion, rtol=0, atol=0)


def test_intersection_with_missing_combinations_agrees_with_fairlearn():
    rng = np.random.default_rng(5)
    sex, race = rng.integers(0, 2, 60), rng.integers(0, 3, 60)
    present = ~((sex == 1) & (race == 2))
    y, p, _ = (column[present] for column in random_rows(rng, 60, 1))
    columns = np.stack([sex, race], -1)[present]
    counts = count(y, p, columns[:, 0] * 3 + columns[:, 1], groups=6)
    for empty in ("omit", "zero"):
        ours = group.demographic_parity_difference(counts, empty=empty)
        expected = fm.demographic_parity_difference(y, p, sensitive_features=columns)
        assert float(ours) == pytest.approx(expected, **EXACT)
    assert group.group_metrics(counts).groups_without_data == ("5",)


def test_marginal_of_the_only_attribute_is_the_counts():
    counts = count([0, 1], [1, 1], [0, 2], groups=3)
    torch.testing.assert_close(group.marginal(counts, (3,), 0).confusion, counts.confusion)


def test_wrong_arguments_are_refused():
    counts = count([0, 1], [1, 1], [0, 2], groups=3)
    with pytest.raises(DataError, match="multiply"):
        group.marginal(counts, (2, 2), 0)
    with pytest.raises(ConfigError, match="attribute"):
        group.marginal(counts, (3,), 1)
    with pytest.raises(ConfigError, match="positive"):
        group.demographic_parity_difference(counts, positive=2)
    with pytest.raises(ConfigError, match="empty"):
        group.equal_opportunity_difference(counts, empty="nan")
    with pytest.raises(DataError, match="labels"):
        group.group_metrics(counts, labels=("a",))
    with pytest.raises(DataError, match="total"):
        group.group_metrics(Counts(counts.confusion[None], counts.loss[None], counts.moments[None]))
    with pytest.raises(DataError, match="classification"):
        regression.r2(counts)


def regression_counts(y, p, z, groups):
    y, p, z = torch.as_tensor(y), torch.as_tensor(p), torch.as_tensor(z)
    return count_values(p, y, z, (y - p).abs(), torch.ones(len(y)), groups)


def test_regression_metrics_agree_with_scikit_learn_by_group():
    rng = np.random.default_rng(3)
    y = rng.normal(5, 2, 100)
    p, z = y + rng.normal(0.3, 1, 100), rng.integers(0, 3, 100)
    counts = regression_counts(y, p, z, groups=4)
    frame = fm.MetricFrame(
        metrics={
            "mean_squared_error": skm.mean_squared_error,
            "mean_prediction": fm.mean_prediction,
            "loss": skm.mean_absolute_error,
            "mean_residual": lambda t, s: np.mean(t - s),
        },
        y_true=y,
        y_pred=p,
        sensitive_features=z,
    )
    report = regression.regression_metrics(counts)
    assert report.groups_without_data == ("3",)
    for name, column in frame.by_group.items():
        expected = {str(g): value for g, value in column.items()}
        assert report.by_group[name] == pytest.approx(expected, abs=1e-10), name
    assert report.metrics["r2"] == pytest.approx(skm.r2_score(y, p), abs=1e-10)
    gap = frame.difference()
    for name in ("mean_squared_error", "mean_prediction", "mean_residual", "loss"):
        assert report.metrics[f"{name}_difference"] == pytest.approx(gap[name], abs=1e-10)
    assert report.metrics["mean_squared_error"] == pytest.approx(skm.mean_squared_error(y, p))


def test_r2_of_a_constant_label_is_undefined():
    # Many lengths, since rounding leaves a tiny spread in some of them only.
    for n in range(1, 60):
        counts = regression_counts([0.1] * n, [0.2] * n, [0] * n, groups=1)
        assert np.isnan(regression.r2(counts)), n
    with pytest.raises(DataError, match="regression"):
        group.selection_rates(counts)
