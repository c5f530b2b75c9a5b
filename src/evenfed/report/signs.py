"""SER's panel: signs of gradients, curvature of the loss, beside clients that train alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evenfed.report.charts import Dot, DotRow, Dots
from evenfed.report.sections import Grid, Section
from evenfed.report.words import count, number
from evenfed.runs.record import Record
from evenfed.runs.table import LOCAL

GEOMETRY = {
    "sign_entropy": "sign entropy, bits",
    "flip_rate": "flip rate",
    "hessian_trace": "Hessian trace",
    "top_eigenvalue": "top eigenvalue",
}
"""Columns of a table of loss geometry."""
_DRAWN = {
    "sign_entropy": ("Sign entropy along ten steps", "sign entropy, bits"),
    "hessian_trace": ("Curvature: trace of the Hessian", "trace"),
    "top_eigenvalue": ("Curvature: largest eigenvalue of the Hessian", "eigenvalue"),
}


def signs(record: Record) -> Section | None:
    """How often signs of gradients change, and how curved the loss is, where SER was used."""
    options = record.config.method.completed().options
    local = options.get("local") or {}
    if record.config.method.name != "ser" and local.get("regularizer") != "ser":
        return None
    if record.measured is None:
        return None
    title = "Did gradients keep their signs?"
    means = record.measured.get("geometry")
    if not means:
        return Section("signs", title, [_not_measured(record)])
    plain = (record.measured.get("reference") or {}).get("geometry")
    said = [
        f"At the clients' models the signs of the gradient have an entropy of "
        f"{number(means['sign_entropy'])} bits along ten steps (0: no sign changes; 1: signs are "
        f"as good as random). The trace of the Hessian is {number(means['hessian_trace'], 1)}, its "
        f"largest eigenvalue {number(means['top_eigenvalue'], 2)}."
    ]
    if plain:
        said.append(
            "Local stands beside it for comparison: it has no regulariser, but differs in more, as "
            "its models never met."
        )
    else:
        said.append("Whether that is low can be told only beside a run without the regulariser.")
    rows = [geometry_row(record.method, means)]
    if plain:
        rows.append(geometry_row(LOCAL, plain))
    marks = [["reference" if i else "", *[""] * len(GEOMETRY)] for i in range(len(rows))]
    caption = "Loss geometry, mean over clients"
    grid = Grid("geometry", caption, ["method", *GEOMETRY.values()], rows, marks)
    by_client = record.measured.get("geometry_by_client") or {}
    figures = [
        Dots(
            name, f"{heading}, one dot a client",
            f"Mean {number(means[name])} over {count(len(by_client), 'client')}.", axis,
            [DotRow(record.method, [
                Dot(values[name], client)
                for client, values in by_client.items() if values[name] is not None
            ])],
        )
        for name, (heading, axis) in _DRAWN.items()
        if any(values[name] is not None for values in by_client.values())
    ]  # fmt: skip
    notes = [_extent(record)]
    return Section("signs", title, said, figures, [grid], notes=notes)


def geometry_row(label: str, means: Mapping[str, Any]) -> list[str]:
    """A row of a table of loss geometry; the trace with the standard error of its estimate."""
    cells = {name: number(means[name]) for name in GEOMETRY}
    error = means.get("hessian_trace_error")
    if error is not None and math.isfinite(error):
        cells["hessian_trace"] += f" ± {number(error)}"
    return [label, *cells.values()]


def _extent(record: Record) -> str:
    """On what it was measured."""
    said = (
        "Measured after training on each client's training data, by exchanges that the method "
        "itself does not make. Behind ± stands the standard error of the trace, whose random "
        "vectors are the same for all clients."
    )
    extent = (record.measured or {}).get("geometry_extent")
    if not extent:
        return said
    said += (
        f" At {count(extent['clients'], 'client')}, on at most {extent['rows']} examples of "
        f"each, with {count(extent['probes'], 'random vector')}"
    )
    if record.config.geometry != "panel":
        return f"{said}."
    return (
        f"{said}; `--set geometry=true` takes all clients and more of both, "
        "`--set geometry=false` leaves it out."
    )


def _not_measured(record: Record) -> str:
    """Why there is no geometry."""
    if record.config.engine.get("engine") == "flower":
        return (
            "Sign entropy and curvature were not measured: the nodes of engine `flower` answer "
            "only what a method asks."
        )
    return "Sign entropy and curvature were not measured: `--set geometry=true` does so."
