"""Prac-FedEBA+: FedEBA+ with one exchange a round, by a fair gradient that is already known.

Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning"
(arXiv 2301.12407; ICML 2026). The paper's own approximation was not at hand: these are choices
made here, see docs/methods/prac_fedeba.md.

Symbols: those of FedEBA+, and `w_t` the model, `eta_g` and `eta` the server's and the local rate,
`K` local steps, `dw_i` the change of the model by client i's training.
`stale`, `kept`: `g~_t = -sum_i p_i dw_i / (eta K)` of round t - 1, which is
`(w_{t-1} - w_t) / (eta_g eta K)` where local steps are aligned; a client that last took part in
round s takes the mean of that over the rounds since. `first_step`: `g~_t = -sum_i p_i d_i / eta` of
round t - 1, with `d_i` the change by the first local step. The first round is not aligned. The
angle is that of the losses `F_i(w_{t-1})`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.entropy import fair_angle
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.eba import LOSS, UPDATE
from evenfed.methods.fedeba import FedEBA


@dataclass(frozen=True)
class PracFedEBA(FedEBA):
    """Prac-FedEBA+: the fair gradient is the last round's, so that traffic is FedAvg's.

    Parameters
    ----------
    fair_gradient : {"kept", "stale", "first_step"}
        Where the fair gradient comes from: the server's moves since the client last took part,
        which it knows without being sent anything; the server's last move, sent along; or the
        first local steps of the last round.
    others
        As for FedEBA+.
    """

    name: ClassVar[str] = "prac_fedeba"
    title: ClassVar[str] = "Prac-FedEBA+"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        UPDATE,
        LOSS,
        Reveal("train", "first", "model", "change by the first local step (first_step)", False),
        Reveal("train", "steps", "scalar", "number of local steps (stale, kept)", False),
        Reveal(
            "train", "received", "scalar",
            "loss of the received model, where the other loss is of the trained one", False,
        ),
        EVALUATION,
    )  # fmt: skip
    exchanges: ClassVar[int] = 1

    fair_gradient: Literal["kept", "stale", "first_step"] = "kept"

    # client side

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """Nothing, or the model at the client's last round where it computes the pull itself."""
        if not self.alpha or self.fair_gradient != "kept":
            return ()
        return {"last": trees.zeros_like(self.first), "path": torch.tensor(-1.0)}

    def pull(self, broadcast: Tree, state: Tree) -> Tree:
        """The fair gradient and its share, if this round aligns; else nothing."""
        if "aligns" not in broadcast:
            return super().pull(broadcast, state)
        # a client knows where the model was when it last took part, hence its mean move since
        walked = broadcast["path"] - state["path"]
        known = (state["path"] >= 0) & (walked > 0)
        scale = torch.where(known, 1.0 / torch.where(known, walked, 1.0), 0.0)
        moved = trees.subtract(state["last"], broadcast["params"])
        fair = trees.map(lambda t: (t * scale).to(t.dtype), moved)
        return {"fair": fair, "alpha": torch.tensor(self.alpha) * broadcast["aligns"] * known}

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Batches
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training; sends the change, the loss, and what is asked for."""
        upload, state = super().train(broadcast, state, data, draws)
        if not self.alpha:
            return upload, state
        params = broadcast["params"]
        if self.fair_gradient == "first_step":
            first = replace(draws, index=draws.index[:1], mask=draws.mask[:1])
            upload["first"] = trees.subtract(self.trained(broadcast, data, first), params)
        else:
            upload["steps"] = self.local.step_count(draws)
        if self.loss_at == "local_final":
            upload["received"] = self.loss(params, data)
        if self.fair_gradient == "kept":
            state = {"last": params, "path": broadcast["path"]}
        return upload, state

    # server side

    def start(self, federation: Federation) -> Server:
        """The model, angle, fair gradient and path.

        The path is the sum over rounds of server rate x local rate x steps: the length in which
        a move of the model is a mean gradient.
        """
        if not self.alpha:
            return super().start(federation)
        return {
            "params": self.first,
            "fair": trees.zeros_like(self.first),
            "angle": torch.tensor(-1.0),
            "path": torch.tensor(0.0),
        }

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: align with the last fair gradient or not, train, weigh by losses."""
        if not self.alpha:
            return super().round(federation, server)
        sent = self.broadcast(federation, server)
        rate = float(sent["lr"])
        known = float(server["angle"]) >= 0
        aligns = known and self._aligns(federation, float(server["angle"]))
        if self.fair_gradient == "kept":
            sent |= {"aligns": torch.tensor(float(aligns)), "path": server["path"]}
        elif aligns:
            sent["fair"] = server["fair"]
        first = self.fair_gradient == "first_step"
        answer = self._weighed(
            federation, self.train, sent,
            fair=("update", "first" if first else "steps"),
            plain={"mean": "first"} if first else {},
            keep=("received",) if self.loss_at == "local_final" else (),
        )  # fmt: skip
        value, move = answer.value, answer.value["update"]
        if known and not aligns:
            # the last round's direction stands for the mean first step where none is sent
            step = value["mean"] if first else trees.scale(server["fair"], -rate)
            move = self._mixed(move, step)
        walked = rate if first else rate * float(value["steps"])
        fair = server["fair"]
        if walked > 0:  # a schedule may end at a rate of zero
            fair = trees.scale(value["first" if first else "update"], -1.0 / walked)
        losses = answer.kept.get("received", answer.losses)
        return {
            "params": self.moved(server["params"], move),
            "fair": fair,
            "angle": torch.tensor(fair_angle(losses)),
            "path": server["path"] + self.server_lr * walked,
        }
