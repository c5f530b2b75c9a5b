"""The quick runs behind advice, and how sure a difference of their losses is.

A client needs to send nothing but sums for it: of the losses of its rows under two models, of their
differences, and of the squares of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch

from evenfed.core.errors import EvenfedError, NotApplicableError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.shift import Floats
from evenfed.methods.registry import build, methods
from evenfed.runs.result import Result
from evenfed.runs.runner import build_task
from evenfed.runs.train import train

ROUNDS, RATE, BATCH = 20, 0.5, 64
"""Of the quick runs."""
FEW = 30
"""A group or a client with fewer rows is called small, and not judged."""
ENOUGH = 100
"""Validation rows of all clients below which methods are not compared on them."""

_SOLVED = (500, 50_000)
"""Most weights and rows for which the minimax value is proved: hundreds of passes over the data."""


@dataclass(frozen=True)
class Gain:
    """How much lower the mean loss of a second model is, with half its 95 % interval.

    Examples
    --------
    >>> found = Gain.of(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5]))
    >>> found.rows, found.share, found.clear
    (3, 0.25, True)
    """

    rows: int
    before: float
    after: float
    half: float

    @classmethod
    def of(cls, before: Floats, after: Floats) -> Gain:
        """From losses of the same rows `(n,)`."""
        return cls(len(before), float(before.mean()), float(after.mean()), half(before - after))

    @property
    def share(self) -> float:
        """The gain over the loss before."""
        return 1 - self.after / self.before

    @property
    def clear(self) -> bool:
        """Whether the gain is larger than its interval."""
        return self.before - self.after > self.half

    @property
    def text(self) -> str:
        """The figures, for a sentence."""
        return (
            f"{self.after:.3f} against {self.before:.3f} on {self.rows} rows, a gain of "
            f"{self.share:.1%} +- {self.half / self.before:.1%}"
        )


def half(values: Floats, tests: int = 1) -> float:
    """Half the 95 % interval of a mean of rows; for the worst of `tests` means, corrected."""
    if len(values) < 2:
        return math.inf
    z = NormalDist().inv_cdf(1 - 0.025 / tests)
    return float(z * values.std(ddof=1) / math.sqrt(len(values)))


class Quick:
    """Quick runs, each made when it is first asked for."""

    def __init__(self, data: FederatedDataset, seed: int) -> None:
        self.data, self.seed = data, seed
        self._runs: dict[str, Result] = {}
        task = build_task(data, "auto", seed=seed)
        self.refused: dict[str, list[str]] = {}
        self.applicable: list[str] = []
        for name in methods():
            try:
                build(name).bound(task, task.init())
                self.applicable.append(name)
            except NotApplicableError as error:
                reason = str(error).removeprefix(f"{name} ")
                self.refused.setdefault(reason, []).append(name)

    @property
    def validated(self) -> int:
        """Validation rows of all clients."""
        sizes = self.data.sizes("val")
        return 0 if sizes is None else int(sizes.sum())

    def run(self, name: str, *, longer: int = 0, **options: Any) -> Result:
        """A run of linear models; one that is `longer` is kept as "name longer"."""
        key = f"{name} longer" if longer else name
        if key not in self._runs:
            self._runs[key] = train(
                name, self.data, rounds=ROUNDS + longer, seed=self.seed, model="linear",
                engine="vectorized", evaluate_every=0, lr=RATE, batch=BATCH, **options,
            )  # fmt: skip
        return self._runs[key]

    def losses(self, name: str, split: Literal["train", "val"]) -> list[Floats]:
        """Losses of the rows of each client, `(n_k,)` each, under the model that it would use."""
        result = self._runs[name]
        method, found = result.method, []
        deployed = method.deployed(result.server)
        for k in range(len(self.data)):
            rows = self.data.client(k).split(split)
            with torch.no_grad():
                out = method.outputs(deployed, result._state(k), rows.x) if len(rows) else None
                loss = torch.zeros(0) if out is None else method.task.losses(out, rows.y)
            found.append(np.asarray(loss.numpy(), dtype=np.float64))
        return found

    def groups(self, split: Literal["train", "val"]) -> Floats:
        """Codes of the groups of all rows `(n,)`, in the order of `losses`."""
        parts = [self.data.client(k).split(split).group.numpy() for k in range(len(self.data))]
        return np.concatenate(parts)


def minimax(quick: Quick) -> tuple[float, float, str]:
    """Least largest group loss of linear models: proved from below (else NaN), and reached."""
    reached = float(np.max(group_losses(quick.run("fedminmax", iterate="last"))))
    task = quick.run("fedavg")._task()
    if task["parameters"] > _SOLVED[0] or task["trained_on"] > _SOLVED[1]:
        return np.nan, reached, "after a short FedMinMax"
    run = train(
        "pffl", quick.data, rounds=1, seed=quick.seed, model="linear", engine="vectorized",
        evaluate_every=0, lr=RATE, batch=BATCH, zeta=0.0,
    )  # fmt: skip
    certificate = run.certificate
    found = None if certificate is None else certificate.table().get("minimax")
    if not found:
        return np.nan, reached, "after a short FedMinMax"
    low, high = (float(value) for value in found)
    return low, min(high, reached), "PFFL's certificate"


def group_losses(result: Result) -> Floats:
    """Mean losses of the groups on training data; refuses a run that diverged."""
    losses = result.evaluation("train").groups()["loss"].dropna().to_numpy(dtype=np.float64)
    if not np.isfinite(losses).all():
        raise EvenfedError("a quick run diverged; are features on a common scale?")
    return np.asarray(losses)
