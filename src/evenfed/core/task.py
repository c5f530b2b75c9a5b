"""A task: model, loss and kind of prediction, as pure functions of the parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from evenfed.core.counts import Counts, count_classes, count_values
from evenfed.core.errors import ModelError
from evenfed.core.examples import Examples
from evenfed.core.randomness import seed_for
from evenfed.core.softmax import log_softmax, softmax

Params = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
"""`(outputs, y) -> losses (n,)`, one loss an example."""


@dataclass(frozen=True)
class LossRule:
    """From outputs and labels to losses: a given function, or the default of a kind of task."""

    loss: Loss | None
    kind: Literal["binary", "multiclass", "regression"]

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss an example `(n,)`."""
        if self.loss is not None:
            return self.loss(outputs, y)
        if self.kind == "regression":
            return (outputs - y).square()
        if outputs.ndim == 1:
            return nn.functional.softplus(outputs) - y * outputs
        return -log_softmax(outputs).gather(-1, y.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned: a module, a loss, and how outputs become predictions.

    Parameters
    ----------
    make : callable
        Returns a new module; called under a seeded generator to draw the first weights.
    kind : {"binary", "multiclass", "regression"}
    classes, groups : int
        Sizes of the axes of the counts.
    loss : callable, optional
        `(outputs, y) -> (n,)`. Default: softmax cross-entropy; logistic loss where a binary model
        has one output; squared error for regression.
    seed : int
        Seed of the first weights.

    Examples
    --------
    >>> task = Task(lambda: nn.Linear(3, 2), "binary", classes=2, groups=1)
    >>> task.outputs(task.init(), torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """

    make: Callable[[], nn.Module]
    kind: Literal["binary", "multiclass", "regression"]
    classes: int
    groups: int
    loss: Loss | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    template: nn.Module = field(init=False, repr=False)
    _threads: threading.local = field(default_factory=threading.local, init=False, repr=False)

    def __post_init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.seed, "model"))
            self._threads.module = self.make().to(self.device)
        object.__setattr__(self, "template", self._threads.module)

    def module(self) -> nn.Module:
        """This thread's copy of the module: a functional call swaps its parameters for a moment.

        A thread must call this once outside of any transform, which cannot copy a module.
        """
        if not hasattr(self._threads, "module"):
            self._threads.module = copy.deepcopy(self.template)
        return self._threads.module  # type: ignore[no-any-return]

    def init(self) -> Params:
        """The first weights, drawn from the run's seed (those of a given instance: its own)."""
        named = self.template.named_parameters()
        return {name: p.detach().clone() for name, p in named if p.requires_grad}

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """What the module says: logits `(n, C)`, one logit `(n,)`, or values `(n,)`."""
        out: Tensor = functional_call(self.module(), params, (x,))
        single = self.kind == "regression" or self.classes == 2
        return out.squeeze(-1) if single and out.ndim == 2 and out.shape[-1] == 1 else out

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss an example `(n,)`."""
        return self.loss_rule(outputs, y)

    @property
    def loss_rule(self) -> LossRule:
        """The loss without the model: equal for tasks that differ in their models alone."""
        return LossRule(self.loss, self.kind)

    def mean_loss(self, params: Params, data: Examples) -> Tensor:
        """Mean loss over the real examples, a scalar; 0 where there are none."""
        return self.mean_of(self.outputs(params, data.x), data)

    def mean_of(self, outputs: Tensor, data: Examples) -> Tensor:
        """The same of given outputs `(n, ...)`."""
        weight = data.weight
        losses = self.losses(outputs, data.y)
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Predicted class codes `(n,)`, or values for regression."""
        if self.kind == "regression":
            return outputs
        if outputs.ndim == 1:
            return (outputs > 0).to(torch.int64)
        return outputs.argmax(-1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Class probabilities `(n, C)`."""
        if outputs.ndim == 1:
            p = torch.sigmoid(outputs)
            return torch.stack([1 - p, p], -1)
        return softmax(outputs)

    def margins(self, outputs: Tensor) -> Tensor:
        """Logits `(n,)` of class 1 against class 0, for two classes.

        Examples
        --------
        >>> task = Task(lambda: nn.Linear(3, 2), "binary", classes=2, groups=1)
        >>> task.margins(torch.tensor([[1.0, 3.0]]))
        tensor([2.])
        """
        return outputs if outputs.ndim == 1 else outputs[..., 1] - outputs[..., 0]

    def count(self, outputs: Tensor, data: Examples) -> Counts:
        """The client's counts and loss sums of these outputs."""
        losses, weight = self.losses(outputs, data.y), data.weight
        predicted = self.predictions(outputs)
        if self.kind == "regression":
            return count_values(predicted, data.y, data.group, losses, weight, self.groups)
        return count_classes(
            predicted, data.y, data.group, losses, weight, self.groups, self.classes
        )

    def check(self, x: Tensor, y: Tensor) -> None:
        """Refuse a module or a loss that cannot be trained here, before any training.

        `x` and `y` hold a few examples.
        """
        check_module(self.template)
        self._check_pure(x)
        outputs = self.outputs(self.init(), x)
        self._check_outputs(outputs, len(x))
        try:
            losses = self.losses(outputs, y)
        except Exception as error:
            raise ModelError(
                f"the loss fails on outputs {tuple(outputs.shape)} and labels {tuple(y.shape)} of "
                f"{y.dtype}: {error}"
            ) from error
        if losses.shape != (len(x),):
            raise ModelError(
                f"the loss returns shape {tuple(losses.shape)}; it must return one loss an "
                f"example, ({len(x)},): with a PyTorch loss pass reduction='none'"
            )

    def _check_pure(self, x: Tensor) -> None:
        """Refuse a module that does not return one tensor, the same one for the same input."""
        module = self.template
        before = {name: b.clone() for name, b in module.named_buffers()}
        try:
            with torch.no_grad():
                outputs, again = module(x), module(x)
        except Exception as error:
            raise ModelError(
                f"the model fails on a batch of shape {tuple(x.shape)}: {error}"
            ) from error
        for name, buffer in module.named_buffers():
            if not torch.equal(before[name], buffer):
                raise ModelError(
                    f"the model changes its buffer '{name}' in a forward pass; a federated "
                    "client function is pure: replace the layer by one without running state"
                )
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"the model returns a {type(outputs).__name__}; it must return one tensor, the "
                "outputs: wrap it in a module that picks them"
            )
        if not torch.equal(outputs, again):
            raise ModelError(
                "the model gives two different outputs for one batch: it draws random numbers, "
                "which no seed of the run controls; take dropout or noise out of it"
            )

    def _check_outputs(self, outputs: Tensor, n: int) -> None:
        expected: list[tuple[int, ...]] = [(n,)]
        if self.kind != "regression":
            expected = [(n, self.classes)] + ([(n,)] if self.classes == 2 else [])
        if self.loss is None and tuple(outputs.shape) not in expected:
            raise ModelError(
                f"the model's output has shape {tuple(outputs.shape)} for {n} examples; "
                f"a {self.kind} task expects {' or '.join(str(e) for e in expected)}"
            )


def given(module: nn.Module) -> Callable[[], nn.Module]:
    """A maker for a user's own instance: copies of it, with its weights as the first ones."""
    return lambda: copy.deepcopy(module)


def check_module(module: nn.Module) -> None:
    """Refuse layers whose result depends on other examples or on hidden randomness.

    Examples
    --------
    >>> check_module(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    evenfed.core.errors.ModelError: layer '1' (BatchNorm1d) mixes the examples of a batch...
    """
    for name, layer in module.named_modules():
        where = f"layer '{name}' ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm):
            raise ModelError(
                f"{where} mixes the examples of a batch and keeps running statistics, which "
                "clients do not share; replace it, e.g. by "
                "evenfed.core.normalization.without_batch_norm(model), which puts GroupNorm there"
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise ModelError(f"{where} keeps running statistics; set track_running_stats=False")
        rate = layer.p if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            raise ModelError(
                f"{where} draws random numbers inside the model, which no seed of the run "
                "controls; set its rate to 0 (weight_decay and fewer epochs also regularise)"
            )
    if not any(p.requires_grad for p in module.parameters()):
        raise ModelError("the model has no trainable parameters")
