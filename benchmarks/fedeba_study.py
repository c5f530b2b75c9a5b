"""FedEBA+, 100 clients with two label shards each: its default, fragile settings, noisy labels.

python -m benchmarks.fedeba_study tune|confirm|fragile|noise|rates [--data digits,...] [--seeds 0,1]

10 clients a round, 10 local steps, 150 rounds. `tune` compares temperatures on validation data,
seeds 0 to 4, and says in how many cells (data and rate) each beats FedAvg on all three measures;
ties go to the larger mean of the worst 5 %. The others are on test data, seeds 10 to 14. Every
figure is a mean over seeds and over the last five evaluations, ten rounds apart. MNIST needs the
data folder. `rates` is another thing: methods with their defaults, but for the share `alpha` that
is named, at each of several rates in `--columns` of `evenfed paper fedeba`, on the validation data
on which those tables choose their settings, of one seed.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

import evenfed as ef
from evenfed.core.examples import Examples
from evenfed.core.models import mlp
from evenfed.data.dataset import FederatedDataset, Split
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.registry import build
from evenfed.papers import tuned
from evenfed.papers.fedeba import PAPER
from evenfed.runs.runner import Runner, Settings, Silent, build_task

Arms = dict[str, tuple[str, dict[str, Any]]]
MEASURES = ["client_accuracy_mean", "client_accuracy_variance", "client_accuracy_worst_tail"]
CELLS = (
    ("digits", 0.03),
    ("digits", 0.05),
    ("digits standardised", 0.03),
    ("digits standardised", 0.05),
    ("mnist standardised", 0.01),
    ("mnist standardised", 0.03),
)
"""Data and moderate rates: inputs of MNIST have twelve times the squared length of digits."""
LARGE_RATES = (("digits", 0.1), ("digits standardised", 0.1), ("mnist standardised", 0.05))
ROUNDS, EVERY, LAST = 150, 10, 5

FEDAVG: Arms = {"fedavg": ("fedavg", {})}
TUNED: Arms = FEDAVG | {
    f"{mode} tau={tau}": ("fedeba", {"tau": tau, "tau_mode": mode})
    for mode, taus in (("absolute", (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)), ("relative", (0.5, 1.0, 2.0)))
    for tau in taus
}
CONFIRMED: Arms = FEDAVG | {
    "fedeba": ("fedeba", {}),
    "eba": ("eba", {}),
    "prac_fedeba": ("prac_fedeba", {}),
}
FRAGILE: Arms = FEDAVG | {
    "fedeba": ("fedeba", {}),
    "fedeba tau=0.1": ("fedeba", {"tau": 0.1}),
    "fedeba alpha=0.5": ("fedeba", {"alpha": 0.5}),
    "fedeba alpha=0.9": ("fedeba", {"alpha": 0.9}),
    "paper_v5, 0 degrees": ("fedeba", {"preset": "paper_v5"}),
}
NOISE: Arms = FEDAVG | {
    "eba": ("eba", {}),
    "eba p_max=0.15": ("eba", {"p_max": 0.15}),
    "eba robust=1": ("eba", {"robust": 1.0}),
    "fedeba": ("fedeba", {}),
    "fedeba p_max=0.15": ("fedeba", {"p_max": 0.15}),
    "fedeba robust=1": ("fedeba", {"robust": 1.0}),
}

AT_RATES: Arms = {
    "FedAvg": ("fedavg", {}),
    "EBA": ("eba", {}),
    "FedEBA+, alpha = 0.1": ("fedeba", {"alpha": 0.1}),
    "FedEBA+, alpha = 0.3": ("fedeba", {}),
    "Prac-FedEBA+, alpha = 0.3": ("prac_fedeba", {"alpha": 0.3}),
}
RATES = (0.02, 0.05, 0.1, 0.2, 0.4)


def standardised(data: FederatedDataset) -> FederatedDataset:
    """Inputs less the mean of all training inputs, over their standard deviation."""
    x = torch.cat([client.train.x for client in data])
    mean, std = x.mean(), x.std()

    def scaled(part: Examples) -> Examples:
        return replace(part, x=(part.x - mean) / std)

    clients = [
        replace(c, train=scaled(c.train), val=scaled(c.val), test=scaled(c.test)) for c in data
    ]
    return FederatedDataset(data.schema, clients)


def shards(name: str, seed: int) -> FederatedDataset:
    """100 clients with two label shards each."""
    source, _, scaled = name.partition(" ")
    data = ef.load(source, clients=100, partition=ef.Shards(2), seed=seed, flat=True, val=0.2)
    return standardised(data) if scaled else data


@dataclass
class Watch(Silent):
    """Evaluates the last rounds."""

    split: Split
    found: list[dict[str, Any]] = field(default_factory=list)
    runner: Runner | None = None

    def round_done(self, line: dict[str, Any]) -> None:
        done = line["round"] + 1
        if self.runner and done % EVERY == 0 and done > ROUNDS - EVERY * LAST:
            evaluation = self.runner.evaluate(self.split)
            accuracy = evaluation.clients()["accuracy"].to_numpy()
            self.found.append({**evaluation.summary(), "each": accuracy})


def train(
    method: str, data: FederatedDataset, lr: float, seed: int, split: Split, **options: Any
) -> list[dict[str, Any]]:
    """The last evaluations of a run: 10 clients a round, 10 local steps."""
    batch, hidden = (50, (64, 64)) if data.schema.name == "mnist" else (10, (32,))
    chosen = build(method, {"local.lr": lr, "local.steps": 10, "local.batch": batch, **options})
    task = build_task(data, partial(mlp, data.schema.shape[0], 10, hidden), seed=seed)
    watch = Watch(split)
    watch.runner = Runner(
        chosen, data, task, Settings(ROUNDS, seed, evaluate_every=0, tail=0.05),
        participation=Participation(number=10), engine=EngineOptions("vectorized", workers=1),
        observer=watch,
    )  # fmt: skip
    watch.runner.run()
    watch.runner = None
    gc.collect()  # what tracing leaves holds the data
    return watch.found


def measured(
    arm: tuple[str, dict[str, Any]], name: str, lr: float, seeds: list[int], split: Split
) -> np.ndarray:
    """Mean accuracy, variance and worst 5 % over clients."""
    method, options = arm
    rows = [
        [line[m] for m in MEASURES]
        for s in seeds
        for line in train(method, shards(name, s), lr, s, split, **options)
    ]
    return np.mean(rows, axis=0)


def compare(
    arms: Arms, cells: tuple[tuple[str, float], ...], seeds: list[int], split: Split
) -> None:
    print(f"{split} data, seeds {seeds}: mean accuracy, variance, worst 5 % over clients")
    won: dict[str, list[float]] = {}
    for name, lr in cells:
        plain = np.zeros(3)
        for label, arm in arms.items():
            found = measured(arm, name, lr, seeds, split)
            plain = found if label == "fedavg" else plain
            better = found[0] >= plain[0] and found[1] < plain[1] and found[2] > plain[2]
            won.setdefault(label, []).extend([float(better), found[2]])
            mark = "better" if better else ""
            print(f"{name:20} {lr:5} {label:20} {np.round(found, 4).tolist()} {mark}", flush=True)
    for label, cell in won.items():
        print(f"{label:20} better in {sum(cell[::2]):.0f} cells, worst {np.mean(cell[1::2]):.4f}")


def noise(name: str, lr: float, seeds: list[int]) -> None:
    """Labels at random at 30 of 100 clients, or half of them wrong at all clients."""
    print("test data: accuracy of clients with right labels (of all where all are noisy)")
    for noisy, rate in ((range(30), 0.9), (range(100), 0.5)):
        clean = [i for i in range(100) if i not in noisy] or list(noisy)
        for label, (method, options) in NOISE.items():
            found = [
                line["each"][clean].mean()
                for s in seeds
                for line in train(
                    method, ef.LabelNoise(noisy, rate).apply(shards(name, s), seed=s), lr, s,
                    "test", **options,
                )
            ]  # fmt: skip
            print(f"{len(noisy):3} noisy clients {label:20} {np.mean(found):.3f}", flush=True)


def rates(columns: list[str]) -> None:
    """Methods with their defaults at several rates: percent of clients' validation data."""
    jobs = {
        job.column: job.settings
        for key in ("mnist", "fashion", "cifar10")
        for job in PAPER.table(key).jobs(PAPER.table(key).setting("sound", False))
        if job.rows == ("fedavg",)
    }
    print(f"| column | method | {' | '.join(map(str, RATES))} |")
    print("|---" * (2 + len(RATES)) + "|")
    for column in columns:
        for label, (method, options) in AT_RATES.items():
            own = {**jobs[column], "method": method}
            plan = tuned.planned(own, tuned.TUNING_SEED)
            cells = []
            for rate in RATES:
                wanted = plan.using({**options, "local.lr": rate})
                done = tuned.trained(own, wanted, "val", own["every"])
                cells.append(f"{tuned.client_values(done)['mean']:.1f}")
            print(f"| {column} | {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("tune", "confirm", "fragile", "noise", "rates"))
    parser.add_argument("--data", default="digits,digits standardised,mnist standardised")
    parser.add_argument("--seeds")
    parser.add_argument(
        "--columns",
        default="mnist-shards,mnist-dirichlet,fashion-shards,fashion-dirichlet,cifar10-dirichlet",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    usual = "0,1,2,3,4" if given.what == "tune" else "10,11,12,13,14"
    seeds = [int(s) for s in (given.seeds or usual).split(",")]
    wanted = given.data.split(",")
    cells = tuple(cell for cell in CELLS if cell[0] in wanted)
    large = tuple(cell for cell in LARGE_RATES if cell[0] in wanted)
    if given.what == "tune":
        compare(TUNED, cells + large, seeds, "val")
    elif given.what == "confirm":
        compare(CONFIRMED, cells, seeds, "test")
    elif given.what == "fragile":
        compare(FRAGILE, large, seeds, "test")
    elif given.what == "noise":
        noise("digits standardised", 0.05, seeds)
    else:
        rates(given.columns.split(","))
