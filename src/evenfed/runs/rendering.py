"""The table of a study as text: Markdown, LaTeX, and for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from evenfed.runs.table import Cell, Section

_CELL = 16
"""Width of a value with its interval, mark and padding."""


def _grid(
    part: Section, show: Callable[[Cell], str], label: Callable[[str], str]
) -> list[list[str]]:
    return [[label(row.label), *(show(cell) for cell in row.cells.values())] for row in part.rows]


def markdown(part: Section) -> str:
    """A Markdown table; the best value is bold."""

    def show(cell: Cell) -> str:
        return {"best": f"**{cell.text}**", "tie": f"{cell.text} ≈", "": cell.text}[cell.mark]

    def clean(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    lines = [["method", *part.headings.values()], ["---", *["---:"] * len(part.headings)]]
    lines += _grid(part, show, clean)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n- {clean(note)}" for note in part.notes)
    return f"### {clean(part.dataset)}\n\n{table}\n" + (f"{notes}\n" if notes else "")


def latex(part: Section) -> str:
    """A LaTeX tabular (booktabs); the best value is bold."""

    def show(cell: Cell) -> str:
        text = cell.text.replace(" ± ", r" \pm ")
        number = cell.summary is not None and text != "undefined"
        inner = {"best": rf"\mathbf{{{text}}}", "tie": rf"{text}\approx", "": text}[cell.mark]
        return f"${inner}$" if number else tex(text)

    lines = _grid(part, show, tex)
    reference = [i for i, row in enumerate(part.rows) if row.reference]
    body = [f"{' & '.join(line)} \\\\" for line in lines]
    if reference:
        body.insert(reference[0], r"\midrule")
    head = " & ".join(["method", *(tex(h) for h in part.headings.values())])
    return "\n".join(
        [
            f"% {part.dataset}",
            rf"\begin{{tabular}}{{l{'r' * len(part.headings)}}}",
            r"\toprule", rf"{head} \\", r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
            *(f"% {note}" for note in part.notes),
        ]
    )  # fmt: skip


def tex(text: str) -> str:
    """Text with the characters that LaTeX reads escaped."""
    special = {c: "\\" + c for c in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
    }
    special |= {"^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
    special |= {"±": r"$\pm$", "≈": r"$\approx$", "…": r"\ldots{}"}
    return "".join(special.get(c, c) for c in text)


def console_tables(part: Section, width: int) -> list[Table]:
    """Rich tables that fit a width; the best value has a star and is bold where that shows."""
    names = list(part.headings)
    labels = 4 + max(min(len(row.label), 22) for row in part.rows)
    size = max(1, (width - labels) // _CELL)
    signs = {"best": "*", "tie": "≈", "": " "}
    result = []
    for begin in range(0, max(len(names), 1), size):
        shown = names[begin : begin + size]
        table = Table(
            title=part.dataset, title_justify="left", title_style="bold",
            box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        )  # fmt: skip
        table.add_column("method", max_width=22)
        for name in shown:
            table.add_column(part.headings[name], justify="right", max_width=_CELL)
        for row in part.rows:
            cells = [row.cells[name] for name in shown]
            texts = [
                Text(cell.text + signs[cell.mark], "bold" if cell.mark == "best" else "")
                for cell in cells
            ]
            table.add_row(Text(row.label), *texts, style="dim" if row.reference else None)
        result.append(table)
    return result
