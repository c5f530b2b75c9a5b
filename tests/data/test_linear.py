import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.errors import ConfigError
from evenfed.data.partition import IID
from evenfed.data.sources import linear


@given(
    st.integers(2, 20),
    st.integers(0, 3),
    st.floats(0, 0.5),
    st.floats(0, 5),
    st.integers(1, 30),
    st.integers(0, 99),
)
def test_radius_and_distance_of_the_true_means_are_as_asked(clients, outliers, r, R, d, seed):
    outliers = min(outliers, clients - 1)
    means = linear.true_means(clients=clients, outliers=outliers, r=r, R=R, d=d, seed=seed)
    normal, others = means[: clients - outliers], means[clients - outliers :]
    centre = normal.mean(axis=0)
    radius = np.linalg.norm(normal - centre, axis=1).max()
    assert radius == pytest.approx(r if len(normal) > 1 else 0.0, abs=1e-9)
    if outliers:
        assert np.linalg.norm(others.mean(axis=0) - centre) == pytest.approx(R, abs=1e-9)


def test_defaults_are_those_of_the_paper():
    data = linear.load()
    assert len(data) == 10
    assert data.clusters == (0,) * 9 + (1,)
    assert data.schema.kind == "regression"
    assert data.client(0).train.y.dtype == torch.float32


def test_the_noise_is_what_is_left_at_the_true_coefficients():
    data = linear.load(n_test=20_000, seed=2)
    for k, mean in enumerate(linear.true_means(seed=2)):
        test = data.client(k).test
        left = test.y - test.x @ torch.from_numpy(mean).float()
        # sigma^2 = .01, the average test loss of FOCUS in the paper.
        assert left.square().mean().item() == pytest.approx(0.01, rel=0.05)
        assert torch.allclose(test.x.var(dim=0), torch.ones(10), atol=0.06)


def test_excess_loss_of_the_pooled_solution_is_worst_for_the_outlier():
    # With population data the mean of all means is optimal for the average loss: the outlier
    # pays (R * 9 / 10)^2 = .81 and a normal client about (R / 10)^2 = .01.
    means = linear.true_means()
    excess = np.square(means - means.mean(axis=0)).sum(axis=1)
    assert excess[-1] == pytest.approx(0.81, abs=1e-6)
    assert np.allclose(excess[:-1], 0.01, atol=0.003)


def test_the_task_depends_on_the_seed():
    a, b, c = (linear.load(seed=s).client(0).train.x for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(
    "options",
    [{"outliers": 10}, {"r": -1.0}, {"n": 0}, {"sigma": -0.1}, {"partition": IID()}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        linear.load(**options)
