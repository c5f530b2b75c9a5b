"""What was trained on what."""

from __future__ import annotations

from evenfed.data.registry import source_title
from evenfed.report.answers.chapter import Chapter
from evenfed.report.sections import Section
from evenfed.report.words import count, listed

_NAMED = 6
"""Classes that are named; of more the number is said."""


def trained(chapter: Chapter) -> Section:
    """The task in plain words."""
    run, task = chapter.first, chapter.first["task"]
    classes = {2: "two classes"}.get(task["classes"], f"{task['classes']} classes")
    if 0 < len(chapter.classes) <= _NAMED:
        classes = listed(chapter.classes, "or")
    kind = "a number" if chapter.regression else classes
    own = [m for m in chapter.methods if m not in chapter.references]
    who = task["title"] if chapter.single else count(len(own), "method")
    was = "was" if chapter.single or len(own) == 1 else "were"
    sentences = [
        f"{who} {was} trained on {run['dataset']}: {count(task['clients'], 'client')} keep their "
        f"data and together learn to predict {task['label']} ({kind}), in "
        f"{count(run['rounds'], 'round')}.",
    ]
    learned = task["trained_on"]
    before = "" if learned is None else f"trained on {count(learned, 'example')} and "
    sentences.append(
        f"The model has {count(task['parameters'], 'parameter')}; it was {before}measured on "
        f"{count(task['tested_on'], 'test example')} that training never saw."
    )
    if len(task["groups"]) > 1:
        sentences.append(
            f"People or examples are compared by {listed(task['sensitive'])}: "
            f"{listed(task['groups'])}."
        )
    facts = [("seeds", listed(chapter.seeds)), ("engine", run["engine"])]
    if about := source_title(run["dataset"]):
        facts.insert(0, ("data", about))
    if not chapter.single:
        facts.insert(0, ("methods", listed(chapter.label(m) for m in chapter.methods)))
    notes = list(dict.fromkeys(n for r in chapter.done if r.measured for n in r.measured["notes"]))
    return Section("trained", "What was trained on what", sentences, facts=facts, notes=notes)
