"""FedEBA+ beside the methods that are fair to clients, tuned alike; its ablation; noisy labels.

Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning" (arXiv
2301.12407). None of its tables was at hand: the comparison is ours alone, of the kind that the
paper is known to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evenfed.methods.registry import methods
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

ROWS = (
    Row("fedavg", "FedAvg"),
    Row("fedprox", "FedProx"),
    Row("qffl", "q-FFL"),
    Row("afl", "AFL"),
    Row("term", "TERM"),
    Row("fedfv", "FedFV"),
    Row("fedmgda", "FedMGDA+"),
    Row("propfair", "PropFair"),
    Row("gifair", "GIFAIR-FL"),
    Row("aaggff", "AAggFF"),
    Row("eba", "EBA (aggregation alone)"),
    Row("prac_fedeba", "Prac-FedEBA+"),
    Row("fedeba", "FedEBA+"),
    Row("fedeba_v5", "FedEBA+, preset paper_v5"),
    Row("ditto", "Ditto (a model a client)", reference=True),
    Row("lp_proj", "lp-proj (a model a client)", reference=True),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "afl": {"multi_step": True},
    "lp_proj": {"inner": 1},
    "fedeba_v5": {"alpha": 0.5, "loss_at": "local_final", "align_clip": True},
}
"""As many local steps a round as the others take: AFL's own form takes one, lp-proj's five times so
many. Of the preset the temperature and the rate are tuned."""
QUICK_ROWS = {"cifar10": ("fedavg", "fedeba")}
QUICK_ROWS_ELSE = ("fedavg", "eba", "fedeba")
EXCHANGES = {"aaggff": 1.5, "fedeba": 2.0, "ditto": 1.7, "fedfv": 1.2, "lp_proj": 1.9}
"""Times FedAvg's processor time, measured."""
METRICS = (
    Metric("mean", "mean accuracy, %", digits=1),
    Metric("variance", "variance", higher=False, digits=1),
    Metric("worst", "worst 5 %", digits=1),
    Metric("best", "best 5 %", digits=1),
    Metric("cv", "coefficient of variation, %", higher=False, digits=1),
)
CLEAN = (
    Metric("clean", "clients with right labels, %", digits=1),
    Metric("mean", "all clients, %", digits=1),
    Metric("variance", "variance", higher=False, digits=1),
    Metric("worst", "worst 5 %", digits=1),
)
SHARDS, DIRICHLET = "shards:2", "dirichlet:label:0.5:20"
FLAT = {"clients": 100, "flat": True, "val": 0.2}
MLP = {"name": "mlp", "hidden": [64, 64]}
RATES = [0.05, 0.2, 0.4, 0.8, 0.02, 0.12, 0.3, 0.6, 0.07, 0.15, 0.5]
"""Beside the default 0.1, by order: every method has the first ones, and FedAvg, without options of
its own, as many as there are trials, most of them between these."""


@dataclass(frozen=True)
class Case:
    """Data, model and size of a column's runs; `seconds` are those of FedAvg."""

    dataset: str
    data: dict[str, Any]
    model: dict[str, Any]
    engine: str
    rounds: int
    cohort: int
    local: dict[str, Any]
    budget: int
    seconds: float
    rates: list[float] = field(default_factory=lambda: RATES)


def _flat(dataset: str, partition: str) -> Case:
    local = {"local.steps": 10, "local.batch": 50}
    return Case(
        dataset, {**FLAT, "partition": partition}, MLP, "vectorized", 100, 10, local, 12, 7.5
    )


CASES = {
    "mnist-shards": _flat("mnist", SHARDS),
    "mnist-dirichlet": _flat("mnist", DIRICHLET),
    "fashion-shards": _flat("fashion_mnist", SHARDS),
    "fashion-dirichlet": _flat("fashion_mnist", DIRICHLET),
    "cifar10-dirichlet": Case(
        "cifar10", {"clients": 100, "partition": DIRICHLET, "val": 0.2},
        {"name": "cnn", "channels": [8, 16], "hidden": 64, "pool": 2}, "vectorized", 60, 5,
        {"local.steps": 20, "local.batch": 10}, 11, 20.0,
        [0.05, 0.2, 0.02, 0.4, 0.12, 0.3, 0.07, 0.15, 0.03, 0.25],
    ),
}  # fmt: skip
COLUMNS = {
    "mnist-shards": Column("mnist-shards", "MNIST, 2 shards a client", "mnist"),
    "mnist-dirichlet": Column("mnist-dirichlet", "MNIST, Dirichlet(0.5)", "mnist"),
    "fashion-shards": Column("fashion-shards", "Fashion-MNIST, 2 shards a client", "fashion_mnist"),
    "fashion-dirichlet": Column(
        "fashion-dirichlet", "Fashion-MNIST, Dirichlet(0.5)", "fashion_mnist"
    ),
    "cifar10-dirichlet": Column(
        "cifar10-dirichlet", "CIFAR-10 (subset), Dirichlet(0.5)", "cifar10"
    ),
    "tuned": Column("tuned", "MNIST, 2 shards a client, each row at its best rate", "mnist"),
}


def _settings(case: Case, setting: Setting, seed: int) -> dict[str, Any]:
    """All of a job but its method and whether that is tuned."""
    rounds = max(case.rounds // 10, 8) if setting.quick else case.rounds
    return {
        "seed": seed, "dataset": case.dataset, "data": case.data, "model": case.model,
        "engine": case.engine, "rounds": rounds, "cohort": case.cohort, "tail": 0.05,
        "every": max(rounds // 10, 1), "last": 5,
    }  # fmt: skip


def _seconds(case: Case, setting: Setting, method: str) -> float:
    share = 0.2 if setting.quick else 1.0
    return case.seconds * EXCHANGES.get(method, 1.0) * share


def _tuned_jobs(columns: Sequence[str], setting: Setting) -> list[Job]:
    """Every method on every column, all with the same number of trials."""
    jobs = []
    for column in columns[:1] if setting.quick else columns:
        case = CASES[column]
        budget = 2 if setting.quick else case.budget
        for row in ROWS:
            if setting.quick and row.key not in QUICK_ROWS.get(case.dataset, QUICK_ROWS_ELSE):
                continue
            for seed in setting.seeds:
                method = "fedeba" if row.key == "fedeba_v5" else row.key
                settings = {
                    **_settings(case, setting, seed), "method": method,
                    "options": {**case.local, **OPTIONS.get(row.key, {})},
                    "tune": {"budget": budget, "rates": case.rates},
                }  # fmt: skip
                each = 1 + budget / len(setting.seeds)
                seconds = _seconds(case, setting, method) * each
                name = f"{column}-{row.key}"
                jobs.append(
                    Job(f"{name}-{seed}", (row.key,), column, seed, settings, seconds, name)
                )
    return jobs


ABLATED = 0.05
"""Rate of the ablation's first column: not tuned, so that rows differ in one option."""
ABLATION: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedavg": ("neither (FedAvg)", "fedavg", {}),
    "aggregation": ("aggregation alone", "eba", {}),
    "alignment": ("alignment alone (tau = 1e9)", "fedeba", {"tau": 1e9}),
    "both": ("both: tau = 2, alpha = 0.3, theta = 0", "fedeba", {}),
    **{f"tau-{tau:g}": (f"tau = {tau:g}", "fedeba", {"tau": tau}) for tau in (0.1, 0.5, 1.0, 5.0)},
    **{
        f"alpha-{alpha:g}": (f"alpha = {alpha:g}", "fedeba", {"alpha": alpha})
        for alpha in (0.1, 0.5, 0.9)
    },
    **{
        f"theta-{theta:g}": (f"theta = {theta:g} degrees", "fedeba", {"theta_deg": theta})
        for theta in (15.0, 30.0, 45.0, 90.0)
    },
}
ABLATION_COLUMNS = ("mnist-shards", "tuned")
QUICK_ABLATION = ("fedavg", "aggregation", "alignment", "both", "alpha-0.9")
NOISY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedavg": ("FedAvg", "fedavg", {}),
    "eba": ("EBA", "eba", {}),
    "eba-capped": ("EBA, p_max = 0.15", "eba", {"p_max": 0.15}),
    "eba-robust": ("EBA, robust = 1", "eba", {"robust": 1.0}),
    "fedeba": ("FedEBA+", "fedeba", {}),
    "fedeba-capped": ("FedEBA+, p_max = 0.15", "fedeba", {"p_max": 0.15}),
    "fedeba-robust": ("FedEBA+, robust = 1", "fedeba", {"robust": 1.0}),
}
QUICK_NOISY = ("fedavg", "fedeba", "fedeba-capped")
FEW_RATES = [0.02, 0.05, 0.2, 0.4, 0.8]
"""Beside the default 0.1, for rows that have no other option to choose."""
NOISE = {"some": (30, 0.9), "all": (100, 0.5)}
"""Clients with wrong labels, and the share of wrong ones; of ten classes 0.9 is at random."""


def _fixed_job(
    key: str, arm: tuple[str, str, dict[str, Any]], column: str, seed: int, setting: Setting,
    **more: Any,
) -> Job:  # fmt: skip
    _, method, options = arm
    case = CASES["mnist-shards"]
    settings = {
        **_settings(case, setting, seed), "method": method,
        "options": {**case.local, "local.lr": ABLATED, **options}, **more,
    }  # fmt: skip
    times = 2.0 if "robust" in options else 1.0
    seconds = _seconds(case, setting, method) * times
    return Job(f"{column}-{key}-{seed}", (key,), column, seed, settings, seconds)


def _at_best_rate(job: Job, column: str, setting: Setting) -> Job:
    """The same in a column where each row has its own rate; all other options are fixed."""
    (row,) = job.rows
    budget = 1 if setting.quick else 1 + len(FEW_RATES)
    held = {name: 2.0 if name == "tau" else 0.3 for name in methods()[job.settings["method"]].grid}
    options = {k: v for k, v in (held | job.settings["options"]).items() if k != "local.lr"}
    tune = {"budget": budget, "rates": FEW_RATES}
    trials = 0 if setting.quick else budget / len(setting.seeds)
    return replace(
        job, key=f"{column}-{row}-{job.seed}", column=column, together=f"{column}-{row}",
        settings={**job.settings, "options": options, "tune": tune},
        seconds=job.seconds * (1 + trials),
    )  # fmt: skip


def _ablation_jobs(setting: Setting) -> list[Job]:
    jobs = [
        _fixed_job(key, arm, "mnist-shards", seed, setting)
        for key, arm in ABLATION.items()
        for seed in setting.seeds
        if not setting.quick or key in QUICK_ABLATION
    ]
    return jobs if setting.quick else jobs + [_at_best_rate(job, "tuned", setting) for job in jobs]


def _noise_job(key: str, column: str, noise: tuple[int, float], seed: int, setting: Setting) -> Job:
    """A row with its own rate: the robust loss has small slopes, and needs a higher one."""
    job = _fixed_job(key, NOISY[key], column, seed, setting, noise=list(noise))
    return _at_best_rate(job, column, setting)


def _noise_jobs(setting: Setting) -> list[Job]:
    return [
        _noise_job(key, column, noise, seed, setting)
        for column, noise in NOISE.items()
        for key in NOISY
        for seed in setting.seeds
        if not setting.quick or (key in QUICK_NOISY and column == "some")
    ]


def run(job: Job) -> Outcome:
    """Carry out a job."""
    (row,) = job.rows
    found, options = tuned.measured(job.settings)
    values = tuned.client_values(found)
    if "noise" in job.settings:
        noisy = job.settings["noise"][0]
        everyone = range(len(found.data))
        values["clean"] = tuned.mean_of(found, list(everyone[noisy:] or everyone))
    facts = {row: {"chosen": options}} if "tune" in job.settings else {}
    return Outcome({row: values}, facts, trials={row: tuned.tried(job.settings)})


ORDERINGS = (
    ("mean", "a higher mean"),
    ("variance", "a lower variance"),
    ("worst", "better worst 5 %"),
)
SEEDS: dict[Protocol, tuple[int, ...]] = {"sound": (0, 1, 2, 3, 4)}


PRESET = "fedeba_v5"
CLAIMED = {
    "fedeba": "FedEBA+",
    PRESET: "FedEBA+, preset paper_v5",
    "prac_fedeba": "Prac-FedEBA+",
}
CLIENTS = spans("Mean and worst clients", "accuracy, %", "mean", "worst")


def _claims(row: str, name: str, columns: tuple[str, ...]) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"{name} has {text} than FedAvg", row, "fedavg", metric, columns, ours=row == PRESET)
        for metric, text in ORDERINGS
    )


def _joint(row: str, name: str) -> Joint:
    mean, variance, worst = (f"{name} has {text} than FedAvg" for _, text in ORDERINGS)
    return Joint(
        name,
        f"The paper's claim, for {name} (lower variance and better worst clients than FedAvg at a "
        "mean that is not lower)",
        (variance, worst),
        (mean,),
        ours=row == PRESET,
    )


def _compared(key: str, title: str, columns: tuple[str, ...], note: str) -> Table:
    def jobs(setting: Setting) -> list[Job]:
        return _tuned_jobs(columns, setting)

    claims = tuple(claim for row, name in CLAIMED.items() for claim in _claims(row, name, columns))
    return Table(
        key, title, ROWS, tuple(COLUMNS[c] for c in columns), {"sound": METRICS}, jobs, run, SEEDS,
        claims=claims, note=note, joint=tuple(_joint(row, name) for row, name in CLAIMED.items()),
        plots=(CLIENTS,),
    )  # fmt: skip


TUNED = (
    "100 clients, {cohort} a round, {rounds} rounds of {steps} local steps, {model}; every method "
    "has {budget} trials. Ditto and lp-proj give each client a model of its own and are there for "
    "reference. AFL and lp-proj take as many local steps as the others. The preset paper_v5 never "
    "lets the fair gradient pull harder than the local one, and weighs by the losses after local "
    "training; its alpha is 0.5."
)

PAPER = Paper(
    "fedeba",
    "FedEBA+",
    'Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning" '
    "(arXiv 2301.12407; ICML 2026). No table of the paper was at hand, so no printed figure is "
    "compared with: the verdict on its figures is *not comparable* throughout. What is judged is "
    "its claim: a lower variance over clients and better worst clients than FedAvg's, at a mean "
    "that is not lower. It holds in a column where the orderings of variance and worst 5 % hold "
    "and that of the mean does not fail. Weights of the aggregation grow with a client's loss, the "
    "more the lower the temperature tau; alignment puts a share alpha of one fair gradient into "
    "local steps, where the losses differ by more than an angle theta. FedEBA+ asks the clients "
    "for that gradient in an exchange of its own; Prac-FedEBA+ takes the server's earlier moves in "
    "its place. `chosen` names the options that won on validation data; `defaults` is the rate 0.1 "
    "and the method's own.",
    (
        _compared(
            "mnist", "MNIST", ("mnist-shards", "mnist-dirichlet"),
            TUNED.format(cohort=10, rounds=100, steps=10, model="mlp 64-64", budget=12),
        ),
        _compared(
            "fashion", "Fashion-MNIST", ("fashion-shards", "fashion-dirichlet"),
            TUNED.format(cohort=10, rounds=100, steps=10, model="mlp 64-64", budget=12)
            + " The data are those of the Debian package dataset-fashion-mnist.",
        ),
        _compared(
            "cifar10", "CIFAR-10", ("cifar10-dirichlet",),
            TUNED.format(
                cohort=5, rounds=60, steps=20, model="a network of two convolutions", budget=11
            )
            + " Batches of 10; a subset of 13,000 training images at half their width and height: "
            "accuracies are low.",
        ),
        Table(
            "ablation", "Ablation",
            tuple(Row(key, title) for key, (title, _, _) in ABLATION.items()),
            (COLUMNS["mnist-shards"], COLUMNS["tuned"]), {"sound": METRICS}, _ablation_jobs, run,
            SEEDS,
            plots=(CLIENTS,),
            claims=(
                Claim("aggregation lowers the variance of FedAvg", "aggregation", "fedavg",
                      "variance", ABLATION_COLUMNS, ours=True),
                Claim("aggregation raises the worst 5 % of FedAvg", "aggregation", "fedavg",
                      "worst", ABLATION_COLUMNS, ours=True),
                Claim("alignment lowers the variance of FedAvg", "alignment", "fedavg",
                      "variance", ABLATION_COLUMNS, ours=True),
                Claim("alignment lowers the variance of aggregation alone", "both", "aggregation",
                      "variance", ABLATION_COLUMNS, ours=True),
                Claim("aggregation lowers the variance of alignment alone", "both", "alignment",
                      "variance", ABLATION_COLUMNS, ours=True),
            ),
            note="MNIST as above; each row differs in what its title says from tau = 2, alpha = "
            "0.3, theta = 0. First with one rate, 0.05, for all rows, then with the best of six "
            f"for each, chosen on validation data: 0.1, {', '.join(map(str, FEW_RATES))}.",
        ),
        Table(
            "noise", "Noisy labels",
            tuple(Row(key, title) for key, (title, _, _) in NOISY.items()),
            (
                Column("some", "MNIST, labels at random at 30 of 100 clients", "mnist"),
                Column("all", "MNIST, half of all labels wrong at all clients", "mnist"),
            ),
            {"sound": CLEAN}, _noise_jobs, run, SEEDS,
            plots=(spans("Right labels and worst clients", "accuracy, %", "clean", "worst"),),
            claims=(
                Claim("FedEBA+ beats FedAvg where labels are right", "fedeba", "fedavg",
                      "clean", ("some", "all"), ours=True),
                Claim("the robust loss helps FedEBA+", "fedeba-robust", "fedeba", "clean",
                      ("some", "all"), ours=True),
            ),
            note="Two shards a client; tau = 2, alpha = 0.3. p_max is the most weight that a "
            "client may have; robust = 1 trains and weighs by the robust loss of FedEBA+'s page. "
            "Each row has the best of six rates on validation data. Wrong labels are in training "
            "data alone; accuracy is on right labels.",
        ),
    ),
    {
        "sound": "clients, splits and first weights drawn again with each seed. Every method has "
        "the same number of trials: its defaults, rates, the first of which are the same for all, "
        "values of its own options, one at a time and less than half of the trials, at the best "
        "of these rates, and two rates next to that one with the best of all these. The "
        "best mean accuracy over clients on validation data of seed "
        f"{tuned.TUNING_SEED} wins; the table's seeds are others, on test data. What was tried "
        "and what it gave is in `papers/results`. The order of trials was changed after tables "
        "with options drawn together had been seen: there FedEBA+'s small alpha was tried with "
        "one temperature alone, a bad one. All figures are "
        "means of the last five evaluations (a tenth of the rounds apart); accuracies in percent, "
        "variances in squared points. q-FedSGD takes one step a round and is left out: it would "
        "need a number of rounds of its own.",
    },
    (
        "fedeba", "prac_fedeba", "eba", "fedavg", "fedprox", "qffl", "afl", "term", "fedfv",
        "fedmgda", "propfair", "gifair", "aaggff", "ditto", "lp_proj",
    ),
)  # fmt: skip
