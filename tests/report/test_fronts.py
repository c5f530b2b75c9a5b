"""What is recorded of fronts is what the result says, and the explorer gets it unmixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import evenfed as ef
from evenfed.report.answers.chapter import Chapter
from evenfed.report.answers.fronts import best, fronts, points
from evenfed.report.answers.good import good
from evenfed.runs.config import parse
from evenfed.runs.folder import FRONT
from evenfed.runs.record import Record
from evenfed.runs.result import Result
from evenfed.runs.study import directory
from evenfed.runs.train import run_config


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    table = {"data": "loans", "rounds": 1, "method": {"name": "praffl", "local": {"epochs": 2}},
             "engine": {"engine": "vectorized"}}  # fmt: skip
    return run_config(parse(table), tmp_path_factory.mktemp("fronts") / "run")


def test_the_folder_keeps_the_fronts_of_both_splits(result: Result) -> None:
    assert result.folder is not None
    kept = json.loads((result.folder / FRONT).read_text())
    assert len(kept["preferences"]) == 101
    assert list(kept["clients"]) == list(result.data.names)
    for split in ("val", "test"):
        whole = result.front(split, models=101)
        np.testing.assert_allclose(points(kept["global"][split]), whole.points, atol=1e-6)
        own = result.front(split, "client-1", models=101)
        np.testing.assert_allclose(
            points(kept["clients"]["client-1"][split]), own.points, atol=1e-6
        )
        confusion = own.counts.confusion.numpy()
        assert kept["clients"]["client-1"][split]["found"] == confusion[..., 1, 1].tolist()
    assert kept["global"]["val"] != kept["global"]["test"]


def test_methods_with_one_model_keep_no_front(tmp_path: Path) -> None:
    result = run_config(parse({"data": "synthetic", "rounds": 1}), tmp_path / "run")
    assert result.front_record() is None
    assert not (tmp_path / "run" / FRONT).exists()
    assert fronts(Chapter("synthetic", [Record.read(tmp_path / "run")])) is None


def test_dominance_is_decided_on_validation_data(result: Result) -> None:
    assert result.folder is not None
    record = Record.read(result.folder)
    section = fronts(Chapter("loans", [record]))
    assert section is not None
    assert section.explorer is not None
    (entry,) = section.explorer["entries"]
    assert record.front is not None
    table = result.front("val", models=101).table()
    assert entry["parts"][""]["best"] == table["best"].astype(int).tolist()
    scatter = section.figures[0]
    assert sum(scatter.clouds[0].best) == table["best"].sum()
    # drawn on test data all the same
    assert scatter.clouds[0].y == pytest.approx(result.front("test", models=101).points[:, 0])


def test_nothing_is_called_best_without_data_to_decide_on() -> None:
    assert best(None) == []


def test_what_does_not_fit_is_named(result: Result) -> None:
    assert result.folder is not None
    record = Record.read(result.folder)
    other = replace(record, config=record.config.model_copy(update={"seed": 7}))
    whole = fronts(Chapter("loans", [record, other]))
    assert whole is not None
    assert whole.explorer is not None
    assert [e["seed"] for e in whole.explorer["entries"]] == [0, 7]
    first = len(json.dumps(whole.explorer["entries"][0]["parts"], separators=(",", ":")))
    section = fronts(Chapter("loans", [record, other], room=first - 1000))
    assert section is not None
    assert section.explorer is not None
    (entry,) = section.explorer["entries"]
    assert len(entry["parts"]) == 5  # global and four of five clients
    assert entry["seed"] == 0
    said = " ".join(section.notes)
    assert "1 client of praffl with seed 0" in said
    assert "praffl with seed 7" in said


def test_the_folder_is_named_without_its_place_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.toml").touch()
    assert directory(tmp_path / "a" / "run") == "run"
    assert directory(tmp_path / "s" / "runs" / "m-0") == "s/runs/m-0"
    assert directory(None) == "DIR"


def test_a_run_of_a_study_is_named_from_where_the_study_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "s" / "runs" / "m-0"
    run.mkdir(parents=True)
    (tmp_path / "runs" / "s" / "study.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert Path(directory(tmp_path / "runs" / "s")).is_dir()
    assert Path(directory(run)).samefile(run)


def _part(errors: list[int], disparity: list[float], examples: list[int]) -> dict[str, object]:
    return {"errors": [[e, 0] for e in errors], "disparity": disparity, "examples": examples}


def test_ties_are_broken_as_by_choose_and_one_model_is_named_once(result: Result) -> None:
    assert result.folder is not None
    record = Record.read(result.folder)

    def said(val: dict[str, object]) -> list[str]:
        test = _part([4, 5, 6], [0.4, 0.5, 0.6], [10, 0])
        front = {"preferences": [0.0, 0.5, 1.0], "groups": ["a", "b"], "clients": {},
                 "global": {"val": val, "test": test}}  # fmt: skip
        section = fronts(Chapter("loans", [replace(record, front=front)]))
        assert section is not None
        return list(section.sentences)

    # errors tie between 0 and 0.5: that at 0 beats the other, for it has less disparity
    first, *more = said(_part([1, 1, 3], [0.2, 0.3, 0.1], [5, 5]))
    assert "preference 0 is the most accurate, that at 1 the fairest" in first
    assert "error 0.400 and disparity 0.400, and 0.600 and 0.600" in first
    assert more == []
    first, blind = said(_part([1, 1, 3], [0.2, 0.2, 0.3], [10, 0]))
    assert "preference 0.5 is both the most accurate and the fairest" in first
    assert "group b has no validation examples: this choice does not see it" in blind


def test_the_sentence_names_what_choose_gives(result: Result) -> None:
    front = result.front("val", models=101)
    accurate, fair = front.choose(max_disparity=1.0), front.choose(max_error=1.0)
    words = f"{accurate:g} is the most accurate, that at {fair:g} the fairest"
    if accurate == fair:
        words = f"{fair:g} is both the most accurate and the fairest"
    assert result.folder is not None
    section = fronts(Chapter("loans", [Record.read(result.folder)]))
    assert section is not None
    assert f"at preference {words}" in section.sentences[0]


def test_a_tie_is_not_broken_by_a_model_that_another_beats(result: Result) -> None:
    front = result.front("val", preferences=[0.0, 0.25, 0.5, 0.75, 1.0])
    wrong = front.counts.confusion[:1].repeat(5, 1, 1, 1)
    disparity = np.array([0.3, 0.1, 0.2, 0.1, 0.4])

    def choice(confusion: torch.Tensor, **limits: float) -> float:
        counts = replace(front.counts, confusion=confusion)
        return replace(front, counts=counts, disparity=lambda _: disparity).choose(**limits)

    # all errors equal: the lowest disparity, and of its two models the fairest preference
    assert choice(wrong, max_disparity=1.0) == 0.75
    assert choice(wrong, max_error=1.0) == 0.75
    # of the two equal disparities the lower error
    right = wrong.clone()
    right[1] = torch.diag_embed(wrong[1].sum(-1))
    assert choice(right, max_error=1.0) == 0.25


def test_the_figures_say_of_which_models_they_are(result: Result) -> None:
    assert result.folder is not None
    section = good(Chapter("loans", [Record.read(result.folder)]))
    assert section.sentences[-1] == (
        "These figures are of each client's own model at preference 0.5."
    )


def test_a_default_folder_below_runs_is_named_from_where_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory(Path("runs", "loans-praffl-0")) == "runs/loans-praffl-0"


def test_a_folder_deep_below_is_named_so_that_the_command_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "out" / "a" / "study" / "runs" / "m-0"
    run.mkdir(parents=True)
    (tmp_path / "out" / "a" / "study" / "study.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert directory(run) == "out/a/study/runs/m-0"
    assert directory(run.parents[1]) == "out/a/study"
    monkeypatch.chdir(run)
    assert directory(run) == "study/runs/m-0"


def test_a_report_of_a_run_without_a_folder_has_the_explorer(tmp_path: Path) -> None:
    path = ef.train("praffl", "synthetic", rounds=1, epochs=2, engine="vectorized").report(
        tmp_path / "r.html"
    )
    assert '"folder":"DIR"' in path.read_text()
