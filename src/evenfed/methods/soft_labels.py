"""Soft labels: how far each of M models is a client's own, and what it predicts with them.

Labels `pi` are held as logarithms: after many rounds the smallest are below any float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.func import vmap
from torch.nn.functional import logsigmoid

from evenfed.core import tree as trees
from evenfed.core.softmax import log_softmax
from evenfed.core.task import Params
from evenfed.core.tree import Tree


def uniform(models: int) -> Tensor:
    """Logarithms of equal labels `(M,)`, float64.

    Examples
    --------
    >>> uniform(4).exp()
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    return torch.full((models,), -math.log(models), dtype=torch.float64)


def e_step(log_pi: Tensor, losses: Tensor, floor: float = 0.0) -> Tensor:
    """Logarithms of the labels after one E step: `pi_m exp(-loss_m)`, normalised.

    Parameters
    ----------
    log_pi, losses : Tensor `(M,)`
        Old labels as logarithms; mean loss of each model.
    floor : float
        Least label, by mixing with equal ones; 0 is none.

    Examples
    --------
    >>> e_step(uniform(2), torch.tensor([1.0, 3.0]).log()).exp()
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    new = (log_pi - losses.to(log_pi.dtype)).log_softmax(-1)
    if not floor:
        return new
    rest = math.log1p(-floor * new.shape[-1])
    return torch.logaddexp(new + rest, torch.full_like(new, math.log(floor)))


def effective_clusters(log_pi: Tensor) -> float:
    """How many models are in use: `exp(H(mean_e pi_e))` of labels `(K, M)`.

    Examples
    --------
    >>> round(effective_clusters(torch.tensor([[1.0, 1e-30, 1e-30], [1e-30, 1.0, 1e-30]]).log()), 6)
    2.0
    """
    share = log_pi.double().exp().mean(0)
    return float(torch.special.entr(share).sum().exp())


def mixture(outputs: Tensor, log_pi: Tensor, regression: bool) -> Tensor:
    """Outputs of the ensemble: its probabilities are the mean of the models' probabilities.

    Parameters
    ----------
    outputs : Tensor `(M, n, C)`, or `(M, n)` for one logit or one value an example
    log_pi : Tensor `(M,)`
    regression : bool
        Whether outputs are values, which are averaged as they are.

    Examples
    --------
    >>> mixture(torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]).log(), uniform(2), False).softmax(-1)
    tensor([[0.5500, 0.4500]])
    """
    if len(outputs) == 1:
        return outputs[0]
    weight = over_first(log_pi.to(outputs.dtype), outputs)
    if regression:
        return (weight.exp() * outputs).sum(0)
    if outputs.ndim == 2:  # log p(1) - log p(0)
        return (weight + logsigmoid(outputs)).logsumexp(0) - (
            weight + logsigmoid(-outputs)
        ).logsumexp(0)
    return (weight + log_softmax(outputs)).logsumexp(0)


class Mixture(nn.Module):
    """An ensemble as one plain module, whose outputs are those of `mixture`.

    Examples
    --------
    >>> both = Mixture([nn.Linear(3, 2), nn.Linear(3, 2)], uniform(2), regression=False)
    >>> both(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    log_pi: Tensor

    def __init__(self, members: Sequence[nn.Module], log_pi: Tensor, regression: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.regression = regression
        self.register_buffer("log_pi", log_pi.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `(n, C)`, or `(n,)` for one logit or value an example."""
        found = torch.stack([member(x) for member in self.members])
        if found.ndim == 3 and found.shape[-1] == 1:
            found = found.squeeze(-1)
        return mixture(found, self.log_pi, self.regression)


def over_first(vector: Tensor, like: Tensor) -> Tensor:
    """A vector over the first axis of `like`, in a shape that multiplies it.

    Examples
    --------
    >>> over_first(torch.ones(2), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    return vector.view(-1, *[1] * (like.ndim - 1))


def each_model(function: Callable[[Params], Tree], models: Params) -> Tree:
    """`function` of every model, stacked on the first axis.

    Where clients are stacked, models are too. A client alone takes one after the other: models
    that are big, or that vmap cannot take.
    """
    first = trees.leaves(models)[0]
    if len(first) > 1 and is_batchedtensor(first):
        return vmap(function)(models)
    return trees.stack([function(trees.row(models, i)) for i in range(len(first))])


def by_model(upload: Tree) -> dict[str, Tree]:
    """One client's upload with a part for each model in place of `update`."""
    count = len(upload["log_pi"])
    parts = {str(i): trees.row(upload["update"], i) for i in range(count)}
    return parts | {name: value for name, value in upload.items() if name != "update"}
