"""How a certificate of bounds on group losses is made; see `certificate` for what it says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evenfed.core.convexity import why_not_convex
from evenfed.data.dataset import Schema
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.certificate import (
    Cell,
    GroupLossCertificate,
    Proof,
    Status,
    generalisation,
)
from evenfed.methods.saddle import LeastExcess, Minimum, Point, Saddle, Vector

if TYPE_CHECKING:
    from evenfed.methods.pffl import PFFL


def certified(
    method: PFFL,
    federation: Federation,
    server: Server,
    schema: Schema,
    least: LeastExcess | None = None,
) -> GroupLossCertificate:
    """Measure the model handed out, and prove what can be proved about it.

    `least` is that of these bounds, where it is known: it does not depend on the model.
    """
    saddle = Saddle(method, federation, server, method.certify.curved)
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
            status=status,
            iterate=method.iterate,
            cells=cells,
            violation=float(excess.max()),
            assumptions=_assumptions(method, len(federation)),
            exchanges=saddle.exchanges,
            tolerance=method.certify.tolerance,
            no_certificate=reason,
        )
    model = saddle.vector(params)
    point = saddle.at(model, multipliers, method.beta)
    least = least or saddle.least_excess(model)
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
        own = better = saddle.penalised(objective, found.model, method.beta)
        if least.reached <= 0:
            reached = saddle.at(least.model, found.multipliers, method.beta).objective
            better = saddle.penalised(reached, least.model, method.beta)
        limit = (max(0.0, better - own) + 2 * gap) / method.lambda_bound
    used = saddle.limits[saddle.active]
    between = (least.below.lower, least.reached)
    even = bool(np.all(used == used[0]))
    return GroupLossCertificate(
        status=status,
        iterate=method.iterate,
        cells=cells,
        violation=violation,
        assumptions=_assumptions(method, len(saddle.federation), found),
        exchanges=saddle.exchanges,
        tolerance=method.certify.tolerance,
        objective=objective,
        objective_excess=objective_excess,
        gap=gap,
        gap_holds=holds,
        violation_limit=limit,
        least_excess=between,
        minimax=(float(used[0]) + between[0], float(used[0]) + between[1]) if even else None,
        proof=_proof(cells, least) if status == "infeasible" else None,
    )


def _proof(cells: tuple[Cell, ...], least: LeastExcess) -> Proof:
    """Convexity: `lambda . r` falls from its lowest value by at most the slope times distance."""
    value, slope = least.below.value, least.below.slope
    weights = zip(cells, least.multipliers, strict=True)
    return Proof(
        {cell.name: float(weight) for cell, weight in weights},
        value,
        slope,
        value / slope if slope else math.inf,
    )


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
    own = saddle.penalised(found.point.objective, found.model, method.beta)
    gap = max(value - low.lower, own + method.lambda_bound * worst - value)
    if not method.beta or method.constraint == "minmax":
        return gap, None
    return gap, (own - low.lower) / method.beta


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
        said.append(
            "Weight decay adds its ridge to the objective that gap and excess speak of, not to the "
            "losses of groups."
        )
    options = method.certify
    if options.loss_bound or options.weight_norm * options.feature_norm:
        said.append(
            "Generalisation: examples are independent, and the numbers in certify hold and were "
            f"chosen before training; fails with a chance of at most {options.delta:g}."
        )
    return tuple(said)
