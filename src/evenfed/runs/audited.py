"""Models that can be audited, whoever made them; all answer the same two questions.

What columns do you need, and what do you say about these rows. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenfed.core import models
from evenfed.core.errors import ConfigError, DataError, ModelError
from evenfed.data.dataset import Kind
from evenfed.data.inputs import MISSING, Columns, check_columns
from evenfed.data.preprocess import level_codes, numbers
from evenfed.runs.config import toml_value
from evenfed.runs.onnx_model import session
from evenfed.runs.predictor import KEY, load_model, loaded, needed, read_tensors

Scores = tuple[NDArray[Any], NDArray[np.float64] | None]
"""Codes of classes `(n,)` or values, and class probabilities `(n, C)` where the model has them."""


@dataclass(frozen=True)
class Audited:
    """A model under audit.

    Parameters
    ----------
    path : Path
    classes : tuple of str
        Class names in the order of the codes; empty for regression.
    columns : tuple of str
        Raw columns that it needs; empty where it takes arrays or texts.
    score : callable
        From raw rows to `Scores`.
    words : frozenset of str
        Columns that it reads as words, also where they look like numbers (codes such as 007).
    numbers : frozenset of str
        Columns that must be numbers. Of a column that is in neither it is not known.
    gaps : frozenset of str
        Those of `words` and `numbers` that may have missing values.
    seen : mapping of column to levels
        Levels of features and sensitive columns in the training data, where they are known.
    closed : frozenset of str
        Columns in which it cannot take another level.
    """

    path: Path
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    score: Callable[[Any], Scores]
    words: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    gaps: frozenset[str] = frozenset()
    seen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()

    @property
    def regression(self) -> bool:
        """Whether it predicts numbers."""
        return not self.classes


@dataclass(frozen=True)
class How:
    """What must be said about a model that does not say it itself.

    Parameters
    ----------
    architecture : str
        Built-in model of foreign weights, with options: `mlp:hidden=64`.
    features : tuple of str
        Columns in the order in which the model takes them.
    classes : tuple of str
        Values of the label in the order of the model's outputs; default: 0, 1, ...
    trust : tuple of str
        Types in a skops file that may be loaded.
    """

    architecture: str = ""
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    kind: Kind | None = None
    trust: tuple[str, ...] = field(default_factory=tuple)


def open_model(path: Path, how: How, others: Sequence[str]) -> Audited:
    """Open a model file; `others` are the files' columns beside label, groups and client."""
    if not path.is_file():
        raise ModelError(f"there is no model file '{path}'")
    given = how.features or tuple(others)
    if path.suffix == ".skops":
        _unused(path, how, "architecture", "classes", "kind")
        return _skops(path, how, given)
    _unused(path, how, "trust")
    if path.suffix == ".safetensors" and KEY not in read_tensors(path)[1]:
        return _weights(path, how, given)
    if path.suffix == ".onnx" and KEY not in session(path).get_modelmeta().custom_metadata_map:
        return _onnx(path, how, given)
    if path.suffix not in (".safetensors", ".onnx", ".pt2"):
        raise ModelError(
            f"'{path.name}' is no model file: it may end in .safetensors, .onnx, .pt2 or .skops"
        )
    _unused(path, how, "architecture", "features", "classes", "kind")
    return _exported(path)


def _unused(path: Path, how: How, *options: str) -> None:
    """Refuse what was said about a model that knows it by itself."""
    for option in options:
        if getattr(how, option):
            raise ConfigError(f"--{option} has no meaning for '{path.name}': leave it out")


def _exported(path: Path) -> Audited:
    model = load_model(path)
    inputs = model.description.inputs
    groups = model.description.schema.groups
    seen: dict[str, Sequence[str]] = {}
    if len(groups) > 1:
        seen.update(zip(groups.names, groups.levels, strict=True))
    reads: dict[str, Any] = {"seen": seen}
    names: tuple[str, ...] = ()
    if isinstance(inputs, Columns):
        names = inputs.names
        seen.update({name: tuple(levels) for name, levels, _ in inputs.words})
        filled = [c.name for c in inputs.numeric if c.fill is not None]
        filled += [name for name, _, absent in inputs.words if absent != MISSING]
        reads |= {
            "words": frozenset(name for name, _, _ in inputs.words),
            "numbers": frozenset(c.name for c in inputs.numeric), "gaps": frozenset(filled),
            "closed": frozenset(inputs.code.names if inputs.code else ()),
        }  # fmt: skip

    def score(rows: Any) -> Scores:
        found = model.scored(rows)
        return found[0], np.asarray(found[1], dtype=np.float64) if model.classes else None

    return Audited(path, model.classes, names, score, **reads)


def parse_architecture(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a built-in model.

    Examples
    --------
    >>> parse_architecture("mlp:hidden=[64,32]")
    ('mlp', {'hidden': [64, 32]})
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    while rest:
        key, equals, rest = rest.partition("=")
        if not equals:
            raise ConfigError(f"--architecture is NAME:option=value,..., not '{text}'")
        # a comma inside brackets belongs to the value
        end = rest.find("]") + 1 if rest.startswith("[") else rest.find(",")
        value, rest = (rest[:end], rest[end:].lstrip(",")) if end > 0 else (rest, "")
        options[key.strip()] = toml_value(value)
    return name, options


def _weights(path: Path, how: How, features: Sequence[str]) -> Audited:
    """Weights of a built-in model that somebody else trained on features as they are."""
    tensors, _ = read_tensors(path)
    if not how.architecture:
        raise ConfigError(
            f"'{path.name}' holds weights alone; name their model: --architecture mlp:hidden=64"
        )
    name, options = parse_architecture(how.architecture)
    sizes = sorted({t.shape[0] for t in tensors.values() if t.ndim})
    shapes = {key: tuple(t.shape) for key, t in tensors.items()}
    module = None
    for outputs in sizes or [1]:
        module = models.build(name, (len(features),), outputs, **options)
        if {key: tuple(t.shape) for key, t in module.state_dict().items()} == shapes:
            break
    else:
        assert module is not None
        try:
            loaded(module, tensors, path)
        except ModelError as error:
            raise ModelError(
                f"{error}; it was built for the {len(features)} columns {', '.join(features)}: "
                "name the right ones with --features, in the order of the model"
            ) from None
    model = loaded(module, tensors, path)
    if outputs == 1 and how.kind is None:
        raise ConfigError(f"'{path.name}' has one output: say --kind regression or --kind binary")
    regression = how.kind == "regression"
    classes = () if regression else _named(how, max(outputs, 2), path)

    def score(rows: Any) -> Scores:
        x = torch.from_numpy(_matrix(rows, features).astype(np.float32))
        with torch.no_grad():
            out = model(x)
        if regression:
            return out.reshape(-1).numpy(), None
        if outputs == 1:
            p = torch.sigmoid(out.reshape(-1).double())
            return (out.reshape(-1) > 0).long().numpy(), torch.stack([1 - p, p], -1).numpy()
        return out.argmax(-1).numpy(), out.double().softmax(-1).numpy()

    return Audited(path, classes, tuple(features), score, numbers=frozenset(features))


def _matrix(rows: pd.DataFrame, features: Sequence[str]) -> NDArray[np.float64]:
    """Numbers `(n, d)`; refuses words and missing values by column."""
    check_columns(features, rows)
    found = np.stack([numbers(rows[name]) for name in features], axis=1)
    gone = np.isnan(found).any(0)
    if gone.any():
        name = features[int(np.argmax(gone))]
        raise DataError(f"column '{name}' has missing values, which the model cannot take")
    return found


_ONNX_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}  # fmt: skip
_FLOATS = ("tensor(float)", "tensor(double)")


def _onnx(path: Path, how: How, features: Sequence[str]) -> Audited:
    """Somebody's graph: one matrix of features, or one input a column."""
    _unused(path, how, "architecture")
    opened = session(path)
    inputs = {value.name: value for value in opened.get_inputs()}
    outputs = opened.get_outputs()
    whole = len(inputs) == 1 and next(iter(inputs)) not in features
    if whole:
        width = next(iter(inputs.values())).shape[-1]
        if isinstance(width, int) and width != len(features):
            raise DataError(
                f"'{path.name}' takes {width} features, there are {len(features)} columns: "
                f"{', '.join(features)}; name the right ones with --features"
            )
    else:
        _unused(path, how, "features")
    columns = tuple(features) if whole else tuple(inputs)
    reads: dict[str, Any] = {"numbers": frozenset(columns)}
    if not whole:
        types = {name: value.type for name, value in inputs.items()}
        words = frozenset(name for name, type in types.items() if type == "tensor(string)")
        floats = {name for name, type in types.items() if type in _FLOATS}
        reads = {"words": words, "numbers": frozenset(columns) - words, "gaps": words | floats}

    def feeds(rows: pd.DataFrame) -> dict[str, NDArray[Any]]:
        check_columns(columns, rows)
        if whole:
            name, value = next(iter(inputs.items()))
            return {name: _matrix(rows, columns).astype(_number_type(path, name, value.type))}
        return {
            name: _words(rows[name]) if value.type == "tensor(string)"
            else numbers(rows[name]).astype(_number_type(path, name, value.type))[:, None]
            for name, value in inputs.items()
        }  # fmt: skip

    labels = [i for i, v in enumerate(outputs) if v.type in ("tensor(int64)", "tensor(string)")]
    others = [i for i in range(len(outputs)) if i not in labels]
    if how.kind == "regression":
        return Audited(
            path, (), columns,
            lambda rows: (np.asarray(opened.run(None, feeds(rows))[others[0]]).reshape(-1), None),
            **reads,
        )  # fmt: skip
    if not others:
        raise ModelError(f"'{path.name}' gives labels without probabilities: it is not audited")
    classes = _named(how, _width(outputs[others[0]], path), path)
    if labels and outputs[labels[0]].type == "tensor(string)" and not how.classes:
        raise ModelError(
            f"'{path.name}' gives labels as words; name them in the order of its probabilities: "
            "--classes"
        )

    def score(rows: Any) -> Scores:
        found = opened.run(None, feeds(rows))
        p = _probabilities(found[others[0]], classes)
        if labels and how.classes:
            said = [str(label) for label in np.asarray(found[labels[0]]).reshape(-1)]
            if outputs[labels[0]].type == "tensor(string)":
                return _codes(said, classes, path), p
        if labels:
            return np.asarray(found[labels[0]], dtype=np.int64).reshape(-1), p
        return p.argmax(-1), p

    return Audited(path, classes, columns, score, **reads)


def _number_type(path: Path, name: str, type: str) -> Any:
    if type not in _ONNX_TYPES:
        raise ModelError(f"'{path.name}': input '{name}' is of {type}, which is not known")
    return _ONNX_TYPES[type]


def _words(values: pd.Series[Any]) -> NDArray[Any]:
    codes, known = level_codes(values)
    return np.array([*known, ""], dtype=object)[codes].reshape(-1, 1)


def _named(how: How, count: int, path: Path) -> tuple[str, ...]:
    """Class names: those that were said, else codes."""
    if how.classes and len(how.classes) != count:
        raise ConfigError(f"'{path.name}' has {count} classes; --classes names {len(how.classes)}")
    return how.classes or tuple(str(c) for c in range(count))


def _width(output: Any, path: Path) -> int:
    """Columns of the table of probabilities."""
    if output.type.startswith("seq"):
        raise ModelError(f"'{path.name}' gives probabilities as maps; convert it with zipmap=False")
    shape = output.shape
    if not shape or len(shape) < 2 or shape[-1] == 1 or not isinstance(shape[-1], int):
        raise ModelError(
            f"'{path.name}': output '{output.name}' is no table of probabilities, one column a "
            "class; for a number say --kind regression"
        )
    return shape[-1]


def _probabilities(found: Any, classes: Sequence[str]) -> NDArray[np.float64]:
    p = np.asarray(found, dtype=np.float64).reshape(-1, len(classes))
    if (p >= 0).all() and np.allclose(p.sum(1), 1, atol=1e-3):
        return p
    return torch.from_numpy(p).softmax(-1).numpy()


def _codes(labels: Sequence[str], classes: Sequence[str], path: Path) -> NDArray[np.int64]:
    place: Mapping[str, int] = {name: i for i, name in enumerate(classes)}
    found = np.array([place.get(label, -1) for label in labels], dtype=np.int64)
    if (found < 0).any():
        raise ModelError(f"'{path.name}' predicts a label that is none of {', '.join(classes)}")
    return found


_HARMLESS = ("numpy.dtype",)
"""Types that skops asks about, but that only say what an array holds."""


def _skops(path: Path, how: How, features: Sequence[str]) -> Audited:
    """A model of scikit-learn; types that skops does not know must be trusted by name."""
    sio = needed("skops.io", "skops", "a .skops file")
    trusted = [*_HARMLESS, *how.trust]
    try:
        unknown = [t for t in sio.get_untrusted_types(file=path) if t not in trusted]
    except Exception as error:
        raise ModelError(f"cannot read '{path}': {error}") from error
    if unknown:
        flags = " ".join(f"--trust {name}" for name in unknown)
        raise ModelError(
            f"'{path.name}' holds types that are not known to be harmless: {', '.join(unknown)}. "
            f"If you trust its maker: {flags}"
        )
    model = sio.load(path, trusted=trusted)
    names = getattr(model, "feature_names_in_", None)
    columns = tuple(str(name) for name in names) if names is not None else tuple(features)
    width = getattr(model, "n_features_in_", len(columns))
    if width != len(columns):
        raise DataError(
            f"'{path.name}' takes {width} features, there are {len(columns)} columns: "
            f"{', '.join(columns)}; name the right ones with --features"
        )
    found = getattr(model, "classes_", None)
    # in the order of the model, not of the words
    values = [] if found is None else list(found)
    classes = tuple(level_codes(pd.Series([value]))[1][0] for value in values)

    def score(rows: Any) -> Scores:
        check_columns(columns, rows)
        given = rows[list(columns)] if names is not None else _matrix(rows, columns)
        said = np.asarray(model.predict(given))
        if not classes:
            return said.astype(np.float64).reshape(-1), None
        place = {value: i for i, value in enumerate(values)}
        codes = np.array([place[value] for value in said], dtype=np.int64)
        has = hasattr(model, "predict_proba")
        return codes, np.asarray(model.predict_proba(given), np.float64) if has else None

    numbers = frozenset() if names is not None else frozenset(columns)
    return Audited(path, classes, columns, score, numbers=numbers)
