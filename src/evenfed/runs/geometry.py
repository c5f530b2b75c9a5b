"""Loss geometry of a run: what `Result.geometry` measures, and what of it stands in a result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.noise import draw_salts
from evenfed.core.randomness import generator, numpy_generator
from evenfed.core.tree import Tree
from evenfed.data.dataset import Split
from evenfed.engines.federation import NOTED_CLIENTS
from evenfed.methods.base import Method
from evenfed.metrics.geometry import geometry
from evenfed.runs.evaluation import clean
from evenfed.runs.runner import Runner

Wanted = bool | Literal["auto", "panel", "few"]
"""The option `geometry` of a config."""


@dataclass(frozen=True)
class Extent:
    """How much is measured; see `Result.geometry`."""

    probes: int = 30
    path: int = 10
    lanczos: int = 20
    rows: int = 1024
    clients: int = 0

    @property
    def gradients(self) -> int:
        """What it costs, in gradients of every example; a product with the Hessian takes two."""
        return self.path + 2 * self.probes + 2 * self.lanczos


WHOLE, PANEL = Extent(), Extent(probes=10, rows=128, clients=8)
"""What is measured where it is asked for, and at most for a panel that nobody asked for."""
_FREE = 10_000_000_000
"""Operations of a panel that are never too many: a second or so."""
_SHARE = 0.1
"""Share of the training's gradients that a panel may take beyond that."""
_FEWEST, _ROWS = 2, 32
"""Clients of a panel, and examples of each before there are more clients."""


def regularized(method: Method) -> bool:
    """Whether local training is SER's, whose panel shows loss geometry."""
    local = getattr(method, "local", None)
    return isinstance(local, LocalTraining) and local.regularizer == "ser"


def extent_of(runner: Runner, wanted: Wanted) -> Extent | None:
    """How much of the loss geometry of a finished run is measured; None for nothing."""
    if not wanted or (wanted == "panel" and not regularized(runner.method)):
        return None
    if wanted == "few" and not isinstance(getattr(runner.method, "local", None), LocalTraining):
        return None
    if runner.federation.remote or (wanted == "auto" and not has_one_model(runner)):
        return None
    return panel_extent(runner) if wanted in ("panel", "few") else WHOLE


def panel_extent(runner: Runner) -> Extent:
    """How much a panel measures: fewer clients and examples of models that take long.

    Decided by sizes alone, never by a clock, so that a run that is resumed measures the same.
    """
    size = sum(p.numel() for p in runner.task.template.parameters())
    few = _FREE / (PANEL.gradients * 6 * size)  # two operations a weight forwards, four back
    examples = int(max(few, _SHARE * _trained(runner) / PANEL.gradients))
    clients = min(PANEL.clients, max(_FEWEST, examples // _ROWS))
    rows = min(PANEL.rows, max(_ROWS // 2, examples // clients))
    return replace(PANEL, clients=clients, rows=rows)


def _trained(runner: Runner) -> int:
    """Gradients of single examples that the run has taken, about: three a step of SER."""
    local, data = runner.method.local, runner.data  # type: ignore[attr-defined]
    sizes = data.sizes("train")
    size = len(data.client(0).train) if sizes is None else int(sizes.mean())
    each = local.steps * min(local.batch or size, size) if local.steps else local.epochs * size
    cohort = runner.federation.participation.cohort_size(len(data))
    return int(3 * runner.settings.rounds * cohort * each)


def has_one_model(runner: Runner) -> bool:
    """Whether clients use one model each."""
    deployed = runner.method.deployed(runner.server)
    try:
        runner.method.parameters(deployed, runner.state_like())
    except ConfigError:
        return False
    return True


def geometry_result(runner: Runner, seed: int, extent: Extent, rate: float) -> dict[str, Any]:
    """For a result: means over clients, each client's where they are few, and the extent."""
    found = geometry_of(runner, seed, extent, rate=rate)
    made = {"clients": len(found), "rows": extent.rows, "probes": extent.probes}
    means = {"geometry": clean(found.mean().to_dict()), "geometry_extent": made}
    if len(found) > NOTED_CLIENTS:
        return means
    by_client = {str(k): clean(v) for k, v in found.to_dict(orient="index").items()}
    return {**means, "geometry_by_client": by_client}


def rate_of(method: Method) -> float:
    """The rate of the path on which signs are counted: that of local training."""
    local = getattr(method, "local", None)
    return local.lr if isinstance(local, LocalTraining) else 0.1


def geometry_of(
    runner: Runner, seed: int, extent: Extent, *, rate: float, split: Split = "train"
) -> pd.DataFrame:
    """Loss geometry at the model that each client uses, on its own examples; a row a client."""
    federation, method = runner.federation, runner.method
    clients = runner.evaluated_clients()
    sizes = runner.data.sizes(split)
    asked = clients if sizes is None else clients[sizes[clients] > 0]
    if 0 < extent.clients < len(asked):
        drawn = numpy_generator(seed, "geometry clients").choice(
            len(asked), extent.clients, replace=False
        )
        asked = asked[sorted(drawn)]
    # one set of random vectors for all clients and methods: they are then compared in pairs
    salts = draw_salts(generator(seed, "geometry"), 1 + extent.probes)
    replies = federation.map(
        _Geometry(method, rate, extent.path, extent.lanczos, extent.rows),
        {"deployed": method.deployed(runner.server), "salts": salts},
        clients=asked, split=split, finite=False, counted=False,
        alone=_outgrows_stacking(runner.task.template),
    )  # fmt: skip
    federation.states.rollback()
    names = [runner.data.client(int(i)).name for i in replies.clients]
    columns = {k: v.double().cpu().numpy() for k, v in replies.uploads.items()}
    return pd.DataFrame(columns, index=pd.Index(names, name="client")).sort_index()


def _outgrows_stacking(model: nn.Module) -> bool:
    """Whether a model has weights outside of dense layers, such as convolutions.

    They are used many times an example, so that one client fills the machine by itself; second
    derivatives of dense layers are faster stacked.
    """
    return any(
        not isinstance(module, nn.Linear)
        and next(module.parameters(recurse=False), None) is not None
        for module in model.modules()
    )


@dataclass(frozen=True)
class _Geometry:
    """Client function: the measures of `metrics.geometry`."""

    method: Method
    rate: float
    path: int
    lanczos: int
    rows: int

    def __call__(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        some = trees.map(lambda t: t[: self.rows], data)
        params, outputs = self.method.point(broadcast["deployed"], state)

        def loss(weights: Tree, examples: Examples) -> Tensor:
            return self.method.task.mean_of(outputs(weights, examples.x), examples)

        measured = geometry(
            loss, params, some, broadcast["salts"],
            rate=self.rate, path=self.path, lanczos=self.lanczos,
        )  # fmt: skip
        return dict(measured), state
