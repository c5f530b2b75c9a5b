"""Fronts of error against disparity of a trained run that has a model for every preference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError, DataError, suggest
from evenfed.data.dataset import FederatedDataset, Split
from evenfed.engines.workers import single_threaded_kernels
from evenfed.methods.base import Method
from evenfed.methods.preferred import Preferred
from evenfed.metrics.client import FloatArray
from evenfed.metrics.front import (
    front_metrics,
    front_points,
    hypervolume,
    least,
    monotone,
    monotonicity,
    nondominated,
)
from evenfed.metrics.group import demographic_parity_to_overall
from evenfed.runs.runner import Runner

MODELS = 1001
"""Preferences of a front: equal steps from 0 to 1."""
RECORDED = 101
"""Preferences of the front that a run folder keeps."""


def preferred(method: Method) -> Preferred:
    """The method, if it has a model for every preference."""
    if not isinstance(method, Preferred):
        raise ConfigError(
            f"'{method.name}' has one model, not one for every preference; 'hetpfl' and 'praffl' do"
        )
    return method


def grid(models: int = MODELS) -> Tensor:
    """Preferences in equal steps from 0 to 1.

    Examples
    --------
    >>> grid(3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.linspace(0, 1, models)


@dataclass(frozen=True)
class Front:
    """Models of several preferences on one split of one client's data, or of all clients'.

    Parameters
    ----------
    split : {"train", "val", "test"}
        Choose on "val", report on "test".
    preferences : array `(N,)`
        Larger is fairer.
    counts : Counts
        `(N, G, C, C)`.
    disparity : callable
        From counts to a disparity `(N,)`.
    """

    split: str
    preferences: FloatArray
    counts: Counts
    disparity: Callable[[Counts], FloatArray] = demographic_parity_to_overall

    @cached_property
    def points(self) -> FloatArray:
        """(error, disparity) `(N, 2)`."""
        return front_points(self.counts, self.disparity)

    def table(self) -> pd.DataFrame:
        """One row a preference: error, disparity, and whether no other model beats it."""
        best = np.zeros(len(self.points), dtype=bool)
        defined = ~np.isnan(self.points).any(1)
        best[defined] = nondominated(self.points[defined])
        columns = {"error": self.points[:, 0], "disparity": self.points[:, 1], "best": best}
        return pd.DataFrame(columns, index=pd.Index(self.preferences, name="preference"))

    def hypervolume(self, reference: tuple[float, float] = (1.0, 1.0)) -> float:
        """Area that the models dominate up to the reference."""
        return hypervolume(self.points[~np.isnan(self.points).any(1)], reference)

    def metrics(
        self, tight: tuple[float, float] | None = None, limits: tuple[float, ...] = (0.05,)
    ) -> dict[str, float]:
        """Measures of the front, the constant predictor's beside them; see `metrics.front`."""
        one = Counts(self.counts.confusion[0], self.counts.loss[0], self.counts.moments[0])
        return front_metrics(self.points, one, tight=tight, limits=limits) | monotonicity(
            self.points
        )

    def choose(
        self, *, max_disparity: float | None = None, max_error: float | None = None
    ) -> float:
        """The preference of the best model within a limit, on any split but "test".

        With a largest disparity the lowest error counts, with a largest error the lowest disparity;
        of models equal in that the other value decides, then the fairest preference is taken.
        """
        if self.split == "test":
            raise ConfigError(
                "a preference chosen on test data makes its test figures worthless: choose on "
                "result.front('val')"
            )
        if (max_disparity is None) == (max_error is None):
            raise ConfigError("give either max_disparity or max_error")
        held, limit = (1, max_disparity) if max_error is None else (0, max_error)
        assert limit is not None
        chosen = least(self.points, 1 - held, limit)
        if chosen is None:
            what = "disparity" if held else "error"
            lowest = float(np.nanmin(self.points[:, held]))
            raise DataError(
                f"no model of the front has {what} of at most {limit} on {self.split} data; "
                f"the lowest is {lowest:.4f}"
            )
        return float(self.preferences[chosen])

    def lookup(self) -> Lookup:
        """A scale from 0 (most accurate) to 1 (fairest) that is monotone on this split.

        A hypernetwork's front need not be monotone in the preference. The lookup keeps only
        models that no other beats here and orders them. Not from "test", as `choose`.
        """
        if self.split == "test":
            raise ConfigError("a lookup made on test data is chosen on it: use result.front('val')")
        return Lookup(self.preferences[monotone(self.points)])


@dataclass(frozen=True)
class Lookup:
    """Preferences `(M,)` in the order of falling disparity and rising error."""

    preferences: FloatArray

    def __call__(self, share: float | FloatArray) -> FloatArray:
        """The preference at a share in [0, 1] of the way from most accurate to fairest."""
        at = np.asarray(share, dtype=np.float64)
        if ((at < 0) | (at > 1)).any():
            raise ConfigError(f"a lookup takes shares in [0, 1], not {share}")
        last = len(self.preferences) - 1
        result: FloatArray = self.preferences[np.minimum((at * (last + 1)).astype(int), last)]
        return result


def front_counts(runner: Runner, split: Split, preferences: Tensor, deploy: str) -> Counts:
    """Counts `(K, N, G, C, C)` of all clients, in the dataset's order, by one exchange."""
    method = preferred(runner.method)
    if deploy == "global" and not method.united_in(runner.server):
        raise ConfigError(
            f"the run of '{method.name}' has no global model: name a client, or use deploy='own'"
        )
    using = replace(method, deploy=deploy).bound(runner.task, method.first)  # type: ignore[arg-type]
    clients = runner.evaluated_clients()
    sizes = runner.data.sizes(split)
    asked = clients if sizes is None else clients[sizes[clients] > 0]
    if not len(asked):
        raise DataError(f"no client has {split} examples")
    broadcast = using.asked(using.deployed(runner.server), preferences)
    with single_threaded_kernels():
        replies = runner.federation.map(
            using.evaluate_front, broadcast, clients=asked, split=split, counted=False
        )
    runner.federation.states.rollback()
    return _placed(
        replies.uploads["counts"], np.searchsorted(np.sort(clients), replies.clients), len(clients)
    )


def _placed(confusion: Tensor, rows: NDArray[np.int64], total: int) -> Counts:
    """Counts with a row for every client; those without examples count nothing."""
    placed = torch.zeros((total, *confusion.shape[1:]), dtype=torch.float64)
    placed[torch.from_numpy(rows)] = confusion.cpu()
    # losses are not asked for
    loss = torch.full(placed.shape[:-1], torch.nan, dtype=torch.float64)
    return Counts(placed, loss, torch.zeros((*placed.shape[:-2], 5), dtype=torch.float64))


def front_summary(fronts: list[Front], united: Front | None) -> dict[str, float]:
    """Mean over clients of their own fronts' measures (`local_`), and the global front's."""
    own = pd.DataFrame([front.metrics() for front in fronts])
    found = {f"local_{k}": float(v) for k, v in own.mean().items()}
    # a client with no such model has no accuracy to count: how many do
    found |= {
        f"local_{k}_clients": float(own[k].notna().sum())
        for k in map(str, own)
        if k.startswith("accuracy_at") and not k.endswith("_constant")
    }
    if united is not None:
        found |= {f"global_{k}": v for k, v in united.metrics().items()}
    return found


def front_part(front: Front) -> dict[str, Any]:
    """A front in whole numbers: by preference and group, errors, and those predicted positive.

    `selected` and `found` (predicted and truly positive) are there with two classes.
    """
    confusion = front.counts.confusion.numpy()  # (N, G, C, C)
    sizes = confusion.sum((-2, -1))
    right = np.einsum("ngcc->ng", confusion)
    part = {"examples": sizes[0], "errors": sizes - right}
    if confusion.shape[-1] == 2:
        part["positive"] = confusion[0, :, 1].sum(-1)
        part["selected"], part["found"] = confusion[..., 1].sum(-1), confusion[..., 1, 1]
    disparity = [None if np.isnan(d) else round(float(d), 6) for d in front.points[:, 1]]
    return {k: v.astype(int).tolist() for k, v in part.items()} | {"disparity": disparity}


def index_of(data: FederatedDataset, client: str | int | None) -> int | None:
    """The index of a client given by name or index; None stays None."""
    if client is None or isinstance(client, int):
        return client
    names = data.names
    if client not in names:
        raise ConfigError(f"client '{client}' is unknown.{suggest(client, names)}")
    return names.index(client)


class WithFronts:
    """The part of a result that asks for fronts; each is one exchange, asked once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._fronts: dict[Any, Counts] = {}

    @property
    def has_fronts(self) -> bool:
        """Whether the method has a model for every preference."""
        return isinstance(self._runner.method, Preferred)

    def front(
        self,
        split: Split = "val",
        client: str | int | None = None,
        *,
        deploy: Literal["own", "global"] | None = None,
        models: int = MODELS,
        preferences: Sequence[float] | None = None,
    ) -> Front:
        """Error against disparity of the models of many preferences, by one exchange.

        Parameters
        ----------
        split : {"val", "test", "train"}
            Choose a preference on validation data, report on test data.
        client : str or int, optional
            A client's front on its own data; default: all clients' data.
        deploy : {"own", "global"}, optional
            Whose models: each client's own (default with `client`), or the federation's.
        models, preferences
            Number of preferences, equal steps from 0 to 1; or the preferences themselves.

        Examples
        --------
        >>> import evenfed as ef
        >>> result = ef.train("praffl", "synthetic", rounds=1, epochs=2)
        >>> front = result.front("val", client=0, models=11)
        >>> front.table().columns.tolist()
        ['error', 'disparity', 'best']
        """
        index = index_of(self._runner.data, client)
        using = deploy or ("global" if index is None else "own")
        asked = grid(models) if preferences is None else torch.tensor(list(preferences))
        counts = self._front_counts(split, using, asked.to(torch.float32))
        if index is None:
            counts = counts.total()
        else:
            evaluated = np.sort(self._runner.evaluated_clients()).tolist()
            if index not in evaluated:
                raise ConfigError(f"client {index} is not among those that evaluations ask")
            counts = trees.row(counts, evaluated.index(index))
        return Front(split, asked.double().numpy(), counts)

    def front_summary(self, split: Split = "test", models: int = MODELS) -> pd.Series[float]:
        """Measures of the fronts: means over clients' own ones, and the global one's."""
        clients = np.sort(self._runner.evaluated_clients()).tolist()
        sizes = self._runner.data.sizes(split)
        some = [i for i in clients if sizes is None or sizes[i]]
        own = [self.front(split, i, models=models) for i in some]
        method = preferred(self._runner.method)
        united = self.front(split, models=models) if method.united_in(self._runner.server) else None
        return pd.Series(front_summary(own, united), name=method.name)

    def front_record(self, models: int = RECORDED) -> dict[str, Any] | None:
        """Fronts on validation and test data, global and of every client, for the report.

        None where the method has one model. Parts without examples are null.
        """
        if not self.has_fronts:
            return None
        runner = self._runner
        clients = np.sort(runner.evaluated_clients()).tolist()
        united = preferred(runner.method).united_in(runner.server)

        def part(split: Split, client: int | None) -> dict[str, Any] | None:
            sizes = runner.data.sizes(split)
            if sizes is not None and not sizes[clients if client is None else client].sum():
                return None
            return front_part(self.front(split, client, models=models))

        def both(client: int | None) -> dict[str, Any]:
            return {"val": part("val", client), "test": part("test", client)}

        return {
            "preferences": [round(float(p), 6) for p in grid(models)],
            "disparity": demographic_parity_to_overall.__name__,
            "groups": list(runner.data.schema.groups.labels),
            "global": both(None) if united else None,
            "clients": {runner.data.client(i).name: both(i) for i in clients},
        }

    def _front_counts(self, split: Split, deploy: str, preferences: Tensor) -> Counts:
        key = (split, deploy, tuple(preferences.tolist()))
        if key not in self._fronts:
            self._fronts[key] = front_counts(self._runner, split, preferences, deploy)
        return self._fronts[key]
