"""What a run leaves: the trained state, its history, and everything measured on it."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError, QuorumError, counted
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.data.dataset import ClientData, FederatedDataset, Split
from evenfed.methods.base import Certificate, Method
from evenfed.metrics.bootstrap import Interval
from evenfed.metrics.excess import FAA
from evenfed.runs import reporting
from evenfed.runs.config import RunConfig
from evenfed.runs.evaluation import Evaluation, clean
from evenfed.runs.excess import Clusters, excess_of
from evenfed.runs.folder import RunFolder
from evenfed.runs.fronts import WithFronts, index_of, preferred
from evenfed.runs.geometry import (
    Extent,
    Wanted,
    extent_of,
    geometry_of,
    geometry_result,
    rate_of,
)
from evenfed.runs.record import Record
from evenfed.runs.reference import reference_of
from evenfed.runs.runner import Runner


class Result(WithFronts):
    """A finished run.

    Examples
    --------
    >>> import evenfed as ef
    >>> result = ef.train("fedavg", "synthetic", rounds=2)
    >>> bool(result.summary()["accuracy"] > 0.5)
    True
    >>> list(result.clients.index)
    ['client-0', 'client-1', 'client-2']
    """

    def __init__(self, runner: Runner, config: RunConfig, folder: Path | None = None) -> None:
        super().__init__(runner)
        self._evaluations: dict[str, Evaluation] = {}
        self._geometries: dict[Wanted, dict[str, Any]] = {}
        self.config = config
        self.folder = folder

    @property
    def method(self) -> Method:
        """The method, with its hyperparameters."""
        return self._runner.method

    @property
    def data(self) -> FederatedDataset:
        """The data it was trained on."""
        return self._runner.data

    @property
    def server(self) -> dict[str, Tree]:
        """The server's state after the last round."""
        return self._runner.server

    @property
    def engine(self) -> str:
        """The engine that ran, and why."""
        engine = self._runner.federation.engine
        reason = getattr(engine, "reason", "")
        return f"{engine.name} ({reason})" if reason else engine.name

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row a round."""
        return pd.DataFrame(self._runner.history).set_index("round")

    def evaluation(self, split: Split = "test") -> Evaluation:
        """Counts and metrics on a split."""
        if split not in self._evaluations:
            self._evaluations[split] = self._runner.evaluate(split)
        return self._evaluations[split]

    def summary(self, split: Split = "test") -> pd.Series[float]:
        """All summary metrics under stable names."""
        return pd.Series(self.evaluation(split).summary(), name=self.method.name)

    @property
    def clients(self) -> pd.DataFrame:
        """One row a client, on test data."""
        frame = self.evaluation("test").clients()
        if not self.data.lazy:
            trained = dict(zip(self.data.names, self.data.sizes("train"), strict=True))  # type: ignore[arg-type]
            frame.insert(0, "trained_on", [int(trained[name]) for name in frame.index])
        return frame

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The history as its lines."""
        return self._runner.history

    @property
    def cells(self) -> pd.DataFrame:
        """One row a (client, group) on test data; see `Evaluation.cells`."""
        return self.evaluation("test").cells()

    def record(self) -> Record:
        """All that the report of this run shows."""
        return Record.of(self)

    def report(self, path: Path | str, *, reference: bool = True) -> Path:
        """Write the report as one HTML file, and return its path.

        With `reference`, and unless the config says `local_reference = false`, it has a row of
        what clients reach alone (`Result.reference`), for which they are trained if they were not.
        """
        if reference and self.config.local_reference:
            _ = self.reference
        return reporting.write(self.record(), path)

    @property
    def groups(self) -> pd.DataFrame:
        """One row a group, on test data of all clients."""
        return self.evaluation("test").groups()

    def intervals(self, *, level: float = 0.95, n: int = 1000) -> dict[str, Interval]:
        """Bootstrap intervals on test data."""
        return self.evaluation("test").intervals(seed=self.config.seed, level=level, n=n)

    def parameters(self, client: str | int | None = None) -> Params:
        """Weights of the global model, or of a client's own model."""
        return self.method.parameters(self.method.deployed(self.server), self._state(client))

    def _state(self, client: str | int | None) -> Tree:
        """What a client keeps; nothing for the global model."""
        index = index_of(self.data, client)
        if index is not None:
            size = len(self.data.client(index).train)
            return self._runner.federation.states.get(index, self.data.key(index), size)
        if self.method.personal:
            raise ConfigError(
                f"'{self.method.name}' has no global model; name a client: result.model(client=...)"
            )
        return ()

    def model(
        self, client: str | int | None = None, *, preference: float | None = None
    ) -> nn.Module:
        """The global model, or a client's own, as a plain module in evaluation mode.

        It takes features as they were trained on, and gives a scaled label (`schema.target`) as it
        was; an export takes raw rows and gives the label's own unit.
        `preference` is for methods that have a model for every one; default: the method's option.
        """
        if preference is not None:
            preferred(self.method)
            return self.using(preference=float(preference)).model(client)
        return self.method.module(self.method.deployed(self.server), self._state(client))

    def adapt(self, data: Examples | ClientData) -> Adapted:
        """The model as a client would use it that took no part in training.

        Parameters
        ----------
        data : Examples or ClientData
            Labelled examples of the new client, of a client's data those for training; they stay
            with it.
        """
        deployed = self.method.deployed(self.server)
        examples = data.train if isinstance(data, ClientData) else data
        state = self.method.adapted(deployed, examples)
        return Adapted(self.method, deployed, state, self.data.schema.target)

    def faa(self, clusters: Clusters = None, *, estimated: bool = False) -> FAA:
        """Fairness via agent-awareness on test data, with mean loss and accuracy beside it.

        The reference of a client is a centralised model trained on its cluster: a true one where
        the data know them. Others, given or `"estimated"` by the method, are called estimated.
        """
        return excess_of(self._runner, self.evaluation("test"), clusters, estimated)[0]

    def _excess(self) -> dict[str, Any]:
        """FAA and excess risks over models of the true clusters, where the config asks for them."""
        if not self.config.excess:
            return {}
        found, clients = excess_of(self._runner, self.evaluation("test"), None)
        return {"excess": {**asdict(found), "clients": clients, "counted": found.clients}}

    def geometry(
        self,
        split: Split = "train",
        *,
        probes: int = 30,
        rate: float | None = None,
        path: int = 10,
        lanczos: int = 20,
        rows: int = 1024,
        clients: int = 0,
    ) -> pd.DataFrame:
        """Loss geometry at the model that each client uses, on its own examples; a row a client.

        Parameters
        ----------
        probes : int
            Rademacher vectors of Hutchinson's estimate of the Hessian's trace.
        rate, path : float, int
            Rate (default: that of local training) and length of the path on which signs of
            gradients are counted.
        lanczos : int
            Products with the Hessian for its eigenvalue of largest magnitude.
        rows : int
            Examples a client at most, the first ones.
        clients : int
            Clients at most, drawn by the seed; 0: all that evaluations ask.

        Examples
        --------
        >>> import evenfed as ef
        >>> ef.train("fedavg", "synthetic", rounds=1).geometry(probes=2, rows=64).columns[0]
        'sign_entropy'
        """
        chosen = rate_of(self.method) if rate is None else rate
        extent = Extent(probes, path, lanczos, rows, clients)
        return geometry_of(self._runner, self.config.seed, extent, rate=chosen, split=split)

    @cached_property
    def certificate(self) -> Certificate | None:
        """What the method can prove about this run; None for most methods.

        Made when first asked for, by exchanges that training did not need: up to hundreds of
        them. Where a client is out of reach in one of them there is none.
        """
        federation = self._runner.federation
        try:
            return self.method.certificate(federation, self.server, self.data.schema)
        except QuorumError as error:
            self._runner.observer.say(f"warning: {error}")
            return None
        finally:
            federation.states.rollback()

    def _geometry_means(self) -> dict[str, Any]:
        """What the config asks for of the loss geometry; measured once."""
        wanted = self.config.geometry
        if wanted not in self._geometries:
            extent = extent_of(self._runner, wanted)
            self._geometries[wanted] = (
                {}
                if extent is None
                else geometry_result(self._runner, self.config.seed, extent, rate_of(self.method))
            )
        return self._geometries[wanted]

    @cached_property
    def reference(self) -> dict[str, Any]:
        """What clients reach alone: `Local` on the same data with the same local training.

        Trained when first asked for, which takes at most some three times as long as the run, of
        small cohorts for a sample of the clients; read where the run's folder holds it. `metrics`
        and `intervals` are those of test data; where it is not trained, `absent` says why. See
        `runs.reference`.
        """
        folder = None if self.folder is None else RunFolder(self.folder)
        if folder is not None and folder.finished and "reference" in (kept := folder.result()):
            return dict(kept["reference"])
        wanted = self.config.local_reference or "auto"
        return reference_of(self._runner, wanted, self.config.geometry)

    def using(self, **options: Any) -> Result:
        """The same trained run, with other options of its method from here on.

        For options that say how a trained state is used: `using(deploy="global")`.
        """
        runner = copy.copy(self._runner)
        method = replace(self.method, **options)
        runner.method = method.bound(self._runner.task, self.method.first)
        return Result(runner, self.config, self.folder)

    def measured(self) -> dict[str, Any]:
        """The content of `result.json`: summary metrics, intervals, cost, ledger."""
        history = self.history
        after = replace(self._runner.federation.traffic)  # of exchanges after the last round
        return {
            "method": self.method.name,
            "dataset": self.data.schema.name,
            "seed": self.config.seed,
            "rounds": self.config.rounds,
            "engine": self.engine,
            "task": self._task(),
            "metrics": clean(self.summary().to_dict()),
            "intervals": {k: [v.low, v.high] for k, v in self.intervals().items()},
            "groups": {str(k): clean(v) for k, v in self.groups.to_dict(orient="index").items()},
            **self._geometry_means(),
            **self._excess(),
            **({"reference": self.__dict__["reference"]} if "reference" in self.__dict__ else {}),
            **({"front": clean(self.front_summary().to_dict())} if self.has_fronts else {}),
            "cost": {
                "seconds": float(history["seconds"].sum()),
                "bytes_down": int(history["bytes_down"].sum()) + after.down,
                "bytes_up": int(history["bytes_up"].sum()) + after.up,
                "exchanges": int(history["exchanges"].sum()) + after.exchanges,
                "void_rounds": int(history["void"].notna().sum()) if "void" in history else 0,
            },
            "diagnostics": self.method.diagnostics(
                self._runner.federation, self.server, self.data.schema
            ),
            "certificate": None if self.certificate is None else self.certificate.table(),
            "dropped": _dropped(self._runner.history),
            "notes": list(self.data.schema.notes),
            "ledger": [*self.data.schema.ledger, *(r.meaning for r in self.method.reveals)],
        }

    def _task(self) -> dict[str, Any]:
        """What was trained on what, in numbers."""
        schema, task = self.data.schema, self._runner.task
        trained = self.data.sizes("train")
        return {
            "title": self.method.title,
            "kind": schema.kind,
            "label": schema.label,
            "scale": schema.target[1],
            "classes": schema.classes,
            "class_names": list(schema.class_names),
            "groups": list(schema.groups.labels),
            "sensitive": list(schema.groups.names),
            "clients": len(self.data),
            "trained_on": None if trained is None else int(trained.sum()),
            "tested_on": int(self.evaluation("test").sizes.sum()),
            "parameters": sum(p.numel() for p in task.template.parameters()),
        }

    def __repr__(self) -> str:
        return (
            f"Result({self.method.title} on {self.data.schema.name}, "
            f"{counted(self.config.rounds, 'round')})"
        )


@dataclass(frozen=True)
class Adapted:
    """A trained method at a new client."""

    method: Method
    deployed: Tree
    state: Tree
    target: tuple[float, float] = (0.0, 1.0)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs of the client's model for features `(n, ...)`."""
        with torch.no_grad():
            return self.method.outputs(self.deployed, self.state, x)

    def predict(self, x: Tensor) -> Tensor:
        """Predicted labels `(n,)`; numbers in the label's own unit."""
        found = self.method.task.predictions(self.outputs(x))
        if self.method.task.kind != "regression":
            return found
        offset, scale = self.target
        return offset + scale * found

    def counts(self, data: Examples) -> Counts:
        """Counts and loss sums on the client's examples."""
        return self.method.task.count(self.outputs(data.x), data)


def _dropped(history: list[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for line in history:
        for reason, count in line.get("dropped", {}).items():
            total[reason] = total.get(reason, 0) + count
    return total
