"""Small linear programmes over the simplex, by SciPy."""

from __future__ import annotations

import torch
from torch import Tensor

from evenfed.core.errors import EvenfedError


def best_mix(gain: Tensor, keep: Tensor | None = None, largest: float = 1.0) -> Tensor:
    """Weights `a` `(r,)` that maximise `a . gain`.

    Parameters
    ----------
    gain : Tensor `(r,)`
    keep : Tensor `(c, r)`, optional
        Constraints `keep @ a >= 0`.
    largest : float
        Largest weight, at least `1 / r`. Weights are not negative and sum to one.

    Examples
    --------
    >>> best_mix(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, -3.0]])).tolist()
    [0.75, 0.25]
    >>> best_mix(torch.tensor([1.0, 2.0, 0.0]), largest=0.5).tolist()
    [0.5, 0.5, 0.0]
    """
    from scipy.optimize import linprog

    gain = gain.double().cpu()
    # each by itself: the solver takes a row that is tiny beside the others for zeros
    bounds = None if keep is None else -torch.stack([*map(_scaled, keep.double().cpu())]).numpy()
    found = linprog(
        -_scaled(gain).numpy(),
        A_ub=bounds,
        b_ub=None if bounds is None else torch.zeros(len(bounds)).numpy(),
        A_eq=torch.ones(1, len(gain)).numpy(),
        b_eq=[1.0],
        bounds=(0.0, largest),
        method="highs",
    )
    if not found.success:
        raise EvenfedError(f"a linear programme over {len(gain)} weights failed: {found.message}")
    return torch.from_numpy(found.x).to(torch.float64).clamp(min=0.0) + 0.0  # no -0.0


def _scaled(values: Tensor) -> Tensor:
    """Divided by the largest magnitude: the solver's tolerances are absolute."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return values / largest if largest > 0 else values
