"""The demo: a small study on data that need no download, and what its numbers say."""

from __future__ import annotations

from pathlib import Path

from evenfed.metrics.bootstrap import SeedSummary, over_seeds
from evenfed.runs.comparison import Study
from evenfed.runs.plan import StudyConfig, parse_study
from evenfed.runs.study import StudyObserver, run_study
from evenfed.runs.table import difference

# Rates, batches and rounds were chosen by FedAvg on validation data; all methods share them.
DEMO = {
    "methods": ["fedavg", "fedprox:mu=0.1", "qffl", "scaffold", "local"],
    "datasets": [
        {"name": "loans", "rounds": 30, "method": {"lr": 0.1, "batch": 64}},
        {
            "name": "digits",
            "clients": 10,
            "partition": "iid",
            "rotations": "0:7,90:2,180:1",
            "rounds": 60,
            "method": {"lr": 0.5},
        },
    ],
    "seeds": [0, 1, 2],
    "evaluate_every": 10,
    "checkpoint_every": 20,
    "engine": {"engine": "vectorized"},
}


def demo_config() -> StudyConfig:
    """The study of the demo.

    Examples
    --------
    >>> len(demo_config().planned())
    36
    """
    return parse_study(DEMO, "demo")


def run_demo(out: Path, observer: StudyObserver | None = None, *, counted: bool = False) -> Study:
    """Carry out the demo's study in a folder."""
    return run_study(demo_config(), out, observer, counted=counted)


def findings(study: Study) -> list[str]:
    """Three sentences on what was measured; each follows from the numbers of this study.

    A difference is called clear only if its 95 % interval over the same seeds leaves out 0.

    Examples
    --------
    >>> from evenfed.runs.study import study
    >>> findings(study("fedavg", "synthetic", rounds=1, seeds=[0]))
    []
    """
    if study.failed or study.config.completed().toml() != demo_config().completed().toml():
        return []
    return [_worst_client(study), _spread(study), _constant(study)]


class _Values:
    """A metric of the methods on one dataset, by seed."""

    def __init__(self, study: Study, dataset: str, metric: str) -> None:
        self.by_method = {m.method: m.values(metric) for m in study.measurements(dataset)}

    def mean(self, method: str) -> float:
        return over_seeds(list(self.by_method[method].values())).mean

    def gap(self, a: str, b: str) -> SeedSummary:
        found = difference(self.by_method[a], self.by_method[b])
        assert found is not None
        return found


def _is_clear(summary: SeedSummary) -> bool:
    return summary.low > 0 or summary.high < 0


def _span(summary: SeedSummary) -> str:
    return f"95 % interval of the difference {summary.low:+.3f} to {summary.high:+.3f}"


def _worst_client(study: Study) -> str:
    """Whether the client that is served worst gains from the federation."""
    values = _Values(study, "digits", "client_accuracy_min")
    together, alone, gap = (
        values.mean("fedavg"), values.mean("local"), values.gap("local", "fedavg"),
    )  # fmt: skip
    if not _is_clear(gap):
        verdict = "these seeds do not tell which is better for it"
    elif alone > together:
        verdict = "one shared model costs the client that is served worst"
    else:
        verdict = "even the client that is served worst gains from the federation"
    return (
        f"On digits, the worst client has accuracy {alone:.3f} where everybody trains alone "
        f"(local) and {together:.3f} with the shared model of fedavg: {verdict} ({_span(gap)})."
    )


def _spread(study: Study) -> str:
    """Whether q-FFL brings the clients closer together, and at what price."""
    spread = _Values(study, "digits", "client_accuracy_std")
    gap = spread.gap("qffl", "fedavg")
    price = _Values(study, "digits", "client_accuracy_mean").gap("qffl", "fedavg")
    verdict = "clearly less" if gap.mean < 0 else "clearly more"
    if not _is_clear(gap):
        verdict = "no clear difference"
    return (
        f"On digits, the clients' accuracies spread by {spread.mean('qffl'):.3f} (standard "
        f"deviation) with qffl and by {spread.mean('fedavg'):.3f} with fedavg: {verdict} "
        f"({_span(gap)}); their mean differs by {price.mean:+.3f}, "
        f"which is {'clear' if _is_clear(price) else 'not clear'} "
        f"({price.low:+.3f} to {price.high:+.3f})."
    )


def _constant(study: Study) -> str:
    """Whether anything is learned beyond the most frequent answer, and for whom."""
    accuracy = _Values(study, "loans", "accuracy")
    constant = _Values(study, "loans", "constant_accuracy")
    best = max(accuracy.by_method, key=accuracy.mean)
    over = difference(accuracy.by_method[best], constant.by_method[best])
    assert over is not None
    group = _Values(study, "loans", "accuracy_group_min").mean(best)
    verdict = "clearly better than" if _is_clear(over) else "not clearly better than"
    if over.mean <= 0:
        verdict = "no better than"
    return (
        f"On loans, the highest mean accuracy, {accuracy.mean(best):.3f} ({best}), is {verdict} "
        f"always giving the most frequent answer, {constant.mean(best):.3f} ({_span(over)}); in "
        f"the group that is served worst it is {group:.3f}."
    )
