"""Where FedFB's figures in HetPFL's tables come from: its step, and a mean that loses a client.

python -m benchmarks.fedfb_study [--seeds 0,1,2,3,4] [--columns synthetic,0.1,5,1000,10,100,300]

SYNTHETIC with the published protocol (`evenfed paper hetpfl`, Tables 1 to 3). FedFB as it is with
several steps `alpha` of the cells' weights, which the paper sets to 0.01; and with the mean of the
public code, `(w_1 + sum_{i > 1} c_i w_i) / sum_i c_i`, where the sum of all `c_i` is about 27: the
first client is nearly lost and the model shrinks in every round. Hypervolumes with reference
(1, 1) on test data, local and global, beside the constant predictor's; with `best round` that of
the most hypervolume on validation data. Cells: mean over seeds, 95 % interval of Student's t.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from evenfed.core import tree as trees
from evenfed.core.local import LocalTraining
from evenfed.core.models import mlp
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.fedfb import FedFB
from evenfed.metrics.bootstrap import over_seeds
from evenfed.papers import fronts
from evenfed.papers.convergence import WatchOne, followed
from evenfed.papers.front_runs import LOCAL
from evenfed.papers.recipe import Job, paper

WEIGHTS = 27.0
"""Sum of the weights `c_i` in the public code."""
METRICS = ("local_hypervolume", "global_hypervolume")


@dataclass(frozen=True)
class Shrinking(FedFB):
    """FedFB with the public code's mean of the models."""

    name: ClassVar[str] = "fedfb_shrinking"

    def round(self, federation: Federation, server: Server) -> Server:
        """As FedFB's, but for the mean."""
        factors = server["factors"]
        if self.alpha and server["trained"] > 0:
            factors = self.moved(federation, server)
        broadcast = {**self.broadcast(federation, server), "factors": factors}
        replies = federation.map(self.train, broadcast, draws=self.draw)
        models = trees.add(server["params"], replies.uploads["update"])
        weights = replies.uploads["mass"] / replies.uploads["mass"].sum()
        weights[int(replies.clients.argmin())] = 1 / WEIGHTS
        params = trees.map(lambda w: torch.einsum("k,k...->...", weights, w), models)
        return {"params": params, "factors": factors, "trained": server["trained"] + 1}


ARMS: dict[str, tuple[type[FedFB], float, bool]] = {
    **{f"alpha {alpha:g}": (FedFB, alpha, False) for alpha in (0.01, 0.02, 0.05, 0.1, 0.3)},
    "alpha 0.01, public code's mean": (Shrinking, 0.01, False),
    "the same, best round": (Shrinking, 0.01, True),
}


def planned() -> dict[str, list[Job]]:
    """The jobs of FedFB on SYNTHETIC, one a seed, by column."""
    found: dict[str, list[Job]] = {}
    for key in ("table1", "table2", "table3"):
        table = paper("hetpfl").table(key)
        for job in table.jobs(table.setting("published", quick=False)):
            if job.rows == ("fedfb",) and job.settings["dataset"] == "synthetic":
                found.setdefault(job.column, []).append(job)
    return found


def measured(settings: dict[str, Any], data: FederatedDataset, arm: str) -> dict[str, float]:
    kind, alpha, best = ARMS[arm]
    method = kind(alpha=alpha, local=LocalTraining(**LOCAL, epochs=settings["epochs"]))
    model = partial(mlp, data.schema.shape[0], 2, (settings["hidden"],))
    watch = WatchOne(keep_best=True) if best else None
    result = followed(method, data, model, settings["rounds"], settings["seed"], watch)
    own, whole = fronts.of_one_model(result)
    return fronts.measures([point[None] for point in own], whole[None])


def cell(values: list[float]) -> str:
    found = over_seeds(values)
    return f"{found.mean:.3f} ± {found.high - found.mean:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--columns", default="synthetic,0.1,5,1000,10,100,300")
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
