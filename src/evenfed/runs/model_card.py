"""The card of an exported model: what it is, what was measured, what it must not be used for."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from evenfed.core.errors import EvenfedError, counted
from evenfed.data.inputs import Array, Columns
from evenfed.runs.architecture import Architecture
from evenfed.runs.artifact import Artifact
from evenfed.runs.config import RunConfig
from evenfed.runs.folder import CONFIG
from evenfed.runs.shares import rates
from evenfed.runs.study import directory
from evenfed.runs.table import HEADINGS, default_metrics

if TYPE_CHECKING:
    from evenfed.runs.result import Result

_LISTED = 30
"""Clients that a card lists; of more, the worst."""


@dataclass(frozen=True)
class Facts:
    """What a card says besides the model itself, all of it measured in the run.

    Parameters
    ----------
    measured : mapping
        As in `result.json`: task, metrics, intervals, groups, certificate, notes, ledger, dropped.
    clients : DataFrame
        One row a client: examples, accuracy, loss.
    cells : DataFrame
        One row a (client, group), see `Evaluation.cells`.
    """

    config: RunConfig
    measured: Mapping[str, Any]
    clients: pd.DataFrame
    cells: pd.DataFrame
    folder: Path | None = None


def facts_of(result: Result, client: str | None) -> Facts:
    """The facts of a trained run, measured again on test data; of one client if it is named."""
    evaluation = result.evaluation("test")
    if client is not None:
        evaluation = evaluation.only(client)
    measured = {
        "task": result._task(),
        "metrics": evaluation.summary(),
        "intervals": {
            k: [v.low, v.high] for k, v in evaluation.intervals(seed=result.config.seed).items()
        },
        "groups": evaluation.groups().to_dict(orient="index"),
        "dropped": {},
        "certificate": None if result.certificate is None else result.certificate.table(),
        "notes": list(result.data.schema.notes),
        "ledger": [*result.data.schema.ledger, *(r.meaning for r in result.method.reveals)],
    }
    return Facts(
        result.config, measured, evaluation.clients(), evaluation.cells(), result.folder
    )  # fmt: skip


def card(artifact: Artifact, facts: Facts, file: Path, command: Sequence[str]) -> str:
    """The card as Markdown."""
    description = artifact.description
    title = f"{description.origin['title']} on {description.schema.name}"
    parts = [
        f"# Model card: {title}",
        _model(artifact, facts, file),
        _data(artifact, facts),
        _results(artifact, facts),
        *_certificate(facts),
        _limits(artifact, facts),
        _ledger(facts),
        _made(artifact, facts, command),
        _use(artifact, file),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _model(artifact: Artifact, facts: Facts, file: Path) -> str:
    description = artifact.description
    schema, origin = description.schema, description.origin
    method = _paper(facts.config)
    rows = [
        ["file", f"`{file.name}`"],
        ["method", f"{origin['title']}{method}"],
        ["model", _architecture(description.architecture)],
        ["parameters", f"{sum(p.numel() for p in artifact.module.parameters())}"],
        ["predicts", _predicts(artifact)],
        ["reads", _reads(artifact)],
    ]
    if origin["client"] is not None:
        rows.append(
            [
                "whose",
                f"the model that client `{origin['client']}` uses; all figures are of its examples",
            ]
        )
    if origin["preference"] is not None:
        rows.append(["preference", f"{origin['preference']:g} (in [0, 1]; larger is fairer)"])
    seen = isinstance(description.inputs, Columns) and (
        set(description.inputs.names) & set(schema.groups.names)
    )
    if len(schema.groups) > 1:
        rows.append(["sees the sensitive attribute", "yes" if seen else "no"])
    return "## Model\n\n" + _table(["", ""], rows)


def _paper(config: RunConfig) -> str:
    try:
        return f" ({config.built_method().paper})"
    except EvenfedError:  # a method from outside the package that is not registered now
        return ""


def _architecture(found: Architecture) -> str:
    kind = found["kind"]
    if kind == "builtin":
        options = ", ".join(f"{k}={v}" for k, v in found["options"].items())
        return f"built-in `{found['name']}`" + (f" ({options})" if options else "")
    if kind == "mixture":
        count = len(found["members"])
        return f"mean of {count} models, each {_architecture(found['members'][0])}"
    if kind == "chain":
        body = "the features" if found["body"] is None else _architecture(found["body"])
        widths = " - ".join(str(size[1]) for size in found["layers"] if size)
        return f"{body} without its last layer, then linear layers of width {widths}"
    return "a module of its maker's own"


def _predicts(artifact: Artifact) -> str:
    schema = artifact.description.schema
    if schema.kind == "regression":
        return f"{schema.label}, a number"
    names = schema.class_names or tuple(str(c) for c in range(schema.classes))
    favourable = f"; `{names[1]}` is the favourable one" if schema.kind == "binary" else ""
    shown = ", ".join(f"`{name}`" for name in names[:12]) + (", ..." if len(names) > 12 else "")
    return f"{schema.label}: {shown}{favourable}"


def _reads(artifact: Artifact) -> str:
    inputs = artifact.description.inputs
    if isinstance(inputs, Columns):
        return "raw columns " + ", ".join(f"`{name}`" for name in inputs.names)
    if isinstance(inputs, Array):
        size = " x ".join(map(str, inputs.shape))
        return f"numbers {size}, divided by {inputs.scale:g} inside"
    return f"{math.prod(artifact.description.schema.shape)} tokens"


def _data(artifact: Artifact, facts: Facts) -> str:
    schema, task = artifact.description.schema, facts.measured["task"]
    rows = [
        ["dataset", f"`{schema.name}`"],
        ["clients", f"{task['clients']}"],
        ["training examples", "not counted" if task["trained_on"] is None
         else f"{task['trained_on']}"],
        ["test examples behind the figures below", f"{int(facts.clients['examples'].sum())}"],
        ["groups", ", ".join(schema.groups.labels) + f" ({', '.join(schema.groups.names)})"
         if len(schema.groups) > 1 else "none"],
    ]  # fmt: skip
    return "## Data\n\n" + _table(["", ""], rows)


def _results(artifact: Artifact, facts: Facts) -> str:
    measured, metrics = facts.measured, facts.measured["metrics"]
    rows = []
    for name in default_metrics(measured):
        if name not in metrics:
            continue
        heading = HEADINGS.get(name, name).format(tail=f"{100 * (metrics['tail'] or 0.1):g}")
        low, high = measured["intervals"].get(name, (None, None))
        rows.append([heading, _number(metrics[name]), _span(low, high)])
    if "constant_accuracy" in metrics:
        always = "accuracy of always predicting the most frequent class"
        rows.append([always, _number(metrics["constant_accuracy"]), ""])
    elif "constant_mean_squared_error" in metrics:
        always = "mean squared error of always predicting the mean"
        rows.append([always, _number(metrics["constant_mean_squared_error"]), ""])
    text = (
        "## Results on test data\n\nIntervals cover 95 %. Those of rates and accuracies are "
        "Wilson's, of the worst client, worst group and standard deviation over clients simulated, "
        "of losses by client and group normal, of R² and mean squared errors by the delta method, "
        "the others are "
        "bootstrapped over the test examples. They speak of new examples of these clients, not of "
        "other clients or seeds. The bootstrap of a largest difference leans upwards: take its "
        "upper end as a bound.\n\n" + _table(["metric", "value", "interval"], rows)
    )
    if len(artifact.description.schema.groups) > 1:
        text += "\n\n### By group\n\n" + _by_group(facts.cells)
    return text + "\n\n### By client\n\n" + _by_client(facts.cells)


def _certificate(facts: Facts) -> list[str]:
    """What the method could prove, or measure, about its own result; nothing for most methods."""
    made = facts.measured.get("certificate")
    if not made:
        return []
    return ["## Certificate\n\n" + "\n".join(f"- {line}" for line in made["sentences"])]


def _by_group(cells: pd.DataFrame) -> str:
    return _rates(rates(cells, "group"), "group")


def _by_client(cells: pd.DataFrame) -> str:
    found = rates(cells, "client")
    value = "accuracy" if "accuracy" in found else "loss"
    ordered = found.sort_values(value, ascending=value == "accuracy", kind="stable")
    left = len(found) - _LISTED
    more = f"\n\n{left} clients with better values are not listed." if left > 0 else ""
    return _rates(ordered.head(_LISTED), "client") + more


def _rates(found: pd.DataFrame, heading: str) -> str:
    """A table of rates, each with its interval."""
    names = [c for c in found.columns if not c.endswith(("_low", "_high")) and c != "examples"]
    rows = []
    for name, row in found.iterrows():
        line = [str(name), f"{row['examples']:g}"]
        for rate in names:
            span = _span(row.get(f"{rate}_low"), row.get(f"{rate}_high"))
            line.append(_number(row[rate]) + (f" ({span})" if span else ""))
        rows.append(line)
    return _table([heading, "examples", *(c.replace("_", " ") for c in names)], rows)


def _limits(artifact: Artifact, facts: Facts) -> str:
    schema, clients = artifact.description.schema, facts.clients
    lines = list(facts.measured["notes"])
    empty = [str(name) for name, n in clients["examples"].items() if n == 0]
    if empty:
        few = counted(len(empty), "client")
        lines.append(f"without a test example, so that nothing is known of it: {few}")
    there = {str(name) for name in facts.measured["groups"]}
    lines += [
        f"group '{label}' has no test example: nothing is known of it"
        for label in schema.groups.labels
        if len(schema.groups) > 1 and label not in there
    ]
    if dropped := facts.measured["dropped"]:
        words = ", ".join(f"{n} times '{reason}'" for reason, n in dropped.items())
        lines.append(f"replies of clients were left out in training: {words}")
    if len(schema.groups) == 1:
        lines.append("no sensitive attribute was named: fairness to groups was not measured")
    lines += [
        "it was measured on the test examples of the clients above; on other people, places or "
        "times it may be worse, and its disparities larger",
        "one run with one seed: another seed gives another model",
    ]
    if isinstance(artifact.description.inputs, Columns):
        lines.append("a level of a column that training rows did not have counts as none of them")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _ledger(facts: Facts) -> str:
    lines = facts.measured["ledger"] or ["nothing"]
    return "## What left the clients\n\n" + "\n".join(f"- {line}" for line in lines)


def _made(artifact: Artifact, facts: Facts, command: Sequence[str]) -> str:
    config = facts.config
    versions = config.versions or artifact.description.origin["versions"]
    rows = [
        ["seed", f"{config.seed}"],
        ["rounds", f"{config.rounds}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
    ]
    if facts.folder is not None:
        place = directory(facts.folder)
        again = shlex.join(["evenfed", "run", f"{place}/{CONFIG}", "--out", "NEW"])
        where = f"in the folder that holds `{place.split('/')[0]}`"
        if config.data.relative_files:
            where += "; where the silo files have moved, add `--silos FILES`"
        rows.append(["run", f"`{again}`, {where}"])
    written = config if facts.folder is None else config.anchored(facts.folder)
    rows.append(["exported by", f"`{shlex.join(command)}`"])
    return (
        "## How it was made\n\n" + _table(["", ""], rows)
        + f"\n\nSettings of the run:\n\n```toml\n{written.toml().strip()}\n```"
    )  # fmt: skip


def _use(artifact: Artifact, file: Path) -> str:
    inputs = artifact.description.inputs
    rows = "pandas.read_csv('rows.csv')" if isinstance(inputs, Columns) else "..."
    return (
        "## Use\n\n```python\nimport evenfed as ef\nimport pandas\n\n"
        f"model = ef.load_model('{file.name}')\nmodel.predict({rows})\n```"
    )


def _number(value: Any) -> str:
    if value is None or not math.isfinite(value):
        return "undefined"
    return f"{value:.3f}"


def _span(low: float | None, high: float | None) -> str:
    if low is None or high is None or math.isnan(low):
        return ""
    return f"{low:.3f} to {high:.3f}"
