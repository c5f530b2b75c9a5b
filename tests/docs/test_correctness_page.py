"""The page of what is checked is made from the tests: `python tests/docs/test_correctness_page.py`.

Every mark `@pytest.mark.proves(method, what)` in the tests is a line of it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenfed.methods.registry import methods

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "correctness.md"
TABLE = re.compile(r"(<!-- proofs:begin -->\n).*?(<!-- proofs:end -->)", re.DOTALL)
BY_HAND = re.compile(r"by hand|against its definition|against the definition")
REWRITE = "run: .venv/bin/python tests/docs/test_correctness_page.py"
NOT_BY_HAND = {
    "centralized": "training on the pooled examples; it equals FedAvg with one client",
    "local": "training without exchange; it equals FedAvg with one client",
}
"""Methods without a test by hand, and why."""


def proofs(path: Path) -> Iterator[tuple[str, str, str]]:
    """Method, what is proved, and the test, for every mark in a file."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    words = {
        target.id: line.value.value
        for line in module.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    for test in ast.walk(module):
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        for node in (n for decorator in test.decorator_list for n in ast.walk(decorator)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "proves"
            ):
                method, what = (_text(argument, words) for argument in node.args)
                yield method, what, f"{path.relative_to(ROOT).as_posix()}::{test.name}"


def _text(node: ast.expr, words: dict[str, object]) -> str:
    """A string, the name of one in its module, or an f-string of such names."""
    if isinstance(node, ast.Name):
        return str(words[node.id])
    if isinstance(node, ast.JoinedStr):
        parts = (v.value if isinstance(v, ast.FormattedValue) else v for v in node.values)
        return "".join(_text(part, words) for part in parts)
    return str(ast.literal_eval(node))


@functools.cache
def found() -> dict[str, list[tuple[str, str]]]:
    result: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for method, what, test in proofs(path):
            result[method].append((what, test))
    return result


def table() -> str:
    """One row a method: what is proved, each with the file of its test."""
    known = found()
    lines = ["| method | what is checked, and where |", "|---|---|"]
    for name, cls in sorted(methods().items(), key=lambda item: item[1].title.lower()):
        rows = sorted(known.get(name, []), key=lambda row: (BY_HAND.search(row[0]) is None, row))
        parts = [f"{what} (`{test.partition('::')[0].rpartition('/')[2]}`)" for what, test in rows]
        if name in NOT_BY_HAND:
            parts.append(NOT_BY_HAND[name])
        shown = "<br>".join(dict.fromkeys(parts)).replace("|", "\\|")
        lines.append(f"| [{cls.title}](methods/{name}.md) | {shown} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    return TABLE.sub(lambda m: m[1] + table() + m[2], PAGE.read_text(encoding="utf-8"))


def test_the_page_shows_what_the_tests_prove() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), REWRITE


@pytest.mark.parametrize("name", methods())
def test_every_method_is_checked_by_hand(name: str) -> None:
    what = [what for what, _ in found().get(name, [])]
    assert name in NOT_BY_HAND or any(BY_HAND.search(w) for w in what), what


def test_every_mark_names_a_method() -> None:
    assert set(found()) <= set(methods())


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
