"""Pages of the documentation, made of stored results and nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from evenfed.methods.registry import methods
from evenfed.papers import store
from evenfed.papers.figures import figure
from evenfed.papers.recipe import (
    Column,
    Figures,
    Joint,
    Metric,
    Paper,
    Row,
    Table,
    findings,
    matched,
    paper,
    published,
)
from evenfed.papers.store import Results
from evenfed.papers.verdict import Verdict, compare, judge, summary

RULE = (
    "Cells hold the mean over seeds and the half-width of its 95 % interval. A printed figure "
    "*agrees* if it lies inside that interval, widened by the printed standard deviation where "
    "there is one and by half a unit of the last digit; outside, ours is *better* or *worse*. "
    "Where a paper says of how many runs its figure is the mean and prints no spread (HetPFL: "
    "three), those are taken to scatter as ours do, and the interval is that of a difference of "
    "means; where it says neither (FOCUS), the printed figure is taken to be exact. *Not "
    "comparable* is a cell whose printed figure is of something else (the reason is below the "
    "table), one with fewer than three seeds, and one that would agree inside an interval of the "
    "difference so wide that it says nothing, beyond ± 0.05 (FAA ± 0.1). An ordering "
    "*holds* if the differences within seeds have a 95 % interval above 0, *fails* if below; these "
    "intervals are not corrected for their number: of forty orderings between equal methods, about "
    "one holds and one fails by chance. Orderings of ours are questions that the paper does not "
    "ask."
)

HOUR = 60
OLDER = (
    "**These results are of an older recipe**: what is said above of rows, sizes and trials, and "
    "the command, are those of the recipe as it stands. The table is to be run again."
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
        ("Orderings that the paper states", _claims(table, results, ours=False)),
        ("Orderings, asked by us", _claims(table, results, ours=True)),
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
    lines = [line([*head, *words]), line(["---"] * (len(head) + len(words)))]
    for row in table.rows:
        if any(results.values(row.key, column.key, m.key) for m in metrics):
            cells = _cells(row, column, metrics, printed, results, figures, judged)
            found = results.facts(row.key, column.key)
            lines.append(line([*cells, *(_counted(found.get(word, [])) for word in words)]))
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


def line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def judgements(
    table: Table, results: Results, ours: bool | None = None
) -> list[tuple[str, str, str]]:
    """Claim, column, word: for every ordering whose cells were run.

    Parameters
    ----------
    ours : bool, optional
        Only our own questions, or only what the paper states.
    """
    known = {m.key: m for m in table.metrics[results.setting.protocol]}
    titles = {c.key: c.title for c in table.columns}
    found: list[tuple[str, str, str]] = []
    for claim in (c for c in table.claims if ours in (None, c.ours)):
        for column in claim.columns:
            own, than = (results.values(r, column, claim.metric) for r in (claim.row, claim.than))
            if claim.metric in known and own and len(own) == len(than):
                word = compare(own, than, known[claim.metric])
                found.append((claim.text, titles[column], word))
    return found


def _claims(table: Table, results: Results, *, ours: bool) -> list[str]:
    """One row an ordering, one column a column of the table."""
    if results.setting.quick:
        return []
    found = {(text, column): word for text, column, word in judgements(table, results, ours)}
    columns = list(dict.fromkeys(column for _, column in found))
    if not found:
        return []
    lines = [line(["ordering", *columns]), line(["---"] * (len(columns) + 1))]
    texts = dict.fromkeys(text for text, _ in found)
    return lines + [line([text, *(found.get((text, c), "") for c in columns)]) for text in texts]


def _joint(table: Table, results: Results) -> list[str]:
    """Plain sentences: where a claim of several orderings holds, and where it does not."""
    if results.setting.quick:
        return []
    lines = []
    for joint in table.joint:
        parts = [
            f"on {column} " + (f"does not hold ({why})" if why else "holds")
            for column, why in joined(joint, table, results).items()
        ]
        if parts:
            lines.append(f"- {joint.text}: {'; '.join(parts)}.")
    return lines


def joined(joint: Joint, table: Table, results: Results) -> dict[str, str]:
    """By column, what keeps a claim of several orderings from holding; empty where it holds.

    A column is left out where one of them was not run, as in results of an older recipe.
    """
    found = {(text, column): word for text, column, word in judgements(table, results)}
    reasons = {}
    for column in dict.fromkeys(column for _, column in found):
        asked = (*joint.hold, *joint.not_fail)
        words = {text: found[text, column] for text in asked if (text, column) in found}
        if len(words) < len(asked):
            continue
        missed = [t for t in joint.hold if words[t] != "holds"]
        lost = [t for t in joint.not_fail if words[t] == "fails"]
        reasons[column] = ", ".join(f"{t}: {words[t]}" for t in (*missed, *lost))
    return reasons


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


def command(results: Results) -> str:
    """The command that makes these results, with two processes where one takes over an hour."""
    jobs = max(results.machine["processes"], 2 if results.minutes > HOUR else 1)
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
    fewer = [
        f"{column.title} has the first {n}"
        for column in table.columns
        if 0
        < (n := len({run.seed for run in results.runs if run.column == column.key}))
        < len(setting.seeds)
    ]
    seeds += f" ({'; '.join(fewer)})" if fewer else ""
    processes = machine["processes"]
    found = [
        f"### {table.title}: {setting.protocol} protocol ({kind})",
        f"```console\n$ {command(results)}\n```",
        f"Seeds {seeds}; {len(results.runs)} runs, {results.minutes:.1f} minutes of processor time "
        f"in all ({processes} {'process' if processes == 1 else 'processes'}); "
        f"torch {results.versions.get('torch', '?')}.{_origins(results)}",
        *([] if store.is_current(table, results) else [OLDER]),
        table_text(table, results),
    ]
    found += [f"![{title}](figures/{name})" for title, name, _ in drawn(table, results)]
    return found


def _origins(results: Results) -> str:
    """How many runs were made by which code and on which processor, where that is not one alone."""
    found = ""
    for title, names in (
        ("Versions of the code", [run.code for run in results.runs]),
        ("Processors", [run.processor for run in results.runs]),
    ):
        counts = Counter(names)
        if len(counts) > 1 or "" in counts:
            each = (f"{n} {name or 'not recorded'}" for name, n in counts.most_common())
            found += f" {title}: {', '.join(each)}."
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


def _linked(of: Paper) -> list[str]:
    """Links to the pages of its methods."""
    return [f"[{methods()[name].title}](../methods/{name}.md)" for name in of.methods]


def page(name: str, folder: Path = store.FOLDER) -> str:
    """The page of a paper, of all its stored results."""
    wanted = paper(name)
    kept = store.stored(folder, name)
    parts = [f"# {wanted.title}", wanted.citation, RULE]
    for protocol, words in wanted.protocols.items():
        parts.append(f"Protocol `{protocol}`: {words}")
    if wanted.methods:
        parts.append(f"What the methods do, and their options: {', '.join(_linked(wanted))}.")
    parts += ["## What agrees and what does not", findings(name)]
    for table in wanted.tables:
        own = shown([r for r in kept if r.table == table.key])
        parts.append(f"## {table.title}")
        if table.note:
            parts.append(table.note)
        if not own:
            parts.append("Not run yet.")
        for results in own:
            parts += _section(table, results)
    evidence = store.studies(folder, name)
    parts += ["## Evidence", *evidence] if evidence else []
    return "\n\n".join(parts) + "\n"
