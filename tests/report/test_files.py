"""Figures and tables as files."""

from __future__ import annotations

import csv
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.core.errors import ConfigError
from evenfed.report.files import as_csv, latex, markdown, write_figures
from evenfed.report.page import opened, page_of
from evenfed.report.sections import Grid
from evenfed.runs.folder import CLIENTS


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "s"
    ef.study(["fedavg", "qffl"], "loans", seeds=[0, 1], rounds=2, engine="vectorized",
             evaluate_every=1, references=[], out=folder)  # fmt: skip
    return folder


def test_the_command_writes_all_that_is_asked_for(study: Path) -> None:
    words = ["--figures", "svg", "--figures", "pdf", "--figures", "png", "--tables", "latex",
             "--tables", "csv", "--tables", "markdown"]  # fmt: skip
    done = CliRunner().invoke(app, ["report", str(study), *words])
    assert done.exit_code == 0, done.output
    written = [Path(line) for line in done.output.splitlines()]
    assert written[0] == study / "report.html"
    assert all(path.stat().st_size > 100 for path in written)
    names = {path.name for path in written}
    for figure in ("clients", "excess", "accuracy", "selection_rate", "cost", "val_accuracy"):
        assert {f"{figure}.svg", f"{figure}.pdf", f"{figure}.png"} <= names
    for table in ("metrics", "groups", "ledger"):
        assert {f"{table}.tex", f"{table}.md", f"{table}.csv"} <= names
    assert (study / "figures" / "clients.pdf").read_bytes().startswith(b"%PDF")
    assert (study / "figures" / "clients.png").read_bytes().startswith(b"\x89PNG")


def test_svg_files_stand_alone(study: Path) -> None:
    for path in write_figures(page_of(opened(study)), study, "svg"):
        text = path.read_text(encoding="utf-8")
        assert "var(" not in text
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.attrib["aria-label"]


def test_a_pdf_holds_its_text(study: Path) -> None:
    import pypdfium2

    (path,) = (p for p in write_figures(page_of(opened(study)), study, "pdf")
               if p.name == "clients.pdf")  # fmt: skip
    document = pypdfium2.PdfDocument(path)
    page = document[0]
    text = page.get_textpage().get_text_bounded()
    assert "qffl" in text
    worst = [pd.read_parquet(study / "runs" / f"qffl-loans-{s}" / CLIENTS)["accuracy"].min()
             for s in (0, 1)]  # fmt: skip
    assert f"worst {sum(worst) / 2:.3f}" in text
    document.close()


def test_an_unknown_kind_is_refused_before_anything_is_written(study: Path) -> None:
    (study / "report.html").unlink(missing_ok=True)
    done = CliRunner().invoke(app, ["report", str(study), "--figures", "gif"])
    assert done.exit_code == 2
    assert "--figures is 'gif'; it may be svg, pdf, png" in done.output
    assert not (study / "report.html").exists()


def test_a_missing_library_is_named_with_its_extra(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "svglib.svglib", None)
    with pytest.raises(ConfigError, match=r"svglib.*evenfed\[figures\]"):
        write_figures(page_of(opened(study)), study, "pdf")


def test_the_libraries_of_figures_are_not_imported_by_a_report(study: Path) -> None:
    code = (
        "import sys, pathlib; from evenfed.report.files import write_files; "
        f"write_files(pathlib.Path({str(study)!r}), ['svg'], ['csv']); "
        "print({'svglib', 'reportlab', 'pypdfium2', 'matplotlib'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_tables_keep_texts_and_marks() -> None:
    grid = Grid(
        "t", "A table", ["method", "accuracy ↑"],
        [["a_b", "0.9 ± 0.1"], ["c|d", "0.8, or so"], ["local (reference)", "50 %"]],
        [["", "best"], ["", "second"], ["reference", ""]],
    )  # fmt: skip
    assert list(csv.reader(as_csv(grid).splitlines())) == [list(grid.head), *grid.rows]
    assert "| a_b | **0.9 ± 0.1** |" in markdown(grid)
    assert r"| c\|d | <u>0.8, or so</u> |" in markdown(grid)
    assert r"a\_b & \textbf{0.9 $\pm$ 0.1} \\" in latex(grid)
    assert "\\midrule\nlocal (reference) & 50 \\% \\\\" in latex(grid)
