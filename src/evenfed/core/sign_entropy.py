"""Sign entropy of gradients, and its gradient in the weights.

Khan, "Sign-Entropy Regularization for Personalized Federated Learning", Entropy 27(6):601 (2025).
Its equations were not within reach: this is a reconstruction from the paper's abstract.

Symbols: `g_0` the gradient of the batch loss `F` at `w`; `g_1` the one on the same batch at the
look-ahead point `w+ = w - eta g_0`; `s(u) = u / sqrt(u^2 + kappa^2 nu^2)` a soft sign, `nu` the
root mean square of that tensor's gradient (held fixed); `pi_k = (1 + s(g_k)) / 2`; `pbar` their
mean; `h2` the binary entropy in bits; `A` the coordinates whose gradient is not zero.

    objective "js":       R = 1/|A| sum_A [h2(pbar) - (h2(pi_0) + h2(pi_1)) / 2]
    objective "entropy":  R = 1/|A| sum_A h2(pbar)
    v_k = dR/dg_k = 1/(4|A|) [h2'(pbar) - h2'(pi_k)] s'(g_k)      ("entropy": without h2'(pi_k))
    grad R = Hess F(w) v_0 + a,  a = Hess F(w+) v_1               (the step to w+ held fixed)
    grad R = Hess F(w) (v_0 - eta a) + a                          (`through` that step)

An ablation compares coordinates, not steps: `p+` is the mean of `pi_0` over `A`, and the plain form
is `R = h2(p+)`, the entropy of the share of positive signs; "js" takes the mean of `h2(pi_0)` away.

What ties signs to their entropy: a coordinate with `n+` positive and `n-` negative signs in `E`
steps changes its sign `V <= 2 min(n+, n-) <= E h2(n+ / E)` times. What ties them to curvature:
`g_0 . g_1 ~ |g|^2 - eta g'Hg`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import vjp

from evenfed.core import tree as trees
from evenfed.core.task import Params

Gradient = Callable[[Params], Params]
"""`params -> gradient` of the batch loss."""
Measure = Literal["js", "entropy"]
Axis = Literal["time", "coordinates"]
Product = Literal["double", "difference"]

_CLIP = 1e-4
"""Probabilities stay in [_CLIP, 1 - _CLIP]."""
_TINY = 1e-30
"""Smallest scale of a tensor's gradient, and smallest norm that is divided by."""
_REACH = 1e-2
"""Length of the step of a finite difference."""


def entropy(p: Tensor) -> Tensor:
    """`h2(p)`, in bits.

    Examples
    --------
    >>> entropy(torch.tensor([0.0, 0.5, 1.0])).abs().tolist()
    [0.0, 1.0, 0.0]
    """
    nats: Tensor = torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)
    return 0.0 - nats / math.log(2)


def widths(gradient: Params, kappa: float) -> Params:
    """`kappa nu` of every tensor: where its soft sign turns."""
    return trees.map(  # type: ignore[no-any-return]
        lambda g: (kappa * g.square().mean().sqrt()).clamp(min=_TINY), gradient
    )


def soft_sign(u: Tensor, width: Tensor) -> Tensor:
    """`s(u)`: near -1 and +1 for `|u|` well above `width`.

    Examples
    --------
    >>> soft_sign(torch.tensor([-3.0, 0.0, 4.0]), torch.tensor(3.0))[2].item()
    0.800000011920929
    """
    r = u / width
    return r / (1 + r * r).sqrt()


def _slope(u: Tensor, width: Tensor) -> Tensor:
    """`s'(u)`."""
    r = u / width
    square = 1 + r * r
    return 1 / (square * square.sqrt() * width)


def _probability(u: Tensor, width: Tensor) -> Tensor:
    """`pi` within its bounds."""
    return ((1 + soft_sign(u, width)) / 2).clamp(_CLIP, 1 - _CLIP)


def _free(p: Tensor) -> Tensor:
    """1 where a probability is not held by its bounds, else 0."""
    return ((p > _CLIP) & (p < 1 - _CLIP)).to(p.dtype)


def counted(g0: Tensor, g1: Tensor) -> tuple[Tensor, Tensor]:
    """`A` of two gradients `(N,)` as ones and zeros, and `|A|` (at least 1)."""
    inside = ((g0 != 0) | (g1 != 0)).to(g0.dtype)
    return inside, inside.sum().clamp(min=1)


def _spread(at: Params, like: Params) -> Tensor:
    """The width of every number of a gradient, `(N,)`."""
    return trees.joined(trees.map(lambda w, g: w.expand(g.shape), at, like))


def usual_measure(axis: Axis) -> Measure:
    """What `R` measures where nothing is said.

    Examples
    --------
    >>> usual_measure("time"), usual_measure("coordinates")
    ('js', 'entropy')
    """
    return "js" if axis == "time" else "entropy"


def disagreement(
    g0: Params,
    g1: Params,
    at0: Params,
    at1: Params,
    objective: Measure | None = None,
    axis: Axis = "time",
) -> Tensor:
    """`R` of two gradients, a scalar in bits.

    Parameters
    ----------
    g0, g1 : trees
        Gradients on one batch at `w` and at the look-ahead point.
    at0, at1 : trees
        Their `widths`, held fixed in derivatives.
    objective : {"js", "entropy"}, optional
        Default: `usual_measure` of the axis.
    axis : {"time", "coordinates"}
        "coordinates" is an ablation: the entropy of the share of positive signs among all
        coordinates of `g0` alone, with "js" less the mean entropy of a single one.
    """
    objective = objective or usual_measure(axis)
    u0, u1 = trees.joined(g0), trees.joined(g1)
    inside, size = counted(u0, u1)
    pi0 = _probability(u0, _spread(at0, g0))
    if axis == "coordinates":
        share = (pi0 * inside).sum() / size
        noise = (entropy(pi0) * inside).sum() / size
        return entropy(share) - noise if objective == "js" else entropy(share)
    pi1 = _probability(u1, _spread(at1, g1))
    mixed = entropy((pi0 + pi1) / 2)
    if objective == "js":
        mixed = mixed - (entropy(pi0) + entropy(pi1)) / 2
    return (mixed * inside).sum() / size


def disagreement_gradients(
    g0: Params,
    g1: Params,
    at0: Params,
    at1: Params,
    objective: Measure | None = None,
    axis: Axis = "time",
) -> tuple[Params, Params | None]:
    """`v_0` and `v_1`: derivatives of `R` by the two gradients; None where `R` ignores `g1`."""
    objective = objective or usual_measure(axis)
    u0, u1 = trees.joined(g0), trees.joined(g1)
    inside, size = counted(u0, u1)
    width0 = _spread(at0, g0)
    pi0 = _probability(u0, width0)
    if axis == "coordinates":
        share = (pi0 * inside).sum() / size
        v0 = _pull(share, pi0, objective) * _slope(u0, width0) * _free(pi0) * inside / (2 * size)
        return trees.parted(v0, g0), None
    width1 = _spread(at1, g1)
    pi1 = _probability(u1, width1)
    mean = (pi0 + pi1) / 2
    share_of_one = inside / (4 * size)
    v0, v1 = (
        _pull(mean, p, objective) * _slope(u, w) * _free(p) * share_of_one
        for u, w, p in ((u0, width0, pi0), (u1, width1, pi1))
    )
    return trees.parted(v0, g0), trees.parted(v1, g1)


def _pull(mean: Tensor, p: Tensor, objective: Measure) -> Tensor:
    """`h2'(mean) - h2'(p)`, or `h2'(mean)`, with `h2'(p) = log2((1 - p) / p)`.

    The difference of two nearly equal logarithms is taken inside of one.
    """
    if objective == "entropy":
        return ((1 - mean) / mean).log() / math.log(2)
    return ((p - mean) / (mean * (1 - p))).log1p() / math.log(2)


def norm(tree: Params) -> Tensor:
    """Euclidean norm over all tensors, a scalar."""
    return trees.squared_norm(tree).sqrt()


def rescaled(tree: Params, length: Tensor) -> Params:
    """The tree with a given norm; zeros stay zeros.

    Relative to its largest entry, since squares of very small or large ones are no floats.
    """
    numbers = trees.joined(tree)
    unit = numbers / numbers.abs().max().clamp(min=_TINY)
    factor = length / unit.square().sum().sqrt().clamp(min=0.5)  # at least 1, but for zeros
    return trees.parted(unit * factor.to(unit.dtype), tree)  # type: ignore[no-any-return]


def ahead(params: Params, direction: Params, rate: Tensor) -> Params:
    """`w - rate * direction`, in the parameters' precision."""
    return trees.map(lambda p, d: p - rate.to(p.dtype) * d, params, direction)  # type: ignore[no-any-return]


def regularizer_gradient(
    gradient: Gradient,
    params: Params,
    rate: Tensor,
    *,
    kappa: float = 1.0,
    objective: Measure | None = None,
    axis: Axis = "time",
    product: Product = "double",
    through: bool = False,
) -> tuple[Params, Params]:
    """`g_0` and `grad R` at `params`.

    Parameters
    ----------
    gradient : callable
        `params -> gradient` of the batch loss; differentiable for `product="double"`.
    rate : Tensor
        `eta` of the look-ahead step.
    objective, axis
        See `disagreement`.
    product : {"double", "difference"}
        Hessian-vector products by a second backward pass (of a backward pass, which vmap and
        tracing take), or by central differences.
    through : bool
        Whether the derivative goes through the look-ahead step, which it otherwise holds fixed.
        The number of products is the same.
    """
    g0, product0 = _with_product(gradient, params, product)
    if axis == "coordinates":
        v0, _ = _pair_gradients(g0, g0, kappa, objective, axis)
        return g0, product0(v0)
    g1, product1 = _with_product(gradient, ahead(params, g0, rate), product)
    v0, v1 = _pair_gradients(g0, g1, kappa, objective, axis)
    assert v1 is not None
    a = product1(v1)
    return g0, trees.add(a, product0(ahead(v0, a, rate) if through else v0))


def _with_product(gradient: Gradient, params: Params, how: Product) -> tuple[Params, Gradient]:
    """`g`, and `v -> Hess F v`: the Hessian is its own transpose."""
    if how == "difference":
        return gradient(params), lambda v: _difference(gradient, params, v)
    g, pull, *_ = vjp(gradient, params)
    return g, lambda v: pull(v)[0]


def _pair_gradients(
    g0: Params, g1: Params, kappa: float, objective: Measure | None, axis: Axis
) -> tuple[Params, Params | None]:
    at0, at1 = widths(g0, kappa), widths(g1, kappa)
    return disagreement_gradients(g0, g1, at0, at1, objective, axis)


def _difference(gradient: Gradient, params: Params, v: Params) -> Params:
    """`Hess F v` from the gradients at `w + e v` and `w - e v`, `|e v| = _REACH`."""
    length = norm(v)
    step = rescaled(v, torch.full_like(length, _REACH))
    beyond, before = gradient(trees.add(params, step)), gradient(trees.subtract(params, step))
    change = trees.subtract(beyond, before)
    return trees.map(lambda d: d * (length / (2 * _REACH)).to(d.dtype), change)  # type: ignore[no-any-return]


def same_batch_entropy(
    gradient: Gradient, params: Params, rate: Tensor, kappa: float = 1.0
) -> Tensor:
    """Mean `h2(pbar)` of the look-ahead pair at `params`, in [0, 1]."""
    g0 = gradient(params)
    g1 = gradient(ahead(params, g0, rate))
    return disagreement(g0, g1, widths(g0, kappa), widths(g1, kappa), "entropy")
