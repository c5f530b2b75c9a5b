"""The documentation says what is there: its code runs, its tables and links are right.

Run as a program, this file writes the tables of methods and datasets again.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import tomllib
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evenfed.core.local import LocalTraining
from evenfed.data.registry import sources
from evenfed.engines.options import EngineOptions
from evenfed.engines.participation import Participation
from evenfed.methods import registry
from evenfed.methods.base import EVALUATION, Method
from evenfed.runs.config import parse
from evenfed.runs.plan import parse_study
from evenfed.runs.train import train

with warnings.catch_warnings():
    # Typer imports names that the newest Click calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer
    from typer.testing import CliRunner

    from evenfed.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
UNKNOWN = "?"
REWRITE = "run: .venv/bin/python tests/docs/test_documentation.py"
TABLE = re.compile(r"(<!-- datasets:begin -->\n).*?(<!-- datasets:end -->)", re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The line before a block's first one, and its text."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, m.start(2)), m[2]) for m in FENCE.finditer(text) if m[1] == language
    ]


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def commands(page: Path) -> list[list[str]]:
    """Words of every console line that starts with a dollar."""
    lines = [line for _, text in blocks(page, "console") for line in text.splitlines()]
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]
EVENFED = [pytest.param(w[1:], id=" ".join(w)) for _, w in COMMANDS if w[0] == "evenfed"]

SHORTER = {"run": ["--rounds", "1"], "study": ["--rounds", "1", "--seeds", "0"]}
"""Options that make a command of the docs cheap; the last one given wins."""


OF_ALL = ["--datasets", "synthetic:examples=60,test_examples=30", "--set", "hetpfl.fusion_steps=3"]
"""Some more for a study of every method: little data, and few steps after the last round."""


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own; methods that a page registers are forgotten."""
    monkeypatch.chdir(tmp_path)
    known = registry.methods()
    yield
    registry._registered.clear()
    registry._registered.update(known)


def execute(page: Path, count: int | None = None) -> dict[str, Any]:
    """Run the (first) Python blocks of a page in one module; line numbers are the page's."""
    module = types.ModuleType(re.sub(r"\W", "_", name_of(page)))
    sys.modules[module.__name__] = module
    for line, text in blocks(page, "python")[:count]:
        exec(compile("\n" * line + text, name_of(page), "exec"), vars(module))
    return vars(module)


@pytest.mark.parametrize("page", with_blocks("python"), ids=name_of)
def test_python_of_a_page_runs(page: Path) -> None:
    execute(page)


def test_a_failing_block_fails_with_the_line_of_its_page(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    line, text = blocks(page, "python")[0]
    with pytest.raises(AssertionError) as caught:
        exec(compile("\n" * line + "assert False", name_of(page), "exec"), {})
    assert caught.traceback[-1].lineno == line
    assert page.read_text(encoding="utf-8").splitlines()[line] == text.splitlines()[0]


def test_the_contributed_method_keeps_the_contract(
    train_rounds: Callable[..., Any], binary: Any, distance: Any
) -> None:
    cls: type[Method] = execute(ROOT / "CONTRIBUTING.md", 1)["Averaged"]
    method = cls(local=LocalTraining(batch=8, epochs=2))  # type: ignore[call-arg]
    a, b = (train_rounds(method, binary, engine) for engine in ("vectorized", "sequential"))
    assert distance(a.everything, b.everything) < 1e-5
    declared = {(reveal.function, reveal.part) for reveal in cls.reveals}
    sent = {(e.split("/")[0], part) for (_, e, _), u in a.uploads.items() for part in u}
    assert sent == declared


@pytest.mark.parametrize("page", with_blocks("toml"), ids=name_of)
def test_toml_of_a_page_is_a_config(page: Path) -> None:
    for _, text in blocks(page, "toml"):
        table = tomllib.loads(text)
        if "methods" in table:
            parse_study(table)
        else:
            parse(table).built_method()


@pytest.mark.parametrize("words", EVENFED)
def test_commands_parse(words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    command = group.get_command(None, words[0])
    assert command is not None, f"there is no command '{words[0]}'"
    command.make_context(words[0], list(words[1:]))


def needs_nothing(words: list[str]) -> bool:
    """Whether a command neither reads a file nor a folder that only the page's reader has."""
    listing = words[0] in ("methods", "datasets")
    return listing or (words[0] in SHORTER and words[1].startswith("--"))


def hospitals() -> None:
    """The files that commands about silo files read."""
    for name, n in {"a": 60, "b": 90, "c": 50}.items():
        rng = np.random.default_rng(n)
        age = rng.integers(20, 80, n)
        frame = pd.DataFrame({"age": age, "ward": rng.choice(["icu", "er"], n)})
        frame["sex"] = rng.choice(["f", "m"], n)
        frame["died"] = (age + rng.normal(0, 10, n) > 50).astype(int)
        frame.to_csv(f"hospital_{name}.csv", index=False)


@pytest.mark.parametrize("words", [p for p in EVENFED if needs_nothing(p.values[0])])
def test_commands_that_need_no_folder_work(words: list[str]) -> None:
    if "--silos" in words:
        hospitals()
    cheap = [*SHORTER.get(words[0], []), *(OF_ALL if "all" in words else [])]
    done = CliRunner().invoke(app, [*words, *cheap])
    assert done.exit_code == 0, done.output


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for _, words in COMMANDS if words[0] == "make"}
    assert {"demo", "test", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MkDocs make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def broken_links(page: Path, text: str) -> list[str]:
    found = []
    for target in LINK.findall(FENCE.sub("", text)):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            found.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            if anchor not in map(slug, headings):
                found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_point_to_something(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](docs/missing.md) [b](docs/metrics.md#no-such-heading) [c](docs/metrics.md#cost)"
    found = broken_links(ROOT / "README.md", text)
    assert found == ["docs/missing.md", "docs/metrics.md#no-such-heading"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_path_of_a_machine(page: Path) -> None:
    assert not re.search(r"/(home|root|tmp|work|opt)/", page.read_text(encoding="utf-8"))


def method_rows(text: str) -> list[list[str]]:
    """Cells of the README's table of methods."""
    lines = [line for line in text.splitlines() if line.startswith("| [`")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def expected_rows(fair_to: dict[str, str]) -> list[list[str]]:
    """The same from the registry; whom a method is fair to is written by hand."""
    rows = []
    for name, cls in registry.methods().items():
        leaves = "; ".join(r.meaning for r in cls.reveals if r != EVALUATION) or "nothing"
        link = f"[`{name}`](docs/methods/{name}.md)"
        fair = fair_to.get(link, UNKNOWN)
        rows.append([link, cls.title, cls.paper, fair, str(cls.exchanges), leaves])
    return rows


def test_the_readme_lists_the_methods_of_the_registry() -> None:
    rows = method_rows((ROOT / "README.md").read_text(encoding="utf-8"))
    assert rows == expected_rows({row[0]: row[3] for row in rows}), REWRITE
    assert all(row[3] not in ("", UNKNOWN) for row in rows), "say whom the method is fair to"


@pytest.mark.parametrize("name", registry.methods())
def test_a_method_has_a_page_that_names_its_options(name: str) -> None:
    page = DOCS / "methods" / f"{name}.md"
    assert page.exists()
    text = page.read_text(encoding="utf-8")
    for heading in ("What it optimises", "When to use it", "What it reveals", "What it costs"):
        assert f"## {heading}\n" in text
    for field in dataclasses.fields(registry.methods()[name]):
        if field.init:
            assert f"`{field.name}`" in text or f"`{field.name}.*`" in text, field.name
    assert f"({name}.md)" in (DOCS / "methods" / "index.md").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    ("page", "options", "prefix"),
    [
        ("methods/index.md", LocalTraining, "local."),
        ("engines.md", EngineOptions, ""),
        ("how-to/faults-and-participation.md", Participation, ""),
    ],
)
def test_a_page_names_all_options(page: str, options: Any, prefix: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for field in dataclasses.fields(options):
        assert f"`{prefix}{field.name}`" in text, field.name


@pytest.mark.parametrize("dataset", ["synthetic", "linear"])
def test_every_metric_of_a_result_is_explained(dataset: str) -> None:
    """A classification and a regression."""
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    measured = train("fedavg", dataset, rounds=1).measured()
    for metric in measured["metrics"]:
        name = re.sub(r"^client_(accuracy|loss)_", "", metric)
        assert f"`{name}`" in text, metric
    for part in ("cost", "dropped", "ledger", "notes", "intervals"):
        assert part in measured
        assert f"`{part}`" in text


def dataset_table() -> str:
    """The table of docs/datasets.md, from the registry."""
    lines = [
        "| name | what | kind | clients | sensitive | needs | terms |",
        "|---|" * 1 + "---|" * 6,
    ]
    for name, info in sources().items():
        sensitive = ", ".join(info.sensitive) or "none"
        cells = [
            f"`{name}`",
            info.title,
            info.kind,
            info.clients,
            sensitive,
            info.needs,
            info.terms,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Origin and known problems"]
    for name, info in sources().items():
        lines += ["", f"**`{name}`**: {info.source}.", *([""] if info.notes else [])]
        lines += [f"- {note}" for note in info.notes]
    return "\n".join(lines) + "\n"


def test_the_table_of_datasets_is_that_of_the_registry() -> None:
    found = TABLE.search((DOCS / "datasets.md").read_text(encoding="utf-8"))
    assert found is not None
    text = found[0].split("-->\n", 1)[1].rsplit("<!--", 1)[0]
    assert text == dataset_table(), REWRITE


def rewrite() -> None:
    """Write the tables again that follow from the registries."""
    path = DOCS / "datasets.md"
    table, text = dataset_table(), path.read_text(encoding="utf-8")
    path.write_text(TABLE.sub(lambda m: m[1] + table + m[2], text), encoding="utf-8")
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    rows = expected_rows({row[0]: row[3] for row in method_rows(text)})
    written = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    text = re.sub(r"(?:^\| \[`.*\n)+", lambda _: written, text, count=1, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
