"""Figures and tables of a report as files of their own, for papers."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from evenfed.core.errors import ConfigError
from evenfed.report.charts import standalone
from evenfed.report.page import opened, page_of, write_text
from evenfed.report.sections import Grid, Page, Section
from evenfed.runs.folder import REPORT, write_atomically
from evenfed.runs.rendering import tex

FIGURES, TABLES = "figures", "tables"
FIGURE_KINDS, TABLE_KINDS = ("svg", "pdf", "png"), ("latex", "markdown", "csv")
_DPI = 300


def write_files(folder: Path, figures: Sequence[str], tables: Sequence[str]) -> list[Path]:
    """Write the report of a folder, then its figures and tables in the formats asked for."""
    page = page_of(opened(folder))
    for kind in figures:
        _check(kind, FIGURE_KINDS, "figures")
    for kind in tables:
        _check(kind, TABLE_KINDS, "tables")
    written = [write_text(page, folder / REPORT)]
    for kind in figures:
        written += write_figures(page, folder, kind)
    for kind in tables:
        written += write_tables(page, folder, kind)
    return written


def _check(kind: str, kinds: Sequence[str], option: str) -> None:
    if kind not in kinds:
        raise ConfigError(f"--{option} is '{kind}'; it may be {', '.join(kinds)}")


def write_figures(page: Page, folder: Path, kind: str) -> list[Path]:
    """Write every figure to `figures/NAME.KIND` in a folder.

    Parameters
    ----------
    kind : {"svg", "pdf", "png"}
        PDF and PNG need the extra `figures`.
    """
    _check(kind, FIGURE_KINDS, "figures")
    makers: dict[str, Callable[[str], bytes]] = {"svg": str.encode, "pdf": pdf, "png": png}
    found = list(named((part, s.figures) for part, s in _sections(page)))
    drawn = [(f"{name}.{kind}", makers[kind](standalone(figure))) for name, figure in found]
    return _written(folder / FIGURES, drawn)


def write_tables(page: Page, folder: Path, kind: str) -> list[Path]:
    """Write every table to `tables/NAME` in a folder; `kind` is latex, markdown or csv."""
    makers = {"latex": ("tex", latex), "markdown": ("md", markdown), "csv": ("csv", as_csv)}
    _check(kind, TABLE_KINDS, "tables")
    ending, make = makers[kind]
    found = named((part, s.grids) for part, s in _sections(page))
    return _written(
        folder / TABLES, [(f"{name}.{ending}", make(grid).encode()) for name, grid in found]
    )


def _sections(page: Page) -> Iterator[tuple[str, Section]]:
    for part in page.parts:
        for section in part.sections:
            yield part.name, section


def named(parts: Any) -> Iterator[tuple[str, Any]]:
    """Figures or tables with names that differ: DATASET-KEY, with a number where there are two.

    Examples
    --------
    >>> grid = Grid("cost", "", [], [])
    >>> [name for name, _ in named([("loans", [grid]), ("", [grid, grid])])]
    ['loans-cost', 'cost', 'cost-2']
    """
    seen: dict[str, int] = {}
    for part, things in parts:
        for thing in things:
            words = f"{part}-{thing.key}" if part else thing.key
            name = re.sub(r"[^\w.=]+", "-", words).strip("-")
            seen[name] = seen.get(name, 0) + 1
            yield (f"{name}-{seen[name]}" if seen[name] > 1 else name), thing


def _written(folder: Path, files: list[tuple[str, bytes]]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files:
        write_atomically(folder / name, content)
    return [folder / name for name, _ in files]


def _extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"PDF and PNG figures need '{name.partition('.')[0]}': pip install 'evenfed[figures]'; "
            "--figures svg needs nothing"
        ) from error


def pdf(svg: str) -> bytes:
    """A PDF of a drawing, with text as text."""
    drawing = _extra("svglib.svglib").svg2rlg(BytesIO(svg.encode()))
    content = BytesIO()
    _extra("reportlab.graphics.renderPDF").drawToFile(drawing, content)
    return content.getvalue()


def png(svg: str) -> bytes:
    """A PNG of a drawing, with 300 dots an inch."""
    document = _extra("pypdfium2").PdfDocument(pdf(svg))
    content = BytesIO()
    document[0].render(scale=_DPI / 72).to_pil().save(content, "PNG")
    document.close()
    return content.getvalue()


def as_csv(grid: Grid) -> str:
    """The table as CSV, without marks."""
    text = StringIO()
    rows = [[cell.replace("\n", " ") for cell in row] for row in (grid.head, *grid.rows)]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown(grid: Grid) -> str:
    """The table as Markdown: the best is bold, the second best underlined as `<u>`."""

    def clean(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    def show(text: str, mark: str) -> str:
        return {"best": f"**{clean(text)}**", "second": f"<u>{clean(text)}</u>"}.get(
            mark.partition(" ")[0], clean(text)
        )

    lines = [list(map(clean, grid.head)), ["---"] * len(grid.head)]
    for i, row in enumerate(grid.rows):
        lines.append([show(text, grid.mark(i, j) if j else "") for j, text in enumerate(row)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n- {clean(note)}" for note in grid.notes)
    return f"{clean(grid.caption)}\n\n{table}\n{notes}\n"


def latex(grid: Grid) -> str:
    """The table as a LaTeX tabular (booktabs): the best is bold, the second best underlined."""

    def show(text: str, mark: str) -> str:
        words = {"best": r"\textbf{%s}", "second": r"\underline{%s}"}.get(
            mark.partition(" ")[0], "%s"
        )
        return words % tex(text)

    body = []
    for i, row in enumerate(grid.rows):
        cells = [show(text, grid.mark(i, j) if j else "") for j, text in enumerate(row)]
        if grid.mark(i, 0) == "reference" and (i == 0 or grid.mark(i - 1, 0) != "reference"):
            body.append(r"\midrule")
        body.append(" & ".join(cells) + r" \\")
    head = " & ".join(tex(text) for text in grid.head)
    lines = [
        f"% {grid.caption}", rf"\begin{{tabular}}{{{'l' * len(grid.head)}}}", r"\toprule",
        rf"{head} \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
        *(f"% {note}" for note in grid.notes),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
