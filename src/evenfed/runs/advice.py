"""Advice on data: what clients and groups look like, and which methods fit, with the figures.

Figures come from sums that clients could send (`data.shift`) and from quick runs of linear models:
FedAvg, Local, FedMinMax, FOCUS, and PFFL's certificate, which solves for the minimax value. They
are judged on training data (a linear model hardly learns rows by heart) where one model is compared
with one, and on validation data where the number of models differs. A method is recommended only
where what it could gain is larger than the 95 % interval of that gain. Test data are not touched.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from evenfed.core.errors import counted
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.data.shift import Sums, association, mean_differences, sums
from evenfed.runs.advice_runs import (
    ENOUGH,
    FEW,
    ROUNDS,
    Gain,
    Quick,
    group_losses,
    half,
    minimax,
)

Verdict = Literal["fits", "may help", "little to gain", "not known", "cannot"]
VERDICTS: tuple[Verdict, ...] = ("fits", "may help", "little to gain", "not known", "cannot")
RECOMMENDED = ("fits", "may help")
_CLEAR = 0.05
"""A relative difference of losses below this is called none."""

BY_LOSS = ("qffl", "fedeba", "eba", "prac_fedeba", "term", "afl", "gifair", "aaggff", "propfair")
OWN_MODEL = ("finetune", "ditto", "pfedme", "local")
BY_KIND = ("focus", "ifca")
WORST_GROUP = ("pffl", "fedminmax")
ALIKE_RATES = ("fedfb", "fairfed", "praffl", "hetpfl", "lft_fedavg")


@dataclass(frozen=True)
class Statement:
    """A sentence, and the figures that it rests on."""

    about: str
    text: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Suggestion:
    """What is said about methods; `options` are words of a command that tries the first."""

    verdict: Verdict
    methods: tuple[str, ...]
    why: str
    options: tuple[str, ...] = ()

    def command(self, data: Sequence[str]) -> str:
        """A command that tries it, `data` being the words that name the data; else nothing."""
        if self.verdict not in RECOMMENDED or not data:
            return ""
        return shlex.join(["evenfed", "run", *data, "--method", self.methods[0], *self.options])


@dataclass(frozen=True)
class Advice:
    """What the data look like, and what that says about methods.

    Examples
    --------
    >>> from evenfed.data.registry import load
    >>> print(advise(load("synthetic", seed=0)).statements[0].text)  # doctest: +ELLIPSIS
    3 clients with ... training rows: ...
    """

    statements: tuple[Statement, ...]
    suggestions: tuple[Suggestion, ...]

    def table(self, data: Sequence[str] = ()) -> dict[str, Any]:
        """As JSON can hold it; with commands where words name the data."""
        return {
            "statements": [
                {**asdict(s), "figures": {k: v if v == v else None for k, v in s.figures.items()}}
                for s in self.statements
            ],
            "suggestions": [{**asdict(s), "command": s.command(data)} for s in self.suggestions],
        }

    def text(self, data: Sequence[str] = ()) -> str:
        """For a reader; with commands where words name the data."""
        lines = ["What the data look like"]
        lines += [f"- {s.text}" for s in self.statements]
        lines.append(
            f"\nWhat that says about methods (quick runs: linear models, {ROUNDS} rounds; a first "
            "choice, not a comparison: that is what `evenfed study` makes)"
        )
        for verdict in VERDICTS:
            for found in self.suggestions:
                if found.verdict == verdict:
                    lines.append(f"- {verdict}: {', '.join(found.methods)}. {found.why}")
                    if command := found.command(data):
                        lines.append(f"  try: {command}")
        if not any(found.verdict in RECOMMENDED for found in self.suggestions):
            lines.append("- no method is recommended over fedavg")
        return "\n".join(lines)


def advise(data: str | FederatedDataset, *, seed: int = 0) -> Advice:
    """Look at data and say which methods fit, which cannot, and why.

    Parameters
    ----------
    data : str or FederatedDataset
        A name, or what `ef.load` or `ef.load_silos` returned.
    seed : int
        Of the quick runs.
    """
    if isinstance(data, str):
        data = load(data, seed=seed)
    found = sums(data)
    statements = [*_sizes(found), *_labels(data, found), *_groups(data, found)]
    statements += _features(data, found)
    quick = Quick(data, seed)
    suggestions = [*_cannot(quick), *_clients(quick, statements), *_kinds(quick, statements)]
    if len(data.schema.groups) > 1:
        suggestions += _worst_group(quick, statements)
        suggestions += _rates(data, found, quick, statements)
    allowed = set(quick.applicable)
    kept = [
        replace(s, methods=names, options=s.options if names[0] == s.methods[0] else ())
        for s in suggestions
        if (names := tuple(n for n in s.methods if s.verdict == "cannot" or n in allowed))
    ]
    return Advice(tuple(statements), tuple(kept))


def _sizes(found: Sums) -> list[Statement]:
    size = found.size
    small = int((size < FEW).sum())
    text = (
        f"{counted(len(size), 'client')} with {int(size.sum())} training rows: the smallest has "
        f"{int(size.min())}, the largest {int(size.max())}"
    )
    if small:
        have = "has" if small == 1 else "have"
        text += f"; {small} {have} fewer than {FEW}, which is too few to be judged alone"
    figures = {"clients": float(len(size)), "smallest": size.min(), "largest": size.max()}
    return [Statement("sizes", text, _plain(figures))]


def _labels(data: FederatedDataset, found: Sums) -> list[Statement]:
    schema = data.schema
    if schema.kind == "regression":
        means = found.label / found.size
        variance = (
            found.label2.sum() / found.size.sum() - (found.label.sum() / found.size.sum()) ** 2
        )
        spread = float(np.sqrt(max(variance, 1e-30)))
        apart = float((means.max() - means.min()) / spread)
        text = f"means of the label differ by up to {apart:.2f} of its spread between clients"
        return [Statement("label", text, {"range_over_spread": apart})]
    by_client = found.cells.sum(1)
    shares = by_client / by_client.sum(1, keepdims=True)
    v, p = association(by_client)
    last = schema.classes - 1
    name = schema.class_names[last] if schema.class_names else str(last)
    total = by_client.sum(0) / by_client.sum()
    text = (
        f"class '{name}' has {total[last]:.1%} of the rows, from {shares[:, last].min():.1%} to "
        f"{shares[:, last].max():.1%} by client; labels depend on the client "
        f"{_strength(v)} (Cramer's V {v:.2f}{_chance(p)})"
    )
    figures = {"share": total[last], "lowest": shares[:, last].min(),
               "highest": shares[:, last].max(), "cramers_v": v, "p": p}  # fmt: skip
    return [Statement("label", text, _plain(figures))]


def _groups(data: FederatedDataset, found: Sums) -> list[Statement]:
    schema = data.schema
    if len(schema.groups) < 2:
        return [Statement("groups", "there are no groups: no sensitive column is named")]
    by_client = found.cells.sum(2)
    total = by_client.sum(0)
    least = int(total.argmin())
    lacking = int((by_client == 0).any(1).sum())
    v, p = association(by_client)
    text = (
        f"{len(total)} groups; the smallest, '{schema.groups.labels[least]}', has "
        f"{int(total[least])} rows ({total[least] / total.sum():.1%}); {lacking} of "
        f"{len(by_client)} clients lack a group; groups depend on the client {_strength(v)} "
        f"(Cramer's V {v:.2f}{_chance(p)})"
    )
    if total[least] < FEW:
        text += f". Fewer than {FEW} rows say little about a group"
    figures = {"smallest_rows": total[least], "lacking": lacking, "cramers_v": v, "p": p}
    result = [Statement("groups", text, _plain(figures))]
    if schema.kind == "binary" and (total > 0).all():
        rates = found.cells.sum(0)[:, 1] / total
        gap = float(rates.max() - rates.min())
        text = f"the favourable class has between {rates.min():.1%} and {rates.max():.1%} by group"
        result.append(Statement("base rates", text, {"gap": gap}))
    return result


def _features(data: FederatedDataset, found: Sums) -> list[Statement]:
    largest, by_client = mean_differences(found)
    if largest is None:
        return []
    names = data.schema.features
    name = names[largest.feature] if names else str(largest.feature)
    shifted = int((by_client > 0.5).sum())
    text = (
        f"means of features differ most in '{name}': client '{largest.client}' is "
        f"{largest.smd:.2f} spreads from the others ({largest.z:.1f} standard errors); {shifted} "
        f"of {len(by_client)} clients have a feature more than half a spread away"
    )
    figures = {"largest_smd": largest.smd, "z": largest.z, "shifted_clients": shifted}
    return [Statement("features", text, _plain(figures))]


def _cannot(quick: Quick) -> list[Suggestion]:
    return [
        Suggestion("cannot", tuple(names), f"Each {reason}")
        for reason, names in quick.refused.items()
    ]


def _clients(quick: Quick, statements: list[Statement]) -> list[Suggestion]:
    """Client-fair and personal methods, from the losses of one model and of models alone."""
    quick.run("fedavg")
    found = [_spread(quick, statements)]
    if (few := _too_few(quick)) is not None:
        return [*found, Suggestion("not known", OWN_MODEL, few)]
    quick.run("local")
    one, own = quick.losses("fedavg", "val"), quick.losses("local", "val")
    gain = Gain.of(np.concatenate(one), np.concatenate(own))
    judged = [(a, b) for a, b in zip(one, own, strict=True) if len(a) >= FEW]
    better = sum(Gain.of(a, b).clear for a, b in judged)
    verdict = _verdict(gain.clear or gain.share > _CLEAR, gain.clear, gain.share > _CLEAR)
    why = f"Models of their own have a validation loss of {gain.text}"
    if judged:
        why += f"; at {better} of {counted(len(judged), 'client')} with {FEW} rows or more they "
        why += "are clearly better"
    figures = {"better_alone": float(better), "judged": float(len(judged)), "gain": gain.share,
               "interval": gain.half / gain.before, "rows": float(gain.rows)}  # fmt: skip
    statements.append(Statement("alone", why[:1].lower() + why[1:], figures))
    return [*found, Suggestion(verdict, OWN_MODEL, f"{why}.{_unsure(verdict)}")]


def _spread(quick: Quick, statements: list[Statement]) -> Suggestion:
    """How far the loss of one model at the worst client lies above the mean over clients."""
    losses = quick.losses("fedavg", "train")
    means = np.array([rows.mean() for rows in losses])
    judged = [k for k, rows in enumerate(losses) if len(rows) >= FEW]
    if not judged:
        text = f"no client has {FEW} training rows, so that no client's loss can be judged"
        statements.append(Statement("spread", text))
        return Suggestion("not known", BY_LOSS, f"{text[:1].upper()}{text[1:]}.")
    k = max(judged, key=lambda k: means[k])
    mean, worst, sure = means.mean(), means[k], half(losses[k], len(judged))
    excess = float(worst / mean - 1)
    text = (
        f"one model (FedAvg) has a loss of {mean:.3f} on average over clients and {worst:.3f} at "
        f"'{quick.data.names[k]}', {excess:.0%} +- {sure / mean:.0%} more"
    )
    figures = {"mean": mean, "worst": worst, "interval": sure}
    statements.append(Statement("spread", text, _plain(figures)))
    verdict = _verdict(excess > 0.1, worst - mean > sure, excess > 0.25)
    why = f"The worst client's loss is {excess:.0%} +- {sure / mean:.0%} above the mean."
    return Suggestion(verdict, BY_LOSS, why + _unsure(verdict))


def _too_few(quick: Quick) -> str | None:
    """Why nothing is compared on validation data, if so."""
    if quick.validated >= ENOUGH:
        return None
    return (
        f"There are {counted(quick.validated, 'validation row')}, too few to compare models on: at "
        f"least {ENOUGH} are needed. A study compares them on test rows, over seeds."
    )


def _kinds(quick: Quick, statements: list[Statement]) -> list[Suggestion]:
    """FOCUS: whether two models are better than one on validation data."""
    if len(quick.data) < 4:
        why = f"Kinds of clients cannot be told apart among {len(quick.data)}."
        return [Suggestion("little to gain", BY_KIND, why)]
    if (few := _too_few(quick)) is not None:
        return [Suggestion("not known", BY_KIND, few)]
    # FOCUS begins with models of clients that trained alone: as many rounds more for one model
    quick.run("fedavg", longer=quick.run("focus", m=2).method.alone_rounds)  # type: ignore[attr-defined]
    one, two = (np.concatenate(quick.losses(name, "val")) for name in ("fedavg longer", "focus"))
    gain = Gain.of(one, two)
    text = f"two models (FOCUS) instead of one have a validation loss of {gain.text}"
    figures = {"gain": gain.share, "interval": gain.half / gain.before, "rows": float(gain.rows)}
    statements.append(Statement("kinds", text, figures))
    verdict = _verdict(gain.share > _CLEAR, gain.clear, gain.share > 0.2)
    kinds = {"little to gain": "Clients look alike", "not known": "Clients may fall into kinds"}
    why = f"{kinds.get(verdict, 'Clients fall into kinds')}: {text}.{_unsure(verdict)}"
    return [Suggestion(verdict, BY_KIND, why, ("--set", "m=2"))]


def _worst_group(quick: Quick, statements: list[Statement]) -> list[Suggestion]:
    """PFFL and FedMinMax: how far the largest group loss can be brought down."""
    rows, code = np.concatenate(quick.losses("fedavg", "train")), quick.groups("train")
    start = float(np.max(group_losses(quick.run("fedavg"))))
    means = {g: rows[code == g].mean() for g in np.unique(code)}
    worst = rows[code == max(means, key=lambda g: means[g])]
    low, high, how = minimax(quick)
    text = (
        f"the largest group loss on training data is {start:.3f} with FedAvg; no linear model can "
        f"have less than {low:.4f}, and {high:.4f} was reached ({how})"
    )
    if low != low:
        text = (
            f"the largest group loss on training data is {start:.3f} with FedAvg, {high:.4f} {how}"
        )
    statements.append(Statement("minimax", text, {"fedavg": start, "low": low, "high": high}))
    gain, sure = 1 - high / start, half(worst)
    seen = start - high > sure
    verdict = _verdict(gain > (0.01 if seen else _CLEAR), seen, gain > _CLEAR)
    if len(worst) < FEW:
        verdict = "not known"
    why = f"The largest group loss could go from {start:.3f} to {high:.4f} with a linear model. "
    why += (
        f"PFFL with one cannot meet a bound zeta below {low:.4f}; one above {high:.4f} can be met."
        if low == low
        else f"A bound zeta above {high:.4f} can be met; whether a lower one can is not known."
    )
    why += f" FedAvg's loss there rests on {counted(len(worst), 'row')} (+- {sure:.3f})"
    why += f", too few: at least {FEW} are needed." if len(worst) < FEW else f".{_unsure(verdict)}"
    # a bound that can be met, with room for the rounding and for a run of few rounds
    zeta = math.ceil(1.02 * high * 1000) / 1000
    return [Suggestion(verdict, WORST_GROUP, why, ("--model", "linear", "--set", f"zeta={zeta:g}"))]


def _rates(
    data: FederatedDataset, found: Sums, quick: Quick, statements: list[Statement]
) -> list[Suggestion]:
    """Methods that bring selection rates together."""
    if data.schema.kind != "binary":
        return []
    groups = quick.run("fedavg").evaluation("train").groups()
    rates = groups["selection_rate"].dropna()
    gap = float(rates.max() - rates.min())
    share = rates.to_numpy(dtype=np.float64)
    sizes = groups["examples"][rates.index].to_numpy(dtype=np.float64)
    ends = [int(share.argmin()), int(share.argmax())]
    error = (share * (1 - share) / sizes)[ends].sum()
    sure, rows = 1.96 * float(np.sqrt(error)), int(sizes[ends].min())
    text = f"FedAvg selects between {rates.min():.1%} and {rates.max():.1%} of a group's rows"
    statements.append(Statement("selection", text, {"gap": gap, "interval": sure}))
    verdict = "not known" if rows < FEW else _verdict(gap > 0.05, gap > sure, gap > 0.1)
    lacking = int((found.cells.sum(2) == 0).any(1).sum())
    why = f"Selection rates are {gap:.1%} +- {sure:.1%} apart with FedAvg."
    if rows < FEW:
        why += f" One of the groups has {counted(rows, 'row')}, too few: {FEW} are needed."
    else:
        why += _unsure(verdict)
    if lacking:
        why += (
            f" {lacking} of {len(found.size)} clients lack a group and cannot measure a disparity: "
            "methods that debias at each client (fairfed, lft_fedavg, praffl, hetpfl) learn "
            "nothing about fairness there; fedfb adds counts up over clients."
        )
    return [Suggestion(verdict, ALIKE_RATES, why)]


def _verdict(large: bool, seen: bool, strong: bool) -> Verdict:
    """From whether a figure is large, larger than its interval, and very large."""
    if not large:
        return "little to gain"
    return "not known" if not seen else "fits" if strong else "may help"


def _unsure(verdict: Verdict) -> str:
    return " The interval holds 0, so these rows do not tell." if verdict == "not known" else ""


def _strength(v: float) -> str:
    return "hardly" if v < 0.1 else "somewhat" if v < 0.3 else "strongly"


def _chance(p: float) -> str:
    return f", p {p:.2g}" if p >= 1e-4 else ", p < 0.0001"


def _plain(figures: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items()}
