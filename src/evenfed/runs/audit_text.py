"""An audit as lines of text."""

from __future__ import annotations

import math

import pandas as pd

from evenfed.core.errors import counted
from evenfed.metrics.bootstrap import Interval
from evenfed.runs.audit import Audit


def text(result: Audit) -> str:
    """The audit as lines."""
    task = result.measured()["task"]
    lines = [
        f"audit of {result.model.path.name}: {counted(task['clients'], 'client')}, "
        f"{counted(task['tested_on'], 'row')}"
        + (f", groups by {', '.join(task['sensitive'])}" if len(task["groups"]) > 1 else "")
    ]
    for name, found in result.intervals.items():
        lines.append(f"  {name.replace('_', ' '):<34} {_shown(found)}")
    if len(task["groups"]) > 1:
        lines += ["by group", _frame(result.groups())]
    lines += ["by client", _frame(result.clients())]
    lines += [f"note: {note}" for note in result.notes]
    lines += [limit.text for limit in result.limits]
    return "\n".join(lines)


def _shown(found: Interval) -> str:
    if math.isnan(found.estimate):
        return "undefined"
    span = "" if found.low is None else f"  95 % interval {found.low:.3f} to {found.high:.3f}"
    return f"{found.estimate:.3f}{span}"


def _frame(frame: pd.DataFrame) -> str:
    """Rates with their intervals in one column."""
    shown = {}
    for name in frame.columns:
        if str(name).endswith(("_low", "_high")):
            continue
        low, high = frame.get(f"{name}_low"), frame.get(f"{name}_high")
        values = ["undefined" if math.isnan(v) else f"{v:.3f}".removesuffix(".000")
                  for v in frame[name]]  # fmt: skip
        if low is not None and high is not None:
            values = [
                value if math.isnan(a) else f"{value} ({a:.3f}-{b:.3f})"
                for value, a, b in zip(values, low, high, strict=True)
            ]
        shown[str(name).replace("_", " ")] = values
    text = pd.DataFrame(shown, index=frame.index).to_string()
    return "\n".join(f"  {line}" for line in text.splitlines())
