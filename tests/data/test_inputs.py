from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenfed.core.errors import DataError
from evenfed.data.dataset import Groups, Schema
from evenfed.data.inputs import (
    MISSING,
    Array,
    Columns,
    Inputs,
    Tokens,
    inputs_of,
    plain_inputs,
)
from evenfed.data.preprocess import Categorical, Numeric, Preprocessor
from evenfed.data.registry import load

EVERY_POLICY = Preprocessor(
    (
        Numeric("age", 40.1, 9.7),
        Numeric("pay", 1000.0, 3.0, "mean", 1001.5),
        Numeric("debt", -5.0, 0.3, "indicator", 2.0),
        Categorical("job", ("clerk", "nurse")),
        Categorical("town", ("a", "b"), "mode", "b"),
        Categorical("car", ("old", "missing"), "indicator"),
        Categorical("pet", ("cat", "1"), "zeros"),
    )
)
WORDS = {
    "job": ["clerk", "nurse", "pilot"],
    "town": ["a", "b", None],
    "car": ["old", "missing", None],
    "pet": ["cat", "1", None, "newt"],
}


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    n = draw(st.integers(1, 6))
    number = st.floats(-1e6, 1e6)
    columns: dict[str, list[object]] = {"age": draw(st.lists(number, min_size=n, max_size=n))}
    for name in ("pay", "debt"):
        values = st.lists(st.one_of(number, st.none()), min_size=n, max_size=n)
        columns[name] = draw(values)
    for name, words in WORDS.items():
        columns[name] = draw(st.lists(st.sampled_from(words), min_size=n, max_size=n))
    return pd.DataFrame(columns)


@given(frames())
def test_raw_and_module_together_are_the_preprocessor_to_the_bit(frame: pd.DataFrame) -> None:
    inputs = Columns(EVERY_POLICY)
    found = inputs.module()(*inputs.raw(frame)).numpy()
    assert found.dtype == np.float32
    assert np.array_equal(found, EVERY_POLICY.transform(frame))


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"sensitive_as_feature": True},
        {"fit": "client"},
        {"sensitive_as_feature": "code", "sensitive": "race,sex"},
    ],
)
def test_features_of_a_dataset_come_from_its_raw_rows(kind: dict[str, str]) -> None:
    data = load("loans", seed=0, **kind)  # type: ignore[arg-type]
    assert data.rows is not None
    for client in data:
        inputs = data.inputs if isinstance(data.inputs, Inputs) else data.inputs[client.name]  # type: ignore[index]
        again = inputs_of(inputs.to_dict())
        assert again == inputs
        x = again.module()(*again.raw(data.rows(client.name, "test")))
        assert torch.equal(x, client.test.x)


def test_pixels_are_divided_by_the_scale_of_their_source() -> None:
    data = load("digits", clients=2, partition="iid")
    assert data.inputs == Array((1, 8, 8), 16.0)
    pixels = np.round(data.client(0).test.x.numpy() * 16).astype(np.uint8)
    inputs = data.inputs
    assert isinstance(inputs, Array)
    assert torch.equal(inputs.module()(*inputs.raw(pixels[:, 0])), data.client(0).test.x)
    with pytest.raises(DataError, match=r"arrays \(n, 1, 8, 8\)"):
        inputs.raw(pixels[..., :5])


def test_a_missing_column_and_a_missing_value_are_named() -> None:
    inputs = Columns(EVERY_POLICY)
    frame = pd.DataFrame({"age": [1.0], "town": ["a"]})
    with pytest.raises(DataError, match="columns 'pay', 'debt', 'job', 'car', 'pet'; the rows"):
        inputs.raw(frame)
    whole = pd.DataFrame(
        {"age": [1.0], "pay": [1.0], "debt": [1.0], "job": [None], "town": ["a"], "car": ["old"],
         "pet": ["cat"]}
    )  # fmt: skip
    with pytest.raises(DataError, match="column 'job': 1 values are missing"):
        inputs.raw(whole)
    with pytest.raises(DataError, match="column 'age': 1 values are missing"):
        inputs.raw(whole.assign(age=[None], job=["clerk"]))


def test_the_module_makes_nan_of_what_may_not_be_missing() -> None:
    """A runtime that feeds the module itself gets no prediction for such a row."""
    inputs = Columns(Preprocessor((Numeric("age"), Categorical("job", ("a", "b")))))
    x = inputs.module()(
        torch.tensor([[float("nan")], [1.0]]).double(), torch.tensor([[0], [MISSING]])
    )
    assert x.isnan().tolist() == [[True, False, False], [False, True, True]]


def test_an_unknown_group_is_refused_where_its_code_is_a_feature() -> None:
    inputs = Columns(Preprocessor((Numeric("age"),)), Groups(("sex",), (("f", "m"),)))
    with pytest.raises(DataError, match="column 'sex' has a level that is none of f, m"):
        inputs.raw(pd.DataFrame({"age": [1.0], "sex": ["x"]}))


def test_tokens_outside_the_alphabet_are_refused() -> None:
    with pytest.raises(DataError, match="outside the vocabulary"):
        Tokens(2, "ab").raw(["ac"])
    with pytest.raises(DataError, match="2 tokens"):
        Tokens(2, "ab").raw(["aba"])


def test_data_without_preprocessing_are_their_own_raw_rows() -> None:
    named = plain_inputs(Schema("toy", "binary", 2, (2,), features=("a", "b")))
    frame = pd.DataFrame({"b": [2.0], "a": [1.0]})
    assert isinstance(named, Columns)
    assert named.module()(*named.raw(frame)).tolist() == [[1.0, 2.0]]
    assert plain_inputs(Schema("toy", "binary", 2, (2, 2))) == Array((2, 2))
    assert plain_inputs(Schema("toy", "multiclass", 9, (4,), vocabulary=9)) == Tokens(4, "", 9)
