"""How it converged: curves by round, on validation data; needs the history alone."""

from __future__ import annotations

from collections.abc import Sequence

from evenfed.report.answers.chapter import Chapter
from evenfed.report.charts import Line, Lines
from evenfed.report.sections import Section
from evenfed.report.words import count, number
from evenfed.runs.record import Record

CURVES = (
    ("val_accuracy", "accuracy"),
    ("val_client_accuracy_worst_tail", "accuracy of the worst clients"),
    ("val_loss", "loss"),
    ("val_client_loss_max", "largest loss of a client"),
    ("val_demographic_parity_difference", "demographic parity difference"),
)


def curve(records: Sequence[Record], name: str, label: str, muted: bool = False) -> Line | None:
    """Mean over runs by round, with the band from the lowest to the highest; None if unmeasured."""
    by_round: dict[int, list[float]] = {}
    for record in records:
        for line in record.history:
            value = line.get(name)
            if value is not None and value == value:
                by_round.setdefault(int(line["round"]) + 1, []).append(float(value))
    if not by_round:
        return None
    x = sorted(by_round)
    means = [sum(by_round[t]) / len(by_round[t]) for t in x]
    if max(map(len, by_round.values())) < 2:
        return Line(label, x, means, muted=muted)
    low, high = [min(by_round[t]) for t in x], [max(by_round[t]) for t in x]
    return Line(label, x, means, low, high, muted)


def converged(chapter: Chapter) -> Section | None:
    """Curves of the metrics that the history holds; None while there are none yet."""
    methods = list(dict.fromkeys(r.method for r in chapter.records))
    figures = []
    for name, words in CURVES:
        found = [
            curve([r for r in chapter.records if r.method == m], name, m, m in chapter.references)
            for m in sorted(methods, key=lambda m: m in chapter.references)
        ]
        lines = [line for line in found if line is not None]
        if any(len(line.x) > 1 for line in lines):
            ends = " ".join(f"{line.label}: {_ends(line)}." for line in lines)
            heading = f"{words[0].upper()}{words[1:]} by round"
            figures.append(Lines(name, heading, ends, "round", words, lines))
    title = "How did it converge?"
    if not figures:
        return Section("converged", title, _unseen(chapter)) if chapter.done else None
    first = figures[0].lines[0]
    said = [f"On validation data the {figures[0].y} of {first.label} goes {_ends(first)}."]
    notes = ["Validation data of the clients that evaluations ask; test data are never looked at "
             "before the end."]  # fmt: skip
    if len(chapter.seeds) > 1:
        notes.append("Lines are means over seeds; bands, drawn for at most three methods, reach "
                     "from the lowest seed to the highest.")  # fmt: skip
    if chapter.references:
        notes.append("Grey: references.")
    return Section("converged", title, said, figures, notes=notes)


def _unseen(chapter: Chapter) -> list[str]:
    """Why there is no curve."""
    every, rounds = chapter.done[0].config.evaluate_every, count(chapter.first["rounds"], "round")
    return [
        f"That is not known: with `evaluate_every = {every}` and {rounds} validation data were "
        "looked at less than twice. `--set evaluate_every=1` looks every round."
    ]


def _ends(line: Line) -> str:
    a, b = line.y[0], line.y[-1]
    return f"from {number(a)} in round {line.x[0]:g} to {number(b)} in round {line.x[-1]:g}"
