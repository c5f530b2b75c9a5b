"""The commands about a finished model: export it, audit it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from evenfed.core.errors import ConfigError

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


def audit(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A .safetensors, .onnx, .pt2 or .skops file.")
    ],
    silos: Annotated[
        list[str] | None,
        typer.Option(help="CSV or Parquet files, one a client; a pattern in quotes. Repeatable."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    sensitive: Annotated[
        str | None, typer.Option(help="Columns whose levels are the groups: sex,race.")
    ] = None,
    client_column: Annotated[
        str | None, typer.Option(help="Column that names the client, where a file holds several.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Instead of files: a dataset.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Clients of the dataset.")] = None,
    partition: Annotated[str | None, typer.Option(help="How its examples are dealt.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Its other options.")
    ] = None,
    split: Annotated[str, typer.Option(help="Its rows: test, val, train or all.")] = "test",
    disparity: Annotated[
        str | None,
        typer.Option(
            help="demographic_parity (default), equal_opportunity, equalized_odds, accuracy; for "
            "numbers mean_prediction (default), mean_residual, mean_squared_error."
        ),
    ] = None,
    max_disparity: Annotated[float | None, typer.Option(help="Limit on the disparity.")] = None,
    max_group_loss: Annotated[
        float | None, typer.Option(help="Limit on the largest mean loss of a group.")
    ] = None,
    min_worst_client: Annotated[
        float | None, typer.Option(help="Limit on the lowest accuracy of a client.")
    ] = None,
    architecture: Annotated[
        str, typer.Option(help="Built-in model of foreign weights: mlp:hidden=64.")
    ] = "",
    features: Annotated[
        str, typer.Option(help="Columns in the order of a foreign model: age,pay.")
    ] = "",
    classes: Annotated[
        str, typer.Option(help="Values of the label in the order of its outputs: no,yes.")
    ] = "",
    kind: Annotated[str | None, typer.Option(help="binary, multiclass or regression.")] = None,
    favourable: Annotated[
        str | None, typer.Option(help="The favourable one of two classes; default: the second.")
    ] = None,
    trust: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="A type in a .skops file. Repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the dataset and of intervals.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the page, audit.html.")] = None,
    as_json: Json = False,
) -> None:
    """Score an existing model by client and group; exit code 1 where a limit is broken.

    Example: evenfed audit model.onnx --silos 'site_*.csv' --label paid --sensitive sex
    """
    from evenfed.runs.audit_text import text
    from evenfed.runs.auditing import audit_model

    found = audit_model(
        model, silos or None, label=label, sensitive=sensitive or (), client_column=client_column,
        dataset=dataset, options=_options(clients, partition, settings), disparity=disparity,
        split=cast(Any, split), max_disparity=max_disparity, max_group_loss=max_group_loss,
        min_worst_client=min_worst_client, architecture=architecture, features=features,
        classes=classes, kind=cast(Any, kind), favourable=favourable, trust=tuple(trust or ()),
        seed=seed,
    )  # fmt: skip
    page = None
    if out is not None:
        from evenfed.report.audit import write_audit

        page = write_audit(found, out, shlex.join(["evenfed", *sys.argv[1:]]))
    if as_json:
        _json(found.measured())
    else:
        typer.echo(text(found))
        if page is not None:
            typer.echo(f"page {page}")
    if found.broken:
        raise typer.Exit(1)


def _options(
    clients: int | None, partition: str | None, settings: list[str] | None
) -> dict[str, Any]:
    """Options of a dataset."""
    from evenfed.runs.config import toml_value

    given = {"clients": clients, "partition": partition}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set takes key=value, not '{setting}'")
        found[key.removeprefix("data.")] = toml_value(value)
    return found


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(export)
    app.command()(audit)


def _json(value: Any) -> None:
    typer.echo(json.dumps(value, allow_nan=False, indent=1))
