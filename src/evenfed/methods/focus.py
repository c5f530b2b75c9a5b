"""FOCUS: M models, and at every client soft labels that say how far each of them is its own.

Chu, Xie, Wang, Li, Yin, Zhao, Li, "FOCUS: Fairness via Agent-Awareness for Federated Learning on
Heterogeneous Data" (arXiv 2207.10265).

Symbols: `w_m` the models (`params`, stacked on the first axis), `pi_em` the label of client e for
model m (its logarithm `log_pi` is the client's state), `l_em` the mean training loss of model m at
client e, `theta_em` that model after local training there, `a_em` its weight in the mean.

E step (Eq. 8), at the client: `pi_em <- pi_em exp(-l_em)`, normalised over m. Labels add up the
evidence of all rounds. M step (Eq. 4 to 6): every client trains every model, unweighted, and
`w_m <- sum_e a_em theta_em` with `a_em = pi_em / sum_e' pi_e'm`. A client predicts with the mean of
the models' probabilities, weighted by its labels (Eq. 7).

On purpose not the paper's: local steps take the mean loss of a batch (Eq. 5 writes the sum, which
would tie the rate to the client's size); the first models (`init`), for which the paper has no
recipe; and, with a finite `tau`, FedEBA+'s entropy weights inside each cluster, with its options:
`a_em` proportional to `pi_em q_e exp(l_e / tau)`, with `q_e` what `weighting` says and `l_e =
sum_m pi_em l_em`. With `l_em` in place of `l_e` (`tau_loss="model"`) a client gets weight in a
model because it is not meant for it and fits it badly; labels outweigh that only after some
`1 / tau` rounds. A largest weight `p_max` counts the members of a cluster, `n_m = sum_e pi_em /
max_e pi_em`: none is held below `1 / n_m`, or what a member loses would go to strangers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.data.dataset import Schema
from evenfed.engines.exchange import Population
from evenfed.engines.federation import NOTED_CLIENTS, Federation
from evenfed.engines.fold import Tilted
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.focus_start import (
    ALONE,
    Choice,
    TrainsAlone,
    choose,
    count_in,
    first_models,
)
from evenfed.methods.soft_labels import (
    Mixture,
    by_model,
    e_step,
    each_model,
    effective_clusters,
    mixture,
    over_first,
    uniform,
)
from evenfed.methods.tilting import weighted

DEAD = 1e-8
"""A model whose label is below this at every client of a round keeps its weights."""

UPDATES = (
    Reveal("train", "update", "model", "changes of all M models, every round", False),
    Reveal("train", "log_pi", "scalar", "a label for each of the M models, every round", False),
)
LOSS = Reveal("train", "loss", "scalar", "loss of its models, every round (tau)", False)


@dataclass(frozen=True)
class Focus(TrainsAlone):
    """FOCUS.

    Parameters
    ----------
    m : int or "auto"
        Number of models; 1 is FedAvg. `auto` tries 1 to `max_models` and takes the fewest whose
        loss on validation data is the lowest, or within 1 % of it.
    init : {"farthest_first", "common_noise", "independent"}
        First models: those of clients that trained alone, each chosen because the ones before it
        fit its client worst; one common model with noise; or independent draws.
    alone_rounds : int
        How many rounds' worth of local training clients do alone for `farthest_first`.
    noise : float
        Noise of `common_noise`, relative to the root mean square of each weight tensor.
    n_init : int
        Starts that are tried; the one with the lowest training loss is taken.
    trial_rounds : int
        Rounds of a trial of `n_init` or `auto`; 0 is as many as the run has.
    weighting : {"uniform", "size", "auto"}
        What multiplies the labels in `a_em`: nothing (Eq. 6), or the client's size (Eq. 9).
    tau : float
        Temperature of FedEBA+'s entropy weights inside each cluster: the smaller, the more weight
        for clients with a large loss. Infinite is none (the paper).
    tau_loss : {"own", "model"}
        That loss: of the client under its labels, or of the model in question.
    tau_mode, tau_decay, tau_power, p_max, loss_at, robust
        As FedEBA+'s, see `Tilts`: spread and largest weight are those inside a cluster. The robust
        loss trains the models and weighs the clients; labels follow the plain one (Eq. 8).
    pi_floor : float
        Least label, so that a client can still change its mind after many rounds; 0 is off.
    skip_below : float
        A client does not train a model whose label was below this after the last round; it sends
        no change of it. The model is off by at most `a_em |theta_em - w_m|`.
    n_label_steps : int
        E steps of a client that took no part in training.
    max_models : int
        Largest number of models that `auto` tries.
    """

    name: ClassVar[str] = "focus"
    title: ClassVar[str] = "FOCUS"
    paper: ClassVar[str] = "Chu et al., 2022 (arXiv 2207.10265)"
    reveals: ClassVar[tuple[Reveal, ...]] = (*ALONE, *UPDATES, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"m": (2, 3, 4)}

    m: int | Literal["auto"] = 2
    init: Literal["farthest_first", "common_noise", "independent"] = "farthest_first"
    alone_rounds: int = 4
    noise: float = 0.01
    n_init: int = 1
    trial_rounds: int = 0
    weighting: Literal["auto", "size", "uniform"] = "uniform"
    tau: float = math.inf  # none
    tau_loss: Literal["own", "model"] = "own"
    pi_floor: float = 0.0
    skip_below: float = 0.0
    n_label_steps: int = 1
    max_models: int = 5

    choice: Choice | None = field(default=None, init=False, repr=False, compare=False)
    """Number of models and start that `start` has settled on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(
            self.name, "init", self.init, ("farthest_first", "common_noise", "independent")
        )
        check_choice(self.name, "tau_loss", self.tau_loss, ("own", "model"))
        if self.m != "auto" and (not isinstance(self.m, int) or self.m < 1):
            raise ConfigError(f"{self.name}: m must be at least 1, or 'auto', but is {self.m!r}")
        for option in ("alone_rounds", "n_init", "n_label_steps", "max_models"):
            if getattr(self, option) < 1:
                raise ConfigError(f"{self.name}: {option} must be at least 1")
        check_not_negative(self.name, trial_rounds=self.trial_rounds)
        if not self.noise > 0:
            raise ConfigError(f"{self.name}: noise must be greater than 0: equal models stay equal")
        if not 0 <= self.pi_floor * self.models < 1 or not 0 <= self.skip_below < 1:
            raise ConfigError(f"{self.name}: pi_floor must be in [0, 1/m), skip_below in [0, 1)")
        alone = ALONE if self.init == "farthest_first" and self.m != 1 else ()
        loss = (LOSS,) if self.tilts else ()
        object.__setattr__(self, "reveals", (*alone, *UPDATES, *loss, EVALUATION))

    @property
    def models(self) -> int:
        """M; before `auto` has chosen, the largest that it may choose."""
        if self.choice is not None:
            return self.choice.models
        return self.max_models if self.m == "auto" else self.m

    @property
    def tilts(self) -> bool:
        """Whether losses weigh inside the clusters."""
        return not math.isinf(self.tau)

    def start(self, federation: Federation) -> Server:
        """Settle on M and on a start, by trials if there is a choice."""
        choice = choose(self, federation)
        object.__setattr__(self, "choice", choice)
        server = self.begun(federation, choice.restart)
        count_in(choice.traffic, federation.traffic)
        return server

    def begun(self, federation: Federation, restart: int) -> Server:
        """The first models of a start, and the labels `(K, M)` as far as the server knows them.

        Rows of labels stand in the order of `federation.everyone`; see `memberships`.
        """
        params = first_models(self, federation, restart)
        return {"params": params, "log_pi": uniform(self.models).repeat(len(federation), 1)}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """`pi_em = 1/M`."""
        return {"log_pi": uniform(self.models)}

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The client's batches, or those of each model where some are skipped."""
        batches: Batches = self.local.draw(generator, state, size)
        if not self.skip_below:
            return batches
        wanted = state["log_pi"] >= math.log(self.skip_below)
        return tuple(replace(batches, mask=batches.mask & one) for one in wanted)

    def losses(self, models: Params, data: Examples) -> Tensor:
        """Mean loss of every model on the client's data, `(M,)`."""
        losses: Tensor = each_model(lambda params: self.task.mean_loss(params, data), models)
        return losses

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: E step, then local training of every model from the received one."""
        models = broadcast["params"]
        losses = self.losses(models, data)
        log_pi = e_step(state["log_pi"], losses, self.pi_floor)
        if self.skip_below:  # batches a model
            new = trees.stack(
                [
                    self.trained({**broadcast, "params": trees.row(models, i)}, data, one)
                    for i, one in enumerate(draws)
                ]
            )
        else:  # Eq. 4 and 5; the loss is the batch's mean, not its sum

            def trained(params: Params) -> Params:
                return self.trained({**broadcast, "params": params}, data, draws)

            new = each_model(trained, models)
        upload = {"update": trees.subtract(new, models), "log_pi": log_pi}
        if self.tilts:
            if self.robust or self.loss_at == "local_final":
                at = new if self.loss_at == "local_final" else models
                losses = each_model(lambda params: self.loss(params, data), at)
            own = (log_pi.exp().to(losses.dtype) * losses).sum()
            upload["loss"] = own if self.tau_loss == "own" else losses
        return upload, {"log_pi": log_pi}

    def label(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function of `finish`: labels of a client that was never asked; they stay there."""
        return {}, self.adapted(broadcast["params"], data)

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: labels and local models, averaged model by model."""
        if federation.round == 0 and self.choice is not None:
            self.choice.record(federation)
        means, labels, clients = self.averaged(federation, self.broadcast(federation, server))
        alive = labels.amax(0) >= math.log(DEAD)
        update = trees.stack(means)
        moved = trees.add(server["params"], update, self.server_lr)
        params = trees.map(
            lambda new, old: torch.where(over_first(alive, new), new, old), moved, server["params"]
        )
        known = server["log_pi"].clone()
        known[np.argsort(federation.everyone)[clients]] = labels
        federation.note(
            m=self.models,
            effective_clusters=effective_clusters(labels),
            dead_clusters=int((~alive).sum()),
            cluster_shares=[round(v, 6) for v in labels.double().exp().mean(0).tolist()],
        )
        return {"params": params, "log_pi": known}

    def averaged(
        self, federation: Federation, broadcast: Tree
    ) -> tuple[list[Tree], Tensor, NDArray[np.int64]]:
        """The mean change of every model, the labels `(clients, M)` and whose they are."""
        base = self.weights(federation)
        if not self.tilting.needs_all:
            # Eq. 6: softmax of log_pi over the clients, defined even for a nearly empty cluster
            kind = {
                str(i): Tilted(partial(self.score, i, round=federation.round), base)
                for i in range(self.models)
            }
            mean = federation.mean(
                self.train, broadcast, draws=self.draw, each=by_model, weights=kind,
                keep=("log_pi", "loss") if self.tilts else ("log_pi",),
            )  # fmt: skip
            means = [mean.value[name] for name in kind]
            return means, mean.kept["log_pi"], mean.clients
        replies = federation.map(self.train, broadcast, draws=self.draw)
        sent, sizes = replies.uploads, replies.sizes.double()
        labels: Tensor = sent["log_pi"]
        means = []
        for i in range(self.models):
            # relative to the largest label, so that a nearly empty cluster has weights too
            prior = (labels[:, i] - labels[:, i].max()).exp().cpu()
            members = float(prior.sum())
            prior = prior * (sizes if base == "size" else torch.ones_like(sizes))
            loss = self.behind(i, sent).cpu()
            p = self.tilting.weights(federation.round, loss, prior, members)
            means.append(weighted(trees.map(lambda t, i=i: t[:, i], sent["update"]), p))
        return means, labels, replies.clients

    def behind(self, model: int, uploads: Tree) -> Tensor:
        """The losses `(clients,)` behind the weights in a model; 0 where there are none."""
        if not self.tilts:
            return torch.zeros_like(uploads["log_pi"][:, model])
        loss: Tensor = uploads["loss"].double()
        return loss if self.tau_loss == "own" else loss[:, model]

    def score(self, model: int, uploads: Tree, sizes: Tensor, round: int = 0) -> Tensor:
        """`log(a_em / q_e)` `(clients,)`, up to a constant."""
        labels: Tensor = uploads["log_pi"][:, model]
        if not self.tilts:
            return labels
        return labels + self.behind(model, uploads) / self.tilting.temperature(round)

    def finish(self, federation: Federation, server: Server) -> Server:
        """Clients that no cohort held take labels from the last models, as unseen ones do."""
        never = (server["log_pi"] == uniform(self.models)).all(1).cpu().numpy()
        if self.models > 1 and never.any():
            clients = federation.everyone[never]
            federation.map(self.label, {"params": server["params"]}, clients=clients)
        return server

    def outputs(self, deployed: Tree, state: Tree, x: Tensor) -> Tensor:
        """Eq. 7, as outputs whose probabilities are the mean of the models' probabilities."""
        outputs: Tensor = each_model(lambda params: self.task.outputs(params, x), deployed)
        return mixture(outputs, state["log_pi"], self.task.kind == "regression")

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The one model, if there is but one."""
        count = len(trees.leaves(deployed)[0])
        if count > 1:
            raise ConfigError(
                f"'{self.name}' predicts with a mean of its {count} models, so that no client has "
                "one model's weights; result.server['params'] holds the models, stacked"
            )
        return trees.row(deployed, 0)  # type: ignore[no-any-return]

    def point(self, deployed: Tree, state: Tree) -> tuple[Tree, Callable[[Tree, Tensor], Tensor]]:
        """All models together; the client's labels stay as they are."""
        return deployed, lambda models, x: self.outputs(models, state, x)

    def module(self, deployed: Tree, state: Tree) -> nn.Module:
        """The client's mean of the models as one module."""
        count = len(trees.leaves(deployed)[0])
        members = [self.loaded(trees.row(deployed, i)) for i in range(count)]
        if count == 1:
            return members[0]
        if not trees.leaves(state):
            raise ConfigError(
                f"'{self.name}' predicts with a mean of its {count} models by a client's labels; "
                "name a client"
            )
        return Mixture(members, state["log_pi"], self.task.kind == "regression").eval()

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """Labels of a client that took no part: E steps from equal ones."""
        with torch.no_grad():
            losses = self.losses(deployed, data) * self.n_label_steps
        return {"log_pi": e_step(uniform(len(losses)).to(losses.device), losses, self.pi_floor)}

    def diagnostics(self, federation: Federation, server: Server, schema: Schema) -> dict[str, Any]:
        """Labels that clients sent last; of a large federation their means alone.

        Clients that no cohort held sent none.
        """
        sent = ~(server["log_pi"] == uniform(self.models)).all(1)
        found = server["log_pi"].double().exp()
        known = found[sent] if bool(sent.any()) else found
        result: dict[str, Any] = {
            "models": self.models,
            "effective_clusters": effective_clusters(known.log()),
            "cluster_shares": known.mean(0).tolist(),
            "clients_without_label": int((~sent).sum()) if self.models > 1 else 0,
        }
        if len(federation) <= NOTED_CLIENTS:
            rows = zip(federation.everyone.tolist(), found.tolist(), sent.tolist(), strict=True)
            result["memberships"] = {
                federation.name_of(i): [round(v, 6) for v in row]
                for i, row, did in rows
                if did or self.models == 1
            }
        return result

    def cluster_of(self, state: Tree) -> Tensor:
        """The client's most likely model, from what it keeps."""
        found: Tensor = state["log_pi"].argmax()
        return found

    def memberships(self, server: Server, population: Population) -> Tensor:
        """Labels `pi_em` `(K, M)` that the server last saw, clients as in `population`."""
        labels: Tensor = server["log_pi"].exp()
        order = population.order()
        return labels if order is None else labels[np.argsort(order)]
