"""Losses of many models of a front at once: performance, fairness, and one number of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from evenfed.core.examples import Examples
from evenfed.core.fairness_loss import Fairness, fairness_loss
from evenfed.core.hypernetwork import Hypernetwork, Layers
from evenfed.core.preferences import Scalarization, scalarized
from evenfed.core.task import LossRule


@dataclass(frozen=True)
class FrontLoss:
    """`(l_CE, l_F)` of classifiers of latent features, and `g_tch` (Eqs. 1 to 3 of HetPFL).

    It does not know the body, so that one trace serves all models whose latent features are alike.

    Parameters
    ----------
    rule : LossRule
        The performance loss.
    groups : int
        Number of groups.
    """

    rule: LossRule
    groups: int
    hypernetwork: Hypernetwork
    fairness: Fairness
    scalarization: Scalarization

    def outputs(self, layers: Layers, features: Tensor) -> Tensor:
        """Outputs `(N, B, C)`, or `(N, B)` where the task's model has one logit."""
        out = self.hypernetwork.outputs_of(layers, features)
        return out.squeeze(-1) if self.hypernetwork.outputs == 1 else out

    def losses(self, layers: Layers, data: Examples) -> Tensor:
        """Loss vectors `(N, 2)`; `data.x` holds latent features `(B, latent)`."""
        outputs, weight = self.outputs(layers, data.x), data.weight
        each = vmap(lambda out: self.rule(out, data.y))(outputs)
        performance = (each * weight).sum(-1) / weight.sum().clamp(min=1)
        fairness = fairness_loss(self.fairness, outputs, data.y, data.group, weight, self.groups)
        return torch.stack([performance, fairness], -1)

    def mean(self, layers: Layers, data: Examples, rays: Tensor) -> tuple[Tensor, Tensor]:
        """The mean over rays `(N, 2)` of the scalar loss, and the loss vectors `(N, 2)`."""
        losses = self.losses(layers, data)
        return scalarized(losses, rays, self.scalarization).mean(), losses
