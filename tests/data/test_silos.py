from __future__ import annotations

import gzip
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from evenfed.core.errors import ConfigError
from evenfed.data.problems import DataProblemsError
from evenfed.data.silos import load_silos, read_silos, silos_of_config

SIZES = {"north": 60, "south": 90, "coast": 40}


def rows(client: str, n: int) -> pd.DataFrame:
    rng = np.random.default_rng(sum(client.encode()))
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 80, n),
            "ward": rng.choice(["icu", "er", "gp"], n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    frame["died"] = (frame["age"] + rng.normal(0, 15, n) > 50).astype(int)
    return frame


def write(folder: Path, **changes: Callable[[pd.DataFrame], pd.DataFrame]) -> str:
    """Three files, some changed; gives their pattern."""
    for client, n in SIZES.items():
        frame = rows(client, n)
        frame = changes[client](frame) if client in changes else frame
        frame.to_csv(folder / f"{client}.csv", index=False)
    return str(folder / "*.csv")


def problems(pattern: str | list[str], **options: object) -> list[str]:
    with pytest.raises(DataProblemsError) as caught:
        read_silos(pattern, **{"label": "died", "sensitive": "sex", **options})
    return [str(problem) for problem in caught.value.problems]


def put(column: str, row: int, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Change the cell of a row, counted from 1."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame[column] = frame[column].astype(object)
        frame.loc[row - 1, column] = value
        return frame

    return change


def same(a: object, b: object) -> bool:
    return all(
        torch.equal(getattr(one.split(s), part), getattr(two.split(s), part))
        for one, two in zip(a, b, strict=True)  # type: ignore[call-overload]
        for s in ("train", "val", "test")
        for part in ("x", "y", "group")
    )


def test_types_label_and_levels_are_inferred_over_all_clients(tmp_path: Path) -> None:
    pattern = write(tmp_path, coast=lambda f: f.assign(ward="ship"))
    found = read_silos(pattern, label="died", sensitive="sex")
    schema = found.schema
    assert (schema.numeric, schema.categorical, schema.kind) == (("age",), ("ward",), "binary")
    assert schema.levels == {"ward": ("er", "gp", "icu", "ship"), "sex": ("f", "m")}
    data = found.federated(seed=0)
    assert data.names == ["coast", "north", "south"]
    assert data.schema.features == ("age", "ward=er", "ward=gp", "ward=icu", "ward=ship")
    assert all(len(c.train) + len(c.val) + len(c.test) == SIZES[c.name] for c in data)
    text = "\n".join(found.lines())
    for line in ("3 clients, 190 rows", "favourable: 1", "age: numbers", "ward: 4 levels"):
        assert line in text


def test_everything_wrong_is_told_at_once_with_rows_and_without_cells(tmp_path: Path) -> None:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        for column, row, value in [
            ("age", 4, "SECRET-1"), ("age", 6, "inf"), ("died", 9, "SECRET-2"), ("ward", 2, None)
        ]:  # fmt: skip
            frame = put(column, row, value)(frame)
        return frame

    pattern = write(tmp_path, north=spoil, south=lambda f: f.drop(columns="ward"))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "ragged.csv").write_text("age,ward,sex,died\n1,er,f,0\n1,SECRET-3,er,f,0\n")
    (tmp_path / "header.csv").write_text("age,ward,sex,died\n")
    (tmp_path / "twice.csv").write_text("age,age,ward,sex,died\n30,31,er,f,0\n")
    (tmp_path / "bytes.csv").write_bytes(b"age,ward,sex,died\n1,\xff\xfe,f,0\n")
    (tmp_path / "broken.parquet").write_bytes(b"SECRET-4")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"age,ward,sex,died\n" * 99)[:30])
    others = [str(tmp_path / name) for name in ("*.parquet", "*.gz", "none_*")]
    found = problems([pattern, *others])
    north = f"{tmp_path}/north.csv, column"
    text = "\n".join(found)
    for expected in [
        f"{north} 'age': text where numbers belong, in 1 row: 4",
        f"{north} 'age': infinite values, in 1 row: 6",
        f"{north} 'died': the label is none of 0, 1, in 1 row: 9",
        f"{north} 'ward': missing values; choose a policy, e.g. --missing ward=level, in 1 row: 2",
        f"{tmp_path}/south.csv, column 'ward': there is no such column",
        f"{tmp_path}/empty.csv: is empty",
        f"{tmp_path}/ragged.csv: cannot be read: the number of cells differs in line 3",
        f"{tmp_path}/header.csv: there are no rows",
        f"{tmp_path}/twice.csv, column 'age': occurs 2 times",
        f"{tmp_path}/bytes.csv: cannot be read: it is not text in UTF-8",
        f"{tmp_path}/broken.parquet: cannot be read",
        f"{tmp_path}/cut.csv.gz: cannot be read",
        "no file matches",
    ]:
        assert expected in text
    assert len(found) == 13
    assert "SECRET" not in text


@pytest.mark.parametrize("value", ["1e300", "-4e38"])
def test_numbers_that_float32_cannot_hold_are_told_by_row(value: str, tmp_path: Path) -> None:
    """One of them alone would make an infinity, or a spread beside which all others are 0."""
    assert problems(write(tmp_path, north=put("age", 4, value))) == [
        f"{tmp_path}/north.csv, column 'age': numbers beyond 3.4e+38, the largest that a model can "
        "take, in 1 row: 4"
    ]


def test_a_nul_byte_is_told_by_column_and_row(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    rows("coast", 40).pipe(put("ward", 7, "e\0r")).to_parquet(tmp_path / "coast.parquet")
    text = (tmp_path / "north.csv").read_text().splitlines()
    text[3] = text[3].replace("f", "\0").replace("m", "\0")
    (tmp_path / "north.csv").write_text("\n".join(text))
    found = problems([pattern, str(tmp_path / "coast.parquet")])
    assert f"{tmp_path}/north.csv, column 'sex': a cell holds a NUL byte, in 1 row: 3" in found
    assert f"{tmp_path}/coast.parquet, column 'ward': a cell holds a NUL byte, in 1 row: 7" in found
    (tmp_path / "coast.csv").write_bytes(b"age,ward,s\0ex,died\n30,er,f,0\n")
    assert any("the name of column 3 holds a NUL byte" in text for text in problems(pattern))


def test_many_rows_are_counted_and_a_few_named(tmp_path: Path) -> None:
    pattern = write(tmp_path, north=lambda f: f.assign(age=f["age"].where(f.index > 6)))
    assert problems(pattern) == [
        f"{tmp_path}/north.csv, column 'age': missing values; choose a policy, e.g. --missing "
        "age=mean, in 7 rows: 1, 2, 3, 4, 5 and 2 more"
    ]


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        (lambda f: f.assign(died=0), {}, "label 'died' has one value"),
        (lambda f: f.assign(died="no"), {"kind": "binary"}, "has one value"),
        (lambda f: f, {"label": "dead"}, "no file has a column 'dead'. Did you mean 'died'?"),
        (lambda f: f, {"drop": "agee"}, "no file has a column 'agee'. Did you mean 'age'?"),
        (lambda f: f, {"features": "died"}, "column 'died' has two roles"),
        (lambda f: f, {"features": "age", "drop": "age"}, "column 'age' has two roles"),
        (lambda f: f, {"favourable": "2"}, "has the classes 0 and 1, not '2'"),
        (lambda f: f.assign(died=np.where(f["died"] == 1, "dead", "alive")), {}, "--favourable"),
        (lambda f: f.assign(name=[f"p{i}" for i in range(len(f))]), {}, "levels, more than 50"),
        (lambda f: f.assign(sex=f.index), {}, "cut the sensitive column into a few bands"),
        (lambda f: f, {"missing": "agee=mean"}, "names no feature: 'agee'"),
        (lambda f: f, {"missing": "age=mode"}, "a numeric column's missing values take"),
        (lambda f: f.assign(empty=None), {}, "column 'empty' has no value at any client"),
    ],
)
def test_what_is_wrong_with_all_files_is_told_once(
    change: Callable[[pd.DataFrame], pd.DataFrame],
    options: dict[str, object],
    complaint: str,
    tmp_path: Path,
) -> None:
    found = problems(write(tmp_path, **dict.fromkeys(SIZES, change)), **options)
    assert [complaint in text for text in found].count(True) == 1


def test_a_group_of_too_few_rows_is_refused_until_that_is_allowed(tmp_path: Path) -> None:
    pattern = write(tmp_path, north=put("sex", 5, "x"))
    (text,) = problems(pattern)
    assert text.startswith("group 'x' (sex) has 1 row at all clients together, fewer than 10")
    assert (
        "x"
        in read_silos(pattern, label="died", sensitive="sex", smallest_group=1).schema.levels["sex"]
    )


def test_an_index_that_was_written_as_a_column_is_named(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    rows("north", 60).to_csv(tmp_path / "north.csv")
    assert any("column 1 has no name" in text for text in problems(pattern))


def test_an_unknown_policy_is_refused_before_files_are_read() -> None:
    with pytest.raises(ConfigError, match="no policy 'avg'"):
        read_silos("nowhere.csv", label="died", missing="age=avg")


def test_policies_for_missing_values_of_features_and_groups(tmp_path: Path) -> None:
    def gaps(frame: pd.DataFrame) -> pd.DataFrame:
        frame["age"] = frame["age"].where(frame.index >= 10)
        frame["ward"] = frame["ward"].where(frame.index >= 12)
        frame["sex"] = frame["sex"].where(frame.index >= 14)
        return frame

    pattern = write(tmp_path, north=gaps, south=gaps)
    found = read_silos(
        pattern, label="died", sensitive="sex", missing="age=mean,ward=level,sex=level"
    )
    assert found.schema.levels["sex"] == ("f", "m", "missing")
    data = found.federated()
    assert data.schema.features[-1] == "ward=missing"
    north = data.client(1)
    counted = sum(int((north.split(s).group == 2).sum()) for s in ("train", "val", "test"))
    assert (north.name, counted) == ("north", 14)
    every = read_silos(pattern, label="died", sensitive="sex", missing="*=level,sex=level")
    assert dict(every.schema.missing) == {
        "age": "indicator",
        "ward": "indicator",
        "sex": "indicator",
    }


@pytest.mark.parametrize(
    ("values", "options", "kind", "classes"),
    [
        (["0", "1"], {}, "binary", ("0", "1")),
        (["0.0", "1.0"], {}, "binary", ("0", "1")),
        (["true", "false"], {}, "binary", ("False", "True")),
        (["0", "1"], {"favourable": 0}, "binary", ("1", "0")),
        (["alive", "dead"], {"favourable": "alive"}, "binary", ("dead", "alive")),
        (["a", "b", "c"], {}, "multiclass", ("a", "b", "c")),
        (["1", "2", "3"], {}, "multiclass", ("1", "2", "3")),
        (["1.5", "2", "3"], {}, "regression", ()),
        ([str(i) for i in range(11)], {}, "regression", ()),
        (["1", "2", "3"], {"kind": "regression"}, "regression", ()),
    ],
)
def test_the_kind_of_label_is_inferred(
    values: list[str],
    options: dict[str, object],
    kind: str,
    classes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    def label(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(died=[values[i % len(values)] for i in range(len(frame))])

    found = read_silos(write(tmp_path, **dict.fromkeys(SIZES, label)), label="died", **options)
    assert (found.schema.kind, found.schema.classes) == (kind, classes)
    y = found.federated().client(0).train.y
    assert y.dtype == (torch.float32 if kind == "regression" else torch.int64)


def test_one_file_with_a_client_column_is_the_same_data(tmp_path: Path) -> None:
    apart = read_silos(write(tmp_path), label="died", sensitive="sex").federated(seed=3)
    frames = [rows(client, n).assign(site=client) for client, n in SIZES.items()]
    pd.concat(frames).to_csv(tmp_path / "all.txt", index=False)
    together = read_silos(tmp_path / "all.txt", label="died", sensitive="sex", client_column="site")
    assert same(apart, together.federated(seed=3))
    assert together.options()["client_column"] == "site"


def test_rows_of_a_client_column_are_those_of_the_file(tmp_path: Path) -> None:
    frame = pd.concat([rows(client, n).assign(site=client) for client, n in SIZES.items()])
    frame = put("age", 65, "x")(frame.reset_index(drop=True))
    frame.loc[99, "site"] = None
    frame.to_csv(tmp_path / "all.csv", index=False)
    file = tmp_path / "all.csv"
    assert problems(str(file), client_column="site") == [
        f"{file}, column 'site': the client is missing, in 1 row: 100",
        f"{file}, client 'south', column 'age': text where numbers belong, in 1 row: 65",
    ]
    (text,) = problems(str(file), client_column="sites")
    assert "there is no client column. Did you mean 'site'?" in text


def test_parquet_semicolons_and_gzip_give_the_same_data(tmp_path: Path) -> None:
    plain = read_silos(write(tmp_path), label="died", sensitive="sex").federated()
    for folder in ("parquet", "semicolon", "gzip"):
        (tmp_path / folder).mkdir()
    for client, n in SIZES.items():
        rows(client, n).to_parquet(tmp_path / "parquet" / f"{client}.parquet")
        rows(client, n).to_csv(tmp_path / "semicolon" / f"{client}.csv", sep=";", index=False)
        rows(client, n).to_csv(tmp_path / "gzip" / f"{client}.csv.gz", index=False)
    for folder in ("parquet", "semicolon", "gzip"):
        other = read_silos(f"{tmp_path}/{folder}/*", label="died", sensitive="sex").federated()
        assert other.names == plain.names
        assert same(plain, other)


def test_a_code_is_the_same_level_whatever_else_is_in_the_column(tmp_path: Path) -> None:
    """Pandas alone would read 007 as 7 at a client without words in the column."""
    for client, words in {"a": ["007", "12"], "b": ["007", "x"]}.items():
        frame = pd.DataFrame({"age": range(40), "code": words * 20, "died": [0, 0, 1, 1] * 10})
        frame.to_csv(tmp_path / f"{client}.csv", index=False)
    found = read_silos(f"{tmp_path}/*.csv", label="died", categorical="code")
    assert found.schema.levels["code"] == ("007", "12", "x")


def test_the_record_is_written_once_and_files_are_held_to_it(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    first = load_silos(pattern, label="died", sensitive="sex", seed=1)
    record = tmp_path / "silos.toml"
    before = record.read_bytes()
    assert same(first, load_silos(pattern, seed=1))
    write(tmp_path, north=put("ward", 3, "roof"))
    with pytest.raises(DataProblemsError, match=r"column 'ward': a level .* in 1 row: 3"):
        load_silos(pattern)
    assert record.read_bytes() == before
    again = load_silos(pattern, label="died", sensitive="sex", relearn=True)
    assert "ward=roof" in again.schema.features


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("label", "ward"), ("sensitive", "ward"), ("drop", "age"), ("features", "age"),
        ("kind", "multiclass"), ("favourable", 0), ("missing", "age=mean"), ("scale", "none"),
        ("categorical", "age"), ("client_column", "sex"),
    ],
)  # fmt: skip
def test_an_option_that_the_record_contradicts_is_refused(
    option: str, value: object, tmp_path: Path
) -> None:
    pattern = write(tmp_path)
    load_silos(pattern, label="died", sensitive="sex")
    with pytest.raises(ConfigError, match=option.replace("_", " ")):
        load_silos(pattern, **{option: value})


def test_limits_on_groups_and_levels_are_recorded_and_hold_for_later_uses(tmp_path: Path) -> None:
    pattern = write(tmp_path, north=put("sex", 5, "x"))
    allowed = {"smallest_group": 1, "max_levels": 7}
    first = load_silos(pattern, label="died", sensitive="sex", **allowed)
    record = tomllib.loads((tmp_path / "silos.toml").read_text())["data"]
    assert {name: record[name] for name in allowed} == allowed
    assert same(load_silos(pattern), first)
    options = {key: value for key, value in record.items() if key != "name"}
    assert same(silos_of_config({**options, "files": [pattern]}).federated(), first)
    with pytest.raises(ConfigError, match="records smallest group '1', asked for is '10'"):
        load_silos(pattern, smallest_group=10)


def test_a_policy_is_shown_by_the_word_of_the_command_line(tmp_path: Path) -> None:
    pattern = write(tmp_path, north=put("ward", 3, None))
    found = read_silos(pattern, label="died", sensitive="sex", missing="ward=level")
    assert "feature ward: 3 levels, 1 missing: level" in found.lines()
    load_silos(pattern, label="died", sensitive="sex", missing="ward=level")
    with pytest.raises(ConfigError, match="records missing 'ward=level', asked for is 'ward=mode'"):
        load_silos(pattern, missing="ward=mode")


def test_a_record_elsewhere_and_a_record_that_is_none(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    with pytest.raises(ConfigError, match="name the label"):
        load_silos(pattern)
    load_silos(pattern, label="died", schema=tmp_path / "other.toml")
    assert not (tmp_path / "silos.toml").exists()
    (tmp_path / "silos.toml").write_text("[data]\nname = 'loans'\n")
    with pytest.raises(ConfigError, match="does not hold a schema"):
        load_silos(pattern, label="died")
    with pytest.raises(ConfigError, match="cannot be written"):
        load_silos(pattern, label="died", schema=tmp_path / "no" / "where.toml")


def test_what_left_the_clients_is_in_the_ledger(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    learnt = load_silos(pattern, label="died", sensitive="sex").schema.ledger
    assert any("which levels 3 columns have" in line for line in learnt)
    assert load_silos(pattern).schema.ledger == learnt  # the record says that it was learnt
    named = read_silos(
        pattern, label="died", sensitive="sex", numeric="age", categorical="ward",
        classes="0,1", levels={"sex": ["f", "m"], "ward": ["er", "gp", "icu"]},
    )  # fmt: skip
    told = named.federated().schema.ledger
    assert not any("to agree on" in line for line in told)


def test_types_alone_are_in_the_ledger_too(tmp_path: Path) -> None:
    write(tmp_path, **dict.fromkeys(SIZES, lambda f: f[["age", "died"]]))
    found = read_silos(f"{tmp_path}/*.csv", label="age", kind="regression")
    ledger = found.federated().schema.ledger
    assert any(line.startswith("rows, missing values and numbers") for line in ledger)
    assert not any("which levels" in line for line in ledger)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sensitive": "sex,sex"}, "sensitive: column 'sex' is named 2 times"),
        ({"drop": "died"}, "drop: column 'died' is the label"),
        ({"smallest_group": -3}, "smallest_group is a number of rows, 0 or more, not -3"),
    ],
)
def test_options_without_sense_are_refused(
    options: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    pattern = write(tmp_path)
    with pytest.raises(ConfigError, match=complaint):
        load_silos(pattern, **{"label": "died", "sensitive": "sex", **options})
    assert not (tmp_path / "silos.toml").exists()


def worded(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(died=frame["died"].map({0: "no", 1: "yes"}))


def test_labels_that_look_mistyped_are_refused_by_row_and_not_shown(tmp_path: Path) -> None:
    pattern = write(
        tmp_path,
        north=lambda f: put("died", 7, "SECRET")(worded(f)),
        south=lambda f: put("died", 3, "Yes")(put("died", 5, "yes ")(worded(f))),
        coast=worded,
    )
    found = problems(pattern)
    advice = "correct it, or name the classes with --classes no,yes"
    assert found == [
        f"{tmp_path}/north.csv, column 'died': a class with fewer than 10 rows at all clients "
        f"together: {advice}, or lower --smallest-group, in 1 row: 7",
        f"{tmp_path}/south.csv, column 'died': differs from another class only in case or spaces: "
        f"{advice}, in 2 rows: 3, 5",
    ]
    named = problems(pattern, classes="no,yes")
    assert [text.partition("the label is none of no, yes, ")[2] for text in named] == [
        "in 1 row: 7", "in 2 rows: 3, 5"
    ]  # fmt: skip


def test_rare_classes_that_are_named_or_allowed_are_taken_and_shown(tmp_path: Path) -> None:
    pattern = write(
        tmp_path, north=lambda f: put("died", 7, "maybe")(worded(f)), south=worded, coast=worded
    )
    for options in ({"classes": "no,maybe,yes"}, {"smallest_group": 1}):
        found = read_silos(pattern, label="died", **options)
        assert set(found.schema.classes) == {"no", "maybe", "yes"}
        assert f"3 classes: {', '.join(found.schema.classes)}" in "\n".join(found.lines())


def test_named_classes_have_the_favourable_one_that_is_named(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    for _ in range(2):  # the second time against the record
        data = load_silos(pattern, label="died", classes="0,1", favourable="0")
        assert data.schema.class_names == ("1", "0")


def test_a_contradicted_record_shows_both_values(tmp_path: Path) -> None:
    pattern = write(tmp_path)
    load_silos(pattern, label="died", sensitive="sex")
    for option, value, complaint in [
        ("label", "ward", "records label 'died', asked for is 'ward'"),
        ("sensitive", "sex,ward", "records sensitive 'sex', asked for is 'sex,ward'"),
        ("missing", "age=mean", "records missing none, asked for is 'age=mean'"),
        ("favourable", 0, "records favourable '1', asked for is '0'"),
        ("client_column", "ward", "records client column none, asked for is 'ward'"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            load_silos(pattern, **{option: value})
    with pytest.raises(DataProblemsError, match="no file has a column 'dyed'"):
        load_silos(pattern, label="dyed")
