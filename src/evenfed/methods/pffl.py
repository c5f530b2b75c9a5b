"""PFFL: the best model whose loss on every group stays below a bound.

Hu, Wu, Smith, "Fair Federated Learning via Bounded Group Loss" (SaTML 2024, arXiv 2203.10190).
Algorithm 1 is rebuilt from the text (Section 4.1, Theorem 1) and from exponentiated gradient.

Symbols: `F = sum_k p_k f_k` the objective, `f_k` client k's mean loss, `p_k = 1/K` (the paper's) or
`m_k / N`; `R_z` the mean loss of cell z over all clients (group, or group with label), `m_z` its
examples, `zeta_z` its bound, `r_z = R_z - zeta_z`; multipliers `lambda_z >= 0`, `|lambda|_1 <= B`.

`min_w max_lambda G(w, lambda) = beta F(w) + sum_z lambda_z r_z(w)`    (Main Objective)

A round: `lambda_z = B exp(theta_z) / (1 + sum exp(theta))`; clients descend
`beta f_k + (1/p_k) sum_z lambda_z r_zk`, that is example i of cell z with the weight
`beta / m_k + lambda_z / (p_k m_z)`, at the rate `eta / (beta + |lambda|_1)`; the server averages
with `p_k`; clients send loss sums at the new model; `theta <- theta + eta_theta r`.

Where this differs on purpose from the text: the factor `1/p_k` (K), without which averaging
clients optimises `beta F + (1/K) lambda r`; the rate and the step of theta, whose theoretical
values are far too small to be used; the check at the end, for which see `certificate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.convexity import why_not_convex
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.data.dataset import Schema
from evenfed.engines.federation import Federation
from evenfed.engines.fold import Weighting
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.certificate import Certify, GroupLossCertificate
from evenfed.methods.certification import certified
from evenfed.methods.constrained import (
    BY_GROUP,
    CARRIED,
    COUNTED,
    CURVED,
    FINAL,
    MEASURED,
    GroupConstrained,
)
from evenfed.methods.group_loss import cell_factors, counted, risks, seen_in
from evenfed.methods.multipliers import Multipliers, Rule, climbed, first_climb
from evenfed.methods.saddle import CURVED_AT_MOST, LeastExcess, Saddle

FIRST = (
    COUNTED,
    Reveal("train", "update", "model", "change of the model by the client's training", True),
)


@dataclass(frozen=True)
class PFFL(GroupConstrained):
    """Provably fair federated learning.

    Parameters
    ----------
    constraint, zeta, labels, reference, beta, weighting
        The problem; see `GroupConstrained`.
    lambda_bound : float
        `B`, the most that multipliers sum to.
    dual : {"exponentiated", "projected"}
        How multipliers climb.
    dual_lr, shrink : float
        Step of theta, and the factor by which it shrinks when the regret stalls (1: never).
    scope : {"global", "local"}
        Bounds on the groups of all clients together, or on each client's own groups.
    iterate : {"average", "tail", "last"}
        The model handed out: the mean over all rounds, over the last `tail` of them, or the last.
    sums : {"exchange", "piggyback"}
        Loss sums at the new model in an exchange of their own, or at the received model with the
        update: one exchange, multipliers one round behind.
    scale_rate : bool
        Whether the rate is divided by `beta + |lambda|_1`.
    certify : Certify
        What `Result.certificate` does; `curved` is for `reference="best"`, too.
    """

    name: ClassVar[str] = "pffl"
    title: ClassVar[str] = "PFFL"
    paper: ClassVar[str] = "Hu et al., SaTML 2024"
    exchanges: ClassVar[int] = 2
    reveals: ClassVar[tuple[Reveal, ...]] = (
        *FIRST, *BY_GROUP, *CARRIED, *MEASURED, CURVED, EVALUATION
    )  # fmt: skip
    """Of all forms together; an instance has those of its own form."""
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "lambda_bound": (1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
        "dual_lr": (0.5, 2.0, 10.0),
    }

    lambda_bound: float = 10.0
    dual: Rule = "exponentiated"
    dual_lr: float = 2.0
    shrink: float = 0.8
    scope: Literal["global", "local"] = "global"
    iterate: Literal["average", "tail", "last"] = "average"
    tail: float = 0.5
    sums: Literal["exchange", "piggyback"] = "exchange"
    scale_rate: bool = True
    certify: Certify = field(default_factory=Certify)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "dual", self.dual, ("exponentiated", "projected"))
        check_choice(self.name, "scope", self.scope, ("global", "local"))
        check_choice(self.name, "iterate", self.iterate, ("average", "tail", "last"))
        check_choice(self.name, "sums", self.sums, ("exchange", "piggyback"))
        check_not_negative(self.name, dual_lr=self.dual_lr)
        if not self.lambda_bound > 0 or not 0 < self.shrink <= 1 or not 0 < self.tail <= 1:
            raise ConfigError("pffl: lambda_bound must be above 0, shrink and tail in (0, 1]")
        if self.scope == "local" and (self.dual, self.sums) != ("exponentiated", "exchange"):
            raise ConfigError(
                "pffl: with scope='local' multipliers stay at the clients, which send no sums; it "
                "takes dual='exponentiated' and sums='exchange' only"
            )
        alone = self.scope == "local" or self.sums == "piggyback"
        sums = FINAL if self.scope == "local" else (*CARRIED, *FINAL) if alone else BY_GROUP
        certified = (*MEASURED, CURVED) if self.certify.curved else MEASURED
        object.__setattr__(self, "reveals", (*FIRST, *sums, *certified, EVALUATION))
        object.__setattr__(self, "exchanges", 1 if alone else 2)

    @property
    def multipliers(self) -> Multipliers:
        """Where multipliers live and how they climb."""
        return Multipliers(self.dual, self.lambda_bound, slack=self.constraint != "minmax")

    def start(self, federation: Federation) -> Server:
        """The model; multipliers begin once the groups are counted."""
        problem = self.problem()
        size = sum(leaf.numel() for leaf in trees.leaves(self.first))
        if self.certify.curved and size > CURVED_AT_MOST:
            raise ConfigError(
                f"pffl: certify.curved asks clients for {size} x {size} numbers; models have at "
                f"most {CURVED_AT_MOST} with it, so turn it off"
            )
        none = torch.zeros_like(problem["counts"])
        return {
            **problem, "params": self.first, "average": self.first, "averaged": none.sum(),
            "theta": none, "multipliers": none, "average_multipliers": none,
            "climb": first_climb(len(none), self.dual_lr),
        }  # fmt: skip

    def begun(self, federation: Federation, server: Server) -> Server:
        """Before the first round: examples by cell, reference losses, first multipliers."""
        server = {**server, "counts": counted(federation, self.count)}
        if self.reference == "best":
            saddle = Saddle(self, federation, server, self.certify.curved)
            lowest = saddle.lowest_by_cell(saddle.vector(self.first))
            server["reference"] = torch.from_numpy(lowest)
        active = self.active(server)
        if not bool(active.any()):
            raise ConfigError("pffl: no group with examples has a finite bound (zeta)")
        shares = torch.where(active, server["counts"], 0.0)
        server["theta"] = self.multipliers.first(active, shares / shares.sum())
        return server

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """A client's own multipliers, where bounds are local."""
        if self.scope == "global":
            return ()
        theta = torch.zeros(len(self.cells), dtype=torch.float64)
        return {"theta": theta, "begun": theta.sum()}

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training with the multipliers' weights."""
        received, lr = broadcast["params"], broadcast["lr"]
        upload: dict[str, Tree] = {}
        if self.scope == "local":
            table, total, state = self.own_table(broadcast, state, data)
            lr = lr / (self.beta + total) if self.scale_rate else lr
        else:
            table = self.client_table(self.beta, broadcast["factors"], data)
            if self.sums == "piggyback":
                upload |= self.cells.losses(self.task, received, data)
        new = self.local.run(
            self.task, received, data, draws, lr=lr, weights=cell_factors, context=table.float()
        )
        return {"update": trees.subtract(new, received), **upload}, state

    def own_table(
        self, broadcast: Tree, state: Tree, data: Examples
    ) -> tuple[Tensor, Tensor, Tree]:
        """Factors from the client's own bounds, the sum of its multipliers, its new state.

        It descends `beta f_k + sum_z lambda_z (R_zk - zeta_z)` with the mean loss `R_zk` of its
        own examples of the cell; theta moves along the losses of the model it receives next.
        """
        own = self.cells.losses(self.task, broadcast["params"], data)
        active = (own["counts"] > 0) & broadcast["limits"].isfinite()
        count = own["counts"].clamp(min=1)
        excess = torch.where(active, own["sums"] / count - broadcast["limits"], 0.0)
        step = self.dual_lr * state["begun"]
        theta = self.multipliers.moved(state["theta"], excess, active, step)
        multipliers = self.multipliers.of(theta, active)
        kept = {"theta": theta, "begun": torch.ones_like(state["begun"])}
        table = self.cells.table(self.beta + multipliers * data.weight.sum() / count)
        return table, multipliers.sum(), kept

    def round(self, federation: Federation, server: Server) -> Server:
        """Train with the multipliers, then move them along the new losses."""
        if not float(server["counts"].sum()):
            server = self.begun(federation, server)
        if self.scope == "local":
            return self.local_round(federation, server)
        active, kind = self.active(server), self.multipliers
        multipliers = kind.of(server["theta"], active)
        broadcast = self.broadcast(federation, server)
        weight = self.beta + float(multipliers.sum())
        if self.scale_rate and weight > 0:
            broadcast["lr"] = broadcast["lr"] / weight
        broadcast["factors"] = self.factors(multipliers, server, len(federation))
        parts: dict[str, Weighting] = {"update": self.aggregation(federation)}
        if self.sums == "piggyback":
            parts |= {"sums": federation.evenly, "counts": federation.evenly}
        found = federation.mean(self.train, broadcast, weights=parts, draws=self.draw).value
        params = trees.add(server["params"], found["update"])
        if self.sums == "exchange":
            asked = {"params": params}
            found = federation.mean(self.group_losses, asked, weights=federation.evenly).value
        excess, seen = self.excess(found, server), seen_in(found, active)
        climb, regret = climbed(server["climb"], multipliers, excess, active, kind, self.shrink)
        federation.note(
            train_loss=float(found["sums"].sum() / found["counts"].sum()),
            violation=float(excess[seen].max()) if bool(seen.any()) else None,
            multiplier_sum=float(multipliers.sum()),
            dual_regret=regret,
            dual_step=float(climb["step"]),
            multipliers=multipliers.tolist(),
            group_losses=_or_none(risks(found, active), seen),
        )
        theta = kind.moved(server["theta"], excess, active, climb["step"])
        moved = {**server, "theta": theta, "climb": climb}
        return self.averaged(federation, moved, params, multipliers)

    def local_round(self, federation: Federation, server: Server) -> Server:
        """Clients train with multipliers of their own; nothing but the model is sent."""
        broadcast = self.broadcast(federation, server) | {"limits": self.limits(server)}
        weights = self.aggregation(federation)
        mean = federation.mean(self.train, broadcast, weights=weights, draws=self.draw)
        params = trees.add(server["params"], mean.value["update"])
        return self.averaged(federation, server, params, server["multipliers"])

    def averaged(
        self, federation: Federation, server: Server, params: Tree, multipliers: Tensor
    ) -> Server:
        """The state with a new model, and the mean of the models and multipliers so far."""
        new = {**server, "params": params, "multipliers": multipliers}
        begin = {"average": 0.0, "tail": 1 - self.tail, "last": 1.0}[self.iterate]
        if federation.round < begin * federation.rounds:
            return new
        count = server["averaged"] + 1
        for name, value in (("average", params), ("average_multipliers", multipliers)):
            step = trees.subtract(value, server[name])
            new[name] = trees.add(server[name], step, 1.0 / float(count))
        return {**new, "averaged": count}

    def returned(self, server: Server) -> tuple[Tree, Tensor]:
        """The model handed out, and the multipliers that belong to it."""
        if self.iterate == "last" or not float(server["averaged"]):
            return server["params"], server["multipliers"]
        return server["average"], server["average_multipliers"]

    def deployed(self, server: Server) -> Tree:
        """The mean of the iterates, or the last one."""
        return self.returned(server)[0]

    def advice(self, federation: Federation) -> list[str]:
        """Warn where options do not fit the model or each other."""
        found = []
        if self.iterate != "last" and why_not_convex(self.task):
            found.append(
                f"pffl: iterate='{self.iterate}' averages models, which only a convex problem "
                "justifies; with this model use iterate='last'"
            )
        if self.zeta == 0.0 and self.constraint != "minmax" and self.reference == "none":
            found.append(
                "pffl: zeta = 0 asks for a loss of zero, so the run minimises beta F + B max R; "
                "choose zeta above the minimax value that the certificate states"
            )
        if self.scale_rate and self.local.optimizer == "adam":
            found.append("pffl: Adam's steps have their own scale; set scale_rate=false with it")
        return found

    def diagnostics(self, federation: Federation, server: Server, schema: Schema) -> dict[str, Any]:
        """Names and bounds of the cells, and the multipliers of the model handed out."""
        active = self.active(server)
        return {
            "cells": self.cells.names(schema.groups.labels, schema.class_names),
            "bounds": _or_none(self.limits(server), active),
            "bounded": self.constraint != "minmax",
            "scope": self.scope,
            "multiplier_bound": self.lambda_bound,
            "multipliers": self.returned(server)[1].tolist(),
        }

    def certificate(
        self,
        federation: Federation,
        server: Server,
        schema: Schema,
        least: LeastExcess | None = None,
    ) -> GroupLossCertificate:
        """What is proved about the model handed out, on training data.

        `least` is the least excess over these bounds, where it is known.
        """
        return certified(self, federation, server, schema, least)


def _or_none(values: Tensor, active: Tensor) -> list[float | None]:
    """Values `(Z,)` of cells that were measured, None for others: JSON knows no infinity."""
    pairs = zip(values.tolist(), active.tolist(), strict=True)
    return [value if is_active else None for value, is_active in pairs]
