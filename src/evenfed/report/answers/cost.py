"""What it cost, and what left the clients."""

from __future__ import annotations

import pandas as pd

from evenfed.core.errors import EvenfedError
from evenfed.methods.base import EVALUATION
from evenfed.report.answers.chapter import Chapter
from evenfed.report.charts import BarRow, Bars
from evenfed.report.sections import Grid, Section
from evenfed.report.words import count, listed, seconds, size
from evenfed.runs.table import LOCAL


def cost(chapter: Chapter) -> Section:
    """Rounds, bytes, seconds; means over the runs of a method."""
    rows, bars = [], {}
    for method, own in chapter.by_method():
        found = [r.measured for r in own if r.measured is not None]
        mean = pd.DataFrame([m["cost"] for m in found]).mean()
        rounds = found[0]["rounds"]
        bars[chapter.label(method)] = mean
        rows.append(
            [chapter.label(method), f"{rounds}", f"{mean['exchanges']:g}",
             size(mean["bytes_down"]), size(mean["bytes_up"]), seconds(mean["seconds"]),
             f"{mean['void_rounds']:g}", found[0]["engine"].split(" ")[0]]
        )  # fmt: skip
    head = ["method", "rounds", "exchanges", "to clients", "from clients", "time", "void rounds",
            "engine"]  # fmt: skip
    grid = Grid("cost", "A run, mean over seeds" if len(chapter.seeds) > 1 else "A run", head, rows)
    first = next(iter(bars.values()))
    if chapter.single:
        said = [
            f"{count(chapter.first['rounds'], 'round')} took {seconds(first['seconds'])} here; "
            f"{size(first['bytes_down'])} went to the clients and {size(first['bytes_up'])} came "
            "back, all clients together."
        ]
        figures = []
    else:
        traffic = {m: (b["bytes_down"] + b["bytes_up"]) / 1e6 for m, b in bars.items()}
        times = {m: float(b["seconds"]) for m, b in bars.items()}
        least, most = min(traffic, key=lambda m: traffic[m]), max(traffic, key=lambda m: traffic[m])
        said = [
            f"Least is sent with {least} ({size(1e6 * traffic[least])} a run), most with {most} "
            f"({size(1e6 * traffic[most])})."
        ]
        panels = [BarRow("megabytes, both ways", list(traffic.values())),
                  BarRow("seconds", list(times.values()))]  # fmt: skip
        text = " ".join(f"{m}: {size(1e6 * traffic[m])}, {seconds(times[m])}." for m in bars)
        figures = [Bars("cost", "Cost of a run", text, "", list(bars), panels, shared=False)]
    notes = ["Traffic is counted as exchanged tensors; evaluation is not counted. Time is of this "
             "machine, evaluation included."]  # fmt: skip
    if chapter.alone is not None:
        notes.append("Training Local for reference is no part of it.")
    return Section("cost", "What did it cost?", said, figures, [grid], notes)


def ledger(chapter: Chapter) -> Section:
    """What left the clients: before training, and by each method."""
    before: dict[str, None] = {}
    rows, alone = [], []
    for method, own in chapter.by_method():
        assert own[0].measured is not None
        texts = own[0].measured["ledger"]
        try:
            built = own[0].config.built_method()
        except EvenfedError:  # the method lives outside this package and is not registered now
            rows += [[method, text, "", ""] for text in texts]
            continue
        reveals = built.reveals
        # a run may have been recorded when an instance declared all that its class does
        known = {r.meaning for r in (*reveals, *type(built).reveals)}
        before |= dict.fromkeys(text for text in texts if text not in known)
        rows += [[method, r.meaning, r.size, "yes" if r.summed else "no"] for r in reveals]
        if not all(r.summed for r in reveals):
            alone.append(method)
    for text in [] if chapter.alone is None else chapter.alone["ledger"]:
        # Local sends nothing but counts when it is evaluated
        rows.append([LOCAL, text, EVALUATION.size, "yes" if EVALUATION.summed else "no"])
    rows = [["all (before training)", text, "", ""] for text in before] + rows
    sends = [m for m in chapter.methods if any(r[0] == m and r[2] == "rows" for r in rows)]
    if sends:
        said = [f"With {listed(sends)} rows of data leave a client; otherwise none does."]
    else:
        said = ["No example leaves a client; all that does is listed here."]
    if len(alone) == len(chapter.methods):
        said.append("The server needs some of it from each client separately.")
    elif alone:
        said.append(f"{listed(alone)}: the server needs some of it from each client separately.")
    else:
        said.append("Sums over clients suffice, so secure aggregation could hide each one's part.")
    head = ["method", "what leaves a client", "size", "a sum over clients suffices"]
    grid = Grid("ledger", "Privacy ledger", head, rows)
    return Section("ledger", "What left the clients?", said, grids=[grid])
