"""Models as ONNX graphs: one input a raw column, label and probabilities as outputs.

The pipeline's graph comes from `torch.onnx`. In front of it stand the nodes that PyTorch has not:
words become codes (`LabelEncoder`), columns are put side by side. Behind it codes become labels.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenfed.core.errors import ModelError
from evenfed.data.inputs import UNSEEN, Columns, Tokens
from evenfed.runs.folder import write_atomically
from evenfed.runs.predictor import KEY, Description, Pipeline, Predictor, needed
from evenfed.runs.program import exported

OPSET, ML_OPSET = 18, 3
WHAT = "format onnx"
_INSIDE = "evenfed/"
"""Before every name inside the graph, so that a column may have any name."""


def write_onnx(
    path: Path, pipeline: Pipeline, raw: tuple[Tensor, ...], description: Description
) -> None:
    """Write the graph; the description is in its metadata."""
    onnx = needed("onnx", "onnx", WHAT)
    needed("onnxscript", "onnx", WHAT)
    with _quiet():
        program = torch.onnx.export(
            exported(pipeline, raw), dynamo=True, opset_version=OPSET, verbose=False
        )
    model = onnx.compose.add_prefix(program.model_proto, _INSIDE)  # type: ignore[union-attr]
    _front(onnx, model, description)
    _back(onnx, model, description)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", ML_OPSET))
    model.producer_name = "evenfed"
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {KEY: description.json()})
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, model.SerializeToString(deterministic=True))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch says about its own insides and about libraries that are not needed."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _front(onnx: Any, model: Any, description: Description) -> None:
    """Replace the graph's inputs by raw columns, pixels or tokens."""
    helper, graph = onnx.helper, model.graph
    inner = [value.name for value in graph.input]
    types = onnx.TensorProto
    inputs = description.inputs
    if not isinstance(inputs, Columns):
        name = "tokens" if isinstance(inputs, Tokens) else "x"
        for node in graph.node:
            node.input[:] = [name if given == inner[0] else given for given in node.input]
        graph.input[0].name = name
        return
    del graph.input[:]
    nodes, left = [], list(inner)
    if inputs.numeric:
        names = [column.name for column in inputs.numeric]
        for name in names:
            graph.input.append(helper.make_tensor_value_info(name, types.DOUBLE, ["n", 1]))
        nodes.append(helper.make_node("Concat", names, [left.pop(0)], axis=1))
    coded = []
    for name, levels, absent in inputs.words:
        graph.input.append(helper.make_tensor_value_info(name, types.STRING, ["n", 1]))
        codes = {"": absent, **levels}
        coded.append(f"{_INSIDE}code of {name}")
        nodes.append(
            helper.make_node(
                "LabelEncoder", [name], [coded[-1]], domain="ai.onnx.ml", default_int64=UNSEEN,
                keys_strings=list(codes), values_int64s=list(codes.values()),
            )
        )  # fmt: skip
    if coded:
        nodes.append(helper.make_node("Concat", coded, [left.pop(0)], axis=1))
    inside = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *inside])


def _back(onnx: Any, model: Any, description: Description) -> None:
    """Name the outputs: `label` and `probabilities`, or `value`; `predicted ...` if a column is."""
    helper, graph = onnx.helper, model.graph
    schema = description.schema
    found = [value.name for value in graph.output]
    types = onnx.TensorProto
    del graph.output[:]
    taken = {value.name for value in graph.input}
    label, probabilities, number = (
        f"predicted {name}" if name in taken else name
        for name in ("label", "probabilities", "value")
    )
    if schema.kind == "regression":
        graph.node.append(helper.make_node("Identity", [found[0]], [number]))
        graph.output.append(helper.make_tensor_value_info(number, types.FLOAT, ["n"]))
        return
    names = schema.class_names or tuple(str(c) for c in range(schema.classes))
    graph.node.append(
        helper.make_node(
            "LabelEncoder", [found[0]], [label], domain="ai.onnx.ml", default_string="",
            keys_int64s=list(range(len(names))), values_strings=list(names),
        )
    )  # fmt: skip
    graph.node.append(helper.make_node("Identity", [found[1]], [probabilities]))
    graph.output.append(helper.make_tensor_value_info(label, types.STRING, ["n"]))
    shape = ["n", len(names)]
    graph.output.append(helper.make_tensor_value_info(probabilities, types.FLOAT, shape))


def session(path: Path) -> Any:
    """A session of onnxruntime, quiet and on one thread."""
    runtime = needed("onnxruntime", "onnx", "an .onnx file")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"cannot read '{path}': {error}") from error


def onnx_predictor(path: Path) -> Predictor:
    """A predictor that runs a graph of Evenfed's in onnxruntime."""
    opened = session(path)
    metadata = opened.get_modelmeta().custom_metadata_map
    if KEY not in metadata:
        raise ModelError(f"'{path}' holds a graph, but not one that Evenfed exported")
    description = Description.of(metadata[KEY], path)

    def run(raw: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = opened.run(None, fed(description, raw))
        if description.schema.kind == "regression":
            return (torch.from_numpy(found[0]),)
        place = {name: i for i, name in enumerate(result.classes)}
        codes = torch.tensor([place.get(label, -1) for label in found[0]], dtype=torch.int64)
        return codes, torch.from_numpy(found[1])

    result = Predictor(description, run)
    return result


def fed(description: Description, raw: tuple[Tensor, ...]) -> dict[str, Any]:
    """What a graph takes, from raw tensors: numbers, words, pixels or tokens."""
    inputs = description.inputs
    if not isinstance(inputs, Columns):
        return {"tokens" if isinstance(inputs, Tokens) else "x": raw[0].numpy()}
    left = list(raw)
    values: dict[str, Any] = {}
    if inputs.numeric:
        numbers = left.pop(0).numpy()
        values = {c.name: numbers[:, i : i + 1] for i, c in enumerate(inputs.numeric)}
    for j, (name, levels, absent) in enumerate(inputs.words):
        # a code without a word of its own is that of a missing value, or of a level never seen
        texts = {code: level for level, code in levels.items()}
        texts.setdefault(absent, "")
        unseen = "?" * (1 + max(map(len, levels), default=0))
        codes = left[0][:, j].tolist()
        words = [texts.get(code, unseen) for code in codes]
        values[name] = np.array(words, dtype=object).reshape(-1, 1)
    return values
