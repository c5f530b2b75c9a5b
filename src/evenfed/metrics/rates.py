"""Rates, accuracies and losses by group, from counts `(..., G, C, C)`; leading axes are kept.

What a rate is where its denominator is empty: see `evenfed.metrics.group`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError, DataError
from evenfed.metrics.client import FloatArray, divide, to_numpy

Empty = Literal["omit", "zero"]


def example() -> Counts:
    """Two groups of four for examples in docstrings: group 0 is all right, group 1 half.

    Examples
    --------
    >>> example().size.item()
    8.0
    """
    confusion = torch.tensor([[[2.0, 0.0], [0.0, 2.0]], [[1.0, 2.0], [0.0, 1.0]]])
    return Counts(confusion, torch.tensor([[1.0, 1.0], [3.0, 1.0]]), torch.zeros(2, 5))


def confusion_of(counts: Counts) -> FloatArray:
    """Confusion counts `(..., G, C, C)` of a classification; refuses those of a regression."""
    confusion = to_numpy(counts.confusion)
    if confusion.shape[-1] == 1:
        raise DataError("these are counts of a regression; use metrics.regression")
    return confusion


def _with_empty(rates: FloatArray, present: FloatArray, empty: Empty) -> FloatArray:
    """Fill rates that are undefined in a group that has examples."""
    if empty not in ("omit", "zero"):
        raise ConfigError(f"empty is 'omit' or 'zero', got {empty!r}")
    if empty == "omit":
        return rates
    return np.where(np.isnan(rates) & (present[..., None] > 0), 0.0, rates)


def group_sizes(counts: Counts) -> FloatArray:
    """Examples by group `(..., G)`.

    Examples
    --------
    >>> group_sizes(example())
    array([4., 4.])
    """
    return np.asarray(to_numpy(counts.confusion).sum((-2, -1)))


def selection_rates(counts: Counts) -> FloatArray:
    """P(prediction = c | group) by group and class `(..., G, C)`; NaN without examples.

    Examples
    --------
    >>> selection_rates(example())[:, 1]
    array([0.5 , 0.75])
    """
    confusion = confusion_of(counts)
    return divide(confusion.sum(-2), confusion.sum((-2, -1))[..., None])


def true_positive_rates(counts: Counts, *, empty: Empty = "omit") -> FloatArray:
    """P(prediction = c | group, label = c) by group and class `(..., G, C)`.

    Examples
    --------
    >>> true_positive_rates(example())[:, 1]
    array([1., 1.])
    """
    confusion = confusion_of(counts)
    rates = divide(np.einsum("...cc->...c", confusion), confusion.sum(-1))
    return _with_empty(rates, confusion.sum((-2, -1)), empty)


def false_positive_rates(counts: Counts, *, empty: Empty = "omit") -> FloatArray:
    """P(prediction = c | group, label not c) by group and class `(..., G, C)`.

    Examples
    --------
    >>> false_positive_rates(example())[:, 1]
    array([0.        , 0.66666667])
    """
    confusion = confusion_of(counts)
    size = confusion.sum((-2, -1))
    wrongly = confusion.sum(-2) - np.einsum("...cc->...c", confusion)
    rates = divide(wrongly, size[..., None] - confusion.sum(-1))
    return _with_empty(rates, size, empty)


def group_accuracies(counts: Counts) -> FloatArray:
    """Accuracy by group `(..., G)`; NaN for a group without examples.

    Examples
    --------
    >>> group_accuracies(example())
    array([1. , 0.5])
    """
    confusion = confusion_of(counts)
    return divide(np.einsum("...cc->...", confusion), confusion.sum((-2, -1)))


def group_losses(counts: Counts) -> FloatArray:
    """Mean loss by group `(..., G)`; NaN for a group without examples.

    Examples
    --------
    >>> group_losses(example())
    array([0.5, 1. ])
    """
    return divide(to_numpy(counts.loss).sum(-1), group_sizes(counts))


def cell_losses(counts: Counts) -> FloatArray:
    """Mean loss by group and true label `(..., G, C)`; NaN for a cell without examples.

    Examples
    --------
    >>> cell_losses(example())
    array([[0.5, 0.5],
           [1. , 1. ]])
    """
    return divide(to_numpy(counts.loss), to_numpy(counts.cells))
