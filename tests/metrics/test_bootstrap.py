import numpy as np
import pytest
import torch
from scipy import stats

from evenfed.core.counts import Counts, count_classes, count_values
from evenfed.core.errors import ConfigError, DataError
from evenfed.metrics import bootstrap
from evenfed.metrics.client import accuracy, mean_loss
from evenfed.metrics.group import (
    demographic_parity_difference,
    equal_opportunity_difference,
    group_losses,
)
from evenfed.metrics.regression import mean_predictions, r2

CLIENTS, GROUPS, N = 4, 2, 800


def one_client(rng, n):
    z = rng.integers(0, GROUPS, n)
    y = (rng.random(n) < 0.4).astype(int)
    p = np.where(rng.random(n) < 0.6 + 0.2 * z, y, 1 - y)
    return y, p, z, rng.random(n)


def count(y, p, z, loss):
    columns = (torch.as_tensor(v) for v in (p, y, z))
    return count_classes(*columns, torch.as_tensor(loss), torch.ones(len(y)), GROUPS, 2)


def stack(parts):
    return Counts(
        *(torch.stack([getattr(c, f) for c in parts]) for f in ("confusion", "loss", "moments"))
    )


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    return [one_client(rng, n) for n in (40, 80, 120, 160)]


@pytest.fixture(scope="module")
def counts(clients):
    return stack([count(*rows) for rows in clients])


@pytest.fixture(scope="module")
def from_rows(clients):
    """Replicates `(N, K, ...)` made by resampling the rows of every client."""
    rng = np.random.default_rng(1)

    def again(rows):
        pick = rng.integers(0, len(rows[0]), len(rows[0]))
        return count(*(column[pick] for column in rows))

    return stack([stack([again(rows) for rows in clients]) for _ in range(N)])


def replicates(counts, statistic, n=N, **options):
    """Every value the statistic takes in the bootstrap."""
    seen = []

    def record(batch):
        values = np.asarray(statistic(batch))
        if values.ndim:
            seen.append(values)
        return values

    bootstrap.interval(counts, record, seed=2, n=n, **options)
    return np.concatenate(seen)


@pytest.mark.parametrize(
    "statistic", [accuracy, demographic_parity_difference, equal_opportunity_difference]
)
def test_resampling_counts_has_the_distribution_of_resampling_rows(counts, from_rows, statistic):
    ours = replicates(counts, statistic)
    rows = statistic(from_rows.total(1))
    assert stats.ks_2samp(ours, rows).pvalue > 0.01
    # The same test sees a bootstrap of half the examples.
    half = Counts(torch.floor(counts.confusion / 2), counts.loss, counts.moments)
    assert stats.ks_2samp(replicates(half, statistic), rows).pvalue < 0.01


def test_statistics_of_clients_match_resampling_rows(counts, from_rows):
    def spread(c):
        return accuracy(c).std(-1)

    ours, rows = replicates(counts, spread, pool=False), spread(from_rows)
    assert stats.ks_2samp(ours, rows).pvalue > 0.01


def test_clients_are_strata_unless_resampled(counts):
    def sizes(c):
        return c.size.numpy().astype(float)

    assert (replicates(counts, sizes) == 400).all()
    drawn = replicates(counts, sizes, resample_clients=True)
    # A sum of four draws from (40, 80, 120, 160): mean 400, standard deviation 2 * sqrt(2000).
    assert drawn.mean() == pytest.approx(400, abs=12)
    assert drawn.std() == pytest.approx(2 * 2000**0.5, rel=0.1)


def test_percentile_interval_of_accuracy_matches_the_binomial(counts):
    pooled = counts.total()
    result = bootstrap.interval(pooled, accuracy, seed=3, n=4000, level=0.9)
    n, p = float(pooled.size), float(accuracy(pooled))
    low, high = stats.binom.ppf([0.05, 0.95], n, p) / n
    assert result.estimate == p
    assert (result.low, result.high) == pytest.approx((low, high), abs=1.5 / n)
    assert (result.level, result.undefined, result.note) == (0.9, 0, "")


def test_seed_fixes_the_interval_and_chunks_do_not_change_it(counts, monkeypatch):
    def run(seed, **options):
        return bootstrap.interval(counts, demographic_parity_difference, seed=seed, n=50, **options)

    whole, clients_too = run(5), run(5, resample_clients=True)
    assert run(6) != whole
    monkeypatch.setattr(bootstrap, "CHUNK_ELEMENTS", 7 * counts.confusion.numel())
    assert run(5) == whole
    assert run(5, resample_clients=True) == clients_too


def test_mapped_statistic_gives_the_same_as_a_vectorized_one(counts):
    def scalar(c):
        assert c.confusion.ndim == 3
        return float(accuracy(c))

    mapped = bootstrap.interval(counts, scalar, seed=0, n=20, vectorized=False)
    assert mapped == bootstrap.interval(counts, accuracy, seed=0, n=20)


def test_intervals_share_replicates(counts):
    both = bootstrap.intervals(
        counts, {"a": accuracy, "b": lambda c: 1 - accuracy(c)}, seed=0, n=100
    )
    assert both["a"].low == pytest.approx(1 - both["b"].high, abs=1e-12)


def test_loss_without_second_moments_has_no_interval_and_says_so(counts):
    for statistic in (mean_loss, lambda c: np.fmax.reduce(group_losses(c), -1)):
        result = bootstrap.interval(counts, statistic, seed=0, n=20)
        assert (result.low, result.high) == (None, None)
        assert result.estimate == pytest.approx(float(statistic(counts.total())))
        assert "spread" in result.note


def test_loss_with_second_moments_matches_resampling_rows(clients, counts, from_rows):
    squares = stack([count(y, p, z, loss**2) for y, p, z, loss in clients]).loss
    ours = replicates(counts, mean_loss, n=2000, loss_squares=squares)
    rows = mean_loss(from_rows.total(1))
    assert ours.mean() == pytest.approx(rows.mean(), abs=0.1 * rows.std())
    assert ours.std() == pytest.approx(rows.std(), rel=0.1)


def test_regression_means_have_an_interval_and_squares_have_none():
    rng = np.random.default_rng(4)
    y = rng.normal(2, 1, 200)
    p = 0.5 * y + rng.normal(0, 0.3, 200)
    zero, one = torch.zeros(200, dtype=torch.int64), torch.ones(200)
    counts = count_values(torch.as_tensor(p), torch.as_tensor(y), zero, one, one, 1)

    def residual(c):
        return ((c.moments[..., 0, 0] - c.moments[..., 0, 1]) / c.size).numpy()

    for statistic, column in ((lambda c: mean_predictions(c)[..., 0], p), (residual, y - p)):
        result = bootstrap.interval(counts, statistic, seed=0, n=4000)
        half = 1.96 * column.std() / 200**0.5
        expected = (column.mean() - half, column.mean() + half)
        assert (result.low, result.high) == pytest.approx(expected, abs=0.1 * half)
    assert bootstrap.interval(counts, r2, seed=0, n=20).low is None


def test_vanished_groups_are_counted_as_undefined():
    # One example of group 1 among five: absent from a replicate with probability .8^5.
    confusion = torch.tensor([[[2.0, 2.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    counts = Counts(confusion, torch.zeros(2, 2), torch.zeros(2, 5))
    result = bootstrap.interval(counts, demographic_parity_difference, seed=0, n=2000)
    assert result.undefined / 2000 == pytest.approx(0.8**5, abs=0.03)
    assert result.high == 1.0


def test_undefined_statistic_and_clients_without_data():
    confusion = torch.zeros(2, 1, 2, 2)
    empty = Counts(confusion, torch.zeros(2, 1, 2), torch.zeros(2, 1, 5))
    result = bootstrap.interval(empty, accuracy, seed=0, n=10)
    assert np.isnan(result.estimate)
    assert result.low is None
    confusion = confusion.clone()
    confusion[0, 0, 0, 0] = 5
    half = Counts(confusion, torch.zeros(2, 1, 2), torch.zeros(2, 1, 5))
    assert bootstrap.interval(half, accuracy, seed=0, n=10).low == 1.0


def test_unusable_arguments_are_refused(counts):
    weighted = Counts(counts.confusion * 0.3, counts.loss, counts.moments)
    with pytest.raises(DataError, match="whole counts"):
        bootstrap.interval(weighted, accuracy, seed=0)
    with pytest.raises(ConfigError, match="level"):
        bootstrap.interval(counts, accuracy, seed=0, level=1.0)
    with pytest.raises(ConfigError, match="leading axis"):
        bootstrap.interval(counts, lambda c: 0.5, seed=0)
    with pytest.raises(DataError, match="K, G, C, C"):
        bootstrap.interval(stack([counts]), accuracy, seed=0)


def test_over_seeds_is_the_t_interval():
    values = np.array([0.71, 0.74, 0.69, 0.75, 0.73])
    summary = bootstrap.over_seeds(values, level=0.9)
    expected = stats.t.interval(0.9, df=4, loc=values.mean(), scale=stats.sem(values))
    assert (summary.low, summary.high) == pytest.approx(expected, abs=1e-12)
    assert (summary.mean, summary.std) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert summary.seeds == 5


def test_over_seeds_does_not_invent_a_spread_or_drop_a_diverged_seed():
    single, diverged = bootstrap.over_seeds([0.7]), bootstrap.over_seeds([0.7, np.nan, 0.8])
    assert single.mean == 0.7
    assert np.isnan([single.std, single.low, single.high]).all()
    assert np.isnan(diverged.mean)
    assert diverged.not_finite == 1
    with pytest.raises(DataError):
        bootstrap.over_seeds([])


def test_an_interval_reaches_its_estimate_where_all_percentiles_lie_beyond() -> None:
    """Equal rates in many small groups: every resample has a larger difference than 0."""
    confusion = torch.tensor([[[3.0, 3.0], [3.0, 3.0]]]).repeat(8, 1, 1)
    counts = Counts(confusion, torch.zeros(8, 2), torch.zeros(8, 5))
    found = bootstrap.interval(counts, demographic_parity_difference, seed=0)
    assert found.estimate == 0.0
    assert found.low == 0.0
    assert found.high is not None
    assert found.high > 0.5
