"""SER: local training whose steps, or whose result, are corrected against sign entropy.

Khan, "Sign-Entropy Regularization for Personalized Federated Learning", Entropy 27(6):601 (2025): a
reconstruction, see `sign_entropy` for the mathematics and its symbols. A correction is scale-free,
`u = rho |g| grad R / |grad R|`, and sees the batch loss alone: what a method adds to the loss or to
the gradient is added afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.descent import Direction, descend
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.noise import draw_salts, normal_like
from evenfed.core.optimizer import Optimizer, inverse_rate
from evenfed.core.sign_entropy import (
    Measure,
    ahead,
    entropy,
    norm,
    regularizer_gradient,
    rescaled,
    soft_sign,
    usual_measure,
    widths,
)
from evenfed.core.task import Params
from evenfed.core.tree import Tree, register_dataclass


class Composed(Protocol):
    """A direction of local training, in its two parts. Equal ones share a trace."""

    def batch_loss(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """The batch loss alone."""

    def completed(
        self, direction: Params, params: Params, batch: Examples, context: Tree
    ) -> Params:
        """A direction that follows from the batch loss, with all that the method adds."""


_STRENGTH = {"posthoc": 0.1, "interval": 0.3, "step": 0.3}
_GATE = 0.5
_COUNTED = 0x9E3779B1
"""Odd: distinct counts give distinct salts."""


@register_dataclass
@dataclass(frozen=True)
class SaltedBatches(Batches):
    """Batches with the number that a random control direction is made from, int64."""

    salt: Tensor

    def shortened(self, fraction: float) -> SaltedBatches:
        """As of `Batches`; the salt stays."""
        short = super().shortened(fraction)
        return SaltedBatches(short.index, short.mask, self.salt)


def first_batch(data: Examples, batches: Batches) -> Examples:
    """The examples of the first step; never the short batch at the end of an epoch."""
    if batches.index.shape[-1] == 0:
        return data
    rows = batches.index[0]
    return Examples(data.x[rows], data.y[rows], data.group[rows], batches.mask[0])


@dataclass(frozen=True)
class SignEntropy:
    """Options of the regulariser.

    Parameters
    ----------
    rho : float, optional
        Strength; 0 turns it off. Default: 0.3 for "step" and "interval", 0.1 for "posthoc", 0.5
        for the gate.
    when : {"step", "interval", "posthoc"}
        At every step; at every `interval`-th step; or one correction after the plain steps of a
        round, on its first batch (the abstract's wording).
    objective : {"js", "entropy"}, optional
        Disagreement of the signs, or their plain entropy, which also rewards large gradients.
        Default: "js" along the path, "entropy" among coordinates.
    mode : {"lookahead", "gate"}
        "gate" needs no second derivative: it keeps a mean `m` of soft signs over the steps of a
        round and multiplies each coordinate of each step by `1 - rho h2((1 + m) / 2)`.
    decay : float
        Of the gate's mean.
    axis : {"time", "coordinates"}
        Signs compared along the path, or (an ablation) among the coordinates of one gradient.
    kappa : float
        Width of the soft sign.
    product : {"double", "difference"}
        How products with the Hessian are computed.
    through : bool, optional
        Whether the derivative of the disagreement goes through the look-ahead step. Default: it
        does for "step" and "interval"; "posthoc" holds that step fixed, as reconstructed. Among
        coordinates nothing looks ahead.
    control : {"none", "random", "shrink"}
        For studies, instead of the correction: a random direction of the same norm, or the plain
        step (the round's plain update) scaled to the norm that the corrected one has.
    """

    rho: float | None = None
    when: Literal["step", "interval", "posthoc"] = "step"
    interval: int = 5
    objective: Literal["js", "entropy"] | None = None
    mode: Literal["lookahead", "gate"] = "lookahead"
    decay: float = 0.8
    axis: Literal["time", "coordinates"] = "time"
    kappa: float = 1.0
    product: Literal["double", "difference"] = "double"
    through: bool | None = None
    control: Literal["none", "random", "shrink"] = "none"

    def __post_init__(self) -> None:
        choices = {
            "when": ("step", "interval", "posthoc"),
            "objective": ("js", "entropy", None),
            "mode": ("lookahead", "gate"),
            "axis": ("time", "coordinates"),
            "product": ("double", "difference"),
            "control": ("none", "random", "shrink"),
        }
        for option, known in choices.items():
            if (value := getattr(self, option)) not in known:
                may_be = ", ".join(f"'{k}'" for k in known if k)
                raise ConfigError(f"local.ser.{option} is {value!r}; it may be {may_be}")
        if self.rho is not None and not self.rho >= 0:
            raise ConfigError(f"local.ser.rho must not be negative, but is {self.rho}")
        if self.interval < 1 or not self.kappa > 0 or not 0 <= self.decay < 1:
            raise ConfigError(
                "local.ser: interval must be at least 1, kappa greater than 0, decay in [0, 1)"
            )
        if self.axis == "coordinates" and self.through:
            raise ConfigError(
                "local.ser.through: axis='coordinates' compares signs of one gradient, there is no "
                "look-ahead step for a derivative to go through"
            )
        if self.mode == "gate":
            self._check_gate()

    def _check_gate(self) -> None:
        fixed = {"when": "step", "axis": "time", "product": "double"}
        for option, only in {**fixed, "objective": None, "through": None}.items():
            if getattr(self, option) != only:
                raise ConfigError(
                    f"local.ser.{option} does not go with mode='gate', which multiplies every step "
                    "by the entropy of its running mean of signs and knows no other form"
                )
        if self.control == "random":
            raise ConfigError(
                "local.ser: the gate adds no direction that a random one could replace; "
                "its controls are 'shrink' and a lower local.lr"
            )
        if self.strength > 1:
            raise ConfigError(f"local.ser.rho of the gate is at most 1, not {self.strength}")

    @property
    def strength(self) -> float:
        """`rho`, or its default."""
        if self.rho is not None:
            return self.rho
        return _GATE if self.mode == "gate" else _STRENGTH[self.when]

    @property
    def measure(self) -> Measure:
        """`objective`, or its default."""
        return self.objective or usual_measure(self.axis)

    @property
    def derives_through(self) -> bool:
        """`through`, or its default."""
        if self.through is not None:
            return self.through
        return self.when != "posthoc" and self.axis == "time"

    @property
    def remembers(self) -> bool:
        """Whether a step needs something of the step before it."""
        random_steps = self.control == "random" and self.when != "posthoc"
        return self.mode == "gate" or random_steps

    def check(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that the options do not go with."""
        if self.remembers and not optimizer.plain:
            raise ConfigError(
                "local.ser: the gate, and a random control at steps, go with plain SGD only: "
                "without momentum, weight_decay and clip"
            )

    def salted(self, generator: torch.Generator, batches: Batches) -> Batches:
        """Batches with all randomness that a descent will need."""
        if self.control != "random":
            return batches
        return SaltedBatches(batches.index, batches.mask, draw_salts(generator))

    def descend(
        self,
        objective: Composed,
        params: Params,
        data: Examples,
        batches: Batches,
        *,
        optimizer: Optimizer,
        lr: Tensor,
        context: Tree = (),
        factor: Tensor | None = None,
    ) -> Params:
        """Take the steps of `batches` from `params` with the regulariser.

        Parameters
        ----------
        objective : Composed
            The batch loss, and what the method adds to its gradient.
        factor : Tensor, optional
            Scalar that multiplies `rho`: a client's own strength.
        """
        rho = torch.tensor(self.strength, dtype=torch.float32, device=data.mask.device)
        given = {"own": context, "lr": lr, "rho": rho if factor is None else rho * factor}
        memory: Tree = ()
        if self.control == "random":
            if not isinstance(batches, SaltedBatches):
                raise ConfigError(
                    "local.ser.control='random' needs batches drawn by local training's own `draw`"
                )
            given["salt"] = batches.salt
            memory = torch.zeros((), device=data.mask.device) if self.remembers else ()
        if self.mode == "gate":
            memory = trees.zeros_like(params)
        turns = self._turns(_Parts(objective, self, optimizer.clip))
        (new, _), extras = descend(
            turns, (params, memory), data, batches, optimizer=optimizer, lr=lr, context=given
        )
        if self.when != "posthoc":
            return new  # type: ignore[no-any-return]
        # the first batch is never the short one at the end of an epoch
        once = Batches(batches.index[..., :1, :], batches.mask[..., :1, :])
        given |= {"path": extras["norm"].sum(), "start": params}
        after = _PostHoc(_Parts(objective, self))
        new, _ = descend(after, new, data, once, optimizer=Optimizer(), lr=lr, context=given)
        return new  # type: ignore[no-any-return]

    def _turns(self, parts: _Parts) -> Direction | tuple[Direction, ...]:
        plain, corrected = _Remembering(_Plain(parts)), _Remembering(_Corrected(parts))
        if self.mode == "gate":
            return _Remembering(_Gated(parts))
        if self.when == "posthoc":
            return plain
        return corrected if self.when == "step" else (plain,) * (self.interval - 1) + (corrected,)


@dataclass(frozen=True)
class _Parts:
    """What all directions need."""

    objective: Composed
    options: SignEntropy
    clip: float = 0.0

    def gradient(self, params: Params, batch: Examples, context: Tree) -> Params:
        return grad(self.objective.batch_loss)(params, batch, context)  # type: ignore[no-any-return]

    def regularized(
        self, params: Params, batch: Examples, given: Tree, salt: Tensor | None
    ) -> tuple[Params, Params]:
        """`g`, and the direction in which a correction goes: `grad R`, or the control's."""
        at = partial(self.gradient, batch=batch, context=given["own"])
        if salt is not None:
            return at(params), normal_like(params, salt)
        o = self.options
        return regularizer_gradient(
            at, params, given["lr"],
            kappa=o.kappa, objective=o.measure, axis=o.axis, product=o.product,
            through=o.derives_through,
        )  # fmt: skip


Step = Callable[[Params, Tree, Examples, Tree], tuple[Params, Tree, Tree]]
"""`(params, memory, batch, given) -> (direction, new memory, extras)`."""


@dataclass(frozen=True)
class _Remembering:
    """A step that may remember something, as a direction from `(params, memory)`.

    A plain step takes `lr * d` away, so `d = (old - new) / lr` leaves the new memory. At a rate of
    zero, where a schedule may end, nothing moves.
    """

    step: Step

    def __call__(self, both: Tree, batch: Examples, given: Tree) -> tuple[Tree, Tree]:
        params, memory = both
        direction, new, extras = self.step(params, memory, batch, given)
        change = trees.map(
            lambda a, b: (a - b) * inverse_rate(given["lr"]).to(a.dtype), memory, new
        )
        return (direction, change), extras


@dataclass(frozen=True)
class _Plain:
    """`g`; before a correction after the fact also its norm, as the optimizer uses it."""

    parts: _Parts

    def __call__(
        self, params: Params, memory: Tree, batch: Examples, given: Tree
    ) -> tuple[Params, Tree, Tree]:
        g = self.parts.gradient(params, batch, given["own"])
        direction = self.parts.objective.completed(g, params, batch, given["own"])
        if self.parts.options.when != "posthoc":
            return direction, memory, ()
        length = norm(g)
        if self.parts.clip:
            length = length.clamp(max=self.parts.clip)
        return direction, memory, {"norm": length}


@dataclass(frozen=True)
class _Corrected:
    """`g + u`."""

    parts: _Parts

    def __call__(
        self, params: Params, memory: Tree, batch: Examples, given: Tree
    ) -> tuple[Params, Tree, Tree]:
        control, salt = self.parts.options.control, None
        if control == "random":
            salt = given["salt"] + memory.round().to(torch.int64) * _COUNTED
            memory = memory + 1
        g, away = self.parts.regularized(params, batch, given, salt)
        direction = trees.add(g, rescaled(away, given["rho"] * norm(g)))
        if control == "shrink":
            direction = rescaled(g, norm(direction))
        return self.parts.objective.completed(direction, params, batch, given["own"]), memory, ()


@dataclass(frozen=True)
class _Gated:
    """`g (1 - rho h2((1 + m) / 2))`, `m` the running mean of soft signs."""

    parts: _Parts

    def __call__(
        self, params: Params, memory: Tree, batch: Examples, given: Tree
    ) -> tuple[Params, Tree, Tree]:
        o = self.parts.options
        g = self.parts.gradient(params, batch, given["own"])
        signs = trees.map(soft_sign, g, widths(g, o.kappa))
        mean = trees.map(lambda m, s: o.decay * m + (1 - o.decay) * s, memory, signs)
        direction = trees.map(
            lambda u, m: u * (1 - given["rho"].to(u.dtype) * entropy((1 + m) / 2)), g, mean
        )
        if o.control == "shrink":
            direction = rescaled(g, norm(direction))
        return self.parts.objective.completed(direction, params, batch, given["own"]), mean, ()


@dataclass(frozen=True)
class _PostHoc:
    """`rho (sum_t |g_t|) grad R / |grad R|` at the end of the plain steps."""

    parts: _Parts

    def __call__(self, params: Params, batch: Examples, given: Tree) -> tuple[Params, Tree]:
        control = self.parts.options.control
        salt = given["salt"] if control == "random" else None
        _, away = self.parts.regularized(params, batch, given, salt)
        correction = rescaled(away, given["rho"] * given["path"])
        if control != "shrink":
            return correction, ()
        # w_0 + (w - w_0) |corrected update| / |update|
        update = trees.subtract(params, given["start"])
        wanted = norm(ahead(update, correction, given["lr"]))
        back = trees.subtract(update, rescaled(update, wanted))
        return trees.map(lambda b: b * inverse_rate(given["lr"]).to(b.dtype), back), ()
