"""What is proved about a model that was trained under bounds on group losses.

Everything is about training data, and measured after training; nothing rests on the theorem on the
number of rounds. With `(w, lambda)` the model handed out and its multipliers, and
`low = min_v G(v, lambda)` (a lower bound of it, see `saddle`):

- violation: `max_z r_z(w)`, measured.
- gap: `nu = max{G(w, lambda) - low, beta F(w) + B max(0, max_z r_z(w)) - G(w, lambda)}`.
- objective: a model that meets the bounds has `beta F >= G(., lambda) >= low`, so
  `F(w) - F(w*) <= F(w) - low / beta`.
- violation if the bounds can be met (Lemma 1 with beta):
  `B max_z r_z(w) <= beta (F(v) - F(w)) + 2 nu` for every model v that meets them.
- infeasible: `min_w lambda . r(w) > 0` for some `lambda` on the simplex.
- generalisation: with probability `1 - delta`, for all models of the class and all cells,
  true `R_z <= R_z + 2 Rad_z + M sqrt(log(2 Z / delta) / (2 m_z))` (McDiarmid: one of `m_z`
  independent examples moves the mean by `M / m_z`). The paper's second term,
  `(M / m_z) sqrt(K / 2 log(2 Z / delta))`, is not a valid bound and is not used.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from evenfed.core.convexity import why_not_convex
from evenfed.core.errors import ConfigError
from evenfed.core.task import Task

Status = Literal["feasible", "infeasible", "undetermined", "no bounds"]


@dataclass(frozen=True)
class Certify:
    """Options of a certificate.

    Parameters
    ----------
    solve : bool
        Whether lower bounds are computed (convex problems); else losses are only measured.
    curved : bool
        Whether clients send second derivatives of their loss, once: some ten times fewer exchanges
        and tighter bounds, for weighted second moments of each client's features.
    tolerance : float
        Violation up to which the text says that a model meets its bounds.
    delta : float
        Chance that the generalisation terms fail.
    loss_bound : float
        `M`: no loss is larger; 0 to derive it from the norms, where they are given.
    weight_norm, feature_norm : float
        Norms that no model of the class and no feature vector exceeds (with a 1 for the bias);
        both 0: unknown. They must be chosen before training.
    """

    solve: bool = True
    curved: bool = False
    tolerance: float = 1e-3
    delta: float = 0.05
    loss_bound: float = 0.0
    weight_norm: float = 0.0
    feature_norm: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigError(f"certify.delta must be in (0, 1), not {self.delta}")
        if min(self.tolerance, self.loss_bound, self.weight_norm, self.feature_norm) < 0:
            raise ConfigError("numbers of certify must not be negative")


@dataclass(frozen=True)
class Cell:
    """One constraint: a group, or a group with a label."""

    name: str
    examples: int
    loss: float | None
    bound: float | None
    """None: no bound."""
    excess: float | None
    multiplier: float
    minimax_loss: float | None
    """Loss of the model found whose largest excess is least."""
    concentration: float | None
    """`M sqrt(log(2 Z / delta) / (2 m_z))`; None: omitted."""
    complexity: float | None
    """`2 Rad_z`; None: omitted."""


@dataclass(frozen=True)
class Proof:
    """`lambda . r(w) > 0` for all models within `distance` of one that was found."""

    multipliers: dict[str, float]
    value: float
    slope: float
    distance: float


@dataclass(frozen=True)
class GroupLossCertificate:
    """See the head of this module; None stands for what is not known.

    Parameters
    ----------
    objective : float
        `F` of the model handed out.
    objective_excess : float
        How far it can be above the objective of a model that meets the bounds.
    gap, gap_holds
        `nu`, and for which models it is one.
    violation_limit : float
        Lemma 1, where a model that meets the bounds is known.
    proof : Proof
        That no model meets the bounds.
    """

    status: Status
    iterate: str
    cells: tuple[Cell, ...]
    violation: float
    """Largest excess over a bound; negative: all bounds are met."""
    assumptions: tuple[str, ...]
    exchanges: int
    """That it took."""
    tolerance: float
    no_certificate: str = ""
    """Why nothing is proved beyond what was measured; empty if something is."""
    objective: float | None = None
    objective_excess: float | None = None
    gap: float | None = None
    gap_holds: str = ""
    violation_limit: float | None = None
    least_excess: tuple[float, float] | None = None
    """No model's largest excess is below the first number; the second was reached."""
    minimax: tuple[float, float] | None = None
    """The same as a loss, where all bounds are one number."""
    proof: Proof | None = None

    def table(self) -> dict[str, Any]:
        """As plain values, for `result.json`."""
        plain: dict[str, Any] = _finite({**asdict(self), "sentences": self.sentences()})
        return plain

    def sentences(self) -> list[str]:
        """In words; what is achievable at all comes first."""
        return [*self._achievable(), *self._model(), *self._generalisation(), *self.assumptions]

    def _achievable(self) -> list[str]:
        if self.no_certificate:
            said = f"No certificate: {self.no_certificate}. What follows was only measured."
            return [said, f"Bounds: {self.status}."]
        assert self.least_excess is not None
        low, high = self.least_excess
        if self.minimax is not None:
            said = (
                f"Achievable at all: the largest loss of a group cannot go below "
                f"{self.minimax[0]:.4f}; {self.minimax[1]:.4f} was reached."
            )
        else:
            said = (
                f"Achievable at all: the largest excess over a bound cannot go below {low:.4f}; "
                f"{high:.4f} was reached."
            )
        if self.status == "infeasible" and self.proof is not None:
            worst = ", ".join(f"{k} {v:.3f}" for k, v in self.proof.multipliers.items() if v > 5e-4)
            return [
                said,
                f"Bounds: infeasible. With weights {worst} the mean excess is at its lowest "
                f"{self.proof.value:.4g} (gradient {self.proof.slope:.1g}), so it is positive for "
                f"every model within distance {self.proof.distance:.3g} of that one.",
            ]
        return [said, f"Bounds: {self.status}."]

    def _model(self) -> list[str]:
        worst = max((c for c in self.cells if c.excess is not None), key=lambda c: c.excess or 0.0)
        text = f"Model handed out ({self.iterate} iterate): "
        if self.status == "no bounds":
            text += f"largest loss {worst.loss:.4f}, of '{worst.name}'."
        else:
            met = "meets" if self.violation <= self.tolerance else "does not meet"
            text += (
                f"{met} its bounds; largest excess {self.violation:.4g}, of '{worst.name}' "
                f"(loss {worst.loss:.4f}, bound {worst.bound:.4f})."
            )
        lines = [text]
        if self.gap is not None:
            lines.append(f"Duality gap {self.gap:.2g}, {self.gap_holds}.")
        if self.objective_excess is not None and self.status != "infeasible":
            lines.append(
                f"Its objective {self.objective:.4f} is at most {self.objective_excess:.2g} above "
                "that of any model that meets the bounds."
            )
        if self.violation_limit is not None:
            lines.append(f"By Lemma 1 its excess is at most {self.violation_limit:.2g}.")
        return lines

    def _generalisation(self) -> list[str]:
        parts = []
        for cell in self.cells:
            if cell.loss is None:
                continue
            if cell.concentration is None:
                return ["Generalisation: omitted; no bound of the loss is given (certify)."]
            more = "complexity omitted" if cell.complexity is None else f"{cell.complexity:.3f}"
            parts.append(f"{cell.name}: {cell.concentration:.3f} + {more}")
        return ["Generalisation, to be added to the losses: " + "; ".join(parts) + "."]


def _finite(value: Any) -> Any:
    """Plain values; None for numbers that are not finite."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def generalisation(
    options: Certify, task: Task, examples: int, cells: int
) -> tuple[float | None, float | None]:
    """`M sqrt(log(2 Z / delta) / (2 m))` and `2 Rad`, each None where it must be omitted.

    For an affine model with `|w| <= W` on `|x| <= X` the Rademacher complexity is at most
    `c W X / sqrt(m)`: `c = 1` for one logit, `sqrt(2)` for two (the loss depends on their
    difference), `2 sqrt(C)` for C (vector contraction). Squared error is not Lipschitz: omitted.
    """
    product = options.weight_norm * options.feature_norm
    known = product > 0 and not why_not_convex(task) and task.kind != "regression"
    largest = options.loss_bound
    if not largest and known:
        # two logits differ by at most sqrt(2) W X
        largest = math.log(task.classes) + math.sqrt(2) * product
    if not largest or not examples:
        return None, None
    concentration = largest * math.sqrt(math.log(2 * cells / options.delta) / (2 * examples))
    if not known:
        return concentration, None
    one_logit = next(reversed(task.init().values())).shape[0] == 1
    factor = 1.0 if one_logit else math.sqrt(2) if task.classes == 2 else 2 * task.classes**0.5
    return concentration, 2 * factor * product / math.sqrt(examples)
