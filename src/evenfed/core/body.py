"""A model without its last layer: the part that turns examples into latent features."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evenfed.core.errors import ModelError
from evenfed.core.randomness import generator
from evenfed.core.task import Params, Task


@dataclass(frozen=True)
class Body:
    """`psi`: the task's module up to its last linear layer, and perhaps one more layer.

    A module that has no linear layer is a body as a whole; its outputs are the features.

    Parameters
    ----------
    task : Task
    latent : int
        Width of one more layer with ReLU, behind the body; 0: the body's own features.

    Examples
    --------
    >>> task = Task(lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)),
    ...             "binary", classes=2, groups=2)
    >>> body = Body(task)
    >>> body.head, body.width, sorted(body.first())
    ('2', 8, ['0.bias', '0.weight'])
    >>> body.features(body.first(), torch.zeros(5, 3)).shape
    torch.Size([5, 8])
    """

    task: Task
    latent: int = 0

    @property
    def head(self) -> str | None:
        """Name of the last linear layer."""
        named = self.task.template.named_modules()
        found = [name for name, layer in named if isinstance(layer, nn.Linear)]
        return found[-1] if found else None

    @property
    def _last(self) -> nn.Linear | None:
        head = self.head
        layer = None if head is None else self.task.template.get_submodule(head)
        return layer if isinstance(layer, nn.Linear) else None

    @property
    def own_width(self) -> int:
        """Features of the module before its last layer."""
        return self.task.classes if self._last is None else self._last.in_features

    @property
    def width(self) -> int:
        """Numbers in a latent feature vector."""
        return self.latent or self.own_width

    @property
    def outputs(self) -> int:
        """Numbers that the whole module says about an example."""
        return self.task.classes if self._last is None else self._last.out_features

    def first(self) -> Params:
        """The task's first weights without those of the last layer."""
        params = self.task.init()
        if self.head is not None:
            prefix = f"{self.head}." if self.head else ""
            for name in ("weight", "bias"):
                params.pop(prefix + name, None)
        if self.latent:
            draws = generator(self.task.seed, "latent layer")
            bound = 1 / math.sqrt(self.own_width)
            for name, shape in (
                ("weight", (self.latent, self.own_width)),
                ("bias", (self.latent,)),
            ):
                drawn = (2 * torch.rand(shape, generator=draws) - 1) * bound
                params[f"latent.{name}"] = drawn.to(self.task.device)
        return params

    def features(self, params: Params, x: Tensor) -> Tensor:
        """Latent features `(n, width)`.

        The last layer gets the identity as its weights: no module needs to be taken apart, and
        the copies that a task keeps for its threads serve here too.
        """
        own = {name: p for name, p in params.items() if not name.startswith("latent.")}
        if self.head is not None:
            prefix = f"{self.head}." if self.head else ""
            some = next(iter(params.values())) if params else x
            own[prefix + "weight"] = torch.eye(self.own_width, dtype=some.dtype, device=x.device)
            if self._last is not None and self._last.bias is not None:
                own[prefix + "bias"] = some.new_zeros(self.own_width)
        features: Tensor = functional_call(self.task.module(), own, (x,))
        if self.latent:
            return (features @ params["latent.weight"].mT + params["latent.bias"]).relu()
        return features

    def check(self, x: Tensor) -> None:
        """Refuse a module whose last linear layer is not its last operation; `x` is a few rows."""
        template, first = self.task.template, self.first()
        if not first:
            raise ModelError(
                "the model is one linear layer: without it nothing is left that clients could "
                "share; take a model with a hidden layer, or give latent"
            )
        with torch.no_grad():
            plain = Body(self.task).features(first, x)
            if self._last is None:
                right = plain.ndim == 2 and plain.shape[1] == self.own_width
            else:
                right = plain.shape == (len(x), self.own_width)
                right = right and torch.allclose(template(x), self._last(plain), atol=1e-5)
        if not right:
            raise ModelError(
                "the model cannot be parted into a body and a last layer: it must end with an "
                "nn.Linear whose outputs are the model's, or hold no nn.Linear and return one "
                "row of outputs an example"
            )

    def module(self, params: Params, classifier: nn.Sequential) -> nn.Module:
        """Body and classifier as one plain module; of the task's own kind where it can be."""
        template = copy.deepcopy(self.task.template)
        own = {k: v.detach().clone() for k, v in params.items() if not k.startswith("latent.")}
        template.load_state_dict(own, strict=False)
        head, last = self.head, classifier[0]
        if len(classifier) == 1 and isinstance(last, nn.Linear):
            merged = self.merged(params, last.weight.detach(), last.bias.detach())
            if merged is not None:
                template.load_state_dict(merged, strict=False)
                return template.eval()
        if head:
            parent, _, name = head.rpartition(".")
            setattr(template.get_submodule(parent), name, nn.Identity())
        elif head is not None:
            template = nn.Flatten()
        parts: list[nn.Module] = [template]
        if self.latent:
            layer = nn.Linear(self.own_width, self.latent)
            state = {name: params[f"latent.{name}"].detach().clone() for name in ("weight", "bias")}
            layer.load_state_dict(state)
            parts += [layer, nn.ReLU()]
        return nn.Sequential(*parts, *classifier).eval()

    def merged(self, params: Params, weight: Tensor, bias: Tensor) -> Params | None:
        """Weights of the task's own model with a classifier as its last layer; None if not one."""
        last = self._last
        if self.latent or last is None or last.bias is None or last.weight.shape != weight.shape:
            return None
        prefix = f"{self.head}." if self.head else ""
        return {**params, prefix + "weight": weight, prefix + "bias": bias}
