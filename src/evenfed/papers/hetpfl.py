"""HetPFL's tables: hypervolumes of local and global fronts.

Ye, Tang, "Learning Heterogeneous Performance-Fairness Trade-offs in Federated Learning" (IJCAI
2025). Options that the paper does not print are those of its public code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from evenfed.papers import fronts
from evenfed.papers.front_runs import CHECKPOINTS, run
from evenfed.papers.recipe import (
    Claim,
    Column,
    Job,
    Metric,
    Paper,
    Plot,
    Protocol,
    Row,
    Setting,
    Table,
    spans,
)

BASELINES = ("lft_ensemble", "lft_fedavg", "agnosticfair", "fairfed", "fedfb", "equifl")
ROWS = (
    Row("lft_ensemble", "LFT+Ensemble"),
    Row("lft_fedavg", "LFT+FedAvg"),
    Row("agnosticfair", "AgnosticFair"),
    Row("fairfed", "FairFed"),
    Row("fedfb", "FedFB"),
    Row("equifl", "EquiFL"),
    Row("praffl", "PraFFL"),
    Row("praffl_own", "PraFFL, mean over clients", reference=True),
    Row("hetpfl", "HetPFL"),
    Row("constant", "constant predictor", reference=True),
    Row("ceiling", "sweep with pooled data", reference=True),
)
BOUNDED = Row("agnosticfair_bounded", "AgnosticFair, probabilities", reference=True)
"""Its constraint on probabilities in place of logits, which have no bound; in Table 1 alone."""
CHOSEN = tuple(
    Row(f"{key}_best", f"{title}, best round", reference=True)
    for key, title in (("fedfb", "FedFB"), ("equifl", "EquiFL"))
)
"""Published protocol, Table 1: the round chosen on validation data, as HetPFL's is."""
LAST = Row("hetpfl_last", "HetPFL, last round", reference=True)
"""Published protocol, Table 1: no round is chosen."""
ABLATION = (
    Row("praffl", "neither"),
    Row("phf", "PHF"),
    Row("psa", "PSA"),
    Row("hetpfl", "PSA and PHF"),
    *ROWS[-2:],
)
SHOWN = tuple(
    (row.title, (row.key,))
    for key in ("hetpfl", "praffl", "ceiling", *reversed(BASELINES))
    for row in ROWS
    if row.key == key
)
"""Fronts of Figure 4, the paper's method first."""
KNOBS: dict[str, dict[str, Any]] = {
    "lft_ensemble": {"alpha": 0.1},
    "lft_fedavg": {"alpha": 1e-6},
    "agnosticfair": {},
    "fairfed": {"form": "exponential", "beta": 0.1, "debiasing": "fairbatch", "alpha": 0.01},
    "fedfb": {"alpha": 0.01},
    "equifl": {},
}
"""Published protocol: one model a method. Where the public code's loss is not ours, defaults."""
FAIRBATCH = {"beta": 1.0, "debiasing": "fairbatch"}
SWEEPS: dict[str, tuple[dict[str, Any], ...]] = {
    "lft_ensemble": ({"alpha": 0.01}, {"alpha": 0.1}, {"alpha": 1.0}),
    "lft_fedavg": ({"alpha": 0.01}, {"alpha": 0.1}, {"alpha": 1.0}),
    "agnosticfair": ({"tau": 0.0}, {"tau": 0.1}),
    "fairfed": ({"beta": 1.0}, {**FAIRBATCH, "alpha": 0.1}, {**FAIRBATCH, "alpha": 1.0}),
    "fedfb": ({"alpha": 0.05}, {"alpha": 0.3}, {"alpha": 2.0}),
    "equifl": ({"mu": 0.5}, {"mu": 2.0}, {"mu": 10.0}),
}
"""Sound protocol: a front of several models, one a value of the fairness option."""
COLUMNS = tuple(
    Column(name, name.upper(), name) for name in ("synthetic", "compas", "bank", "adult")
)
SOUND_DATA: dict[str, dict[str, Any]] = {
    "synthetic": {},
    "compas": {"clients": 2, "sensitive": "sex,race", "partition": "dirichlet:sensitive:0.5:50"},
    "bank": {"clients": 3, "partition": "dirichlet:sensitive:0.5:50"},
    "adult": {"clients": 2, "partition": "dirichlet:sensitive:0.5:50"},
}
SOUND_EPOCHS = {"synthetic": 30, "compas": 10, "bank": 8, "adult": 8}
SECONDS = {
    "synthetic": {"front": 10.0, "convergence": 8.0, "ceiling": 8.0, "baseline": 4.0},
    "compas": {"front": 17.0, "convergence": 14.0, "ceiling": 10.0, "baseline": 10.0},
    "bank": {"front": 60.0, "convergence": 48.0, "ceiling": 10.0, "baseline": 23.0},
    "adult": {"front": 70.0, "convergence": 55.0, "ceiling": 12.0, "baseline": 30.0},
}
"""Of 15 rounds of 30 epochs on one thread, timed but for convergence."""


def _job(
    kind: str, rows: tuple[str, ...], column: str, dataset: str, seed: int, more: dict[str, Any],
    data: dict[str, Any], setting: Setting,
) -> Job:  # fmt: skip
    quick, sound = setting.quick, setting.protocol == "sound"
    epochs = 8 if quick else SOUND_EPOCHS[dataset] if sound else 30
    rounds = 3 if quick else 15
    settings: dict[str, Any] = {
        "kind": kind, "dataset": dataset, "data": data, "seed": seed, "rounds": rounds,
        "epochs": epochs, "hidden": 16 if sound else 4, "fusion_steps": 50 if quick else 200,
        **more,
    }  # fmt: skip
    share = rounds * epochs / 450
    fixed = {
        "front": 0.1 if quick else 0.25,
        "convergence": 0.1,
        "baseline": 0.1,
        "ceiling": 0.3 if quick else 1.0,
    }.get(kind, 0.0)
    seconds = SECONDS[dataset].get(kind, 0.2) * (fixed + (1 - fixed) * share)
    times = len(more.get("knobs", [None]))
    return Job(f"{column}-{rows[-1]}-{seed}", rows, column, seed, settings, seconds * times)


def _jobs_of(
    column: str, dataset: str, seed: int, data: dict[str, Any], setting: Setting
) -> list[Job]:
    """All methods on the data of a column and a seed."""
    sound = setting.protocol == "sound"
    make = partial(_job, column=column, dataset=dataset, seed=seed, data=data, setting=setting)
    how = {"options": "own"} if sound else {"round": "best on validation data"}
    jobs = [
        make(
            "front",
            ("praffl", "praffl_own", "phf"),
            more={"psa": False, "each": "on all test data", **how},
        ),
        make("front", ("psa", "hetpfl"), more={"psa": True, **how}),
        make("constant", ("constant",), more={}),
        make("ceiling", ("ceiling",), more={"steps": 300 if setting.quick else 1500}),
    ]
    for name in BASELINES:
        knobs = SWEEPS[name] if sound and not setting.quick else (KNOBS[name],)
        jobs.append(make("baseline", (name,), more={"method": name, "knobs": list(knobs)}))
    return jobs


def _data(name: str, setting: Setting) -> dict[str, Any]:
    """Options of a column's data."""
    return {**SOUND_DATA[name]} if setting.protocol == "sound" else {"protocol": "published"}


def _bounded_job(name: str, seed: int, data: dict[str, Any], setting: Setting) -> Job:
    knobs = SWEEPS["agnosticfair"] if setting.protocol == "sound" else (KNOBS["agnosticfair"],)
    more = {
        "method": "agnosticfair",
        "knobs": [{**knob, "score": "probability"} for knob in knobs],
    }
    return _job("baseline", (BOUNDED.key,), name, name, seed, more, data, setting)


def _chosen_job(row: Row, name: str, seed: int, data: dict[str, Any], setting: Setting) -> Job:
    method = row.key.removesuffix("_best")
    more = {"method": method, "knobs": [KNOBS[method]], "round": "best on validation data"}
    return _job("baseline", (row.key,), name, name, seed, more, data, setting)


def _main_jobs(setting: Setting, only: Sequence[str] = ()) -> list[Job]:
    names = ("synthetic", "compas") if setting.quick else tuple(c.key for c in COLUMNS)
    jobs = []
    for name in names:
        for seed in setting.seeds:
            data = _data(name, setting)
            jobs += _jobs_of(name, name, seed, data, setting)
            if not setting.quick:
                jobs.append(_bounded_job(name, seed, data, setting))
            if not setting.quick and setting.protocol == "published":
                jobs += [_chosen_job(row, name, seed, data, setting) for row in CHOSEN]
                more = {"psa": True, "round": "last"}
                jobs.append(_job("front", (LAST.key,), name, name, seed, more, data, setting))
    return [job for job in jobs if not only or set(job.rows) & set(only)]


def _ablation_jobs(setting: Setting) -> list[Job]:
    return _main_jobs(setting, [row.key for row in ABLATION])


def _heterogeneity_jobs(setting: Setting) -> list[Job]:
    jobs = []
    for level in ("0.1",) if setting.quick else ("0.1", "5", "1000"):
        for seed in setting.seeds:
            data: dict[str, Any] = {"protocol": "published", "setting": level}
            if setting.protocol == "sound":
                data = {"clients": 3, "partition": f"dirichlet:sensitive:{level}"}
            jobs += _jobs_of(level, "synthetic", seed, data, setting)
    return jobs


def _client_jobs(setting: Setting) -> list[Job]:
    jobs = []
    for count in (10,) if setting.quick else (10, 100, 300):
        for seed in setting.seeds:
            data: dict[str, Any] = {"protocol": "published", "clients": count}
            if setting.protocol == "sound":
                rows, held = {10: (5000, 2000), 100: (20000, 8000), 300: (25000, 8000)}[count]
                data = {
                    "clients": count, "partition": "dirichlet:sensitive:5:10",
                    "examples": rows, "test_examples": held,
                }  # fmt: skip
            made = _jobs_of(str(count), "synthetic", seed, data, setting)
            front, other = {10: (1.3, 1.2), 100: (3.4, 1.5), 300: (6.0, 2.0)}[count]
            jobs += [
                replace(job, seconds=job.seconds * (other if len(job.rows) == 1 else front))
                for job in made
            ]
    return jobs


def _convergence_jobs(setting: Setting) -> list[Job]:
    names = ("synthetic",) if setting.quick else tuple(c.key for c in COLUMNS)
    return [
        _job(
            "convergence", ("hetpfl" if psa else "praffl",), name, name, seed,
            {"psa": psa, **({"options": "own"} if setting.protocol == "sound" else {})},
            _data(name, setting), setting,
        )
        for name in names
        for seed in setting.seeds
        for psa in (False, True)
    ]  # fmt: skip


SEEDS: dict[Protocol, tuple[int, ...]] = {"published": (0, 1, 2, 3, 4), "sound": (0, 1, 2, 3, 4)}
METRICS = {
    "published": fronts.HYPERVOLUMES,
    "sound": (*fronts.HYPERVOLUMES, *fronts.TIGHT_METRICS),
}
ON_SYNTHETIC = ("synthetic", "0.1", "5", "1000", "10", "100", "300")
OTHER_DATA = "the sound protocol has other clients, redrawn splits and wider networks"
INCOMPARABLE = {
    "sound/*": OTHER_DATA,
    "published/lft_fedavg/*": "by the public code fairness is off in LFT+FedAvg, and on SYNTHETIC "
    "the rows of LFT+FedAvg and LFT+Ensemble are swapped in print",
    "published/lft_ensemble/*/global_*": "by the public code the global figure of LFT+Ensemble is "
    "of an untrained network",
    **{
        f"published/lft_ensemble/{column}/local_*": "on SYNTHETIC the rows of LFT+FedAvg and "
        "LFT+Ensemble are swapped in print"
        for column in ON_SYNTHETIC
    },
    "published/fairfed/*": "the public code leaves a weight out of the mean of the models, whose "
    "parameters then grow by half in every round",
    "published/agnosticfair/*": "the public code trains one penalised model on pooled data, "
    "without an adversary",
}
HEADS = (
    "HetPFL and its ablation: in the public code a reused counter turns most steps of the head "
    "into plain training, and the mean of the models leaves out a weight; here neither."
)
REASONS = {
    "published/fedfb/*": "FedFB: the public code adds the constant part of the groups' difference "
    "once a client, ties the weights of all groups to the size of the first, nearly loses the "
    "first client in the mean, and chooses a round. None of it is repeated here but the round "
    "(Table 1). How far our global figures come with all of it: see the evidence below.",
    "published/equifl/*": "EquiFL: the public code penalises the variance of scores with a large "
    "weight, which drives models towards a constant; here the penalty is on the covariance. "
    "Whether that is what its figures show was not tried.",
    "published/lft_ensemble/*": "LFT+Ensemble, local: the public code scales the members' scores "
    "by those of the other people in a batch; here each person is judged alone.",
    "published/praffl/*": "PraFFL: by the public code the printed row is HetPFL's training with "
    "uniform preferences, in which a reused counter turns most steps of the head into plain "
    "training; here every step is PraFFL's.",
    "published/hetpfl/300/local_hypervolume": "HetPFL, 300 clients, local: the public code makes "
    "three clients whatever is asked for, so that the printed figure cannot be made with it; what "
    "clients it is of is not known.",
    "published/hetpfl/*": HEADS,
    "published/psa/*": HEADS,
    "published/phf/*": HEADS,
}
FOLLOWED = tuple(Metric(f"round_{t}", f"after round {t}") for t in CHECKPOINTS)
TIGHTLY = tuple(Metric(f"tight_{t}", f"to 0.1, after round {t}") for t in (3, 5, 15))
ALL = tuple(c.key for c in COLUMNS)
VOLUMES = (spans("Hypervolume", "hypervolume", "local_hypervolume", "global_hypervolume"),)


def _claims(columns: tuple[str, ...]) -> tuple[Claim, ...]:
    return tuple(
        Claim(f"HetPFL has more {word} hypervolume than {row.title}", "hetpfl", row.key, metric,
              columns, ours=row.key == "praffl_own")
        for metric, word in (("local_hypervolume", "local"), ("global_hypervolume", "global"))
        for row in reversed(ROWS)
        if row.key in ("praffl", *BASELINES) or (row.key, word) == ("praffl_own", "global")
    )  # fmt: skip


def _table(
    key: str, title: str, rows: tuple[Row, ...], columns: tuple[Column, ...], jobs: Any,
    claims: tuple[Claim, ...], note: str = "", plots: tuple[Plot, ...] = (),
) -> Table:  # fmt: skip
    return Table(
        key, title, rows, columns, METRICS, jobs, run, SEEDS,  # type: ignore[arg-type]
        incomparable=INCOMPARABLE, reasons=REASONS, claims=claims, note=note, plots=plots,
    )  # fmt: skip


PAPER = Paper(
    "hetpfl",
    "HetPFL",
    "Ye, Tang, \"Learning Heterogeneous Performance-Fairness Trade-offs in Federated Learning\" "
    "(IJCAI 2025). Figures are hypervolumes (HV) of error and demographic-parity disparity with "
    "reference (1, 1): close to the best accuracy, so read them beside the constant predictor. A "
    "model is a shared body and a head, which a client's hypernetwork makes for a preference "
    "between accuracy and fairness. PSA learns which preferences a client trains with; PHF makes "
    "one hypernetwork for all (the FusionNet) of the clients'. LFT is local fair training, "
    "averaged or as an ensemble. Local figures are of the clients' own models on their own data, "
    "global ones of the federation's on all data.",
    (
        _table(
            "table1", "Table 1 and Figure 4", (*ROWS, BOUNDED, *CHOSEN, LAST), COLUMNS,
            _main_jobs, _claims(ALL),
            "Eight methods on four datasets. The figure is the paper's Figure 4: global fronts on "
            "test data, of the first seed.",
            (Plot("Global fronts", "error", "disparity", series=SHOWN),),
        ),
        _table(
            "table2", "Table 2", ROWS,
            tuple(Column(v, f"heterogeneity {v}", "synthetic") for v in ("0.1", "5", "1000")),
            _heterogeneity_jobs, _claims(("0.1", "5", "1000")),
            "SYNTHETIC, three clients. Published: the shares of the public code, of which those "
            "called 0.1 are written by hand. Sound: Dirichlet draws over clients, one a group.",
            VOLUMES,
        ),
        _table(
            "table3", "Table 3", ROWS,
            tuple(Column(v, f"{v} clients", "synthetic") for v in ("10", "100", "300")),
            _client_jobs, _claims(("10", "100", "300")),
            "SYNTHETIC. The public code makes three clients whatever is asked for, so the printed "
            "figures cannot be made again with it. Published: its lists of shares as they were "
            "meant. Sound: Dirichlet(5) over that many clients, one draw a group.",
            VOLUMES,
        ),
        _table(
            "table4", "Table 4", ABLATION, COLUMNS, _ablation_jobs,
            tuple(
                Claim(text, row, than, metric, ALL)
                for text, row, than, metric in (
                    ("PSA raises local hypervolume", "psa", "praffl", "local_hypervolume"),
                    ("PHF raises global hypervolume without PSA", "phf", "praffl",
                     "global_hypervolume"),
                    ("PHF raises global hypervolume with PSA", "hetpfl", "psa",
                     "global_hypervolume"),
                )
            ),
            "The ablation; its runs are those of Table 1.",
            VOLUMES,
        ),
        Table(
            "figure5", "Figure 5", (Row("praffl", "PraFFL"), Row("hetpfl", "HetPFL")), COLUMNS,
            {"published": FOLLOWED, "sound": (*FOLLOWED, *TIGHTLY)}, _convergence_jobs, run, SEEDS,
            claims=tuple(
                Claim(f"HetPFL is ahead of PraFFL after round {t}", "hetpfl", "praffl",
                      f"round_{t}", ALL)
                for t in (3, 5)
            ),
            plots=(Plot("Convergence", "round", "hypervolume", kind="line"),),
            note="Mean over clients of the hypervolume of their own fronts on validation data, "
            "reference (1, 1), and with the sound protocol up to a disparity of 0.1 as well. "
            "Figures are of the first seed. The paper's figure prints no numbers.",
        ),
    ),
    {
        "published": "the clients, rows, scaling and validation cut of the public code, one split "
        "for all seeds, networks of four units, reference (1, 1). Methods are the published "
        "algorithms: heads are those that clients trained behind their own bodies, before these "
        "were averaged. PraFFL's global figure is that of the mean of its hypernetworks, as in "
        "the paper's tables; PraFFL never takes that mean, and the row below has its own measure, "
        "the mean over clients of what their hypernetworks reach on all test data (101 models). "
        "PraFFL and HetPFL keep the round whose local fronts have most hypervolume on "
        "validation data, as the public code does; of the others the last round counts, and each "
        "has one model; the public code chooses a round for these as well, and Table 1 shows what "
        "that does for FedFB and EquiFL, and what HetPFL has without it.",
        "sound": "splits, scaling and clients drawn again with each seed (Dirichlet 0.5 over "
        "clients, one draw a group; on SYNTHETIC of Table 1, Table 4 and Figure 5 rows are drawn "
        "again and the clients' shares of the groups are the public code's), group not a feature "
        "but on SYNTHETIC, networks of 16 units, PraFFL and HetPFL with this package's own "
        "options (16 preferences a step, PSA may favour both ends, heads are trained five epochs "
        "more behind the final body) and their last round, "
        "30 epochs a round on SYNTHETIC, 10 on COMPAS, 8 on BANK and ADULT (about as many steps "
        "on COMPAS, more on the other two, where clients have more data), methods without "
        "preferences with a front of two or three values of their fairness option. HV to 0.1 is "
        "the mean over limits from 0 to 0.1 of the best accuracy at a disparity within the limit, "
        "accuracy at a disparity of 0.05 that of the best model within it, both among the models "
        "of a front and on test data: HetPFL's global front has 1,001 to choose from, those "
        "without preferences two or three, the sweep with pooled data 294 (six penalties, 49 "
        "thresholds each).",
    },
    (
        "hetpfl", "praffl", "lft_ensemble", "lft_fedavg", "agnosticfair", "fairfed", "fedfb",
        "equifl",
    ),
)  # fmt: skip
