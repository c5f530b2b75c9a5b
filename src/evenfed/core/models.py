"""The built-in models.

All are plain modules of operations that `torch.func.vmap` can run for many clients at once
over stacked parameters: no fused recurrent kernels, no buffers that change, no random layers.
Weights are PyTorch's default draws, so `torch.manual_seed` before a call decides them.

References
----------
.. [1] K. He et al., Deep residual learning for image recognition, CVPR 2016.
.. [2] Y. Wu and K. He, Group normalization, ECCV 2018.
.. [3] K. Cho et al., Learning phrase representations using RNN encoder-decoder, EMNLP 2014.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from torch import nn

from evenfed.core.convolution import Convolution
from evenfed.core.errors import ConfigError, refuse, suggest
from evenfed.core.networks import CharGRU, ImageLayers, ResidualBlock, conv3x3
from evenfed.core.normalization import group_norm

Shape = tuple[int, ...]


def linear(inputs: int, outputs: int) -> nn.Module:
    """Return an affine map of the flattened features: linear or logistic regression.

    Parameters
    ----------
    inputs : int
        Number of features `d` of one example.
    outputs : int
        Number of classes, or 1 for regression.

    Returns
    -------
    Module
        Maps `(n, ...)` with `d` features per example to `(n, outputs)`.

    Examples
    --------
    >>> import torch
    >>> linear(64, 10)(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """
    return mlp(inputs, outputs, hidden=())


def mlp(inputs: int, outputs: int, hidden: int | Sequence[int] = (64,)) -> nn.Module:
    """Return a perceptron with ReLU between its layers, on the flattened features.

    Parameters
    ----------
    inputs : int
        Number of features `d` of one example.
    outputs : int
        Number of classes, or 1 for regression.
    hidden : int or sequence of int
        Width of each hidden layer.

    Returns
    -------
    Module
        Maps `(n, ...)` with `d` features per example to `(n, outputs)`.

    Examples
    --------
    >>> import torch
    >>> mlp(4, 3, hidden=(16, 8))(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """
    sizes = (_size("inputs", inputs), *_sizes("hidden", hidden), _size("outputs", outputs))
    return nn.Sequential(nn.Flatten(), *_dense(sizes))


def cnn(
    shape: Shape,
    outputs: int,
    channels: Sequence[int] = (32, 64),
    hidden: int | Sequence[int] = 128,
    pool: int = 1,
) -> nn.Module:
    """Return 5x5 convolutions, each with a halving max pool, and fully connected layers.

    Parameters
    ----------
    shape : tuple of int
        `(C, H, W)` of one image; each side at least `pool * 2 ** len(channels)`.
    outputs : int
        Number of classes, or 1 for regression.
    channels : sequence of int
        Channels of each convolution.
    hidden : int or sequence of int
        Width of each hidden fully connected layer.
    pool : int
        Sides of the squares over which an image is averaged first: 2 halves its width and height.

    Returns
    -------
    Module
        Maps `(n, C, H, W)` to `(n, outputs)`.

    Examples
    --------
    >>> import torch
    >>> cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    image_channels, height, width = _image("cnn", shape)
    sizes = (image_channels, *_sizes("channels", channels))
    shrink = _size("pool", pool) * 2 ** (len(sizes) - 1)
    if min(height, width) < shrink:
        first = f"divides the sides of the image by {pool} and " if pool > 1 else ""
        raise ConfigError(
            f"Model 'cnn' {first}halves the image {len(sizes) - 1} times: {height} x {width} is "
            f"too small, each side must be at least {shrink}; give fewer channels or use 'mlp'."
        )
    layers: list[nn.Module] = [nn.AvgPool2d(pool)] if pool > 1 else []
    for before, after in pairwise(sizes):
        # ReLU after the pool: the same values as before it, on a quarter of the numbers.
        layers += [Convolution(before, after, 5), nn.MaxPool2d(2), nn.ReLU()]
    flat = sizes[-1] * (height // shrink) * (width // shrink)
    dense = _dense((flat, *_sizes("hidden", hidden), _size("outputs", outputs)))
    return ImageLayers(*layers, nn.Flatten(), *dense)


def char_gru(
    vocabulary: int, outputs: int, embedding: int = 8, hidden: int = 256, layers: int = 1
) -> nn.Module:
    """Return a recurrent model of tokens that predicts from its last state.

    Parameters
    ----------
    vocabulary : int
        Number of different tokens.
    outputs : int
        Number of classes; for the next character, the vocabulary.
    embedding : int
        Numbers per embedded token.
    hidden : int
        Numbers in the state of each layer.
    layers : int
        Number of stacked layers.

    Returns
    -------
    Module
        Maps int64 tokens `(n, T)` to `(n, outputs)`.

    Examples
    --------
    >>> import torch
    >>> char_gru(80, 80, hidden=16)(torch.zeros(5, 20, dtype=torch.int64)).shape
    torch.Size([5, 80])
    """
    return CharGRU(
        _size("vocabulary", vocabulary),
        _size("outputs", outputs),
        _size("embedding", embedding),
        _size("hidden", hidden),
        _size("layers", layers),
    )


def resnet18(
    shape: Shape,
    outputs: int,
    norm: str = "group",
    width: int = 64,
    blocks: Sequence[int] = (2, 2, 2, 2),
) -> nn.Module:
    """Return ResNet-18 for small images: a 3x3 first convolution and no first pool.

    Parameters
    ----------
    shape : tuple of int
        `(C, H, W)` of one image.
    outputs : int
        Number of classes, or 1 for regression.
    norm : str
        `"group"`, or `"batch"`, whose running averages many clients cannot train at once.
    width : int
        Channels of the first stage; each later stage doubles them.
    blocks : sequence of int
        Residual blocks of each stage; (1, 1, 1) is a ResNet-8.

    Returns
    -------
    Module
        Maps `(n, C, H, W)` to `(n, outputs)`.

    Examples
    --------
    >>> import torch
    >>> resnet18((3, 32, 32), 10, width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    image_channels = _image("resnet18", shape)[0]
    norms: dict[str, Callable[[int], nn.Module]] = {"group": group_norm, "batch": nn.BatchNorm2d}
    if norm not in norms:
        raise ConfigError(f"Model 'resnet18' has no norm '{norm}'.{suggest(norm, norms)}")
    before = _size("width", width)
    layers = [conv3x3(image_channels, before, 1), norms[norm](before), nn.ReLU()]
    for stage, count in enumerate(_sizes("blocks", blocks)):
        for _ in range(count):
            after = width * 2**stage
            layers.append(ResidualBlock(before, after, after // before, norms[norm]))
            before = after
    head = nn.Linear(before, _size("outputs", outputs))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def build(
    name: str, schema_shape: Shape, outputs: int, vocabulary: int = 0, **options: object
) -> nn.Module:
    """Build a model by name for examples of a given shape.

    Parameters
    ----------
    name : str
        `"logistic"` (the same as `"linear"`), `"mlp"`, `"cnn"`, `"char_gru"` or `"resnet18"`.
    schema_shape : tuple of int
        Shape of one example: `(d,)` for tables, `(C, H, W)` for images, `(T,)` for tokens.
    outputs : int
        Number of classes, or 1 for regression.
    vocabulary : int
        Number of different tokens; 0 if the examples are not tokens.
    **options
        Keyword arguments of the function that makes the model.

    Returns
    -------
    Module
        Maps `(n, *schema_shape)` to `(n, outputs)`.

    Raises
    ------
    ConfigError
        If the name or an option is unknown, or the model cannot read such examples.

    Examples
    --------
    >>> parameter_count(build("mlp", (4,), outputs=2, hidden=[8]))
    58
    """
    check_options(name, options)
    make = _MODELS[name]
    if make is char_gru:
        if vocabulary < 1 or len(schema_shape) != 1:
            raise ConfigError(
                f"Model '{name}' reads tokens, shape (T,) with a vocabulary; the examples have "
                f"shape {tuple(schema_shape)} and vocabulary {vocabulary}."
            )
        return make(vocabulary, outputs, **options)
    if vocabulary > 0:
        raise ConfigError(f"Model '{name}' cannot read tokens; use 'char_gru'.")
    if make in (cnn, resnet18):
        return make(schema_shape, outputs, **options)
    return make(math.prod(schema_shape), outputs, **options)


def default_name(shape: Shape, vocabulary: int) -> str:
    """Name the model to use for examples of a given shape when none is asked for.

    Parameters
    ----------
    shape : tuple of int
        Shape of one example.
    vocabulary : int
        Number of different tokens; 0 if the examples are not tokens.

    Returns
    -------
    str
        `"char_gru"` for tokens, `"cnn"` for images of at least 28 x 28, otherwise `"mlp"`.

    Examples
    --------
    >>> default_name((3, 32, 32), vocabulary=0), default_name((1, 8, 8), vocabulary=0)
    ('cnn', 'mlp')
    """
    if vocabulary > 0:
        return "char_gru"
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 28 else "mlp"


def parameter_count(module: nn.Module) -> int:
    """Count the numbers in a module's parameters.

    Examples
    --------
    >>> parameter_count(linear(4, 3))
    15
    """
    return sum(parameter.numel() for parameter in module.parameters())


def _dense(sizes: Sequence[int]) -> list[nn.Module]:
    """Linear layers between consecutive sizes, with ReLU between the layers."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def _image(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ConfigError(
            f"Model '{name}' reads images, shape (C, H, W); the examples have shape {tuple(shape)}."
        )
    channels, height, width = _sizes("shape", shape)
    return channels, height, width


def _sizes(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_size(name, size) for size in value)
    return (_size(name, value),)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse a built-in model that does not exist, and options that it does not have."""
    if name not in _MODELS:
        raise ConfigError(f"There is no built-in model '{name}'.{suggest(name, _MODELS)}")
    known = tuple(inspect.signature(_MODELS[name]).parameters)[2:]
    wrong = [
        f"Model '{name}' has no option '{option}'.{suggest(option, known) or ' It has none.'}"
        for option in options
        if option not in known
    ]
    if wrong:
        refuse(wrong)


def _size(name: str, value: object) -> int:
    if isinstance(value, int) and value >= 1:
        return value
    raise ConfigError(f"'{name}' must be a whole number of at least 1, not {value!r}.")


_MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": linear,
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "char_gru": char_gru,
    "resnet18": resnet18,
}
