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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evenfed.core.convexity import why_not_convex
from evenfed.core.errors import ConfigError
from evenfed.core.task import Task
from evenfed.data.dataset import Schema
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.saddle import LeastExcess, Minimum, Point, Saddle, Vector

if TYPE_CHECKING:
    from evenfed.methods.pffl import PFFL

Status = Literal["feasible", "infeasible", "undetermined", "no bounds"]


@dataclass(frozen=True)
class Certify:
    """Options of a certificate.

    Parameters
    ----------
    solve : bool
        Whether lower bounds are computed (convex problems); else losses are only measured.
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
    """See the head of this module; None stands for what is not known."""

    status: Status
    iterate: str
    cells: tuple[Cell, ...]
    violation: float
    """Largest excess over a bound; negative: all bounds are met."""
    objective: float | None
    objective_excess: float | None
    gap: float | None
    gap_holds: str
    violation_limit: float | None
    least_excess: tuple[float, float] | None
    """No model's largest excess is below the first number; the second was reached."""
    minimax: tuple[float, float] | None
    """The same as a loss, where all bounds are one number."""
    proof: Proof | None
    no_certificate: str
    """Why nothing is proved beyond what was measured; empty if something is."""
    assumptions: tuple[str, ...]
    exchanges: int
    tolerance: float

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


def certified(
    method: PFFL, federation: Federation, server: Server, schema: Schema
) -> GroupLossCertificate:
    """Measure the model handed out, and prove what can be proved about it."""
    saddle = Saddle(method, federation, server)
    params, found = method.returned(server)
    multipliers = found.numpy()
    reason = why_not_convex(method.task)
    if not reason and not method.certify.solve:
        reason = "certify.solve is off"
    if reason:
        excess = saddle.excess_of(params)
        cells = _cells(method, saddle, schema, multipliers, excess, None)
        met: Status = "feasible" if excess.max() <= 0 else "undetermined"
        status: Status = "no bounds" if method.constraint == "minmax" else met
        return GroupLossCertificate(
            status, method.iterate, cells, float(excess.max()), None, None, None, "", None, None,
            None, None, reason, _assumptions(method, len(federation)), saddle.exchanges,
            method.certify.tolerance,
        )  # fmt: skip
    model = saddle.vector(params)
    point = saddle.at(model, multipliers, method.beta)
    least = saddle.least_excess(model)
    low = None if method.scope == "local" else saddle.lowest(model, multipliers, method.beta)
    return _solved(method, saddle, schema, _Found(model, multipliers, point, least, low))


@dataclass(frozen=True)
class _Found:
    model: Vector
    multipliers: Vector
    point: Point
    least: LeastExcess
    low: Minimum | None


def _solved(method: PFFL, saddle: Saddle, schema: Schema, found: _Found) -> GroupLossCertificate:
    point, least = found.point, found.least
    violation, objective = float(point.excess.max()), point.objective
    status = _status(method, violation, least)
    cells = _cells(method, saddle, schema, found.multipliers, point.excess, least)
    gap = objective_excess = limit = None
    holds = ""
    if found.low is not None:
        gap, objective_excess = _gap(method, saddle, found, found.low)
        holds = "rigorous (weight decay makes the problem strongly convex)"
        if not found.low.strong:
            holds = f"for all models within distance {found.low.distance:.3g} of the one found"
    if gap is not None and status == "feasible":
        reached = saddle.at(least.model, found.multipliers, method.beta).objective
        best = reached if least.reached <= 0 else objective
        limit = (method.beta * max(0.0, best - objective) + 2 * gap) / method.lambda_bound
    names = [cell.name for cell in cells]
    proof = Proof(
        {name: float(v) for name, v in zip(names, least.multipliers, strict=True)},
        least.below.value,
        least.below.slope,
        least.below.value / least.below.slope if least.below.slope else math.inf,
    )  # fmt: skip
    used = saddle.limits[saddle.active]
    between = (least.below.lower, least.reached)
    even = bool(np.all(used == used[0]))
    return GroupLossCertificate(
        status, method.iterate, cells, violation, objective, objective_excess, gap, holds, limit,
        between, (used[0] + between[0], used[0] + between[1]) if even else None,
        proof if status == "infeasible" else None, "",
        _assumptions(method, len(saddle.federation), found), saddle.exchanges,
        method.certify.tolerance,
    )  # fmt: skip


def _status(method: PFFL, violation: float, least: LeastExcess) -> Status:
    if method.constraint == "minmax":
        return "no bounds"
    if min(violation, least.reached) <= 0:
        return "feasible"
    return "infeasible" if least.below.lower > 0 else "undetermined"


def _gap(method: PFFL, saddle: Saddle, found: _Found, low: Minimum) -> tuple[float, float | None]:
    """`nu`, and how far the objective can be above that of a model that meets the bounds."""
    value = saddle.lagrangian(found.point, found.model, found.multipliers, method.beta)
    worst = float(found.point.excess.max())
    if method.constraint != "minmax":
        worst = max(0.0, worst)
    ridge = 0.5 * saddle.ridge(method.beta) * float(found.model @ found.model)
    above = method.beta * found.point.objective + ridge + method.lambda_bound * worst
    gap = max(value - low.lower, above - value)
    if not method.beta or method.constraint == "minmax":
        return gap, None
    return gap, found.point.objective + (ridge - low.lower) / method.beta


def _cells(
    method: PFFL,
    saddle: Saddle,
    schema: Schema,
    multipliers: Vector,
    excess: Vector,
    least: LeastExcess | None,
) -> tuple[Cell, ...]:
    names = method.cells.names(schema.groups.labels, schema.class_names)
    counts = saddle.server["counts"].numpy()
    total = int(saddle.active.sum())
    cells = []
    for z, name in enumerate(names):
        limit, on = float(saddle.limits[z]), bool(saddle.active[z])
        terms = generalisation(method.certify, method.task, int(counts[z]), total)
        cells.append(
            Cell(
                name=name,
                examples=int(counts[z]),
                loss=float(excess[z]) + limit if on else None,
                bound=limit if on else None,
                excess=float(excess[z]) if on else None,
                multiplier=float(multipliers[z]),
                minimax_loss=float(least.excess[z]) + limit if on and least else None,
                concentration=terms[0] if on else None,
                complexity=terms[1] if on else None,
            )
        )
    return tuple(cells)


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


def _assumptions(method: PFFL, clients: int, found: _Found | None = None) -> tuple[str, ...]:
    """Everything that the other sentences rest on."""
    said = [f"Losses are means over the training examples of all {clients} clients."]
    if method.scope == "local":
        said.append(
            "Bounds were local in training; here they are checked on the groups of all clients. "
            "Local multipliers are no dual point of that problem: no gap."
        )
    if found is None:
        return tuple(said)
    said.append(
        "The problem is convex: one affine layer with a convex loss. Arithmetic is float64, whose "
        "rounding is not accounted for."
    )
    distance = found.least.below.distance
    said.append(
        f"What cannot be achieved is proved for models within distance {distance:.3g} of one that "
        "was found; beyond that it is an estimate."
    )
    if method.local.weight_decay:
        said.append("Weight decay is part of the objective, not of the group losses.")
    options = method.certify
    if options.loss_bound or options.weight_norm * options.feature_norm:
        said.append(
            "Generalisation: examples are independent, and the numbers in certify hold and were "
            f"chosen before training; fails with a chance of at most {options.delta:g}."
        )
    return tuple(said)
