"""Silo files whose label is a number: trained on a scale of its own, told in its unit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.data.dataset import Split
from evenfed.report.page import page_of
from evenfed.runs.record import Record

SIZES = {"a": 120, "b": 200}
UNIT = 1000.0


def rows(n: int, unit: float = UNIT) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    age = rng.integers(20, 80, n)
    sex = rng.choice(["f", "m"], n)
    pay = 40 + 0.5 * age + 3 * (sex == "m") + rng.normal(0, 3, n)
    return pd.DataFrame({"age": age, "sex": sex, "pay": unit * pay})


def load(folder: Path, unit: float = UNIT, **options: object) -> ef.FederatedDataset:
    folder.mkdir(exist_ok=True)
    for name, n in SIZES.items():
        rows(n, unit).to_csv(folder / f"{name}.csv", index=False)
    return ef.load_silos(f"{folder}/*.csv", label="pay", sensitive="sex", **options)


def train(data: ef.FederatedDataset) -> ef.Result:
    return ef.train("fedavg", data, rounds=8, engine="sequential", model="linear")


def paid(result: ef.Result, client: str, split: Split) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Labels of raw rows, which a CSV file holds as text."""
    assert result.data.rows is not None
    return result.data.rows(client, split)["pay"].to_numpy(dtype=np.float64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ef.Result:
    return train(load(tmp_path_factory.mktemp("pay") / "silos"))


def test_a_label_in_thousands_trains_with_the_default_rate(trained: ef.Result) -> None:
    """By hand: mean and spread of the training labels of both files, from sums."""
    found = trained.summary()
    assert found["r2"] > 0.7
    labels = np.concatenate([paid(trained, name, "train") for name in SIZES])
    offset, scale = trained.data.schema.target
    assert (offset, scale) == pytest.approx((labels.mean(), labels.std()))
    y = np.concatenate([client.train.y.numpy() for client in trained.data])
    np.testing.assert_allclose(y, (labels - labels.mean()) / labels.std(), atol=1e-5)


def test_metrics_are_in_the_unit_of_the_label_and_losses_in_none(
    trained: ef.Result, tmp_path: Path
) -> None:
    plain = train(load(tmp_path, unit=1.0)).summary()
    found = trained.summary()
    for name in ("mean_prediction_difference", "mean_residual_difference"):
        assert found[name] == pytest.approx(UNIT * plain[name], rel=1e-3)
    assert found["mean_squared_error"] == pytest.approx(UNIT**2 * plain["mean_squared_error"], 1e-3)
    assert found["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    scale = trained.data.schema.target[1]
    assert found["loss"] == pytest.approx(found["mean_squared_error"] / scale**2, rel=1e-5)
    assert any("losses are squared errors divided by" in note for note in trained.data.schema.notes)


@pytest.mark.parametrize("ending", [".safetensors", ".pt2", ".onnx"])
def test_an_export_predicts_in_the_unit_of_the_label(
    ending: str, trained: ef.Result, tmp_path: Path
) -> None:
    if ending == ".onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    path = ef.export_model(trained, tmp_path / f"m{ending}").path
    raw = trained.data.rows("a", "test")
    found = ef.load_model(path).predict(raw)
    offset, scale = trained.data.schema.target
    x = trained.data.client(0).test.x
    by_hand = offset + scale * trained.model()(x).detach().numpy().reshape(-1)
    np.testing.assert_allclose(found, by_hand, rtol=1e-5)
    assert abs(found.mean() - paid(trained, "a", "test").mean()) < 3 * UNIT
    adapted = trained.adapt(trained.data.client(0).train).predict(x).numpy()
    np.testing.assert_allclose(adapted, by_hand, rtol=1e-5)


def test_an_audit_of_the_export_has_the_numbers_of_the_run(
    trained: ef.Result, tmp_path: Path
) -> None:
    path = ef.export_model(trained, tmp_path / "m.safetensors").path
    ran = trained.summary()
    for name in ("mean_squared_error", "mean_prediction_difference", "r2"):
        found = ef.audit_model(path, dataset=trained.data).evaluation.summary()[name]
        assert found == pytest.approx(ran[name], rel=1e-4)


def test_the_command_line_says_that_the_label_is_scaled(tmp_path: Path) -> None:
    load(tmp_path)
    words = ["run", "--silos", f"{tmp_path}/*.csv", "--rounds", "1", "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, [*words, "--method", "fedavg", "--engine", "sequential"])
    assert done.exit_code == 0, done.stderr
    assert "label pay: a number, standardised for training" in done.stderr


def test_a_page_writes_an_interval_as_its_value_and_says_where_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    load(folder)
    monkeypatch.chdir(folder)
    words = ["run", "--silos", "*.csv", "--rounds", "1", "--out", str(tmp_path / "r"), "--quiet"]
    done = CliRunner().invoke(app, [*words, "--engine", "sequential", "--no-reference"])
    assert done.exit_code == 0, done.stderr
    page = page_of(Record.read(tmp_path / "r"))
    assert "from the folder of its config (`../data/*.csv`)" in page.settings.sentences[1]
    card = ef.export_model(tmp_path / "r", tmp_path / "m.safetensors").card.read_text()
    assert "in the folder that holds `r`; where the silo files have moved, add `--silos" in card
    grid = next(s for s in page.parts[0].sections if s.key == "good").grids[0]
    value = grid.rows[0][next(i for i, h in enumerate(grid.head) if "squared" in h)]
    assert re.fullmatch(r"\d\.\d\de\+\d\d\n\(\d\.\d\de\+\d\d to \d\.\d\de\+\d\d\)", value), value


def test_the_constant_predictor_and_intervals_stand_beside_a_number(trained: ef.Result) -> None:
    """By hand: what always saying the mean costs is the variance of the test labels."""
    labels = np.concatenate([paid(trained, name, "test") for name in SIZES])
    found, intervals = trained.summary(), trained.intervals()
    assert found["constant_mean_squared_error"] == pytest.approx(labels.var())
    error = found["mean_squared_error"]
    assert found["r2"] == pytest.approx(1 - error / found["constant_mean_squared_error"])
    for name in ("loss", "client_loss_max", "loss_group_max", "mean_residual_difference"):
        low, high = intervals[name].low, intervals[name].high
        assert low is not None
        assert high is not None
        assert low <= found[name] <= high
        assert low < high
    # losses are squared errors over the variance of training labels: n, mean and spread by hand
    cells = trained.evaluation("test").cells()
    residuals = {
        name: paid(trained, name, "test") - np.asarray(_said(trained, name)) for name in SIZES
    }
    squares = (np.concatenate(list(residuals.values())) / trained.data.schema.target[1]) ** 2
    assert cells["loss_squares"].sum() == pytest.approx((squares**2).sum(), rel=1e-4)
    half = 1.96 * squares.std() / np.sqrt(squares.size)
    low, high = intervals["loss"].low, intervals["loss"].high
    assert low is not None
    assert high is not None
    assert (high - low) / 2 == pytest.approx(half, rel=0.15)


def test_the_mean_squared_error_has_the_interval_of_resampled_rows(trained: ef.Result) -> None:
    rng = np.random.default_rng(0)
    squares = [(paid(trained, name, "test") - _said(trained, name)) ** 2 for name in SIZES]
    # rows are drawn again within each client, as the interval says
    sums = sum(rng.choice(own, (4000, own.size)).sum(1) for own in squares)
    low, high = np.quantile(sums / sum(own.size for own in squares), [0.025, 0.975])
    found = trained.intervals(n=4000)["mean_squared_error"]
    assert found.estimate == pytest.approx(trained.summary()["mean_squared_error"], rel=1e-4)
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


def test_r2_has_the_interval_of_resampled_rows(trained: ef.Result) -> None:
    rng = np.random.default_rng(0)
    pairs = [(paid(trained, name, "test"), _said(trained, name)) for name in SIZES]
    replicates = []
    for _ in range(3000):
        rows = [rng.integers(len(y), size=len(y)) for y, _ in pairs]
        y = np.concatenate([own[at] for (own, _), at in zip(pairs, rows, strict=True)])
        said = np.concatenate([own[at] for (_, own), at in zip(pairs, rows, strict=True)])
        replicates.append(1 - ((y - said) ** 2).mean() / y.var())
    low, high = np.quantile(replicates, [0.025, 0.975])
    found = trained.intervals()["r2"]
    assert found.estimate == trained.summary()["r2"]
    assert found.low is not None
    assert found.high is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


def test_another_loss_has_an_interval_of_the_mean_squared_error_too(trained: ef.Result) -> None:
    def absolute(said: Any, y: Any) -> Any:
        return (said.squeeze(-1) - y).abs()

    data = trained.data
    other = ef.train("fedavg", data, rounds=1, model="linear", loss=absolute, engine="sequential")
    assert "loss" in other.intervals()
    found = other.intervals()["mean_squared_error"]
    squares = [(paid(trained, name, "test") - _said(other, name)) ** 2 for name in SIZES]
    n = sum(own.size for own in squares)
    error = sum(own.size * own.var(ddof=1) for own in squares) ** 0.5 / n
    assert found.estimate == pytest.approx(np.concatenate(squares).mean(), rel=1e-4)
    assert found.high is not None
    expected = found.estimate * np.exp(1.959964 * error / found.estimate)  # of its logarithm
    assert found.high == pytest.approx(expected, rel=1e-3)


def _said(result: ef.Result, client: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Predictions of raw test rows in the label's unit."""
    import torch

    offset, scale = result.data.schema.target
    data = next(c for c in result.data if c.name == client)
    with torch.no_grad():
        said = result.model()(data.test.x)
    return np.asarray(offset + scale * said.squeeze(-1).double().numpy())


def test_a_study_of_numbers_has_the_constant_predictor_as_a_row(tmp_path: Path) -> None:
    study = ef.study(["fedavg"], load(tmp_path / "s"), seeds=[0], rounds=1, references=[])
    (part,) = study.sections()
    row = part.rows[-1]
    assert row.label == "constant predictor (reference)"
    measured = study.runs[0].measured
    assert measured is not None
    mean = row.cells["mean_squared_error"].summary
    assert mean is not None
    assert mean.mean == measured["metrics"]["constant_mean_squared_error"]
    assert row.cells["r2"].text == "0.000"
    assert part.headings["r2"] == "R² ↑"
    assert part.headings["mean_squared_error"] == "mean squared error ↓"
