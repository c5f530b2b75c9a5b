"""Every metric of a table has an interval with a width, whatever was predicted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import evenfed as ef
from evenfed.metrics.proportion import wilson
from evenfed.runs.evaluation import Evaluation
from evenfed.runs.table import default_metrics


@pytest.fixture(scope="module")
def trained() -> ef.Result:
    return ef.train("fedavg", ef.load("loans", seed=0), rounds=1, engine="vectorized")


def predicting(found: Evaluation, shift: int | None) -> Evaluation:
    """The same examples with the prediction `label + shift`, or always class 0."""
    cells = found.counts.cells
    classes = cells.shape[-1]
    confusion = torch.zeros_like(found.counts.confusion)
    for label in range(classes):
        said = 0 if shift is None else (label + shift) % classes
        confusion[..., label, said] += cells[..., label]
    return replace(found, counts=replace(found.counts, confusion=confusion))


@pytest.mark.parametrize("shift", [0, 1, None], ids=["all right", "none right", "one class"])
def test_no_interval_is_without_width(trained: ef.Result, shift: int | None) -> None:
    found = predicting(trained.evaluation(), shift)
    summary = found.summary()
    for name, span in found.intervals(seed=1).items():
        assert span.low is not None, name
        assert span.high is not None, name
        assert span.low < span.high, name
        assert span.low - 1e-9 <= summary[name] <= span.high + 1e-9, name


def test_every_metric_of_the_table_has_an_interval(trained: ef.Result) -> None:
    found = trained.intervals()
    assert set(default_metrics(trained.measured())) <= set(found)
    number = ef.train("fedavg", "linear", rounds=1, engine="vectorized")
    assert set(default_metrics(number.measured())) <= set(number.intervals())


def test_the_accuracy_has_wilsons_interval_and_losses_the_tail_of_the_worst(
    trained: ef.Result,
) -> None:
    evaluation, found = trained.evaluation(), trained.intervals()
    n = float(evaluation.sizes.sum())
    span = found["accuracy"]
    assert (span.low, span.high) == pytest.approx(wilson(span.estimate * n, n))
    losses = np.sort(trained.clients["loss"])
    assert found["client_loss_max"].estimate == pytest.approx(losses[-1])
    assert found["client_loss_std"].estimate == pytest.approx(losses.std())
    tail = trained.summary()["client_loss_worst_tail"]
    assert found["client_loss_worst_tail"].estimate == pytest.approx(tail)


def test_of_one_client_the_worst_is_itself_and_no_spread_is_told(trained: ef.Result) -> None:
    name = trained.clients["examples"].idxmax()
    found = trained.evaluation().only(str(name)).intervals()
    assert "client_accuracy_std" not in found
    low, high = found["client_accuracy_min"].low, found["client_accuracy_min"].high
    assert (low, high) == pytest.approx((found["accuracy"].low, found["accuracy"].high), abs=0.03)
