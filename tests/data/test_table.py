from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.dataset import SPLITS
from evenfed.data.federate import federate, prepare
from evenfed.data.partition import ByColumn, Dirichlet
from evenfed.data.table import Table, chosen, deal

SIZE = 400


def rows(size: int = SIZE, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, size),
            "job": rng.choice(["clerk", "nurse", "pilot"], size),
            "sex": rng.choice(["f", "m"], size),
            "site": rng.choice(["north", "south", "west"], size),
            "paid": rng.choice(["no", "yes"], size, p=[0.7, 0.3]),
        }
    )


def table(frame: pd.DataFrame | None = None, **changes: Any) -> Table:
    roles: dict[str, Any] = {
        "label": "paid",
        "numeric": ("age",),
        "categorical": ("job",),
        "sensitive": ("sex",),
        "client": "site",
        "classes": ("no", "yes"),
    }
    return Table("toy", rows() if frame is None else frame, **{**roles, **changes})


def made(source: Table | None = None, **options: Any) -> Any:
    source = source or table()
    return prepare(source, deal(source, None, None, 0), **options)


def test_every_row_is_in_exactly_one_split_of_its_client() -> None:
    source = table()
    assignment = deal(source, None, None, 0)
    for name, parts in made(source).rows.items():
        found = np.sort(np.concatenate([parts[split] for split in SPLITS]))
        np.testing.assert_array_equal(found, assignment[name])
        assert len(parts["test"]) == round(0.2 * len(found))
        assert len(parts["val"]) == round(0.1 * len(found))


def test_tensors_carry_the_labels_and_groups_of_their_rows() -> None:
    source = table()
    prepared = made(source)
    for client in prepared.dataset:
        for split in SPLITS:
            part = prepared.rows[client.name][split]
            examples = client.split(split)
            frame = source.frame.iloc[part]
            assert examples.y.tolist() == [int(y == "yes") for y in frame["paid"]]
            assert examples.group.tolist() == [int(s == "m") for s in frame["sex"]]
            assert examples.x.dtype == torch.float32


def test_the_split_follows_label_and_group() -> None:
    source = table()
    for parts in made(source).rows.values():
        everything = np.concatenate([parts[split] for split in SPLITS])
        for label in (0, 1):
            for group in (0, 1):

                def cell(rows: Any, label: int = label, group: int = group) -> int:
                    return int(((source.y[rows] == label) & (source.group[rows] == group)).sum())

                assert abs(cell(parts["test"]) - 0.2 * cell(everything)) <= 1


def test_the_split_does_not_depend_on_the_order_of_clients_or_rows() -> None:
    source = table()
    assignment = deal(source, None, None, 0)
    turned = {name: part[::-1] for name, part in reversed(assignment.items())}
    one, other = prepare(source, assignment, seed=3), prepare(source, turned, seed=3)
    for name in assignment:
        for split in SPLITS:
            np.testing.assert_array_equal(one.rows[name][split], other.rows[name][split])
    assert other.dataset.names == one.dataset.names[::-1]


def test_another_seed_gives_another_split() -> None:
    one, other = made(seed=0), made(seed=1)
    assert any(
        not np.array_equal(one.rows[name]["test"], other.rows[name]["test"]) for name in one.rows
    )


def test_preprocessing_is_fitted_on_training_rows_only() -> None:
    source = table()
    prepared = made(source)
    trained = np.concatenate([parts["train"] for parts in prepared.rows.values()])
    column = prepared.preprocessors["north"].columns[0]
    ages = source.frame["age"].to_numpy()
    assert column.offset == pytest.approx(ages[trained].mean(), abs=1e-10)
    assert column.scale == pytest.approx(ages[trained].std(), abs=1e-10)
    assert column.offset != pytest.approx(ages.mean(), abs=1e-10)


def test_fixed_test_rows_are_the_test_rows() -> None:
    frame = rows().assign(held=np.arange(SIZE) % 4 == 0)
    source = table(frame, fixed_test="held")
    for parts in made(source, val=0.2).rows.values():
        assert (parts["test"] % 4 == 0).all()
        assert (np.concatenate([parts["train"], parts["val"]]) % 4 != 0).all()
        others = len(parts["train"]) + len(parts["val"])
        assert len(parts["val"]) == round(0.2 * others)


def test_a_fixed_split_is_kept_in_the_given_order() -> None:
    words = np.array(["train", "train", "val", "test"])[np.arange(SIZE) % 4]
    source = table(rows().assign(part=words), split="part")
    given = np.array([8, 0, 1, 4, 2, 3], dtype=np.int64)
    parts = prepare(source, {"a": given}).rows["a"]
    assert {s: p.tolist() for s, p in parts.items()} == {
        "train": [8, 0, 1, 4], "val": [2], "test": [3],
    }  # fmt: skip
    with pytest.raises(DataError, match=r"column 'part': row \d+ is none of train, val, test"):
        made(table(rows().assign(part="training"), split="part"))


def test_the_sensitive_column_is_a_feature_only_when_asked_for() -> None:
    source = table(categorical=("job", "sex"))
    assert not any("sex" in name for name in made(source).dataset.schema.features)
    shown = made(source, sensitive_as_feature=True).dataset
    assert shown.schema.features[-2:] == ("sex=f", "sex=m")
    coded = made(source, sensitive_as_feature="code").dataset
    assert coded.schema.features[-1] == "group"
    assert torch.equal(coded.client(0).train.x[:, -1].long(), coded.client(0).train.group)


def test_two_sensitive_columns_make_intersections_and_small_groups_a_note() -> None:
    frame = rows()
    frame.loc[5, "job"] = "judge"
    levels = {"sex": ("m", "f"), "job": ("clerk", "nurse", "pilot", "judge")}
    data = made(table(frame, categorical=(), sensitive=("sex", "job"), levels=levels)).dataset
    assert data.schema.groups.labels[0] == "m / clerk"
    assert len(data.schema.groups) == 8
    notes = " ".join(data.schema.notes)
    assert "judge" in notes
    assert "training example" in notes


def test_a_partition_deals_the_rows_and_names_the_clients() -> None:
    source = table()
    assert list(deal(source, ByColumn("job"), None, 0)) == ["clerk", "nurse", "pilot"]
    parts = deal(source, Dirichlet("sensitive", alpha=1.0), 4, 0)
    assert list(parts) == ["client-0", "client-1", "client-2", "client-3"]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(SIZE))
    assert len(deal(source, Dirichlet("label", alpha=1.0), None, 0, default=2)) == 2
    assert len(deal(source, ByColumn("job"), None, 0, default=2)) == 3
    with pytest.raises(ConfigError, match="Did you mean 'job'"):
        deal(source, ByColumn("jobb"), None, 0)
    with pytest.raises(ConfigError, match="makes 3 clients, not 5"):
        deal(source, None, 5, 0)
    with pytest.raises(ConfigError, match="give a partition"):
        deal(table(client=None), None, 3, 0)


def test_a_sequence_of_rows_gets_names() -> None:
    parts = [np.arange(0, 200), np.arange(200, SIZE)]
    assert federate(table(), parts).names == ["client-0", "client-1"]
    assert federate(table(), parts, names=["a", "b"]).names == ["a", "b"]
    with pytest.raises(ConfigError, match="as many different names"):
        federate(table(), parts, names=["a", "a"])


def test_regression_and_multiclass_labels() -> None:
    frame = rows().assign(income=np.linspace(0, 1, SIZE), grade=np.arange(SIZE) % 3)
    income = made(table(frame, label="income", kind="regression", classes=())).dataset
    assert (income.schema.classes, income.client(0).train.y.dtype) == (1, torch.float32)
    grade = made(table(frame, label="grade", kind="multiclass", classes=())).dataset
    assert (grade.schema.classes, grade.schema.class_names) == (3, ("0", "1", "2"))


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"numeric": ("aged",)}, r"no column 'aged'. Did you mean 'age'"),
    ({}, {"numeric": ("age", "paid")}, r"column 'paid' has two roles"),
    ({}, {"classes": ()}, r"label 'paid' is not 0 and 1; say which value is favourable"),
    ({"paid": "maybe"}, {}, r"column 'paid': row 7 is none of no, yes"),
    ({"paid": None}, {}, r"column 'paid' is missing in 1 rows, first in row 7"),
    ({"sex": None}, {}, r"column 'sex' is missing in 1 rows, first in row 7"),
    ({"sex": "x"}, {"levels": {"sex": ("f", "m")}}, r"column 'sex': row 7 is none of f, m"),
    ({"age": "old"}, {}, r"column 'age': row 7 is not a finite number"),
    ({"age": np.inf}, {}, r"column 'age': row 7 is not a finite number"),
    ({}, {"sensitive": ("age",)}, r"'age' has \d+ levels; cut it into a few bands"),
    ({}, {"fixed_test": "age"}, r"column 'age' must hold true and false"),
]


@pytest.mark.parametrize(("cells", "roles", "message"), BAD)
def test_what_is_wrong_in_a_table_is_named(
    cells: dict[str, Any], roles: dict[str, Any], message: str
) -> None:
    frame = rows().astype(object)
    for column, value in cells.items():
        frame.loc[7, column] = value
    with pytest.raises(DataError, match=f"^file 'toy.csv': .*{message}"):
        table(frame, origin="toy.csv", **roles)


def test_missing_features_are_counted_by_client() -> None:
    frame = rows().astype({"age": float})
    frame.loc[frame["site"] == "south", "age"] = np.nan
    count = int((frame["site"] == "south").sum())
    with pytest.raises(DataError, match=rf"column 'age' .*: {count} at client 'south'\. Choose"):
        made(table(frame))
    data = made(table(frame, missing={"age": "indicator"})).dataset
    assert data.schema.features[:2] == ("age", "age=missing")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ({}, "there are no clients"),
        ({"a": []}, "client 'a' has no rows"),
        ({"a": [0, 400]}, r"client 'a' has a row outside 0\.\.399"),
        ({"a": [0, 1, 2], "b": [2, 3]}, "row 2 belongs to clients 'a' and 'b'"),
        ({"a": [1, 1]}, "client 'a' has a row twice"),
    ],
)
def test_a_wrong_assignment_is_refused(assignment: dict[str, list[int]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        federate(table(), {k: np.array(v, dtype=np.int64) for k, v in assignment.items()})


def test_a_client_of_fixed_test_rows_only_is_named() -> None:
    source = table(rows().assign(held=np.arange(SIZE) < 10), fixed_test="held")
    with pytest.raises(DataError, match="client 'b' has no training rows"):
        federate(source, {"a": np.arange(5, 50), "b": np.arange(5)})


def test_a_tiny_client_still_trains() -> None:
    data = federate(table(), {"a": np.array([0]), "b": np.arange(1, 50)}, val=0.4, test=0.5)
    # 49 rows: 24 test, 20 validate.
    assert data.sizes("train").tolist() == [1, 5]  # type: ignore[union-attr]
    assert any("1 client has no test example" in note for note in data.schema.notes)


def test_shares_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="sum to less than 1"):
        made(val=0.5, test=0.5)


def test_a_choice_of_sensitive_attributes_is_checked() -> None:
    assert chosen("", ["sex"], "toy") == ()
    assert chosen(["sex"], ["sex"], "toy") == ("sex",)
    with pytest.raises(ConfigError, match=r"no sensitive attribute 'sexx'\. Did you mean 'sex'"):
        chosen("sexx", ["sex"], "toy")
