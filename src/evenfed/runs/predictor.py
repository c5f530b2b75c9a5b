"""A trained model that takes raw rows: read from a file, asked for labels and probabilities."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from evenfed.core.errors import ConfigError, DataError, ModelError
from evenfed.data.dataset import Groups, Schema
from evenfed.data.inputs import Inputs, inputs_of
from evenfed.runs.architecture import Architecture, built

KEY = "evenfed"
"""Where a file keeps the description of its model."""
FORMAT = 1
_ROWS = 4096
"""Rows in one pass: bounds the memory of a prediction."""

Runtime = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
"""From raw tensors to (codes, probabilities), or (values,) for regression."""


@dataclass(frozen=True)
class Description:
    """What must be known of a model besides its weights; plain values.

    Parameters
    ----------
    schema : Schema
    inputs : Inputs
    architecture : dict
        See `runs.architecture`.
    origin : dict
        Where it comes from: method, dataset, seed, client, preference, versions.
    """

    schema: Schema
    inputs: Inputs
    architecture: Architecture
    origin: dict[str, Any] = field(default_factory=dict)

    def json(self) -> str:
        """As text, the same for the same model."""
        schema = asdict(self.schema)
        schema.pop("ledger"), schema.pop("notes")
        if schema["target"] == (0.0, 1.0):
            schema.pop("target")
        return json.dumps(
            {
                "format": FORMAT, "schema": schema, "inputs": self.inputs.to_dict(),
                "architecture": self.architecture, "origin": self.origin,
            },
            sort_keys=True,
        )  # fmt: skip

    @classmethod
    def of(cls, text: str, path: Path) -> Description:
        """Inverse of `json`."""
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise ModelError(
                    f"'{path}' has format {found['format']}; this version reads {FORMAT}"
                )
            schema = dict(found["schema"])
            levels = tuple(tuple(level) for level in schema["groups"]["levels"])
            schema["groups"] = Groups(tuple(schema["groups"]["names"]), levels)
            for name in ("shape", "features", "class_names", "target"):
                if name in schema:
                    schema[name] = tuple(schema[name])
            inputs = inputs_of(found["inputs"])
            return cls(Schema(**schema), inputs, found["architecture"], found["origin"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"'{path}': the description of the model is damaged") from error


class Pipeline(nn.Module):
    """Preprocessing, model and decision as one module.

    Takes the raw tensors of `Inputs.raw`; returns predicted codes `(n,)` and probabilities
    `(n, C)`, or values `(n,)` for regression, in the label's own unit (`target`: its offset and
    scale). Where a probability is not a number the code is -1.
    """

    def __init__(
        self,
        features: nn.Module,
        model: nn.Module,
        regression: bool,
        target: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.target = target
        self.features = features
        self.model = model
        self.regression = regression

    def forward(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """Predictions for raw tensors."""
        out = self.model(self.features(*raw))
        if out.ndim == 2 and out.shape[-1] == 1:
            out = out.squeeze(-1)
        if self.regression:
            offset, scale = self.target
            if self.target != (0.0, 1.0):
                out = (offset + scale * out.to(torch.float64)).to(torch.float32)
            return (out,)
        if out.ndim == 1:
            codes, p = (out > 0).to(torch.int64), torch.sigmoid(out)
            probabilities = torch.stack([1 - p, p], -1)
        else:
            codes, probabilities = out.argmax(-1), out.softmax(-1)
        unknown = probabilities.isnan().any(-1)
        return torch.where(unknown, torch.full_like(codes, -1), codes), probabilities


class Predictor:
    """A model with its preprocessing.

    Examples
    --------
    >>> import tempfile
    >>> import evenfed as ef
    >>> result = ef.train("fedavg", "loans", rounds=1)
    >>> path = ef.export_model(result, Path(tempfile.mkdtemp()) / "model.safetensors").path
    >>> rows = result.data.rows(result.data.names[0], "test")   # raw columns
    >>> set(ef.load_model(path).predict(rows)) <= {"refused", "approved"}
    True
    """

    def __init__(
        self, description: Description, run: Runtime, module: nn.Module | None = None
    ) -> None:
        self.description = description
        self.module = module
        """The model without preprocessing, where it is a module of PyTorch."""
        self._run = run

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of `predict_proba`; empty for regression."""
        schema = self.description.schema
        if schema.kind == "regression":
            return ()
        return schema.class_names or tuple(str(c) for c in range(schema.classes))

    def predict(self, rows: Any) -> NDArray[Any]:
        """Class names `(n,)`, or values for regression, of raw rows."""
        if not self.classes:
            return self.scored(rows)[0]
        codes = self.scored(rows)[0]
        if (codes < 0).any():
            raise DataError(f"the model has no prediction for {int((codes < 0).sum())} rows")
        named: NDArray[Any] = np.array(self.classes)[codes]
        return named

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """Class probabilities `(n, C)` of raw rows."""
        if not self.classes:
            raise ConfigError("a regression has no class probabilities; use predict")
        return self.scored(rows)[1]

    def scored(self, rows: Any) -> tuple[NDArray[Any], ...]:
        """Codes `(n,)` and probabilities `(n, C)`, or values `(n,)`."""
        raw = self.description.inputs.raw(rows)
        count = len(raw[0])
        parts = [
            self._run(tuple(t[begin : begin + _ROWS] for t in raw))
            for begin in range(0, max(count, 1), _ROWS)
        ]
        return tuple(torch.cat(column).numpy() for column in zip(*parts, strict=True))

    def __repr__(self) -> str:
        origin = self.description.origin
        return f"Predictor({origin.get('title', 'a model')} for {self.description.schema.name})"


def pipeline(description: Description, module: nn.Module) -> Pipeline:
    """A module with the preprocessing in front."""
    regression = description.schema.kind == "regression"
    target = description.schema.target
    return Pipeline(description.inputs.module(), module, regression, target).eval()


def predictor(description: Description, module: nn.Module) -> Predictor:
    """A predictor that runs a module of PyTorch."""
    whole = pipeline(description, module)

    def run(raw: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return whole(*raw)  # type: ignore[no-any-return]

    return Predictor(description, run, module)


def load_model(path: Path | str, module: nn.Module | None = None) -> Predictor:
    """Read an exported model: `.safetensors`, `.onnx` or `.pt2`.

    Nothing is unpickled. `module` is for weights of a module of your own: an instance of it.

    Returns
    -------
    Predictor
        `predict` and `predict_proba` take raw rows: a DataFrame, pixels, or texts.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no model file '{path}'")
    if path.suffix == ".safetensors":
        return _from_safetensors(path, module)
    if module is not None:
        raise ConfigError(f"module= is for .safetensors; '{path.name}' holds the whole model")
    if path.suffix == ".onnx":
        from evenfed.runs.onnx_model import onnx_predictor

        return onnx_predictor(path)
    if path.suffix == ".pt2":
        return _from_program(path)
    raise ModelError(f"'{path.name}' is no model file: it may end in .safetensors, .onnx or .pt2")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error


def loaded(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> nn.Module:
    """A module with the weights of a file; refuses others by name."""
    here = {name: tuple(t.shape) for name, t in module.state_dict().items()}
    there = {name: tuple(t.shape) for name, t in tensors.items()}
    if here != there:
        odd = sorted(
            name for name in here.keys() | there.keys() if here.get(name) != there.get(name)
        )
        name = odd[0]
        raise ModelError(
            f"the weights of '{path}' are not those of the architecture: '{name}' has shape "
            f"{there.get(name, 'none')} in the file and {here.get(name, 'none')} in the model"
        )
    module.load_state_dict(dict(tensors))
    return module.eval()


def _from_safetensors(path: Path, module: nn.Module | None) -> Predictor:
    tensors, metadata = read_tensors(path)
    if KEY not in metadata:
        raise ModelError(
            f"'{path}' holds weights, but no description of a model that Evenfed exported"
        )
    description = Description.of(metadata[KEY], path)
    if module is None:
        module = built(description.architecture)
    return predictor(description, loaded(module, tensors, path))


def _from_program(path: Path) -> Predictor:
    from evenfed.runs.program import read_program

    text, run = read_program(path)
    return Predictor(Description.of(text, path), run)


def needed(module: str, extra: str, what: str) -> Any:
    """Import an optional library, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs the library '{module}': pip install 'evenfed[{extra}]'"
        ) from error
