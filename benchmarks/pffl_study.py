"""PFFL on COMPAS (sex) and ACSIncome (states, race): error against the largest group loss.

python -m benchmarks.pffl_study compas|acs [--seeds 0,1,2] [--conditional]
python -m benchmarks.pffl_study small [--seeds 0,1,2,3,4]
python -m benchmarks.pffl_study rounds [--seeds 0,1,2]

Logistic regression. The bound goes from 3 % below the minimax value (infeasible) to FedAvg's
largest group loss, both on training data, at B = 10. Every point of the sweep is a row, so nothing
is chosen on test data. `--conditional` bounds the loss of each group and label (CBGL). Cells are
means and standard deviations over seeds, on test data but for the certificate's, which are on
training data.

`small` counts, in the ACS column of `evenfed paper pffl --table figure3`, the states where a race
has at most two people with the favourable label among their training data. `rounds` trains longer
what `evenfed paper pffl --table figure2` has of all people and BGL: the largest training loss of a
group less the bound, of FedAvg and of PFFL with the bound half-way, and as often the last model of
PFFL in place of the mean over the last half of the rounds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import evenfed as ef
from evenfed.data.dataset import FederatedDataset
from evenfed.methods.certificate import Certify, GroupLossCertificate
from evenfed.methods.fedminmax import FedMinMax
from evenfed.methods.group_weighted import GroupWeighted
from evenfed.methods.pffl import PFFL
from evenfed.papers import pffl_bench
from evenfed.papers.recipe import paper

LOCAL = ef.LocalTraining(lr=0.5, batch=0, epochs=5)
ROUNDS = 150
SWEEP = (("-3 %", None), ("0", 0.0), ("1/4", 0.25), ("1/2", 0.5), ("3/4", 0.75), ("1", 1.0))
"""Place of the bound between the minimax value and FedAvg's largest group loss."""


def load(name: str, seed: int) -> FederatedDataset:
    if name == "compas":
        return ef.load("compas", sensitive="sex", seed=seed)
    return ef.load("acs_income", clients=20, limit=500, sensitive="race", seed=seed)


def run(method: ef.Method, data: FederatedDataset, seed: int) -> ef.Result:
    return ef.train(
        method, data, rounds=ROUNDS, seed=seed, model="logistic", evaluate_every=0,
        engine=ef.EngineOptions("vectorized", workers=1),
    )  # fmt: skip


def worst(result: ef.Result, split: Any, conditional: bool) -> float:
    """Largest mean loss of a group, or of a group and label."""
    total = result.evaluation(split).counts.total()
    sums, counts = total.loss, total.cells
    if not conditional:
        sums, counts = sums.sum(-1), counts.sum(-1)
    present = counts > 0
    return float((sums[present] / counts[present]).max())


def measured(result: ef.Result, conditional: bool) -> list[float]:
    error = 1 - float(result.summary()["accuracy"])
    return [error, worst(result, "test", conditional), worst(result, "train", conditional)]


def certificate(result: ef.Result) -> GroupLossCertificate:
    made = result.certificate
    assert isinstance(made, GroupLossCertificate)
    return made


def one_seed(name: str, seed: int, conditional: bool) -> dict[str, Any]:
    """Rows of a seed: test error, largest group loss on test and on training data, certificate."""
    data, rows = load(name, seed), {}
    fedavg = run(ef.FedAvg(local=LOCAL), data, seed)
    rows["FedAvg"] = (measured(fedavg, conditional), None)
    rows["FedAvg, group-weighted"] = (
        measured(run(GroupWeighted(local=LOCAL), data, seed), conditional),
        None,
    )
    fedminmax = FedMinMax(local=LOCAL, eta_mu=0.1)
    rows["FedMinMax"] = (measured(run(fedminmax, data, seed), conditional), None)
    kind = "conditional_bounded_group_loss" if conditional else "bounded_group_loss"
    common: dict[str, Any] = {"constraint": kind, "weighting": "size", "iterate": "tail"}
    common["local"] = LOCAL
    probe = run(PFFL(**common), data, seed)
    least = certificate(probe).minimax
    assert least is not None
    value, top = least[1], worst(fedavg, "train", conditional)
    rows["minimax value"] = ([value, top], None)
    rows["groups"] = (group_table(fedavg, probe), None)
    for place, share in SWEEP:
        zeta = 0.97 * value if share is None else value + share * (top - value)
        for scope in ("global", "local"):
            solve = Certify(solve=scope == "global")
            method = PFFL(zeta=float(zeta), scope=scope, certify=solve, **common)  # type: ignore[arg-type]
            result = run(method, data, seed)
            made = certificate(result) if scope == "global" else None
            rows[f"PFFL {scope}, bound at {place}"] = (measured(result, conditional), made)
    if not conditional:
        excess = PFFL(zeta=0.0, reference="best", **common)
        rows["PFFL, excess over each group's best"] = (
            measured(run(excess, data, seed), conditional),
            None,
        )
    return rows


def group_table(fedavg: ef.Result, probe: ef.Result) -> list[tuple[str, int, float, float | None]]:
    """Group, training examples, training loss of FedAvg and of the minimax model."""
    losses = fedavg.evaluation("train").groups()["loss"]
    cells = certificate(probe).cells
    if len(cells) != len(losses):
        return []
    return [(c.name, c.examples, float(losses[c.name]), c.minimax_loss) for c in cells]


def show(name: str, seeds: list[int], conditional: bool) -> None:
    begin = time.perf_counter()
    found = [one_seed(name, seed, conditional) for seed in seeds]
    values = np.array([rows.pop("minimax value")[0] for rows in found])
    groups = [rows.pop("groups")[0] for rows in found]
    print("minimax value and FedAvg's largest group loss on training data, by seed:")
    print(np.round(values, 4).tolist())
    for lines in zip(*groups, strict=True):
        means = np.mean([line[1:] for line in lines], axis=0)
        print(f"{lines[0][0]}: {means[0]:.0f} examples, loss {means[1]:.4f} (FedAvg), "
              f"{means[2]:.4f} (minimax)")  # fmt: skip
    print("| method | test error | largest group loss, test | training | bounds | gap |")
    print("|---|---|---|---|---|---|")
    for row in found[0]:
        numbers = np.array([rows[row][0] for rows in found])
        cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(numbers.mean(0), numbers.std(0), strict=True)]
        made = [rows[row][1] for rows in found if rows[row][1] is not None]
        states = sorted({m.status for m in made})
        gap = f"{max(m.gap for m in made):.4f}" if made else ""
        print(f"| {row} | {' | '.join(cells)} | {', '.join(states)} | {gap} |", flush=True)
    print(f"{time.perf_counter() - begin:.0f} seconds")


def small(seeds: list[int]) -> None:
    """States in which the rate of a race with the label rests on one or two people."""
    table = paper("pffl").table("figure3")
    jobs = table.jobs(table.setting("sound", quick=False))
    settings = next(job.settings for job in jobs if job.column == "acs")
    for seed in seeds:
        data = ef.load(settings["dataset"], seed=seed, **settings["data"])
        parts = [client.train for client in data]
        counts = [torch.bincount(part.group[part.y == 1], minlength=2) for part in parts]
        rest = sum(bool(((count > 0) & (count <= 2)).any()) for count in counts)
        print(f"seed {seed}: {rest} of {len(data)} states", flush=True)


def longer(seeds: list[int]) -> None:
    """Bounds on all people: what more rounds give."""
    table = paper("pffl").table("figure2")
    jobs = table.jobs(table.setting("sound", quick=False))
    settings = next(job.settings for job in jobs if job.column == "acs_all_bgl")
    arms = ("FedAvg", "PFFL", "PFFL, last model")
    print("| rounds | seed | bound | " + " | ".join(arms) + " |")
    print("|---" * (3 + len(arms)) + "|")
    for seed in seeds:
        bench = pffl_bench.Bench({**settings, "seed": seed})
        zeta = bench.bounds("bounded_group_loss", ()).at("1_2")
        method = bench.bounded("bounded_group_loss", (), zeta)
        for rounds in (60, 150):
            bench.settings["rounds"] = rounds
            last = replace(method, iterate="last")
            found = (bench.named("fedavg"), bench.train(method), bench.train(last))
            excess = [pffl_bench.worst(one, "train", False, ()) - zeta for one in found]
            cells = " | ".join(f"{value:+.4f}" for value in excess)
            print(f"| {rounds} | {seed} | {zeta:.4f} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=["compas", "acs", "small", "rounds"])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--conditional", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    if given.data == "small":
        small(seeds)
    elif given.data == "rounds":
        longer(seeds)
    else:
        show(given.data, seeds, given.conditional)


if __name__ == "__main__":
    main()
