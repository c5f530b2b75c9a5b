"""Methods as scikit-learn estimators: `fit(X, y, clients=..., sensitive_features=...)`.

All rows are in one process here, as in every simulation; the method still sees them only through
its clients. For data that may not be pooled use silo files and the engine `flower`.

Both pass every check of scikit-learn's `check_estimator` (1.9), which knows neither `clients` nor
`sensitive_features`: it fits with one client and one group. A method that needs groups (PFFL) can
therefore not be checked that way: it refuses a fit without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Kind, Schema
from evenfed.data.preprocess import level_codes
from evenfed.engines.federation import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods.base import Method
from evenfed.methods.preferred import Preferred
from evenfed.methods.registry import build
from evenfed.runs.result import Result
from evenfed.runs.runner import Model, build_task
from evenfed.runs.train import train

ONE = "all"
"""The only client of a fit without `clients`."""

Options = Mapping[str, Any]


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common."""

    def __init__(
        self,
        method: str | Method = "fedavg",
        *,
        options: Options | None = None,
        rounds: int = 30,
        model: Model = "auto",
        scale: bool = True,
        participation: Participation | float | int | None = None,
        engine: str | EngineOptions = "vectorized",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.options = options
        self.rounds = rounds
        self.model = model
        self.scale = scale
        self.participation = participation
        self.engine = engine
        self.random_state = random_state

    def _train(
        self, kind: Kind, x: NDArray[Any], y: Tensor, classes: tuple[str, ...],
        clients: ArrayLike | None, sensitive_features: ArrayLike | None,
    ) -> None:  # fmt: skip
        self.mean_, self.scale_ = _moments(x) if self.scale else _moments(np.zeros_like(x))
        features = torch.from_numpy(((x - self.mean_) / self.scale_).astype(np.float32))
        groups, codes = _groups(sensitive_features, len(x))
        site, names = _clients(clients, len(x))
        schema = Schema(
            "own data", kind, max(len(classes), 1), (x.shape[1],), class_names=classes,
            groups=groups,
        )  # fmt: skip
        everyone = []
        for k, name in enumerate(names):
            rows = torch.from_numpy(np.flatnonzero(site == k))
            own = Examples.of(features[rows], y[rows], codes[rows])
            none = own.take(torch.zeros(len(own), dtype=torch.bool))
            everyone.append(ClientData(name, own, none, none))
        method = self._built()
        self.seed_ = _seed(self.random_state)
        self.result_ = train(
            method, FederatedDataset(schema, everyone), rounds=self.rounds, seed=self.seed_,
            model=self.model, participation=self.participation, engine=self.engine,
            evaluate_every=0,
        )  # fmt: skip
        self.schema_, self.clients_, self.groups_ = schema, tuple(names), groups.labels
        self._keep(self.result_)

    def _built(self) -> Method:
        if isinstance(self.method, Method):
            if self.options:
                raise ConfigError("options belong to a method by name; set them in the instance")
            return self.method
        return build(self.method, dict(self.options or {}))

    def _keep(self, result: Result) -> None:
        """What prediction needs: it outlives a pickle, where `result_` does not."""
        self._bound = result.method
        self._deployed = result.method.deployed(result.server)
        self._states = {name: result._state(name) for name in self.clients_}

    def __getstate__(self) -> dict[str, Any]:
        """All but the run, which holds threads and closures."""
        state: dict[str, Any] = super().__getstate__()
        return {k: v for k, v in state.items() if k not in ("_bound", "result_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "schema_" in state:
            x = torch.zeros(1, *self.schema_.shape)
            y = torch.zeros(1, dtype=_label_type(self.schema_.kind))
            some = Examples.of(x, y)
            data = FederatedDataset(self.schema_, [ClientData(ONE, some, some, some)])
            task = build_task(data, self.model, seed=self.seed_)
            self._bound = self._built().bound(task, task.init())

    def _outputs(self, X: ArrayLike, clients: ArrayLike | None) -> Tensor:
        """Outputs of the models `(n, ...)`."""
        check_is_fitted(self, "schema_")
        x = validate_data(self, X, reset=False, dtype=np.float64, ensure_min_samples=1)
        scaled = ((x - self.mean_) / self.scale_).astype(np.float32)
        features = torch.from_numpy(scaled)
        site, names = _clients(clients, len(x))
        out: Tensor | None = None
        for k, name in enumerate(names):
            rows = torch.from_numpy(np.flatnonzero(site == k))
            part = self._outputs_at(features[rows], None if clients is None else name)
            out = part.new_zeros(len(x), *part.shape[1:]) if out is None else out
            out[rows] = part
        assert out is not None
        return out

    def _outputs_at(self, x: Tensor, client: str | None) -> Tensor:
        """Outputs of a client's model, or of the one for all."""
        if client is None and len(self.clients_) == 1:
            client = self.clients_[0]
        method, deployed, state = self._bound, self._deployed, self._states.get(client or "", ())
        if not isinstance(method, Preferred):  # those make tensors of float32 themselves
            # in float64 an output does not depend on the other rows, even in its last bits
            x, deployed, state = x.double(), _double(deployed), _double(state)
        with torch.no_grad():
            if client in self._states:
                return method.outputs(deployed, state, x)
            try:
                if method.personal:
                    raise ConfigError(f"'{method.name}' has no global model")
                return method.task.outputs(method.parameters(deployed, ()), x)
            except ConfigError:
                return self._without_weights(deployed, x, client)

    def _without_weights(self, deployed: Tree, x: Tensor, client: str | None) -> Tensor:
        """Outputs for everybody where no single model is for everybody: an ensemble's, if any."""
        method = self._bound
        try:
            if not method.personal:
                return method.outputs(deployed, (), x)
        except (TypeError, KeyError):  # it looks up what a client keeps
            pass
        why = f"'{method.name}' predicts with what each client keeps, and has no model for all"
        if client is None:
            raise ValueError(f"{why}: predict(X, clients=...)")
        raise ValueError(f"client '{client}' took no part in the fit; {why}")


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A method for classes, as a scikit-learn classifier.

    Parameters
    ----------
    method : str or Method
        A name (`evenfed methods` lists them) or an instance.
    options : mapping, optional
        Hyperparameters of a method by name: `{"mu": 0.1, "lr": 0.05}`.
    rounds : int
    model : str, module or callable
        A built-in model's name, your own `nn.Module`, or a function that makes one.
    scale : bool
        Whether features are standardised by means and variances over all clients.
    participation : Participation, float or int, optional
    engine : str or EngineOptions
    random_state : int, RandomState or None
        Seeds the first weights and everything else.

    Attributes
    ----------
    classes_ : array
        With two classes the second is the favourable one.
    clients_, groups_ : tuple of str
    result_ : Result
        The run with all its metrics (on training data: `result_.summary("train")`); a pickle
        leaves it out.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, sex, site = rng.normal(size=(90, 2)), rng.integers(2, size=90), ["a", "b", "c"] * 30
    >>> y = np.where(X[:, 0] > 0, "yes", "no")
    >>> model = FederatedClassifier("fedprox", options={"mu": 0.1}, rounds=20)
    >>> model.fit(X, y, clients=site, sensitive_features=sex).predict([[2.0, 0.0], [-2.0, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    """

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        clients: ArrayLike | None = None,
        sensitive_features: ArrayLike | None = None,
    ) -> Self:
        """Train the method.

        Parameters
        ----------
        X : array `(n, d)`
            Numbers without gaps.
        y : array `(n,)`
            Classes.
        clients : array `(n,)`, optional
            Client of each row; without it there is one client, named "all", and the method works
            as it does with a single client.
        sensitive_features : array `(n,)` or `(n, s)`, optional
            Sensitive attributes of each row; the groups are their intersections. Without it all
            rows are in one group, and a method that needs groups says so.
        """
        x, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("the data have one class only: a classifier needs two or more")
        kind: Kind = "binary" if len(self.classes_) == 2 else "multiclass"
        names = tuple(str(c) for c in self.classes_)
        target = torch.from_numpy(codes.astype(np.int64))
        self._train(kind, x, target, names, clients, sensitive_features)
        return self

    def predict_proba(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[np.float64]:
        """Probabilities `(n, C)` of the classes, in the order of `classes_`."""
        out = self._outputs(X, clients)
        return np.asarray(self._bound.task.probabilities(out).numpy())

    def predict(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[Any]:
        """Predicted classes `(n,)`; `clients` chooses the models of methods that have several."""
        out = self._outputs(X, clients)
        return np.asarray(self.classes_[self._bound.task.predictions(out).numpy()])

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        clients: ArrayLike | None = None,
    ) -> float:
        """Accuracy."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A method for numbers, as a scikit-learn regressor; parameters as `FederatedClassifier`.

    The label is standardised for training too, so losses and bounds on losses (PFFL's `zeta`) are
    in units of its variance.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(90, 2))
    >>> model = FederatedRegressor(rounds=20).fit(X, 3 * X[:, 0] + 5, clients=[0, 1, 2] * 30)
    >>> bool(model.score(X, 3 * X[:, 0] + 5) > 0.9)
    True
    """

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        clients: ArrayLike | None = None,
        sensitive_features: ArrayLike | None = None,
    ) -> Self:
        """Train the method; see `FederatedClassifier.fit`."""
        x, labels = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        labels = column_or_1d(labels, warn=True).astype(np.float64)
        mean, spread = _moments(labels[:, None])
        self.y_mean_, self.y_scale_ = float(mean[0]), float(spread[0])
        target = torch.from_numpy(((labels - self.y_mean_) / self.y_scale_).astype(np.float32))
        self._train("regression", x, target, (), clients, sensitive_features)
        return self

    def predict(self, X: ArrayLike, clients: ArrayLike | None = None) -> NDArray[np.float64]:
        """Predicted numbers `(n,)`; `clients` chooses the models of methods that have several."""
        out = self._outputs(X, clients).numpy()
        return np.asarray(out * self.y_scale_ + self.y_mean_)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        clients: ArrayLike | None = None,
    ) -> float:
        """The coefficient of determination."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))


def _moments(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and spreads of columns; a column that is constant keeps its values."""
    mean, spread = x.mean(0), x.std(0)
    constant = spread <= len(x) * np.finfo(np.float64).eps * np.abs(mean)
    return mean, np.where(constant | (spread == 0), 1.0, spread)


def _groups(given: ArrayLike | None, n: int) -> tuple[Groups, Tensor]:
    """The groups, and the code of each row."""
    if given is None:
        return Groups(), torch.zeros(n, dtype=torch.int64)
    if isinstance(given, pd.Series | pd.DataFrame):
        frame = pd.DataFrame(given).reset_index(drop=True)
    else:
        frame = pd.DataFrame(np.asarray(given))
        frame.columns = pd.Index([f"group {i}" for i in range(frame.shape[1])])
    if len(frame) != n:
        raise ValueError(f"sensitive_features have {len(frame)} rows, X has {n}")
    coded = [level_codes(frame[column]) for column in frame.columns]
    gone = sum(int((codes < 0).sum()) for codes, _ in coded)
    if gone:
        raise ValueError(f"sensitive_features have {gone} missing values")
    groups = Groups(tuple(map(str, frame.columns)), tuple(levels for _, levels in coded))
    return groups, torch.from_numpy(groups.codes(*(codes for codes, _ in coded)))


def _clients(given: ArrayLike | None, n: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The place of each row's client in the names."""
    if given is None:
        return np.zeros(n, dtype=np.int64), (ONE,)
    column: pd.Series[Any] = pd.Series(column_or_1d(np.asarray(given)))
    if len(column) != n:
        raise ValueError(f"clients have {len(column)} rows, X has {n}")
    codes, names = level_codes(column)
    if (codes < 0).any():
        raise ValueError(f"clients have {int((codes < 0).sum())} missing values")
    return codes, names


def _seed(given: int | np.random.RandomState | None) -> int:
    if isinstance(given, int | np.integer):
        return int(given)
    source = np.random.mtrand._rand if given is None else given
    return int(source.randint(2**31 - 1))


def _label_type(kind: Kind) -> torch.dtype:
    return torch.float32 if kind == "regression" else torch.int64


def _double(tree: Tree) -> Tree:
    return trees.map(lambda t: t.double() if t.is_floating_point() else t, tree)
