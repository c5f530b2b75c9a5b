"""SER: local training whose steps, or whose result, are corrected against sign entropy.

Khan, "Sign-Entropy Regularization for Personalized Federated Learning", Entropy 27(6):601 (2025): a
reconstruction, see `sign_entropy` for the mathematics and its symbols. A correction is scale-free,
`u = rho |g| grad R / |grad R|`, and sees the batch loss alone: what a method adds to the loss or to
the gradient is added afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.composed import Composed
from evenfed.core.correction import Alone, Corrected, Gated, Parts, Plain, PostHoc, Remembering
from evenfed.core.descent import Direction, descend
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.noise import draw_salts
from evenfed.core.optimizer import Optimizer
from evenfed.core.sign_entropy import Measure, usual_measure
from evenfed.core.tree import Tree, register_dataclass

_STRENGTH = {"posthoc": 0.1, "interval": 0.3, "step": 0.3}
_GATE = 0.5


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

    def check_walk(self) -> None:
        """Refuse options that need more of a descent than the direction of a step."""
        if self.remembers or self.when != "step":
            raise ConfigError(
                "local.ser: with local.optimizer='entropy_sgd' every step of a walk is corrected: "
                "only when='step' and mode='lookahead', without control='random'"
            )

    def salted(self, generator: torch.Generator, batches: Batches) -> Batches:
        """Batches with all randomness that a descent will need."""
        if self.control != "random":
            return batches
        return SaltedBatches(batches.index, batches.mask, draw_salts(generator))

    def descend(
        self,
        objective: Composed | tuple[Composed, ...],
        params: Tree,
        data: Examples,
        batches: Batches,
        *,
        optimizer: Optimizer,
        lr: Tensor,
        pace: Tensor | None = None,
        clip: float = 0.0,
        context: Tree = (),
        factor: Tensor | None = None,
    ) -> Tree:
        """Take the steps of `batches` from `params` with the regulariser.

        Parameters
        ----------
        objective : Composed, or tuple of them
            The batch loss, and what the method makes of a direction that follows from it. Those of
            a tuple take turns, step by step.
        lr : Tensor
            The rate of a step along the gradient, which the look-ahead step has too.
        pace : Tensor, optional
            The rate of the descent, where directions are not gradients; default: `lr`.
        clip : float
            Bound on the gradient's norm, see `Optimizer`.
        factor : Tensor, optional
            Scalar that multiplies `rho`: a client's own strength.
        """
        objectives = objective if isinstance(objective, tuple) else (objective,)
        pace = lr if pace is None else pace
        given = {**self._given(lr, context, factor, data.mask.device), "pace": pace}
        memory: Tree = ()
        if self.control == "random":
            if not isinstance(batches, SaltedBatches):
                raise ConfigError(
                    "local.ser.control='random' needs batches drawn by local training's own `draw`"
                )
            given["salt"] = batches.salt
            memory = torch.zeros((), device=data.mask.device) if self.remembers else ()
        if self.mode == "gate":
            memory = trees.zeros_like(objectives[0].regarded(params, context)[0])
        turns = self._turns([Parts(one, self, clip) for one in objectives])
        (new, _), extras = descend(
            turns, (params, memory), data, batches, optimizer=optimizer, lr=pace, context=given
        )
        if self.when != "posthoc":
            return new
        last = objectives[-1]
        # the first batch is never the short one at the end of an epoch
        once = Batches(batches.index[..., :1, :], batches.mask[..., :1, :])
        given["path"] = extras["norm"].sum()
        if self.control == "shrink":
            given["start"] = last.regarded(params, context)[0]
        new, _ = descend(
            PostHoc(Parts(last, self)), last.afterwards(new), data, once,
            optimizer=Optimizer(), lr=lr, context=given,
        )  # fmt: skip
        return new

    def corrected(
        self,
        objective: Composed,
        *,
        lr: Tensor,
        context: Tree = (),
        factor: Tensor | None = None,
    ) -> tuple[Direction, Tree]:
        """The direction of one corrected step, and its context, for a descent of another kind."""
        step = Alone(Corrected(Parts(objective, self)))
        return step, self._given(lr, context, factor, lr.device)

    def _given(
        self, lr: Tensor, context: Tree, factor: Tensor | None, device: torch.device
    ) -> dict[str, Tree]:
        """What every step of a descent is told."""
        rho = torch.tensor(self.strength, dtype=torch.float32, device=device)
        return {"own": context, "lr": lr, "rho": rho if factor is None else rho * factor}

    def _turns(self, steps: Sequence[Parts]) -> tuple[Direction, ...]:
        """The method's own turns, with a correction in its turn."""
        count = math.lcm(len(steps), self.interval) if self.when == "interval" else len(steps)
        return tuple(
            Remembering(self._form(t)(steps[t % len(steps)])) for t in range(count)
        )  # fmt: skip

    def _form(self, t: int) -> type[Plain | Corrected | Gated]:
        """What step `t`, counted from 0, is."""
        if self.mode == "gate":
            return Gated
        if self.when == "posthoc":
            return Plain
        return Corrected if self.when == "step" or (t + 1) % self.interval == 0 else Plain
