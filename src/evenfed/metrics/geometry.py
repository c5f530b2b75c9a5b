"""The shape of a loss around a model: curvature, and how gradients turn along a short path.

Hutchinson, "A Stochastic Estimator of the Trace of the Influence Matrix" (1990); Lanczos, "An
Iteration Method for the Solution of the Eigenvalue Problem" (1950), with full reorthogonalisation.

Symbols: `F` the loss on given data, `g` its gradient, `H` its Hessian. All functions are pure
functions of `(loss, params, data, ...)` for one client, and run under `torch.func.vmap` for many.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vjp

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.noise import normal_like, rademacher_like
from evenfed.core.sign_entropy import ahead, entropy, norm
from evenfed.core.task import Params

Loss = Callable[[Params, Examples], Tensor]
"""`(params, data) -> scalar`."""

_TINY = 1e-30


def sign_pattern(
    loss: Loss, params: Params, data: Examples, *, rate: float | Tensor, steps: int = 10
) -> tuple[Tensor, Tensor]:
    """Sign entropy and flip rate of the gradients on the same data, along a path of `steps`.

    The path is gradient descent of rate `rate` from `params`: no batches, so that a sign that
    changes tells of curvature and not of sampling.

    Returns
    -------
    entropy : Tensor
        Mean over coordinates of `h2(p_j)` in bits, `p_j` the share of positive signs.
    flip_rate : Tensor
        Mean over coordinates of the share of consecutive steps with opposite signs. For every
        coordinate the number of sign changes is at most `steps * h2(p_j)`.
        Coordinates whose gradient is always zero are left out of both.
    """
    eta = torch.as_tensor(rate)
    zero: Params = trees.zeros_like(params)
    plus, minus, flips, last = zero, zero, zero, zero
    for _ in range(steps):
        g = grad(loss)(params, data)
        sign: Params = trees.map(torch.sign, g)
        plus = trees.map(lambda n, s: n + (s > 0), plus, sign)
        minus = trees.map(lambda n, s: n + (s < 0), minus, sign)
        flips = trees.map(lambda n, s, before: n + (s * before < 0), flips, sign, last)
        last, params = sign, ahead(params, g, eta)
    return signs_summary(plus, minus, flips, steps)


def signs_summary(plus: Params, minus: Params, flips: Params, steps: int) -> tuple[Tensor, Tensor]:
    """Sign entropy and flip rate from numbers of positive and negative signs, and of changes."""
    seen = [(p + m > 0).to(p.dtype) for p, m in _zipped(plus, minus)]
    size = torch.stack([s.sum() for s in seen]).sum().clamp(min=1)
    bits = [
        (entropy(p / (p + m).clamp(min=1)) * s).sum()
        for (p, m), s in zip(_zipped(plus, minus), seen, strict=True)
    ]
    changes = torch.stack([f.sum() for f in trees.leaves(flips)]).sum()
    return torch.stack(bits).sum() / size, changes / (size * max(1, steps - 1))


def _zipped(a: Params, b: Params) -> list[tuple[Tensor, Tensor]]:
    return list(zip(trees.leaves(a), trees.leaves(b), strict=True))


def hessian_product(loss: Loss, params: Params, data: Examples) -> Callable[[Params], Params]:
    """`v -> H v` at `params`, by a backward pass of the backward pass."""
    _, pull, *_ = vjp(lambda p: grad(loss)(p, data), params)
    return lambda v: pull(v)[0]


def hessian_trace(
    loss: Loss, params: Params, data: Examples, probes: Tensor
) -> tuple[Tensor, Tensor]:
    """Trace of `H` by Hutchinson's estimator: the mean of `z' H z` over Rademacher vectors `z`.

    Parameters
    ----------
    probes : Tensor
        Salts `(m,)`, int64: one a probe (see `core.noise`).

    Returns
    -------
    trace, standard_error : Tensor
        Scalars; the error is NaN for a single probe.
    """
    product = hessian_product(loss, params, data)
    values = []
    for salt in probes.unbind():
        z = rademacher_like(params, salt)
        values.append(trees.dot(z, product(z)))
    found = torch.stack(values)
    if len(values) == 1:
        return found.mean(), torch.full_like(found.mean(), torch.nan)
    return found.mean(), found.std() / len(values) ** 0.5


def top_eigenvalue(
    loss: Loss, params: Params, data: Examples, start: Tensor, *, steps: int = 20
) -> Tensor:
    """The eigenvalue of `H` of largest magnitude, with its sign: a Rayleigh quotient of Lanczos.

    Parameters
    ----------
    start : Tensor
        Salt of the first vector, int64.
    steps : int
        Products with the Hessian; at least 20 for models of many parameters.
    """
    product = hessian_product(loss, params, data)
    size = sum(leaf.numel() for leaf in trees.leaves(params))
    v = _unit(normal_like(params, start))
    basis: list[Params] = []
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(min(steps, size)):
        basis.append(v)
        w = product(v)
        diagonal.append(trees.dot(v, w))
        for _ in range(2):  # once leaves rounding errors along the basis
            for b in basis:
                w = trees.add(w, b, -trees.dot(b, w))
        length = norm(w)
        # the Krylov space may be exhausted: what remains is rounding, and is left at zero
        scale = torch.stack(diagonal).abs().max()
        length = torch.where(length > 1e-6 * scale, length, torch.zeros_like(length))
        beside.append(length)
        v = trees.scale(w, torch.where(length > 0, 1 / length.clamp(min=_TINY), 0.0))
    matrix = torch.diag_embed(torch.stack(diagonal))
    if len(diagonal) > 1:
        side = torch.stack(beside[:-1])
        matrix = matrix + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values.gather(-1, values.abs().argmax(-1, keepdim=True)).squeeze(-1)


def _unit(tree: Params) -> Params:
    return trees.scale(tree, 1 / norm(tree).clamp(min=_TINY))  # type: ignore[no-any-return]


def geometry(
    loss: Loss,
    params: Params,
    data: Examples,
    salts: Tensor,
    *,
    rate: float | Tensor,
    path: int = 10,
    lanczos: int = 20,
) -> dict[str, Tensor]:
    """All measures of this module for one client, as scalars by name.

    `salts` `(m + 1,)`: the first one starts Lanczos, the others are Hutchinson's probes.
    """
    bits, flips = sign_pattern(loss, params, data, rate=rate, steps=path)
    trace, error = hessian_trace(loss, params, data, salts[1:])
    return {
        "sign_entropy": bits,
        "flip_rate": flips,
        "hessian_trace": trace,
        "hessian_trace_error": error,
        "top_eigenvalue": top_eigenvalue(loss, params, data, salts[0], steps=lanczos),
    }
