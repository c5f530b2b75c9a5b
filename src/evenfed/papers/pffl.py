"""PFFL's figures: error against the largest group loss, and against gaps between groups.

Hu, Wu, Smith, "Fair Federated Learning via Bounded Group Loss" (SaTML 2024, arXiv 2203.10190). The
figures print no numbers, and models, partitions and grids are not in the text: what can be judged
are the orderings that it states.
"""

from __future__ import annotations

from typing import Any

from evenfed.papers.pffl_bench import PLACES, Kind, bench_of, worst
from evenfed.papers.recipe import Claim, Column, Job, Metric, Outcome, Paper, Plot, Row, Setting
from evenfed.papers.recipe import Table as PaperTable
from evenfed.runs.result import Result

CONSTRAINTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "bgl": ("BGL", ()),
    "cbgl1": ("CBGL, y = 1", (1,)),
    "cbgl0": ("CBGL, y = 0", (0,)),
}
DATA: dict[str, tuple[str, str, dict[str, Any]]] = {
    "compas": ("COMPAS, sex", "compas", {"sensitive": "sex"}),
    "acs": ("ACS Income, race", "acs_income",
            {"sensitive": "race", "limit": 2000}),
    "acs_all": ("ACS Income, race, all people", "acs_income",
                {"sensitive": "race"}),
}  # fmt: skip
SECONDS = {"compas": 20.0, "acs": 50.0, "acs_all": 300.0}
"""Of one job of Figure 2 on one thread."""
SMALL_SEEDS = 3
"""Seeds of all people; other columns have all seeds of the table."""
COMPARED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fedavg", "FedAvg", {}),
    ("bgl", "PFFL, BGL", {"constraint": "bounded_group_loss"}),
    ("cbgl", "PFFL, CBGL", {"constraint": "conditional_bounded_group_loss"}),
    ("fedfb_low", "FedFB, alpha 0.05", {"name": "fedfb", "alpha": 0.05}),
    ("fedfb", "FedFB, alpha 0.3", {"name": "fedfb", "alpha": 0.3}),
    ("fedfb_high", "FedFB, alpha 2", {"name": "fedfb", "alpha": 2.0}),
    ("fedfair_low", "FedFair, eps 0.1", {"name": "fedfair", "eps": 0.1}),
    ("fedfair", "FedFair, eps 0.02", {"name": "fedfair", "eps": 0.02}),
    ("fcfl_dp", "FCFL (DP), eps 0.05", {"name": "fcfl", "eps": 0.05, "metric": "dp"}),
    ("fcfl_eo", "FCFL (EO), eps 0.05", {"name": "fcfl", "eps": 0.05, "metric": "eo"}),
)  # fmt: skip


def _settings(name: str, seed: int, setting: Setting) -> dict[str, Any]:
    _, dataset, options = DATA[name]
    rounds = 20 if setting.quick else 60 if name == "acs_all" else 150
    rate = 1.0 if name == "acs_all" else 0.5
    return {
        "dataset": dataset, "data": options, "seed": seed, "rounds": rounds, "rate": rate,
        "steps": 5, "lambda_bound": 10.0,
    }  # fmt: skip


def _losses_jobs(setting: Setting) -> list[Job]:
    """A job has all runs of a dataset, a constraint and a seed: bounds depend on the first ones."""
    jobs = []
    for name in ("compas",) if setting.quick else tuple(DATA):
        kinds = tuple(CONSTRAINTS)[: 2 if setting.quick else 3]
        for kind in kinds:
            for seed in setting.seeds[: SMALL_SEEDS if name == "acs_all" else None]:
                few = setting.quick or name == "acs_all"
                places = ["1_2"] if few else list(PLACES)
                rows = ["fedavg", "weighted", *(f"{s}_{p}" for s in SCOPES for p in places)]
                settings = _settings(name, seed, setting)
                settings |= {"kind": "losses", "constraint": kind, "places": places}
                settings["certified"] = "every point, by curvature"
                seconds = 12.0 if setting.quick else SECONDS[name]
                column = f"{name}_{kind}"
                jobs.append(
                    Job(f"{column}-{seed}", tuple(rows), column, seed, settings, seconds)
                )  # fmt: skip
    return jobs


def _gaps_jobs(setting: Setting) -> list[Job]:
    jobs = []
    for name in ("compas",) if setting.quick else ("compas", "acs"):
        for key, _, options in COMPARED:
            for seed in setting.seeds:
                settings = _settings(name, seed, setting) | {"kind": "gaps", "method": options}
                if options.get("name") == "fcfl":  # one step a round, so it gets as many steps
                    settings["rounds"] *= settings["steps"]
                bounded = "constraint" in options
                rows: tuple[str, ...] = (key,)
                if bounded:
                    places = ["1_2"] if setting.quick else list(PLACES)
                    rows = tuple(f"{key}_{p}" for p in places)
                    settings |= {"places": places, "certified": "every point, by curvature"}
                seconds = (35.0 if bounded else 30.0) * (1.0 if name == "acs" else 0.4)
                seconds *= 0.1 if setting.quick else 1.0
                jobs.append(Job(f"{name}-{key}-{seed}", rows, name, seed, settings, seconds))
    return jobs


SCOPES = ("global", "local")


def run(job: Job) -> Outcome:
    """Carry out a job."""
    settings = dict(job.settings)
    return _losses(settings) if settings["kind"] == "losses" else _gaps(settings, job.rows)


def _losses(settings: dict[str, Any]) -> Outcome:
    bench = bench_of(settings)
    _, labels = CONSTRAINTS[settings["constraint"]]
    conditional = bool(labels)
    kind: Kind = "conditional_bounded_group_loss" if conditional else "bounded_group_loss"

    def measured(result: Result) -> dict[str, float]:
        return {
            "error": 1 - float(result.summary()["accuracy"]),
            "worst": worst(result, "test", conditional, labels),
            "worst_train": worst(result, "train", conditional, labels),
        }

    values = {"fedavg": measured(bench.fedavg), "weighted": measured(bench.weighted)}
    bounds = bench.bounds(kind, labels)
    facts: dict[str, dict[str, str]] = {}
    for place in settings["places"]:
        zeta = bounds.at(place)
        for scope in SCOPES:
            result = bench.train(bench.bounded(kind, labels, zeta, scope=scope))
            row = f"{scope}_{place}"
            proved, word = bounds.certified(result, zeta)
            values[row] = {**measured(result), "bound": zeta, **proved}
            facts[row] = {"bounds": word}
    return Outcome(values, facts)


def _gaps(settings: dict[str, Any], rows: tuple[str, ...]) -> Outcome:
    bench = bench_of(settings)
    options = dict(settings["method"])
    if "constraint" not in options:
        name = options.pop("name", "fedavg")
        result = bench.fedavg if name == "fedavg" else bench.named(name, **options)
        return Outcome({rows[0]: _gap_values(result)})
    bounds = bench.bounds(options["constraint"], ())
    found, facts = {}, {}
    for row, place in zip(rows, settings["places"], strict=True):
        zeta = bounds.at(place)
        result = bench.train(bench.bounded(options["constraint"], (), zeta))
        proved, word = bounds.certified(result, zeta)
        found[row] = {**_gap_values(result), **proved}
        facts[row] = {"bounds": word}
    return Outcome(found, facts)


def _gap_values(result: Result) -> dict[str, float]:
    summary = result.summary()
    return {
        "error": 1 - float(summary["accuracy"]),
        "dp": float(summary["demographic_parity_difference"]),
        "eo": float(summary["equal_opportunity_difference"]),
    }


CERTIFIED = (
    Metric("violation", "largest excess, training", higher=False, digits=4),
    Metric("gap", "certified gap", higher=False, digits=4),
)
LOSSES = (
    Metric("error", "test error", higher=False),
    Metric("worst", "largest group loss, test", higher=False),
    Metric("worst_train", "training", higher=False),
    Metric("bound", "bound", higher=False),
    *CERTIFIED,
)
GAPS = (
    Metric("error", "test error", higher=False),
    Metric("dp", "gap of positive rates", higher=False),
    Metric("eo", "gap of true positive rates", higher=False),
    *CERTIFIED,
)
WORDS = {"1_4": "1/4", "1_2": "1/2", "3_4": "3/4"}
LOSS_ROWS = (
    Row("fedavg", "FedAvg"),
    Row("weighted", "FedAvg, group-weighted"),
    *(Row(f"{s}_{p}", f"PFFL {s}, bound at {WORDS[p]}") for s in SCOPES for p in PLACES),
)
GAP_ROWS = tuple(
    row
    for key, title, options in COMPARED
    for row in (
        [Row(f"{key}_{p}", f"{title}, bound at {WORDS[p]}") for p in PLACES]
        if "constraint" in options
        else [Row(key, title)]
    )
)
LOSS_COLUMNS = tuple(
    Column(f"{name}_{kind}", f"{title}: {words}", dataset)
    for name, (title, dataset, _) in DATA.items()
    for kind, (words, _) in CONSTRAINTS.items()
)
GAP_COLUMNS = tuple(Column(name, DATA[name][0], DATA[name][1]) for name in ("compas", "acs"))
_EVERY = tuple(c.key for c in LOSS_COLUMNS)
_BOTH = tuple(c.key for c in GAP_COLUMNS)
LOSS_CLAIMS = tuple(
    Claim(
        text.format("bound at 1/2"), "global_1_2", than, metric, _EVERY,
        ours=than == "weighted" or metric == "worst_train",
    )
    for text, than, metric in (
        ("PFFL ({}) has a lower largest group loss than FedAvg, test", "fedavg", "worst"),
        ("PFFL ({}) has a lower largest group loss than FedAvg, training", "fedavg",
         "worst_train"),
        ("PFFL ({}) has a lower error than FedAvg", "fedavg", "error"),
        ("Global bounds ({}) give a lower largest group loss than local ones, test",
         "local_1_2", "worst"),
        ("Global bounds ({}) give a lower error than local ones", "local_1_2", "error"),
        ("PFFL ({}) has a lower largest group loss than group-weighted FedAvg, test", "weighted",
         "worst"),
    )
)  # fmt: skip
GAP_CLAIMS = tuple(
    Claim(f"PFFL (CBGL, bound at 1/4) has a smaller {words} than {title}",
          "cbgl_1_4", row, metric, _BOTH)
    for metric, words in (("dp", "gap of positive rates"), ("eo", "gap of true positive rates"))
    for row, title in (("fedavg", "FedAvg"), ("fedfb", "FedFB"), ("fedfair", "FedFair"),
                       ("fcfl_dp" if metric == "dp" else "fcfl_eo", "FCFL"))
)  # fmt: skip
_SWEEPS = tuple((f"PFFL {s}", tuple(f"{s}_{p}" for p in PLACES)) for s in SCOPES)
_GAP_SERIES = (
    ("PFFL, BGL", tuple(f"bgl_{p}" for p in PLACES)),
    ("PFFL, CBGL", tuple(f"cbgl_{p}" for p in PLACES)),
    ("FedFB", ("fedfb_low", "fedfb", "fedfb_high")),
    ("FedFair", ("fedfair_low", "fedfair")),
    ("FCFL", ("fcfl_dp", "fcfl_eo")),
    ("FedAvg", ("fedavg",)),
)

PAPER = Paper(
    "pffl",
    "PFFL",
    "Hu, Wu, Smith, \"Fair Federated Learning via Bounded Group Loss\" (SaTML 2024, arXiv "
    "2203.10190). Its Figures 2 and 3 print no numbers, so orderings are judged, not figures.",
    (
        PaperTable(
            "figure2", "Figure 2", LOSS_ROWS, LOSS_COLUMNS, {"sound": LOSSES}, _losses_jobs, run,
            {"sound": (0, 1, 2, 3, 4)}, claims=LOSS_CLAIMS,
            plots=(
                Plot("Error and largest group loss", "test error", "largest group loss, test",
                     metrics=("error", "worst"),
                     series=(*_SWEEPS, ("FedAvg", ("fedavg",)),
                             ("FedAvg, group-weighted", ("weighted",)))),
            ),
            note="Error against the largest loss of a group (BGL), or of a group among people "
            "with one label (CBGL). The bound lies between the least largest loss that any model "
            "reaches on training data (0) and FedAvg's (1). `bounds`, largest excess and gap "
            "are the certificate's: whether a model that meets the bounds exists, by how much the "
            "one handed out misses them on training data (negative: it meets them), and how far "
            "from the optimum of its problem it can be. Runs with local bounds are checked against "
            "the global ones, of groups over all clients; their multipliers stay at the clients, "
            "so that they have no gap.",
        ),
        PaperTable(
            "figure3", "Figure 3", GAP_ROWS, GAP_COLUMNS, {"sound": GAPS}, _gaps_jobs, run,
            {"sound": (0, 1, 2, 3, 4)}, claims=GAP_CLAIMS,
            plots=(
                Plot("Error and gap of positive rates", "test error", "gap of positive rates",
                     metrics=("error", "dp"), series=_GAP_SERIES, key="dp"),
                Plot("Error and gap of true positive rates", "test error",
                     "gap of true positive rates",
                     metrics=("error", "eo"), series=_GAP_SERIES, key="eo"),
            ),
            note="Gaps are the largest between two groups (demographic parity, equal "
            "opportunity). CBGL bounds every group and label. The paper calls PFFL comparable or "
            "better, so that an ordering which is not told apart is no miss.",
        ),
    ),
    {
        "sound": "logistic regression without the group as a feature, clients weighted by "
        "size, five full-batch steps a round (FCFL one, in five times the rounds), 150 rounds "
        "(60 on all people), B = "
        "10, mean of the last half of the rounds. COMPAS: 10 clients, Dirichlet 0.5 "
        "over sex; ACS Income: 49 states and Puerto Rico, at most 2,000 people of each, "
        "or all 1.4 million that the files have, with three seeds (California is missing there, "
        "and two thirds of Florida). Clients, people and splits are drawn again with "
        "each seed. The quick version has COMPAS alone and 20 rounds. The paper has ACS "
        "Employment and CelebA, which are not at hand, and picks for each error the best of "
        "its sweep on test data; here every point is a row.",
    },
    ("pffl", "fedavg", "group_weighted", "fedfb", "fedfair", "fcfl"),
)  # fmt: skip
