"""HetPFL's second phase on the server's side: from the clients' hypernetworks to one for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad, vmap

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.hypernetwork import FusionNet
from evenfed.core.optimizer import Optimizer, Stepper
from evenfed.core.randomness import generator as seeded
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server

if TYPE_CHECKING:
    from evenfed.methods.hetpfl import HetPFL


@dataclass
class Fusion:
    """Phase II on the server's side."""

    method: HetPFL
    federation: Federation
    server: Server

    def run(self) -> Server:
        """Collect the hypernetworks of clients that trained, and learn how to unite them."""
        method, federation = self.method, self.federation
        replies = federation.map(method.share, {}, clients=federation.everyone)
        some = replies.uploads["trained"] > 0
        self.hypernetworks = replies.uploads["hypernetwork"][some]
        self.clients = replies.clients[some.numpy()]
        method.hand_out(federation, self.hypernetworks.mean(0), float(some.double().mean()))
        self.rows = None if method.phf == "federated" else self.collected(int(replies.sizes.max()))
        draws = seeded(federation.seed, "fusion")
        if method.phf == "tuned":
            trained: dict[str, Tree] = {"beta": self.hypernetworks.mean(0)}
        else:
            net = FusionNet(len(self.hypernetworks), method.fusion_hidden)
            trained = {"phi": trees.map(lambda t: t.to(method.task.device), net.first(draws))}
        leaves, structure = trees.flatten(trained)
        stepper = Stepper(Optimizer("adam"), leaves, 0)
        n = method.fusion_preferences
        for _ in range(method.fusion_steps):
            # one in each of n equal parts of [0, 1]: uniform, with less noise
            preferences = (torch.arange(n) + torch.rand(n, generator=draws)) / n
            gradient = self.gradient(trees.unflatten(leaves, structure), preferences)
            stepper.step(trees.leaves(gradient), method.fusion_lr, None)  # Eq. 16
        united = trees.unflatten(leaves, structure)
        if method.phf != "tuned":
            united["hypernetworks"] = self.hypernetworks
        return {**self.server, **united}

    def gradient(self, trained: Tree, preferences: Tensor) -> Tree:
        """The mean over clients of their gradients."""
        method = self.method
        if self.rows is None:
            broadcast = {
                "params": self.server["params"], "trained": trained,
                "hypernetworks": self.hypernetworks, "preferences": preferences,
            }  # fmt: skip
            mean = self.federation.mean(
                method.fuse, broadcast, clients=self.clients, weights="uniform"
            )
            return mean.value["gradient"]
        each = vmap(grad(method.fusion_loss), in_dims=(None, None, 0, None))(
            trained, self.hypernetworks, self.rows, preferences
        )
        return trees.map(lambda t: t.mean(0), each)

    def collected(self, size: int) -> Examples:
        """Latent rows of the clients, `size` each, shorter ones padded."""

        def draw(_: torch.Generator, __: Tree, own: int) -> Tree:
            index = torch.arange(size)
            return {"index": index.clamp(max=own - 1), "real": index < own}

        replies = self.federation.map(
            self.method.send_rows, {"params": self.server["params"]},
            clients=self.clients, draws=draw,
        )  # fmt: skip
        sent = replies.uploads
        return Examples(sent["features"], sent["labels"], sent["groups"], sent["real"])
