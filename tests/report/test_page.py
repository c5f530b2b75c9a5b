from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

import evenfed as ef
from evenfed.core.errors import ConfigError, RunFolderError
from evenfed.report.page import write_page
from evenfed.runs.config import parse
from evenfed.runs.folder import CLIENTS
from evenfed.runs.train import run_config

VOID = {"meta", "br", "hr", "img", "input", "link"}


class _Checked(HTMLParser):
    """Collects tags and refuses those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: Path) -> tuple[str, _Checked]:
    text = page.read_text(encoding="utf-8")
    parser = _Checked()
    parser.feed(text)
    assert not parser.open
    return text, parser


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "run"
    table = {"data": "loans", "rounds": 2, "method": "qffl", "engine": {"engine": "vectorized"}}
    run_config(parse(table), folder)
    return folder


def test_the_page_of_a_run_shows_what_was_measured(run: Path) -> None:
    text, _ = checked(write_page(run))
    measured = ef.resume(run).measured()
    for name in ("accuracy", "client_accuracy_min", "equalized_odds_difference"):
        assert f"{measured['metrics'][name]:.3f}" in text
    assert "q-FFL (q-FedAvg) on loans" in text
    worst = pd.read_parquet(run / CLIENTS)["accuracy"].idxmin()
    assert f"<td>{worst}</td>" in text
    for group in ("black", "hispanic", "white"):
        assert f"<td>{group}</td>" in text
    assert "loss of the received model on the training data" in text
    assert "sum of squared deviations" in text
    assert "not whether a loan was paid back" in text
    assert "evenfed run run/config.toml --out NEW" in text
    assert "lr = 0.1" in text


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    text, parser = checked(write_page(run))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in parser.tags}
    assert not any(key in ("src", "href") for _, attributes in parser.tags for key in attributes)
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text
    assert str(run.parent) not in text


def test_the_page_of_a_study_marks_the_best_and_the_failed(tmp_path: Path) -> None:
    ef.study(["fedavg", "local", "fedprox:lr=1e38"], ["synthetic", "linear"], seeds=[0, 1],
             rounds=1, engine="vectorized", out=tmp_path / "s")  # fmt: skip
    text, parser = checked(write_page(tmp_path / "s"))
    assert ("td", {"class": "best"}) in parser.tags
    assert "Runs without a result" in text
    assert "fedprox on synthetic, seed 0" in text
    assert "constant predictor (reference)" in text
    assert "Mean over 2 seeds" in text
    circles = [attributes for tag, attributes in parser.tags if tag == "circle"]
    # fedavg, local and the reference centralized; two seeds; fedprox has no result
    assert len(circles) == 3 * 2 * (len(ef.load("synthetic")) + len(ef.load("linear")))
    assert all(150 <= float(c["cx"] or 0) <= 580 for c in circles)
    assert "evenfed study s/study.toml --out NEW" in text


def test_loss_geometry_is_shown_where_it_was_measured(run: Path, tmp_path: Path) -> None:
    assert "Loss geometry" not in write_page(run).read_text(encoding="utf-8")
    table = {"data": "synthetic", "rounds": 1, "geometry": True, "engine": {"engine": "vectorized"}}
    result = run_config(parse(table), tmp_path / "run")
    text, _ = checked(write_page(tmp_path / "run"))
    means = result.geometry().mean()
    for name in ("sign_entropy", "flip_rate", "hessian_trace", "top_eigenvalue"):
        assert f"<td>{means[name]:.3f}</td>" in text
    with pytest.raises(ConfigError, match="mean of its 2 models"):
        run_config(parse({**table, "method": "focus"}), tmp_path / "focus")
    assert not (tmp_path / "focus").exists()


def test_names_are_escaped(run: Path) -> None:
    clients = pd.read_parquet(run / CLIENTS)
    clients.index = pd.Index([f"<b>{name}&</b>" for name in clients.index], name="client")
    clients.to_parquet(run / CLIENTS)
    text, parser = checked(write_page(run))
    assert "b" not in {tag for tag, _ in parser.tags}
    assert re.search(r"&lt;b&gt;client-\d&amp;&lt;/b&gt;", text)


def test_a_run_that_is_not_finished_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no folder"):
        write_page(tmp_path / "none")
    (tmp_path / "config.toml").write_text("rounds = 3")
    with pytest.raises(RunFolderError, match="not finished"):
        write_page(tmp_path)
