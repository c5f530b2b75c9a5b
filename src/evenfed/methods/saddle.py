"""Lower bounds for a convex problem with bounds on group losses, from exchanges of sums.

For any multipliers, `min_w G(w, lambda)` is a lower bound of what models that meet the bounds can
reach. It is computed by L-BFGS at the server; a step asks all clients for a gradient, in float64.
What L-BFGS finds is a point; what is proved follows from convexity:
`G(w) >= G(w') - |grad G(w')|^2 / (2 mu)` where G is mu-strongly convex, and
`G(w) >= G(w') - |grad G(w')| |w - w'|` in any case, so a bound that holds as far as `REACH`.
One exchange of second derivatives at the start (`certify.curved`) makes the functions that L-BFGS
sees nearly round, and ten times fewer exchanges do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from evenfed.core import tree as trees
from evenfed.core.errors import QuorumError
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Mean
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.constrained import GroupConstrained

Vector = NDArray[np.float64]

REACH = 100.0
"""A bound without strong convexity is stated for models within this many times the norm."""
_SHARPNESS = (30.0, 300.0, 3000.0)
"""Of the smoothed maximum, in units of the largest loss at the start."""
CURVED_AT_MOST = 2000
"""Numbers of a model whose second derivatives are asked for."""
_FLAT = 1e-6
"""Curvatures below this share of the largest count as flat."""


@dataclass(frozen=True)
class Point:
    """Objective `F`, excess `r` and gradient of `beta F + lambda . R` at a model."""

    objective: float
    excess: Vector
    gradient: Vector


@dataclass(frozen=True)
class Minimum:
    """Where a convex function was found smallest, and how far below it can be."""

    model: Vector
    value: float
    slope: float
    """Norm of the gradient there."""
    strong: float
    """Modulus of strong convexity; 0 if none is known."""

    @property
    def distance(self) -> float:
        """How far `lower` reaches; infinite with strong convexity."""
        return np.inf if self.strong else REACH * max(1.0, float(np.linalg.norm(self.model)))

    @property
    def lower(self) -> float:
        """What no model within `distance` goes below."""
        if self.strong:
            return self.value - self.slope**2 / (2 * self.strong)
        return self.value - self.slope * self.distance


@dataclass(frozen=True)
class LeastExcess:
    """`min_w max_z r_z(w)`, between a bound that is proved and a value that is reached."""

    below: Minimum
    """Of `lambda . r`: its lower bound is one for the least excess."""
    multipliers: Vector
    """`(Z,)`, on the simplex."""
    reached: float
    excess: Vector
    """`(Z,)` of the model that reaches it."""
    model: Vector

    def lowered(self, by: float) -> LeastExcess:
        """The same where every bound is looser by one number."""
        below = replace(self.below, value=self.below.value - by)  # multipliers sum to 1
        return replace(self, below=below, reached=self.reached - by, excess=self.excess - by)


class Saddle:
    """The Lagrangian of a problem as functions of vectors, for the server's solvers.

    Parameters
    ----------
    curved : bool
        Whether clients are asked for second derivatives, once.
    """

    def __init__(
        self, problem: GroupConstrained, federation: Federation, server: Server, curved: bool
    ) -> None:
        self.problem = problem
        self.federation = federation
        self.server = server
        self.curved = curved
        self.exchanges = 0
        self.limits = problem.limits(server).numpy()
        self.active = problem.active(server).numpy()
        leaves, self._structure = trees.flatten(problem.first)
        self._shapes = [leaf.shape for leaf in leaves]
        self._round: Vector | None = None

    def vector(self, params: Tree) -> Vector:
        """A model as a vector `(P,)`."""
        return np.concatenate(
            [leaf.detach().double().cpu().numpy().ravel() for leaf in trees.flatten(params)[0]]
        )

    def _model(self, x: Vector) -> Tree:
        leaves, begin = [], 0
        for shape in self._shapes:
            part = torch.from_numpy(x[begin : begin + shape.numel()].copy())
            leaves.append(part.reshape(shape).to(self.problem.task.device))
            begin += shape.numel()
        return trees.unflatten(leaves, self._structure)

    def excess(self, x: Vector) -> Vector:
        """`r` `(Z,)`; -inf for cells without a bound or an example. One exchange."""
        return self.excess_of(self._model(x))

    def excess_of(self, params: Tree) -> Vector:
        """The same of a model as it is, in its own precision."""
        mean = self.federation.mean(
            self.problem.group_losses, {"params": params}, weights="uniform",
            clients=self.federation.everyone,
        )  # fmt: skip
        found = self._of_all(mean).value
        means = found["sums"] / found["counts"].clamp(min=1e-12)
        return self._excess(means.cpu().numpy())

    def _of_all(self, mean: Mean) -> Mean:
        """Count an exchange; what is proved is about all clients, so none may be missing."""
        self.exchanges += 1
        for dropped in mean.dropped:
            raise QuorumError(
                f"no certificate: client '{dropped.name}' {dropped.reason} in its exchange "
                f"{self.exchanges}"
            )
        return mean

    def _excess(self, means: Vector) -> Vector:
        room = np.where(self.active, self.limits, np.inf)
        return means - room

    def at(self, x: Vector, multipliers: Vector, beta: float) -> Point:
        """Value and gradient at a model. One exchange."""
        clients, problem = len(self.federation), self.problem
        weights = torch.from_numpy(np.where(self.active, multipliers, 0.0))
        mean = self.federation.mean(
            problem.measure,
            {
                "params": self._model(x),
                "factors": problem.factors(weights, self.server, clients),
                "beta": torch.tensor(beta, dtype=torch.float64),
            },
            weights={"gradient": problem.weighting, "sums": "uniform", "loss": problem.weighting},
            clients=self.federation.everyone,
        )
        sums = self._of_all(mean).value["sums"].cpu().numpy() * len(mean.clients)
        counts = self.server["counts"].clamp(min=1).numpy()
        return Point(
            float(mean.value["loss"]),
            self._excess(sums / counts),
            self.vector(mean.value["gradient"]),
        )

    def lagrangian(self, point: Point, x: Vector, multipliers: Vector, beta: float) -> float:
        """`G`, with the ridge that weight decay adds to the objective."""
        used = self.active & (multipliers > 0)
        weighted = float(multipliers[used] @ point.excess[used])
        return self.penalised(point.objective, x, beta) + weighted

    def penalised(self, objective: float, x: Vector, beta: float) -> float:
        """`beta F` and the ridge."""
        return beta * objective + 0.5 * self.ridge(beta) * float(x @ x)

    def ridge(self, beta: float) -> float:
        """`local.weight_decay`, part of the objective and so of no function without it."""
        return self.problem.local.weight_decay if beta else 0.0

    def lowest(self, start: Vector, multipliers: Vector, beta: float) -> Minimum:
        """`min_w G(w, lambda)` by L-BFGS."""
        ridge = self.ridge(beta)

        def function(x: Vector) -> tuple[float, Vector]:
            point = self.at(x, multipliers, beta)
            return self.lagrangian(point, x, multipliers, beta), point.gradient + ridge * x

        x, value, gradient = self._descended(function, start, 500)
        return Minimum(x, value, float(np.linalg.norm(gradient)), ridge)

    def lowest_by_cell(self, start: Vector) -> Vector:
        """`min_w R_z(w)` for every active cell `(Z,)`, 0 for others; what was found, no bound."""
        found = np.zeros(len(self.limits))
        for z in np.flatnonzero(self.active):
            one = np.zeros(len(found))
            one[z] = 1.0
            found[z] = self.lowest(start, one, 0.0).value + self.limits[z]
        return found

    def least_excess(self, start: Vector) -> LeastExcess:
        """`min_w max_z r_z(w)` by a smoothed maximum that grows sharper.

        Where `log sum exp(s r) / s` is smallest, so is `lambda . r` with `lambda` the softmax of
        `s r`: the same point gives a model and multipliers, apart by at most `log(Z) / s`.
        """
        x, first = start, self.excess(start)
        scale = float(np.max(first[self.active] + self.limits[self.active]))
        for sharp in np.array(_SHARPNESS) / max(scale, 1e-12):

            def function(x: Vector, sharp: float = sharp) -> tuple[float, Vector]:
                multipliers, value = _soft_max(self.excess(x), sharp)
                return value, self.at(x, multipliers, 0.0).gradient

            x, _, _ = self._descended(function, x, 200)
        excess = self.excess(x)
        multipliers, _ = _soft_max(excess, sharp)
        below = self.lowest(x, multipliers, 0.0)
        return LeastExcess(below, multipliers, float(excess.max()), excess, x)

    def rounding(self, start: Vector) -> Vector:
        """`H^-1/2` `(P, P)` of the objective's second derivatives at `start`. One exchange."""
        mean = self.federation.mean(
            self.problem.curvature, {"params": self._model(start)}, weights=self.problem.weighting,
            clients=self.federation.everyone,
        )  # fmt: skip
        values, vectors = np.linalg.eigh(self._of_all(mean).value["curvature"].cpu().numpy())
        stretch = 1 / np.sqrt(np.maximum(values, max(_FLAT * values[-1], 1e-300)))
        rounded: Vector = (vectors * stretch) @ vectors.T
        return rounded

    def _descended(
        self, function: Callable[[Vector], tuple[float, Vector]], start: Vector, steps: int
    ) -> tuple[Vector, float, Vector]:
        """The best point of L-BFGS, its value and gradient."""
        from scipy.optimize import minimize

        if self.curved and self._round is None:
            self._round = self.rounding(start)
        turn = self._round
        best = (np.inf, start, start)

        def turned(u: Vector) -> tuple[float, Vector]:
            nonlocal best
            x = start + (u if turn is None else turn @ u)
            value, gradient = function(x)
            if value <= best[0]:
                best = value, x, gradient
            return value, gradient if turn is None else turn @ gradient

        options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
        minimize(turned, np.zeros_like(start), jac=True, method="L-BFGS-B", options=options)
        value, x, gradient = best
        return x, value, gradient


def _soft_max(values: Vector, sharp: float) -> tuple[Vector, float]:
    """Softmax of `sharp * values`, and `log sum exp(sharp * values) / sharp`."""
    largest = float(values.max())
    powers = np.exp(sharp * (values - largest))
    return powers / powers.sum(), largest + float(np.log(powers.sum())) / sharp
