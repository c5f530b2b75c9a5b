"""Whether a task's loss is convex in the parameters."""

from __future__ import annotations

from torch import nn

from evenfed.core.task import Task


def why_not_convex(task: Task) -> str:
    """The reason why the loss is not known to be convex in the parameters; empty if it is.

    It is for one affine layer with a built-in loss: cross-entropy, logistic or squared error.

    Examples
    --------
    >>> from evenfed.core.models import linear, mlp
    >>> why_not_convex(Task(lambda: linear(3, 2), "binary", classes=2, groups=2))
    ''
    >>> why_not_convex(Task(lambda: mlp(3, 2), "binary", classes=2, groups=2))
    'the model is not one affine layer'
    """
    if task.loss is not None:
        return "convexity of a loss of your own is not known"
    layers = list(task.template.modules())
    known = all(type(m) in (nn.Sequential, nn.Flatten, nn.Identity, nn.Linear) for m in layers)
    if not known or sum(isinstance(m, nn.Linear) for m in layers) != 1:
        return "the model is not one affine layer"
    if not all(p.requires_grad for p in task.template.parameters()):
        return "some parameters of the model are fixed"
    return ""
