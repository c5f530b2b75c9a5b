"""FedFB: FairBatch at the server; one set of weights for the cells (label, group) of all clients.

Zeng, Chen, Lee, "Improving Fairness via Federated Learning" (arXiv 2110.15545, 2021), the version
for demographic parity, any number of groups.

Symbols: see `evenfed.core.fairbatch`; here counts `m_yz` and loss sums `S_yz` are sums over
clients. Client k minimises `sum_i v_i l_i / sum_i v_i` with `v_i = lambda_yz / m_z`; the server
averages the models with weights `nc_k = sum_i v_i`. So one step on full batches is a gradient step
on `sum_yz lambda_yz S_yz / m_z`. Before every round but the first, clients send `S_yz` of the model
they receive and `lambda_0z += (alpha / sqrt(t)) F_z`, t = 1, 2, ...

Sources: the paper's rule as its public code has it. Differences on purpose from that code: the
constant of `F_z` counts once, not once a client; each group is clipped by its own size; the first
client's model enters the average with its own weight; the loss is divided by the weights' sum (the
code sums over a batch, which under Adam comes to the same, and under SGD would tie the rate to the
size of the data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.fairbatch import adjusted, example_weights, group_gaps
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Need, Reveal, Server, check_not_negative
from evenfed.methods.fedavg import UPDATE, FedAvg


@dataclass(frozen=True)
class FedFB(FedAvg):
    """FedFB.

    Parameters
    ----------
    alpha : float
        Step of the cells' weights; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedfb"
    title: ClassVar[str] = "FedFB"
    paper: ClassVar[str] = "Zeng et al., 2021 (arXiv 2110.15545)"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        UPDATE,
        Reveal("train", "mass", "scalar", "sum of its examples' weights, every round", True),
        Reveal("measure", "cells", "counts", "numbers of examples by group and label", True),
        Reveal("measure", "loss", "counts", "sums of losses by group and label, every round", True),
        EVALUATION,
    )
    exchanges: ClassVar[int] = 2
    needs: ClassVar[tuple[Need, ...]] = ("groups", "two classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "alpha": (0.001, 0.05, 0.08, 0.1, 0.2, 0.5, 1.0, 2.0)
    }

    alpha: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, alpha=self.alpha)

    def start(self, federation: Federation) -> Server:
        """The model, and factors `u_z = lambda_0z n / m_z` of one."""
        return {
            "params": self.first,
            "factors": torch.ones(self.task.groups, dtype=torch.float64),
            "trained": torch.zeros((), dtype=torch.float64),
        }

    def measure(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: counts and loss sums of its cells."""
        counts = self.task.count(self.task.outputs(broadcast["params"], data.x), data)
        return {"cells": counts.cells, "loss": counts.loss}, state

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: weighted local training; sends the change and the weights' sum."""
        factors = broadcast["factors"].to(torch.float32)
        real = data.weight
        mass = (example_weights(data, factors) * real).sum()
        mean = (mass / real.sum().clamp(min=1)).clamp(min=1e-12)
        new = self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], weights=example_weights_over, context=(factors, mean),
        )  # fmt: skip
        return {"update": trees.subtract(new, broadcast["params"]), "mass": mass}, state

    def round(self, federation: Federation, server: Server) -> Server:
        """Losses and new factors (not in the first round), then training."""
        factors = server["factors"]
        if self.alpha and server["trained"] > 0:
            factors = self.moved(federation, server)
        broadcast = {**self.broadcast(federation, server), "factors": factors}
        by_size = self.weights(federation) == "size"

        def weight(uploads: Tree, sizes: Tensor) -> Tensor:
            mass: Tensor = uploads["mass"].double().cpu()
            return mass if by_size else mass / sizes

        mean = federation.mean(
            self.train, broadcast, weights=weight, draws=self.draw, keep=("mass",)
        )
        return {
            "params": trees.add(server["params"], mean.value["update"], self.server_lr),
            "factors": factors,
            "trained": server["trained"] + 1,
        }

    def moved(self, federation: Federation, server: Server) -> Tensor:
        """The factors after a step along `F_z` at the current model."""
        mean = federation.mean(self.measure, {"params": server["params"]}, weights="uniform")
        cells, loss = (mean.value[part].cpu() * mean.weight for part in ("cells", "loss"))
        gaps, _ = group_gaps(loss, cells)
        federation.note(surrogate_gap=float(gaps.max() - gaps.min()))
        step = self.alpha / server["trained"].sqrt()
        return adjusted(server["factors"], loss, cells, step)


def example_weights_over(batch: Examples, context: Tree) -> Tensor:
    """Weights of the examples `(n,)`, divided by the client's mean weight."""
    factors, mean = context
    result: Tensor = example_weights(batch, factors) / mean
    return result
