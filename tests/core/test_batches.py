from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.batches import Batches, draw_batches


def drawn(size: int, seed: int = 0, **options: int) -> Batches:
    return draw_batches(torch.Generator().manual_seed(seed), size, **options)


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 4))
def test_every_example_exactly_once_an_epoch(size: int, batch: int, epochs: int) -> None:
    b = drawn(size, batch=batch, epochs=epochs)
    per_epoch = math.ceil(size / batch)
    assert b.steps == epochs * per_epoch
    for epoch in range(epochs):
        rows = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = b.index[rows][b.mask[rows]]
        assert sorted(seen.tolist()) == list(range(size))


@given(st.integers(1, 50), st.integers(1, 12))
def test_last_short_batch_is_kept_and_stands_last(size: int, batch: int) -> None:
    widths = drawn(size, batch=batch, epochs=1).mask.sum(-1).tolist()
    assert widths[:-1] == [batch] * (len(widths) - 1)
    assert widths[-1] == (size % batch or batch)


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 30))
def test_steps_go_over_as_many_passes_as_needed(size: int, batch: int, steps: int) -> None:
    b = drawn(size, batch=batch, epochs=1, steps=steps)
    assert b.steps == steps
    assert bool(b.mask.any(-1).all())
    per_epoch = math.ceil(size / batch)
    full = steps // per_epoch
    seen = torch.bincount(b.index[: full * per_epoch][b.mask[: full * per_epoch]], minlength=size)
    assert seen.tolist() == [full] * size


def test_epochs_have_different_orders() -> None:
    b = drawn(40, batch=40, epochs=2)
    assert b.index[0].tolist() != b.index[1].tolist()


@pytest.mark.parametrize(("epochs", "steps", "expected"), [(3, 0, 3), (3, 5, 5)])
def test_full_batch_has_no_index(epochs: int, steps: int, expected: int) -> None:
    b = drawn(7, batch=0, epochs=epochs, steps=steps)
    assert b.index.shape == (expected, 0)
    assert b.mask.tolist() == [[True]] * expected


@given(st.floats(1e-9, 1.0), st.integers(1, 20), st.integers(0, 5))
def test_shortened_keeps_the_first_steps_and_at_least_one(
    fraction: float, size: int, batch: int
) -> None:
    b = drawn(size, batch=batch, epochs=3)
    short = b.shortened(fraction)
    keep = max(1, math.ceil(fraction * b.steps))
    assert short.steps == b.steps, "shapes stay"
    assert torch.equal(short.mask[:keep], b.mask[:keep])
    assert not short.mask[keep:].any()
    assert torch.equal(short.index, b.index)


def test_generator_alone_decides() -> None:
    assert torch.equal(drawn(9, 5, batch=4, epochs=2).index, drawn(9, 5, batch=4, epochs=2).index)
    assert not torch.equal(
        drawn(9, 5, batch=4, epochs=2).index, drawn(9, 6, batch=4, epochs=2).index
    )
