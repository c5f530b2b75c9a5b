"""FedEBA+ on digits with two classes a client: where it helps, where it is fragile, noisy labels.

python -m benchmarks.fedeba_study settings|noise [--seeds 0,1,2,3,4]
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np

import evenfed as ef
from evenfed.core.models import mlp
from evenfed.data.dataset import FederatedDataset
from evenfed.methods.registry import build

NAMES = ["client_accuracy_mean", "client_accuracy_variance", "client_accuracy_worst_tail"]
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "eba": ("eba", {}),
    "fedeba": ("fedeba", {}),
    "fedeba tau=0.5": ("fedeba", {"tau": 0.5}),
    "fedeba relative tau=1": ("fedeba", {"tau": 1.0, "tau_mode": "relative"}),
    "fedeba alpha=0.5": ("fedeba", {"alpha": 0.5}),
    "fedeba alpha=0.9": ("fedeba", {"alpha": 0.9}),
    "prac kept": ("prac_fedeba", {}),
    "prac stale": ("prac_fedeba", {"fair_gradient": "stale"}),
    "prac first_step": ("prac_fedeba", {"fair_gradient": "first_step"}),
}
NOISE_ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "eba": ("eba", {}),
    "eba p_max=0.15": ("eba", {"p_max": 0.15}),
    "eba robust=1": ("eba", {"robust": 1.0}),
}


def shards(clients: int, seed: int) -> FederatedDataset:
    return ef.load("digits", clients=clients, partition=ef.Shards(2), seed=seed, flat=True)


def train(method: str, data: FederatedDataset, lr: float, seed: int, **options: Any) -> ef.Result:
    chosen = build(method, {"local.lr": lr, "local.steps": 10, "local.batch": 10, **options})
    return ef.train(
        chosen, data, rounds=100, seed=seed, participation=10, evaluate_every=0, tail=0.05,
        engine="vectorized", model=partial(mlp, 64, 10, (32,)),
    )  # fmt: skip


def settings(seeds: list[int]) -> None:
    print("clients, lr, method: mean accuracy, variance, worst 5 %")
    for clients, lr in ((50, 0.05), (50, 0.03), (50, 0.1), (100, 0.05), (100, 0.03)):
        for name, (method, options) in ARMS.items():
            rows = [
                train(method, shards(clients, s), lr, s, **options).summary()[NAMES] for s in seeds
            ]
            print(clients, lr, name, np.round(np.mean(rows, axis=0), 4).tolist(), flush=True)


def noise(seeds: list[int]) -> None:
    noisy = list(range(15))
    print("method: accuracy of the 35 clean clients on clean labels, mean and std over seeds")
    for name, (method, options) in NOISE_ARMS.items():
        found = []
        for seed in seeds:
            data = ef.LabelNoise(noisy, 0.9).apply(shards(50, seed), seed=seed)
            result = train(method, data, 0.05, seed, **options)
            clean = [data.names[i] for i in range(len(data)) if i not in noisy]
            found.append(float(result.clients.loc[clean, "accuracy"].mean()))
        print(name, round(float(np.mean(found)), 3), round(float(np.std(found)), 3), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("settings", "noise"))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    given = parser.parse_args()
    chosen = [int(s) for s in given.seeds.split(",")]
    settings(chosen) if given.what == "settings" else noise(chosen)
