"""SER beside the same methods without it, tuned alike, and beside its controls.

Khan, "Sign-Entropy Regularization for Personalized Federated Learning", Entropy 27(6):601 (2025):
a reconstruction from its abstract. None of its tables was at hand.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

from evenfed.papers import tuned
from evenfed.papers.recipe import (
    Claim,
    Column,
    Job,
    Joint,
    Metric,
    Outcome,
    Paper,
    Protocol,
    Row,
    Setting,
    Table,
    spans,
)
from evenfed.papers.ser_cases import CASES, MEASURED, Case
from evenfed.runs.result import Result

METRICS = (
    Metric("mean", "mean accuracy, %", digits=1),
    Metric("worst", "worst 10 %", digits=1),
    Metric("variance", "variance", higher=False, digits=1),
    Metric("rounds_to", "rounds to target", higher=False, digits=0),
    Metric("sign_entropy", "sign entropy, bits, steps of 0.1", higher=False),
    Metric("sign_entropy_short", "sign entropy, bits, steps of 0.01", higher=False),
    Metric("hessian_trace", "Hessian trace", higher=False, digits=1),
    Metric("spectral_norm", "spectral norm", higher=False, digits=2),
)
SER: dict[str, Any] = {"local.regularizer": "ser"}
LOCAL: dict[str, Any] = {"local.ser.rho": 0.0, "local.ser.kappa": 1.0}
BASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedavg": ("FedAvg", "fedavg", {}),
    "local": ("FedAvg, local round", "ser", {}),
    "fedprox": ("FedProx", "fedprox", {"mu": 0.1}),
    "momentum": ("Momentum 0.9", "fedavg", {"local.momentum": 0.9}),
    "ditto": ("Ditto", "ditto", {"lam": 0.5}),
    "pfedme": ("pFedMe", "pfedme", {"lam": 15.0, "eta": 0.05}),
    "entropy": ("Entropy-SGD", "fedavg", {"local.optimizer": "entropy_sgd"}),
}
"""Options of a method's own are fixed, so that all trials go to the rate."""
STATED = ("local", "fedavg", "fedprox")
"""Methods of which the paper says that SER helps; it compares with the others."""
OWN = ("local", "ditto", "pfedme")
"""Those that give each client a model of its own."""
ROWS = tuple(
    Row(f"{key}{end}", f"{title}{words}")
    for key, (title, _, _) in BASES.items()
    for end, words in (("", ""), ("-ser", " + SER"))
)
QUICK_ROWS = ("local", "local-ser", "pfedme-ser")
STRENGTH = {"local.ser.when": "step", "local.ser.rho": 0.3, "local.ser.kappa": 1.0}
CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", LOCAL),
    "ser": ("SER", STRENGTH),
    "random": ("a random direction of equal norm", {**STRENGTH, "local.ser.control": "random"}),
    "shrink": ("the plain step scaled to equal norm", {**STRENGTH, "local.ser.control": "shrink"}),
    "rate": ("the rate of an equally long first round", LOCAL),
}
STRENGTHS: dict[str, tuple[str, dict[str, Any]]] = {
    key: (f"rho = {rho:g}", {**STRENGTH, "local.ser.rho": rho} if rho else LOCAL)
    for key, rho in {
        "none": 0.0, "weakest": 0.01, "weaker": 0.05, "weak": 0.1, "ser": 0.3, "strong": 0.5
    }.items()
}  # fmt: skip
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "posthoc": (
        "after each round, rho = 0.1",
        {**STRENGTH, "local.ser.when": "posthoc", "local.ser.rho": 0.1},
    ),
    "plain": ("plain entropy, rho = 0.3", {**STRENGTH, "local.ser.objective": "entropy"}),
}
"""What the abstract says in words; the strengths are the defaults of these forms."""
ARMS = STRENGTHS | FORMS
"""Rows of the table of strengths; without SER and with its default they are those of controls."""
QUICK_ARMS = ("none", "ser", "rate", "weak")


SLOWER = {"ditto": 2.3, "entropy": 2.0}
"""How many times as long as FedAvg a method takes; pFedMe as its number of inner steps."""


def _seconds(case: Case, setting: Setting, regularized: bool, base: str) -> float:
    """Of one job, with its share of the trials; curvature is measured of the job alone."""
    slower = SLOWER.get(base, 1.0)
    if base == "pfedme":
        slower = case.own.get(base, {}).get("inner", 5)
    once = slower * (case.regularized if regularized else case.plain)
    if setting.quick:
        return 2.5 if regularized else 1.0
    return once * (1.2 + (1 + len(case.rates)) / len(setting.seeds)) + case.measuring


def _jobs(column: str, setting: Setting) -> list[Job]:
    """Every method with and without the regulariser, all with the same number of trials."""
    case = CASES[column]
    size = case.options(setting.quick)
    jobs = []
    for key, (_, method, own) in BASES.items():
        for regularized in (False, True):
            row = f"{key}-ser" if regularized else key
            if setting.quick and row not in QUICK_ROWS:
                continue
            more = SER if regularized and method != "ser" else {}
            if method == "ser":
                more = STRENGTH if regularized else LOCAL
            for seed in setting.seeds:
                settings = {
                    **case.settings(setting, seed, key in OWN), "method": method,
                    "options": {**size, **own, **case.own.get(key, {}), **more},
                }  # fmt: skip
                seconds = _seconds(case, setting, regularized, key)
                name = f"{column}-{row}"
                jobs.append(Job(f"{name}-{seed}", (row,), column, seed, settings, seconds, name))
    return jobs


def _arm_jobs(arms: dict[str, tuple[str, dict[str, Any]]], setting: Setting) -> list[Job]:
    """Corrections of one method, all with the rate that was best without any."""
    jobs = []
    for column in ("femnist",) if setting.quick else CONTROLLED:
        case = CASES[column]
        size = case.options(setting.quick)
        for key, (_, more) in arms.items():
            if setting.quick and key not in QUICK_ARMS:
                continue
            for seed in setting.seeds:
                settings = {
                    **case.settings(setting, seed, own=True), "method": "ser",
                    "options": {**size, **more}, "base": {**size, **LOCAL},
                }  # fmt: skip
                if key == "rate":
                    settings["matched"] = {**size, **STRENGTH}
                once = case.plain if more == LOCAL else case.regularized
                shared = (1 + len(case.rates)) * case.plain / len(setting.seeds)
                seconds = 1.2 * once + shared / len(arms) + case.measuring
                seconds = 2.5 if setting.quick else seconds
                name = f"{column}-{key}-{seed}"
                jobs.append(Job(name, (key,), column, seed, settings, seconds, column))
    return jobs


def run(job: Job) -> Outcome:
    """Carry out a job."""
    (row,) = job.rows
    settings = dict(job.settings)
    if "base" in settings:
        found, words = _controlled(settings)
    else:
        found, words = tuned.measured(settings)
    return Outcome({row: _values(found, settings)}, {row: {"chosen": words}})


def _controlled(settings: dict[str, Any]) -> tuple[tuned.Trained, str]:
    """A run with the rate that was best for the rows' base, or with the one matched to SER's."""
    base = {k: v for k, v in settings.items() if k not in ("base", "matched")}
    options = dict(tuned.chosen({**base, "options": settings["base"]}).options)
    if "matched" in settings:
        lengths = [
            _first_length({**base, "options": {**of, **options}})
            for of in (settings["matched"], settings["base"])
        ]
        options["local.lr"] = options.get("local.lr", 0.1) * lengths[0] / lengths[1]
    plan = tuned.planned(settings, settings["seed"]).using(options)
    words = tuned.worded({k: round(v, 4) for k, v in options.items()})
    return tuned.trained(settings, plan, "test", settings["every"]), words


def _first_length(settings: dict[str, Any]) -> float:
    """How far the first round moves the server's model."""
    plan = tuned.planned({**settings, "rounds": 1}, settings["seed"])
    runner = tuned.prepared(settings, plan)
    first = runner.server["params"]
    new = runner.method.round(runner.federation, runner.server)["params"]
    return math.sqrt(float(sum((new[k] - first[k]).square().sum() for k in new)))


def _values(found: tuned.Trained, settings: dict[str, Any]) -> dict[str, float]:
    some = _some(found.result, settings["clients"])
    usual, short = settings["paths"]
    each = some.geometry(probes=settings["probes"], rate=usual, rows=settings["rows"])
    means = each.mean()
    signs = some.geometry(probes=1, lanczos=1, rate=short, rows=settings["rows"]).mean()
    values = tuned.client_values(found)
    return {
        **{key: values[key] for key in ("mean", "worst", "variance")},
        "rounds_to": found.rounds_to(settings["target"]),
        **{key: float(means[key]) for key in ("sign_entropy", "hessian_trace")},
        "spectral_norm": float(each["top_eigenvalue"].abs().mean()),
        "sign_entropy_short": float(signs["sign_entropy"]),
    }


def _some(result: Result, clients: int) -> Result:
    """Products with the Hessian take long: some clients, the same for all rows."""
    runner = copy.copy(result._runner)
    runner.settings = replace(runner.settings, evaluate_clients=clients)
    return Result(runner, result.config)


SEEDS: dict[Protocol, tuple[int, ...]] = {"sound": (0, 1, 2, 3, 4)}
CONTROLLED = ("femnist", "shakespeare", "cifar10")
PLOTS = (
    spans("Mean and worst clients", "accuracy, %", "mean", "worst"),
    spans("Hessian trace", "Hessian trace", "hessian_trace", key="trace"),
)
ORDERINGS = {
    "mean": "a higher mean accuracy",
    "worst": "better worst clients",
    "variance": "a lower variance",
    "rounds_to": "fewer rounds to the target",
    "sign_entropy": "a lower sign entropy along steps of 0.1",
    "sign_entropy_short": "a lower sign entropy along steps of 0.01",
    "hessian_trace": "a lower Hessian trace",
    "spectral_norm": "a lower spectral norm",
}


def _table(column: str) -> Table:
    case = CASES[column]

    def jobs(setting: Setting) -> list[Job]:
        return _jobs(column, setting)

    claims = tuple(
        Claim(_pair(key, metric), f"{key}-ser", key, metric, (column,), ours=key not in STATED)
        for key in (*STATED, *(key for key in BASES if key not in STATED))
        for metric in ORDERINGS
    )
    pooled = " of images at half their width and height" if case.model.get("pool") == 2 else ""
    rates = ", ".join(map(str, case.rates))
    note = (
        f"{case.cohort} clients a round, {case.rounds} rounds of {case.steps} local steps of "
        f"{case.batch} examples, {case.model['name']}{pooled}; {1 + len(case.rates)} trials a row: "
        f"rates 0.1, {rates}. The target is a mean of {_percents(case.targets)}, looked for every "
        f"{case.every} rounds; seeds that never reach it are not counted in the mean of rounds, "
        f"and leave its ordering not told apart. Signs and curvature: {MEASURED[0]} clients, the "
        f"first {MEASURED[1]} training examples of each, or all where there are fewer. Signs are "
        "counted along ten steps on the same data, of two rates that are the same for all rows: "
        "steps of 0.1 bounce where the spectral norm is above 20, those of 0.01 where it is above "
        "200."
    )
    if case.own:
        held = (f"{BASES[key][0]} {tuned.worded(own)}" for key, own in case.own.items())
        note += f" Options of this table alone: {'; '.join(held)}."
    return Table(
        column, case.title, ROWS, (Column(column, case.title, case.dataset),), {"sound": METRICS},
        jobs, run, SEEDS, claims=claims, note=note, plots=PLOTS,
        joint=(
            Joint("accuracy", "The paper's claim on accuracy (higher mean, better worst clients, "
                  "lower variance), for local models",
                  tuple(_pair("local", m) for m in ("mean", "worst", "variance"))),
            Joint("curvature", "Its claim on curvature (lower Hessian trace and spectral norm), "
                  "for local models",
                  tuple(_pair("local", m) for m in ("hessian_trace", "spectral_norm"))),
        ),
    )  # fmt: skip


def _pair(key: str, metric: str) -> str:
    return f"{BASES[key][0]}: {ORDERINGS[metric]} with SER than without"


def _percents(targets: tuple[float, float]) -> str:
    whole, own = (f"{100 * target:.0f} %" for target in targets)
    return f"{whole} of global models and {own} of clients' own"


def _control_claims() -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"SER has {text} than {CONTROLS[other][0]}", "ser", other, metric, CONTROLLED, ours=True
        )
        for other in ("none", "random", "shrink", "rate")
        for metric, text in ORDERINGS.items()
    )


def _strength_claims() -> tuple[Claim, ...]:
    return tuple(
        Claim(f"SER, {title}, has {ORDERINGS[m]} than none", key, "none", m, CONTROLLED, ours=True)
        for key, (title, _) in ARMS.items()
        if key != "none"
        for m in ("mean", "hessian_trace")
    )


def _beats_all(metrics: tuple[str, ...]) -> tuple[str, ...]:
    others = ("none", "random", "shrink", "rate")
    return tuple(
        f"SER has {ORDERINGS[m]} than {CONTROLS[other][0]}" for other in others for m in metrics
    )


PAPER = Paper(
    "ser",
    "SER",
    'Khan, "Sign-Entropy Regularization for Personalized Federated Learning", Entropy 27(6):601 '
    "(2025). The method is a reconstruction from the abstract and no table of the paper was at "
    "hand, so no printed figure is compared with: the verdict on its figures is *not comparable* "
    "throughout. What is judged are the abstract's claims, of the form that was best on validation "
    "data (the method's page): the disagreement of signs, corrected at every local step. The "
    "abstract speaks of one correction after each local round; that form and plain entropy are "
    "rows of the last table.",
    (
        *(_table(column) for column in CASES),
        Table(
            "controls", "Controls",
            tuple(Row(key, title) for key, (title, _) in CONTROLS.items()),
            tuple(Column(c, CASES[c].title, CASES[c].dataset) for c in CONTROLLED),
            {"sound": METRICS}, partial(_arm_jobs, CONTROLS), run, SEEDS, claims=_control_claims(),
            plots=PLOTS,
            joint=(
                Joint("curvature", "SER lowers curvature beyond all of its controls",
                      _beats_all(("hessian_trace", "spectral_norm")), ours=True),
                Joint("accuracy", "SER raises accuracy beyond all of its controls",
                      _beats_all(("mean", "worst")), ours=True),
            ),
            note="FedAvg and a local round, as in the tables above, with the rate that was best "
            "on validation data without SER; rows differ in the correction alone.",
        ),
        Table(
            "strength", "Strength and form",
            tuple(Row(key, title) for key, (title, _) in ARMS.items()),
            tuple(Column(c, CASES[c].title, CASES[c].dataset) for c in CONTROLLED),
            {"sound": METRICS}, partial(_arm_jobs, ARMS), run, SEEDS,
            claims=_strength_claims(), plots=PLOTS,
            note="As the controls, with SER of several strengths; without SER and with its default "
            "the settings are those of the controls. Two rows have another form: one correction "
            "after each local round, as the abstract puts it, and plain entropy of the signs in "
            "place of their disagreement. The paper has a study of strengths; its values were not "
            "at hand.",
        ),
    ),
    {
        "sound": "clients, splits and first weights drawn again with each seed. Every row has the "
        "same rates to choose from, by mean accuracy over clients on validation data of seed "
        f"{tuned.TUNING_SEED}, which no table has; its other options are fixed. Accuracies are on "
        "test data after the last round, in percent; variances in squared points. Rounds to the "
        "target are those of evaluations during training, when a client has the model of its last "
        "round; targets are four fifths of what FedAvg, without and with a local round, has on "
        "those validation data. FEMNIST has 40 of its writers, so that each takes part in a dozen "
        "rounds, and a perceptron. "
        "Sign entropy (10 steps), Hessian trace (30 probes) and spectral norm (the largest "
        "magnitude of an eigenvalue, 20 Lanczos steps) are means over the models that clients "
        "use, on training data of some clients, the same for all rows. "
        "FedAvg, FedProx and the momentum and Entropy-SGD rows use the global model; `FedAvg, "
        "local round`, Ditto and pFedMe use models of the clients' own. `chosen` names the rate "
        "that won on validation data; `defaults` is 0.1.",
    },
    ("ser", "fedavg", "fedprox", "ditto", "pfedme"),
)  # fmt: skip
