"""The metrics of one run as lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenfed.core.errors import counted
from evenfed.runs.table import HEADINGS, constant, default_metrics, heading

_WIDTH = 28


def run_text(measured: Mapping[str, Any]) -> str:
    """The metrics of one run as lines.

    Examples
    --------
    >>> from evenfed.runs.table import REGRESSION
    >>> task = {"kind": "regression", "title": "FedAvg", "clients": 2, "groups": ["all"]}
    >>> metrics = dict.fromkeys(REGRESSION, 0.5) | {"tail": 0.1}
    >>> run = {"task": task, "dataset": "toy", "seed": 0, "rounds": 1, "metrics": metrics}
    >>> print(run_text(run | {"intervals": {}}).splitlines()[1].split())
    ['loss', '↓', '0.500']
    """
    task, metrics = measured["task"], measured["metrics"]
    head = (
        f"{task['title']} on {measured['dataset']}: {counted(task['clients'], 'client')}, "
        f"{counted(measured['rounds'], 'round')}, seed {measured['seed']}; on test data"
    )
    lines = [head]
    for name in default_metrics(measured):
        value = metrics.get(name)
        low, high = measured["intervals"].get(name, (None, None))
        span = "" if low is None or high is None else f"  95 % interval {_n(low)} to {_n(high)}"
        shown = "undefined" if value is None else _n(value)
        lines.append(f"  {heading(name, metrics.get('tail')):<{_WIDTH}} {shown}{span}")
    lines += _references(measured)
    if task["kind"] == "regression" and task.get("label"):
        lines.append(_units(task))
    if certificate := measured.get("certificate"):
        lines += ["certificate", *(f"  {sentence}" for sentence in certificate["sentences"])]
    return "\n".join(lines)


def _references(measured: Mapping[str, Any]) -> list[str]:
    """The constant predictor and Local, both by the same metric."""
    metrics = measured["metrics"]
    regression = measured["task"]["kind"] == "regression"
    name = "mean_squared_error" if regression else "accuracy"
    said, lines = f"{HEADINGS[name]}, for reference", []
    if (always := constant(metrics).get(name)) is not None:
        lines.append(f"  {'constant predictor':<{_WIDTH}} {_n(always)}  {said}")
    reference = measured.get("reference", {})
    alone = reference.get("metrics", {}).get(name)
    if alone is None:
        return lines
    if sample := reference.get("sample"):
        own = sample["metrics"].get(name)
        beside = "" if own is None else f"; the run on the same {sample['clients']}: {_n(own)}"
        said += f" (on {sample['clients']} of {sample['of']} clients drawn by seed{beside})"
    lines.append(f"  {'clients alone (Local)':<{_WIDTH}} {_n(alone)}  {said}")
    return lines


def _units(task: Mapping[str, Any]) -> str:
    """In which unit numbers are."""
    label = task["label"]
    others = ", differences of means in that unit" if len(task["groups"]) > 1 else ""
    scale = task.get("scale", 1.0)
    of = "" if scale == 1 else f", of {label} divided by {_n(scale)}"
    return (
        f"  mean squared errors are in the square of the unit of {label}{others}; losses are those "
        f"of training{of}"
    )


def _n(value: float) -> str:
    """Three places; of large numbers four digits."""
    return f"{value:.3f}" if abs(value) < 1e5 else f"{value:.4g}"
