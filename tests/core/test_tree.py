from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evenfed.core import tree as trees


@trees.register_dataclass
@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: Tensor


def example(fill: float = 1.0) -> dict[str, object]:
    return {
        "w": torch.full((2, 3), fill),
        "rest": (torch.full((), fill), [Pair(torch.full((1,), fill), torch.full((4,), fill))]),
    }


numbers = st.floats(-10, 10, allow_nan=False, width=32)


def test_unflatten_is_the_inverse_of_flatten() -> None:
    leaves, structure = trees.flatten(example(2.0))
    again = trees.unflatten(leaves, structure)
    assert isinstance(again["rest"][1][0], Pair)
    assert all(torch.equal(a, b) for a, b in zip(trees.leaves(again), leaves, strict=True))


@given(numbers, numbers, numbers)
def test_algebra_is_that_of_vectors(a: float, b: float, c: float) -> None:
    p, q = example(a), example(b)
    # 2*3 + 1 + 1 + 4 equal entries
    n = 12
    assert trees.dot(p, q).item() == pytest.approx(n * a * b, rel=1e-5, abs=1e-5)
    assert trees.squared_norm(p).item() == pytest.approx(n * a * a, rel=1e-5, abs=1e-5)
    for result, value in [
        (trees.add(p, q, c), a + c * b),
        (trees.subtract(p, q), a - b),
        (trees.scale(p, c), a * c),
        (trees.zeros_like(p), 0.0),
    ]:
        for leaf in trees.leaves(result):
            assert leaf.flatten()[0].item() == pytest.approx(value, rel=1e-5, abs=1e-4)


def test_row_of_a_stack_is_the_tree() -> None:
    stacked = trees.stack([example(float(i)) for i in range(3)])
    assert stacked["w"].shape == (3, 2, 3)
    for got, expected in zip(
        trees.leaves(trees.row(stacked, 1)), trees.leaves(example(1.0)), strict=True
    ):
        assert torch.equal(got, expected)


def test_map_leaves_what_is_no_tensor() -> None:
    assert trees.map(lambda t: t + 1, {"a": torch.zeros(()), "b": 3, "c": None}) == {
        "a": torch.ones(()),
        "b": 3,
        "c": None,
    }


def test_signature_tells_shape_dtype_and_structure_apart() -> None:
    base = {"a": torch.zeros(2), "b": torch.zeros(3)}
    same = {"a": torch.ones(2), "b": torch.ones(3)}
    assert trees.signature(base) == trees.signature(same)
    assert hash(trees.signature(base)) == hash(trees.signature(same))
    for other in (
        {"a": torch.zeros(3), "b": torch.zeros(2)},
        {"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.float64)},
        {"a": torch.zeros(2), "c": torch.zeros(3)},
        (torch.zeros(2), torch.zeros(3)),
    ):
        assert trees.signature(base) != trees.signature(other)


def test_names_lead_back_to_the_tree() -> None:
    tree = example(3.0)
    flat = trees.named(tree)
    assert list(flat) == ["w", "rest.0", "rest.1.0.left", "rest.1.0.right"]
    again = trees.from_named(flat, like=example(0.0))
    for got, expected in zip(trees.leaves(again), trees.leaves(tree), strict=True):
        assert torch.equal(got, expected)


def test_names_lead_back_whatever_the_order_of_a_dict() -> None:
    """`named` walks a dict as it is, `flatten` as pytree does: both must meet."""
    tree = {"b": torch.ones(2), "a": torch.zeros(3)}
    again = trees.from_named(dict(reversed(trees.named(tree).items())), like=tree)
    assert torch.equal(again["b"], tree["b"])
    assert torch.equal(again["a"], tree["a"])
