"""Models as programs of `torch.export`: an archive (.pt2) of a graph and plain arrays.

An archive of PyTorch may hold pickled objects. Those written here hold none, and one that does is
refused before it is read. Still, PyTorch does not promise that a graph from a stranger is harmless.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenfed.core.errors import ModelError
from evenfed.runs.folder import write_atomically
from evenfed.runs.predictor import KEY, Description, Pipeline

_PLAIN = re.compile(
    r"models/\w+\.json|data/weights/weight_\d+|data/constants/tensor_\d+|"
    r"data/(weights|constants)/\w+_config\.json|extra/\w+|archive_format|archive_version|"
    r"byteorder|\.data/\w+|\.format_version|\.storage_alignment"
)


def exported(pipeline: Pipeline, raw: tuple[Tensor, ...]) -> Any:
    """The program of a pipeline for any number of rows; `raw` is an example of its inputs."""
    some = tuple(t[:1].expand(3, *t.shape[1:]).contiguous() for t in raw)
    rows = torch.export.Dim("n")
    shapes = {"raw": tuple({0: rows} for _ in some)}
    program = torch.export.export(pipeline, some, dynamic_shapes=shapes)
    program.example_inputs = None  # they would be pickled
    return program


def write_program(
    path: Path, pipeline: Pipeline, raw: tuple[Tensor, ...], description: Description
) -> None:
    """Write the archive; the description is one of its files."""
    content = io.BytesIO()
    extra = {KEY: description.json()}
    torch.export.save(exported(pipeline, raw), content, extra_files=extra)
    write_atomically(path, content.getvalue())


def read_program(path: Path) -> tuple[str, Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
    """Description and program of an archive."""
    check_archive(path)
    found = {KEY: ""}
    try:
        module = torch.export.load(str(path), extra_files=found).module()
    except Exception as error:
        raise ModelError(f"cannot read '{path}': {error}") from error

    def run(raw: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return module(*raw)  # type: ignore[no-any-return]

    return found[KEY], run


def check_archive(path: Path) -> None:
    """Refuse an archive that holds more than a graph, arrays and text."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"'{path}' is not an archive of torch.export") from error
    with archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
        for full, name in zip(archive.namelist(), names, strict=True):
            empty = archive.getinfo(full).file_size == 0
            pickled = name.endswith("_config.json") and any(
                entry.get("use_pickle")
                for entry in json.loads(archive.read(full))["config"].values()
            )
            if pickled or not (empty or _PLAIN.fullmatch(name)):
                raise ModelError(
                    f"'{path}' holds '{name}', which may be a pickled object or native code: "
                    "it is not read"
                )
    if f"extra/{KEY}" not in names:
        raise ModelError(f"'{path}' holds a program, but not one that Evenfed exported")
