"""How methods worked: what they proved or measured beside the common metrics."""

from __future__ import annotations

import pandas as pd

from evenfed.report.answers.chapter import Chapter
from evenfed.report.sections import Grid, Section
from evenfed.report.words import number

_GEOMETRY = {
    "sign_entropy": "sign entropy, bits",
    "flip_rate": "flip rate",
    "hessian_trace": "Hessian trace",
    "top_eigenvalue": "top eigenvalue",
}


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
    rows = []
    for method, own in chapter.by_method():
        found = [r.measured["geometry"] for r in own if r.measured and "geometry" in r.measured]
        if found:
            means = pd.DataFrame(found).astype(float).mean()
            rows.append([chapter.label(method), *(number(means[name]) for name in _GEOMETRY)])
    if not rows:
        return None
    head = ["method", *_GEOMETRY.values()]
    caption = "At the model that each client uses, on its training data; mean over clients"
    said = ["A smaller curvature is a flatter minimum; no fairness follows from it alone."]
    grid = Grid("geometry", caption, head, rows)
    return Section("geometry", "Loss geometry", said, grids=[grid])
