"""Weights of maximum entropy, and the angle of a vector to the line of equal values."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy_weights(losses: Tensor, tau: float, prior: Tensor, p_max: float = 1.0) -> Tensor:
    """Weights `(n,)` proportional to `prior * exp(losses / tau)`, none above `p_max`.

    What a cap takes from a client goes to the others in proportion to their weights. A cap below
    `1 / n` cannot be kept; it gives everybody `1 / n`.

    Examples
    --------
    >>> w = entropy_weights(torch.tensor([1.0, 2.0]), 1e9, torch.ones(2, dtype=torch.float64))
    >>> [round(v, 6) for v in w.tolist()]
    [0.5, 0.5]
    """
    # in logarithms, so that exp neither overflows nor loses those far below the largest loss
    score = prior.double().log() + losses.double() / tau
    p = score.softmax(0)
    cap = max(p_max, 1.0 / len(p))
    held = torch.zeros_like(p, dtype=torch.bool)
    while bool((p > cap * (1 + 1e-12)).any()):
        held |= p > cap
        room = 1.0 - cap * float(held.sum())
        rest = score.masked_fill(held, -math.inf).softmax(0) * room
        p = torch.where(held, torch.full_like(p, cap), rest)
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
    if float(values.min()) == float(values.max()):
        return 0.0
    return math.degrees(math.atan2(float(values.std(correction=0)), mean)) if mean else 0.0
