"""GroupNorm in place of BatchNorm: the remedy for a model that mixes the examples of a batch."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def without_batch_norm(module: nn.Module) -> nn.Module:
    """Copy a module with a group normalisation in place of each batch normalisation.

    Scale, shift and epsilon are kept; running averages are dropped. There are as many groups
    as divide the channels, at most 32 and with at least 4 channels in each; in place of a
    `BatchNorm1d` there is one group, because a few numbers of a table row alone have no
    meaningful mean and variance.

    Parameters
    ----------
    module : Module
        Any model; it is left as it is.

    Returns
    -------
    Module
        The copy.

    Examples
    --------
    >>> without_batch_norm(nn.BatchNorm2d(64)).num_groups
    16
    """
    result = copy.deepcopy(module)
    replaced: dict[_BatchNorm, nn.GroupNorm] = {}  # a layer used twice stays one layer
    for path, layer in list(result.named_modules(remove_duplicate=False)):
        if not isinstance(layer, _BatchNorm):
            continue
        if layer not in replaced:
            replaced[layer] = _group_norm_like(layer)
        if not path:
            return replaced[layer]
        result.set_submodule(path, replaced[layer])
    return result


def group_norm(channels: int) -> nn.GroupNorm:
    """A group normalisation for so many channels."""
    return nn.GroupNorm(_groups(channels), channels)


def _groups(channels: int) -> int:
    """Divide the channels into as many groups as possible, at most 32, each of at least 4."""
    return max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or channels >= 4 * g))


def _group_norm_like(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    groups = 1 if isinstance(layer, nn.BatchNorm1d) else _groups(channels)
    norm = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)
    norm.weight, norm.bias = layer.weight, layer.bias
    return norm.train(layer.training)
