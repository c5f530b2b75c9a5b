"""Preferences between performance and fairness: rays, scalar losses, and where to sample.

A preference `p` in [0, 1] stands for the ray `lambda = (p, 1 - p)` of (performance loss, fairness
loss). The loss of a ray divides by it, so a larger `p` allows more of the performance loss and
asks for more fairness.

Equations are those of Ye and Tang, "Learning Heterogeneous Performance-Fairness Trade-offs in
Federated Learning" (IJCAI 2025). The distribution of preferences is Dirichlet on the ray, so Beta
on `p`. Its draws are a function of noise and of `alpha`, since `alpha` moves inside a client
function, which may not draw: Marsaglia and Tsang, "A simple method for generating gamma variables"
(2000), with a fixed number of tries.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Scalarization = Literal["tchebycheff", "logsumexp"]
TRIES = 6
"""Proposals for a gamma variable: at most one in 20 is refused, all of them one time in 10^7."""


def rays(preferences: Tensor, eps: float) -> Tensor:
    """`lambda` of preferences `(...)`, kept `eps` away from the ends: `(..., 2)`.

    Examples
    --------
    >>> rays(torch.tensor([0.25, 1.0]), eps=0.01)
    tensor([[0.2500, 0.7500],
            [0.9900, 0.0100]])
    """
    p = preferences.clamp(eps, 1 - eps)
    return torch.stack([p, 1 - p], -1)


def scalarized(losses: Tensor, rays: Tensor, kind: Scalarization) -> Tensor:
    """Eq. 3, `max_j l_j / lambda_j`, or its smooth upper bound (within log 2): `(..., 2) -> (...)`.

    Examples
    --------
    >>> scalarized(torch.tensor([0.3, 0.1]), torch.tensor([0.75, 0.25]), "tchebycheff")
    tensor(0.4000)
    """
    scaled = losses / rays
    return scaled.amax(-1) if kind == "tchebycheff" else scaled.logsumexp(-1)


def draw_noise(generator: torch.Generator, *shape: int) -> dict[str, Tensor]:
    """What `beta_draws` needs for preferences of a shape: normal and uniform values."""
    normal = torch.randn((*shape, 2, TRIES), generator=generator)
    uniform = torch.rand((*shape, 2, TRIES + 1), generator=generator)
    return {"normal": normal, "uniform": uniform}


def beta_draws(alpha: Tensor, noise: dict[str, Tensor]) -> Tensor:
    """Preferences `(...)` from Beta(alpha_1, alpha_2), as a function of noise `(..., 2, TRIES)`.

    Examples
    --------
    >>> noise = draw_noise(torch.Generator().manual_seed(0), 20000)
    >>> round(beta_draws(torch.tensor([3.0, 1.0]), noise).mean().item(), 2)
    0.75
    """
    d = (alpha + 2 / 3).unsqueeze(-1)  # shape alpha + 1, brought down below
    z, u = noise["normal"], noise["uniform"].clamp(1e-30, 1.0)
    v = (1 + z / (3 * d.sqrt())) ** 3
    fits = u[..., :-1].log() < 0.5 * z * z + d - d * v + d * v.clamp(min=1e-30).log()
    first = ((v > 0) & fits).to(torch.int8).argmax(-1, keepdim=True)
    gamma = (d * v).gather(-1, first).squeeze(-1).clamp(min=1e-30)
    # Gamma(a) is Gamma(a + 1) times U^(1/a); in logarithms, as the power may be tiny
    logs = gamma.log() + u[..., -1].log() / alpha
    return torch.sigmoid(logs[..., 0] - logs[..., 1])


def score(alpha: Tensor, preferences: Tensor) -> Tensor:
    """`d log p(lambda | alpha) / d alpha` of Beta for preferences in (0, 1): `(N,) -> (N, 2)`.

    Examples
    --------
    >>> score(torch.ones(2), torch.tensor([0.5])).round(decimals=4)
    tensor([[0.3069, 0.3069]])
    """
    logs = torch.stack([preferences.log(), (1 - preferences).log()], -1)
    return logs - alpha.digamma() + alpha.sum(-1, keepdim=True).digamma()
