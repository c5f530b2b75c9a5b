"""The commands about a finished model: export it, audit it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")],
    client: Annotated[
        str | None, typer.Option(help="A client, where each has a model or a scaling of its own.")
    ] = None,
    preference: Annotated[
        float | None,
        typer.Option(help="In [0, 1]; larger is fairer. For hetpfl and praffl."),
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="safetensors (default), onnx or torch (.pt2).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File; by default in the run's folder.")] = None,
    as_json: Json = False,
) -> None:
    """Write the model of a run with its preprocessing, and a model card beside it.

    Example: evenfed export runs/loans-fedavg-0 --format onnx
    """
    from evenfed.runs.artifact import Format
    from evenfed.runs.export import export_model

    made = export_model(
        folder, out, client=client, preference=preference, format=cast(Format | None, format)
    )
    if as_json:
        _json({"format": made.format, "model": str(made.path), "card": str(made.card)})
    else:
        typer.echo(f"model {made.path}\ncard  {made.card}")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(export)


def _json(value: Any) -> None:
    typer.echo(json.dumps(value, allow_nan=False, indent=1))
