"""What SER does, beside its controls: curvature, signs, accuracy, over seeds.

python -m benchmarks.ser_study [--dataset mnist|digits] [--seeds 0,1,2,3,4] [--regime full|mini|all]

Every arm trains on the same clients, batches and first weights, so that arms are compared in
pairs, seed by seed. The arm "none" is `rho = 0`: FedAvg, and at the end a local round at every
client. Tables say the mean over seeds, and in brackets the mean paired difference to "none" with
half of its 95 % interval (Student's t). Finished runs are kept in benchmarks/results
and not repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import evenfed as ef
from evenfed.core import models
from evenfed.methods.registry import build
from evenfed.runs.config import RunConfig, method_table
from evenfed.runs.runner import Runner, Settings, Silent, build_task

RESULTS = Path(__file__).parent / "results"
# the cohort's size throughout, so that few shapes are traced
ENGINE = ef.EngineOptions("vectorized", workers=1, chunk=5)
ROUNDS, STEPS, RATE, COHORT = 25, 10, 0.12, 5
REGIMES = {"full": {"batch": 0, "steps": STEPS}, "mini": {"batch": 20, "steps": STEPS}}

ARMS: dict[str, dict[str, Any]] = {
    "none": {"ser.rho": 0.0},
    "lr x0.5": {"ser.rho": 0.0, "lr": RATE / 2},
    "posthoc 0.01": {"ser.rho": 0.01},
    "posthoc 0.1": {"ser.rho": 0.1},
    "posthoc 0.1, random": {"ser.rho": 0.1, "ser.control": "random"},
    "posthoc 0.1, shrink": {"ser.rho": 0.1, "ser.control": "shrink"},
    "posthoc 0.1, through": {"ser.rho": 0.1, "ser.through": True},
    "posthoc 0.1, adaptive": {"ser.rho": 0.1, "adaptive": True},
    "step 0.3": {"ser.rho": 0.3, "ser.when": "step"},
    "step 0.3, random": {"ser.rho": 0.3, "ser.when": "step", "ser.control": "random"},
    "step 0.3, shrink": {"ser.rho": 0.3, "ser.when": "step", "ser.control": "shrink"},
    "step 0.3, through": {"ser.rho": 0.3, "ser.when": "step", "ser.through": True},
    "every 5th 0.3": {"ser.rho": 0.3, "ser.when": "interval"},
    "posthoc 0.3": {"ser.rho": 0.3},
    "gate 0.5": {"ser.rho": 0.5, "ser.mode": "gate"},
}  # fmt: skip

COLUMNS = {
    "sign_entropy": (3, "sign entropy, bits"), "flip_rate": (3, "flip rate"),
    "hessian_trace": (1, "Hessian trace"), "top_eigenvalue": (2, "top eigenvalue"),
    "local_mean": (2, "local mean"), "local_variance": (1, "local variance"),
    "local_worst": (1, "local worst 10 %"), "global_mean": (2, "global mean"),
    "global_variance": (1, "global variance"), "rounds_to": (1, "rounds to 80 %"),
}  # fmt: skip


def dataset(name: str, seed: int) -> ef.FederatedDataset:
    """Clients of one size (256 or 64 training examples) with their own mix of labels."""
    split = ef.Dirichlet("label", alpha=0.3)
    if name == "mnist":
        data, count, size = ef.load("mnist", clients=40, partition=split, seed=seed), 20, 256
    else:
        data, count, size = ef.load("digits", clients=16, partition=split, seed=seed), 8, 64
    large = [client for client in data if len(client.train) >= size][:count]
    same = [ef.ClientData(c.name, c.train.take(torch.arange(size)), c.val, c.test) for c in large]
    assert len(same) == count
    return ef.FederatedDataset(data.schema, same)


class GlobalCurve(Silent):
    """Notes the mean accuracy over clients of the global model after every round."""

    runner: Runner

    def __init__(self) -> None:
        self.accuracy: list[float] = []

    def round_done(self, line: dict[str, Any]) -> None:
        globally = copy.copy(self.runner)
        method = replace(self.runner.method, deploy="global")  # type: ignore[call-arg]
        globally.method = method.bound(self.runner.task, self.runner.method.first)
        self.accuracy.append(globally.evaluate("val").summary()["client_accuracy_mean"])


def on_some_clients(result: ef.Result) -> ef.Result:
    """Products with the Hessian take most of the time: eight clients, the same for all arms."""
    some = result.using()
    some._runner.settings = replace(some._runner.settings, evaluate_clients=8)
    return some


def measure(data: ef.FederatedDataset, seed: int, options: dict[str, Any]) -> dict[str, float]:
    inputs = int(np.prod(data.schema.shape))

    def model() -> torch.nn.Module:
        return models.mlp(inputs, data.schema.classes, hidden=(64, 64))

    method = build("ser", options)
    curve = GlobalCurve()
    runner = Runner(
        method, data, build_task(data, model, seed=seed), Settings(ROUNDS, seed, 0),
        participation=ef.Participation(number=COHORT), engine=ENGINE,
        observer=curve,
    )  # fmt: skip
    curve.runner = runner
    runner.run()
    result = ef.Result(runner, RunConfig(method=method_table(method), rounds=ROUNDS, seed=seed))
    found = on_some_clients(result).geometry(probes=30, rate=RATE).mean().to_dict()
    for kind, source in (("local", result), ("global", result.using(deploy="global"))):
        summary = source.summary()
        found[f"{kind}_mean"] = 100 * summary["client_accuracy_mean"]
        found[f"{kind}_variance"] = 1e4 * summary["client_accuracy_variance"]
        found[f"{kind}_worst"] = 100 * summary["client_accuracy_worst_tail"]
    reached = np.flatnonzero(np.array(curve.accuracy) >= 0.8)
    found["rounds_to"] = float(reached[0] + 1) if len(reached) else float(ROUNDS + 1)
    found["bytes_up"] = float(result.history["bytes_up"].sum())
    return {name: round(float(value), 6) for name, value in found.items()}


def table(runs: dict[str, dict[str, float]], seeds: list[int]) -> str:
    lines = ["| arm | " + " | ".join(title for _, title in COLUMNS.values()) + " |"]
    lines.append("|---" * (1 + len(COLUMNS)) + "|")
    for arm in ARMS:
        cells = []
        for column, (digits, _) in COLUMNS.items():
            values, base = (
                np.array([runs[f"{a}/{s}"][column] for s in seeds]) for a in (arm, "none")
            )
            cell = f"{values.mean():.{digits}f}"
            if arm != "none" and len(seeds) > 1:
                gap = values - base
                half = stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / len(gap) ** 0.5
                cell += f" ({gap.mean():+.{digits}f} ± {half:.{digits}f})"
            cells.append(cell)
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--regime", choices=(*REGIMES, "all"), default="all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(s) for s in given.seeds.split(",")]
    for regime in list(REGIMES) if given.regime == "all" else [given.regime]:
        out = RESULTS / f"ser_{given.dataset}_{regime}.json"
        runs: dict[str, dict[str, float]] = json.loads(out.read_text()) if out.exists() else {}
        for seed in seeds:
            data = dataset(given.dataset, seed)
            for arm, options in ARMS.items():
                key = f"{arm}/{seed}"
                if key in runs:
                    continue
                begin = time.perf_counter()
                runs[key] = measure(data, seed, {"lr": RATE, **REGIMES[regime], **options})
                print(f"{key}: {time.perf_counter() - begin:.0f} s", flush=True)
                out.write_text(json.dumps(runs, indent=1) + "\n")
        print(f"\n{given.dataset}, {regime} batch\n\n{table(runs, seeds)}")


if __name__ == "__main__":
    main()
