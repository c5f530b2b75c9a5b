"""The table of all verdicts, and the pages as files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from evenfed.papers import store
from evenfed.papers.pages import RULE, drawn, joined, judgements, line, page, shown, verdicts
from evenfed.papers.recipe import Joint, Paper, Table, names, paper, published
from evenfed.papers.store import Results
from evenfed.papers.verdict import WORDS

SPEED = (
    "## Speed\n\n"
    "Processor minutes of each table are above; the commands of those over 60 name two processes. "
    "What was "
    "made faster to get there, as minutes of quick versions before and after, both commits side by "
    "side on one machine:\n\n"
    "| command | before | after | what |\n"
    "| --- | --- | --- | --- |\n"
    "| `evenfed paper hetpfl --table table1 --protocol published --quick` | 0.94 (0bdb9f7) | 0.65 "
    "(8be98f3) | softmax over two classes with the classes first; recorded operations are called "
    "through PyTorch's own functions |\n"
    "| the same | 0.73 (b57c5b6) | 0.53 (5b5bca7) | what a recorded step asks for twice is "
    "computed once; views are made once a descent; a client of a size of its own is padded to the "
    "next size, and is computed with others |\n"
    "| `evenfed paper fedeba --table cifar10 --quick` | 0.87 (4d84643) | 0.60 (ba7d82e) | images "
    "with their channels last in memory, where PyTorch's max pool is several times as fast |\n"
    "| `evenfed paper ser --table shakespeare --quick` | 0.38 (ba7d82e) | 0.34 (36dd0f1) | clients "
    "that take as many steps whatever their size are computed in one call where padding is cheap "
    "|\n"
    "| `evenfed paper ser --table cifar10 --quick` | 0.37 (6d3b97b) | 0.30 (d685143) | curvature "
    "of convolutions is measured one client at a time |\n"
    "| `evenfed paper pffl --table figure2 --quick` | 0.53 (5f492b4) | 0.20 (25c0c49) | "
    "certificates: clients send second derivatives once, which makes the problem round for L-BFGS, "
    "and the least loss of all bounds is worked out once |\n\n"
    "Full tables, of more clients and rounds, were not timed before and after.\n"
)


def index(folder: Path = store.FOLDER) -> str:
    """One table of all verdicts."""
    head = [
        "paper", "table", "protocol", "seeds", *WORDS, "orderings", "claims", "processor minutes"
    ]  # fmt: skip
    lines = [line(head), line(["---"] * len(head))]
    for name in names():
        wanted = paper(name)
        full = (r for r in store.stored(folder, name) if not r.setting.quick)
        lines += [line(_summed(wanted, results)) for results in full]
    return (
        "# The papers' tables\n\n"
        "One command rebuilds a table; its numbers are stored in `papers/results`, and these pages "
        "and their figures are made of them (`evenfed paper --pages docs/papers`). A command runs "
        "only what is missing, so that the runs of a table can be of several days: where code or "
        "processor differ, or were not recorded, its page says so.\n\n"
        f"{RULE}\n\n" + "\n".join(lines) + "\n\n" + SPEED + "\n" + _open(folder)
    )


def _summed(wanted: Paper, results: Results) -> list[str]:
    table = wanted.table(results.table)
    words = Counter(v.word for v in verdicts(table, results).values())
    counts = [str(words[w]) for w in WORDS]
    if not published(wanted.name, table.key):
        counts = ["all, none printed" if w == "not comparable" else "0" for w in WORDS]
    whole = [
        f"{'ours: ' if joint.ours else ''}{joint.short} {_where(joint, table, results)}"
        for joint in table.joint
    ]
    older = "" if store.is_current(table, results) else " (older recipe)"
    return [
        f"[{wanted.title}]({wanted.name}.md#{_anchor(table)})", f"{table.title}{older}",
        results.setting.protocol, _seeds(results), *counts,
        _told(table, results),
        "; ".join(whole), f"{results.minutes:.0f}",
    ]  # fmt: skip


def _told(table: Table, results: Results) -> str:
    """How many orderings hold, fail and are not told apart; those that only we ask apart."""
    parts = []
    for ours in (False, True):
        found = Counter(word for _, _, word in judgements(table, results, ours))
        if found:
            words = ", ".join(f"{n} {word}" for word, n in sorted(found.items()))
            parts.append(f"ours: {words}" if ours else words)
    return "; ".join(parts) or "none stated"


def _anchor(table: Table) -> str:
    """Of a table's heading, as sites make it of a title."""
    kept = "".join(c for c in table.title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _seeds(results: Results) -> str:
    """How many, or the fewest and the most of a column."""
    columns = {run.column for run in results.runs}
    each = {len({run.seed for run in results.runs if run.column == c}) for c in columns}
    return "-".join(map(str, sorted({min(each), max(each)})))


def _where(joint: Joint, table: Table, results: Results) -> str:
    """In how many columns a claim holds."""
    found = joined(joint, table, results)
    kept = sum(not why for why in found.values())
    if not found:
        return "was not judged"
    word = "holds" if kept else "does not hold"
    return word if len(found) == 1 else f"holds in {kept} of {len(found)}"


def _open(folder: Path) -> str:
    """What has no full results yet, or results of an older recipe, with the expected time."""
    missing: list[str] = []
    older: list[str] = []
    for name in names():
        wanted = paper(name)
        done = {
            (r.table, r.setting.protocol, r.setting.quick): r for r in store.stored(folder, name)
        }
        for table, protocol, quick in (
            (t, p, q) for t in wanted.tables for p in t.seeds for q in (False, True)
        ):
            results = done.get((table.key, protocol, quick))
            if quick if results is None else store.is_current(table, results):
                continue
            minutes = table.minutes(table.setting(protocol, quick))
            small = " --quick" if quick else ""
            (missing if results is None else older).append(
                f"- [{wanted.title}]({name}.md#{_anchor(table)}), {table.title}, {protocol}: "
                f"`evenfed paper {name} --table {table.key} --protocol {protocol}{small}`, about "
                f"{minutes:.{1 if quick else 0}f} minutes of one thread"
            )
    return "\n".join(
        f"{title}:\n\n" + "\n".join(lines) + "\n"
        for title, lines in (
            ("Not run in full yet", missing),
            ("To be run again, because the recipe has changed", older),
        )
        if lines
    )


def write_pages(docs: Path, folder: Path = store.FOLDER) -> list[Path]:
    """Write the index, a page a paper, and their figures below `docs`, without older ones."""
    figures = docs / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    files = {docs / "index.md": index(folder)}
    for name in names():
        wanted = paper(name)
        files[docs / f"{name}.md"] = page(name, folder)
        for results in shown(store.stored(folder, name)):
            for _, file, svg in drawn(wanted.table(results.table), results):
                files[figures / file] = svg
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    for path in (path for name in names() for path in figures.glob(f"{name}-*.svg")):
        if path not in files:
            path.unlink()
    return list(files)
