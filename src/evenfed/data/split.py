"""Train, validation and test rows of clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenfed.data.partition import Rows, cut_by_shares


def split_rows(
    rows: Rows, shares: Sequence[float], rng: np.random.Generator
) -> tuple[Rows, list[Rows]]:
    """Draw parts of given shares at random; return what remains, then the parts.

    Examples
    --------
    >>> rest, (val, test) = split_rows(np.arange(10), (0.1, 0.2), np.random.default_rng(0))
    >>> len(rest), len(val), len(test)
    (7, 1, 2)
    """
    order = rng.permutation(rows)
    parts = []
    for share in shares:
        # At least one row stays, so that no client is left without training data.
        size = min(round(share * len(rows)), max(len(order) - 1, 0))
        parts.append(np.sort(order[:size]))
        order = order[size:]
    return np.sort(order), parts


def cells(label: Rows, group: Rows) -> Rows:
    """Code each example's pair of label and group `(n,)`, alike in every table.

    Examples
    --------
    >>> cells(np.array([0, 2]), np.array([1, 0]))
    array([         1, 4294967296])
    """
    # A fixed factor: one taken from the data would differ between train and test.
    return (label.astype(np.int64) << 31) + group


def follow_mix(train: Rows, parts: Sequence[Rows], test: Rows, seed: int) -> list[Rows]:
    """Deal test rows so that a client's mix is that of its training rows.

    Parameters
    ----------
    train, test : array of int
        Cell of every training row `(n,)` and test row `(m,)`, see `cells`.
    parts : sequence of arrays
        Training rows of each client, `K` of them.
    seed : int

    Returns
    -------
    list of arrays
        Test rows of each client; every test row at exactly one client.

    Examples
    --------
    >>> mix = np.array([0, 0, 0, 1, 1, 1])
    >>> follow_mix(mix, [np.array([0, 1, 2]), np.array([3, 4, 5])], mix, seed=0)
    [array([0, 1, 2]), array([3, 4, 5])]
    """
    rng = np.random.default_rng((seed, 1))
    sizes = np.array([len(part) for part in parts], dtype=np.float64)
    hands: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in parts]
    for cell in np.unique(test):
        counts = np.array([np.count_nonzero(train[part] == cell) for part in parts], np.float64)
        counts = counts if counts.any() else sizes
        # Another order for every cell: else rounding would always favour the same clients.
        order = rng.permutation(len(parts))
        rows = rng.permutation(np.flatnonzero(test == cell))
        shares = counts[order] / counts.sum()
        for client, part in zip(order, cut_by_shares([rows], shares[None]), strict=True):
            hands[client].append(part)
    return [np.sort(np.concatenate(hand)) for hand in hands]
