from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.metrics import MetricFrame, demographic_parity_difference, equalized_odds_difference
from safetensors.torch import save_file
from scipy.special import softmax
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.core.errors import ConfigError, DataError, ModelError
from evenfed.core.models import mlp
from evenfed.metrics.proportion import wilson
from evenfed.report.audit import page_of
from evenfed.report.page import render

sio = pytest.importorskip("skops.io")

FEATURES = ["age", "pay"]
SILOS = {"north": 90, "south": 140, "coast": 60}


def people(name: str, n: int) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    frame = pd.DataFrame(
        {
            "id": range(n),
            "age": rng.normal(size=n),
            "pay": rng.normal(size=n),
            "job": rng.choice(["clerk", "nurse"], n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    score = frame["age"] + 0.8 * (frame["sex"] == "m") + rng.normal(size=n)
    frame["granted"] = np.where(score > 0, "yes", "no")
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Silo files, and a model of scikit-learn that was trained on other rows."""
    path = tmp_path_factory.mktemp("audit")
    for name, n in SILOS.items():
        people(name, n).to_csv(path / f"site_{name}.csv", index=False)
    train = people("train", 300)
    words = make_column_transformer(
        (OneHotEncoder(), ["job"]), (SimpleImputer(), FEATURES), verbose_feature_names_out=False
    )
    model = make_pipeline(words, LogisticRegression())
    model.fit(train[["job", *FEATURES]], train["granted"])
    sio.dump(model, path / "model.skops")
    return path


def silos(folder: Path) -> dict[str, Any]:
    return {"silos": str(folder / "site_*.csv"), "label": "granted", "sensitive": "sex"}


def whole() -> pd.DataFrame:
    return pd.concat([people(name, n).assign(site=name) for name, n in SILOS.items()])


def test_a_model_of_scikit_learn_has_the_metrics_of_fairlearn_and_scikit_learn(
    folder: Path,
) -> None:
    found = ef.audit_model(folder / "model.skops", **silos(folder), disparity="equalized_odds")
    rows = whole().reset_index(drop=True)
    model = sio.load(folder / "model.skops", trusted=["numpy.dtype"])
    said, p = model.predict(rows), model.predict_proba(rows)
    summary = found.evaluation.summary()
    assert summary["accuracy"] == pytest.approx(accuracy_score(rows["granted"], said), abs=1e-12)
    assert summary["loss"] == pytest.approx(log_loss(rows["granted"], p), abs=1e-9)
    y, z = (rows["granted"] == "yes").astype(int), (said == "yes").astype(int)
    expected = demographic_parity_difference(y, z, sensitive_features=rows["sex"])
    assert summary["demographic_parity_difference"] == pytest.approx(expected, abs=1e-12)
    expected = equalized_odds_difference(y, z, sensitive_features=rows["sex"])
    assert found.intervals[found.disparity].estimate == pytest.approx(expected, abs=1e-12)
    by_site = MetricFrame(
        metrics=accuracy_score, y_true=y, y_pred=z, sensitive_features=rows["site"]
    )
    mine = found.evaluation.clients()["accuracy"].rename(lambda name: name.removeprefix("site_"))
    pd.testing.assert_series_equal(
        mine.sort_index(), by_site.by_group.sort_index(), check_names=False, check_dtype=False
    )
    right = int((said == rows["granted"])[rows["site"] == "coast"].sum())
    ends = wilson(right, SILOS["coast"])
    assert ends is not None
    own = found.clients().loc["site_coast"]
    assert (own["accuracy_low"], own["accuracy_high"]) == pytest.approx(ends)
    women = rows["sex"] == "f"
    ends = wilson(float(z[women & (y == 1)].sum()), float((women & (y == 1)).sum()))
    assert ends is not None
    own = found.groups().loc["f"]
    assert (own["true_positive_rate_low"], own["true_positive_rate_high"]) == pytest.approx(ends)
    losses = [
        log_loss(rows["granted"][rows["sex"] == sex], p[rows["sex"] == sex], labels=["no", "yes"])
        for sex in ("f", "m")
    ]
    assert found.intervals["loss_group_max"].estimate == pytest.approx(max(losses), abs=1e-9)
    low, high = found.intervals["loss_group_max"].low, found.intervals["loss_group_max"].high
    assert low is not None
    assert high is not None
    assert low < max(losses) < high


def test_the_favourable_class_decides_what_a_positive_prediction_is(folder: Path) -> None:
    model = folder / "model.skops"
    plain = ef.audit_model(model, **silos(folder)).evaluation
    turned = ef.audit_model(model, **silos(folder), favourable="no").evaluation
    rates, others = plain.groups()["selection_rate"], turned.groups()["selection_rate"]
    np.testing.assert_allclose(rates + others, 1.0)
    assert plain.summary()["loss"] == pytest.approx(turned.summary()["loss"])
    label = turned.schema.label
    text = render(page_of(ef.audit_model(model, **silos(folder), favourable="no"), ""))
    assert f"The prediction {label} = no goes to" in text
    assert "Excess risk" not in text
    with pytest.raises(ConfigError, match="--favourable is one of two classes"):
        ef.audit_model(model, **silos(folder), favourable="maybe")


def test_an_export_gives_the_numbers_of_its_run_in_every_format(tmp_path: Path) -> None:
    result = ef.train("fedavg", "loans", rounds=3, engine="sequential")
    for ending in (".safetensors", ".onnx", ".pt2"):
        path = ef.export_model(result, tmp_path / f"m{ending}").path
        found = ef.audit_model(path, dataset="loans")
        theirs = result.evaluation("test").counts
        assert torch.equal(found.evaluation.counts.confusion, theirs.confusion)
        torch.testing.assert_close(found.evaluation.counts.loss, theirs.loss, rtol=1e-5, atol=1e-4)
    # the same graph without its description: any graph with one input a column
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(tmp_path / "m.onnx")
    del graph.metadata_props[:]
    onnx.save(graph, tmp_path / "foreign.onnx")
    with pytest.raises(ModelError, match="gives labels as words"):
        ef.audit_model(tmp_path / "foreign.onnx", dataset="loans")
    found = ef.audit_model(tmp_path / "foreign.onnx", dataset="loans", classes="refused,approved")
    assert torch.equal(found.evaluation.counts.confusion, theirs.confusion)
    every = ef.audit_model(path, dataset="loans", split="all")
    assert every.evaluation.sizes.sum() == 1989


def test_an_export_of_silo_files_has_the_numbers_of_its_run(tmp_path: Path) -> None:
    """Codes such as 007 are words, though they look like numbers."""
    for name, n in SILOS.items():
        frame = people(name, n)
        frame["job"] = frame["job"].map({"clerk": "007", "nurse": "010"})
        frame.to_csv(tmp_path / f"site_{name}.csv", index=False)
    given = silos(tmp_path)
    options = {"drop": "id", "categorical": "job", "test": 0.5}
    data = ef.load_silos(
        given["silos"], label="granted", sensitive="sex", classes=("no", "yes"), **options
    )
    result = ef.train("fedavg", data, rounds=2, engine="sequential")
    path = ef.export_model(result, tmp_path / "m.safetensors").path
    found = ef.audit_model(path, **given).evaluation.counts.confusion
    splits = [result.evaluation(split).counts.confusion for split in ("train", "val", "test")]  # type: ignore[arg-type]
    assert torch.equal(found, sum(splits, torch.zeros_like(found)))
    levels = ef.load_model(path).description.inputs.to_dict()["columns"][-1]["levels"]
    assert levels == ["007", "010"]


def test_an_image_model_is_audited_on_its_dataset(tmp_path: Path) -> None:
    data = ef.load("digits", clients=3, partition="iid")
    result = ef.train("fedavg", data, rounds=2, engine="sequential")
    path = ef.export_model(result, tmp_path / "m.safetensors").path
    found = ef.audit_model(path, dataset="digits", options={"clients": 3, "partition": "iid"})
    theirs = result.evaluation("test").counts
    assert torch.equal(found.evaluation.counts.confusion, theirs.confusion)


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return mlp(2, 2, hidden=[5]).eval()


def by_hand(network: torch.nn.Module) -> np.ndarray[Any, Any]:
    rows = torch.tensor(whole()[FEATURES].to_numpy(), dtype=torch.float32)
    with torch.no_grad():
        return network(rows).argmax(-1).numpy()


def test_foreign_weights_need_their_architecture_and_features(
    folder: Path, network: torch.nn.Module
) -> None:
    path = folder / "foreign.safetensors"
    save_file(network.state_dict(), path)
    with pytest.raises(ConfigError, match="holds weights alone; name their model: --architecture"):
        ef.audit_model(path, **silos(folder))
    how = {"features": FEATURES, "classes": "no,yes"}
    found = ef.audit_model(path, **silos(folder), architecture="mlp:hidden=[5]", **how)  # type: ignore[arg-type]
    right = (by_hand(network) == (whole()["granted"] == "yes")).mean()
    assert found.evaluation.summary()["accuracy"] == pytest.approx(right, abs=1e-12)
    with pytest.raises(ModelError, match=r"3 columns id, age, pay.*--features"):
        ef.audit_model(
            path, **silos(folder), architecture="mlp:hidden=5", features="id,age,pay",
            classes="no,yes",
        )  # fmt: skip
    with pytest.raises(DataError, match="none of 0, 1"):
        ef.audit_model(path, **silos(folder), architecture="mlp:hidden=5", features=FEATURES)


def test_a_foreign_graph_takes_a_matrix_of_features(folder: Path, network: torch.nn.Module) -> None:
    path = folder / "foreign.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = {"input": {0: torch.export.Dim("n")}}
        program = torch.onnx.export(
            network, (torch.zeros(2, 2),), dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    program.save(str(path))  # type: ignore[union-attr]
    found = ef.audit_model(path, **silos(folder), features=FEATURES, classes="no,yes")
    right = (by_hand(network) == (whole()["granted"] == "yes")).mean()
    assert found.evaluation.summary()["accuracy"] == pytest.approx(right, abs=1e-12)
    with pytest.raises(DataError, match="takes 2 features, there are 4 columns: id, age, pay, job"):
        ef.audit_model(path, **silos(folder), classes="no,yes")


def test_types_that_skops_does_not_know_are_refused_by_name(folder: Path) -> None:
    train = people("train", 300)
    model = make_pipeline(FunctionTransformer(softmax), LogisticRegression())
    path = folder / "odd.skops"
    sio.dump(model.fit(train[FEATURES], train["granted"]), path)
    names = sio.get_untrusted_types(file=path)
    assert names, "the test needs a type that skops does not know"
    with pytest.raises(ModelError, match=r"not known to be harmless: .*softmax.*--trust") as error:
        ef.audit_model(path, **silos(folder))
    assert all(name in str(error.value) for name in names)
    found = ef.audit_model(path, **silos(folder), trust=names)
    assert found.evaluation.summary()["accuracy"] > 0.5


def test_a_regression_has_disparities_of_its_own(folder: Path, tmp_path: Path) -> None:
    train = people("train", 300)
    model = LinearRegression().fit(train[["age"]], train["pay"])
    sio.dump(model, tmp_path / "r.skops")
    given = {**silos(folder), "label": "pay"}
    found = ef.audit_model(tmp_path / "r.skops", **given, max_disparity=5.0)
    rows = whole()
    means = pd.Series(model.predict(rows[["age"]])).groupby(rows["sex"].to_numpy()).mean()
    expected = abs(means["f"] - means["m"])
    assert found.disparity == "mean_prediction_difference"
    assert found.limits[0].found.estimate == pytest.approx(expected)
    with pytest.raises(ConfigError, match="a regression has no accuracy"):
        ef.audit_model(tmp_path / "r.skops", **given, min_worst_client=0.5)
    with pytest.raises(ConfigError, match="--disparity 'equal_opportunity' is unknown here"):
        ef.audit_model(tmp_path / "r.skops", **given, disparity="equal_opportunity")


def test_files_that_do_not_fit_are_refused_by_naming_the_columns(
    folder: Path, tmp_path: Path
) -> None:
    people("east", 20).drop(columns=["job", "pay"]).to_csv(tmp_path / "site_e.csv", index=False)
    with pytest.raises(DataError, match=r"no file has a column 'job'(.|\n)*a column 'pay'"):
        ef.audit_model(folder / "model.skops", **silos(tmp_path))
    with pytest.raises(DataError, match="no file has a column 'race'"):
        ef.audit_model(folder / "model.skops", **{**silos(folder), "sensitive": "race"})
    with pytest.raises(DataError, match="the model predicts no, yes; the label 'decision' of 'lo"):
        ef.audit_model(folder / "model.skops", dataset="loans")


def test_a_model_that_fails_on_rows_is_named_without_their_content(
    folder: Path, tmp_path: Path
) -> None:
    people("east", 20).assign(job="astronaut").to_csv(tmp_path / "site_e.csv", index=False)
    with pytest.raises(DataError, match=r"client 'site_e': 'model.skops' fails on these") as error:
        ef.audit_model(folder / "model.skops", **silos(tmp_path))
    assert "astronaut" not in str(error.value)
    assert error.value.__cause__ is None


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments], env={"COLUMNS": "160"})


def command(folder: Path, *more: str) -> list[str]:
    return [
        str(folder / "model.skops"), "--silos", str(folder / "site_*.csv"), "--label", "granted",
        "--sensitive", "sex", *more,
    ]  # fmt: skip


def test_a_broken_limit_is_exit_code_1_and_says_by_how_much(folder: Path) -> None:
    kept = invoke(*command(folder, "--json"))
    assert kept.exit_code == 0, kept.stderr
    measured = json.loads(kept.stdout)
    assert measured["passed"] is True
    value = measured["metrics"]["demographic_parity_difference"]
    low, high = measured["intervals"]["demographic_parity_difference"]
    bound = value - 0.01
    done = invoke(*command(folder, "--max-disparity", str(bound)))
    assert done.exit_code == 1
    assert (
        f"--max-disparity {bound:g} broken: the demographic parity difference is {value:.4f} "
        f"(95 % interval {low:.4f} to {high:.4f}), 0.0100 above the limit" in done.stdout
    )
    done = invoke(*command(folder, "--max-disparity", str(value + 0.01)))
    assert done.exit_code == 0
    assert "kept" in done.stdout


@pytest.mark.parametrize(
    ("option", "metric", "step", "side"),
    [
        ("--max-group-loss", "loss_group_max", -0.001, "above"),
        ("--min-worst-client", "client_accuracy_min", 0.001, "below"),
    ],
)
def test_every_limit_breaks_just_beyond_what_was_measured(
    folder: Path, option: str, metric: str, step: float, side: str
) -> None:
    value = json.loads(invoke(*command(folder, "--json")).stdout)["metrics"][metric]
    done = invoke(*command(folder, option, str(value + step), "--json"))
    assert done.exit_code == 1
    limit = json.loads(done.stdout)["limits"][0]
    assert limit["broken"] is True
    assert limit["by"] == pytest.approx(0.001)
    assert limit["low"] < limit["value"] <= limit["high"]
    assert f"0.0010 {side} the limit" in invoke(*command(folder, option, str(value + step))).stdout
    assert invoke(*command(folder, option, str(value - step))).exit_code == 0


def test_two_broken_limits_are_both_named(folder: Path) -> None:
    done = invoke(*command(folder, "--max-disparity", "0", "--min-worst-client", "1"))
    assert done.exit_code == 1
    assert "--max-disparity 0 broken" in done.stdout
    assert "--min-worst-client 1 broken" in done.stdout


def test_a_limit_that_cannot_be_checked_is_no_pass(folder: Path) -> None:
    words = command(folder, "--max-disparity", "0.5")
    at = words.index("--sensitive")
    done = invoke(*words[:at], *words[at + 2 :])
    assert done.exit_code == 2
    assert "--max-disparity cannot be checked: no sensitive column" in done.stderr


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--dataset", "loans"], "an audit needs rows: give silo files, or the name"),
        (["--disparity", "parity"], "--disparity 'parity' is unknown here"),
        (["--set", "clients=3"], "--set is about a dataset"),
        (["--label", "sex"], "column 'sex' is named twice"),
        (["--sensitive", "sex,sex"], "column 'sex' is named twice"),
        (["--max-disparity", "nan"], "--max-disparity is nan; it must be a number of at least 0"),
        (["--max-disparity", "1.5"], "--max-disparity is 1.5; a difference of rates is at most 1"),
        (["--max-group-loss", "-1"], "--max-group-loss is -1; it must be a number of at least 0"),
        (["--min-worst-client", "-1"], "--min-worst-client is -1; it must be a number"),
        (["--min-worst-client", "90"], "--min-worst-client is 90; an accuracy is at most 1"),
        (["--architecture", "mlp"], "--architecture has no meaning for 'model.skops'"),
    ],
)
def test_mistakes_are_one_line(folder: Path, more: list[str], complaint: str) -> None:
    done = invoke(*command(folder, *more))
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_page_shows_limits_clients_and_groups(folder: Path, tmp_path: Path) -> None:
    done = invoke(*command(folder, "--max-disparity", "0", "--out", str(tmp_path / "a")))
    assert done.exit_code == 1
    page = (tmp_path / "a" / "audit.html").read_text()
    assert "Audit of model.skops" in page
    assert "--max-disparity 0 broken" in page
    assert "1 of 1 limits is broken." in page
    assert "Is it fair to groups?" in page
    assert "site_coast" in page
    assert json.loads((tmp_path / "a" / "audit.json").read_text())["passed"] is False


def test_rows_of_one_file_belong_to_the_clients_that_a_column_names(
    folder: Path, tmp_path: Path
) -> None:
    whole().to_csv(tmp_path / "all.csv", index=False)
    given = {**silos(folder), "silos": str(tmp_path / "all.csv"), "client_column": "site"}
    one = ef.audit_model(folder / "model.skops", **given).evaluation
    several = ef.audit_model(folder / "model.skops", **silos(folder)).evaluation
    assert sorted(one.names) == sorted(SILOS)
    assert one.summary() == pytest.approx(several.summary(), nan_ok=True)
