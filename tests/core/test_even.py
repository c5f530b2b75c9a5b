"""Numbers do not depend on where they stand in a tensor, for any smooth function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from evenfed.core.even import FORMS, Even, Known, paused, uneven
from evenfed.core.recording import record

aten = torch.ops.aten
SIZE, SLICE = 960, 31
"""31 numbers: half of them fill no vector register."""

SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "elu": lambda x: F.elu(x, alpha=0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, alpha=1.7),
    "softplus": lambda x: F.softplus(x, beta=2.0, threshold=3.0),
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "log sigmoid": F.logsigmoid,
    "binary loss": lambda x: F.binary_cross_entropy_with_logits(
        x, x.detach().clamp(0, 1), reduction="none"
    ),
    "glu": lambda x: F.glu(torch.stack([x, 0.3 * x]), 0),
    "logaddexp": lambda x: torch.logaddexp(x, 0.3 * x),
    "logaddexp2": lambda x: torch.logaddexp2(x, 0.3 * x),
    "exp2": torch.exp2,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "atanh": lambda x: torch.atanh(0.1 * x),
    "atan2": lambda x: torch.atan2(x, 1 + 0.3 * x),
    "power": lambda x: x.abs() ** 1.7,
    "inverse square": lambda x: (1 + x.abs()) ** -2,
    "power of 2": lambda x: 2.0**x,
    "power of itself": lambda x: x.abs() ** x,
    "scaled shift": lambda x: torch.add(x, 0.7, alpha=1.3),
    "huber loss": lambda x: F.huber_loss(x, 0.3 * x**3, reduction="none", delta=0.7),
    "inplace": lambda x: F.elu_(F.silu(2 * x, inplace=True).sigmoid_().mul(x)),
}


def numbers(size: int = SIZE) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(3)) * 2


def twice(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Value, first and second derivative, number by number."""

    def slope(x: Tensor) -> Tensor:
        return grad(lambda t: function(t).sum())(x)

    return [function(x.clone()), slope(x), grad(lambda t: slope(t).sum())(x)]


@pytest.mark.parametrize("name", SMOOTH)
def test_bits_do_not_depend_on_the_place(name: str) -> None:
    x = numbers()
    function = SMOOTH[name]
    with Even():
        whole = twice(function, x)
        for start in range(0, SIZE, SLICE):
            cut = slice(start, start + SLICE)
            for all_, part in zip(whole, twice(function, x[cut]), strict=True):
                assert torch.equal(all_[..., cut], part)


@pytest.mark.parametrize("name", SMOOTH)
def test_forms_say_what_the_kernels_say(name: str) -> None:
    x = torch.cat([numbers(), torch.tensor([-90.0, -20.0, -1e-4, 1e-4, 20.0, 90.0])])
    if name == "atanh":
        x = x.clamp(-9, 9)
    plain = twice(SMOOTH[name], x)
    with Even():
        even = twice(SMOOTH[name], x)
    for a, b in zip(even, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6, equal_nan=True)


def test_infinite_and_far_numbers() -> None:
    far = torch.tensor([-torch.inf, -1000.0, 1000.0, torch.inf])
    with Even():
        assert torch.equal(far.sigmoid(), torch.tensor([0.0, 0.0, 1.0, 1.0]))
        assert torch.equal(F.softplus(far), torch.tensor([0.0, 0.0, 1000.0, torch.inf]))
        assert torch.equal(F.logsigmoid(far), torch.tensor([-torch.inf, -1000.0, 0.0, 0.0]))
        assert torch.equal(torch.logaddexp(far, far)[[0, 3]], far[[0, 3]])
        tiny = torch.sigmoid(torch.tensor([-60.0]))
    assert 0 < tiny.item() < 1e-25


def _called(op: Any, source: list[Tensor], cut: slice) -> Tensor | None:
    """The operation on numbers, scalars as they come; None where it wants something else."""
    tensors = iter(source)
    args: list[Any] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only:
            continue
        if kind == "Tensor":
            args.append(next(tensors)[cut].clone())
        elif argument.has_default_value():
            default = argument.default_value
            # a mean over all numbers is another thing
            args.append(0 if argument.name == "reduction" else default)
        elif kind in ("number", "float"):
            args.append({"alpha": 1.3, "beta": 2.0, "exponent": 1.7}.get(argument.name, 0.7))
        elif kind in ("bool", "int", "str"):
            args.append({"bool": False, "int": 0, "str": "none"}[kind])
        else:
            return None
    try:
        out = op(*args)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    out = out[0] if isinstance(out, (tuple, list)) else out
    return out if isinstance(out, Tensor) and out.dtype == torch.float32 else None


def _pointwise() -> list[Any]:
    found = []
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket) or name.startswith("_"):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            given = [a for a in op._schema.arguments if str(a.type) == "Tensor"]
            shaped = torch.Tag.pointwise in op.tags or name.endswith("_backward")
            if shaped and 1 <= len(given) <= 4 and "out" not in overload and name[-1] != "_":
                found.append(op)
    return [op for op in found if "rand" not in str(op) and "dropout" not in str(op)]


@pytest.mark.filterwarnings("ignore")
def test_no_other_operation_of_pytorch_depends_on_the_place() -> None:
    """A new release may bring another kernel: this looks at all of them."""
    plain = [torch.randn(SIZE, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    sources = [plain, [p.abs() * 0.4 + 0.05 for p in plain], [p.tanh() * 0.49 + 0.5 for p in plain]]
    wrong, looked = set(), 0
    with Even():
        for op in _pointwise():
            for source in sources:
                whole = _called(op, source, slice(0, SIZE))
                if whole is None or whole.shape[-1:] != (SIZE,):
                    continue
                looked += 1
                for start in range(0, SIZE, SLICE):
                    cut = slice(start, start + SLICE)
                    part = _called(op, source, cut)
                    assert part is not None
                    same = (part == whole[..., cut]) | (part.isnan() & whole[..., cut].isnan())
                    if not same.all():
                        wrong.add(str(op))
    assert looked > 300
    assert not wrong


def test_a_record_holds_the_forms() -> None:
    x = numbers(50).view(5, 10)

    def function(x: Tensor) -> list[Tensor]:
        return [vmap(grad(lambda t: (F.silu(t) ** 1.5).sum()))(x.abs())]

    graph = record(function, [x])
    assert not any(
        uneven(n.target, (x, *n.args[1:]), n.kwargs)
        for n in graph.graph.nodes
        if n.op == "call_function" and n.target in FORMS and n.target is not aten.pow.Tensor_Scalar
    )
    with Even():
        assert torch.equal(graph(x)[0], function(x)[0])


def test_a_pause_ends_the_mode_for_a_while() -> None:
    class Count(Even):
        seen = 0

        def __torch_dispatch__(self, *args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            return super().__torch_dispatch__(*args, **kwargs)

    x = numbers(7)
    with Count() as mode:
        x.exp()
        with paused():
            x.exp()
        x.exp()
    assert mode.seen == 2
    with paused():
        x.exp()


def smooth(x: Tensor) -> Tensor:
    return F.silu(x)


def rough(x: Tensor) -> Tensor:
    return F.relu(x) if x.shape[0] < 10 else F.silu(x)


def test_only_functions_that_need_no_form_run_without_the_mode() -> None:
    known = Known()

    def mode_of(function: Callable[[Tensor], Tensor], x: Tensor) -> type:
        mode = known.mode(function, (x.shape,))
        with mode:
            function(x)
        return type(mode)

    few, many = numbers(7), numbers(20)
    assert [issubclass(mode_of(smooth, few), Even) for _ in range(3)] == [True, True, True]
    assert [issubclass(mode_of(rough, few), Even) for _ in range(3)] == [True, False, False]
    assert [issubclass(mode_of(rough, many), Even) for _ in range(2)] == [True, True]
    assert [issubclass(mode_of(lambda x: x, few), Even) for _ in range(2)] == [True, True]


def test_a_call_that_fails_proves_nothing() -> None:
    known = Known()
    with pytest.raises(ValueError, match="here"), known.mode(rough, ()):
        raise ValueError("here")
    assert isinstance(known.mode(rough, ()), Even)
