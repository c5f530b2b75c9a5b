"""Advice on data: what clients and groups look like, and which methods fit, with the figures.

Figures come from sums that clients could send (`data.shift`) and from quick runs of linear models:
FedAvg, Local, FedMinMax, FOCUS, and PFFL's certificate, which solves for the minimax value. They
are judged on training data (a linear model hardly learns rows by heart) where one model is compared
with one, and on validation data where the number of models differs. Test data are not touched.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from evenfed.core.errors import EvenfedError, NotApplicableError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.data.shift import Floats, Sums, association, mean_differences, sums
from evenfed.methods.registry import build, methods
from evenfed.runs.result import Result
from evenfed.runs.runner import build_task
from evenfed.runs.train import train

Verdict = Literal["fits", "may help", "little to gain", "cannot"]
ROUNDS, RATE, BATCH = 20, 0.5, 64
"""Of the quick runs."""
_CLEAR = 0.05
"""A relative difference of losses below this is called none."""
_SOLVED = (500, 50_000)
"""Most weights and rows for which the minimax value is proved: hundreds of passes over the data."""
_FEW = 30
"""A group or a client with fewer training rows is called small."""

BY_LOSS = ("qffl", "fedeba", "eba", "prac_fedeba", "term", "afl", "gifair", "aaggff", "propfair")
OWN_MODEL = ("finetune", "ditto", "pfedme", "local")
BY_KIND = ("focus", "ifca")
WORST_GROUP = ("fedminmax", "pffl")
ALIKE_RATES = ("fedfb", "fairfed", "praffl", "hetpfl", "lft_fedavg")


@dataclass(frozen=True)
class Statement:
    """A sentence, and the figures that it rests on."""

    about: str
    text: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Suggestion:
    """What is said about methods."""

    verdict: Verdict
    methods: tuple[str, ...]
    why: str


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

    def table(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "statements": [
                {**asdict(s), "figures": {k: v if v == v else None for k, v in s.figures.items()}}
                for s in self.statements
            ],
            "suggestions": [{**asdict(s), "methods": list(s.methods)} for s in self.suggestions],
        }

    def text(self) -> str:
        """For a reader."""
        lines = ["What the data look like"]
        lines += [f"- {s.text}" for s in self.statements]
        lines.append(
            f"\nWhat that says about methods (quick runs: linear models, {ROUNDS} rounds; a first "
            "choice, not a comparison: that is what `evenfed study` makes)"
        )
        for verdict in ("fits", "may help", "little to gain", "cannot"):
            for found in self.suggestions:
                if found.verdict == verdict:
                    lines.append(f"- {verdict}: {', '.join(found.methods)}. {found.why}")
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
    quick = _Quick(data, seed)
    suggestions = [*_cannot(quick), *_clients(quick, statements), *_kinds(quick, statements)]
    if len(data.schema.groups) > 1:
        suggestions += _worst_group(quick, statements)
        suggestions += _rates(data, found, quick, statements)
    allowed = set(quick.applicable)
    kept = [
        Suggestion(s.verdict, names, s.why)
        for s in suggestions
        if (names := tuple(n for n in s.methods if s.verdict == "cannot" or n in allowed))
    ]
    return Advice(tuple(statements), tuple(kept))


class _Quick:
    """Quick runs, each made when it is first asked for."""

    def __init__(self, data: FederatedDataset, seed: int) -> None:
        self.data, self.seed = data, seed
        self._runs: dict[str, Result] = {}
        task = build_task(data, "auto", seed=seed)
        self.refused: dict[str, list[str]] = {}
        self.applicable: list[str] = []
        for name in methods():
            try:
                build(name).bound(task, task.init())
                self.applicable.append(name)
            except NotApplicableError as error:
                reason = str(error).removeprefix(f"{name} ")
                self.refused.setdefault(reason, []).append(name)

    @property
    def validated(self) -> int:
        """Validation rows of all clients."""
        sizes = self.data.sizes("val")
        return 0 if sizes is None else int(sizes.sum())

    def run(self, name: str, *, longer: int = 0, **options: Any) -> Result:
        """A run of linear models; one that is `longer` is kept as "name longer"."""
        key = f"{name} longer" if longer else name
        if key not in self._runs:
            self._runs[key] = train(
                name, self.data, rounds=ROUNDS + longer, seed=self.seed, model="linear",
                engine="vectorized", evaluate_every=0, lr=RATE, batch=BATCH, **options,
            )  # fmt: skip
        return self._runs[key]

    def client_losses(self, name: str, split: Literal["train", "val"]) -> Floats:
        """Mean loss at each client `(K,)`; NaN without rows."""
        frame = self._runs[name].evaluation(split).clients()
        return np.asarray(frame["loss"].to_numpy(dtype=np.float64))


def _sizes(found: Sums) -> list[Statement]:
    size = found.size
    small = int((size < _FEW).sum())
    text = (
        f"{len(size)} clients with {int(size.sum())} training rows: the smallest has "
        f"{int(size.min())}, the largest {int(size.max())}"
    )
    if small:
        text += f"; {small} have fewer than {_FEW}, which is too few to be judged alone"
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
    if total[least] < _FEW:
        text += f". Fewer than {_FEW} rows say little about a group"
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


def _cannot(quick: _Quick) -> list[Suggestion]:
    return [
        Suggestion("cannot", tuple(names), f"Each {reason}")
        for reason, names in quick.refused.items()
    ]


def _clients(quick: _Quick, statements: list[Statement]) -> list[Suggestion]:
    """Client-fair and personal methods, from the losses of one model and of models alone."""
    quick.run("fedavg")
    loss = quick.client_losses("fedavg", "train")
    excess = float(loss.max() / loss.mean() - 1)
    worst = quick.data.names[int(loss.argmax())]
    text = (
        f"one model (FedAvg) has a loss of {loss.mean():.3f} on average over clients and "
        f"{loss.max():.3f} at '{worst}', {excess:.0%} more"
    )
    statements.append(
        Statement("spread", text, {"mean": float(loss.mean()), "worst": float(loss.max())})
    )
    by_loss: Verdict = "fits" if excess > 0.25 else "may help" if excess > 0.1 else "little to gain"
    why = f"The worst client's loss is {excess:.0%} above the mean."
    found = [Suggestion(by_loss, BY_LOSS, why)]
    quick.run("local")
    one, own = quick.client_losses("fedavg", "val"), quick.client_losses("local", "val")
    known = ~(np.isnan(one) | np.isnan(own))
    if not known.any():
        return found
    better = int((own < one * (1 - _CLEAR))[known].sum())
    count = int(known.sum())
    gain = float(1 - own[known].mean() / one[known].mean())
    verdict: Verdict = "fits" if better > count / 2 else "may help" if better else "little to gain"
    why = (
        f"A model of its own is more than {_CLEAR:.0%} better on validation data at {better} of "
        f"{count} clients (mean loss {own[known].mean():.3f} against {one[known].mean():.3f}, "
        f"{quick.validated} rows)."
    )
    figures = {"better_alone": float(better), "clients": float(count), "gain": gain}
    statements.append(Statement("alone", why[:1].lower() + why[1:-1], figures))
    return [*found, Suggestion(verdict, OWN_MODEL, why)]


def _kinds(quick: _Quick, statements: list[Statement]) -> list[Suggestion]:
    """FOCUS: whether two models are better than one on validation data."""
    if len(quick.data) < 4:
        why = f"Kinds of clients cannot be told apart among {len(quick.data)}."
        return [Suggestion("little to gain", BY_KIND, why)]
    # FOCUS begins with models of clients that trained alone: as many rounds more for one model
    quick.run("fedavg", longer=quick.run("focus", m=2).method.alone_rounds)  # type: ignore[attr-defined]
    one, two = quick.client_losses("fedavg longer", "val"), quick.client_losses("focus", "val")
    known = ~(np.isnan(one) | np.isnan(two))
    if not known.any():
        return []
    gain = float(1 - two[known].mean() / one[known].mean())
    text = (
        f"two models (FOCUS) have a validation loss of {two[known].mean():.3f}, one has "
        f"{one[known].mean():.3f} ({quick.validated} rows)"
    )
    statements.append(Statement("kinds", text, {"gain": gain}))
    clear = gain > _CLEAR
    said = "Clients look alike" if not clear else "Clients fall into kinds"
    why = f"{said}: {text}, a gain of {gain:.1%}."
    return [
        Suggestion(
            "fits" if gain > 0.2 else "may help" if clear else "little to gain", BY_KIND, why
        )
    ]


def _worst_group(quick: _Quick, statements: list[Statement]) -> list[Suggestion]:
    """PFFL and FedMinMax: how far the largest group loss can be brought down."""
    start = float(np.max(_group_losses(quick.run("fedavg"))))
    low, high, how = _minimax(quick)
    text = (
        f"the largest group loss on training data is {start:.3f} with FedAvg; no linear model can "
        f"have less than {low:.4f}, and {high:.4f} was reached ({how})"
    )
    if low != low:
        text = (
            f"the largest group loss on training data is {start:.3f} with FedAvg, {high:.4f} {how}"
        )
    statements.append(Statement("minimax", text, {"fedavg": start, "low": low, "high": high}))
    gain = 1 - high / start
    verdict: Verdict = "fits" if gain > _CLEAR else "may help" if gain > 0.01 else "little to gain"
    why = f"The largest group loss could go from {start:.3f} to {high:.4f} with a linear model. "
    why += (
        f"PFFL with one cannot meet a bound zeta below {low:.4f}; one above {high:.4f} can be met."
        if low == low
        else f"A bound zeta above {high:.4f} can be met; whether a lower one can is not known."
    )
    return [Suggestion(verdict, WORST_GROUP, why)]


def _minimax(quick: _Quick) -> tuple[float, float, str]:
    """Least largest group loss of linear models: proved from below (else NaN), and reached."""
    reached = float(np.max(_group_losses(quick.run("fedminmax", iterate="last"))))
    task = quick.run("fedavg")._task()
    if task["parameters"] > _SOLVED[0] or task["trained_on"] > _SOLVED[1]:
        return np.nan, reached, "after a short FedMinMax"
    run = train(
        "pffl", quick.data, rounds=1, seed=quick.seed, model="linear", engine="vectorized",
        evaluate_every=0, lr=RATE, batch=BATCH, zeta=0.0,
    )  # fmt: skip
    certificate = run.certificate
    found = None if certificate is None else certificate.table().get("minimax")
    if not found:
        return np.nan, reached, "after a short FedMinMax"
    low, high = (float(value) for value in found)
    return low, min(high, reached), "PFFL's certificate"


def _rates(
    data: FederatedDataset, found: Sums, quick: _Quick, statements: list[Statement]
) -> list[Suggestion]:
    """Methods that bring selection rates together."""
    if data.schema.kind != "binary":
        return []
    groups = quick.run("fedavg").evaluation("train").groups()
    rates = groups["selection_rate"].dropna()
    gap = float(rates.max() - rates.min())
    text = f"FedAvg selects between {rates.min():.1%} and {rates.max():.1%} of a group's rows"
    statements.append(Statement("selection", text, {"gap": gap}))
    verdict: Verdict = "fits" if gap > 0.1 else "may help" if gap > 0.05 else "little to gain"
    lacking = int((found.cells.sum(2) == 0).any(1).sum())
    why = f"Selection rates are {gap:.1%} apart with FedAvg."
    if lacking:
        why += (
            f" {lacking} of {len(found.size)} clients lack a group and cannot measure a disparity: "
            "methods that debias at each client (fairfed, lft_fedavg, praffl, hetpfl) learn "
            "nothing about fairness there; fedfb adds counts up over clients."
        )
    return [Suggestion(verdict, ALIKE_RATES, why)]


def _group_losses(result: Result) -> Floats:
    losses = result.evaluation("train").groups()["loss"].dropna().to_numpy(dtype=np.float64)
    if not np.isfinite(losses).all():
        raise EvenfedError("a quick run diverged; are features on a common scale?")
    return np.asarray(losses)


def _strength(v: float) -> str:
    return "hardly" if v < 0.1 else "somewhat" if v < 0.3 else "strongly"


def _chance(p: float) -> str:
    return f", p {p:.2g}" if p >= 1e-4 else ", p < 0.0001"


def _plain(figures: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items()}
