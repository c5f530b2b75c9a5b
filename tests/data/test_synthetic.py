import numpy as np
import pytest
import torch

from evenfed.core.errors import ConfigError
from evenfed.data.partition import ByColumn, Dirichlet
from evenfed.data.sources import population, synthetic


def test_published_protocol_gives_the_released_sizes():
    # Sizes, shares of y = 1 and counts of z measured on the released code of FedFB/PraFFL.
    data = synthetic.load(protocol="published")
    assert [len(c.train) + len(c.val) for c in data] == [1326, 1191, 983]
    assert [len(c.test) for c in data] == [574, 508, 418]
    train = torch.cat([torch.cat([c.train.y, c.val.y]) for c in data]).float()
    test = torch.cat([c.test.y for c in data]).float()
    assert round(float(train.mean()), 3) == 0.598
    assert round(float(test.mean()), 3) == 0.605
    group = torch.cat([torch.cat([c.train.group, c.val.group]) for c in data])
    assert torch.bincount(group).tolist() == [1409, 2091]


def test_published_draws_are_those_of_the_legacy_generator():
    # The first draws of np.random.seed(123): all labels, then x and z of each row.
    legacy = np.random.RandomState(123)
    label = legacy.binomial(n=1, p=0.6, size=20)
    first = legacy.multivariate_normal(
        mean=synthetic.MEAN[int(label[0])], cov=synthetic.COVARIANCE[int(label[0])], size=1
    )[0]
    points, drawn, _ = synthetic.draw_published(20)
    assert (drawn == label).all()
    assert np.array_equal(points[0], first)


def test_published_validation_is_the_last_tenth_and_ignores_the_seed():
    first, second = (synthetic.load(protocol="published", seed=s) for s in (0, 1))
    for a, b in zip(first, second, strict=True):
        assert len(a.train) == int(0.9 * (len(a.train) + len(a.val)))
        assert torch.equal(a.train.x, b.train.x)


def test_redrawn_data_depend_on_the_seed():
    a, b, c = (synthetic.load(seed=s).client(0).train.x for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert a.shape != c.shape or not torch.equal(a, c)


@pytest.mark.parametrize("setting", list(synthetic.SETTINGS))
def test_clients_hold_the_shares_of_each_group_that_the_setting_says(setting):
    data = synthetic.load(setting=setting, seed=3)
    counts = np.array(
        [np.bincount(torch.cat([c.train.group, c.val.group]), minlength=2) for c in data]
    )
    shares = counts / counts.sum(axis=0)
    for group in (0, 1):
        assert np.allclose(shares[:, group], synthetic.SETTINGS[setting][group], atol=2e-3)


def test_a_setting_may_be_a_number_and_an_unknown_one_is_refused():
    assert (synthetic.load(setting=0.1).sizes() == synthetic.load(setting="0.1").sizes()).all()
    with pytest.raises(ConfigError, match="no setting '7'"):
        synthetic.load(setting=7)


@pytest.mark.parametrize(("clients", "total"), [(10, 5000), (100, 20000), (300, 25000)])
def test_lists_for_many_clients_make_that_many(clients, total):
    data = synthetic.load(clients=clients)
    assert len(data) == clients
    assert sum(len(c.train) + len(c.val) for c in data) == total


def test_all_share_tables_sum_to_one():
    for shares in [*synthetic.SETTINGS.values(), *synthetic.MANY.values()]:
        for share in shares.values():
            assert sum(share) == pytest.approx(1.0, abs=1e-6)


def test_class_means_and_the_bit_follow_the_recipe():
    points, label, bit = synthetic.draw(200_000, seed=0)
    for y in (0, 1):
        assert np.allclose(points[label == y].mean(axis=0), synthetic.MEAN[y], atol=0.05)
        assert np.allclose(np.cov(points[label == y].T), synthetic.COVARIANCE[y], atol=0.2)
    expected = synthetic.sensitive_probability(points)
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (expected >= low) & (expected < low + 0.25)
        assert bit[inside].mean() == pytest.approx(expected[inside].mean(), abs=0.01)


def test_sensitive_probability_is_the_ratio_of_densities_at_the_turned_point():
    from scipy.stats import multivariate_normal

    x = np.array([1.3, -0.4])
    c = np.cos(np.pi / 4)
    turned = (x[0] * c - x[1] * c, x[0] * c + x[1] * c)
    zero, one = (
        multivariate_normal.pdf(turned, synthetic.MEAN[y], synthetic.COVARIANCE[y]) for y in (0, 1)
    )
    assert synthetic.sensitive_probability(x[None])[0] == pytest.approx(one / (one + zero))


def test_another_partition_deals_train_and_test_alike():
    data = synthetic.load(clients=5, partition=Dirichlet("sensitive", 0.5), seed=1)
    assert len(data) == 5
    for client in data:
        mean, test_mean = (s.group.float().mean().item() for s in (client.train, client.test))
        assert mean == pytest.approx(test_mean, abs=0.1)
    assert len(synthetic.load(partition=ByColumn("sensitive"))) == 2


def test_the_bit_may_be_left_out_of_the_features():
    data = synthetic.load(include_sensitive=False)
    assert data.schema.features == ("x1", "x2")
    assert data.client(0).train.x.shape[1] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"clients": 7},
        {"protocol": "publishd"},
        {"protocol": "published", "partition": Dirichlet("sensitive", 0.5)},
        {"setting": "5", "clients": 10},
        {"setting": "5", "partition": Dirichlet("sensitive", 0.5)},
    ],
)
def test_impossible_combinations_are_refused(options):
    with pytest.raises(ConfigError):
        synthetic.load(**options)


def test_a_population_makes_a_client_from_seed_and_index_alone():
    small, large = population.load(clients=10, seed=4), population.load(clients=10**7, seed=4)
    assert large.lazy
    assert len(large) == 10**7
    assert torch.equal(small.client(3).train.x, large.client(3).train.x)
    assert not torch.equal(large.client(3).train.x, large.client(4).train.x)
    other = population.load(clients=10, seed=5).client(3)
    assert not torch.equal(small.client(3).train.x, other.train.x)


def test_a_population_fits_its_schema():
    from evenfed.data.dataset import check_clients

    data = population.load(clients=50, classes=4, features=5)
    check_clients(data.schema, list(data))
    assert {len(c.train) for c in data} == {32}
    with pytest.raises(IndexError, match="no client 50 of 50"):
        data.client(50)
    with pytest.raises(ConfigError, match="takes no partition"):
        population.load(partition=ByColumn("label"))
    with pytest.raises(ConfigError, match="at least"):
        population.load(examples=0)
