"""SER's panel: signs of gradients, curvature of the loss, beside runs without the regulariser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evenfed.report.charts import Dot, DotRow, Dots
from evenfed.report.sections import Grid, Section
from evenfed.report.words import count, listed, number
from evenfed.runs.record import Record
from evenfed.runs.table import local_label
from evenfed.runs.twins import has_ser, without_ser

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


def signs(record: Record, beside: Sequence[Record] = ()) -> Section | None:
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
    said = [
        f"At the clients' models the signs of the gradient have an entropy of "
        f"{number(means['sign_entropy'])} bits along ten steps (0: no sign changes; 1: signs are "
        f"as good as random). The trace of the Hessian is {number(means['hessian_trace'], 1)}, its "
        f"largest eigenvalue {number(means['top_eigenvalue'], 2)}."
    ]
    rows = [geometry_row(record.method, means)]
    alone = (record.measured.get("reference") or {}).get("geometry")
    twin, others = _without(record, beside)
    if twin is not None:
        said += _compared(record, twin)
        rows.append(geometry_row(f"{twin.method}, the same run without it", _means(twin)))
    elif alone:
        said.append(
            "Local stands beside it for comparison: it has no regulariser, but differs in more, as "
            "its models never met."
        )
        rows.append(geometry_row(local_label(record.measured["reference"]), alone))
    elif others:
        said.append(
            f"Beside it for comparison: {listed(r.method for r in others)} of this study, without "
            "the regulariser, but with other differences, too."
        )
        rows += [geometry_row(r.method, _means(r)) for r in others]
    else:
        said.append("Whether that is low can be told only beside a run without the regulariser.")
    marks = [["reference" if i else "", *[""] * len(GEOMETRY)] for i in range(len(rows))]
    caption = "Loss geometry, mean over clients"
    grid = Grid("geometry", caption, ["method", *GEOMETRY.values()], rows, marks)
    compared = [record] if twin is None else [record, twin]
    figures = [
        _figure(name, heading, axis, compared)
        for name, (heading, axis) in _DRAWN.items()
        if any(values[name] is not None for values in _by_client(record).values())
    ]
    return Section("signs", title, said, figures, [grid], notes=[_extent(record)])


def _means(record: Record) -> Mapping[str, Any]:
    return (record.measured or {}).get("geometry") or {}


def _by_client(record: Record) -> Mapping[str, Mapping[str, Any]]:
    return (record.measured or {}).get("geometry_by_client") or {}


def _without(record: Record, beside: Sequence[Record]) -> tuple[Record | None, list[Record]]:
    """The same run without the regulariser, and Local and FedAvg, of those that were measured."""
    own = record.config.method
    plain = [r for r in beside if _means(r) and not has_ser(r.config.method)]
    same = [r for r in plain if without_ser(r.config.method) == without_ser(own)]
    same.sort(key=lambda r: r.config.method.name != own.name)
    others = [r for r in plain if r.config.method.name in ("fedavg", "fedprox", "local")]
    return (same[0] if same else None), others


def _compared(record: Record, twin: Record) -> list[str]:
    """What the regulariser changes, client by client where both are known."""
    ours, theirs = _means(record)["sign_entropy"], _means(twin)["sign_entropy"]
    word = "lower" if ours < theirs else "higher"
    trace, top = (_means(twin)[name] for name in ("hessian_trace", "top_eigenvalue"))
    said = (
        f"The same run without the regulariser ({twin.method}) has an entropy of {number(theirs)} "
        f"bits, a trace of {number(trace, 1)} and a largest eigenvalue of {number(top, 2)}"
    )
    pairs = [
        (values["sign_entropy"], _by_client(twin)[name]["sign_entropy"])
        for name, values in _by_client(record).items()
        if name in _by_client(twin)
    ]
    pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
    if ours != theirs and pairs:
        better = sum(a < b if word == "lower" else a > b for a, b in pairs)
        said += (
            f": with it the entropy is {word} by {number(abs(ours - theirs))}, at {better} of "
            f"{count(len(pairs), 'client')}"
        )
    sentences = [f"{said}."]
    options = record.config.method.completed().options
    if record.config.method.name == "ser" != twin.config.method.name and (
        options.get("deploy") == "local"
    ):
        sentences.append(
            "There all clients predict with the global model, here each with its own after a local "
            "round, so that not all of the difference is the regulariser's."
        )
    return sentences


def _figure(name: str, heading: str, axis: str, records: Sequence[Record]) -> Dots:
    rows = []
    for i, record in enumerate(records):
        found = {c: v[name] for c, v in _by_client(record).items() if v[name] is not None}
        if found:
            dots = [Dot(value, client) for client, value in found.items()]
            rows.append(DotRow(record.method, dots, color=6 if i else 0))
    text = " ".join(
        f"{r.method}: mean {number(_means(r)[name])} over {count(len(_by_client(r)), 'client')}."
        for r in records
    )
    return Dots(name, f"{heading}, one dot a client", text, axis, rows)


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
