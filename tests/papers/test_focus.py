"""FOCUS's recipe: what is printed, what is planned, and a tiny cell of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import evenfed as ef
from evenfed.cli_papers import command
from evenfed.core.errors import DataError
from evenfed.data.files import checksum
from evenfed.data.sources import imdb
from evenfed.data.sources.linear import true_means
from evenfed.papers import focus
from evenfed.papers.recipe import Job, Setting, paper, published

FULL = Setting("published", False, (0,))
TINY = {"clients": 4, "n": 300, "n_val": 0, "n_test": 500}


def job(jobs: list[Job], row: str, column: str) -> Job:
    (found,) = (j for j in jobs if row in j.rows and j.column == column)
    return found


def linear(rounds: int) -> Job:
    """FOCUS and FedAvg on four clients with 300 examples each."""
    whole = job(focus._main_jobs(FULL), "focus", "synthetic")
    return replace(whole, settings={**whole.settings, "data": TINY, "rounds": rounds})


def test_all_figures_of_the_tables_are_there():
    counts = {table.key: len(published("focus", table.key)) for table in paper("focus").tables}
    # rows x metrics: 6 x (2 + 3 + 3); 2 x 6 x 2; 8 x 3; 7 x 3; three numbers of the text; 6 x 3
    assert counts == {
        "table1": 48, "table2": 24, "table4": 24, "table6": 21, "figure1": 3, "table1_text": 36
    }  # fmt: skip


def test_figures_are_those_that_are_printed():
    table1, table4, table6 = (published("focus", f"table{k}") for k in (1, 4, 6))
    assert table1["fedavg", "synthetic", "faa"].value == 0.958
    assert table1["afl", "rotated_cifar", "loss"].value == 0.324
    assert table4["qffl_5", "rotated_mnist", "loss"].value == 0.9
    assert table6["pfnm", "rotated_mnist", "accuracy"].value == 0.517
    assert published("focus", "table1_text")["qffl_10", "text", "faa"].value == 0.07
    assert published("focus", "table2")["fedavg", "cifar_k1", "faa"].value == 3.456


def test_cells_that_several_tables_print_are_the_same():
    table1 = published("focus", "table1")
    for key in ("table4", "table6"):
        shared = {k: v for k, v in published("focus", key).items() if k in table1}
        assert len(shared) == (18 if key == "table4" else 6)
        assert all(table1[k] == v for k, v in shared.items())
    for (row, column, metric), figure in published("focus", "table2").items():
        if column.endswith("k3"):
            same = {"mnist_k3": "rotated_mnist", "cifar_k3": "rotated_cifar"}[column]
            assert table1[row, same, metric] == figure


def test_findings_follow_from_the_printed_figures():
    table4 = published("focus", "table4")
    fedavg = table4["fedavg", "rotated_mnist", "faa"].value
    lower = {row for (row, _, metric), f in table4.items() if metric == "faa" and f.value < fedavg}
    assert lower == {"focus", "qffl_10", "afl"}
    excess = published("focus", "figure1")["fedavg", "rotated_cifar", "last_excess"].value
    assert excess / 10 > published("focus", "table1")["fedavg", "rotated_cifar", "loss"].value


def test_the_limit_of_fedavg_has_an_faa_of_080_and_not_the_printed_one():
    # population excess of w at client e is |w - mu_e|^2; FedAvg tends to the mean of the mu_e
    for seed in range(5):
        means = true_means(seed=seed)
        excess = ((means - means.mean(0)) ** 2).sum(1)
        assert np.ptp(excess) == pytest.approx(0.80, abs=0.005)


def test_mnist_has_all_images_and_as_many_models_as_angles():
    for k, m in ((1, 2), (3, 3), (5, 4)):
        found = job(focus._outlier_jobs(FULL), "focus", f"mnist_k{k}").settings
        assert found["methods"]["focus"]["options"] == {"m": m}
        assert "examples" not in found["data"]
        assert found["data"]["val"] == 0.0
        angles = [part.split(":") for part in found["data"]["rotations"].split(",")]
        assert sum(int(n) for _, n in angles) == 10
        assert sum(int(n) for angle, n in angles if angle != "0") == k


def test_all_methods_of_a_column_train_alike_and_fedma_as_long():
    jobs = focus._mnist_jobs(focus.OTHER)(FULL)
    common = [{k: v for k, v in j.settings.items() if k != "methods"} for j in jobs]
    assert all(c == common[0] for c in common)
    methods: dict[str, Any] = {k: v for j in jobs for k, v in j.settings["methods"].items()}
    assert set(methods) == {row.key for row in focus.OTHER}
    assert [row for row, of in methods.items() if "training" in of] == ["fedma"]
    own = methods["fedma"]["training"]
    steps = own["rounds"] * own["local"]["steps"]
    assert steps == common[0]["rounds"] * common[0]["local"]["steps"]


def test_tables_share_the_runs_that_they_share():
    def settings(key: str) -> set[str]:
        jobs = paper("focus").table(key).jobs(FULL)
        return {json.dumps(j.settings, sort_keys=True) for j in jobs}

    assert settings("figure1") <= settings("table1")
    assert len(settings("table4") - settings("table1")) == 2
    assert len(settings("table2") & settings("table1")) == 2


def test_a_cell_is_what_the_library_measures():
    # beside two runs of the library, whose FAA trains references of its own
    found = focus.run(linear(rounds=10))
    data = ef.load("linear", seed=0, **TINY)
    for row, options in (("focus", {"m": 2}), ("fedavg", {})):
        result = ef.train(
            row, data, rounds=10, model="linear", engine="vectorized", lr=0.05, batch=0, steps=5,
            **options,
        )  # fmt: skip
        faa = result.faa()
        assert found.values[row]["faa"] == pytest.approx(faa.faa, rel=1e-4)
        assert found.values[row]["loss"] == pytest.approx(faa.mean_loss, rel=1e-4)
        assert found.values[row]["below_reference"] == faa.n_negative_excess
        excess = [y for _, y in found.curves[row]]
        assert max(excess) - min(excess) == pytest.approx(faa.faa, rel=1e-4)
        assert excess[-1] == found.values[row]["last_excess"]


def test_focus_finds_the_outlier_that_fedavg_fails():
    found = focus.run(linear(rounds=40))
    assert found.facts == {"focus": {"true clusters": "found"}}
    # three normal clients: the mean is at 1/4 and 3/4 of R = 1, so FAA tends to 9/16 - 1/16
    assert found.values["fedavg"]["faa"] == pytest.approx(0.5, abs=0.1)
    assert found.values["focus"]["faa"] < 0.02


def test_the_limits_of_qffl_that_the_reasons_name():
    """Nine clients at 0 and one at 1, noise 0.01: the best point between them by calculus."""
    for q, loss, spread in ((1, 0.148, 0.361), (10, 0.239, 0.054)):
        x = np.linspace(0, 1, 100_001)
        near, far = 0.01 + x**2, 0.01 + (1 - x) ** 2
        best = np.argmin(9 * near ** (q + 1) + far ** (q + 1))
        assert (9 * near[best] + far[best]) / 10 == pytest.approx(loss, abs=5e-4)
        assert far[best] - near[best] == pytest.approx(spread, abs=5e-4)
        reason = focus.REASONS[f"published/qffl_{q}/synthetic/*"]
        assert f"{loss}" in reason
        assert f"{spread}" in reason
    # AFL's smallest largest loss is half-way, where all losses are 0.01 + 1/4
    assert "a loss of 0.260 and an FAA of 0" in focus.REASONS["published/afl/synthetic/*"]


def test_text_without_a_second_set_is_refused_by_the_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(focus.REVIEWS, raising=False)
    with pytest.raises(DataError, match="--reviews"):
        focus.run(focus._text_jobs(FULL)[0])
    monkeypatch.setenv(focus.REVIEWS, "/nowhere/reviews.csv")
    with pytest.raises(DataError, match="which is not a file"):
        focus._text_jobs(FULL)


def test_the_command_hands_the_named_set_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(focus.REVIEWS, "")  # put back afterwards
    monkeypatch.setenv(focus.ENCODER, "")
    with pytest.raises(DataError, match=r"'nowhere\.csv', which is not a file"):
        command(
            "focus", table="table1_text", quick=True, reviews=Path("nowhere.csv"),
            encoder="hashing:8",
        )  # fmt: skip
    monkeypatch.setenv(focus.REVIEWS, "")
    jobs = focus._text_jobs(FULL)
    assert {(job.column, job.settings["data"]["encoder"]) for job in jobs} == {
        ("text", "hashing:2048"), ("sentences", "hashing:8"),
    }  # fmt: skip


def test_sentences_are_a_column_where_an_encoder_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(focus.REVIEWS, "")
    monkeypatch.setenv(focus.ENCODER, "")
    for installed, columns in ((None, {"text"}), ("package:one", {"text", "sentences"})):
        monkeypatch.setattr(focus, "installed_encoder", lambda found=installed: found)
        assert {job.column for job in focus._text_jobs(FULL)} == columns
        # the quick version is the same on every machine
        assert {job.column for job in focus._text_jobs(replace(FULL, quick=True))} == {"text"}


def test_text_takes_the_set_that_is_named_and_keeps_its_checksum_not_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ["dull", "fine"]
    text = [f"{words[i % 2]} thing {i % 7}" for i in range(700)]
    reviews = tmp_path / "secret-name.csv"
    pd.DataFrame({"text": text, "label": [i % 2 for i in range(700)]}).to_csv(reviews, index=False)
    monkeypatch.setenv(focus.REVIEWS, str(reviews))
    monkeypatch.setenv(focus.ENCODER, "hashing:32")
    monkeypatch.setattr(imdb, "locate", lambda *_: reviews)
    whole = job(focus._text_jobs(replace(FULL, quick=True)), "focus", "text")
    assert whole.settings["reviews"] == checksum(reviews)
    assert "secret" not in json.dumps(whole.settings)
    small = {**whole.settings["data"], "examples": 60}
    found = focus.run(replace(whole, settings={**whole.settings, "data": small}))
    assert found.values["fedavg"]["accuracy"] > 0.9
    assert len(found.curves["focus"]) == 10
