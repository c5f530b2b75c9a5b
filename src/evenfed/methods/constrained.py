"""A training problem with bounds on the losses of groups: what its clients count and send.

`min_w F(w)` subject to `R_z(w) <= zeta_z`, with the Lagrangian
`G(w, lambda) = beta F(w) + sum_z lambda_z (R_z(w) - zeta_z)`; symbols as in `pffl`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core.convexity import affine_curvature, why_not_convex
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.engines.fold import Weighting
from evenfed.methods.base import Need, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.group_loss import (
    CONSTRAINTS,
    Cells,
    Constraint,
    bounds,
    cell_factors,
    risks,
    seen_in,
    spread_reference,
)
from evenfed.methods.training import TrainsLocally

COUNTED = Reveal(
    "count", "counts", "counts", "numbers of examples by group (and label), once", True
)
BY_GROUP = (
    Reveal("group_losses", "sums", "sums", "sums of losses by group (and label)", True),
    Reveal("group_losses", "counts", "counts", "numbers of examples by group (and label)", True),
)
CARRIED = (
    Reveal("train", "sums", "sums", "sums of losses by group, with the update (piggyback)", True),
    Reveal(
        "train", "counts", "counts", "numbers of examples by group, with the update (piggyback)",
        True,
    ),
)  # fmt: skip
FINAL = tuple(replace(r, meaning=f"{r.meaning}, once, for a certificate") for r in BY_GROUP)
"""Where no round asks for the sums alone, only a certificate does."""
MEASURED = (
    Reveal("measure", "gradient", "model", "gradients at given models, for a certificate", True),
    Reveal("measure", "sums", "sums", "sums of losses by group, for a certificate", True),
    Reveal("measure", "loss", "scalar", "mean loss of given models, for a certificate", True),
)
CURVED = Reveal(
    "curvature", "curvature", "square",
    "second derivatives of the mean loss, weighted second moments of the features (certify.curved)",
    True,
)  # fmt: skip


@dataclass(frozen=True)
class GroupConstrained(TrainsLocally):
    """The problem; a method adds how it is solved.

    Parameters
    ----------
    constraint : {"bounded_group_loss", "conditional_bounded_group_loss", "minmax"}
        What is bounded: the loss of each group, of each group and label, or (`minmax`) nothing:
        multipliers then sum to `B`, and with `beta = 0` the largest loss is minimised.
    zeta : float or tuple of float
        The bounds; see `group_loss.bounds` for their order.
    labels : tuple of int
        Labels that the conditional constraint bounds; all if empty.
    reference : "none", "best", or tuple of float
        What is subtracted from the losses before they are compared with `zeta`: nothing, the
        lowest loss that the model class reaches on each cell alone (convex problems), or numbers.
    beta : float
        Weight of the objective.
    weighting : {"uniform", "size"}
        What a client counts in the objective: `p_k = 1/K` or `m_k / N`.
    """

    needs: ClassVar[tuple[Need, ...]] = ("groups",)

    constraint: Constraint = "bounded_group_loss"
    zeta: float | tuple[float, ...] = 0.0
    labels: tuple[int, ...] = ()
    reference: tuple[float, ...] | Literal["none", "best"] = "none"
    beta: float = 1.0
    weighting: Literal["uniform", "size"] = "uniform"

    def __post_init__(self) -> None:
        check_choice(self.name, "constraint", self.constraint, CONSTRAINTS)
        check_choice(self.name, "weighting", self.weighting, ("uniform", "size"))
        check_not_negative(self.name, beta=self.beta)
        if self.labels and not self.by_label:
            raise ConfigError(
                f"{self.name}: labels belong to constraint='conditional_bounded_group_loss'"
            )

    @property
    def by_label(self) -> bool:
        """Whether cells are told apart by label."""
        return self.constraint == "conditional_bounded_group_loss"

    @property
    def cells(self) -> Cells:
        """What the constraints count."""
        return Cells(self.task.groups, self.task.classes if self.by_label else 1)

    def problem(self) -> Server:
        """The problem's part of the server's state, before groups are counted."""
        if self.by_label and self.task.kind == "regression":
            raise ConfigError(
                f"{self.name}: the conditional constraint needs class labels, and regression has "
                "none; use constraint='bounded_group_loss'"
            )
        if self.reference == "best" and (reason := why_not_convex(self.task)):
            raise ConfigError(f"{self.name}: reference='best' needs a convex problem: {reason}")
        none = torch.zeros(len(self.cells), dtype=torch.float64)
        reference = none
        if not isinstance(self.reference, str):
            reference = spread_reference(self.cells, self.reference, self.name)
        server = {"counts": none, "reference": reference}
        self.limits(server)
        return server

    def limits(self, server: Server) -> Tensor:
        """Bounds `(Z,)` of the losses themselves, `zeta` and reference; may be infinite."""
        reference: Tensor = server["reference"]
        return bounds(self.cells, self.zeta, self.labels, self.name) + reference

    def active(self, server: Server) -> Tensor:
        """Cells `(Z,)` that have examples and a bound."""
        present: Tensor = server["counts"] > 0
        return present & self.limits(server).isfinite()

    def excess(self, found: Tree, server: Server) -> Tensor:
        """`r_z` `(Z,)` over those that answered.

        0 for cells without a bound or an example; without slack a cell that nobody of the cohort
        has is given the mean of the others, so that its multiplier keeps its place.
        """
        active = self.active(server)
        seen = active if self.constraint == "minmax" else seen_in(found, active)
        return torch.where(seen, risks(found, active) - self.limits(server), 0.0)

    def factors(self, multipliers: Tensor, server: Server, clients: int) -> Tensor:
        """`lambda_z / (p_k m_z)` `(Z,)`, divided by the client's size where `p_k = 1/K`."""
        counts: Tensor = server["counts"]
        whole = float(clients if self.weighting == "uniform" else counts.sum())
        return multipliers * whole / counts.clamp(min=1)

    def client_table(self, beta: float | Tensor, factors: Tensor, data: Examples) -> Tensor:
        """Factors `(groups, labels)` of the losses under the client's mean.

        Example i of cell z has `beta + m_k lambda_z / (p_k m_z)`; divided by `m_k` in the mean
        that is `beta / m_k + lambda_z / (p_k m_z)`. A batch's mean estimates it without bias.
        """
        if self.weighting == "uniform":
            factors = factors * data.weight.sum()
        return self.cells.table(beta + factors)

    def aggregation(self, federation: Federation) -> Weighting:
        """Weights that make the cohort's mean one with `p_k` over all clients."""
        return federation.weighting if self.weighting == "size" else federation.evenly

    def count(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: its examples by cell."""
        return {"counts": self.cells.counts(data)}, state

    def group_losses(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss sums of a model by cell."""
        return dict(self.cells.losses(self.task, broadcast["params"], data)), state

    def measure(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of a certificate: gradient of its part of G, loss sums, mean loss.

        The model comes in float64, and everything is computed in it.
        """
        x, real = data.x.double(), data.weight
        size = real.sum().clamp(min=1)
        factors = cell_factors(
            data, self.client_table(broadcast["beta"], broadcast["factors"], data)
        )

        def weighted(params: Params) -> tuple[Tensor, Tensor]:
            losses = self.task.losses(self.task.outputs(params, x), data.y) * real
            return (losses * factors).sum() / size, losses

        gradient, losses = grad(weighted, has_aux=True)(broadcast["params"])
        return {
            "gradient": gradient,
            "sums": self.cells.added(data, losses),
            "loss": losses.sum() / size,
        }, state

    def curvature(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of a certificate: second derivatives `(P, P)` of its mean loss."""
        exact = replace(data, x=data.x.double())
        return {"curvature": affine_curvature(self.task, broadcast["params"], exact)}, state
