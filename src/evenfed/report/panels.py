"""Sections that only some methods have: how FedEBA+, SER, FOCUS and PFFL came to their result.

A panel reads what the run wrote down; it works on a run that is not finished, and is left out
where there is nothing to show. What it needs of a method:

| panel | lines of the history | `diagnostics` of the result |
|---|---|---|
| weights | `weights` by client or `weights_quartiles`, `effective_clients`, `fair_angle` | |
| signs | | `geometry`, `geometry_by_client`, and `geometry` of the reference |
| clusters | `cluster_shares`, `effective_clusters`, `validation_loss_by_m` | `memberships` |
| bounds | `multipliers`, `group_losses` | `cells`, `bounds`; and the certificate |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evenfed.report.charts import Figure, Heat, Line, Lines
from evenfed.report.sections import Grid, Section
from evenfed.report.signs import signs
from evenfed.report.words import count, number, percent
from evenfed.runs.record import Record

_LINES = 10
"""Clients that get a line of their own; more are shown as a matrix."""
_LABELLED = 5
"""Of them with a colour and a name."""
_ROWS, _COLUMNS = 40, 40
"""Of a matrix."""
_NAMED = 12
"""Clients that are named in a sentence."""


def panels_of(record: Record, beside: Sequence[Record] = ()) -> list[Section]:
    """The sections of a run that belong to its method; `beside` are others of the same study.

    Examples
    --------
    >>> import evenfed as ef
    >>> record = ef.train("fedeba", "synthetic", rounds=2).record()
    >>> [section.key for section in panels_of(record)]
    ['weights']
    """
    found = (weights(record), signs(record, beside), clusters(record), bounds(record))
    return [section for section in found if section is not None]


def _diagnostics(record: Record) -> Mapping[str, Any]:
    return {} if record.measured is None else record.measured.get("diagnostics") or {}


def _with(record: Record, name: str) -> tuple[list[float], list[Any]]:
    """Rounds, counted from 1, whose line holds a value, and the values."""
    lines = [line for line in record.history if line.get(name) is not None]
    return [line["round"] + 1 for line in lines], [line[name] for line in lines]


def _line(record: Record, name: str, label: str) -> Line | None:
    rounds, values = _with(record, name)
    return Line(label, rounds, values) if rounds else None


def _ends(values: Sequence[float | None], places: int = 3) -> str:
    return f"from {number(values[0], places)} to {number(values[-1], places)}"


# FedEBA+ and other methods whose weights follow losses


def weights(record: Record) -> Section | None:
    """Whom the server listened to, and how even the losses were."""
    rounds, found = _with(record, "weights")
    spread = _line(record, "effective_clients", "effective clients")
    if spread is None or (not rounds and not _with(record, "weights_quartiles")[0]):
        return None
    of = f" of {len(found[-1])}" if rounds else ""
    said = [
        f"In the last round the weights count like {number(spread.y[-1], 1)} equal clients{of}: "
        "the fewer, the more the server listens to some."
    ]
    figures: list[Figure] = []
    if rounds:
        said.insert(0, _largest(rounds, found))
        figures.append(_weight_figure(rounds, found))
    else:
        figures.append(_quartile_figure(*_with(record, "weights_quartiles")))
    figures += _angle_figures(record, said)
    return Section("weights", "Whom did the server listen to?", said, figures)


def _largest(rounds: Sequence[float], found: Sequence[Mapping[str, float]]) -> str:
    """The largest weight of all rounds and of the last one."""
    peak = max(range(len(found)), key=lambda t: max(found[t].values()))
    (top, most), (last, share) = (
        max(line.items(), key=lambda item: item[1]) for line in (found[peak], found[-1])
    )
    return (
        f"Clients with larger losses weigh more: at most {top}, {number(most)} in round "
        f"{rounds[peak]:g}. In the last round it is {last}, {number(share)}, where equal weights "
        f"would be {number(1 / len(found[-1]))}."
    )


def _weight_figure(rounds: Sequence[float], found: Sequence[Mapping[str, float]]) -> Figure:
    clients = {name for line in found for name in line}
    mean = {n: sum(line.get(n, 0.0) for line in found) / len(found) for n in clients}
    names = sorted(clients, key=lambda n: (-mean[n], n))
    always = all(len(line) == len(names) for line in found)
    title = "Weight of every client by round"
    text = f"Weights of {count(len(names), 'client')} in {count(len(rounds), 'round')}."
    if always and len(names) <= _LINES and len(rounds) > 1:
        lines = [
            Line(name, rounds, [line[name] for line in found], muted=i >= _LABELLED)
            for i, name in enumerate(names)
        ]
        if len(names) > _LABELLED:
            title += f"; grey: all but the {_LABELLED} with the largest mean weight"
        even = [("equal weights", 1 / len(names))]
        return Lines("weights", title, text, "round", "weight", lines, even)
    shown = names[:_ROWS]
    step = -(-len(rounds) // _COLUMNS)
    columns = range(0, len(rounds), step)
    if len(shown) < len(names):
        title += f"; the {len(shown)} with the largest mean weight"
    values = [[found[t].get(name) for t in columns] for name in shown]
    high = max((v for row in values for v in row if v is not None), default=1.0)
    text += " Empty: the client took no part."
    heads = [f"{rounds[t]:g}" for t in columns]
    return Heat("weights", title, text, shown, heads, values, "round", high=high)


def _quartile_figure(rounds: Sequence[float], found: Sequence[Sequence[float]]) -> Figure:
    low, lower, middle, upper, high = (list(part) for part in zip(*found, strict=True))
    lines = [Line("middle half", rounds, middle, lower, upper), Line("largest", rounds, high)]
    text = f"In the last round weights reach from {low[-1]:.2g} to {high[-1]:.2g}."
    return Lines("weights", "Weights of the clients by round", text, "round", "weight", lines)


def _angle_figures(record: Record, said: list[str]) -> list[Figure]:
    angle = _line(record, "fair_angle", "angle")
    if angle is None:
        return []
    degrees = [y for y in angle.y if y is not None]
    _, aligned = _with(record, "aligned")
    said.append(
        f"The angle between the clients' losses and equal losses goes {_ends(degrees, 1)} degrees; "
        f"at 0 all have the same loss. Local steps were aligned with the fair gradient in "
        f"{sum(map(bool, aligned))} of {count(len(aligned), 'round')}."
    )
    if len(degrees) < 2:
        return []
    text = f"The fairness angle goes {_ends(degrees, 1)} degrees."
    return [Lines("angle", "Fairness angle by round", text, "round", "degrees", [angle])]


# FOCUS


def clusters(record: Record) -> Section | None:
    """Which models clients share."""
    rounds, shares = _with(record, "cluster_shares")
    if not rounds:
        return None
    models = [f"model {i + 1}" for i in range(len(shares[-1]))]
    if len(models) == 1:
        said = ["One model was trained, the same for all clients."]
        return Section("clusters", "Who shares a model?", said, grids=_trials(record))
    effective = _with(record, "effective_clusters")[1][-1]
    said = [
        f"{len(models)} models were trained; clients use them like {number(effective, 1)} equal "
        "ones."
    ]
    found = _diagnostics(record)
    members: Mapping[str, Sequence[float]] = found.get("memberships") or {}
    said += _who(models, members)
    if missing := found.get("clients_without_label"):
        said.append(
            f"{count(missing, 'client')} never took part; the server does not know their labels."
        )
    figures: list[Figure] = []
    if members:
        figures.append(_membership_figure(models, members, said[1:]))
    if len(rounds) > 1:
        lines = [Line(name, rounds, [s[i] for s in shares]) for i, name in enumerate(models)]
        ends = " ".join(f"{line.label}: {_ends(line.y)}." for line in lines)
        figures.append(
            Lines("shares", "Share of the clients by model", ends, "round", "share", lines)
        )
    return Section("clusters", "Who shares a model?", said, figures, _trials(record))


def _who(models: Sequence[str], members: Mapping[str, Sequence[float]]) -> list[str]:
    said = []
    for i, model in enumerate(models):
        own = [name for name, row in members.items() if row[i] > 0.9]
        if own:
            more = f" and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
            said.append(f"{model.capitalize()}: {', '.join(own[:_NAMED])}{more}.")
    mixed = sum(max(row) <= 0.9 for row in members.values())
    if mixed:
        said.append(f"{count(mixed, 'client')} mix models: no label is above 0.9.")
    return said


def _membership_figure(
    models: Sequence[str], members: Mapping[str, Sequence[float]], said: Sequence[str]
) -> Heat:
    names = list(members)[:_ROWS]
    title = "How far each model is a client's own"
    if len(names) < len(members):
        title += f"; the first {len(names)} clients"
    text = " ".join(said) or "No client has a clear model."
    return Heat("memberships", title, text, names, models, [list(members[n]) for n in names])


def _trials(record: Record) -> list[Grid]:
    """What `m = "auto"` saw on validation data."""
    _, found = _with(record, "validation_loss_by_m")
    if not found or len(found[0]) < 2:
        return []
    rows = [[m, number(loss, 4)] for m, loss in found[0].items()]
    caption = "Validation loss by number of models"
    return [Grid("trials", caption, ["models", "loss"], rows)]


# PFFL


def bounds(record: Record) -> Section | None:
    """Which groups pushed, whether their losses came below their bounds, and what is proved."""
    rounds, multipliers = _with(record, "multipliers")
    if not rounds:
        return None
    found = _diagnostics(record)
    names = found.get("cells") or [f"group {i + 1}" for i in range(len(multipliers[-1]))]
    said = _in_words(record)
    said.append(_pushing(names, multipliers[-1]))
    _, losses = _with(record, "group_losses")
    figures: list[Figure] = []
    if len(rounds) > 1:
        limits = _limits(names, found)
        lines = [Line(n, rounds, [row[i] for row in losses]) for i, n in enumerate(names)]
        shown = [line for line in lines if any(y is not None for y in line.y)]
        # a round of which no client with the group took part has no loss of it
        last = {line.label: [y for y in line.y if y is not None][-1] for line in shown}
        text = " ".join(f"{label} ends at {number(y)}." for label, y in last.items())
        heading = "Loss of every group by round, on training data"
        figures.append(Lines("group-losses", heading, text, "round", "loss", shown, limits))
        lines = [Line(n, rounds, [row[i] for row in multipliers]) for i, n in enumerate(names)]
        text = " ".join(f"{line.label} ends at {number(line.y[-1], 2)}." for line in lines)
        heading = "Multiplier of every group by round"
        figures.append(Lines("multipliers", heading, text, "round", "multiplier", lines))
    notes = ["Losses by round are those of the model of that round; the model handed out may be "
             "their mean, which the certificate speaks of."]  # fmt: skip
    return Section("bounds", "Did every group stay below its bound?", said, figures, notes=notes)


def _pushing(names: Sequence[str], last: Sequence[float]) -> str:
    total = sum(last)
    if total < 0.01:
        return "In the last round no group pushes: no bound is near."
    top = max(range(len(names)), key=lambda i: last[i])
    return (
        f"In the last round {names[top]} pushes most: its multiplier is {number(last[top], 2)} of "
        f"{number(total, 2)} in all."
    )


def _limits(names: Sequence[str], found: Mapping[str, Any]) -> list[tuple[str, float]]:
    given = found.get("bounds")
    if not given or not found.get("bounded"):
        return []
    known = [(name, b) for name, b in zip(names, given, strict=True) if b is not None]
    if len({b for _, b in known}) == 1:
        return [("bound", known[0][1])]
    return [(f"bound of {name}", b) for name, b in known]


def _in_words(record: Record) -> list[str]:
    """The certificate for a reader who knows none of its terms."""
    made = None if record.measured is None else record.measured.get("certificate")
    if not made:
        return []
    cells = [c for c in made["cells"] if c["excess"] is not None]
    met = [c for c in cells if c["excess"] <= made["tolerance"]]
    said = []
    if made["status"] != "no bounds" and cells:
        worst = max(cells, key=lambda c: c["excess"])
        where = "Closest to its bound" if worst["excess"] <= 0 else "Furthest above its bound"
        options = record.config.method.completed().options
        said.append(
            "No bound was chosen: `zeta = 0` asks for losses of 0, which no model has, so the "
            "largest loss of a group was made small. On training data it is that of "
            f"{worst['name']}, {number(worst['loss'])}."
            if options.get("zeta") == 0 and options.get("reference") == "none"
            else f"On training data the final model keeps {len(met)} of "
            f"{count(len(cells), 'bound')}. {where} is {worst['name']}: loss "
            f"{number(worst['loss'])}, bound {number(worst['bound'])}."
        )
    if made["no_certificate"]:
        return [*said, f"Nothing is proved about what could be reached: {made['no_certificate']}."]
    proved = {
        "feasible": "All bounds together can be met by a model of this kind: one was found.",
        "infeasible": "It is proved that no model of this kind within reach meets all bounds.",
        "undetermined": "Whether all bounds can be met together was not decided.",
        "no bounds": "There are no bounds: the largest loss is made as small as possible.",
    }
    said.append(proved[made["status"]])
    if made["minimax"] is not None:
        said.append(
            f"No such model brings the largest loss of a group below {number(made['minimax'][0])}."
        )
    if made["status"] == "feasible" and made["objective_excess"] is not None:
        room = made["objective_excess"]
        over = f" ({percent(room / made['objective'])})" if made["objective"] else ""
        said.append(
            f"Its mean loss is at most {number(room)}{over} above the best that the bounds allow."
        )
    said.append("All of this is about training data; people who were not seen are another matter.")
    return said


__all__ = ["bounds", "clusters", "panels_of", "signs", "weights"]
