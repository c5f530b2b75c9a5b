"""The page of an audit: the limits, and a report's sections about clients and groups."""

from __future__ import annotations

import json
from pathlib import Path

from evenfed.core.errors import counted
from evenfed.report.answers.chapter import Chapter
from evenfed.report.answers.clients import clients
from evenfed.report.answers.groups import groups
from evenfed.report.page import render
from evenfed.report.sections import Grid, Page, Part, Section
from evenfed.runs.audit import Audit
from evenfed.runs.config import DataConfig, RunConfig, versions
from evenfed.runs.folder import made, write_atomically
from evenfed.runs.record import Record

PAGE, TABLE = "audit.html", "audit.json"


def write_audit(result: Audit, folder: Path, command: str) -> Path:
    """Write `audit.html` and `audit.json` into a folder, and return the page's path."""
    made(folder)
    write_atomically(folder / TABLE, json.dumps(result.measured(), indent=1).encode())
    write_atomically(folder / PAGE, render(page_of(result, command)).encode())
    return folder / PAGE


def page_of(result: Audit, command: str) -> Page:
    """The page."""
    measured = result.measured()
    name = result.model.path.name
    config = RunConfig(data=DataConfig(name=measured["dataset"]))
    evaluation = result.evaluation
    record = Record(
        name, config, [], measured, evaluation.clients(), evaluation.cells()
    )  # fmt: skip
    chapter = Chapter(measured["dataset"], [record], trained=False)
    found = [_limits(result), clients(chapter), groups(chapter)]
    return Page(
        title=f"Audit of {name}",
        lead=f"An existing model, scored on {counted(measured['task']['tested_on'], 'row')} of "
        f"{counted(measured['task']['clients'], 'client')}.",
        parts=[Part("", [section for section in found if section is not None])],
        failures=[],
        settings=_settings(command),
    )


def _limits(result: Audit) -> Section:
    count, broken = len(result.limits), len(result.broken)
    verdict = f"{broken} of {count} limits {'is' if broken == 1 else 'are'} broken."
    said = [verdict if count else "No limit was set."]
    said.append(f"The disparity asked about is the {result.disparity.replace('_', ' ')}.")
    said += [f"{limit.text}." for limit in result.limits]
    rows = [
        [metric.replace("_", " "), _number(found.estimate),
         "" if found.low is None else f"{found.low:.3f} to {found.high:.3f}"]
        for metric, found in result.intervals.items()
    ]  # fmt: skip
    grid = Grid("audit", "All clients together", ["metric", "value", "95 % interval"], rows)
    notes = [
        "Intervals are over the rows of these clients: Wilson's of the accuracy, by simulation of "
        "the worst client, by the delta method of R² and the mean squared error, bootstrapped of "
        "all others. That of a largest difference leans to the bad side.",
        *result.notes,
    ]
    return Section("audit", "Does it keep the limits?", said, [], [grid], notes)


def _settings(command: str) -> Section:
    pre = [("To repeat it", command)] if command else []
    facts = list(versions().items())
    return Section("settings", "How it was measured", [], facts=facts, pre=pre)


def _number(value: float) -> str:
    return "undefined" if value != value else f"{value:.3f}"
