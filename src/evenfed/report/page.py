"""The report of a run or a study: one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from evenfed.core.errors import RunFolderError
from evenfed.data.silo_files import files_of
from evenfed.report.answers.chapter import Chapter
from evenfed.report.answers.clients import clients
from evenfed.report.answers.converged import converged
from evenfed.report.answers.cost import cost, ledger
from evenfed.report.answers.fronts import fronts
from evenfed.report.answers.good import good
from evenfed.report.answers.groups import groups
from evenfed.report.answers.trained import trained
from evenfed.report.answers.worked import certificates, geometry
from evenfed.report.charts import NARROW, WIDE, Figure, draw
from evenfed.report.panels import panels_of
from evenfed.report.sections import Page, Part, Section
from evenfed.report.thinning import LIMIT, fitted
from evenfed.report.words import listed
from evenfed.runs.comparison import Study, StudyRun
from evenfed.runs.folder import CONFIG, REPORT, write_atomically
from evenfed.runs.record import Record
from evenfed.runs.study import STUDY, directory, open_study

QUESTIONS: tuple[Callable[[Chapter], Section | None], ...] = (
    trained, good, clients, groups, fronts, cost, ledger, converged, certificates, geometry,
)  # fmt: skip
"""What a report answers, in this order."""


def write_page(folder: Path) -> Path:
    """Write the report of the run or study in a folder, and return its path.

    Examples
    --------
    >>> import tempfile
    >>> from evenfed.runs.config import parse
    >>> from evenfed.runs.train import run_config
    >>> out = Path(tempfile.mkdtemp()) / "run"
    >>> _ = run_config(parse({"data": "synthetic", "rounds": 1}), out)
    >>> write_page(out).name
    'report.html'
    """
    return write_report(opened(folder), folder / REPORT)


def opened(folder: Path) -> Record | Study:
    """The run or the study in a folder."""
    if (folder / STUDY).is_file():
        return open_study(folder)
    record = Record.read(folder)
    if record.measured is None:
        raise RunFolderError(
            f"'{folder}' holds a run that is not finished; `evenfed resume {folder}`"
        )
    return record


def write_report(what: Record | Study, path: Path) -> Path:
    """Write a report as one HTML file."""
    return write_text(page_of(what), path)


def write_text(page: Page, path: Path) -> Path:
    """Write a page that is made already."""
    write_atomically(path, render(page).encode())
    return path


def page_of(what: Record | Study) -> Page:
    """The page of a run or a study."""
    return study_page(what) if isinstance(what, Study) else run_page(what)


def run_page(record: Record) -> Page:
    """The page of one run."""
    assert record.measured is not None
    task = record.measured["task"]
    where = _command("run", record.folder, CONFIG)
    return Page(
        title=f"{task['title']} on {record.measured['dataset']}",
        lead=f"One run with seed {record.seed}, measured on test data.",
        parts=[Part("", sections(Chapter(record.measured["dataset"], [record])))],
        failures=[],
        settings=_settings(record.config, where, [record.seed], _source(record.folder, CONFIG)),
    )


def study_page(study: Study) -> Page:
    """The page of a study."""
    parts: list[Part] = []
    tables = study.sections()
    for table in tables:
        records = [_record(run) for run in study.runs if run.dataset == table.dataset]
        done = [record for record in records if record is not None]
        if done:
            chapter = Chapter(
                table.dataset,
                done,
                table,
                study.config.references,
                study.legend("Bold"),
                room=2_500_000 // len(tables),
            )
            name = table.dataset if len(tables) > 1 else ""
            parts.append(Part(name, sections(chapter, f"-{len(parts) + 1}" if name else "")))
    folder = study.folder
    command = _command("study", folder, STUDY)
    own = [m for m in study.methods if m not in study.config.references]
    named = own if len(own) < 6 else [f"{len(own)} methods"]
    return Page(
        title=f"{', '.join(named)} on {', '.join(study.datasets)}",
        lead=f"A study of {len(study.runs)} runs, measured on test data.",
        parts=parts,
        failures=[f"{r.method} on {r.dataset}, seed {r.seed}: {r.error}" for r in study.failed],
        settings=_settings(study.config, command, study.config.seeds, _source(folder, STUDY)),
    )


def sections(chapter: Chapter, suffix: str = "") -> list[Section]:
    """All that can be answered; of a run without a result, what its history tells.

    Parameters
    ----------
    suffix : str
        Makes the keys unique on a page with several datasets.
    """
    asked = QUESTIONS if chapter.done else (converged,)
    answered = [answer(chapter) for answer in asked]
    found = [section for section in answered if section is not None]
    place = next((i + 1 for i, s in enumerate(found) if s.key == "converged"), len(found))
    found[place:place] = _panels(chapter)
    keys: dict[str, int] = {}
    result = []
    for section in found:
        keys[section.key] = keys.get(section.key, 0) + 1
        again = f"-{keys[section.key]}" if keys[section.key] > 1 else ""
        result.append(replace(section, key=f"{section.key}{again}{suffix}"))
    return result


def _panels(chapter: Chapter) -> list[Section]:
    """Sections that only some methods have: of the first run of every method."""
    result: list[Section] = []
    for method in dict.fromkeys(r.method for r in chapter.records):
        first = next(r for r in chapter.records if r.method == method)
        beside = [r for r in chapter.records if r.seed == first.seed and r is not first]
        for section in panels_of(first, beside):
            if not chapter.single:
                section = replace(section, title=f"{method}: {section.title}")
            if len(chapter.seeds) > 1:
                notes = [*section.notes, f"The run with seed {first.seed}."]
                section = replace(section, notes=notes)
            result.append(section)
    return result


def _record(run: StudyRun) -> Record | None:
    if run.measured is None:
        return None
    if run.record is not None:
        return replace(run.record, method=run.method)
    assert run.folder is not None
    return Record.read(run.folder, run.method)


def _source(folder: Path | None, name: str) -> Path | None:
    return None if folder is None else folder / name


def _command(verb: str, folder: Path | None, config: str) -> str:
    if folder is None:
        return ""
    return shlex.join(["evenfed", verb, f"{directory(folder)}/{config}", "--out", "NEW"])


def _settings(config: Any, command: str, seeds: Sequence[int], source: Path | None) -> Section:
    """`source` is the file that holds the config, where there is one."""
    written = config if config.versions else config.completed()
    facts = [("seeds", ", ".join(map(str, seeds))), *written.versions.items()]
    text = written.toml() if source is None else source.read_text(encoding="utf-8")
    if source is None:
        said = ["It was started from Python without a folder, so no command rebuilds it."]
        pre = [("All settings", text)]
        return Section("settings", "All settings, seeds and versions", said, facts=facts, pre=pre)
    place = directory(source.parent)
    said = [
        "Everything that decides the numbers is here; the first command rebuilds them, given in "
        f"the folder that holds {place.split('/')[0]}.",
        *_silo_files(tomllib.loads(text)),
    ]
    pre = [
        ("To rebuild it", command), ("This page again", shlex.join(["evenfed", "report", place])),
        ("All settings", text),
    ]  # fmt: skip
    return Section("settings", "All settings, seeds and versions", said, facts=facts, pre=pre)


def _silo_files(table: Mapping[str, Any]) -> list[str]:
    """Where the command finds silo files that a config names by relative paths."""
    entries = [table["data"]] if "data" in table else table.get("datasets", [])
    options = [entry for entry in entries if entry.get("files")]
    names = [f for one in options for f in files_of(one) if not Path(f).is_absolute()]
    if not names:
        return []
    shown = listed(f"`{name}`" for name in names)
    where = (
        f"Silo files are found from the folder of its config ({shown})"
        if all("base" in one for one in options)
        else f"Silo files are looked for from where it is given ({shown})"
    )
    return [
        f"{where}; where they have moved, add `--silos FILES`: columns, types and levels stay "
        "those of the config."
    ]


def render(page: Page, limit: int = LIMIT) -> str:
    """The page as HTML, with its styles and scripts inside; see `thinning` for the limit."""
    environment = Environment(
        loader=PackageLoader("evenfed.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["figure"] = _figure
    environment.filters["data"] = _data
    environment.filters["coded"] = _coded
    here = Path(__file__).parent
    style, script = (
        Markup((here / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js")
    )
    template = environment.get_template("template.html")
    return fitted(page, lambda p: template.render(page=p, style=style, script=script), limit)


def _figure(figure: Figure) -> Markup:
    """The figure twice: for a screen and for a phone, of which a browser shows one."""
    return Markup(draw(figure, WIDE, kind="wide") + draw(figure, NARROW, kind="narrow"))


def _coded(text: str) -> Markup:
    """A text in which what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _data(value: Any) -> Markup:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))
