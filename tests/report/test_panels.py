from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import evenfed as ef
from evenfed.methods.registry import build
from evenfed.report.charts import Heat, Lines, draw
from evenfed.report.page import page_of, render, run_page
from evenfed.report.panels import panels_of
from evenfed.report.sections import Section
from evenfed.runs.config import MethodConfig
from evenfed.runs.geometry import panel_extent
from evenfed.runs.record import Record
from evenfed.runs.runner import Runner, Settings, build_task
from evenfed.runs.twins import has_ser, without_ser


def record_of(method: str, data: Any, rounds: int = 3, **options: Any) -> Record:
    return ef.train(
        method, data, rounds=rounds, engine="vectorized", evaluate_every=0, **options
    ).record()


def one_panel(record: Record) -> Section:
    (section,) = panels_of(record)
    for figure in section.figures:
        assert draw(figure).startswith("<svg")
    return section


def unfinished(record: Record) -> Record:
    return dataclasses.replace(record, measured=None, clients=None, cells=None)


@pytest.fixture(scope="module")
def synthetic() -> Any:
    return ef.load("synthetic", seed=0, examples=300, test_examples=150)


@pytest.fixture(scope="module")
def fedeba(synthetic: Any) -> Record:
    return record_of("fedeba", synthetic, lr=0.05)


def test_weights_of_fedeba_are_those_of_the_history(fedeba: Record) -> None:
    section = one_panel(fedeba)
    weights, angle = section.figures
    assert isinstance(weights, Lines)
    last = fedeba.history[-1]["weights"]
    assert sum(last.values()) == pytest.approx(1, abs=1e-5)
    assert {line.label: line.y[-1] for line in weights.lines} == last
    top = max(last, key=last.get)
    assert f"In the last round it is {top}, {last[top]:.3f}," in section.sentences[0]
    peak = max(max(line["weights"].values()) for line in fedeba.history)
    assert f", {peak:.3f} in round" in section.sentences[0]
    assert isinstance(angle, Lines)
    assert angle.lines[0].y == [line["fair_angle"] for line in fedeba.history]
    # theta_deg = 0 aligns wherever losses differ at all
    assert "in 3 of 3 rounds" in section.sentences[-1]
    assert one_panel(unfinished(fedeba)).sentences == section.sentences


def test_weights_under_partial_participation_are_a_matrix_with_holes(synthetic: Any) -> None:
    record = record_of("eba", synthetic, rounds=6, participation=2, lr=0.05)
    (figure,) = one_panel(record).figures
    assert isinstance(figure, Heat)
    holes = [value is None for row in figure.values for value in row]
    assert sum(holes) == 6  # one of three clients is missing in each round


def test_weights_of_a_large_federation_are_quartiles(
    synthetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenfed.engines.federation.NOTED_CLIENTS", 2)
    record = record_of("eba", synthetic, lr=0.05)
    assert not any("weights" in line for line in record.history)
    (figure,) = one_panel(record).figures
    assert isinstance(figure, Lines)
    quartiles = record.history[-1]["weights_quartiles"]
    assert (
        figure.lines[1].y[-1]
        == quartiles[-1]
        == pytest.approx(record.history[-1]["largest_weight"])
    )


def test_memberships_of_focus_are_the_labels_that_clients_sent(synthetic: Any) -> None:
    result = ef.train("focus", synthetic, rounds=3, m=2, engine="vectorized", evaluate_every=0)
    section = one_panel(result.record())
    heat, shares = section.figures
    assert isinstance(heat, Heat)
    labels = result.method.memberships(result.server, synthetic)  # type: ignore[attr-defined]
    assert heat.values == [pytest.approx(row, abs=1e-6) for row in labels.tolist()]
    assert list(heat.rows) == synthetic.names
    assert isinstance(shares, Lines)
    assert [line.y[-1] for line in shares.lines] == pytest.approx(labels.mean(0).tolist(), abs=1e-6)
    assert "2 models were trained" in section.sentences[0]
    (only,) = one_panel(unfinished(result.record())).figures  # labels are kept at the end
    assert only.key == "shares"


def test_clients_that_never_took_part_have_no_membership(synthetic: Any) -> None:
    record = record_of("focus", synthetic, rounds=1, participation=1, m=2, init="common_noise")
    assert record.measured is not None
    assert len(record.measured["diagnostics"]["memberships"]) == 1
    assert "2 clients never took part" in " ".join(one_panel(record).sentences)


def test_bounds_of_pffl_stand_beside_group_losses_and_the_certificate_is_in_words(
    synthetic: Any,
) -> None:
    record = record_of("pffl", synthetic, model="logistic", zeta=0.3, lr=0.5)
    section = one_panel(record)
    losses, multipliers = section.figures
    assert isinstance(losses, Lines)
    assert isinstance(multipliers, Lines)
    assert losses.limits == [("bound", 0.3)]
    assert [line.y[-1] for line in losses.lines] == record.history[-1]["group_losses"]
    assert [line.y[-1] for line in multipliers.lines] == record.history[-1]["multipliers"]
    assert record.measured is not None
    made = record.measured["certificate"]
    said = " ".join(section.sentences)
    over = sum(cell["excess"] > made["tolerance"] for cell in made["cells"])
    assert f"keeps {2 - over} of 2 bounds" in said
    expected = {"infeasible": "no model of this kind", "feasible": "one was found"}
    assert expected[made["status"]] in said
    assert f"below {made['minimax'][0]:.3f}" in said
    early = one_panel(unfinished(record))
    assert "proved" not in " ".join(early.sentences)
    assert [line.label for line in early.figures[0].lines] == ["group 1", "group 2"]  # type: ignore[union-attr]


def test_a_bound_that_is_met_is_said_to_be_met(synthetic: Any) -> None:
    record = record_of("pffl", synthetic, rounds=2, model="logistic", zeta=5.0)
    said = " ".join(one_panel(record).sentences)
    assert "keeps 2 of 2 bounds. Closest to its bound" in said
    assert "one was found" in said


def test_a_bound_of_zero_is_said_to_be_none(synthetic: Any) -> None:
    record = record_of("pffl", synthetic, rounds=1, model="logistic")
    assert record.measured is not None
    largest = max(cell["loss"] for cell in record.measured["certificate"]["cells"])
    first = one_panel(record).sentences[0]
    assert first.startswith("No bound was chosen: `zeta = 0`")
    assert first.endswith(f", {largest:.3f}.")
    given = record_of("pffl", synthetic, rounds=1, model="logistic", zeta=0.1)
    assert "keeps 0 of 2 bounds" in one_panel(given).sentences[0]


def test_signs_of_ser_are_shown_where_they_were_measured(synthetic: Any) -> None:
    result = ef.train("ser", synthetic, rounds=1, engine="vectorized", evaluate_every=0)
    result.config = result.config.model_copy(update={"geometry": False})
    (text,) = one_panel(result.record()).sentences
    assert "not measured" in text
    result.config = result.config.model_copy(update={"geometry": "auto"})
    section = one_panel(result.record())
    frame = result.geometry()
    assert f"entropy of {frame['sign_entropy'].mean():.3f} bits" in section.sentences[0]
    dots = section.figures[0].rows[0].dots  # type: ignore[union-attr,index]
    assert {d.name: d.value for d in dots} == pytest.approx(frame["sign_entropy"].to_dict())
    assert "with 30 random vectors." in section.notes[0]  # there is no more to ask for


def test_signs_of_ser_are_measured_without_being_asked_for(synthetic: Any) -> None:
    result = ef.train("ser", synthetic, rounds=1, engine="vectorized", evaluate_every=0)
    section = one_panel(result.record())
    (grid,) = section.grids
    extent = panel_extent(result._runner)
    means = result.geometry(probes=extent.probes, rows=extent.rows, clients=extent.clients).mean()
    trace = f"{means['hessian_trace']:.3f} ± {means['hessian_trace_error']:.3f}"
    expected = [f"{means[name]:.3f}" for name in ("sign_entropy", "flip_rate", "top_eigenvalue")]
    assert [list(row) for row in grid.rows] == [["ser", *expected[:2], trace, expected[2]]]
    assert "beside a run without the regulariser" in section.sentences[1]
    assert "with 10 random vectors; `--set geometry=true` takes" in section.notes[0]
    plain = ef.train("fedavg", synthetic, rounds=1, engine="vectorized", evaluate_every=0)
    assert "geometry" not in plain.measured()


def test_signs_of_ser_stand_beside_those_of_clients_that_train_alone(synthetic: Any) -> None:
    result = ef.train("ser", synthetic, rounds=2, engine="vectorized", evaluate_every=0)
    found = result.reference["geometry"]
    record = result.record()
    (grid,) = one_panel(record).grids
    assert [row[0] for row in grid.rows] == ["ser", "local (reference)"]
    assert grid.rows[1][1] == f"{found['sign_entropy']:.3f}"
    # Local trained by itself, with the rate and steps of the run and no regulariser
    alone = ef.train("local", synthetic, rounds=2, engine="vectorized", evaluate_every=0)
    extent = panel_extent(result._runner)
    means = alone.geometry(probes=extent.probes, rows=extent.rows, clients=extent.clients).mean()
    assert found == pytest.approx(means.to_dict(), rel=1e-6)
    keys = [section.key for section in run_page(record).parts[0].sections]
    assert "signs" in keys
    assert "geometry" not in keys  # once is enough


def test_a_study_compares_ser_with_the_same_run_without_it(tmp_path: Any) -> None:
    methods = ["ser:deploy=global", "fedavg", "qffl", "fedavg:lr=0.03"]
    study = ef.study(
        methods, ["synthetic"], seeds=[0], rounds=2, engine="vectorized", references=[],
        out=tmp_path / "s",
    )  # fmt: skip
    runs = {run.method: run.measured for run in study.runs}
    # of the others only the twin is measured, as SER is: at the same few clients
    (first, second) = (name for name, measured in runs.items() if "geometry" in (measured or {}))
    assert (first, second.partition(" ")[0], second.count("0.03")) == ("ser", "fedavg", 0)
    ser, plain = runs[first], runs[second]
    assert ser is not None
    assert plain is not None
    assert plain["geometry_extent"] == ser["geometry_extent"]
    sections = page_of(study).parts[0].sections
    panel = next(s for s in sections if s.title.endswith("Did gradients keep their signs?"))
    (grid,) = panel.grids
    assert [row[0] for row in grid.rows] == ["ser", f"{second}, the same run without it"]
    assert grid.rows[1][1] == f"{plain['geometry']['sign_entropy']:.3f}"
    ours, theirs = (m["geometry"]["sign_entropy"] for m in (ser, plain))
    word = "lower" if ours < theirs else "higher"
    better = sum(
        (v["sign_entropy"] < plain["geometry_by_client"][c]["sign_entropy"]) == (word == "lower")
        for c, v in ser["geometry_by_client"].items()
    )
    said = panel.sentences[1]
    assert f"entropy is {word} by {abs(ours - theirs):.3f}, at {better} of 3 clients" in said
    assert "can be told only" not in " ".join(panel.sentences)
    assert [row.label for row in panel.figures[0].rows] == ["ser", second]  # type: ignore[union-attr]
    assert len(panel.sentences) == 2  # both predict with the global model


def test_a_twin_differs_in_the_regulariser_alone() -> None:
    prox = MethodConfig(name="fedprox", mu=0.1)
    assert without_ser(MethodConfig(name="ser", mu=0.1)) == without_ser(prox)
    assert without_ser(MethodConfig(name="ser")) != without_ser(prox)
    inside = MethodConfig(name="qffl", local={"regularizer": "ser"})
    assert has_ser(inside)
    assert without_ser(inside) == without_ser(MethodConfig(name="qffl"))
    assert not has_ser(MethodConfig(name="ser", local={"ser": {"rho": 0.0}}))


def test_large_models_are_measured_at_fewer_clients_and_examples() -> None:
    data = ef.load("digits", clients=10, seed=0)
    sizes = []
    for hidden in ("8", "2048"):
        model = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, int(hidden)), torch.nn.Linear(int(hidden), 10)
        )
        runner = Runner(build("ser"), data, build_task(data, model), Settings(rounds=1))
        sizes.append(panel_extent(runner))
    assert (sizes[0].clients, sizes[0].rows) == (8, 128)
    assert sizes[1].clients * sizes[1].rows < 200
    assert sizes[1].clients >= 2
    longer = Runner(build("ser"), data, build_task(data, model), Settings(rounds=1000))
    # what training takes decides: a tenth of 3 * 1000 * 10 * 100 gradients is 4,300 examples
    assert (panel_extent(longer).clients, panel_extent(longer).rows) == (8, 128)


def test_other_methods_have_no_panel_and_the_page_holds_those_that_there_are(
    synthetic: Any, fedeba: Record
) -> None:
    assert panels_of(record_of("fedavg", synthetic, rounds=1)) == []
    assert "Whom did the server listen to?" in render(run_page(fedeba))
