"""Whole runs over a grid without a network: nodes join, silos agree, faults, resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message

import evenfed
from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError, EvenfedError, RunFolderError
from evenfed.data.federate import federate
from evenfed.data.silos import load_silos
from evenfed.data.table import Table
from evenfed.engines.flower import wire
from evenfed.report.page import write_page
from evenfed.runs.artifact import artifact_of
from evenfed.runs.config import parse
from evenfed.runs.export import export_model
from evenfed.runs.flower import server as servers
from evenfed.runs.flower.node import NamedData, Node, SiloFile
from evenfed.runs.flower.server import Order, serve
from evenfed.runs.predictor import load_model
from evenfed.runs.runner import Silent
from evenfed.runs.train import run_config

SILOS = {"a": 60, "b": 80, "c": 50}
SCHEMA = {
    "name": "silos", "label": "paid", "numeric": ["age", "income"], "categorical": ["job"],
    "sensitive": ["sex"],
}  # fmt: skip


def silo(name: str, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows)
    age = rng.normal(40 + len(name), 10, rows)
    return pd.DataFrame(
        {
            "age": age,
            "income": rng.lognormal(3, 1, rows),
            "job": rng.choice(["clerk", "nurse", "pilot"][: 2 + (rows > 55)], rows),
            "sex": rng.choice(["f", "m"], rows),
            "paid": (age + rng.normal(0, 5, rows) > 41).astype(int),
        }
    )


@pytest.fixture
def silo_grid(tmp_path: Path, FakeGrid: Any) -> Any:
    folder = tmp_path / "silos"
    folder.mkdir()
    members = {}
    for i, (name, rows) in enumerate(SILOS.items()):
        silo(name, rows).to_csv(folder / f"{name}.csv", index=False)
        members[i + 1] = Node(SiloFile(folder / f"{name}.csv", name), tmp_path / "nodes" / name)
    return FakeGrid(members)


def order(name: str = "run", *, resume: bool = False, **config: Any) -> Order:
    engine = {"engine": "flower", "nodes": 3, "timeout": 0.3, "wait": 0.3}
    table = {
        "method": "scaffold", "data": SCHEMA, "engine": engine, "rounds": 3, "evaluate_every": 0,
        "checkpoint_every": 1,
    }  # fmt: skip
    return Order({**table, **config}, name, resume)


def carried_out(grid: Any, given: Order, root: Path, observer: Any = None) -> Any:
    return serve(grid, given, root, observer, pause=0.01)


def together() -> Any:
    """The same silos in one process."""
    frames = [silo(name, rows).assign(site=name) for name, rows in SILOS.items()]
    frame = pd.concat(frames, ignore_index=True)
    table = Table(
        "silos", frame, label="paid", numeric=("age", "income"), categorical=("job",),
        sensitive=("sex",),
    )  # fmt: skip
    rows = {name: np.flatnonzero(frame["site"] == name) for name in SILOS}
    return federate(table, rows, seed=0)


def in_one_process(**config: Any) -> Any:
    table = {**order(**config).config, "engine": {"engine": "sequential"}}
    return run_config(parse(table), data=together())


def test_silo_files_give_the_numbers_of_one_table(
    silo_grid: Any, tmp_path: Path, flat: Callable[..., Any], distance: Any
) -> None:
    ours = carried_out(silo_grid, order(), tmp_path / "runs")
    theirs = in_one_process()
    assert distance(flat(ours.server), flat(theirs.server)) < 1e-5
    a, b = ours.summary(), theirs.summary()
    assert a["accuracy"] == b["accuracy"]
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    measured = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    assert measured["engine"] == "flower"
    assert measured["ledger"][: len(theirs.data.schema.ledger)] == list(theirs.data.schema.ledger)


def test_nodes_train_no_reference_and_measure_no_geometry_and_the_page_says_so(
    silo_grid: Any, tmp_path: Path
) -> None:
    carried_out(silo_grid, order(method="ser", rounds=1), tmp_path / "runs")
    measured = json.loads((tmp_path / "runs" / "run" / "result.json").read_text())
    assert measured["reference"]["method"] == "local"
    assert "metrics" not in measured["reference"]
    assert "geometry" not in measured
    text = write_page(tmp_path / "runs" / "run").read_text()
    assert "<code>evenfed run --method local --engine flower</code> is a run of its own" in text
    assert "the nodes of engine <code>flower</code> answer only what a method asks" in text


def test_a_label_that_is_a_number_is_scaled_at_the_nodes_as_in_one_process(
    silo_grid: Any, tmp_path: Path, flat: Callable[..., Any], distance: Any
) -> None:
    data = {
        "name": "silos", "label": "income", "kind": "regression", "numeric": ["age"],
        "sensitive": ["sex"], "smallest_group": 1,
    }  # fmt: skip
    config = {"data": data, "method": "fedavg", "rounds": 2}
    ours = carried_out(silo_grid, order(**config), tmp_path / "runs")
    files = [str(tmp_path / "silos" / f"{name}.csv") for name in SILOS]
    silos = load_silos(files, schema=tmp_path / "s.toml", features="age", **{
        name: data[name] for name in ("label", "kind", "sensitive")
    })  # fmt: skip
    table = {**order(**config).config, "engine": {"engine": "sequential"}}
    theirs = run_config(parse(table), data=silos)
    assert ours.data.schema.target == pytest.approx(silos.schema.target)
    assert silos.schema.target[1] > 5
    assert distance(flat(ours.server), flat(theirs.server)) < 1e-5
    for name in ("mean_squared_error", "loss"):
        assert ours.summary()[name] == pytest.approx(theirs.summary()[name], rel=1e-4)
    made = export_model(tmp_path / "runs" / "run", tmp_path / "m.safetensors")
    rows = silo("a", 60)
    found = load_model(made.path).predict(rows)
    np.testing.assert_allclose(found, artifact_of(theirs).predictor.predict(rows), rtol=1e-4)


def test_the_server_exports_its_model_without_any_data(silo_grid: Any, tmp_path: Path) -> None:
    carried_out(silo_grid, order(), tmp_path / "runs")
    made = export_model(tmp_path / "runs" / "run", tmp_path / "m.safetensors")
    rows = silo("a", 60)
    found = load_model(made.path).predict_proba(rows)
    theirs = artifact_of(in_one_process()).predictor.predict_proba(rows)
    np.testing.assert_allclose(found, theirs, atol=1e-5)


@pytest.mark.parametrize("use", [{"client": "a"}, {"preference": 0.5}])
def test_what_is_at_the_nodes_is_not_exported_at_the_server(
    use: dict[str, Any], silo_grid: Any, tmp_path: Path
) -> None:
    """The server does not know the clients' states: a model made without them would be wrong."""
    method = "ditto" if "client" in use else {"name": "praffl", "refresh": 0}
    carried_out(silo_grid, order(method=method, rounds=1), tmp_path / "runs")
    with pytest.raises(ConfigError, match="what clients keep is at their nodes"):
        export_model(tmp_path / "runs" / "run", **use)


def test_no_message_to_the_server_holds_a_row(silo_grid: Any, tmp_path: Path) -> None:
    """Values of the silos, raw or scaled, are in no reply."""
    replies: list[Message] = []

    def recorded(message: Message) -> Message:
        replies.append(message)
        return message

    silo_grid.spoil = dict.fromkeys(silo_grid.members, recorded)
    ours = carried_out(silo_grid, order(rounds=2), tmp_path / "runs")
    sent = [r for r in replies if r.has_content() and "tree" in wire.spec_of(r.content)]
    assert len(sent) == 3 * 3  # two rounds, then validation and test data in one reply
    numbers = torch.cat(
        [
            leaf.flatten().double()
            for reply in sent
            for leaf in trees.leaves(wire.tree_of(reply.content, wire.spec_of(reply.content)))
        ]
    )
    for client in together():
        for split in ("train", "val", "test"):
            values = client.split(split).x[:, :2].double().flatten()
            assert not torch.isin(values, numbers).any()
    texts = " ".join(str(wire.spec_of(r.content)) for r in replies)
    for value in silo("a", 60)["age"]:
        assert repr(float(value)) not in texts
    assert ours.history["exchanges"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda f: f.drop(columns="income"), "column 'income': there is no such column"),
        (lambda f: f.assign(paid="x"), "column 'paid': the label is none of 0, 1, in 80 rows"),
        (lambda f: f.assign(age="old"), "column 'age': text where numbers belong, in 80 rows: 1,"),
        (lambda f: f.assign(income=np.nan), "column 'income': missing values"),
        (lambda f: f.assign(sex=None), "column 'sex': missing values"),
        (lambda f: f.iloc[:0], "no rows"),
    ],
)
def test_a_silo_that_does_not_fit_is_refused_before_training(
    change: Any, complaint: str, silo_grid: Any, tmp_path: Path
) -> None:
    path = tmp_path / "silos" / "b.csv"
    change(silo("b", 80)).to_csv(path, index=False)
    with pytest.raises(EvenfedError, match=complaint):
        carried_out(silo_grid, order(), tmp_path / "runs")
    assert not any("exchange" in str(wire.spec_of(m.content)["kind"]) for m in silo_grid.sent)
    assert not (tmp_path / "runs" / "run").exists()


def test_a_level_outside_the_schema_is_refused_before_training(
    silo_grid: Any, tmp_path: Path
) -> None:
    known = {**SCHEMA, "levels": {"sex": ["f"]}}
    with pytest.raises(EvenfedError, match="column 'sex': a level that is not among the 1"):
        carried_out(silo_grid, order(data=known), tmp_path / "runs")


def test_a_node_of_another_version_is_refused_with_both_versions(
    silo_grid: Any, tmp_path: Path
) -> None:
    def older(message: Message) -> Message:
        spec = {**wire.spec_of(message.content), "version": "0.0.1"}
        return Message(wire.message(spec, None, []), reply_to=message)

    silo_grid.spoil[2] = older
    with pytest.raises(
        ConfigError, match=f"evenfed 0.0.1, the server evenfed {evenfed.__version__}"
    ):
        carried_out(silo_grid, order(), tmp_path / "runs")


def test_too_few_nodes_are_an_error_that_names_those_there(silo_grid: Any, tmp_path: Path) -> None:
    silo_grid.online = {1, 3}
    with pytest.raises(EvenfedError, match=r"2 of 3 nodes joined.*there: a, c"):
        carried_out(silo_grid, order(), tmp_path / "runs")


def test_a_method_that_sends_examples_is_refused(silo_grid: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sends examples"):
        carried_out(silo_grid, order(method="centralized"), tmp_path / "runs")
    assert silo_grid.sent == []


CERTIFIED = {
    "method": {"name": "pffl", "zeta": 0.6}, "model": {"name": "linear"}, "rounds": 2,
}  # fmt: skip


def test_a_certificate_is_made_from_messages_and_is_that_of_one_process(
    silo_grid: Any, tmp_path: Path
) -> None:
    ours = carried_out(silo_grid, order(**CERTIFIED), tmp_path / "runs").certificate
    theirs = in_one_process(**CERTIFIED).certificate
    assert ours is not None
    assert theirs is not None
    assert ours.no_certificate == theirs.no_certificate == ""
    assert ours.status == theirs.status
    assert ours.violation == pytest.approx(theirs.violation, rel=1e-4)
    assert ours.least_excess == pytest.approx(theirs.least_excess, abs=1e-4)
    assert ours.gap == pytest.approx(theirs.gap, rel=1e-3)


def test_without_one_of_the_clients_there_is_no_certificate_but_a_result(
    silo_grid: Any, tmp_path: Path
) -> None:
    script = Script({1: lambda: silo_grid.online.discard(2)})
    ours = carried_out(silo_grid, order(**CERTIFIED), tmp_path / "runs", script)
    assert ours.certificate is None
    assert any("no certificate: client 'b' did not answer" in said for said in script.said)
    assert (tmp_path / "runs" / "run" / "result.json").is_file()


class Script(Silent):
    """Does something after a round."""

    def __init__(self, after: dict[int, Callable[[], None]]) -> None:
        self.after = after
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)

    def round_done(self, line: dict[str, Any]) -> None:
        self.after.get(line["round"], lambda: None)()


def test_a_node_that_goes_is_left_out_and_takes_part_again_under_a_new_number(
    silo_grid: Any, tmp_path: Path
) -> None:
    def goes() -> None:
        silo_grid.online.discard(2)

    def returns() -> None:
        # another process with the same file and folder, and a new number
        silo_grid.members[9] = Node(silo_grid.members[2].source, tmp_path / "nodes" / "b")
        silo_grid.online.add(9)

    script = Script({0: goes, 1: returns})
    ours = carried_out(silo_grid, order(rounds=5), tmp_path / "runs", script)
    dropped = [line.get("dropped", {}) for line in ours._runner.history]
    assert dropped[0] == {}
    assert dropped[1] == {"did not answer": 1}
    assert dropped[-1] == {}
    assert any("'b' is now at node 9" in sentence for sentence in script.said)


def test_a_node_that_never_answers_is_left_out_after_the_timeout(
    silo_grid: Any, tmp_path: Path
) -> None:
    script = Script({0: lambda: silo_grid.deaf.add(2)})
    ours = carried_out(silo_grid, order(), tmp_path / "runs", script)
    assert [line.get("dropped", {}) for line in ours._runner.history] == [
        {}, {"did not answer": 1}, {"did not answer": 1},
    ]  # fmt: skip


def poisoned(message: Message) -> Message:
    spec = wire.spec_of(message.content)
    if "tree" not in spec:
        return message
    tree = trees.map(lambda t: t * torch.nan, wire.tree_of(message.content, spec))
    return Message(wire.with_tree(spec, tree), reply_to=message)


def test_a_node_that_sends_nan_is_left_out(silo_grid: Any, tmp_path: Path) -> None:
    silo_grid.spoil[2] = poisoned
    script = Script({})
    ours = carried_out(silo_grid, order(), tmp_path / "runs", script)
    reason = {"sent a value that is not finite": 1}
    assert [line.get("dropped", {}) for line in ours._runner.history] == [reason] * 3
    assert any("client 'b' sent a value that is not finite" in said for said in script.said)


class Killed(BaseException):
    """The server's process ends here."""


@pytest.mark.parametrize("method", ["scaffold", "ditto"])
def test_a_killed_server_goes_on_from_its_checkpoint_to_the_same_bits(
    method: str, silo_grid: Any, tmp_path: Path, flat: Callable[..., Any]
) -> None:
    """Nodes have gone on since the checkpoint: they still hold the states that it names.

    The evaluation of the round before it had not come when it was written.
    """
    config = {"rounds": 6, "checkpoint_every": 3, "evaluate_every": 1, "method": method}
    whole = carried_out(silo_grid, order("whole", **config), tmp_path / "runs")

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        carried_out(silo_grid, order(**config), tmp_path / "runs", Script({4: die}))
    for node in silo_grid.members.values():  # the nodes' processes are new ones, too
        node.__init__(node.source, node.states.folder)
    script = Script({})
    again = carried_out(silo_grid, order(resume=True, **config), tmp_path / "runs", script)
    assert "going on with round 4 of 6" in script.said
    assert torch.equal(flat(again.server), flat(whole.server))
    assert again.summary().to_dict() == whole.summary().to_dict()
    for a, b in zip(again._runner.history, whole._runner.history, strict=True):
        assert "val_loss" in a
        assert {k: v for k, v in a.items() if k != "seconds"} == {
            k: v for k, v in b.items() if k != "seconds"
        }
    written = (tmp_path / "runs" / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == again._runner.history


def test_a_name_that_is_taken_is_refused_and_a_finished_run_is_not_resumed(
    silo_grid: Any, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="no run 'run'"):
        carried_out(silo_grid, order(resume=True), tmp_path / "runs")
    carried_out(silo_grid, order(rounds=1), tmp_path / "runs")
    with pytest.raises(RunFolderError, match="already holds a run 'run'"):
        carried_out(silo_grid, order(), tmp_path / "runs")
    with pytest.raises(RunFolderError, match="is finished"):
        carried_out(silo_grid, order(resume=True), tmp_path / "runs")


def test_a_nodes_file_belongs_to_silos_and_its_number_to_a_dataset(
    silo_grid: Any, tmp_path: Path, FakeGrid: Any
) -> None:
    with pytest.raises(EvenfedError, match="this node holds a silo file"):
        carried_out(silo_grid, order(data={"name": "synthetic"}), tmp_path / "runs")
    named = FakeGrid({i: Node(NamedData(i - 1), tmp_path / str(i)) for i in (1, 2, 3)})
    with pytest.raises(EvenfedError, match="this node has no silo file"):
        carried_out(named, order(), tmp_path / "runs")
    ours = carried_out(named, order(data={"name": "synthetic"}), tmp_path / "runs")
    theirs = run_config(parse({**order().config, "data": {"name": "synthetic"}, "engine": {}}))
    assert ours.summary()["loss"] == pytest.approx(theirs.summary()["loss"], rel=1e-5)


def test_an_order_cannot_name_a_path() -> None:
    for name in ("../x", "a/b", "", ".hidden"):
        with pytest.raises(ConfigError):
            Order({}, name)
    assert servers.Order.read(Order({"rounds": 1}, "x").text()).config == {"rounds": 1}
