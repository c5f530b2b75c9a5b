"""Writes the model of a run to a file that others can use, with its card."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evenfed.core.errors import ConfigError, RunFolderError
from evenfed.methods.preferred import Preferred
from evenfed.runs.artifact import ENDINGS, Artifact, Format, artifact_of, client_words, in_use
from evenfed.runs.config import RunConfig, parse, read
from evenfed.runs.folder import (
    CELLS,
    CLIENTS,
    CONFIG,
    MODEL,
    RunFolder,
    read_frame,
    write_atomically,
)
from evenfed.runs.fronts import preferred
from evenfed.runs.model_card import Facts, card, facts_of
from evenfed.runs.predictor import load_model
from evenfed.runs.result import Result
from evenfed.runs.study import STUDY, directory
from evenfed.runs.train import resume


@dataclass(frozen=True)
class Exported:
    """The files that an export wrote."""

    path: Path
    card: Path
    format: Format


def export_model(
    source: Result | Path | str,
    path: Path | str | None = None,
    *,
    client: str | int | None = None,
    preference: float | None = None,
    format: Format | None = None,
) -> Exported:
    """Write the model of a run, with its preprocessing, and a card beside it.

    Parameters
    ----------
    source : Result or path
        What `ef.train` returned, or the folder of a finished run.
    path : path, optional
        File to write; its ending says the format where `format` does not. Default: a file in the
        run's folder.
    client : str or int, optional
        A client, where each has a model or a scaling of its own.
    preference : float, optional
        In [0, 1], for methods that have a model for every preference.
    format : {"safetensors", "onnx", "torch"}, optional

    Examples
    --------
    >>> import tempfile
    >>> import evenfed as ef
    >>> result = ef.train("local", "synthetic", rounds=1)
    >>> folder = Path(tempfile.mkdtemp())
    >>> made = export_model(result, folder / "m.safetensors", client="client-0")
    >>> made.card.name
    'm.safetensors.md'
    """
    format = _format(path, format)
    if isinstance(source, Result):
        if path is None and source.folder is None:
            raise ConfigError("the run has no folder: say which file to write")
        artifact, facts = _of_result(source, client, preference)
        folder = source.folder
    else:
        folder = Path(source)
        artifact, facts = _of_folder(folder, client, preference)
    origin = artifact.description.origin
    target = Path(path) if path is not None else _default(folder, origin, format)
    if not target.parent.is_dir():
        raise ConfigError(f"there is no folder '{target.parent}' to write '{target.name}' into")
    artifact.write(target, format)
    beside = target.with_name(f"{target.name}.md")
    words = _command(folder, origin, format)
    write_atomically(beside, card(artifact, facts, target, words).encode())
    return Exported(target, beside, format)


def _format(path: Path | str | None, format: Format | None) -> Format:
    ending = "" if path is None else Path(path).suffix
    if format is not None and format not in ENDINGS.values():
        raise ConfigError(f"format is '{format}'; it may be {', '.join(ENDINGS.values())}")
    found = format or ENDINGS.get(ending) or ("safetensors" if path is None else None)
    if found is None or (path is not None and ENDINGS.get(ending) != found):
        known = ", ".join(f"{end} ({name})" for end, name in ENDINGS.items())
        raise ConfigError(f"'{path}' must end as its format does: {known}")
    return found


def _of_result(
    result: Result, client: str | int | None, preference: float | None
) -> tuple[Artifact, Facts]:
    artifact = artifact_of(result, client, preference)
    used = in_use(result, client, preference)
    return artifact, facts_of(used, artifact.description.origin["client"])


def _of_folder(
    path: Path, client: str | int | None, preference: float | None
) -> tuple[Artifact, Facts]:
    if (path / STUDY).is_file():
        runs = sorted(str(p.parent.relative_to(path)) for p in path.rglob(CONFIG))
        hint = f", e.g. {path / runs[0]}" if runs else ""
        raise RunFolderError(f"'{path}' is a study: name the folder of one of its runs{hint}")
    folder = RunFolder.open(path)
    measured = folder.result()
    config = parse(read(path / CONFIG), str(path / CONFIG))
    kept = [path / name for name in (MODEL, CLIENTS, CELLS)]
    if client is None and preference is None and all(file.is_file() for file in kept):
        model = load_model(kept[0])
        assert model.module is not None
        clients, cells = (read_frame(file) for file in kept[1:])
        artifact = Artifact(model.description, model.module)
        return artifact, Facts(config, measured, clients, cells, path)
    _check_asked(config, client, preference, path)
    if config.built_engine().engine == "flower":
        raise ConfigError(
            "the run was carried out on Flower: what clients keep is at their nodes, so that only "
            f"a model for all clients can be exported here, {MODEL} of its folder"
        )
    result = resume(path)
    artifact, facts = _of_result(result, client, preference)
    same = {name: measured[name] for name in ("dropped", "ledger", "notes", "task")}
    return artifact, replace(facts, config=config, measured={**facts.measured, **same})


def _check_asked(
    config: RunConfig, client: str | int | None, preference: float | None, path: Path
) -> None:
    """Refuse before data are loaded what the method cannot give."""
    method = config.built_method()
    if preference is not None:
        preferred(method)
    elif isinstance(method, Preferred):
        raise ConfigError(
            f"'{method.name}' has a model for every preference in [0, 1]; say which one: "
            "--preference 0.5 (larger is fairer)"
        )
    if method.personal and client is None:
        names = [str(name) for name in read_frame(path / CLIENTS).index]
        raise ConfigError(
            f"'{method.name}' has no global model: each client has its own; name one: "
            f"{client_words(names)}"
        )


def _default(folder: Path | None, origin: dict[str, Any], format: Format) -> Path:
    assert folder is not None
    ending = next(end for end, name in ENDINGS.items() if name == format)
    name = "model"
    if origin["client"] is not None:
        name += "-" + re.sub(r"[^\w.-]+", "_", origin["client"])
    if origin["preference"] is not None:
        name += f"-p{origin['preference']:g}"
    return folder / (name + ending)


def _command(folder: Path | None, origin: dict[str, Any], format: Format) -> list[str]:
    words = ["evenfed", "export", directory(folder)]
    if origin["client"] is not None:
        words += ["--client", origin["client"]]
    if origin["preference"] is not None:
        words += ["--preference", f"{origin['preference']:g}"]
    return [*words, "--format", format]
