from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.runs.advice import Advice, advise


def dataset(turned: int = 0, clients: int = 6, n: int = 120) -> ef.FederatedDataset:
    """Clients of one rule; at the first `turned` ones the label is turned round."""
    rng = np.random.default_rng(1)

    def some(size: int, k: int) -> ef.Examples:
        x = rng.normal(size=(size, 2)).astype(np.float32)
        noise = rng.normal(size=size)
        y = ((x[:, 0] + noise > 0) ^ (k < turned)).astype(np.int64)
        group = rng.integers(2, size=size)
        return ef.Examples.of(*(torch.from_numpy(a) for a in (x, y, group)))

    schema = ef.Schema("toy", "binary", 2, (2,), groups=ef.Groups(("sex",), (("f", "m"),)))
    made = [ef.ClientData(f"c{k}", some(n, k), some(40, k), some(1, k)) for k in range(clients)]
    return ef.FederatedDataset(schema, made)


def verdict(advice: Advice, method: str) -> str:
    (found,) = [s.verdict for s in advice.suggestions if method in s.methods]
    return found


def figures(advice: Advice, about: str) -> dict[str, float]:
    (found,) = [s.figures for s in advice.statements if s.about == about]
    return found


def test_kinds_of_clients_are_seen_and_likeness_is_seen() -> None:
    alike, kinds = advise(dataset(0)), advise(dataset(3))
    assert verdict(alike, "focus") == "little to gain"
    assert verdict(kinds, "focus") == "fits"
    assert figures(kinds, "kinds")["gain"] > 0.2
    assert verdict(alike, "ditto") == "little to gain"
    assert verdict(kinds, "ditto") == "fits"


def test_the_minimax_value_is_proved() -> None:
    """Groups of 30 and 10 rows, one feature that is constant, labels 1 and 0.

    A linear model gives everybody one logit, so its largest group loss is least at 0: log 2.
    """
    group = torch.tensor([0] * 30 + [1] * 10)
    own = ef.Examples.of(torch.ones(40, 1), (group == 0).long(), group)
    schema = ef.Schema("toy", "binary", 2, (1,), groups=ef.Groups(("sex",), (("f", "m"),)))
    made = [ef.ClientData(f"c{k}", own, own, own) for k in range(2)]
    found = advise(ef.FederatedDataset(schema, made))
    values = figures(found, "minimax")
    assert values["low"] == pytest.approx(math.log(2), abs=1e-3)
    assert values["low"] <= math.log(2) <= values["high"] + 1e-9
    assert values["fedavg"] > 1
    assert verdict(found, "pffl") == "fits"


def test_what_a_method_needs_and_the_data_have_not_is_said() -> None:
    found = advise(ef.load("digits", clients=4))
    assert verdict(found, "pffl") == "cannot"
    assert verdict(found, "fedfb") == "cannot"
    assert "no groups" in found.text()
    assert not [s for s in found.statements if s.about == "minimax"]


def test_every_suggestion_holds_a_figure_and_the_text_shows_them() -> None:
    found = advise(dataset(1))
    for suggestion in found.suggestions:
        assert any(letter.isdigit() for letter in suggestion.why) or suggestion.verdict == "cannot"
    assert all(s.text in found.text() for s in found.statements)


def test_data_may_be_named() -> None:
    assert advise("linear", seed=1).table() == advise(ef.load("linear", seed=1), seed=1).table()


def test_regression_is_advised_on_too() -> None:
    found = advise(ef.load("linear"))
    assert "range_over_spread" in figures(found, "label")
    assert verdict(found, "hetpfl") == "cannot"


def test_the_command_reads_files_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "ab":
        frame = pd.DataFrame({"age": rng.normal(size=60), "sex": ["f", "m"] * 30})
        frame.assign(died=(frame["age"] > 0).astype(int)).to_csv(f"{name}.csv", index=False)
    words = ["advise", "--silos", "*.csv", "--label", "died", "--sensitive", "sex"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0
    table = json.loads(done.stdout)
    assert table["statements"][0]["figures"]["clients"] == 2
    for wrong in (["advise"], [*words, "--dataset", "loans"], [*words, "--clients", "3"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
