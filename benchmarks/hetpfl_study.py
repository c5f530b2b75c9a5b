"""HetPFL, its three ablations and PraFFL on SYNTHETIC: hypervolumes, monotone fronts, both fusions.

python -m benchmarks.hetpfl_study [--setting paper|default|unrefreshed] [--seeds 0,1,2,3,4]

15 rounds, three clients; a seed draws the data again, and first weights, batches and preferences.
`paper`: body 4-4, heads not refreshed, alpha of at least 1. `default`: what
`ef.train("hetpfl", "synthetic")` takes. `unrefreshed`: that without `refresh`. Everything printed
is on test data; no option was chosen on it, nor on these seeds. Hypervolumes have reference (1, 1):
local ones are means over clients of their own models on their own data, global ones of the
federation's models on all data. Beside them the constant predictor, and a sweep with pooled data:
one model for each of six penalties on the covariance, 49 thresholds each, all of them on test
data, so it flatters. Cells: mean over seeds, 95 % interval of Student's t.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import evenfed as ef
from evenfed.core.counts import Counts, count_classes
from evenfed.core.examples import Examples
from evenfed.core.fairness_loss import fairness_loss
from evenfed.core.models import mlp
from evenfed.data.dataset import FederatedDataset
from evenfed.methods.hetpfl import HetPFL
from evenfed.metrics.bootstrap import over_seeds
from evenfed.metrics.front import front_metrics, front_points, monotonicity

ROUNDS = 15
SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "paper": (partial(mlp, 3, 2, (4, 4)), {"refresh": 0, "alpha_bounds": (1.0, 5.0)}),
    "default": ("auto", {}),
    "unrefreshed": ("auto", {"refresh": 0}),
}
PENALTIES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
FUSIONS = ("none", "federated", "server", "tuned")
NAMES = {
    (False, "none"): "PraFFL (no PSA, no PHF)",
    (False, "federated"): "PHF alone",
    (True, "none"): "PSA alone",
    (True, "federated"): "HetPFL",
    (True, "server"): "HetPFL, rows at the server",
    (True, "tuned"): "HetPFL, mean tuned with rows",
}
Found = dict[str, dict[str, float]]


def measured(result: ef.Result) -> dict[str, float]:
    """Local and global measures on test data; monotonicity as it is and by a lookup."""
    found = dict(result.front_summary("test"))
    for i in range(len(result.data)):
        scale = result.front("val", i).lookup()(np.linspace(0, 1, 101))
        points = result.front("test", i, preferences=scale.tolist()).points
        for name, value in monotonicity(points).items():
            found[f"lookup_{name}"] = found.get(f"lookup_{name}", 0.0) + value / len(result.data)
    return {str(k): float(v) for k, v in found.items()}


def fused(result: ef.Result, phf: Any) -> ef.Result:
    """The same trained clients with another second phase."""
    runner = copy.copy(result._runner)
    method = replace(result.method, phf=phf)  # type: ignore[call-arg]
    runner.method = method.bound(runner.task, result.method.first)
    server = {"params": result.server["params"]}
    runner.federation.begin(ROUNDS)
    runner.server = runner.method.united(runner.federation, server)  # type: ignore[attr-defined]
    return ef.Result(runner, result.config)


def federated(setting: str, data: FederatedDataset, seed: int) -> tuple[Found, float]:
    """Every arm's measures, and the CPU seconds of HetPFL from start to its global front."""
    model, options = SETTINGS[setting]
    found: Found = {}
    seconds = 0.0
    for psa in (False, True):
        begin = time.process_time()
        result = ef.train(
            HetPFL(psa=psa, phf="none", **options), data, rounds=ROUNDS, seed=seed, model=model,
            evaluate_every=0, engine=ef.EngineOptions("vectorized", workers=1),
        )  # fmt: skip
        trained = time.process_time() - begin
        for phf in FUSIONS:
            if (psa, phf) in NAMES:
                begin = time.process_time()
                found[NAMES[psa, phf]] = measured(fused(result, phf))
                if psa and phf == "federated":
                    seconds = trained + time.process_time() - begin
    return found, seconds


def penalise(model: torch.nn.Module, data: Examples, penalty: float, seed: int) -> None:
    """60 epochs of Adam on cross-entropy and a penalty on the covariance."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    order = torch.Generator().manual_seed(seed)
    for _ in range(60):
        for rows in torch.randperm(len(data), generator=order).split(128):
            part = data.take(rows)
            out = model(part.x)
            unfair = fairness_loss(
                "covariance", out.unsqueeze(0), part.y, part.group, part.weight, 2
            )
            optimizer.zero_grad()
            (torch.nn.functional.cross_entropy(out, part.y) + penalty * unfair[0]).backward()
            optimizer.step()


def centralized(setting: str, data: FederatedDataset, seed: int) -> dict[str, float]:
    """The sweep with pooled data, on every client's test data and on all of it."""
    given = SETTINGS[setting][0]
    pooled = Examples.concatenate([client.train for client in data])
    thresholds = torch.linspace(0.02, 0.98, 49)
    counts: list[list[Tensor]] = [[] for _ in data]
    for penalty in PENALTIES:
        torch.manual_seed(seed)
        model = mlp(3, 2, (64,)) if given == "auto" else given()
        penalise(model, pooled, penalty, seed)
        for k, client in enumerate(data):
            test = client.test
            with torch.no_grad():
                p = model(test.x).softmax(-1)[:, 1]
            counts[k] += [
                count_classes(
                    (p > t).long(), test.y, test.group, p * 0, test.weight, 2, 2
                ).confusion
                for t in thresholds
            ]
    each = [_front(torch.stack(rows)) for rows in counts]
    whole = _front(torch.stack([torch.stack(rows) for rows in counts]).sum(0))
    found = {f"local_{k}": float(np.mean([e[k] for e in each])) for k in whole}
    return found | {f"global_{k}": v for k, v in whole.items()}


def _front(confusion: Tensor) -> dict[str, float]:
    counts = Counts(confusion, confusion.sum(-1), torch.zeros(*confusion.shape[:2], 5))
    one = Counts(confusion[0], confusion[0].sum(-1), torch.zeros(confusion.shape[1], 5))
    return front_metrics(front_points(counts), one)


def cell(values: list[float]) -> str:
    defined = [v for v in values if not np.isnan(v)]
    if not defined:
        return "none"
    found = over_seeds(defined)
    text = f"{found.mean:.3f} ± {(found.high - found.low) / 2:.3f}"
    # a front without a model within the limit has no accuracy there
    return text if len(defined) == len(values) else f"{text} ({len(defined)} of {len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setting", default="default", choices=list(SETTINGS))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    times = []
    for seed in seeds:
        data = ef.load("synthetic", seed=seed)
        found, seconds = federated(given.setting, data, seed)
        times.append(seconds)
        for name, values in found.items():
            rows[name].append(values)
        rows["sweep with pooled data"].append(centralized(given.setting, data, seed))
        brief = {name: round(v["local_hypervolume"], 3) for name, v in found.items()}
        print(f"<!-- seed {seed}, {seconds:.1f} CPU s, local {brief} -->", flush=True)
    show(rows)
    print(f"\nHetPFL, {ROUNDS} rounds with its fronts: {np.mean(times):.1f} CPU s")


def show(rows: dict[str, list[dict[str, float]]]) -> None:
    limit = "accuracy_at_disparity_0.05"
    print("| | local hypervolume | global hypervolume | global accuracy at disparity 0.05 |")
    print("|---|---|---|---|")
    some = rows[NAMES[True, "federated"]]
    columns = ("local_hypervolume", "global_hypervolume", f"global_{limit}")
    for name, values in rows.items():
        print(f"| {name} | " + " | ".join(cell([v[c] for v in values]) for c in columns) + " |")
    constant = " | ".join(cell([v[f"{c}_constant"] for v in some]) for c in columns)
    print(f"| constant predictor | {constant} |")
    print("\n| HetPFL less PraFFL, same seeds | local | global |")
    print("|---|---|---|")
    base = rows[NAMES[False, "none"]]
    for name in (NAMES[True, "none"], NAMES[False, "federated"], NAMES[True, "federated"]):
        gaps = [
            cell([v[c] - b[c] for v, b in zip(rows[name], base, strict=True)]) for c in columns[:2]
        ]
        print(f"| {name} | {' | '.join(gaps)} |")
    print("\n| own fronts along the preference | as they are | by a lookup of validation data |")
    print("|---|---|---|")
    names = {
        "disparity_tau": "Kendall's tau of disparity (ideal -1)",
        "disparity_rise": "largest rise of disparity (ideal 0)",
        "error_fall": "largest fall of error (ideal 0)",
    }
    for key, name in names.items():
        plain, lookup = (cell([v[f"{kind}_{key}"] for v in some]) for kind in ("local", "lookup"))
        print(f"| {name} | {plain} | {lookup} |")


if __name__ == "__main__":
    main()
