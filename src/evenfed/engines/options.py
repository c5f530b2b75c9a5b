"""How exchanges are carried out, and the engine that follows from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from evenfed.core.errors import ConfigError, refuse, suggest
from evenfed.engines.auto import AutoEngine
from evenfed.engines.exchange import Chunk, Dropped, Population, Seat, Work
from evenfed.engines.sequential import SequentialEngine
from evenfed.engines.states import StateStore
from evenfed.engines.vectorized import VectorizedEngine
from evenfed.engines.workers import Workers

ENGINES = ("auto", "vectorized", "sequential", "flower")


class Engine(Protocol):
    """What carries out an exchange."""

    @property
    def name(self) -> str:
        """Name in results."""

    def run(
        self, work: Work, population: Population, seats: Sequence[Seat], states: StateStore
    ) -> Iterator[Chunk] | Iterator[Chunk | Dropped]:
        """Yield the replies, in an order that the cohort alone determines.

        An engine whose clients may be out of reach yields those that did not answer as `Dropped`.
        """


@dataclass(frozen=True)
class EngineOptions:
    """How exchanges are carried out; none of it changes a result beyond rounding.

    Parameters
    ----------
    engine : {"auto", "vectorized", "sequential", "flower"}
    device : str
        `cpu` or `cuda`.
    workers : int
        Threads over clients; 0 for as many as there are cores.
    chunk : int
        Clients in one vectorised call; 0 chooses.
    memory : float
        Gigabytes that a vectorised engine may use for stacked clients.
    nodes : int
        `flower`: nodes that must have joined before a run on silo files begins.
    timeout : float
        `flower`: seconds after which a node that has not answered is left out of an exchange.
    wait : float
        `flower`: seconds to wait for the nodes at the start.
    """

    engine: str = "auto"
    device: str = "cpu"
    workers: int = 0
    chunk: int = 0
    memory: float = 2.0
    nodes: int = 0
    timeout: float = 600.0
    wait: float = 300.0

    def __post_init__(self) -> None:
        wrong = []
        if self.engine not in ENGINES:
            wrong.append(f"engine '{self.engine}' is unknown.{suggest(self.engine, ENGINES)}")
        if self.workers < 0 or self.chunk < 0 or not self.memory > 0:
            wrong.append("workers and chunk must not be negative, memory greater than 0")
        if self.nodes < 0 or not self.timeout > 0 or not self.wait > 0:
            wrong.append("engine.nodes must not be negative, timeout and wait greater than 0")
        try:
            device = torch.device(self.device)
            if device.type == "cuda" and not torch.cuda.is_available():
                wrong.append("device 'cuda' is not available on this machine; use 'cpu'")
        except RuntimeError as error:
            wrong.append(f"device '{self.device}' is unknown: {error}")
        if wrong:
            refuse(wrong)

    def build(self, say: Callable[[str], None], share: float = 1.0) -> Engine:
        """The engine with its threads, for rounds with a share of the clients."""
        if self.engine == "flower":
            raise ConfigError(
                "engine 'flower' runs in processes of its own: use `evenfed run --engine flower` "
                "or `evenfed flower submit`"
            )
        device = torch.device(self.device)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        count = 1 if device.type == "cuda" else self.workers or cores or 1
        workers = Workers(count)
        memory = int(self.memory * (1 << 30))
        vectorized = VectorizedEngine(workers, device, chunk=self.chunk, memory=memory, share=share)
        sequential = SequentialEngine(workers, device)
        if self.engine == "auto":
            return AutoEngine(vectorized, sequential, say)
        return vectorized if self.engine == "vectorized" else sequential
