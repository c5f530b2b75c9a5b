"""What SER does, beside its controls: curvature, signs, accuracy, over seeds.

python -m benchmarks.ser_study [table]  [--dataset digits|mnist] [--regime mini|full|all]
python -m benchmarks.ser_study choose   [--seeds 10,11,12,13,14]

Every arm trains on the same clients, batches and first weights, so that arms are compared in
pairs, seed by seed. The arm "none" is `rho = 0`: FedAvg, and at the end a local round at every
client. `table` says the mean over seeds, and in brackets the mean paired difference to "none" with
half of its 95 % interval (Student's t). Each form of SER has its controls: a random direction of
the same norm, the plain step scaled to the same norm, and the rate at which a plain first round is
as long. A random direction is the same whatever the correction would have measured, so forms of one
strength share it. Finished runs are kept in benchmarks/results by all that decides their numbers
(data, model, size, every option of the method) and not repeated. `choose` looks at validation data
alone, on seeds that the table does not use: where the default comes from.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
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
from evenfed.methods.ser import SER
from evenfed.runs.config import RunConfig, asdict_options, method_table
from evenfed.runs.runner import Runner, Settings, Silent, build_task

RESULTS = Path(__file__).parent / "results"
ROUNDS, STEPS, RATE = 25, 10, 0.12
DATA = {
    "mnist": {"clients": 40, "kept": 20, "examples": 256, "cohort": 5},
    "digits": {"clients": 16, "kept": 8, "examples": 64, "cohort": 4},
}
ALPHA, HIDDEN, TARGET = 0.3, (64, 64), 0.8
MEASURED: dict[str, Any] = {"probes": 30, "rate": RATE, "path": 10, "lanczos": 20, "rows": 1024}
MEASURED_CLIENTS = 8
"""Products with the Hessian take most of the time: some clients, the same for all arms."""
REGIMES = {"mini": {"batch": 20, "steps": STEPS}, "full": {"batch": 0, "steps": STEPS}}

POSTHOC = {"ser.when": "posthoc", "ser.rho": 0.1, "ser.through": False}
STEP = {"ser.when": "step", "ser.rho": 0.3, "ser.through": True}
FIFTH = {"ser.when": "interval", "ser.rho": 0.3, "ser.through": True}
GATE = {"ser.mode": "gate", "ser.rho": 0.5}
AMONG = {"ser.when": "step", "ser.rho": 0.3, "ser.axis": "coordinates"}
FORMS = {
    "posthoc 0.1": POSTHOC, "every 5th 0.3": FIFTH, "step 0.3": STEP, "gate 0.5": GATE,
    "step 0.3, entropy": {**STEP, "ser.objective": "entropy"},
    "step 0.3, coordinates": {**AMONG, "ser.objective": "entropy"},
}  # fmt: skip


def controls(name: str, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a form must beat. `matched` stands for its rate, found when the arm runs."""
    found: dict[str, dict[str, Any]] = {name: options}
    if "ser.mode" not in options:
        length = {k: v for k, v in options.items() if k in ("ser.when", "ser.rho")}
        found[f"{name}, random"] = {**length, "ser.control": "random"}
    found[f"{name}, shrink"] = {**options, "ser.control": "shrink"}
    found[f"{name}, rate"] = {"ser.rho": 0.0, "matched": options}
    return found


ARMS: dict[str, dict[str, Any]] = {
    "none": {"ser.rho": 0.0},
    "lr x0.5": {"ser.rho": 0.0, "lr": RATE / 2},
    **{arm: o for name, options in FORMS.items() for arm, o in controls(name, options).items()},
    "step 0.3, held": {**STEP, "ser.through": False},
    "step 0.3, coordinates, js": {**AMONG, "ser.objective": "js"},
    "step 0.3, adaptive": {**STEP, "adaptive": True},
    "posthoc 0.01": {**POSTHOC, "ser.rho": 0.01},
    "posthoc 0.1, through": {**POSTHOC, "ser.through": True},
    "posthoc 0.1, entropy": {**POSTHOC, "ser.objective": "entropy"},
}

CANDIDATES: dict[str, dict[str, Any]] = {
    "none": {"ser.rho": 0.0},
    **{
        f"{when}, rho = {rho:g}{', through' if through else ''}": {
            "ser.when": when, "ser.rho": rho, "ser.through": through
        }
        for when in ("posthoc", "interval", "step")
        for rho in (0.1, 0.3)
        for through in (False, True)
    },
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
    of, split = DATA[name], ef.Dirichlet("label", alpha=ALPHA)
    data = ef.load(name, clients=of["clients"], partition=split, seed=seed)
    rows = torch.arange(of["examples"])
    large = [client for client in data if len(client.train) >= len(rows)][: of["kept"]]
    same = [ef.ClientData(c.name, c.train.take(rows), c.val, c.test) for c in large]
    assert len(same) == of["kept"]
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
    some = result.using()
    some._runner.settings = replace(some._runner.settings, evaluate_clients=MEASURED_CLIENTS)
    return some


def runner_of(name: str, data: ef.FederatedDataset, seed: int, options: dict[str, Any]) -> Runner:
    inputs = int(np.prod(data.schema.shape))

    def model() -> torch.nn.Module:
        return models.mlp(inputs, data.schema.classes, hidden=HIDDEN)

    cohort = DATA[name]["cohort"]
    return Runner(
        build("ser", options), data, build_task(data, model, seed=seed), Settings(ROUNDS, seed, 0),
        # chunks as large as the cohort, so that few shapes are traced
        participation=ef.Participation(number=cohort),
        engine=ef.EngineOptions("vectorized", workers=1, chunk=cohort),
    )  # fmt: skip


def result_of(runner: Runner, seed: int) -> ef.Result:
    runner.run()
    table = method_table(runner.method)
    return ef.Result(runner, RunConfig(method=table, rounds=ROUNDS, seed=seed))


def matched_rate(name: str, data: ef.FederatedDataset, seed: int, options: dict[str, Any]) -> float:
    """The rate at which a plain first round is as long as the one with these options."""

    def length(more: dict[str, Any]) -> float:
        runner = runner_of(name, data, seed, {"deploy": "global", **options, **more})
        first = runner.server["params"]
        new = runner.method.round(runner.federation, runner.server)["params"]
        return float(sum((new[k] - first[k]).square().sum() for k in new)) ** 0.5

    return float(options["lr"]) * length({}) / length({"ser.rho": 0.0})


def measure(
    name: str, data: ef.FederatedDataset, seed: int, options: dict[str, Any]
) -> dict[str, float]:
    if "matched" in options:
        form = {**options, **options["matched"]}
        rate = matched_rate(name, data, seed, {k: v for k, v in form.items() if k != "matched"})
        options = {**{k: v for k, v in options.items() if k != "matched"}, "lr": rate}
    runner = runner_of(name, data, seed, options)
    curve = GlobalCurve()
    curve.runner, runner.observer = runner, curve
    result = result_of(runner, seed)
    found = on_some_clients(result).geometry(**MEASURED).mean().to_dict()
    for kind, source in (("local", result), ("global", result.using(deploy="global"))):
        summary = source.summary()
        found[f"{kind}_mean"] = 100 * summary["client_accuracy_mean"]
        found[f"{kind}_variance"] = 1e4 * summary["client_accuracy_variance"]
        found[f"{kind}_worst"] = 100 * summary["client_accuracy_worst_tail"]
    reached = np.flatnonzero(np.array(curve.accuracy) >= TARGET)
    found["rounds_to"] = float(reached[0] + 1) if len(reached) else float(ROUNDS + 1)
    found["bytes_up"] = float(result.history["bytes_up"].sum())
    found["lr"] = float(options["lr"])
    return {name: round(float(value), 6) for name, value in found.items()}


def resolved(options: dict[str, Any]) -> dict[str, Any]:
    """Every option of the method, given or default, as the method uses it."""
    method = build("ser", options)
    assert isinstance(method, SER)
    ser = method.local.ser
    found = copy.deepcopy(asdict_options(method))
    found["local"]["ser"] |= {
        "rho": ser.strength, "objective": ser.measure, "through": ser.derives_through
    }  # fmt: skip
    return found


def key_of(name: str, regime: str, arm: str, seed: int) -> str:
    """What a finished run is kept under: a digest of all that decides its numbers, and the seed."""
    options = {"lr": RATE, **REGIMES[regime], **ARMS[arm]}
    matched = options.pop("matched", None)
    decides = {
        "data": name, "of": DATA[name], "alpha": ALPHA, "hidden": HIDDEN, "rounds": ROUNDS,
        "target": TARGET, "measured": [MEASURED, MEASURED_CLIENTS], "method": resolved(options),
        "matched": None if matched is None else resolved({**options, **matched}),
    }  # fmt: skip
    text = json.dumps(decides, sort_keys=True)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}/{seed}"


def choose(name: str, regimes: list[str], seeds: list[int]) -> None:
    """Validation loss and accuracy of the clients' own models."""
    for regime in regimes:
        print(f"\n{name}, {regime} batch, validation data, seeds {seeds}\n")
        print("| arm | loss | accuracy, % |\n|---|---|---|")
        base: list[np.ndarray] = []
        for arm, options in CANDIDATES.items():
            rows = []
            for seed in seeds:
                runner = runner_of(
                    name, dataset(name, seed), seed, {"lr": RATE, **REGIMES[regime], **options}
                )
                summary = result_of(runner, seed).summary("val")
                rows.append([summary["client_loss_mean"], 100 * summary["client_accuracy_mean"]])
            values = np.array(rows).T
            base = base or [*values]
            cells = [
                f"{v.mean():.{d}f}" + ("" if arm == "none" else paired(v - b, d))
                for v, b, d in zip(values, base, (3, 1), strict=True)
            ]
            print(f"| {arm} | {' | '.join(cells)} |", flush=True)


def paired(gap: np.ndarray, digits: int) -> str:
    """The mean difference with half of its 95 % interval."""
    half = stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / len(gap) ** 0.5
    return f" ({gap.mean():+.{digits}f} ± {half:.{digits}f})"


Runs = dict[tuple[str, int], dict[str, float]]
"""Measures by arm and seed."""


def table(runs: Runs, seeds: list[int]) -> str:
    lines = ["| arm | " + " | ".join(title for _, title in COLUMNS.values()) + " |"]
    lines.append("|---" * (1 + len(COLUMNS)) + "|")
    for arm in ARMS:
        cells = []
        for column, (digits, _) in COLUMNS.items():
            values, base = (np.array([runs[a, s][column] for s in seeds]) for a in (arm, "none"))
            cell = f"{values.mean():.{digits}f}"
            if arm != "none" and len(seeds) > 1:
                cell += paired(values - base, digits)
            cells.append(cell)
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def beyond(runs: Runs, seeds: list[int]) -> str:
    """Each form less each of its controls: the mean paired difference."""
    lines = ["| form less its control | " + " | ".join(t for _, t in COLUMNS.values()) + " |"]
    lines.append("|---" * (1 + len(COLUMNS)) + "|")
    for arm, options in FORMS.items():
        for control in list(controls(arm, options))[1:]:
            cells = []
            for column, (digits, _) in COLUMNS.items():
                gap = [runs[arm, s][column] - runs[control, s][column] for s in seeds]
                cells.append(paired(np.array(gap), digits).strip(" ()"))
            lines.append(f"| {arm} less {control.removeprefix(arm + ', ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def finished(name: str, regime: str, seeds: list[int]) -> Runs:
    """All runs of the table; those that are not kept yet are carried out."""
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / f"ser_{name}_{regime}.json"
    kept: dict[str, dict[str, float]] = json.loads(out.read_text()) if out.exists() else {}
    runs: Runs = {}
    for seed in seeds:
        data = None
        for arm, options in ARMS.items():
            key = key_of(name, regime, arm, seed)
            if key not in kept:
                begin = time.perf_counter()
                data = data or dataset(name, seed)
                kept[key] = measure(name, data, seed, {"lr": RATE, **REGIMES[regime], **options})
                print(f"{arm}/{seed}: {time.perf_counter() - begin:.0f} s", flush=True)
                out.write_text(json.dumps(kept, indent=1) + "\n")
            runs[arm, seed] = kept[key]
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("table", "choose"), default="table")
    parser.add_argument("--dataset", choices=tuple(DATA), default="digits")
    parser.add_argument("--seeds")
    parser.add_argument("--regime", choices=(*REGIMES, "all"), default="mini")
    given = parser.parse_args()
    torch.set_num_threads(1)
    usual = "10,11,12,13,14" if given.what == "choose" else "0,1,2,3,4"
    seeds = [int(s) for s in (given.seeds or usual).split(",")]
    regimes = list(REGIMES) if given.regime == "all" else [given.regime]
    if given.what == "choose":
        choose(given.dataset, regimes, seeds)
        return
    for regime in regimes:
        runs = finished(given.dataset, regime, seeds)
        print(f"\n{given.dataset}, {regime} batch\n\n{table(runs, seeds)}")
        if len(seeds) > 1:
            print(f"\n{beyond(runs, seeds)}")


if __name__ == "__main__":
    main()
