"""What the recipes measure, against cases that are known."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core.models import mlp
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.engines.federation import EngineOptions
from evenfed.methods.hetpfl import HetPFL
from evenfed.methods.registry import build
from evenfed.metrics.front import front_points
from evenfed.papers import fronts
from evenfed.papers.convergence import MODELS, Watch, WatchOne, followed
from evenfed.papers.front_runs import front_options, fused
from evenfed.papers.pffl_bench import worst
from evenfed.runs.train import train

SETTINGS: dict[str, Any] = {"epochs": 2, "hidden": 4, "fusion_steps": 3}
ENGINE = EngineOptions("vectorized", workers=1)
RESULTS = Path(__file__).parents[2] / "papers" / "results"


@pytest.fixture(scope="module")
def small() -> FederatedDataset:
    return load("synthetic", seed=0, examples=400, test_examples=200)


def test_measures_of_fronts_worked_out_by_hand() -> None:
    # (0.2, 0.05) dominates 0.8 * 0.95 up to (1, 1), and 0.8 * 0.05 up to (1, 0.1)
    # (0.4, 0.0) adds 0.6 * 0.05 to both
    one, two = np.array([[0.2, 0.05]]), np.array([[0.2, 0.05], [0.4, 0.0]])
    found = fronts.measures([one, two], one)
    assert found["local_hypervolume"] == pytest.approx((0.76 + 0.79) / 2)
    assert found["local_tight"] == pytest.approx((0.4 + 0.7) / 2)
    assert found["global_hypervolume"] == pytest.approx(0.76)
    assert found["global_accuracy_at"] == pytest.approx(0.8)


def test_models_without_a_disparity_are_left_out() -> None:
    points = np.array([[0.1, np.nan], [0.3, 0.0]])
    assert fronts.measures([points], points)["global_hypervolume"] == pytest.approx(0.7)


def test_the_constant_predictor_is_right_on_the_most_frequent_class(
    small: FederatedDataset,
) -> None:
    shares = [float(client.test.y.float().mean()) for client in small]
    found = fronts.constant(small)
    best = np.mean([max(share, 1 - share) for share in shares])
    assert found["local_hypervolume"] == pytest.approx(best)
    assert found["local_tight"] == pytest.approx(best)


def test_where_all_is_shared_the_mean_of_the_models_is_the_model(small: FederatedDataset) -> None:
    result = train("equifl", small, rounds=1, shared="all", engine=ENGINE)
    own, whole = fronts.of_one_model(result)
    total = result.evaluation("test").counts.total().confusion
    right = float(total.diagonal(dim1=-2, dim2=-1).sum() / total.sum())
    assert whole[0] == pytest.approx(1 - right)
    assert own.shape == (3, 2)


def test_a_sweep_with_pooled_data_beats_the_constant_predictor(small: FederatedDataset) -> None:
    own, whole = fronts.ceiling(small, (8,), seed=0, steps=40)
    assert len(whole) == 6 * 49
    found = fronts.measures(own, whole)
    assert found["global_hypervolume"] > fronts.constant(small)["global_hypervolume"]


def test_fusing_afterwards_is_training_with_a_fusion(small: FederatedDataset) -> None:
    options = front_options(SETTINGS)
    common: dict[str, Any] = {"rounds": 1, "model": partial(mlp, 3, 2, (4, 4)), "engine": ENGINE}
    apart = fused(train(HetPFL(phf="none", **options), small, **common), rounds=1)
    whole = train(HetPFL(phf="federated", **options), small, **common)
    a, b = (fronts.of_preferences(result)[1] for result in (apart, whole))
    np.testing.assert_array_equal(a, b)


def test_a_clients_hypernetwork_is_asked_about_all_test_data(small: FederatedDataset) -> None:
    options = front_options({**SETTINGS, "options": "own"})
    assert HetPFL(**options).refresh > 0
    model = partial(mlp, 3, 2, (4, 4))
    result = train(HetPFL(phf="none", **options), small, rounds=1, model=model, engine=ENGINE)
    found = fronts.of_each_hypernetwork(result, models=3)
    x = torch.cat([client.test.x for client in small])
    y = torch.cat([client.test.y for client in small])
    for k, front in enumerate(found):
        for preference, (error, _) in zip((0.0, 0.5, 1.0), front, strict=True):
            with torch.no_grad():
                said = result.model(client=k, preference=preference)(x).argmax(1)
            assert error == pytest.approx(float((said != y).float().mean()), abs=1e-6)
    assert len(found) == 3


def test_convergence_ends_at_the_front_of_the_trained_run(small: FederatedDataset) -> None:
    method = HetPFL(phf="none", **front_options(SETTINGS))
    model = partial(mlp, 3, 2, (4, 4))
    watch = Watch()
    followed(method, small, model, 2, 0, watch)
    curve, tight = watch.curve, watch.tight
    result = train(method, small, rounds=2, model=model, engine=ENGINE)
    ends = [result.front("val", k, models=MODELS) for k in range(3)]
    assert [point[0] for point in curve] == [1.0, 2.0]
    assert curve[-1][1] == pytest.approx(float(np.mean([end.hypervolume() for end in ends])))
    near = [end.hypervolume((1.0, 0.1)) / 0.1 for end in ends]
    assert tight[-1] == pytest.approx(float(np.mean(near)))


def test_the_best_round_on_validation_data_is_kept(small: FederatedDataset) -> None:
    """A run that keeps its best round ends as one that stopped there; at a rate that overshoots."""
    options = front_options(SETTINGS)
    options["local"] = replace(options["local"], lr=0.3)
    method, model = HetPFL(phf="none", **options), partial(mlp, 3, 2, (4, 4))
    early = 0
    for seed in range(4):
        watch = Watch(keep_best=True)
        kept = followed(method, small, model, 4, seed, watch)
        best = int(np.argmax([point[1] for point in watch.curve])) + 1
        early += best < 4
        stopped = followed(method, small, model, best, seed, None)
        (own, whole), (theirs, united) = map(fronts.of_preferences, (kept, stopped))
        for a, b in zip([*own, whole], [*theirs, united], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert early, "the last round was the best in all runs, which shows nothing"


@pytest.mark.parametrize("name", ["fedfb", "equifl"])
def test_the_best_round_of_one_model_is_kept(small: FederatedDataset, name: str) -> None:
    method, model = build(name, {"lr": 0.3, "epochs": 2}), partial(mlp, 3, 2, (4,))
    early = 0
    for seed in range(4):
        watch = WatchOne(keep_best=True)
        kept = followed(method, small, model, 4, seed, watch)
        best = int(np.argmax([point[1] for point in watch.curve])) + 1
        early += best < 4
        stopped = followed(method, small, model, best, seed, None)
        points = front_points(stopped.evaluation("val").counts)
        by_hand = np.mean([(1 - error) * (1 - disparity) for error, disparity in points])
        assert watch.curve[best - 1][1] == pytest.approx(by_hand)
        for a, b in zip(*map(fronts.of_one_model, (kept, stopped)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert early, "the last round was the best in all runs, which shows nothing"


def test_the_largest_group_loss_is_that_of_the_groups_examples(small: FederatedDataset) -> None:
    result = train("fedavg", small, rounds=1, engine=ENGINE)
    model = result.model()
    losses: dict[tuple[int, int], list[float]] = {}
    for client in small:
        with torch.no_grad():
            each = torch.nn.functional.cross_entropy(
                model(client.test.x), client.test.y, reduction="none"
            )
        for z, y, loss in zip(client.test.group, client.test.y, each, strict=True):
            losses.setdefault((int(z), int(y)), []).append(float(loss))

    def largest(*labels: int) -> float:
        by_group = [[v for y in labels for v in losses[z, y]] for z in (0, 1)]
        return max(float(np.mean(values)) for values in by_group)

    assert worst(result, "test", False, ()) == pytest.approx(largest(0, 1), rel=1e-5)
    assert worst(result, "test", True, (1,)) == pytest.approx(largest(1), rel=1e-5)
    assert worst(result, "test", True, ()) == pytest.approx(max(largest(0), largest(1)), rel=1e-5)


def test_what_is_said_of_hetpfl_and_praffl_is_what_is_stored() -> None:
    """The counts over runs in the findings of the page."""
    pairs: dict[str, list[tuple[bool, float, float]]] = {"local": [], "global": []}
    for table in ("table1", "table2", "table3"):
        text = (RESULTS / f"hetpfl-{table}-published.json").read_text(encoding="utf-8")
        values: dict[Any, dict[str, Any]] = {}
        for run in json.loads(text)["runs"]:
            values.setdefault((run["column"], run["seed"]), {}).update(run["values"])
        for (column, _), rows in values.items():
            synthetic = table != "table1" or column == "synthetic"
            for scope, found in pairs.items():
                h, p = (rows[row][f"{scope}_hypervolume"] for row in ("hetpfl", "praffl"))
                found.append((synthetic, h, p))
    local, whole = pairs["local"], pairs["global"]
    assert len(local) == len(whole) == 50
    assert sum(h > p for _, h, p in whole) == 36
    assert sum(h > p for _, h, p in local) == 20
    on_synthetic = [(h, p) for synthetic, h, p in whole if synthetic]
    assert len(on_synthetic) == 35
    assert sum(p < 0.65 for _, p in on_synthetic) == 13
    assert sum(h < 0.65 for h, _ in on_synthetic) == 1


def test_what_is_said_of_table_2_with_redrawn_splits_is_what_is_stored() -> None:
    text = (RESULTS / "hetpfl-table2-sound.json").read_text(encoding="utf-8")
    values: dict[Any, dict[str, Any]] = {}
    for run in json.loads(text)["runs"]:
        values.setdefault((run["column"], run["seed"]), {}).update(run["values"])
    for metric, ahead in (("local_hypervolume", 6), ("global_hypervolume", 11)):
        pairs = [(rows["hetpfl"][metric], rows["praffl"][metric]) for rows in values.values()]
        assert (sum(h > p for h, p in pairs), len(pairs)) == (ahead, 15)

    def tight(row: str, column: str) -> float:
        found = [rows[row]["global_tight"] for (c, _), rows in values.items() if c == column]
        return round(float(np.mean(found)), 3)

    assert [tight("hetpfl", c) for c in ("0.1", "5", "1000")] == [0.262, 0.627, 0.603]
    assert {tight("constant", c) for c in ("0.1", "5", "1000")} == {0.6}
    assert {round(tight("ceiling", c), 2) for c in ("0.1", "5", "1000")} == {0.73}
