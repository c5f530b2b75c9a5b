"""How methods worked: what they proved or measured beside the common metrics."""

from __future__ import annotations

import pandas as pd

from evenfed.report.answers.chapter import Chapter
from evenfed.report.sections import Grid, Section
from evenfed.report.signs import GEOMETRY, geometry_row, signs
from evenfed.runs.table import LOCAL


def certificates(chapter: Chapter) -> Section | None:
    """What methods proved, run by run."""
    made = [(r, r.measured.get("certificate")) for r in chapter.done if r.measured]
    found = [(r, c) for r, c in made if c]
    if not found:
        return None
    rows = [
        [r.method, str(r.seed), sentence] for r, c in found for sentence in c["sentences"]
    ]  # fmt: skip
    grid = Grid("certificates", "Certificates", ["method", "seed", "what it says"], rows)
    said = ["What the method could prove, or measure, about its own result."]
    return Section("certificates", "What is proved?", said, grids=[grid])


def geometry(chapter: Chapter) -> Section | None:
    """Loss geometry of the runs that measured it, means over clients and seeds."""
    if chapter.single and signs(chapter.done[0]) is not None:
        return None  # the method's own panel shows it
    rows = []
    for method, own in chapter.by_method():
        found = [r.measured["geometry"] for r in own if r.measured and "geometry" in r.measured]
        if found:
            means = {str(k): v for k, v in pd.DataFrame(found).astype(float).mean().items()}
            if len(found) > 1:
                means.pop("hessian_trace_error")  # that of one run, not of a mean over runs
            rows.append(geometry_row(chapter.label(method), means))
    if not rows:
        return None
    if chapter.alone is not None and "geometry" in chapter.alone:
        rows.append(geometry_row(LOCAL, chapter.alone["geometry"]))
    head = ["method", *GEOMETRY.values()]
    caption = "At the model that each client uses, on its training data; mean over clients"
    said = ["A smaller curvature is a flatter minimum; no fairness follows from it alone."]
    marks = [
        [m, *[""] * len(GEOMETRY)] for m in ("reference" if r[0] == LOCAL else "" for r in rows)
    ]
    notes = ["Behind ± stands the standard error of the trace's estimate."]
    grid = Grid("geometry", caption, head, rows, marks, notes if "±" in rows[0][3] else [])
    return Section("geometry", "Loss geometry", said, grids=[grid])
