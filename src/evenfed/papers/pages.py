"""Pages of the documentation, made of stored results and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from evenfed.papers import store
from evenfed.papers.figures import figure
from evenfed.papers.recipe import (
    Column,
    Figures,
    Metric,
    Paper,
    Row,
    Table,
    matched,
    names,
    paper,
    published,
)
from evenfed.papers.store import Results
from evenfed.papers.verdict import WORDS, Verdict, compare, judge, summary

RULE = (
    "Cells hold the mean over seeds and the half-width of its 95 % interval. A printed figure "
    "*agrees* if it lies inside that interval, widened by the printed standard deviation where "
    "there is one and by half a unit of the last digit; outside, ours is *better* or *worse*. "
    "An ordering *holds* if the differences within seeds have a 95 % interval above 0."
)

QUICK = "the quick version trains too little to compare"


def verdicts(table: Table, results: Results) -> dict[tuple[str, str, str], Verdict]:
    """The verdict of every cell that has a printed figure."""
    known = {m.key: m for m in table.metrics[results.setting.protocol]}
    found = {}
    for (row, column, metric), theirs in published(results.paper, table.key).items():
        ours = results.values(row, column, metric)
        if metric in known and ours:
            why = matched(table.incomparable, results.setting.protocol, row, column, metric)
            why = QUICK if results.setting.quick else why
            found[row, column, metric] = judge(ours, theirs, known[metric], why)
    return found


def table_text(table: Table, results: Results) -> str:
    """One Markdown table a column, then what is not comparable and the orderings."""
    figures = published(results.paper, table.key)
    judged = verdicts(table, results)
    parts = []
    for column in table.columns:
        lines = _column(table, results, column, figures, judged)
        if len(lines) > 2:
            parts.append("\n".join([f"**{column.title}**", "", *lines]))
    for title, lines in (
        ("Orderings that the paper states", _claims(table, results)),
        ("So", _joint(table, results)),
        ("Not comparable", _incomparable(judged)),
        ("Why", _reasons(table, results, judged)),
    ):
        if lines:
            parts.append("\n".join([f"{title}:", "", *lines]))
    return "\n\n".join(parts)


def _column(
    table: Table,
    results: Results,
    column: Column,
    figures: Figures,
    judged: dict[tuple[str, str, str], Verdict],
) -> list[str]:
    metrics = table.metrics[results.setting.protocol]
    printed = {m.key for m in metrics if any(k[1:] == (column.key, m.key) for k in figures)}
    words = sorted({f for r in table.rows for f in results.facts(r.key, column.key)})
    head = ["method"]
    for metric in metrics:
        head += [f"{metric.title}, published"] if metric.key in printed else []
        head += [f"{metric.title}, ours" if metric.key in printed else metric.title]
        head += ["verdict"] if metric.key in printed else []
    lines = [_line([*head, *words]), _line(["---"] * (len(head) + len(words)))]
    for row in table.rows:
        if any(results.values(row.key, column.key, m.key) for m in metrics):
            cells = _cells(row, column, metrics, printed, results, figures, judged)
            found = results.facts(row.key, column.key)
            lines.append(_line([*cells, *(_counted(found.get(word, [])) for word in words)]))
    return lines


def _cells(
    row: Row,
    column: Column,
    metrics: Sequence[Metric],
    printed: set[str],
    results: Results,
    figures: Figures,
    judged: dict[tuple[str, str, str], Verdict],
) -> list[str]:
    cells = [f"*{row.title}*" if row.reference else row.title]
    for metric in metrics:
        key = (row.key, column.key, metric.key)
        ours = number(results.values(*key), metric)
        if metric.key not in printed:
            cells.append(ours)
            continue
        theirs = figures.get(key)
        verdict = judged.get(key)
        shown = "" if theirs is None else f"{theirs.value:.{metric.digits}f}"
        if theirs is not None and theirs.sd is not None:
            shown += f" (sd {theirs.sd:.{metric.digits}f})"
        cells += [shown, ours, "" if verdict is None else _worded(verdict, metric)]
    return cells


def number(values: Sequence[float], metric: Metric) -> str:
    """Mean and half-width of the interval; seeds without a value are counted."""
    defined = [v for v in values if math.isfinite(v)]
    if not defined:
        return "undefined" if values else ""
    found = summary(defined)
    text = f"{found.mean:.{metric.digits}f}"
    if found.seeds > 1:
        text += f" ± {(found.high - found.low) / 2:.{metric.digits}f}"
    return text if len(defined) == len(values) else f"{text} ({len(defined)} of {len(values)})"


def _worded(verdict: Verdict, metric: Metric) -> str:
    if math.isnan(verdict.difference):
        return verdict.word
    return f"{verdict.word} ({verdict.difference:+.{metric.digits}f})"


def _counted(words: Sequence[str]) -> str:
    counts = Counter(words)
    if len(counts) <= 1:
        return next(iter(counts), "")
    return ", ".join(f"{word} ({n})" for word, n in counts.most_common())


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def judgements(table: Table, results: Results) -> list[tuple[str, str, str]]:
    """Claim, column, word: for every ordering whose cells were run."""
    known = {m.key: m for m in table.metrics[results.setting.protocol]}
    titles = {c.key: c.title for c in table.columns}
    found: list[tuple[str, str, str]] = []
    for claim in table.claims:
        for column in claim.columns:
            ours, than = (results.values(r, column, claim.metric) for r in (claim.row, claim.than))
            if claim.metric in known and ours and len(ours) == len(than):
                word = compare(ours, than, known[claim.metric])
                found.append((claim.text, titles[column], word))
    return found


def _claims(table: Table, results: Results) -> list[str]:
    """One row an ordering, one column a column of the table."""
    if results.setting.quick:
        return []
    found = {(text, column): word for text, column, word in judgements(table, results)}
    columns = list(dict.fromkeys(column for _, column in found))
    if not found:
        return []
    lines = [_line(["ordering", *columns]), _line(["---"] * (len(columns) + 1))]
    texts = dict.fromkeys(text for text, _ in found)
    return lines + [_line([text, *(found.get((text, c), "") for c in columns)]) for text in texts]


def _joint(table: Table, results: Results) -> list[str]:
    """Plain sentences: where a claim of several orderings holds, and where it does not."""
    if results.setting.quick:
        return []
    found = {(text, column): word for text, column, word in judgements(table, results)}
    lines = []
    for joint in table.joint:
        parts = []
        for column in dict.fromkeys(column for _, column in found):
            words = {text: found.get((text, column), "not run") for text in joint.hold}
            lost = [t for t in joint.not_fail if found.get((t, column), "not run") == "fails"]
            missed = [text for text, word in words.items() if word != "holds"]
            why = ", ".join(f"{t}: {found.get((t, column), 'not run')}" for t in (*missed, *lost))
            parts.append(f"on {column} " + (f"does not hold ({why})" if why else "holds"))
        if parts:
            lines.append(f"- {joint.text}: {'; '.join(parts)}.")
    return lines


def _incomparable(judged: dict[tuple[str, str, str], Verdict]) -> list[str]:
    reasons = Counter(v.reason for v in judged.values() if v.word == "not comparable")
    return [f"- {n} {'cell' if n == 1 else 'cells'}: {reason}." for reason, n in reasons.items()]


def _reasons(
    table: Table, results: Results, judged: dict[tuple[str, str, str], Verdict]
) -> list[str]:
    """Sentences on cells that differ, where it was looked into; each once."""
    differing = [key for key, v in judged.items() if v.word in ("better", "worse")]
    found = (matched(table.reasons, results.setting.protocol, *key) for key in differing)
    return [f"- {text}" for text in dict.fromkeys(text for text in found if text is not None)]


def command(results: Results, jobs: int = 1) -> str:
    """The command that makes these results."""
    text = f"evenfed paper {results.paper} --table {results.table}"
    text += f" --protocol {results.setting.protocol}" + (
        " --quick" if results.setting.quick else ""
    )
    own = paper(results.paper).table(results.table)
    usual = own.setting(results.setting.protocol, results.setting.quick).seeds
    if results.setting.seeds != usual:
        text += f" --seeds {','.join(map(str, results.setting.seeds))}"
    text += own.options and f" {own.options}"
    return text + (f" --jobs {jobs}" if jobs > 1 else "")


def _section(table: Table, results: Results) -> list[str]:
    setting, machine = results.setting, results.machine
    kind = "quick version, which shows that it runs, not what it gives" if setting.quick else "full"
    seeds = ", ".join(map(str, setting.seeds))
    processes = machine["processes"]
    found = [
        f"### {table.title}: {setting.protocol} protocol ({kind})",
        f"```console\n$ {command(results, processes)}\n```",
        f"Seeds {seeds}; {len(results.runs)} runs, {results.minutes:.1f} minutes of processor time "
        f"in all ({processes} {'process' if processes == 1 else 'processes'}); "
        f"torch {results.versions.get('torch', '?')}.",
        table_text(table, results),
    ]
    found += [f"![{title}](figures/{name})" for title, name, _ in drawn(table, results)]
    return found


def drawn(table: Table, results: Results) -> list[tuple[str, str, str]]:
    """Figures of a table: title, file name, SVG."""
    base = store.stem(results.paper, table.key, results.setting)
    found = []
    for plot in table.plots:
        for column in table.columns:
            svg = figure(table, plot, column, results)
            if svg is not None:
                end = f"-{plot.key}" if plot.key else ""
                file = f"{base}-{column.key}{end}.svg"
                found.append((f"{plot.title}, {column.title}", file, svg))
    return found


def shown(kept: Sequence[Results]) -> list[Results]:
    """What a page shows: a quick version only where there is no full one."""
    full = {(r.table, r.setting.protocol) for r in kept if not r.setting.quick}
    return [r for r in kept if not r.setting.quick or (r.table, r.setting.protocol) not in full]


def page(name: str, folder: Path = store.FOLDER) -> str:
    """The page of a paper, of all its stored results."""
    wanted = paper(name)
    kept = store.stored(folder, name)
    parts = [f"# {wanted.title}", wanted.citation, RULE]
    for protocol, words in wanted.protocols.items():
        parts.append(f"Protocol `{protocol}`: {words}")
    if wanted.findings:
        parts += ["## What agrees and what does not", "\n".join(f"- {f}" for f in wanted.findings)]
    for table in wanted.tables:
        own = shown([r for r in kept if r.table == table.key])
        parts.append(f"## {table.title}")
        if table.note:
            parts.append(table.note)
        if not own:
            parts.append("Not run yet.")
        for results in own:
            parts += _section(table, results)
    return "\n\n".join(parts) + "\n"


SPEED = (
    "## Speed\n\n"
    "Processor minutes are above. What was made faster for these tables, measured by "
    "`evenfed paper hetpfl --table table1 --protocol published --quick`, side by side on one "
    "machine:\n\n"
    "- 0.94 minutes at commit 0bdb9f7, 0.65 after: softmax over two classes is taken with the "
    "classes first, and recorded operations are called through PyTorch's own functions.\n"
    "- 0.73 minutes at commit b57c5b6, 0.53 at 5b5bca7: what a recorded step asks for twice is "
    "computed once, views are made once a descent, and a client that was alone in its size, and "
    "therefore computed twice, is padded to the size of the next one. Full jobs gain more: on BANK "
    "the two methods with preferences take 54 instead of 111 seconds a seed, AgnosticFair on "
    "COMPAS 13 instead of 53.\n"
    "- The convolutional network takes images with their channels last in memory, where PyTorch's "
    "max pool is several times as fast: `evenfed paper fedeba --table cifar10 --quick` takes 0.60 "
    "minutes at commit ba7d82e, 0.87 at 4d84643.\n"
    "- Clients that take as many steps whatever their size are computed in one call where padding "
    "is cheap: `evenfed paper ser --table shakespeare --quick` takes 0.34 minutes at commit "
    "36dd0f1, 0.38 at ba7d82e; longer runs, with less of it spent on recording, gain more.\n"
)


def index(folder: Path = store.FOLDER) -> str:
    """One table of all verdicts."""
    head = ["paper", "table", "protocol", "seeds", *WORDS, "orderings", "processor minutes"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in names():
        wanted = paper(name)
        full = (r for r in store.stored(folder, name) if not r.setting.quick)
        lines += [_line(_summed(wanted, results)) for results in full]
    return (
        "# The papers' tables\n\n"
        "Every table was rebuilt by one command; its numbers are stored in `papers/results`, and "
        "these pages are made of them.\n\n"
        f"{RULE}\n\n" + "\n".join(lines) + "\n\n" + SPEED + "\n" + _open(folder)
    )


def _summed(wanted: Paper, results: Results) -> list[str]:
    table = wanted.table(results.table)
    words = Counter(v.word for v in verdicts(table, results).values())
    counts = [str(words[w]) for w in WORDS]
    if not published(wanted.name, table.key):
        counts = ["all, none printed" if w == "not comparable" else "0" for w in WORDS]
    told = Counter(word for _, _, word in judgements(table, results))
    return [
        f"[{wanted.title}]({wanted.name}.md)", table.title, results.setting.protocol,
        str(len(results.setting.seeds)), *counts,
        ", ".join(f"{n} {w}" for w, n in sorted(told.items())) or "none stated",
        f"{results.minutes:.0f}",
    ]  # fmt: skip


def _open(folder: Path) -> str:
    """What has no full results yet, with the expected time."""
    lines = []
    for name in names():
        wanted = paper(name)
        done = {(r.table, r.setting.protocol) for r in store.stored(folder, name)
                if not r.setting.quick}  # fmt: skip
        for table in wanted.tables:
            for protocol in table.seeds:
                if (table.key, protocol) not in done:
                    minutes = table.minutes(table.setting(protocol, quick=False))
                    lines.append(
                        f"- [{wanted.title}]({name}.md), {table.title}, {protocol}: `evenfed paper "
                        f"{name} --table {table.key} --protocol {protocol}`, about "
                        f"{minutes:.0f} minutes of one thread"
                    )
    return "Not run in full yet:\n\n" + "\n".join(lines) + "\n" if lines else ""


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
