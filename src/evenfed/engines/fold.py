"""The running weighted mean of uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, EvenfedError
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Chunk, Dropped, Mean

Weights = Literal["size", "uniform"] | Tensor | Callable[[Tree, Tensor], Tensor]


class Fold:
    """Adds uploads to running sums, one by one, in a fixed order."""

    def __init__(
        self, weights: Weights, keep: tuple[str, ...], each: Callable[[Tree], Tree] | None
    ) -> None:
        self.weights = weights
        self.keep = keep
        self.each = each
        self.total = 0.0
        self.sums: list[Tensor] = []
        self.wide: list[Tensor] = []
        """Room for one upload in the precision of the sums."""
        self.like: Tree = None
        self.rows: list[tuple[int, int, int, dict[str, Tree]]] = []

    def add(self, chunk: Chunk, good: NDArray[np.bool_]) -> None:
        """Add the usable uploads of a chunk, in its order."""
        uploads = chunk.uploads if self.each is None else vmap(self.each)(chunk.uploads)
        weights = self._weights(chunk, uploads)
        kept: dict[str, Tree] = {}
        if self.keep:
            if not isinstance(uploads, Mapping):
                raise ConfigError("keep= names parts of an upload, so the upload must be a dict")
            kept = {name: uploads[name] for name in self.keep}
            uploads = {k: v for k, v in uploads.items() if k not in self.keep}
        leaves, _ = trees.flatten(uploads)
        if not self.rows:
            self.like = trees.map(lambda t: t[0], uploads)
            self.sums = [
                torch.zeros(t.shape[1:], dtype=torch.float64, device=t.device) for t in leaves
            ]
            self.wide = [torch.empty_like(total) for total in self.sums]
        columns = [leaf.unbind(0) for leaf in leaves]
        for i, (seat, size) in enumerate(zip(chunk.seats, chunk.sizes, strict=True)):
            if not good[i]:
                continue
            self.total += weights[i]
            for total, wide, column in zip(self.sums, self.wide, columns, strict=True):
                total.add_(wide.copy_(column[i]), alpha=weights[i])
            self.rows.append(
                (seat.position, seat.index, size, trees.row(kept, i) if kept else kept)
            )

    def _weights(self, chunk: Chunk, uploads: Tree) -> list[float]:
        w = self.weights
        if isinstance(w, str):
            return [1.0] * len(chunk.seats) if w == "uniform" else [float(n) for n in chunk.sizes]
        if isinstance(w, Tensor):
            return [float(w[seat.position]) for seat in chunk.seats]
        values = w(uploads, torch.tensor(chunk.sizes, dtype=torch.float64))
        return [float(v) for v in values.to(torch.float64)]

    def mean(self, name: str, dropped: tuple[Dropped, ...]) -> Mean:
        """The mean of what was added, in the uploads' precision."""
        if not self.total > 0 or not np.isfinite(self.total):
            raise EvenfedError(
                f"the weights of the mean over '{name}' sum to {self.total}; "
                "they must have a positive, finite sum"
            )
        rows = sorted(self.rows, key=lambda row: row[0])
        leaves, structure = trees.flatten(self.like)
        values = [
            (total / self.total).to(like.dtype if like.is_floating_point() else torch.float64)
            for total, like in zip(self.sums, leaves, strict=True)
        ]
        return Mean(
            trees.unflatten(values, structure),
            {k: trees.stack([row[3][k] for row in rows]) for k in self.keep},
            np.array([row[1] for row in rows], dtype=np.int64),
            torch.tensor([row[2] for row in rows], dtype=torch.float64),
            self.total,
            dropped,
        )
