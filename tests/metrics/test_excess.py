import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.errors import DataError
from evenfed.metrics import excess

pairs = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=12)
TRUE = {"mean_accuracy": 0.9, "reference": "true clusters"}


@given(pairs)
def test_faa_is_the_largest_pairwise_gap_of_excess_risks(data):
    losses, references = np.array(data).T
    risks = losses - references
    result = excess.faa(losses, references, **TRUE)
    assert result.faa == np.abs(risks[:, None] - risks[None, :]).max()
    assert result.n_negative_excess == (risks < 0).sum()
    assert result.mean_loss == pytest.approx(losses.mean())


def test_negative_excess_is_not_clipped():
    result = excess.faa([0.1, 0.5], [0.4, 0.4], **TRUE)
    assert result.faa == pytest.approx(0.4)
    assert result.n_negative_excess == 1


def test_common_shift_of_losses_shows_in_the_mean_loss_alone():
    good, bad = (excess.faa([0.1 + s, 0.3 + s], [0.1, 0.2], **TRUE) for s in (0, 2))
    assert good.faa == pytest.approx(bad.faa)
    assert bad.mean_loss == pytest.approx(good.mean_loss + 2)


def test_accuracy_and_reference_must_be_stated():
    with pytest.raises(TypeError):
        excess.faa([1.0], [1.0], reference="true clusters")
    with pytest.raises(TypeError):
        excess.faa([1.0], [1.0], mean_accuracy=None)
    result = excess.faa([1.0], [1.0], mean_accuracy=None, reference="estimated clusters")
    assert result.reference == "estimated clusters"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.faa = 0.0


def test_clients_without_data_are_left_out_and_diverged_ones_show():
    result = excess.faa([1.0, np.nan, 1.5], [1.0, 1.0, 1.0], sizes=[3, 0, 4], **TRUE)
    assert (result.faa, result.clients, result.clients_without_data) == (0.5, 2, 1)
    assert np.isnan(excess.faa([1.0, np.nan], [1.0, 1.0], **TRUE).faa)
    assert excess.faa([1.0, np.inf], [1.0, 1.0], **TRUE).faa == np.inf


def test_references_come_from_one_model_a_cluster_in_the_clients_order():
    calls = []

    def train(members):
        calls.append(members)
        return [10.0 * len(members) + m for m in members]

    references = excess.surrogate_references([7, 2, 7, 2, 7], train)
    assert calls == [(1, 3), (0, 2, 4)]
    np.testing.assert_array_equal(references, [30, 21, 32, 23, 34])


def test_wrong_shapes_are_refused():
    with pytest.raises(DataError, match="reference"):
        excess.excess_risk([1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="sizes"):
        excess.faa([1.0, 2.0], [1.0, 1.0], sizes=[1], **TRUE)
    with pytest.raises(DataError, match="no client"):
        excess.faa([1.0], [1.0], sizes=[0], **TRUE)
    with pytest.raises(DataError, match="cluster 0"):
        excess.surrogate_references([0, 0], lambda members: [1.0])
    with pytest.raises(DataError, match="one cluster"):
        excess.surrogate_references([], lambda members: [])
