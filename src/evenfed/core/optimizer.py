"""SGD and Adam on stacked parameters, with the numerics of `torch.optim`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evenfed.core.errors import ConfigError


@dataclass(frozen=True)
class Optimizer:
    """How a step follows from a gradient. The rate is given at each descent.

    Parameters
    ----------
    name : {"sgd", "adam"}
    momentum, nesterov : float, bool
        SGD only.
    weight_decay : float
        L2 term added to the gradient, as in `torch.optim.SGD` and `torch.optim.Adam`.
    beta1, beta2, eps : float
        Adam only.
    clip : float
        Bound on the Euclidean norm of the whole gradient before anything else; 0 is off.
    """

    name: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam"):
            raise ConfigError(f"optimizer '{self.name}' is unknown; it may be 'sgd' or 'adam'")
        if self.nesterov and self.momentum <= 0:
            raise ConfigError("nesterov needs momentum > 0")
        if self.name == "adam" and self.momentum:
            raise ConfigError("momentum is an option of 'sgd'; adam has beta1")
        for option in ("momentum", "weight_decay", "clip", "eps"):
            if getattr(self, option) < 0:
                raise ConfigError(f"{option} must not be negative")

    @property
    def plain(self) -> bool:
        """Whether a step is nothing but `p -= lr * gradient`."""
        return self.name == "sgd" and not self.momentum and not self.weight_decay and not self.clip

    def memory(self, param: Tensor) -> dict[str, Tensor]:
        """What `stepped` remembers of the steps before the first one."""
        kept = {"count": param.new_zeros(())}
        if self.name == "adam" or self.momentum:
            kept["first"] = torch.zeros_like(param)
        if self.name == "adam":
            kept["second"] = torch.zeros_like(param)
        return kept

    def stepped(
        self, param: Tensor, gradient: Tensor, memory: dict[str, Tensor], lr: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of one tensor as a pure function, for directions that step by themselves.

        Examples
        --------
        >>> rule, w = Optimizer(), torch.ones(2)
        >>> rule.stepped(w, w, rule.memory(w), torch.tensor(0.5))[0]
        tensor([0.5000, 0.5000])
        """
        count = memory["count"] + 1
        new = {"count": count}
        if self.clip:
            norm = gradient.square().sum().sqrt()
            gradient = gradient * (self.clip / (norm + 1e-6)).clamp(max=1.0)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * param
        move = gradient
        if self.name == "adam":
            first = memory["first"].lerp(gradient, 1 - self.beta1)
            second = self.beta2 * memory["second"] + (1 - self.beta2) * gradient * gradient
            root = second.sqrt() / (1 - self.beta2**count).sqrt() + self.eps
            move = first / root / (1 - self.beta1**count)
            new |= {"first": first, "second": second}
        elif self.momentum:
            first = gradient + self.momentum * memory["first"]
            move = gradient + self.momentum * first if self.nesterov else first
            new["first"] = first
        return param - lr.to(param.dtype) * move, new


def inverse_rate(rate: Tensor) -> Tensor:
    """`1 / rate`, and 0 for a rate of 0, at which a schedule may end.

    A plain step takes `rate * d` away: `d = change * inverse_rate(rate)` changes by `change`, and
    at a rate of 0 nothing moves.

    Examples
    --------
    >>> inverse_rate(torch.tensor([0.25, 0.0]))
    tensor([4., 0.])
    """
    moves = rate > 0
    return torch.where(moves, 1 / torch.where(moves, rate, 1.0), 0.0)


class Stepper:
    """Applies an optimizer in place to leaves that share `lead` leading (client) axes."""

    def __init__(self, optimizer: Optimizer, params: Sequence[Tensor], lead: int) -> None:
        self.optimizer = optimizer
        self.params = list(params)
        self.lead = lead
        self.count = 0
        self.first: list[Tensor] = []
        self.second: list[Tensor] = []

    def step(self, grads: Sequence[Tensor], lr: float | Tensor, active: Tensor | None) -> None:
        """One step; clients with `active` False (shape: the leading axes) stay as they are."""
        self.count += 1
        if active is None:
            self._update(list(grads), lr)
            return
        kept = [t.clone() for t in (*self.params, *self.first, *self.second)]
        self._update(list(grads), lr)
        self.restore(active, kept)

    def restore(self, active: Tensor, before: Sequence[Tensor]) -> None:
        """Put back what `before` holds (parameters first) for clients that are not active."""
        for now, old in zip((*self.params, *self.first, *self.second), before, strict=False):
            now.copy_(torch.where(self.wide(active, now), now, old))

    def wide(self, value: Tensor, like: Tensor) -> Tensor:
        """Shape per-client values so that they broadcast against a leaf."""
        return value.view((*value.shape, *([1] * (like.ndim - value.ndim))))

    def _update(self, grads: list[Tensor], lr: float | Tensor) -> None:
        o = self.optimizer
        if o.clip:
            grads = self._clipped(grads)
        if o.weight_decay:
            grads = list(torch._foreach_add(grads, self.params, alpha=o.weight_decay))
        move = self._adam(grads) if o.name == "adam" else self._sgd(grads)
        if isinstance(lr, Tensor) and lr.ndim:
            for p, m in zip(self.params, move, strict=True):
                p.sub_(self.wide(lr, p) * m)
        else:
            torch._foreach_add_(self.params, move, alpha=-float(lr))

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        squares = [
            g.flatten(self.lead).square().sum(-1) if g.ndim > self.lead else g.square()
            for g in grads
        ]
        norm = torch.stack(squares).sum(0).sqrt()
        factor = (self.optimizer.clip / (norm + 1e-6)).clamp(max=1.0)
        return [g * self.wide(factor, g) for g in grads]

    def _sgd(self, grads: list[Tensor]) -> list[Tensor]:
        o = self.optimizer
        if not o.momentum:
            return grads
        if not self.first:
            self.first = [g.clone() for g in grads]
        else:
            torch._foreach_mul_(self.first, o.momentum)
            torch._foreach_add_(self.first, grads)
        if o.nesterov:
            return list(torch._foreach_add(grads, self.first, alpha=o.momentum))
        return self.first

    def _adam(self, grads: list[Tensor]) -> list[Tensor]:
        o = self.optimizer
        if not self.first:
            self.first = [torch.zeros_like(p) for p in self.params]
            self.second = [torch.zeros_like(p) for p in self.params]
        torch._foreach_lerp_(self.first, grads, 1 - o.beta1)
        torch._foreach_mul_(self.second, o.beta2)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - o.beta2)
        root = list(torch._foreach_sqrt(self.second))
        torch._foreach_div_(root, (1 - o.beta2**self.count) ** 0.5)
        torch._foreach_add_(root, o.eps)
        move = list(torch._foreach_div(self.first, root))
        torch._foreach_div_(move, 1 - o.beta1**self.count)
        return move
