"""Where FOCUS begins: its first models, and trials that choose their number and their start.

The first models decide what FOCUS finds. The paper assumes them near the true centres and gives
no recipe. Models that begin apart at random may stay shared by everybody; models that begin almost
equal part along the largest difference between clients, and may then leave two small kinds of
clients to one model. Models of clients that trained alone, chosen farthest first, begin near
different kinds: so that is the default. docs/methods/focus.md has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, QuorumError
from evenfed.core.examples import Examples
from evenfed.core.randomness import generator, seed_for
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.exchange import Traffic
from evenfed.engines.federation import Federation
from evenfed.methods.base import Reveal
from evenfed.methods.tilted import Tilts
from evenfed.metrics.client import mean_loss

if TYPE_CHECKING:
    from evenfed.methods.base import Server
    from evenfed.methods.focus import Focus

_TIE = 0.01
"""Validation losses within this share of the lowest count as equal; the fewest models win."""

ALONE = (
    Reveal(
        "train_alone", "update", "model",
        "change of the first model by training alone, those of M clients sent on to all", False,
    ),
    Reveal("train_alone", "loss", "scalar", "training loss after training alone", False),
    Reveal("loss_of", "loss", "scalar", "training loss of another client's model", False),
)  # fmt: skip
"""What `init="farthest_first"` sends besides, before the first round."""


@dataclass(frozen=True)
class TrainsAlone(Tilts):
    """The client functions of `farthest_first`."""

    def train_alone(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: one model trained from the first one."""
        new = self.trained(broadcast, data, draws)
        update = trees.subtract(new, broadcast["params"])
        return {"update": update, "loss": self.task.mean_loss(new, data)}, state

    def loss_of(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: training loss of one given model."""
        return {"loss": self.task.mean_loss(broadcast["params"], data)}, state


@dataclass(frozen=True)
class Choice:
    """What trials have settled on, and what they took."""

    models: int
    restart: int = 0
    validation: dict[str, float] = field(default_factory=dict)
    """Loss on validation data by number of models, where that was to be chosen."""
    traffic: Traffic = field(default_factory=Traffic)
    """Of trials and first models."""

    def record(self, federation: Federation) -> None:
        """Put the choice and its cost on the first round's line of the history."""
        if self.validation:
            federation.note(validation_loss_by_m=self.validation)
        count_in(federation.traffic, self.traffic)


@dataclass(frozen=True)
class _Trial:
    models: int
    restart: int
    train: float
    validation: float


def choose(focus: Focus, federation: Federation) -> Choice:
    """Number of models and start, by trials where there is more than one."""
    # no more models than clients that could begin with one of their own
    most = min(focus.max_models, len(federation.cohort))
    sizes = range(1, most + 1) if focus.m == "auto" else (focus.m,)
    spent = Traffic()
    if focus.m != "auto" and focus.n_init == 1:
        return Choice(focus.m, traffic=spent)
    validation = federation.population.sizes("val")
    if focus.m == "auto" and validation is not None and not validation.any():
        raise ConfigError("focus: m='auto' needs validation examples, and no client has any")
    best = []
    for models in sizes:
        starts = range(focus.n_init if models > 1 else 1)
        trials = [_trial(focus, federation, models, restart, spent) for restart in starts]
        best.append(min(trials, key=lambda trial: trial.train))
    if focus.m != "auto":
        return Choice(best[0].models, best[0].restart, traffic=spent)
    lowest = min(trial.validation for trial in best)
    limit = lowest + _TIE * abs(lowest)
    fewest = next(trial for trial in best if trial.validation <= limit)
    scores = {str(trial.models): trial.validation for trial in best}
    return Choice(fewest.models, fewest.restart, scores, spent)


def _trial(
    focus: Focus, federation: Federation, models: int, restart: int, spent: Traffic
) -> _Trial:
    """A run of its own from the given start, with the run's own randomness."""
    trial = replace(focus, m=models, n_init=1).bound(focus.task, focus.first)
    own = replace(federation, state=trial.client_state)
    own.engine = federation.engine
    server = trial.begun(own, restart)
    for t in range(focus.trial_rounds or federation.rounds):
        count_in(spent, own.traffic)
        own.begin(t)
        try:
            server = trial.round(own, server)
            own.commit()
        except QuorumError:
            own.states.rollback()
    # clients that no cohort held take labels, as they do at the end of the run
    server = trial.finish(own, server)
    train = _loss(trial, own, server, "train")
    validation = _loss(trial, own, server, "val") if focus.m == "auto" else train
    count_in(spent, own.traffic)
    return _Trial(models, restart, train, validation)


def _loss(focus: Focus, federation: Federation, server: Server, split: str) -> float:
    """Mean over clients of the mean loss of their ensembles; infinite where one diverged."""
    clients, sizes = federation.everyone, federation.population.sizes(split)
    if sizes is not None:
        clients = clients[sizes[clients] > 0]
    replies = federation.map(
        focus.evaluate, server["params"], clients=clients, split=split, finite=False, counted=False
    )
    counts = replies.uploads["counts"]
    losses = mean_loss(counts)[(counts.size > 0).cpu().numpy()]
    return float(np.where(np.isnan(losses), np.inf, losses).mean())


def count_in(total: Traffic, more: Traffic) -> None:
    """Add traffic to a total."""
    total.down += more.down
    total.up += more.up
    total.exchanges += more.exchanges


def first_models(focus: Focus, federation: Federation, restart: int) -> Params:
    """The M first models, stacked; one model is the run's first one, as for any method."""
    if focus.models == 1:
        models = [focus.first]
    elif focus.init == "common_noise":
        models = _common_noise(focus, generator(federation.seed, "focus noise", restart))
    elif focus.init == "independent":
        models = _independent(focus, federation.seed, restart)
    else:
        models = _farthest_first(focus, federation, restart)
    return trees.stack(models)  # type: ignore[no-any-return]


def _common_noise(focus: Focus, noise: torch.Generator) -> list[Params]:
    """One common model; noise relative to each tensor's size, absolute where it is zero."""

    def near(weight: Tensor) -> Tensor:
        drawn = torch.randn(weight.shape, generator=noise, dtype=weight.dtype).to(weight.device)
        scale = weight.square().mean().sqrt()
        return weight + focus.noise * torch.where(scale > 0, scale, 1.0) * drawn

    return [trees.map(near, focus.first) for _ in range(focus.models)]


def _independent(focus: Focus, seed: int, restart: int) -> list[Params]:
    """Independent draws of the first weights."""
    models = [
        replace(focus.task, seed=seed_for(seed, "focus draw", restart, i)).init()
        for i in range(focus.models)
    ]
    drawn = zip(trees.leaves(models[0]), trees.leaves(models[1]), strict=True)
    if all(torch.equal(a, b) for a, b in drawn):
        raise ConfigError(
            "focus: init='independent' draws weights anew, but this model has weights of its own; "
            "pass a function that makes one, or use init='common_noise'"
        )
    return models


def _farthest_first(focus: Focus, federation: Federation, restart: int) -> list[Params]:
    """Models of clients that trained alone, one of them at random, then the worst fitted ones.

    Asks the first round's cohort, all of which answers: M exchanges, the first as large as one
    of FedAvg, the others with one model down and one loss up.
    """
    _check_enough(focus, len(federation.cohort))
    rate, times = focus.local.rate(0, federation.rounds), focus.alone_rounds
    longer = replace(
        focus.local, epochs=focus.local.epochs * times, steps=focus.local.steps * times
    )
    alone = federation.map(
        focus.train_alone, {"params": focus.first, "lr": rate},
        draws=longer.draw, clients=federation.cohort,
    )  # fmt: skip
    count = len(alone.clients)
    _check_enough(focus, count)
    models = trees.add(focus.first, alone.uploads["update"])
    own = alone.uploads["loss"].double()
    place = {int(client): i for i, client in enumerate(alone.clients)}
    pick = generator(federation.seed, "focus pick", restart)
    chosen = [int(torch.randint(count, (1,), generator=pick))]
    least = torch.full_like(own, torch.inf)
    while len(chosen) < focus.models:
        newest = {"params": trees.row(models, chosen[-1])}
        replies = federation.map(focus.loss_of, newest, clients=alone.clients)
        # a client without a finite loss is not among the replies: nothing fits it yet
        rows = [place[int(client)] for client in replies.clients]
        least[rows] = torch.minimum(least[rows], replies.uploads["loss"].double())
        excess = least - own
        excess[chosen] = -torch.inf
        chosen.append(int(excess.argmax()))
    return [trees.row(models, i) for i in chosen]


def _check_enough(focus: Focus, clients: int) -> None:
    if clients < focus.models:
        raise ConfigError(
            f"focus: init='farthest_first' takes {focus.models} models from as many clients, but "
            f"{clients} take part in the first round with a finite loss; lower m, ask more "
            "clients, or use init='common_noise'"
        )
