"""Problems small enough to do by hand, written in NumPy independently of the package.

`line`: three clients fit `y = w x + b` by squared error; two parameters.
`logit`: three clients with two groups each tell two classes apart by the logits `theta x` of one
feature, softmax cross-entropy; two parameters `theta = (theta_0, theta_1)`.

A test draws a method's rounds from the published formulas with `loss`, `gradient` and `trained`
of a problem, and compares with `run`. Mark it `@pytest.mark.proves(method, what)`: the table of
`docs/correctness.md` is made from these marks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.methods.base import Method

Vector = np.ndarray


@dataclass(frozen=True)
class Problem:
    """Clients' data, the loss in NumPy, and the same thing as a federated dataset."""

    kind: str
    x: tuple[Vector, ...]
    y: tuple[Vector, ...]
    group: tuple[Vector, ...]
    start: Vector
    train_rounds: Callable[..., Any]
    eta: float = 0.05
    steps: int = 2
    rounds: int = 2

    @property
    def clients(self) -> range:
        return range(len(self.x))

    @property
    def sizes(self) -> Vector:
        return np.array([float(len(x)) for x in self.x])

    @property
    def local(self) -> LocalTraining:
        """Full batches, `steps` steps of rate `eta`."""
        return LocalTraining(lr=self.eta, batch=0, epochs=self.steps)

    def losses(self, i: int, theta: Vector) -> Vector:
        """Loss of each example of client i."""
        x, y = self.x[i], self.y[i]
        if self.kind == "line":
            return (theta[0] * x + theta[1] - y) ** 2
        logits = np.stack([theta[0] * x, theta[1] * x], 1)
        return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(x)), y]

    def gradients(self, i: int, theta: Vector) -> Vector:
        """Gradient of each example's loss, (n, 2)."""
        x, y = self.x[i], self.y[i]
        if self.kind == "line":
            r = theta[0] * x + theta[1] - y
            return 2 * np.stack([x * r, r], 1)
        logits = np.stack([theta[0] * x, theta[1] * x], 1)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        p[np.arange(len(x)), y] -= 1
        return p * x[:, None]

    def loss(self, i: int, theta: Vector) -> float:
        """`F_i`: the client's mean loss."""
        return float(self.losses(i, theta).mean())

    def gradient(self, i: int, theta: Vector, weights: Vector | None = None) -> Vector:
        """Gradient of `F_i`, or of `(1/n_i) sum_j weights_j l_j`."""
        rows = self.gradients(i, theta)
        return (rows if weights is None else rows * weights[:, None]).mean(0)

    def trained(
        self,
        i: int,
        theta: Vector,
        extra: Callable[[Vector], Vector] | None = None,
        weights: Vector | None = None,
    ) -> Vector:
        """`steps` steps from `theta` along the (weighted) gradient plus a method's own term."""
        at = theta.copy()
        for _ in range(self.steps):
            term = extra(at) if extra else 0.0
            at = at - self.eta * (self.gradient(i, at, weights) + term)
        return at

    def dataset(self) -> FederatedDataset:
        clients = []
        for i in self.clients:
            y = torch.tensor(self.y[i])
            features = torch.tensor(self.x[i], dtype=torch.float32).unsqueeze(-1)
            y = y.float() if self.kind == "line" else y
            data = Examples.of(features, y, torch.tensor(self.group[i]))
            clients.append(ClientData(f"c{i}", data, data, data))
        groups = Groups(("sex",), (("f", "m"),))
        task, outputs = ("regression", 1) if self.kind == "line" else ("binary", 2)
        schema = Schema(self.kind, task, outputs, (1,), groups=groups)  # type: ignore[arg-type]
        return FederatedDataset(schema, clients)

    def module(self) -> nn.Module:
        line = self.kind == "line"
        module = nn.Linear(1, 1) if line else nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            if line:
                module.weight.fill_(self.start[0])
                module.bias.fill_(self.start[1])
            else:
                module.weight.copy_(torch.tensor(self.start).unsqueeze(-1))
        return module

    def run(self, method: Method, engine: str = "vectorized", **options: Any) -> Any:
        """The run; `.runner.server["params"]` holds the model, `.uploads` what was sent."""
        options = {"rounds": self.rounds, "model": self.module(), **options}
        return self.train_rounds(method, self.dataset(), engine, **options)

    def theta(self, params: dict[str, torch.Tensor]) -> Vector:
        """The two parameters of a model."""
        return np.concatenate(
            [params[k].detach().double().numpy().ravel() for k in sorted(params)]
        )[slice(None, None, -1 if self.kind == "line" else 1)]


@pytest.fixture(params=["vectorized", "sequential"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def line(train_rounds: Callable[..., Any]) -> Problem:
    x = ([0.0, 1.0, 2.0, 3.0], [-1.0, 1.0], [0.5])
    y = ([1.0, 3.0, 5.0, 7.0], [2.0, -2.0], [1.0])
    group = ([0, 1, 0, 1], [1, 0], [0])
    return Problem(
        "line",
        tuple(map(np.array, x)),
        tuple(map(np.array, y)),
        tuple(map(np.array, group)),
        np.array([0.5, -0.25]),
        train_rounds,
    )


@pytest.fixture
def logit(train_rounds: Callable[..., Any]) -> Problem:
    x = ([0.5, 1.0, 2.0, -1.0], [-1.0, 1.5, 0.5], [0.5, -2.0])
    y = ([0, 1, 1, 0], [1, 1, 0], [1, 0])
    group = ([0, 1, 0, 1], [1, 0, 1], [0, 1])
    return Problem(
        "logit",
        tuple(map(np.array, x)),
        tuple(map(np.array, y)),
        tuple(map(np.array, group)),
        np.array([0.5, -0.25]),
        train_rounds,
        eta=0.2,
    )
