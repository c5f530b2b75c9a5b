from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from evenfed.core.errors import DataError
from evenfed.data.fitting import fit
from evenfed.data.preprocess import Numeric, Preprocessor, Spec, level_codes

SPEC = Spec(numeric=("age", "debt"), categorical=("job",))


def people(size: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, size) + shift,
            "debt": rng.lognormal(8, 2, size),
            "job": rng.choice(["clerk", "nurse", "pilot"], size),
        }
    )


def scales(preprocessor: Preprocessor) -> list[tuple[float, float]]:
    return [(c.offset, c.scale) for c in preprocessor.columns if isinstance(c, Numeric)]


@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    shift=st.sampled_from([0.0, 1e3, 1e8]),
)
def test_the_federated_fit_is_the_pooled_fit(
    scale: str, sizes: list[int], seed: int, shift: float
) -> None:
    frames = {f"c{k}": people(n, seed + k, shift) for k, n in enumerate(sizes)}
    spec = Spec(SPEC.numeric, SPEC.categorical, scale)  # type: ignore[arg-type]
    ours = fit(frames, spec, "federated")[0]["c0"]
    pooled = fit(frames, spec, "pool")[0]["c0"]
    assert ours.features == pooled.features
    np.testing.assert_allclose(scales(ours), scales(pooled), rtol=1e-10)


def test_numeric_columns_agree_with_scikit_learn() -> None:
    frames = {"a": people(50, 0), "b": people(30, 1)}
    raw = pd.concat(list(frames.values()))[["age", "debt"]].to_numpy()
    for scale, scaler in (("standard", StandardScaler()), ("minmax", MinMaxScaler())):
        fitted = fit(frames, Spec(("age", "debt"), scale=scale))[0]["a"]  # type: ignore[arg-type]
        x = np.concatenate([fitted.transform(frame) for frame in frames.values()])
        np.testing.assert_allclose(x, scaler.fit_transform(raw), atol=1e-6)


def test_levels_are_the_union_over_clients_and_an_unseen_one_is_all_zeros() -> None:
    frames = {"a": pd.DataFrame({"job": ["x", "y"]}), "b": pd.DataFrame({"job": ["z"]})}
    fitted = fit(frames, Spec(categorical=("job",)))[0]["a"]
    assert fitted.features == ("job=x", "job=y", "job=z")
    assert fitted.transform(pd.DataFrame({"job": ["z", "new"]})).tolist() == [[0, 0, 1], [0, 0, 0]]


def test_with_a_fit_by_client_each_scales_by_its_own_rows_and_levels_are_agreed() -> None:
    frames = {"a": people(50, 0), "b": people(50, 1, shift=100.0)}
    fitted, ledger = fit(frames, SPEC, "client")
    assert fitted["a"].features == fitted["b"].features
    for name, frame in frames.items():
        x = fitted[name].transform(frame)[:, :2]
        np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-5)
    assert not any("sum" in line for line in ledger)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 + 0.1])
def test_a_constant_column_is_centred_and_not_blown_up(value: float) -> None:
    frames = {"a": pd.DataFrame({"age": [value] * 7}), "b": pd.DataFrame({"age": [value] * 12})}
    fitted = fit(frames, Spec(("age",)))[0]["a"]
    assert scales(fitted)[0][1] == 1.0
    np.testing.assert_allclose(fitted.transform(frames["a"]), 0, atol=1e-5)


def test_the_ledger_says_what_left_the_clients() -> None:
    frames = {"a": people(9, 0), "b": people(9, 1)}
    standard = " ".join(fit(frames, SPEC)[1])
    assert "sum" in standard
    assert "levels" in standard
    assert "smallest" not in standard
    ranged = " ".join(fit(frames, Spec(SPEC.numeric, scale="minmax"))[1])
    assert "exact value of one person" in ranged
    assert "RAW ROWS" in fit(frames, SPEC, "pool")[1][0]
    assert fit(frames, Spec(SPEC.numeric, scale="none"))[1] == ()
    known = {"job": ("clerk", "nurse", "pilot")}
    assert fit(frames, Spec(categorical=("job",), levels=known))[1] == ()


def test_missing_values_are_refused_unless_there_is_a_policy() -> None:
    fitted = fit({"a": people(9, 0)}, SPEC)[0]["a"]
    gap = pd.DataFrame({"age": [None, 3.0], "debt": [1.0, 1.0], "job": ["clerk", "clerk"]})
    with pytest.raises(DataError, match=r"column 'age': 1 values are missing"):
        fitted.transform(gap)
    with pytest.raises(DataError, match=r"numeric column 'age': the policy is one of .*'mode'"):
        Spec(("age",), missing={"age": "mode"})
    with pytest.raises(DataError, match="names no feature: 'sex'"):
        Spec(("age",), missing={"sex": "mean"})


def test_policies_fill_with_what_training_rows_say() -> None:
    frames = {
        "a": pd.DataFrame({"age": [10.0, None], "job": ["x", None]}),
        "b": pd.DataFrame({"age": [20.0, 30.0], "job": ["y", "y"]}),
    }
    gap = pd.DataFrame({"age": [np.nan], "job": pd.Series([None], dtype=object)})

    def features(age: str, job: str) -> list[float]:
        spec = Spec(("age",), ("job",), "none", {"age": age, "job": job})  # type: ignore[dict-item]
        fitted: list[float] = fit(frames, spec)[0]["a"].transform(gap)[0].tolist()
        return fitted

    assert features("mean", "mode") == [20.0, 0.0, 1.0]
    assert features("indicator", "indicator") == [20.0, 1.0, 0.0, 0.0, 1.0]
    assert features("mean", "zeros") == [20.0, 0.0, 0.0]


def test_a_client_without_any_value_is_named() -> None:
    frames = {"a": pd.DataFrame({"age": [1.0]}), "b": pd.DataFrame({"age": [np.nan]})}
    spec = Spec(("age",), missing={"age": "mean"})
    assert fit(frames, spec)[0]["b"].transform(frames["b"]).tolist() == [[0.0]]
    with pytest.raises(DataError, match=r"column 'age' has no value .* client 'b'"):
        fit(frames, spec, "client")


def test_a_level_that_is_not_on_the_list_is_refused_in_training() -> None:
    spec = Spec(categorical=("job",), levels={"job": ("x",)})
    with pytest.raises(DataError, match=r"client 'a', training data: column 'job': row 1"):
        fit({"a": pd.DataFrame({"job": ["x", "y"]})}, spec)


def test_a_preprocessor_survives_json() -> None:
    spec = Spec(("age", "debt"), ("job",), "minmax", {"age": "indicator", "job": "mode"})
    fitted = fit({"a": people(20, 0)}, spec)[0]["a"]
    again = Preprocessor.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert again == fitted
    frame = people(5, 1)
    np.testing.assert_array_equal(again.transform(frame), fitted.transform(frame))


def test_a_missing_column_and_a_word_among_numbers_are_named() -> None:
    fitted = fit({"a": people(9, 0)}, SPEC)[0]["a"]
    with pytest.raises(DataError, match="column 'job' is missing"):
        fitted.transform(people(2, 0)[["age", "debt"]])
    with pytest.raises(DataError, match="column 'age': row 1 is not a finite number"):
        fitted.transform(people(2, 0).assign(age=["3", "three"]))


@pytest.mark.parametrize("dtype", ["int64", "float64", "object", "str", "category"])
def test_levels_do_not_depend_on_how_pandas_holds_a_column(dtype: str) -> None:
    column = pd.Series([2, 10, 2]).astype(dtype)  # type: ignore[call-overload]
    codes, levels = level_codes(column)
    assert (codes.tolist(), levels) == ([0, 1, 0], ("2", "10"))
