"""How `evenfed paper focus` came to its rates and schedules, and how far its labels get.

python -m benchmarks.focus_recipe rates     --dataset mnist|cifar10 [--rates 0.1,0.2,0.5]
python -m benchmarks.focus_recipe schedules --dataset mnist|cifar10 [--schedules 150x20x100]
python -m benchmarks.focus_recipe rates     --dataset imdb --reviews FILE --encoder NAME
python -m benchmarks.focus_recipe labels    --dataset imdb --reviews FILE --encoder NAME \
    [--rates 1] [--schedules 20x1ex50,60x1ex50] [--seeds 0,1,2,3,4]

`rates` and `schedules` train FedAvg with each rate or schedule, and all else as in the recipe, on
validation data of a seed that no table has. A schedule is ROUNDSxSTEPSxBATCH, the steps a number
or, with an `e` behind it, a number of epochs.

`labels` trains FOCUS and FedAvg on the table's own data, and counts the seeds in which the most
likely models of the clients are the true clusters, and those in which the models of lowest loss
are. `right label` is the mean probability of the client's true model; the gap is that of its
training losses at the end: a round adds it to the log of the odds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

import evenfed as ef
from benchmarks.focus_study import cell
from evenfed.core import tree as trees
from evenfed.methods.focus import Focus
from evenfed.metrics.excess import same_partition
from evenfed.papers import agents
from evenfed.papers.focus import FULL, ROTATED, SENTENCES_RATE

HELD_OUT = "100"
SCHEDULES = {
    "mnist": "50x20x100,150x5x100,150x20x50,150x20x100,300x10x100,300x20x100",
    "cifar10": "10x1ex20,20x1ex100,20x1ex50,20x1ex20,20x2ex20,40x1ex20",
    "imdb": "20x1ex50,60x1ex50,200x1ex50",
}
NAMES = ("client_accuracy_mean", "client_loss_mean", "client_loss_max")


def scheduled(base: dict[str, Any], schedule: str) -> dict[str, Any]:
    """The recipe with other rounds, steps and batches.

    >>> scheduled({"local": {"lr": 1.0, "steps": 5, "batch": 10}}, "20x1ex50")
    {'local': {'lr': 1.0, 'batch': 50, 'epochs': 1}, 'rounds': 20}
    """
    rounds, steps, batch = schedule.split("x")
    unit = "epochs" if steps.endswith("e") else "steps"
    local = {"lr": base["local"]["lr"], "batch": int(batch), unit: int(steps.rstrip("e"))}
    return {**base, "local": local, "rounds": int(rounds)}


def rated(base: dict[str, Any], lr: float) -> dict[str, Any]:
    """The recipe with another rate."""
    return {**base, "local": {**base["local"], "lr": lr}}


def trials(
    dataset: str, seeds: list[int], tried: dict[str, dict[str, Any]], own: dict[str, Any]
) -> None:
    """Accuracy and loss of FedAvg on validation data, a row a recipe."""
    own = own if dataset == "imdb" else {"rotations": ROTATED[dataset][3]}
    print("| | mean accuracy | mean loss | largest loss of a client | seconds |")
    print("|---|---|---|---|---|")
    for name, recipe in tried.items():
        engine = "sequential" if recipe["model"]["name"] == "resnet" else "vectorized"
        method = ef.FedAvg(local=ef.LocalTraining(**recipe["local"]))
        found, seconds = [], []
        for seed in seeds:
            data = ef.load(dataset, seed=seed, **{**recipe["data"], "val": 0.1, **own})
            begun = time.process_time()
            result = ef.train(
                method, data, rounds=recipe["rounds"], seed=seed, evaluate_every=0,
                model=partial(agents.made, recipe["model"], data.schema.shape, data.schema.classes),
                engine=ef.EngineOptions(engine, workers=1),
            )  # fmt: skip
            seconds.append(time.process_time() - begun)
            found.append(result.summary("val"))
        cells = [cell([float(summary[name]) for summary in found]) for name in NAMES]
        print(f"| {name} | {' | '.join(cells)} | {np.mean(seconds):.0f} |", flush=True)


def losses_of(result: ef.Result) -> Tensor:
    """Training loss of every model at every client, `(K, M)`."""
    assert isinstance(result.method, Focus)
    models, task = result.server["params"], result.method.task
    count = len(trees.leaves(models)[0])
    return torch.tensor(
        [
            [
                float(task.mean_loss(trees.row(models, m), result.data.client(k).train))
                for m in range(count)
            ]
            for k in range(len(result.data))
        ]
    )


def named(found: Tensor, true: Sequence[int]) -> Tensor:
    """`found` `(K, M)` with its models in the order in which they fit the true clusters best."""
    rows = torch.arange(len(true))
    orders = [found[:, list(order)] for order in permutations(range(found.shape[1]))]
    return max(orders, key=lambda one: float(one[rows, list(true)].sum()))


def labels(
    dataset: str, seeds: list[int], tried: dict[str, dict[str, Any]], own: dict[str, Any]
) -> None:
    """How far labels and losses of FOCUS come, and accuracy and FAA beside FedAvg's."""
    head = (
        "labels are the clusters", "losses are", "right label", "gap of losses",
        "accuracy, FOCUS", "accuracy, FedAvg", "FAA, FOCUS", "FAA, FedAvg",
    )  # fmt: skip
    print(f"| | {' | '.join(head)} |")
    print("|---" * (len(head) + 1) + "|")
    for name, recipe in tried.items():
        by_label = by_loss = 0
        rights: list[float] = []
        gaps: list[float] = []
        values: dict[str, list[float]] = {}
        for seed in seeds:
            data = ef.load(dataset, seed=seed, **recipe["data"], **own)
            true = data.clusters or ()
            m = len(set(true))
            result = ef.train(
                Focus(m=m, local=ef.LocalTraining(**recipe["local"])), data,
                rounds=recipe["rounds"], seed=seed, evaluate_every=0,
                model=partial(agents.made, recipe["model"], data.schema.shape, data.schema.classes),
                engine=ef.EngineOptions("vectorized", workers=1),
            )  # fmt: skip
            assert isinstance(result.method, Focus)
            found = named(result.method.memberships(result.server, data), true)
            losses = losses_of(result)
            by_label += same_partition(found.argmax(1).tolist(), true)
            by_loss += same_partition(losses.argmin(1).tolist(), true)
            rights.append(float(found[torch.arange(len(true)), list(true)].mean()))
            gaps.append(float((losses.amax(1) - losses.amin(1)).mean()))
            methods = {
                "FOCUS": {"method": "focus", "options": {"m": m}},
                "FedAvg": {"method": "fedavg", "options": {}},
            }
            files = {"others": own["others"]}
            settings = {
                **recipe, "dataset": dataset, "seed": seed, "methods": methods,
                "data": {**recipe["data"], "encoder": own["encoder"]},
            }  # fmt: skip
            for row, measured in agents.measured(settings, files).values.items():
                for metric in ("accuracy", "faa"):
                    values.setdefault(f"{metric}, {row}", []).append(measured[metric])
        cells = [f"{by_label} of {len(seeds)}", f"{by_loss} of {len(seeds)}"]
        cells += [cell(rights), cell(gaps)]
        cells += [
            cell(values[f"{metric}, {row}"])
            for metric in ("accuracy", "faa")
            for row in ("FOCUS", "FedAvg")
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["rates", "schedules", "labels"])
    parser.add_argument("--dataset", required=True, choices=["mnist", "cifar10", "imdb"])
    parser.add_argument("--seeds", help=f"by default {HELD_OUT}, and the table's for `labels`")
    parser.add_argument("--rates", help="those that are tried; of `labels` and `schedules` one")
    parser.add_argument("--schedules", help="those that are tried, by default some around ours")
    parser.add_argument("--reviews", help="second review set of imdb")
    parser.add_argument("--encoder", default="hashing:2048", help="of imdb")
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = given.dataset == "imdb"
    if text and not given.reviews:
        raise SystemExit("--dataset imdb needs a second review set: --reviews FILE")
    if given.what == "labels" and not text:
        raise SystemExit("labels: with --dataset imdb alone")
    held_out = "0,1,2,3,4" if given.what == "labels" else HELD_OUT
    seeds = [int(seed) for seed in (given.seeds or held_out).split(",")]
    own = {"others": given.reviews, "encoder": given.encoder}
    base = FULL[given.dataset]
    if given.what == "rates":
        rates = [float(lr) for lr in (given.rates or "0.05,0.1,0.2,0.5,1").split(",")]
        tried = {f"rate {lr:g}": rated(base, lr) for lr in rates}
    else:
        hashed = given.encoder.startswith("hashing")
        own_rate = SENTENCES_RATE if text and not hashed else base["local"]["lr"]
        base = rated(base, float(given.rates or own_rate))
        schedules = (given.schedules or SCHEDULES[given.dataset]).split(",")
        tried = {schedule: scheduled(base, schedule) for schedule in schedules}
    study = labels if given.what == "labels" else trials
    study(given.dataset, seeds, tried, own)


if __name__ == "__main__":
    main()
