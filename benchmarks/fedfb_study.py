"""Where FedFB's figures in HetPFL's tables come from: its step, and what its public code does.

python -m benchmarks.fedfb_study [--seeds 0,1,2,3,4] \
    [--columns synthetic,compas,bank,adult,0.1,5,1000,10,100,300]

The published protocol (`evenfed paper hetpfl`, Tables 1 to 3; columns of numbers are SYNTHETIC's
heterogeneities and clients). FedFB as it is with several steps `alpha` of the cells' weights, of
which the public code has 0.01; and with habits of that code, one by one and together:
- `sizes`: the weights of every group's cells add up to twice the share of group 0, not to twice
  their own, from the first update on: `lambda_1z = 2 m_0 / n - lambda_0z`;
- `constant`: the part of `F_z` that holds no loss is added once a client, not once;
- `mean`: `(w_1 + sum_{i > 1} c_i w_i) / sum_i c_i`, where the sum of all `c_i` is about 27, so that
  the first client is nearly lost and the model shrinks in every round;
- `best round`: that of the most hypervolume on all training data.
Hypervolumes with reference (1, 1) on test data, local and global, beside the constant predictor's.
Cells: mean over seeds, 95 % interval of Student's t.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.fairbatch import adjusted, group_gaps
from evenfed.core.local import LocalTraining
from evenfed.core.models import mlp
from evenfed.core.tree import Tree
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.fedfb import FedFB
from evenfed.metrics.bootstrap import over_seeds
from evenfed.metrics.client import FloatArray
from evenfed.metrics.front import front_points
from evenfed.papers import fronts
from evenfed.papers.convergence import Watch, WatchOne, followed
from evenfed.papers.front_runs import LOCAL
from evenfed.papers.recipe import Job, paper
from evenfed.runs.runner import Runner

WEIGHTS = 27.0
"""Sum of the weights `c_i` in the public code."""
METRICS = ("local_hypervolume", "global_hypervolume")
COLUMNS = "synthetic,compas,bank,adult,0.1,5,1000,10,100,300"


@dataclass(frozen=True)
class PublicFedFB(FedFB):
    """FedFB with habits of the public code."""

    name: ClassVar[str] = "fedfb_public"

    first_size: bool = False
    constant_of_each: bool = False
    shrinking: bool = False

    def round(self, federation: Federation, server: Server) -> Server:
        """As FedFB's, but for these habits."""
        factors = server["factors"]
        ratios = torch.ones_like(factors)
        if server["trained"] > 0:
            factors, ratios = self.moved_with_ratios(federation, server)
        broadcast = {**self.broadcast(federation, server), "factors": factors, "ratios": ratios}
        replies = federation.map(self.train, broadcast, draws=self.draw)
        models = trees.add(server["params"], replies.uploads["update"])
        weights = replies.uploads["mass"] / replies.uploads["mass"].sum()
        if self.shrinking:
            weights[int(replies.clients.argmin())] = 1 / WEIGHTS
        params = trees.map(lambda w: torch.einsum("k,k...->...", weights, w), models)
        return {"params": params, "factors": factors, "trained": server["trained"] + 1}

    def moved_with_ratios(self, federation: Federation, server: Server) -> tuple[Tensor, Tensor]:
        """The factors `u_z` after a step, and the size of group 0 over each group's own `(G,)`."""
        mean = federation.mean(self.measure, {"params": server["params"]}, weights="uniform")
        cells, loss = (mean.value[part].cpu() * mean.weight for part in ("cells", "loss"))
        if self.constant_of_each:  # F_z has (m_1z - S_1z) / m_z
            loss = loss - cells * torch.tensor([0.0, 1.0]) * (mean.weight - 1)
        step = self.alpha / server["trained"].sqrt()
        size = cells.sum(-1)
        if not self.first_size:
            return adjusted(server["factors"], loss, cells, step), torch.ones_like(size)
        gaps, first = group_gaps(loss, cells)
        ratios = size[0] / size
        moves = step * torch.where(first, -gaps.sum(), gaps) * size.sum() / size
        return torch.minimum((server["factors"] + moves).clamp(min=0), 2 * ratios), ratios

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """As FedFB's; an example with label 1 counts `2 m_0 / m_z - u_z` times."""
        of_group = tuple(broadcast[name].to(torch.float32) for name in ("factors", "ratios"))
        real = data.weight
        mass = (counted(data, of_group) * real).sum()
        mean = (mass / real.sum().clamp(min=1)).clamp(min=1e-12)
        new = self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], weights=counted_over, context=(of_group, mean),
        )  # fmt: skip
        return {"update": trees.subtract(new, broadcast["params"]), "mass": mass}, state


def counted(batch: Examples, of_group: Tree) -> Tensor:
    """How often each example counts `(n,)`."""
    factors, ratios = (part[batch.group] for part in of_group)
    return torch.where(batch.y == 1, 2 * ratios - factors, factors)


def counted_over(batch: Examples, context: Tree) -> Tensor:
    """The same, divided by the client's mean."""
    of_group, mean = context
    result: Tensor = counted(batch, of_group) / mean
    return result


class OnTraining(WatchOne):
    """Chooses the round on training data."""

    def fronts(self, runner: Runner) -> list[FloatArray]:
        """(error, disparity) `(1, 2)` on those of all clients."""
        total = runner.evaluate("train").counts.total()
        return [front_points(trees.map(lambda part: part[None], total))]


SIZES = {"first_size": True}
CONSTANT = {"constant_of_each": True}
MEAN = {"shrinking": True}
ALL = {**SIZES, **CONSTANT, **MEAN}
ARMS: dict[str, tuple[dict[str, Any], type[Watch] | None]] = {
    **{f"alpha {alpha:g}": ({"alpha": alpha}, None) for alpha in (0.01, 0.05, 0.1, 0.3)},
    "0.01, sizes": (SIZES, None),
    "0.01, constant": (CONSTANT, None),
    "0.01, mean": (MEAN, None),
    "0.01, all three": (ALL, None),
    "0.01, all three, best round": (ALL, OnTraining),
}


def planned() -> dict[str, list[Job]]:
    """The jobs of FedFB, one a seed, by column."""
    found: dict[str, list[Job]] = {}
    for key in ("table1", "table2", "table3"):
        table = paper("hetpfl").table(key)
        for job in table.jobs(table.setting("published", quick=False)):
            if job.rows == ("fedfb",):
                found.setdefault(job.column, []).append(job)
    return found


def measured(settings: dict[str, Any], data: FederatedDataset, arm: str) -> dict[str, float]:
    options, watching = ARMS[arm]
    local = LocalTraining(**LOCAL, epochs=settings["epochs"])
    method = PublicFedFB(**{"alpha": 0.01, "local": local, **options})
    model = partial(mlp, data.schema.shape[0], 2, (settings["hidden"],))
    watch = watching(keep_best=True) if watching else None
    result = followed(method, data, model, settings["rounds"], settings["seed"], watch)
    own, whole = fronts.of_one_model(result)
    return fronts.measures([point[None] for point in own], whole[None])


def cell(values: list[float]) -> str:
    found = over_seeds(values)
    return f"{found.mean:.3f} ± {found.high - found.mean:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--columns", default=COLUMNS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = {int(seed) for seed in given.seeds.split(",")}
    jobs = planned()
    print("| column | FedFB | local | global |")
    print("|---|---|---|---|")
    for column in given.columns.split(","):
        found: dict[str, list[dict[str, float]]] = {}
        for job in (job for job in jobs[column] if job.seed in seeds):
            settings = dict(job.settings)
            data = load(settings["dataset"], seed=job.seed, **settings["data"])
            found.setdefault("constant", []).append(fronts.constant(data))
            for arm in ARMS:
                found.setdefault(arm, []).append(measured(settings, data, arm))
        for arm, runs in found.items():
            cells = [cell([run[metric] for run in runs]) for metric in METRICS]
            print(f"| {column} | {arm} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
