"""Which model to take, where a method has one for every preference: the front explorer.

A preference is chosen on validation data and reported on test data. So which points are dominated
is decided on validation data alone, also where test data are drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenfed.metrics.front import least, nondominated
from evenfed.report.answers.chapter import Chapter
from evenfed.report.charts import Cloud, Scatter
from evenfed.report.sections import Section
from evenfed.report.words import count, listed, number
from evenfed.runs.record import Record
from evenfed.runs.study import directory

DISPARITY = {
    "demographic_parity_to_overall": (
        "disparity: selection rate, group to overall",
        "largest distance of a group's selection rate from the overall rate"
    ),
}  # fmt: skip


def fronts(chapter: Chapter) -> Section | None:
    """None where no method has preferences."""
    found = [r for r in chapter.done if r.front is not None]
    if not found:
        return None
    kept, left_out = _fitting(found, chapter.room)
    explorer = {
        "preferences": found[0].front["preferences"] if found[0].front else [],
        "groups": found[0].front["groups"] if found[0].front else [],
        "axis": DISPARITY["demographic_parity_to_overall"][0],
        "measure": DISPARITY["demographic_parity_to_overall"][1],
        "entries": kept,
    }
    notes = [
        "Choose on validation data, report on test data. Whether a point is dominated (another "
        "model has less error and less disparity) is decided on validation data alone, in both "
        "drawings; intervals (95 %, Wilson's) are of one rate.",
        f"Disparity: {DISPARITY['demographic_parity_to_overall'][1]}. "
        f"{len(explorer['preferences'])} preferences; 0 asks for accuracy, 1 for fairness.",
    ]
    if kept and kept[0]["folder"] != "DIR":
        holder = kept[0]["folder"].split("/")[0]
        notes.append(f"The command is to be given in the folder that holds {holder}.")
    if left_out:
        notes.append(f"Left out to keep the page small: {listed(left_out)}; see front.json there.")
    figure = _scatter(chapter, found)
    return Section(
        "fronts", "Which model to take?", _said(chapter, found),
        [] if figure is None else [figure], notes=notes, explorer=explorer if kept else None,
    )  # fmt: skip


def _entry(record: Record, directory: str) -> dict[str, Any]:
    """A record's fronts; `best` says which points no other beats on validation data."""
    assert record.front is not None
    front = record.front
    parts = {} if front["global"] is None else {"": front["global"]}
    parts |= front["clients"]
    return {
        "method": record.method, "seed": record.seed, "folder": directory,
        "start": float(record.config.method.options.get("preference", 0.5)),
        "parts": {name: {**part, "best": best(part["val"])} for name, part in parts.items()},
    }  # fmt: skip


def points(part: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(error, disparity) of every preference `(N, 2)`."""
    errors = np.asarray(part["errors"], dtype=np.float64).sum(1) / sum(part["examples"])
    return np.stack([errors, np.asarray(part["disparity"], dtype=np.float64)], 1)


def best(part: Mapping[str, Any] | None) -> list[int]:
    """1 for every point that no other beats; all of them where there are no data to decide on."""
    if part is None:
        return []
    found = points(part)
    defined = ~np.isnan(found).any(1)
    result = np.zeros(len(found), dtype=int)
    result[defined] = nondominated(found[defined])
    return [int(v) for v in result]


def _fitting(records: list[Record], room: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Entries while they fit, the first seed of every method first; then clients, as far as."""
    firsts = {r.method: r for r in reversed(records)}
    order = sorted(records, key=lambda r: r is not firsts[r.method])
    kept: list[dict[str, Any]] = []
    left_out: list[str] = []
    for record in order:
        entry = _entry(record, directory(record.folder))
        fits: dict[str, Any] = {}
        for name, part in entry["parts"].items():
            size = len(json.dumps(part, separators=(",", ":")))
            if size > room:
                break
            fits[name] = part
            room -= size
        which = f"{record.method} with seed {record.seed}"
        if fits:
            kept.append({**entry, "parts": fits})
        if missing := len(entry["parts"]) - len(fits):
            left_out.append(f"{count(missing, 'client')} of {which}" if fits else which)
    return kept, left_out


def _scatter(chapter: Chapter, records: list[Record]) -> Scatter | None:
    """Global fronts of the first seed of every method, on test data."""
    clouds = []
    for method in dict.fromkeys(r.method for r in records):
        record = next(r for r in records if r.method == method)
        front = record.front and record.front["global"]
        if not front or front["test"] is None:
            continue
        found, good = (
            points(front["test"]),
            best(front["val"]) or [1] * len(front["test"]["errors"]),
        )
        defined = ~np.isnan(found).any(1)
        assert record.front is not None
        names = [f"{method}, preference {p:g}" for p in record.front["preferences"]]
        clouds.append(
            Cloud(method, found[defined, 1].tolist(), found[defined, 0].tolist(),
                  [n for n, d in zip(names, defined, strict=True) if d],
                  [bool(g) for g, d in zip(good, defined, strict=True) if d])
        )  # fmt: skip
    if not clouds:
        return None
    text = " ".join(
        f"{c.label}: error {min(c.y):.3f} to {max(c.y):.3f}, disparity {min(c.x):.3f} to "
        f"{max(c.x):.3f}." for c in clouds
    )  # fmt: skip
    constant = chapter.first["metrics"].get("constant_accuracy")
    marks = [] if constant is None else [("constant predictor", 0.0, 1.0 - constant)]
    title = f"Error against disparity on test data, seed {records[0].seed}"
    axis = DISPARITY["demographic_parity_to_overall"][0]
    return Scatter("front", title, text, axis, "error", clouds, marks, joined=False)


def unseen(names: Sequence[str], part: Mapping[str, Any]) -> list[str]:
    """Groups without an example in a part."""
    return [name for name, n in zip(names, part["examples"], strict=True) if not n]


def _said(chapter: Chapter, records: list[Record]) -> list[str]:
    said = []
    for method in dict.fromkeys(r.method for r in records):
        record = next(r for r in records if r.method == method)
        assert record.front is not None
        part = record.front["global"]
        if part is None or part["val"] is None or part["test"] is None:
            continue
        found = points(part["val"])
        tested, names = points(part["test"]), record.front["preferences"]
        accurate, fair = least(found, 0), least(found, 1)
        if accurate is None or fair is None:
            continue
        seed = "" if chapter.single else f" (seed {record.seed})"
        start = f"{method}{seed}: on validation data the global model at preference"
        first = f"error {number(tested[accurate, 0])} and disparity {number(tested[accurate, 1])}"
        if accurate == fair:
            said.append(
                f"{start} {names[fair]:g} is both the most accurate and the fairest; on test data "
                f"it has {first}."
            )
        else:
            said.append(
                f"{start} {names[accurate]:g} is the most accurate, that at {names[fair]:g} the "
                f"fairest; on test data they have {first}, and {number(tested[fair, 0])} and "
                f"{number(tested[fair, 1])}."
            )
        said += [
            f"{method}{seed}: group {name} has no validation examples: this choice does not see it."
            for name in unseen(record.front["groups"], part["val"])
        ]
    return said or ["Each client has its own models; choose a client below."]
