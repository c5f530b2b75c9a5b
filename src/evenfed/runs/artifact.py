"""The model of a run with all that a file must hold: weights, preprocessing, description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, ModelError
from evenfed.core.tree import Tree
from evenfed.data.dataset import FederatedDataset, Schema
from evenfed.data.inputs import Array, Columns, Inputs, plain_inputs
from evenfed.methods.base import Method
from evenfed.methods.preferred import Preferred
from evenfed.runs.architecture import OWN, builtin, described
from evenfed.runs.config import versions
from evenfed.runs.folder import MODEL, write_atomically
from evenfed.runs.fronts import index_of, preferred
from evenfed.runs.predictor import KEY, Description, Predictor, pipeline, predictor

if TYPE_CHECKING:
    from evenfed.runs.result import Result

Format = Literal["safetensors", "onnx", "torch"]
ENDINGS: dict[str, Format] = {".safetensors": "safetensors", ".onnx": "onnx", ".pt2": "torch"}


@dataclass(frozen=True)
class Artifact:
    """A module and its description."""

    description: Description
    module: nn.Module

    @property
    def predictor(self) -> Predictor:
        """The model, ready to take raw rows."""
        return predictor(self.description, self.module)

    def write(self, path: Path, format: Format) -> None:
        """Write it to a file, atomically."""
        if format == "safetensors":
            weights = {
                k: v.detach().cpu().contiguous() for k, v in self.module.state_dict().items()
            }
            apart = {name: weight.clone() for name, weight in weights.items()}
            write_atomically(path, save(apart, {KEY: self.description.json()}))
            return
        whole = pipeline(self.description, self.module)
        raw = example(self.description)
        if format == "onnx":
            from evenfed.runs.onnx_model import write_onnx

            write_onnx(path, whole, raw, self.description)
        else:
            from evenfed.runs.program import write_program

            write_program(path, whole, raw, self.description)


def example(description: Description) -> tuple[Tensor, ...]:
    """Raw tensors of one row, of the shapes that the model takes."""
    inputs = description.inputs
    if isinstance(inputs, Columns):
        parts = [torch.zeros(1, len(inputs.numeric), dtype=torch.float64)] * bool(inputs.numeric)
        words = [torch.zeros(1, len(inputs.words), dtype=torch.int64)] * bool(inputs.words)
        return (*parts, *words)
    if isinstance(inputs, Array):
        return (torch.zeros(1, *inputs.shape),)
    return (torch.zeros(1, *description.schema.shape, dtype=torch.int64),)


def client_words(names: Sequence[str], shown: int = 3) -> str:
    """How to name a client, with a few names.

    Examples
    --------
    >>> client_words(["north", "south", "coast", "hills"])
    "--client NAME, one of 'north', 'south', 'coast' and 1 more"
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"--client NAME, one of {', '.join(repr(n) for n in names[:shown])}{more}"


def in_use(result: Result, client: str | int | None, preference: float | None) -> Result:
    """The result with the options under which the wanted model is the one that predicts."""
    method = result.method
    if not isinstance(method, Preferred):
        if preference is not None:
            preferred(method)
        return result
    if preference is None:
        raise ConfigError(
            f"'{method.name}' has a model for every preference in [0, 1]; say which one: "
            "--preference 0.5 (larger is fairer)"
        )
    if client is None and not method.united_in(result.server):
        raise ConfigError(
            f"'{method.name}' was run without a family of the federation's own; name a client: "
            f"{client_words(result.data.names)}"
        )
    deploy = "global" if client is None else "own"
    return result.using(preference=float(preference), deploy=deploy)


def artifact_of(
    result: Result, client: str | int | None = None, preference: float | None = None
) -> Artifact:
    """The model of a trained run: the global one, a client's, or that of a preference.

    Refuses, by name, what a run does not have.
    """
    result = in_use(result, client, preference)
    method, data = result.method, result.data
    index = index_of(data, client)
    state = _state(result, index)
    deployed = method.deployed(result.server)
    try:
        module = method.module(deployed, state).cpu()
    except ConfigError as error:
        if index is not None:
            raise
        raise ConfigError(f"{error}: {client_words(data.names)}") from error
    _check(method, data.schema, module, deployed, state, data.names)
    name = None if index is None else data.client(index).name
    config = result.config.model
    base = OWN if config.name == "own" else builtin(config.name, config.options, data.schema)
    origin = {
        "method": method.name, "title": method.title, "dataset": data.schema.name,
        "seed": result.config.seed, "rounds": result.config.rounds, "client": name,
        "preference": preference, "versions": versions(),
    }  # fmt: skip
    architecture = described(module, base)
    return Artifact(Description(data.schema, inputs_for(data, name), architecture, origin), module)


def _state(result: Result, index: int | None) -> Tree:
    """What the client keeps; refused where it must be known and is not."""
    method, data = result.method, result.data
    if index is None:
        if method.personal:
            raise ConfigError(
                f"'{method.name}' has no global model: each client has its own; name one: "
                f"{client_words(data.names)}"
            )
        return ()
    if not 0 <= index < len(data):
        raise ConfigError(f"there is no client {index} of {len(data)}")
    state = result._state(index)
    if result.config.built_engine().engine == "flower" and trees.leaves(state):
        raise ConfigError(
            f"what client '{data.client(index).name}' keeps is at its own node: there its model "
            "can be had, not here"
        )
    return state


def inputs_for(data: FederatedDataset, client: str | None) -> Inputs:
    """How raw rows become features, for all clients or for one."""
    if data.inputs is None:
        return plain_inputs(data.schema)
    if isinstance(data.inputs, Inputs):
        return data.inputs
    if client is None:
        raise ConfigError(
            "each client scales features by its own rows (data.fit = 'client'), so there is no one "
            f"preprocessing; name a client: {client_words(data.names)}"
        )
    return data.inputs[client]


def _check(
    method: Method,
    schema: Schema,
    module: nn.Module,
    deployed: Tree,
    state: Tree,
    names: Sequence[str],
) -> None:
    """Refuse a method whose predictions are not those of the module that it returns."""
    shape = (8, *schema.shape)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=draw)
    if schema.vocabulary:
        x = torch.randint(schema.vocabulary, shape, generator=draw)
    device = method.task.device
    with torch.no_grad():
        try:
            expected = method.outputs(deployed, state, x.to(device)).cpu()
        except (KeyError, TypeError, ConfigError) as error:
            raise ConfigError(
                f"'{method.name}' with these options has no one model for all clients; name a "
                f"client: {client_words(names)}"
            ) from error
        found = module(x)
    if not torch.allclose(found.reshape(expected.shape), expected, rtol=1e-3, atol=1e-4):
        raise ModelError(
            f"the predictions of '{method.name}' are not those of the module it returns; it must "
            "override `module` to be exported"
        )


def save_model(result: Result, folder: Path) -> str:
    """Keep the model of a run in its folder, where there is one for all clients.

    Returns why there is none where there should be one, else nothing: a run is not lost for it.
    """
    try:
        artifact = artifact_of(result)
    except ConfigError:
        return ""  # one a client, or one a preference: `evenfed export` makes it
    except ModelError as error:
        return f"no {MODEL}: {error}"
    artifact.write(folder / MODEL, "safetensors")
    return ""
