"""Smooth functions with the same bits wherever a number stands in a tensor.

PyTorch computes a tensor by vector registers, and the last numbers, which fill none, by another
function that may round otherwise. Of several clients in one tensor that is the last one, so that
its numbers would depend on who else is in it. Here such kernels are replaced by operations of
which that is not so: `exp`, `expm1`, `log1p`, `tanh`, `erf` and arithmetic. Rare functions go
through float64: there the two ways differ by some 1e-16, which rounding to float32 takes away
in all but about one of 1e10 cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)

aten = torch.ops.aten

_KEPT = 1024
"""Functions that are remembered, each with the shapes of a call."""
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_EVEN_POWERS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
"""Exponents that PyTorch computes by products, quotients and square roots."""


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _sigmoid(x: Tensor) -> Tensor:
    return (1 + torch.exp(-x)).reciprocal()


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _silu_backward(g: Tensor, x: Tensor) -> Tensor:
    s = _sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = _times(torch.expm1(_times(x, input_scale)), alpha * scale)
    return torch.where(x > 0, _times(x, scale), below)


def _elu_backward(
    g: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    factor = alpha * scale
    slope = x + factor if is_result else _times(torch.exp(_times(x, input_scale)), factor)
    return torch.where(x <= 0, g * _times(slope, input_scale), _times(g, scale))


def _selu(x: Tensor) -> Tensor:
    return _elu(x, 1.6732632423543772, 1.0507009873554805)


def _celu(x: Tensor, alpha: float = 1) -> Tensor:
    return _elu(x, alpha, 1, 1 / alpha)


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    z = _times(x, beta)
    return torch.where(z > threshold, x, _times(torch.log1p(torch.exp(z)), 1 / beta))


def _softplus_backward(g: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    z = _times(x, beta)
    return torch.where(z > threshold, g, g * _sigmoid(z))


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(torch.log1p(torch.exp(x)))


def _mish_backward(g: Tensor, x: Tensor) -> Tensor:
    t = torch.tanh(torch.log1p(torch.exp(x)))
    return g * (t + x * _sigmoid(x) * (1 - t * t))


_TANH = (math.sqrt(2 / math.pi), 0.044715)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x * _gelu_gate(x, approximate)


def _gelu_gate(x: Tensor, approximate: str) -> Tensor:
    if approximate == "none":
        return 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    k, cubic = _TANH
    return 0.5 * (1 + torch.tanh(k * (x + cubic * (x * x * x))))


def _gelu_backward(g: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    gate = _gelu_gate(x, approximate)
    if approximate == "none":
        slope = torch.exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    else:
        k, cubic = _TANH
        slope = 2 * gate * (1 - gate) * (k * (1 + 3 * cubic * (x * x)))
    return g * (gate + x * slope)


def _log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.exp(-x.abs())
    return x.clamp(max=0) - torch.log1p(z), z


def _log_sigmoid_backward(g: Tensor, x: Tensor, _: Tensor) -> Tensor:
    return g * _sigmoid(-x)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return a * _sigmoid(b)


def _glu_backward(g: Tensor, x: Tensor, dim: int) -> Tensor:
    a, b = x.chunk(2, dim)
    s = _sigmoid(b)
    return torch.cat([g * s, g * a * (s * (1 - s))], dim)


def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    sum_ = torch.maximum(a, b) + torch.log1p(torch.exp(-(a - b).abs()))
    return torch.where(a == b, a + math.log(2), sum_)  # also where both are infinite


def _huber_backward(g: Tensor, x: Tensor, y: Tensor, reduction: int, delta: float) -> Tensor:
    d = x - y
    share = 1 / d.numel() if reduction == 1 else 1  # of a mean over all numbers
    return share * torch.where(d.abs() < delta, g * d, g * (delta * d.sign()))


def _add(x: Tensor, other: float | Tensor, alpha: float = 1) -> Tensor:
    return x + other * alpha


def _sub(x: Tensor, other: float | Tensor, alpha: float = 1) -> Tensor:
    return x - other * alpha


def _wide(function: Any) -> Callable[..., Tensor]:
    """The function through float64."""

    def run(*args: Any) -> Tensor:
        dtype = torch.result_type(*args) if len(args) > 1 else args[0].dtype
        out: Tensor = function(*[a.double() if isinstance(a, Tensor) else a for a in args])
        return out.to(dtype)

    return run


FORMS: dict[Any, Callable[..., Any]] = {
    aten.sigmoid.default: _sigmoid,
    aten.silu.default: _silu, aten.silu_backward.default: _silu_backward,
    aten.elu.default: _elu, aten.elu_backward.default: _elu_backward,
    aten.selu.default: _selu, aten.celu.default: _celu,
    aten.softplus.default: _softplus, aten.softplus_backward.default: _softplus_backward,
    aten.mish.default: _mish, aten.mish_backward.default: _mish_backward,
    aten.gelu.default: _gelu, aten.gelu_backward.default: _gelu_backward,
    aten.log_sigmoid_forward.default: _log_sigmoid_forward,
    aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    aten.glu.default: _glu, aten.glu_backward.default: _glu_backward,
    aten.logaddexp.default: _logaddexp,
    aten.huber_loss_backward.default: _huber_backward,
    aten.add.Scalar: _add, aten.sub.Scalar: _sub, aten.add.Tensor: _add, aten.sub.Tensor: _sub,
}  # fmt: skip
"""Operations whose bits depend on the place in a tensor, and what is done instead."""

_RARE = (
    aten.pow.Tensor_Scalar, aten.pow.Scalar, aten.pow.Tensor_Tensor, aten.logaddexp2.default,
    aten.exp2.default, aten.sinh.default, aten.cosh.default, aten.atanh.default,
    aten.atan2.default, aten.igamma.default, aten.ldexp.Tensor,
)  # fmt: skip
FORMS.update({op: _wide(op) for op in _RARE})

_SUMS = (aten.add.Scalar, aten.sub.Scalar, aten.add.Tensor, aten.sub.Tensor)
_WRITES: dict[Any, Any] = {
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.silu_.default: aten.silu.default,
    aten.elu_.default: aten.elu.default,
    aten.selu_.default: aten.selu.default,
    aten.celu_.default: aten.celu.default,
    aten.mish_.default: aten.mish.default,
    aten.gelu_.default: aten.gelu.default,
    aten.add_.Scalar: aten.add.Scalar,
    aten.sub_.Scalar: aten.sub.Scalar,
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.pow_.Scalar: aten.pow.Tensor_Scalar,
    aten.pow_.Tensor: aten.pow.Tensor_Tensor,
    aten.exp2_.default: aten.exp2.default,
    aten.sinh_.default: aten.sinh.default,
    aten.cosh_.default: aten.cosh.default,
    aten.atanh_.default: aten.atanh.default,
    aten.atan2_.default: aten.atan2.default,
}


def _in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(function(x, *args, **kwargs))

    return run


FORMS.update({write: _in_place(FORMS[op]) for write, op in _WRITES.items()})


def uneven(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation has to be replaced by its form.

    Examples
    --------
    >>> x = torch.ones(3)
    >>> uneven(aten.sigmoid.default, (x,), {}), uneven(aten.tanh.default, (x,), {})
    (True, False)
    >>> [uneven(aten.pow.Tensor_Scalar, (x, p), {}) for p in (1.5, 2)]
    [True, False]
    """
    if func not in FORMS:
        return False
    op = _WRITES.get(func, func)
    if op in _SUMS:  # with a number that is scaled
        scaled = len(args) > 2 or bool(kwargs)
        return scaled and not (isinstance(args[1], Tensor) and args[1].ndim)
    if op is aten.pow.Tensor_Scalar and args[1] in _EVEN_POWERS:
        return False
    narrow = all(a.dtype in _NARROW for a in args if isinstance(a, Tensor))
    return narrow or op not in _RARE


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees operations on the tensors themselves, below gradients and vmap."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: a guard around every operation would cost more than the operation."""
        return False


class Even(Watching):  # type: ignore[no-untyped-call]
    """While it is active, an operation on these tensors rounds alike in every company.

    Examples
    --------
    >>> x = torch.randn(100)
    >>> with Even():
    ...     torch.equal(x.sigmoid()[:7], x[:7].sigmoid())
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.met = False
        """Whether an operation had to be replaced."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in FORMS and uneven(func, args, kwargs):
            self.met = True
            return FORMS[func](*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def paused() -> Iterator[None]:
    """Without `Even`, for operations known to be even; other modes stay."""
    if isinstance(_get_current_dispatch_mode(), Even):
        with _pop_mode_temporarily():
            yield
    else:
        yield


class Known:
    """Functions that were seen to need no replacement; they run without the mode's cost.

    A pure function calls the same operations whenever its inputs have the same shapes.

    Examples
    --------
    >>> known = Known()
    >>> [type(known.mode(torch.relu, "a shape")).__name__ for _ in range(2)]
    ['_Watch', '_Watch']
    >>> with known.mode(torch.relu, "a shape"):
    ...     torch.relu(torch.ones(3)).sum()
    tensor(3.)
    >>> type(known.mode(torch.relu, "a shape")).__name__
    'nullcontext'
    """

    def __init__(self) -> None:
        self._even: set[Any] = set()

    def mode(self, function: Any, shapes: Any) -> AbstractContextManager[Any]:
        """`Even`, or nothing where a call with these shapes is known to be even."""
        if "<locals>" in getattr(function, "__qualname__", "<locals>"):
            return Even()  # a new object at every call: nothing would be found again
        try:
            key = (function, shapes)
            return nullcontext() if key in self._even else _Watch(self._even, key)
        except TypeError:  # cannot be a key
            return Even()


class _Watch(Even):
    def __init__(self, even: set[Any], key: Any) -> None:
        super().__init__()
        self._even = even
        self._key = key

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]
        if kind is None and not self.met and len(self._even) < _KEPT:
            self._even.add(self._key)
