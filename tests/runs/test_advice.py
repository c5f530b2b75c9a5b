from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.runs.advice import Advice, advise
from evenfed.runs.advice_runs import Gain


def dataset(
    turned: int = 0, clients: int = 6, n: int = 120, val: int = 40, *, grouped: bool = True
) -> ef.FederatedDataset:
    """Clients of one rule; at the first `turned` ones the label is turned round."""
    rng = np.random.default_rng(1)

    def some(size: int, k: int) -> ef.Examples:
        x = rng.normal(size=(size, 2)).astype(np.float32)
        noise = rng.normal(size=size)
        y = ((x[:, 0] + noise > 0) ^ (k < turned)).astype(np.int64)
        group = rng.integers(2, size=size) * grouped
        return ef.Examples.of(*(torch.from_numpy(a) for a in (x, y, group)))

    groups = ef.Groups(("sex",), (("f", "m"),)) if grouped else ef.Groups()
    schema = ef.Schema("toy", "binary", 2, (2,), groups=groups)
    made = [ef.ClientData(f"c{k}", some(n, k), some(val, k), some(1, k)) for k in range(clients)]
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


def test_nothing_is_recommended_on_few_validation_rows() -> None:
    found = advise(dataset(3, val=16, grouped=False))
    for method in ("ditto", "focus"):
        assert verdict(found, method) == "not known"
    assert (
        "There are 96 validation rows, too few to compare models on: at least 100" in found.text()
    )
    small = advise(dataset(1, n=29, grouped=False))
    assert verdict(small, "qffl") == "not known"
    assert "no client has 30 training rows" in small.text()


def test_a_gain_within_its_interval_is_no_reason() -> None:
    """Clients of one rule: by chance an own model is better at some, and on average it is not."""
    found = advise(dataset(0, clients=8, val=20, grouped=False))
    for method in ("ditto", "focus", "qffl"):
        assert verdict(found, method) == "little to gain"
    gain = figures(found, "alone")
    assert gain["gain"] < gain["interval"]
    assert "no method is recommended over fedavg" in found.text()


def test_a_large_figure_within_its_interval_is_called_unknown_not_small() -> None:
    """Few rows a client: the worst client's loss lies above the mean by chance."""
    found = advise(dataset(0, clients=6, n=40, val=20, grouped=False))
    spread = figures(found, "spread")
    assert 0.1 * spread["mean"] < spread["worst"] - spread["mean"] < spread["interval"]
    assert verdict(found, "qffl") == "not known"
    assert "above the mean. The interval holds 0, so these rows do not tell." in found.text()


def test_an_interval_is_that_of_the_mean_difference() -> None:
    """By hand: differences 1, 0, 2, 1 have mean 1 and variance 2/3; 1.96 sqrt(2/3/4) = 0.800."""
    found = Gain.of(np.array([3.0, 1.0, 4.0, 2.0]), np.array([2.0, 1.0, 2.0, 1.0]))
    assert found.half == pytest.approx(0.8002, abs=1e-4)
    assert found.clear
    assert found.share == pytest.approx(0.4)
    assert not Gain.of(np.array([3.0, 1.0, 4.0, 2.0]), np.array([1.0, 3.0, 2.0, 3.0])).clear


def test_the_minimax_value_is_proved() -> None:
    """Groups of 60 and 20 rows, one feature that is constant, labels 1 and 0.

    A linear model gives everybody one logit, so its largest group loss is least at 0: log 2.
    """
    group = torch.tensor([0] * 60 + [1] * 20)
    own = ef.Examples.of(torch.ones(80, 1), (group == 0).long(), group)
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


def test_the_text_gives_the_command_that_tries_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For pffl with a bound that can be met, and the model that the bound was found for."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "ab":
        sex = rng.choice(["f", "m"], 300, p=[0.3, 0.7])
        age = rng.normal(size=300)
        paid = (np.where(sex == "m", age, -age) + 0.5 * rng.normal(size=300) > 0).astype(int)
        frame = pd.DataFrame({"age": age, "sex": sex, "paid": paid})
        frame.to_csv(f"own_{name}.csv", index=False)
    words = ["advise", "--silos", "own_*.csv", "--label", "paid", "--sensitive", "sex"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if "--method pffl" in text]
    table = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    (found,) = [s["figures"] for s in table["statements"] if s["about"] == "minimax"]
    command = line.strip().removeprefix("try: ")
    assert command.startswith("evenfed run --silos 'own_*.csv' --method pffl --model linear --set ")
    assert found["high"] < float(command.rpartition("zeta=")[2]) < 1.05 * found["high"]
    assert command in [s["command"] for s in table["suggestions"]]
    ran = CliRunner().invoke(app, [*shlex.split(command)[1:], "--rounds", "1"])
    assert ran.exit_code == 0, ran.stderr
