"""Carries out a run: rounds, evaluation, checkpoints, result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from evenfed.core import models
from evenfed.core import tree as trees
from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError, EvenfedError, QuorumError, RunFolderError
from evenfed.core.randomness import generator, numpy_generator
from evenfed.core.task import Loss, Task, given
from evenfed.core.tree import Tree
from evenfed.data.dataset import FederatedDataset, Split
from evenfed.engines.auto import AutoEngine
from evenfed.engines.federation import EngineOptions, Federation
from evenfed.engines.participation import Participation
from evenfed.engines.workers import single_threaded_kernels
from evenfed.methods.base import Method, Server
from evenfed.runs.evaluation import Evaluation, assembled
from evenfed.runs.folder import RunFolder

_VOID_ROUNDS = 20
"""Rounds without a quorum, one after the other, after which a run gives up."""

Model = str | nn.Module | Callable[[], nn.Module]


class Observer(Protocol):
    """Is told what happens in a run: progress bars, logs."""

    def say(self, message: str) -> None:
        """A sentence for the user."""

    def round_done(self, line: dict[str, Any]) -> None:
        """A round has ended; `line` is its line of the history."""


class Silent:
    """An observer that shows nothing."""

    def say(self, message: str) -> None:
        """Do nothing."""

    def round_done(self, line: dict[str, Any]) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Settings:
    """What a run needs besides method, data and model."""

    rounds: int = 30
    seed: int = 0
    evaluate_every: int = 5
    """Rounds between evaluations on validation data; 0: only after the last round."""
    evaluate_clients: int = 0
    """Clients in an evaluation, drawn once from the seed; 0: all."""
    checkpoint_every: int = 5
    tail: float = 0.1


def build_task(
    data: FederatedDataset,
    model: Model = "auto",
    *,
    loss: Loss | None = None,
    seed: int = 0,
    device: str = "cpu",
    options: dict[str, Any] | None = None,
) -> Task:
    """The task of a dataset and a model, checked on a few of its examples."""
    schema = data.schema
    if isinstance(model, str):
        name = models.default_name(schema.shape, schema.vocabulary) if model == "auto" else model

        def make() -> nn.Module:
            return models.build(
                name, schema.shape, schema.classes, schema.vocabulary, **(options or {})
            )

    elif options:
        raise ConfigError("model options belong to built-in models; configure your own module")
    else:
        make = given(model) if isinstance(model, nn.Module) else model
    task = Task(
        make, schema.kind, schema.classes, len(schema.groups), loss, torch.device(device), seed
    )
    some = data.client(0).train
    rows = torch.arange(min(4, len(some)))
    task.check(some.x[rows].to(task.device), some.y[rows].to(task.device))
    return task


class Runner:
    """One run in progress.

    Examples
    --------
    >>> from evenfed.data.registry import load
    >>> from evenfed.methods.registry import build
    >>> data = load("synthetic", seed=0)
    >>> runner = Runner(build("fedavg"), data, build_task(data), Settings(rounds=1))
    >>> runner.run()
    >>> runner.evaluate("test").summary()["accuracy"] > 0.5
    True
    """

    def __init__(
        self,
        method: Method,
        data: FederatedDataset,
        task: Task,
        settings: Settings,
        *,
        participation: Participation | None = None,
        engine: EngineOptions | None = None,
        folder: RunFolder | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.settings = settings
        self.data = data
        self.task = task
        self.folder = folder
        self.observer: Observer = observer or Silent()
        self.method = method.bound(task, task.init())
        participation = participation or Participation()
        participation.cohort_size(len(data))
        self.federation = Federation(
            data, settings.seed, participation, engine or EngineOptions(),
            self.method.client_state, self.method.batch_hint, settings.rounds, task.module,
            self.observer.say,
        )  # fmt: skip
        self.server: Server = self.method.start(self.federation)
        self.history: list[dict[str, Any]] = []
        self.next_round = 0
        self._void = 0
        self._waiting: tuple[dict[str, Any], Tree] | None = None
        """A line of the history whose evaluation travels with the next round, and its model."""

    def restore(self) -> None:
        """Go back to the last checkpoint of the folder, if there is one."""
        assert self.folder is not None
        self.folder.clear_leftovers()
        found = self.folder.load_checkpoint(self.server, self.state_like())
        if found is None:
            self.federation.states.saved()
            self.folder.rewrite_history([])
            return
        self.next_round, self.server, states, notes = found
        if states:
            index = {name: i for i, name in enumerate(self.data.names)}
            if gone := [name for name in states if name not in index]:
                raise RunFolderError(
                    f"the data of '{self.folder.path}' have no client '{gone[0]}', which the run "
                    "began with"
                )
            self.federation.states.kept = {index[name]: state for name, state in states.items()}
        self.history = self.folder.history(before=self.next_round)
        self.folder.rewrite_history(self.history)
        self.federation.states.saved()
        self._void = int(notes.get("void", 0))
        last = self.history[-1] if self.history else {}
        if self._waits(self.next_round - 1) and not any(key.startswith("val_") for key in last):
            self._waiting = (last, self.method.deployed(self.server))
        engine = self.federation.engine
        if isinstance(engine, AutoEngine) and notes.get("engine") in ("vectorized", "sequential"):
            engine.chosen = getattr(engine, notes["engine"])
            engine.reason = "as before the interruption"

    def state_like(self) -> Tree:
        """What a client keeps, before its first exchange."""
        client = self.data.client(0)
        start = generator(self.settings.seed, "state", 0, self.data.key(0))
        return self.federation.states.start(start, len(client.train))

    def run(self) -> None:
        """Carry out the remaining rounds."""
        for sentence in self.method.advice(self.federation):
            self.observer.say(f"warning: {sentence}")
        with single_threaded_kernels():
            for t in range(self.next_round, self.settings.rounds):
                line = self._round(t)
                self.history.append(line)
                if self.folder is not None:
                    self.folder.append_history(line)
                    last = t + 1 == self.settings.rounds
                    # the first round that trained also settles which engine `auto` takes
                    settled = t == 0 and "void" not in line
                    if last or settled or (t + 1) % self.settings.checkpoint_every == 0:
                        self._checkpoint(t + 1)
                self.next_round = t + 1
                if self._waiting is None:
                    self.observer.round_done(line)
            self.federation.begin(self.settings.rounds)
            self.server = self.method.finish(self.federation, self.server)
            self.federation.commit()

    def _round(self, t: int) -> dict[str, Any]:
        begin = time.perf_counter()
        federation = self.federation
        federation.begin(t)
        line: dict[str, Any] = {"round": t}
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._send_along("val", waiting[1])
        try:
            server = self.method.round(federation, self.server)
            self._check_finite(server, t)
            self.server = server
            federation.commit()
            self._void = 0
        except QuorumError as error:
            federation.states.rollback()
            self._void += 1
            line["void"] = str(error)
            if self._void >= min(_VOID_ROUNDS, self.settings.rounds):
                raise
        if federation.dropped:
            line["dropped"] = dict(Counter(d.reason for d in federation.dropped))
            self._warn_dropped(t)
        line |= federation.notes
        line |= {"bytes_down": federation.traffic.down, "bytes_up": federation.traffic.up}
        line["exchanges"] = federation.traffic.exchanges
        if waiting is not None:
            self._complete(*waiting)
        self._validate(t, line)
        line["seconds"] = time.perf_counter() - begin
        return line

    def _validate(self, t: int, line: dict[str, Any]) -> None:
        """Evaluate on validation data, if it is time: now, or along with the next round."""
        every, last = self.settings.evaluate_every, t + 1 == self.settings.rounds
        if self._waits(t):
            self._waiting = (line, self.method.deployed(self.server))
        elif last or (every and (t + 1) % every == 0):
            if last and type(self.method).finish is Method.finish:
                # nothing changes any more: test data are answered for in the same exchange
                self._send_along("test", self.method.deployed(self.server))
            line |= {f"val_{k}": v for k, v in self._headline(self.evaluate("val")).items()}

    def _waits(self, t: int) -> bool:
        """Whether the evaluation of a round travels with the next one: where messages are slow."""
        every = self.settings.evaluate_every
        due = bool(every) and (t + 1) % every == 0 and 0 < t + 1 < self.settings.rounds
        return due and self.federation.remote

    def _send_along(self, split: Split, deployed: Tree) -> None:
        asked = self._asked(split, self.evaluated_clients())
        if len(asked):
            self.federation.along(self.method.evaluate, deployed, clients=asked, split=split)

    def _complete(self, line: dict[str, Any], deployed: Tree) -> None:
        """Add to the line of an earlier round the evaluation of its model, which has come."""
        try:
            found = self._headline(self.evaluate("val", deployed=deployed))
        except QuorumError as error:
            self.observer.say(f"round {line['round'] + 1} is not evaluated: {error}")
            found = {}
        line |= {f"val_{k}": v for k, v in found.items()}
        if self.folder is not None:
            self.folder.rewrite_history(self.history)
        self.observer.round_done(line)

    def _warn_dropped(self, t: int) -> None:
        bad = [d for d in self.federation.dropped if d.reason != "did not answer"]
        if bad:
            self.observer.say(
                f"round {t + 1}: client '{bad[0].name}' {bad[0].reason}"
                + (f" (and {len(bad) - 1} more)" if len(bad) > 1 else "")
                + "; left out"
            )

    def _check_finite(self, server: Server, t: int) -> None:
        for name, tensor in trees.named(server).items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise EvenfedError(
                    f"training diverged in round {t + 1}: '{name}' of the server's state is not "
                    "finite; lower the learning rate (local.lr) or set local.clip"
                )

    def _headline(self, evaluation: Evaluation) -> dict[str, float]:
        if not float(evaluation.counts.size.sum()):
            return {}
        summary = evaluation.summary()
        wanted = (
            "accuracy", "loss", "client_accuracy_mean", "client_accuracy_std",
            "client_accuracy_worst_tail", "client_loss_mean", "client_loss_max",
            "demographic_parity_difference",
        )  # fmt: skip
        return {name: summary[name] for name in wanted if name in summary}

    def _checkpoint(self, round: int) -> None:
        assert self.folder is not None
        kept = self.federation.states.kept
        states = {self.data.client(i).name: state for i, state in kept.items()}
        notes = {"engine": self.federation.engine.name, "void": str(self._void)}
        self.folder.save_checkpoint(round, self.server, states, notes)
        self.federation.states.saved()

    def evaluated_clients(self) -> NDArray[np.int64]:
        """Indices of the clients that evaluations ask."""
        wanted = self.settings.evaluate_clients
        if not wanted or wanted >= len(self.data):
            return self.federation.everyone
        rng = numpy_generator(self.settings.seed, "evaluated clients")
        return self.federation.everyone[np.sort(rng.choice(len(self.data), wanted, replace=False))]

    def _asked(self, split: Split, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the chosen clients that have examples."""
        sizes = self.data.sizes(split)
        return chosen if sizes is None else chosen[sizes[chosen] > 0]

    def evaluate(
        self, split: Split, clients: Sequence[int] | None = None, *, deployed: Tree | None = None
    ) -> Evaluation:
        """Ask clients for their counts on a split, each with the model that it would use.

        `deployed` is what the server hands out; default: by its present state.
        """
        chosen = self.evaluated_clients() if clients is None else np.asarray(clients)
        asked = self._asked(split, chosen)
        order = sorted(chosen.tolist())
        names = [self.data.client(i).name for i in order]
        if len(asked) == 0:
            return self._empty(split, names)
        with single_threaded_kernels():
            replies = self.federation.map(
                self.method.evaluate,
                self.method.deployed(self.server) if deployed is None else deployed,
                clients=asked, split=split, finite=False, counted=False,
            )  # fmt: skip
        self.federation.states.rollback()
        place = {index: row for row, index in enumerate(order)}
        counts = replies.uploads["counts"]
        found = {place[int(c)]: trees.row(counts, i) for i, c in enumerate(replies.clients)}
        # a loss may have diverged, a number of examples cannot: such a client sends nonsense
        rows = {i: row for i, row in found.items() if torch.isfinite(row.confusion).all()}
        if not rows:
            return self._empty(split, names)
        return assembled(self.data.schema, split, names, rows, self.settings.tail)

    def _empty(self, split: Split, names: list[str]) -> Evaluation:
        g, c = self.task.groups, self.task.classes
        k = len(names)
        zero = Counts(
            torch.zeros(k, g, c, c, dtype=torch.float64),
            torch.zeros(k, g, c, dtype=torch.float64),
            torch.zeros(k, g, 5, dtype=torch.float64),
        )
        return Evaluation(self.data.schema, split, tuple(names), zero, self.settings.tail)
