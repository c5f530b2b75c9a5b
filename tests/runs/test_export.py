from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner

import evenfed as ef
from evenfed.cli import app
from evenfed.core.errors import ConfigError, DataError, ModelError, RunFolderError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.federate import federate
from evenfed.data.inputs import Inputs
from evenfed.data.sources.shakespeare import encode, from_roles
from evenfed.data.table import Table, deal
from evenfed.methods.base import Method
from evenfed.methods.preferred import Preferred
from evenfed.methods.registry import build, methods
from evenfed.metrics.proportion import wilson
from evenfed.runs.artifact import artifact_of, save_model
from evenfed.runs.config import parse
from evenfed.runs.folder import MODEL
from evenfed.runs.result import Result
from evenfed.runs.train import run_config

FORMATS = (".safetensors", ".onnx", ".pt2")
FAST: dict[str, Any] = {"rounds": 1, "engine": "sequential", "evaluate_every": 0}


def people(n: int = 240, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 80, n).astype(float),
            "pay": rng.lognormal(8, 1, n),
            "job": rng.choice(["clerk", "nurse", "field work"], n),
            "sex": rng.choice(["f", "m"], n),
            "site": rng.choice(["north", "south", "coast"], n),
        }
    )
    score = (frame["age"] - 50) / 10 + (frame["job"] == "nurse") + rng.normal(size=n)
    frame["granted"] = np.where(score > 0, "yes", "no")
    frame.loc[::17, "pay"] = np.nan
    frame.loc[::23, "job"] = None
    return frame


@pytest.fixture(scope="module")
def data() -> FederatedDataset:
    table = Table(
        "people", people(), label="granted", numeric=("age", "pay"), categorical=("job",),
        sensitive=("sex",), client="site", classes=("no", "yes"),
        missing={"pay": "indicator", "job": "mode"},
    )  # fmt: skip
    return federate(table, deal(table, None, None, 0), seed=0)


def expected(result: Result, client: int, **use: Any) -> np.ndarray[Any, Any]:
    """Probabilities of the method itself, by the engine's own path, on a client's test features."""
    used = result.using(**use) if use else result
    state = used._runner.federation.states.get(
        client, used.data.key(client), len(used.data.client(client).train)
    )
    deployed = used.method.deployed(used.server)
    with torch.no_grad():
        outputs = used.method.outputs(deployed, state, used.data.client(client).test.x)
        task = used.method.task
        found = outputs if task.kind == "regression" else task.probabilities(outputs)
    return found.numpy()


def raw(data: FederatedDataset, client: int) -> Any:
    name = data.client(client).name
    if data.rows is not None:
        return data.rows(name, "test")
    x = data.client(client).test.x.numpy()
    if data.schema.features:
        return pd.DataFrame(x, columns=list(data.schema.features))
    assert isinstance(data.inputs, Inputs)
    return x * getattr(data.inputs, "scale", 1)


def quick(name: str) -> Method:
    fields = methods()[name].__dataclass_fields__
    options: dict[str, Any] = {"local.epochs": 1} if "local" in fields else {}
    options |= {k: v for k, v in {"refresh": 0, "fusion_steps": 2}.items() if k in fields}
    return build(name, options)


@pytest.mark.parametrize("name", methods())
def test_every_method_survives_the_round_trip_from_raw_rows(
    name: str, data: FederatedDataset, tmp_path: Path
) -> None:
    result = ef.train(quick(name), data, **FAST)
    method = result.method
    whose: dict[str, Any] = {"client": 1} if method.personal or name in ("focus", "ser") else {}
    how: dict[str, Any] = {"preference": 0.3} if isinstance(method, Preferred) else {}
    made = ef.export_model(result, tmp_path / "m.safetensors", **whose, **how)
    use = {**how, "deploy": "global"} if how else {}
    found = ef.load_model(made.path).predict_proba(raw(data, 1))
    np.testing.assert_allclose(found, expected(result, 1, **use), atol=1e-6)
    assert found.std() > 0, "a constant model would agree by chance"
    if whose:
        with pytest.raises(ConfigError, match="name"):
            ef.export_model(result, tmp_path / "n.safetensors")
    assert f"# Model card: {method.title} on people" in made.card.read_text()


def test_all_formats_predict_the_same_from_raw_rows(data: FederatedDataset, tmp_path: Path) -> None:
    result = ef.train("fedavg", data, **FAST)
    rows = raw(data, 0)
    known = ef.export_model(result, tmp_path / "m.safetensors").path
    probabilities = ef.load_model(known).predict_proba(rows)
    labels = ef.load_model(known).predict(rows)
    assert set(labels) == {"no", "yes"}
    assert (labels == np.where(probabilities[:, 1] > 0.5, "yes", "no")).all()
    for ending in FORMATS[1:]:
        model = ef.load_model(ef.export_model(result, tmp_path / f"m{ending}").path)
        assert (model.predict(rows) == labels).all()
        np.testing.assert_allclose(model.predict_proba(rows), probabilities, atol=1e-6)
        # one row, and more rows than one pass takes
        assert model.predict(rows.iloc[:1])[0] == labels[0]
        many = pd.concat([rows] * (5000 // len(rows)))
        assert (model.predict(many) == np.tile(labels, 5000 // len(rows))).all()


def test_an_onnx_file_takes_raw_columns_without_evenfed(
    data: FederatedDataset, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    result = ef.train("fedavg", data, **FAST)
    path = ef.export_model(result, tmp_path / "m.onnx").path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert {value.name: value.type for value in session.get_inputs()} == {
        "age": "tensor(double)", "pay": "tensor(double)", "job": "tensor(string)",
    }  # fmt: skip
    rows = raw(data, 0)
    feeds = {name: rows[[name]].to_numpy(np.float64) for name in ("age", "pay")}
    words = rows["job"].astype(object).where(rows["job"].notna(), "")
    feeds["job"] = words.to_numpy(dtype=object).reshape(-1, 1)
    label, probabilities = session.run(["label", "probabilities"], feeds)
    np.testing.assert_allclose(probabilities, expected(result, 0), atol=1e-6)
    assert (np.array(label) == ef.load_model(path).predict(rows)).all()
    # age may not be missing: no label, rather than a guess
    feeds["age"] = np.full_like(feeds["age"], np.nan)
    assert set(session.run(["label"], feeds)[0]) == {""}


@pytest.mark.parametrize(
    ("method", "options", "use"),
    [
        ("focus", {"m": 2}, {"client": 0}),
        ("praffl", {"head": (4,), "activation": "relu", "latent": 3}, {"preference": 0.8}),
        ("pfnm", {}, {}),
    ],
)
def test_models_that_are_not_the_trained_module_itself_survive_every_format(
    method: str, options: dict[str, Any], use: dict[str, Any], data: FederatedDataset,
    tmp_path: Path,
) -> None:  # fmt: skip
    result = ef.train(quick(method).__class__(**options), data, **FAST)
    wanted = {"preference": 0.8, "deploy": "global"} if "preference" in use else {}
    for ending in FORMATS:
        model = ef.load_model(ef.export_model(result, tmp_path / f"m{ending}", **use).path)
        np.testing.assert_allclose(
            model.predict_proba(raw(data, 0)), expected(result, 0, **wanted), atol=1e-6
        )
    kinds = {"focus": "mixture", "praffl": "chain", "pfnm": "builtin"}
    assert model.description.architecture["kind"] == kinds[method]


@pytest.mark.parametrize(
    ("source", "model"),
    [("digits", "mlp"), ("digits", "cnn"), ("linear", "linear")],
)
def test_images_and_regressions_survive_every_format(
    source: str, model: str, tmp_path: Path
) -> None:
    data = ef.load(source, clients=2, partition="iid") if source == "digits" else ef.load(source)
    result = ef.train("fedavg", data, model=model, **FAST)
    for ending in FORMATS:
        exported = ef.load_model(ef.export_model(result, tmp_path / f"m{ending}").path)
        found = exported.scored(raw(data, 0))[-1]
        np.testing.assert_allclose(found, expected(result, 0), rtol=1e-5, atol=1e-5)
    if source == "linear":
        with pytest.raises(ConfigError, match="no class probabilities"):
            exported.predict_proba(raw(data, 0))


def test_texts_survive_every_format(tmp_path: Path) -> None:
    text = "Speak, speak. What say you? " * 4
    data = from_roles(
        {"All": text, "First": text[5:]}, clients=None, seed=0, length=4, stride=1,
        shares=(0.1, 0.1),
    )  # fmt: skip
    result = ef.train("fedavg", data, model="char_gru", **FAST)
    said = ["peak", "say "]
    wanted = result.model()(torch.from_numpy(np.stack([encode(words) for words in said])))
    for ending in FORMATS:
        model = ef.load_model(ef.export_model(result, tmp_path / f"m{ending}").path)
        found = model.predict_proba(said)
        np.testing.assert_allclose(found, wanted.softmax(-1).detach(), atol=1e-6)


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    """Also those that a graph gives to its own values."""
    frame = people().rename(columns={"age": "label", "pay": "evenfed/x", "job": "probabilities"})
    table = Table(
        "people", frame, label="granted", numeric=("label", "evenfed/x"),
        categorical=("probabilities",), client="site", classes=("no", "yes"),
        missing={"evenfed/x": "mean", "probabilities": "zeros"},
    )  # fmt: skip
    result = ef.train("fedavg", federate(table, deal(table, None, None, 0), seed=0), **FAST)
    model = ef.load_model(ef.export_model(result, tmp_path / "m.onnx").path)
    np.testing.assert_allclose(
        model.predict_proba(raw(result.data, 0)), expected(result, 0), atol=1e-6
    )


def test_scaling_by_each_client_asks_for_a_client(tmp_path: Path) -> None:
    result = ef.train("fedavg", ef.load("loans", fit="client"), **FAST)
    with pytest.raises(ConfigError, match="scales features by its own rows"):
        ef.export_model(result, tmp_path / "m.safetensors")
    path = ef.export_model(result, tmp_path / "m.safetensors", client="client-2").path
    found = ef.load_model(path).predict_proba(raw(result.data, 2))
    np.testing.assert_allclose(found, expected(result, 2), atol=1e-6)


def test_nothing_in_a_file_is_pickled(data: FederatedDataset, tmp_path: Path) -> None:
    result = ef.train("fedavg", data, **FAST)
    for ending in FORMATS:
        ef.export_model(result, tmp_path / f"m{ending}")
    with safe_open(str(tmp_path / "m.safetensors"), framework="pt") as file:
        described = json.loads(file.metadata()["evenfed"])
    assert described["architecture"]["name"] == "mlp"
    assert described["schema"]["class_names"] == ["no", "yes"]
    assert described["origin"]["versions"]["evenfed"] == ef.__version__
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        assert all(not archive.read(name).startswith(b"\x80") for name in archive.namelist())
        assert all(b"pkl" not in name.encode() for name in archive.namelist())


def test_a_program_with_a_pickled_part_is_refused(data: FederatedDataset, tmp_path: Path) -> None:
    result = ef.train("fedavg", data, **FAST)
    good = ef.export_model(result, tmp_path / "good.pt2").path
    bad = tmp_path / "bad.pt2"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(bad, "w") as new:
        for name in old.namelist():
            content = b"\x80\x02." if "sample_inputs" in name else old.read(name)
            new.writestr(name, content)
    with pytest.raises(ModelError, match=r"sample_inputs.*is not read"):
        ef.load_model(bad)


def test_columns_that_do_not_fit_are_named(data: FederatedDataset, tmp_path: Path) -> None:
    path = ef.export_model(ef.train("fedavg", data, **FAST), tmp_path / "m.safetensors").path
    with pytest.raises(DataError, match="needs columns 'age', 'job'; the rows have 'pay', 'sex'"):
        ef.load_model(path).predict(people()[["pay", "sex"]])


def test_a_module_of_ones_own_comes_back_with_its_code(
    data: FederatedDataset, tmp_path: Path
) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(data.schema.shape[0], 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.tanh(x))

    result = ef.train("fedavg", data, model=Own, **FAST)
    path = ef.export_model(result, tmp_path / "m.safetensors").path
    with pytest.raises(ModelError, match=r"module=\.\.\."):
        ef.load_model(path)
    found = ef.load_model(path, module=Own()).predict_proba(raw(data, 0))
    np.testing.assert_allclose(found, expected(result, 0), atol=1e-6)
    with pytest.raises(ModelError, match=r"not those of the architecture: '0\.bias'"):
        ef.load_model(path, module=nn.Sequential(nn.Linear(2, 2)))
    program = ef.load_model(ef.export_model(result, tmp_path / "m.pt2").path)
    np.testing.assert_allclose(program.predict_proba(raw(data, 0)), found, atol=1e-6)


def test_a_method_whose_module_is_not_what_it_predicts_with_is_refused(
    data: FederatedDataset, tmp_path: Path
) -> None:
    class Odd(ef.FedAvg):
        def outputs(self, deployed: Any, state: Any, x: Any) -> Any:
            return -super().outputs(deployed, state, x)

    result = ef.train(Odd(), data, **FAST)
    with pytest.raises(ModelError, match="not those of the module"):
        artifact_of(result)
    # the run itself is not lost for it
    assert "not those of the module" in save_model(result, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("runs") / method
            options = {"refresh": 0} if method == "praffl" else {}
            config = parse(
                {"data": "loans", "rounds": 1, "engine": {"engine": "sequential"},
                 "method": {"name": method, "local": {"epochs": 1}, **options}}
            )  # fmt: skip
            run_config(config, made[method])
        return made[method]

    return folder


def test_a_run_leaves_its_model_and_export_needs_no_data(
    run: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("fedavg")
    assert (folder / MODEL).is_file()

    def gone(*_: Any, **__: Any) -> Any:
        raise AssertionError("the data were asked for")

    monkeypatch.setattr("evenfed.runs.train.load_data", gone)
    made = ef.export_model(folder, tmp_path / "m.pt2")
    measured = json.loads((folder / "result.json").read_text())
    text = made.card.read_text()
    low, high = measured["intervals"]["accuracy"]
    assert f"| accuracy | {measured['metrics']['accuracy']:.3f} | {low:.3f} to {high:.3f} |" in text
    for line in [*measured["ledger"], *measured["notes"]]:
        assert f"- {line}" in text
    clients = pd.read_parquet(folder / "clients.parquet")
    for name, row in clients.iterrows():
        low, high = wilson(row["accuracy"] * row["examples"], row["examples"])  # type: ignore[misc]
        share = f"{row['accuracy']:.3f} ({low:.3f} to {high:.3f})"
        assert f"| {name} | {row['examples']:g} | {share} |" in text
    for group, row in measured["groups"].items():
        assert f"| {group} | {row['examples']:g} | {row['accuracy']:.3f} (" in text
        assert f"| {row['true_positive_rate']:.3f} (" in text
    assert "| seed | 0 |" in text
    assert f"evenfed run {folder.name}/config.toml" in text
    assert f"in the folder that holds `{folder.name}`" in text


def test_a_card_holds_the_certificate_of_a_method_that_makes_one(
    run: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = run("pffl")
    said = json.loads((folder / "result.json").read_text())["certificate"]["sentences"]
    assert len(said) > 2
    text = ef.export_model(folder, tmp_path / "m.safetensors").card.read_text()
    assert "## Certificate\n\n" + "\n".join(f"- {line}" for line in said) in text
    plain = ef.export_model(run("fedavg"), tmp_path / "n.safetensors").card.read_text()
    assert "Certificate" not in plain


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments], env={"COLUMNS": "160"})


def test_the_command_writes_model_and_card_and_says_where(run: Callable[[str], Path]) -> None:
    folder = run("ditto")
    assert not (folder / MODEL).exists()
    done = invoke(str(folder), "--client", "client-1", "--format", "onnx", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"] == str(folder / "model-client-1.onnx")
    text = Path(found["card"]).read_text()
    row = pd.read_parquet(folder / "clients.parquet").loc["client-1"]
    assert "the model that client `client-1` uses" in text
    assert f"| client-1 | {row['examples']:g} | {row['accuracy']:.3f} (" in text
    assert "client-2 |" not in text, "the figures are those of this client's model alone"


def test_two_formats_have_two_cards_with_a_command_that_names_the_folder(
    run: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "mine"
    shutil.copytree(run("fedavg"), folder)
    cards = [ef.export_model(folder, tmp_path / f"m.{e}").card for e in ("pt2", "safetensors")]
    assert [card.name for card in cards] == ["m.pt2.md", "m.safetensors.md"]
    for card, file in zip(cards, ("m.pt2", "m.safetensors"), strict=True):
        text = card.read_text()
        assert f"| file | `{file}` |" in text
        command = "`evenfed run runs/mine/config.toml --out NEW`, in the folder that holds `runs`"
        assert command in text
        assert "`evenfed export runs/mine --format" in text


def test_a_preference_of_a_run_is_measured_anew(run: Callable[[str], Path]) -> None:
    folder = run("praffl")
    result = ef.resume(folder).using(preference=0.9, deploy="global")
    done = invoke(str(folder), "--preference", "0.9")
    assert done.exit_code == 0, done.stderr
    text = (folder / "model-p0.9.safetensors.md").read_text()
    assert f"| accuracy | {result.summary()['accuracy']:.3f} |" in text
    assert "| preference | 0.9 (in [0, 1]; larger is fairer) |" in text


@pytest.mark.parametrize(
    ("method", "arguments", "complaint"),
    [
        ("praffl", [], "has a model for every preference in [0, 1]; say which one"),
        ("praffl", ["--preference", "1.5"], "preference must be in [0, 1]"),
        ("fedavg", ["--preference", "0.5"], "has one model, not one for every preference"),
        ("ditto", [], "each client has its own; name one: --client NAME, one of 'client-0', "),
        ("focus", [], "name a client: --client NAME, one of 'client-0', 'client-1', "),
        ("ditto", ["--client", "client-9"], "client 'client-9' is unknown"),
        ("fedavg", ["--format", "pickle"], "it may be safetensors, onnx, torch"),
        ("fedavg", ["--out", "m.bin"], "must end as its format does"),
        ("fedavg", ["--out", "none/m.onnx"], "there is no folder 'none'"),
    ],
)
def test_what_a_run_does_not_have_is_refused_in_one_line(
    run: Callable[[str], Path], method: str, arguments: list[str], complaint: str
) -> None:
    done = invoke(str(run(method)), *arguments)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unfinished_run_and_a_study_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        ef.export_model(tmp_path)
    (tmp_path / "config.toml").write_text('[data]\nname = "loans"\n')
    with pytest.raises(RunFolderError, match="not finished"):
        ef.export_model(tmp_path)
    (tmp_path / "study.toml").write_text("")
    with pytest.raises(RunFolderError, match="is a study"):
        ef.export_model(tmp_path)


def test_a_missing_library_is_named_with_its_extra(
    data: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"pip install 'evenfed\[onnx\]'"):
        ef.export_model(ef.train("fedavg", data, **FAST), tmp_path / "m.onnx")
