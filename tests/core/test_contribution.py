"""HVC against its definition, with areas from another library."""

from __future__ import annotations

import moocore
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from evenfed.core.contribution import contributions, contributions_without


def area(points: np.ndarray, reference: np.ndarray) -> float:
    return float(moocore.hypervolume(points, ref=reference)) if len(points) else 0.0


def by_definition(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """`HV(S) - HV(S without i)`, one point after the other."""
    whole = area(points, reference)
    return np.array([whole - area(np.delete(points, i, 0), reference) for i in range(len(points))])


# few values, so that ties and equal points are frequent; some lie beyond the reference
coordinate = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5]), st.floats(0, 2))
sets = st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=12)


@pytest.mark.proves("hetpfl", "HVC against its definition")
@settings(max_examples=300, deadline=None)
@given(sets, st.sampled_from([(1.0, 1.0), (0.75, 1.25)]))
def test_contributions_are_those_of_the_definition(
    points: list[tuple[float, float]], reference: tuple[float, float]
) -> None:
    s, r = np.array(points), np.array(reference)
    found = contributions(torch.from_numpy(s), torch.from_numpy(r)).numpy()
    np.testing.assert_allclose(found, by_definition(s, r), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(coordinate, coordinate), min_size=2, max_size=6))
def test_contributions_without_a_point_are_those_of_the_smaller_set(
    points: list[tuple[float, float]],
) -> None:
    s, r = np.array(points), np.ones(2)
    expected = [by_definition(np.delete(s, i, 0), r).mean() for i in range(len(s))]
    found = contributions_without(torch.from_numpy(s), torch.from_numpy(r))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_many_points_and_many_sets_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    sets = torch.rand((3, 200, 2), generator=generator, dtype=torch.float64)
    references = torch.tensor([[1.0, 1.0], [0.9, 0.8], [1.2, 0.5]], dtype=torch.float64)
    stacked = contributions(sets, references)
    mapped = vmap(contributions)(sets, references)
    for i in range(3):
        expected = by_definition(sets[i].numpy(), references[i].numpy())
        np.testing.assert_allclose(stacked[i].numpy(), expected, atol=1e-12)
    assert torch.equal(mapped, stacked)
