"""What `evenfed run --silos` reads in one process is what nodes read of the same files."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from evenfed.core.errors import DataError
from evenfed.data.problems import DataProblemsError
from evenfed.data.silo import Silo
from evenfed.data.silo_record import read_record
from evenfed.data.silos import load_silos
from evenfed.runs.config import parse
from evenfed.runs.flower.local import _words
from evenfed.runs.flower.node import Node, SiloFile
from evenfed.runs.flower.server import Order, serve
from evenfed.runs.train import load_data, run_config


def rows(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    frame = pd.DataFrame(
        {
            "age": rng.normal(40, 10, n),
            "job": rng.choice(["a", "b"], n),
            "sex": ["f", "m"] * (n // 2),
        }
    )
    return frame.assign(paid=np.where(frame["age"] + rng.normal(0, 5, n) > 40, "yes", "no"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, n in {"a": 60, "b": 80}.items():
        rows(n).to_csv(tmp_path / f"{name}.csv", index=False)
    pd.concat([rows(n).assign(site=i) for i, n in enumerate((60, 80))]).to_parquet(
        tmp_path / "all.parquet"
    )
    return tmp_path


def submitted(record: Path) -> dict[str, Any]:
    """The record as `evenfed flower submit silos.toml --set ...` reads it."""
    engine = {"engine": "flower", "nodes": 2, "timeout": 0.3, "wait": 0.3}
    more = {"method": "fedavg", "engine": engine, "rounds": 2, "evaluate_every": 0}
    return {**tomllib.loads(record.read_text()), **more}


@pytest.mark.parametrize("shared", [False, True])
def test_a_deployment_takes_the_record_and_gives_the_numbers_of_one_process(
    shared: bool, folder: Path, FakeGrid: Any, flat: Callable[..., Any], distance: Any
) -> None:
    files = str(folder / ("all.parquet" if shared else "?.csv"))
    column = "site" if shared else None
    data = load_silos(files, label="paid", sensitive="sex", client_column=column)
    members = {}
    for i in range(2):
        words = _words(data, i)
        options = dict(zip(words[::2], words[1::2], strict=True))
        source = SiloFile(
            Path(options["--data"]), options["--name"], options.get("--client-column", "")
        )
        members[i + 1] = Node(source, folder / "nodes" / str(i))
    config = submitted(folder / "silos.toml")
    ours = serve(FakeGrid(members), Order(config, "run"), folder / "runs", pause=0.01)
    here = {**config["data"], "files": [files]}
    table = {**config, "data": here, "engine": {"engine": "sequential"}}
    theirs = run_config(parse(table))
    assert distance(flat(ours.server), flat(theirs.server)) < 1e-5
    assert ours.summary()["accuracy"] == theirs.summary()["accuracy"]
    assert ours.data.schema.class_names == data.schema.class_names == ("no", "yes")


def test_a_config_that_says_nothing_of_levels_is_completed_from_the_files(folder: Path) -> None:
    table = {"label": "paid", "numeric": ["age"], "categorical": ["job"], "sensitive": ["sex"]}
    table |= {"name": "silos", "files": [str(folder / "?.csv")], "classes": ["no", "yes"]}
    data = load_data(parse({"data": table}).data, seed=0)
    assert data.schema.features == ("age", "job=a", "job=b")


def test_a_node_names_file_and_column_and_no_folder(folder: Path) -> None:
    load_silos(str(folder / "?.csv"), label="paid", sensitive="sex")
    schema, _ = read_record(folder / "silos.toml")
    rows(60).assign(age="old", job=None).to_csv(folder / "a.csv", index=False)
    with pytest.raises(DataProblemsError) as caught:
        Silo.read(folder / "a.csv", schema, "a")
    assert len(caught.value.problems) == 2
    assert "a.csv, column 'age'" in str(caught.value)
    assert str(folder) not in str(caught.value)
    with pytest.raises(DataError, match="no column 'site' that names clients"):
        Silo.read(folder / "a.csv", schema, "a", "site")
    with pytest.raises(DataProblemsError, match="there are no rows"):
        Silo.read(folder / "all.parquet", schema, "7", "site")
