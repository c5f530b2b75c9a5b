"""The running weighted mean of uploads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, EvenfedError, QuorumError
from evenfed.core.even import Even
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Chunk, Dropped, Mean

WeightFunction = Callable[[Tree, Tensor], Tensor]
"""`(stacked uploads, sizes (c,)) -> (c,)`."""


@dataclass(frozen=True)
class Tilted:
    """Weights `base * exp(exponent)`, folded without overflow and without knowing the largest.

    Parameters
    ----------
    exponent : callable
        `(stacked uploads, sizes (c,)) -> (c,)`, e.g. losses divided by a temperature.
    base : {"size", "uniform"}
        What the weights are where all exponents are equal.
    """

    exponent: WeightFunction
    base: Literal["size", "uniform"] = "size"


Weighting = Literal["size", "uniform"] | Tensor | WeightFunction | Tilted
Weights = Weighting | Mapping[str, Weighting]
"""One weighting for the whole upload, or one for each of its parts by name."""

_BLOCK = 1 << 16
"""Numbers of the sums that stay in the cache while all uploads of a chunk are added to them."""


_SMALL = 1 << 13
"""Numbers of a leaf below which calls cost more than copying it beside others."""


def check_weights(weights: Weights, clients: int) -> None:
    """Refuse weights that are not those of an exchange with `clients` clients."""
    for weighting in weights.values() if isinstance(weights, Mapping) else (weights,):
        base = weighting.base if isinstance(weighting, Tilted) else weighting
        if isinstance(base, str) and base not in ("size", "uniform"):
            raise ConfigError(f"weights are '{base}'; by name they may be 'size' or 'uniform'")
        if isinstance(base, Tensor) and base.shape != (clients,):
            raise ConfigError(
                f"weights have shape {tuple(base.shape)}; the exchange asks {clients} clients"
            )


class Fold:
    """Adds uploads to running sums, one by one, in a fixed order."""

    def __init__(
        self, weights: Weights, keep: tuple[str, ...], each: Callable[[Tree], Tree] | None
    ) -> None:
        self.keep = keep
        self.each = each
        self.by_part = isinstance(weights, Mapping)
        self.sums = {
            name: _Sum(weighting)
            for name, weighting in (
                weights.items() if isinstance(weights, Mapping) else [("", weights)]
            )
        }
        self.rows: list[tuple[int, int, int, dict[str, Tree]]] = []

    def add(self, chunk: Chunk, good: NDArray[np.bool_]) -> None:
        """Add the usable uploads of a chunk, in its order."""
        uploads = chunk.uploads
        if self.each is not None:
            with Even():
                uploads = vmap(self.each)(uploads)
        if (self.keep or self.by_part) and not isinstance(uploads, Mapping):
            raise ConfigError("parts of an upload are named, so the upload must be a dict")
        kept = {name: uploads[name] for name in self.keep}
        folded = {k: v for k, v in uploads.items() if k not in self.keep} if kept else uploads
        if self.by_part and set(folded) != set(self.sums):
            raise ConfigError(
                f"weights are given for the parts {sorted(self.sums)}, but the upload has "
                f"{sorted(folded)}"
            )
        rows = [i for i in range(len(chunk.seats)) if good[i]]
        for name, total in self.sums.items():
            total.add(chunk, uploads, folded[name] if self.by_part else folded, rows)
        for i in rows:
            seat = chunk.seats[i]
            row = trees.row(kept, i) if kept else kept
            self.rows.append((seat.position, seat.index, chunk.sizes[i], row))

    def mean(self, name: str, dropped: tuple[Dropped, ...]) -> Mean:
        """The mean of what was added, in the uploads' precision."""
        rows = sorted(self.rows, key=lambda row: row[0])
        values = {part: total.mean(name) for part, total in self.sums.items()}
        first = next(iter(self.sums.values()))
        return Mean(
            values if self.by_part else values[""],
            {k: trees.stack([row[3][k] for row in rows]) for k in self.keep},
            np.array([row[1] for row in rows], dtype=np.int64),
            torch.tensor([row[2] for row in rows], dtype=torch.float64),
            first.weight,
            dropped,
        )


class _Sum:
    """The weighted sum of one part of the uploads, in float64."""

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting
        self.weight = 0.0
        self.peak = -math.inf
        """Largest exponent so far; sums are relative to its exponential."""
        self.packs: list[list[int]] = []
        """Leaves that are added together: small ones side by side, large ones alone."""
        self.totals: list[Tensor] = []
        """Flat, one a pack."""
        self.like: Tree = None

    def add(self, chunk: Chunk, uploads: Tree, part: Tree, rows: list[int]) -> None:
        weights, exponents = self._weights(chunk, uploads)
        leaves, _ = trees.flatten(part)
        if self.like is None:
            self.like = trees.map(lambda t: t[0], part)
            self.packs = _packs(leaves)
            self.totals = [
                torch.zeros(
                    sum(leaves[i][0].numel() for i in pack),
                    dtype=torch.float64,
                    device=leaves[pack[0]].device,
                )
                for pack in self.packs
            ]
        steps = []
        for i in rows:
            shrink, factor = (1.0, 1.0) if exponents is None else self._tilt(exponents[i])
            steps.append((i, shrink, weights[i] * factor))
            self.weight = self.weight * shrink + steps[-1][2]
        for total, pack in zip(self.totals, self.packs, strict=True):
            parts = [leaves[i].reshape(len(leaves[i]), -1) for i in pack]
            table = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            for start in range(0, total.numel(), _BLOCK):
                piece = total[start : start + _BLOCK]
                columns = table[:, start : start + _BLOCK].unbind(0)
                wide = torch.empty_like(piece)
                for i, shrink, weight in steps:
                    if shrink != 1:
                        piece.mul_(shrink)
                    piece.add_(wide.copy_(columns[i]), alpha=weight)

    def _tilt(self, exponent: float) -> tuple[float, float]:
        """Factors of what was added before and of a new upload, which may have a new peak."""
        if exponent == -math.inf:
            return 1.0, 0.0
        if exponent <= self.peak:
            return 1.0, math.exp(exponent - self.peak)
        shrink = math.exp(self.peak - exponent)
        self.peak = exponent
        return shrink, 1.0

    def _weights(self, chunk: Chunk, uploads: Tree) -> tuple[list[float], list[float] | None]:
        w: Any = self.weighting
        base = w.base if isinstance(w, Tilted) else w
        sizes = torch.tensor(chunk.sizes, dtype=torch.float64)
        if isinstance(base, str):
            ones = [1.0] * len(chunk.seats)
            plain = ones if base == "uniform" else sizes.tolist()
        elif isinstance(base, Tensor):
            plain = [float(base[seat.position]) for seat in chunk.seats]
        else:
            plain = base(uploads, sizes).to(torch.float64).tolist()
        if isinstance(w, Tilted):
            return plain, w.exponent(uploads, sizes).to(torch.float64).tolist()
        return plain, None

    def mean(self, name: str) -> Tree:
        if self.weight == 0:
            raise QuorumError(
                f"nobody with any weight answered '{name}': weights need a positive, finite sum"
            )
        if not self.weight > 0 or not math.isfinite(self.weight):
            raise EvenfedError(
                f"the weights of the mean over '{name}' sum to {self.weight}; "
                "they must have a positive, finite sum"
            )
        leaves, structure = trees.flatten(self.like)
        values = list(leaves)
        for total, pack in zip(self.totals, self.packs, strict=True):
            parts = (total / self.weight).split([leaves[i].numel() for i in pack])  # type: ignore[no-untyped-call]
            for i, part in zip(pack, parts, strict=True):
                dtype = leaves[i].dtype if leaves[i].is_floating_point() else torch.float64
                values[i] = part.view(leaves[i].shape).to(dtype, copy=len(pack) > 1)
        return trees.unflatten(values, structure)


def _packs(leaves: list[Tensor]) -> list[list[int]]:
    """Indices of leaves `(c, ...)` that may stand side by side in one table."""
    packs: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        small = leaf[0].numel() < _SMALL
        packs.setdefault((leaf.dtype, leaf.device) if small else i, []).append(i)
    return list(packs.values())
