"""Weights of maximum entropy, and the angle of a vector to the line of equal values."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy_weights(losses: Tensor, tau: float, prior: Tensor, p_max: float = 1.0) -> Tensor:
    """Weights `(n,)` proportional to `prior * exp(losses / tau)`, none above `p_max`.

    What a cap takes from a client goes to the others in proportion to their weights.

    Examples
    --------
    >>> w = entropy_weights(torch.tensor([1.0, 2.0]), 1e9, torch.ones(2, dtype=torch.float64))
    >>> [round(v, 6) for v in w.tolist()]
    [0.5, 0.5]
    """
    # the largest loss is subtracted, so that exp neither overflows nor loses all of them
    raw = prior.double() * torch.exp((losses.double() - losses.double().max()) / tau)
    p = raw / raw.sum()
    cap = max(p_max, 1.0 / len(p))
    held = torch.zeros_like(p, dtype=torch.bool)
    while bool((p > cap * (1 + 1e-12)).any()):
        held |= p > cap
        free = raw * ~held
        room = 1.0 - cap * float(held.sum())
        p = torch.where(held, cap, free / free.sum() * room if float(free.sum()) > 0 else room)
    return p


def fair_angle(losses: Tensor) -> float:
    """Angle in degrees between the losses and the line of equal losses.

    It equals the arcus tangens of their coefficient of variation.

    Examples
    --------
    >>> fair_angle(torch.tensor([2.0, 2.0]))
    0.0
    """
    values = losses.double()
    mean = float(values.mean())
    return math.degrees(math.atan2(float(values.std(correction=0)), mean)) if mean else 0.0
