"""FairBatch: weights of cells (label, group) that steer two-class training to demographic parity.

Roh, Lee, Whang, Suh, "FairBatch: Batch Selection for Model Fairness" (ICLR 2021), in the form that
Zeng, Chen, Lee, "Improving Fairness via Federated Learning" (2021) give it for any number of
groups.

Symbols: `m_yz` examples with label y in group z, `m_z = m_0z + m_1z`, `n` all examples, `S_yz` the
sum of the cell's losses, `lambda_yz` the weight of a cell, shared among its group's examples: an
example has weight `lambda_yz / m_z`. All `lambda_yz` begin at `m_z / n`, which is plain training,
and `lambda_0z + lambda_1z = 2 m_z / n` is kept. Held here is `u_z = lambda_0z n / m_z` (`factors`),
so that an example counts `u_z` times with label 0 and `2 - u_z` times with label 1.

The loss stands for the error rate, so `(S_0z - S_1z + m_1z) / m_z` stands for `P(prediction 1 |
z)`. With `F_z` its difference to that of the first group: `lambda_0z += a F_z`, and for the first
group `lambda_0z -= a sum_z F_z`, clipped to `[0, 2 m_z / n]`. Groups without examples take no part;
the first group is the first that has any.

Differences on purpose. Weights instead of sampled batches: the same expected gradient, and nothing
is drawn from losses. The rule moves by `F_z`, not by its sign, and along both labels at once.
FedFB's public code clips every group by the size of group 0 and, for two groups, starts local
weights at `m_yz / m_z`, which is no plain training; neither is imitated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evenfed.core.batches import Batches
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree


def positive_rates(loss: Tensor, cells: Tensor) -> Tensor:
    """Stand-ins for `P(prediction 1 | z)` `(G,)` from loss sums and counts `(G, 2)`.

    Examples
    --------
    >>> positive_rates(torch.tensor([[0.5, 0.0]]), torch.tensor([[2.0, 2.0]]))
    tensor([0.6250])
    """
    return (loss[:, 0] - loss[:, 1] + cells[:, 1]) / cells.sum(-1).clamp(min=1)


def group_gaps(loss: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """`F_z` `(G,)` and which group is the first that has examples, bool `(G,)`.

    Examples
    --------
    >>> cells = torch.tensor([[0.0, 0.0], [2.0, 2.0], [1.0, 3.0]])
    >>> group_gaps(torch.zeros(3, 2), cells)
    (tensor([0.0000, 0.0000, 0.2500]), tensor([False,  True, False]))
    """
    present = cells.sum(-1) > 0
    first = present & (present.cumsum(-1) == 1)
    rates = positive_rates(loss, cells)
    return torch.where(present, rates - (rates * first).sum(), 0.0), first


def adjusted(factors: Tensor, loss: Tensor, cells: Tensor, step: float | Tensor) -> Tensor:
    """The factors `u_z` `(G,)` after one step of size `a = step`.

    Examples
    --------
    >>> cells = torch.tensor([[2.0, 2.0], [1.0, 3.0]])
    >>> adjusted(torch.ones(2), torch.zeros(2, 2), cells, 0.5)
    tensor([0.7500, 1.2500])
    """
    gaps, first = group_gaps(loss, cells)
    size = cells.sum(-1)
    scale = size.sum() / size.clamp(min=1)  # lambda_0z = u_z m_z / n
    moved = factors + step * torch.where(first, -gaps.sum(), gaps) * scale
    return torch.where(size > 0, moved.clamp(0.0, 2.0), factors)


def example_weights(batch: Examples, factors: Tree) -> Tensor:
    """How often each example counts `(n,)`: `u_z` with label 0, `2 - u_z` with label 1."""
    own: Tensor = factors[batch.group]
    return torch.where(batch.y == 1, 2.0 - own, own)


@dataclass(frozen=True)
class FairBatch:
    """Local training with FairBatch: the factors move before every epoch.

    Where a round has a number of steps instead of epochs they move once, before the first. The
    optimiser's own state (momentum, Adam) begins anew with every epoch.

    Parameters
    ----------
    alpha : float
        Step of the factors; the t-th one is `alpha / sqrt(t)`. 0 is plain training.
    """

    alpha: float = 0.3

    def start(self, groups: int) -> dict[str, Tree]:
        """What a client keeps: factors of one, and the number of steps that they have made."""
        return {
            "factors": torch.ones(groups, dtype=torch.float64),
            "updates": torch.zeros((), dtype=torch.float64),
        }

    def draw(
        self, local: LocalTraining, generator: torch.Generator, state: Tree, size: int
    ) -> tuple[Batches, ...]:
        """The batches of each epoch: those of plain training, in its order."""
        if local.steps or not self.alpha:
            return (local.draw(generator, state, size),)
        once = replace(local, epochs=1)
        return tuple(once.draw(generator, state, size) for _ in range(local.epochs))

    def run(
        self,
        local: LocalTraining,
        task: Task,
        params: Params,
        data: Examples,
        draws: tuple[Batches, ...],
        state: Tree,
        *,
        lr: Tensor,
    ) -> tuple[Params, dict[str, Tree]]:
        """Train from `params`; the last iterate and what the client keeps."""
        if not self.alpha:
            return local.run(task, params, data, draws[0], lr=lr), state
        factors, updates = state["factors"], state["updates"]
        for batches in draws:
            counts = task.count(task.outputs(params, data.x), data)
            updates = updates + 1
            factors = adjusted(factors, counts.loss, counts.cells, self.alpha * updates.rsqrt())
            params = local.run(
                task, params, data, batches,
                lr=lr, weights=example_weights, context=factors.to(torch.float32),
            )  # fmt: skip
        return params, {"factors": factors, "updates": updates}
