"""FAA of a run: its clients' excess risks over models trained on their whole clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.options import EngineOptions
from evenfed.methods.centralized import Centralized
from evenfed.metrics.client import FloatArray, mean_loss
from evenfed.metrics.excess import FAA, excess_risk, faa, same_partition, surrogate_references
from evenfed.runs.evaluation import Evaluation
from evenfed.runs.runner import Runner, Settings

Clusters = Sequence[int] | Literal["estimated"] | None
"""One number a client; those that the method found; or the true ones."""


def excess_of(
    runner: Runner, evaluation: Evaluation, clusters: Clusters, estimated: bool = False
) -> tuple[FAA, dict[str, float]]:
    """FAA on test data, and the excess risk of every client that has some, by name.

    Parameters
    ----------
    evaluation : Evaluation
        Of the run on test data, all clients.
    clusters
        Clusters that are not the data's own are called estimated, whatever `estimated` says, and
        so are those that the method found, even if they are the data's own.
    """
    data = runner.data
    chosen = _clusters(runner, clusters)
    true = data.clusters is not None and same_partition(chosen, data.clusters)
    estimated = estimated or isinstance(clusters, str)
    if len(chosen) != len(data):
        raise ConfigError(f"FAA needs a cluster for each of {len(data)} clients, not {len(chosen)}")
    if len(evaluation.sizes) != len(data):
        evaluation = runner.evaluate("test", range(len(data)))
    losses = mean_loss(evaluation.counts)
    references = surrogate_references(chosen, lambda members: _reference_losses(runner, members))
    found = faa(
        losses,
        references,
        mean_accuracy=evaluation.summary().get("client_accuracy_mean"),
        reference="true clusters" if true and not estimated else "estimated clusters",
        sizes=evaluation.sizes,
    )
    excess = zip(evaluation.names, excess_risk(losses, references), evaluation.sizes, strict=True)
    return found, {name: float(value) for name, value, size in excess if size > 0}


def _clusters(runner: Runner, clusters: Clusters) -> list[int]:
    if clusters is None:
        if runner.data.clusters is None:
            raise ConfigError(
                "FAA needs the clusters of the clients: this dataset does not know them; "
                "pass clusters=..., or clusters='estimated' for a method that finds them (focus)"
            )
        return list(runner.data.clusters)
    if clusters != "estimated":
        return [int(cluster) for cluster in clusters]
    of = getattr(runner.method, "cluster_of", None)
    if of is None:
        raise ConfigError(f"'{runner.method.name}' does not estimate clusters; pass clusters=...")
    # from what clients keep: the server has not heard from those that no cohort held
    data, states = runner.data, runner.federation.states
    sizes = (len(data.client(i).train) for i in range(len(data)))
    return [int(of(states.get(i, data.key(i), size))) for i, size in enumerate(sizes)]


def _reference_losses(runner: Runner, members: tuple[int, ...]) -> FloatArray:
    """Test losses at a cluster's clients of a model trained on the union of their data.

    With the run's rounds, first weights and local training, but for its regulariser.
    """
    part = FederatedDataset(runner.data.schema, [runner.data.client(i) for i in members])
    local = getattr(runner.method, "local", None)
    plain = replace(local, regularizer="none") if isinstance(local, LocalTraining) else None
    reference = Centralized() if plain is None else Centralized(local=plain)
    settings = Settings(runner.settings.rounds, runner.settings.seed, 0)
    options = EngineOptions(device=str(runner.task.device))
    trained = Runner(reference, part, runner.task, settings, engine=options)
    trained.run()
    return mean_loss(trained.evaluate("test").counts)
