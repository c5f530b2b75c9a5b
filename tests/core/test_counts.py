"""Against sums over rows, written as plainly as possible."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from evenfed.core import tree as trees
from evenfed.core.counts import Counts, count_classes, count_values


def rows(seed: int, n: int, groups: int, classes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "predicted": rng.integers(classes, size=n),
        "y": rng.integers(classes, size=n),
        "group": rng.integers(groups, size=n),
        "loss": rng.random(n).astype(np.float32),
        "weight": (rng.random(n) < 0.8).astype(np.float32),
    }


def counted(r: dict[str, np.ndarray], groups: int, classes: int) -> Counts:
    t = {name: torch.from_numpy(values) for name, values in r.items()}
    return count_classes(**t, groups=groups, classes=classes)


@given(st.integers(0, 10**6), st.integers(0, 30), st.integers(1, 3), st.integers(2, 4))
def test_every_cell_holds_its_rows(seed: int, n: int, groups: int, classes: int) -> None:
    r = rows(seed, n, groups, classes)
    counts = counted(r, groups, classes)
    assert counts.confusion.shape == (groups, classes, classes)
    for g in range(groups):
        for y in range(classes):
            cell = (r["group"] == g) & (r["y"] == y) & (r["weight"] > 0)
            assert counts.cells[g, y].item() == cell.sum()
            np.testing.assert_allclose(
                counts.loss[g, y].item(), r["loss"][cell].astype(np.float64).sum(), rtol=1e-12
            )
            for p in range(classes):
                assert counts.confusion[g, y, p].item() == (cell & (r["predicted"] == p)).sum()
    assert counts.size.item() == (r["weight"] > 0).sum()
    for g in range(groups):
        losses = r["loss"][(r["group"] == g) & (r["weight"] > 0)].astype(np.float64)
        np.testing.assert_allclose(
            counts.loss_squares[g].item(), (losses**2).sum(), rtol=1e-12, atol=1e-12
        )
    assert not counts.moments[:, 1:].any()


def test_counts_add_up_over_clients() -> None:
    parts = [rows(seed, 12, 2, 3) for seed in range(4)]
    stacked: Counts = trees.stack([counted(p, 2, 3) for p in parts])
    assert stacked.size.shape == (4,)
    joined = counted({k: np.concatenate([p[k] for p in parts]) for k in parts[0]}, 2, 3)
    total = stacked.total()
    assert torch.equal(total.confusion, joined.confusion)
    torch.testing.assert_close(total.loss, joined.loss, rtol=1e-12, atol=0)


def test_vmap_counts_each_client() -> None:
    parts = [rows(seed, 12, 2, 3) for seed in range(3)]
    t = {k: torch.from_numpy(np.stack([p[k] for p in parts])) for k in parts[0]}
    stacked = vmap(lambda *a: count_classes(*a, groups=2, classes=3))(*t.values())
    for i, part in enumerate(parts):
        assert torch.equal(stacked.confusion[i], counted(part, 2, 3).confusion)
        assert torch.equal(stacked.loss[i], counted(part, 2, 3).loss)


@given(st.integers(0, 10**6), st.integers(0, 20))
def test_regression_keeps_sums_and_squares_by_group(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    p, y, loss = (rng.normal(size=n).astype(np.float32) for _ in range(3))
    group, weight = rng.integers(2, size=n), (rng.random(n) < 0.7).astype(np.float32)
    counts = count_values(*map(torch.from_numpy, (p, y, group, loss, weight)), groups=2)
    for g in range(2):
        own = (group == g) & (weight > 0)
        a, b = y[own].astype(np.float64), p[own].astype(np.float64)
        squares = (loss[own].astype(np.float64) ** 2).sum()
        expected = [a.sum(), b.sum(), (a * a).sum(), (b * b).sum(), (a * b).sum(), squares]
        e = (a - b) ** 2
        expected += [(a**3).sum(), (a**4).sum(), (e * a).sum(), (e * a * a).sum(), (e * e).sum()]
        np.testing.assert_allclose(counts.moments[g].numpy(), expected, rtol=1e-12, atol=1e-12)
        assert counts.loss_squares[g].item() == counts.moments[g, 5].item()
        assert counts.confusion[g, 0, 0].item() == own.sum()
        np.testing.assert_allclose(
            counts.loss[g, 0].item(), loss[own].astype(np.float64).sum(), rtol=1e-12, atol=1e-12
        )
