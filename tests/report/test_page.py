from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import evenfed as ef
from evenfed.core.errors import ConfigError, RunFolderError
from evenfed.metrics.proportion import wilson
from evenfed.report import files
from evenfed.report.answers.chapter import Chapter
from evenfed.report.page import opened, page_of, render, sections, write_page
from evenfed.report.sections import Section
from evenfed.runs.config import DataConfig, parse
from evenfed.runs.folder import CELLS, CLIENTS, RESULT
from evenfed.runs.record import Record
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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: Path) -> tuple[str, _Checked]:
    text = page.read_text(encoding="utf-8")
    parser = _Checked()
    parser.feed(text)
    assert not parser.open
    return text, parser


def titles(page: Path) -> list[str]:
    return re.findall(r'<h[23] id="[^"]*">([^<]*)</h[23]>', page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "run"
    table = {"data": "loans", "rounds": 2, "method": "qffl", "evaluate_every": 1,
             "engine": {"engine": "vectorized"}}  # fmt: skip
    run_config(parse(table), folder)
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "s"
    ef.study(["fedavg", "qffl", "local", "fedprox:lr=1e38"], ["synthetic", "linear"], seeds=[0, 1],
             rounds=1, engine="vectorized", out=folder)  # fmt: skip
    return folder


def test_the_page_of_a_run_shows_what_was_measured(run: Path) -> None:
    text, _ = checked(write_page(run))
    measured = ef.resume(run).measured()
    for name in ("accuracy", "client_accuracy_min", "equalized_odds_difference"):
        low, high = measured["intervals"][name]
        said = f"{measured['metrics'][name]:.3f}\n({low:.3f} to {high:.3f})"
        assert f'<td class="span">{said}</td>' in text
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
    assert "torch" in text


def test_questions_are_answered_in_order(run: Path) -> None:
    assert titles(write_page(run)) == [
        "What was trained on what", "Is it good?", "Is it fair to clients?",
        "Is it fair to groups?", "What did it cost?", "What left the clients?",
        "How did it converge?", "All settings, seeds and versions",
    ]  # fmt: skip


def test_the_worst_client_is_named_with_its_interval(run: Path) -> None:
    clients = pd.read_parquet(run / CLIENTS)
    row = clients.loc[clients["accuracy"].idxmin()]
    low, high = wilson(row["accuracy"] * row["examples"], row["examples"]) or (0, 0)
    best = clients["accuracy"].idxmax()
    top = clients.loc[best]
    span = wilson(top["accuracy"] * top["examples"], top["examples"]) or (0, 0)
    text = write_page(run).read_text(encoding="utf-8")
    assert (
        f"The worst client, {row.name}, is right in {100 * row['accuracy']:.0f} % of cases "
        f"(interval {100 * low:.0f} to {100 * high:.0f}), the best, {best}, in "
        f"{100 * clients['accuracy'].max():.0f} % (interval {100 * span[0]:.0f} to "
        f"{100 * span[1]:.0f})."
    ) in text
    measured = json.loads((run / RESULT).read_text())
    spread = measured["metrics"]["client_accuracy_std"]
    low, high = measured["intervals"]["client_accuracy_std"]
    assert f"clients is {spread:.3f} (interval {low:.3f} to {high:.3f})." in text


def test_cells_with_few_examples_are_grey(run: Path) -> None:
    cells = pd.read_parquet(run / CELLS)
    section = next(s for s in page_of(opened(run)).parts[0].sections if s.key == "groups")
    grid = next(g for g in section.grids if g.key == "groups_by_client")
    assert len(grid.rows) == len(cells)
    few = cells["examples"] < 10
    assert few.any()
    assert not few.all()
    for i, ((client, group), cell) in enumerate(cells.iterrows()):
        assert list(grid.rows[i][1:4]) == [client, group, f"{cell['examples']:g}"]
        assert (grid.mark(i, 4) == "muted") == (cell["examples"] < 10)
        assert grid.rows[i][4].startswith(f"{cell['right'] / cell['examples']:.3f} (")
    # a rate among the positive is judged by their number, not by the cell's
    column = list(grid.head).index("true positive rate")
    assert [grid.mark(i, column) == "muted" for i in range(len(cells))] == list(
        cells["positive"] < 10
    )


def test_the_loss_of_a_group_has_the_interval_of_its_rows(run: Path) -> None:
    """Against the losses of single rows, which the simulator can see."""
    result = ef.resume(run)
    losses: dict[str, list[float]] = {}
    for i in range(len(result.data)):
        test = result.data.client(i).test
        found = result.method.task.losses(result.model()(test.x), test.y).detach().double()
        for code, label in enumerate(result.data.schema.groups.labels):
            losses.setdefault(label, []).extend(found[test.group == code].tolist())
    section = next(s for s in page_of(opened(run)).parts[0].sections if s.key == "groups")
    grid = next(g for g in section.grids if g.key == "groups")
    assert [row[1] for row in grid.rows] == list(losses)
    for row in grid.rows:
        rows = pd.Series(losses[row[1]])
        half = 1.959964 * rows.std() / len(rows) ** 0.5
        expected = (rows.mean(), rows.mean() - half, rows.mean() + half)
        shown = [float(text) for text in re.findall(r"[-\d.]+", row[-1])]
        assert shown == pytest.approx(expected, abs=6e-4)


def test_cells_add_up_to_the_groups(run: Path) -> None:
    cells = pd.read_parquet(run / CELLS)
    groups = json.loads((run / RESULT).read_text())["groups"]
    total = cells.groupby(level="group").sum()
    for group, row in total.iterrows():
        assert groups[group]["examples"] == row["examples"]
        assert groups[group]["accuracy"] == pytest.approx(row["right"] / row["examples"])
        assert groups[group]["loss"] == pytest.approx(row["loss"] / row["examples"])
        assert groups[group]["selection_rate"] == pytest.approx(row["selected"] / row["examples"])
        assert groups[group]["true_positive_rate"] == pytest.approx(row["found"] / row["positive"])


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    text, parser = checked(write_page(run))
    assert not {"link", "img", "iframe"} & {tag for tag, _ in parser.tags}
    links = [a[k] for _, a in parser.tags for k in ("src", "href") if k in a]
    assert links
    keys = {a["id"] for _, a in parser.tags if "id" in a}
    assert all(str(link)[0] == "#" and str(link)[1:] in keys for link in links)
    assert "url(" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text
    assert str(run.parent) not in text
    assert len(text.encode()) < 6_000_000


def test_every_figure_is_told_in_words(run: Path) -> None:
    _, parser = checked(write_page(run))
    drawings = [attributes for tag, attributes in parser.tags if tag == "svg"]
    assert len(drawings) >= 2 * 5
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 20 for a in drawings)


def test_the_page_of_a_study_marks_the_best_and_the_failed(study: Path) -> None:
    text, parser = checked(write_page(study))
    kinds = [a.get("class") for tag, a in parser.tags if tag == "td"]
    assert "best" in kinds
    assert "second" in kinds
    assert "Runs without a result" in text
    assert "fedprox on synthetic, seed 0" in text
    assert "constant predictor (reference)" in text
    assert "Mean over 2 seeds" in text
    assert "evenfed study s/study.toml --out NEW" in text


def test_a_study_of_one_seed_has_the_intervals_of_its_runs() -> None:
    study = ef.study(
        ["fedavg", "qffl"], ["synthetic"], seeds=[3], rounds=1, engine="vectorized", references=[]
    )
    grid = next(s for s in page_of(study).parts[0].sections if s.key == "good").grids[0]
    column = list(grid.head).index("accuracy ↑")
    for row, run in zip(grid.rows, study.runs, strict=False):
        assert run.measured is not None
        low, high = run.measured["intervals"]["accuracy"]
        value = run.measured["metrics"]["accuracy"]
        assert row[column] == f"{value:.3f}\n({low:.3f} to {high:.3f})"
    assert {"best span", "span"} == {grid.mark(i, column) for i in range(2)}
    assert "Accuracy: Wilson's" in grid.notes[-1]
    assert "**" in files.markdown(grid)
    assert "over seeds" in files.markdown(grid) + study.legend()


def test_a_study_draws_every_client_of_every_run(study: Path) -> None:
    for part, data in zip(page_of(opened(study)).parts, ("synthetic", "linear"), strict=True):
        section = next(s for s in part.sections if s.key.startswith("clients"))
        dots = next(f for f in section.figures if f.key == "clients")
        # fedavg, qffl, local and the reference centralized; two seeds; fedprox has no result
        assert [len(row.dots) for row in dots.rows] == [2 * len(ef.load(data))] * 4


def test_excess_is_over_the_lowest_loss_of_the_study(study: Path) -> None:
    part = page_of(opened(study)).parts[0]
    section = next(s for s in part.sections if s.key.startswith("clients"))
    bars = next(f for f in section.figures if f.key == "excess")
    losses = {}
    for method in ("fedavg", "qffl", "local", "centralized"):
        for seed in (0, 1):
            folder = study / "runs" / f"{method}-synthetic-{seed}"
            losses[method, seed] = pd.read_parquet(folder / CLIENTS)["loss"]
    for row in bars.rows:
        method = row.label.removesuffix(" (reference)")
        for client, value in zip(bars.categories, row.values, strict=True):
            gaps = [
                losses[method, s][client] - min(v[client] for (_, t), v in losses.items() if t == s)
                for s in (0, 1)
            ]
            assert value == pytest.approx(sum(gaps) / 2)
    assert "not over a model of the client" in " ".join(section.notes)


def test_excess_over_true_clusters_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    data = {"name": "digits", "clients": 3, "rotations": "0:2,90:1"}
    table = {"data": data, "rounds": 1, "excess": True, "engine": {"engine": "vectorized"}}
    result = run_config(parse(table), tmp_path / "run")
    section = next(s for s in page_of(opened(tmp_path / "run")).parts[0].sections
                   if s.key == "clients")  # fmt: skip
    bars = next(f for f in section.figures if f.key == "excess")
    assert list(bars.categories) == list(result.clients.index)
    values = list(bars.rows[0].values)
    assert max(values) - min(values) == pytest.approx(result.faa().faa)
    assert "true cluster" in bars.axis
    found = result.faa()
    said = f"differ by at most {found.faa:.3f} (mean accuracy {found.mean_accuracy:.3f})"
    assert said in " ".join(section.sentences)
    with pytest.raises(ConfigError, match="excess = true needs the true clusters"):
        run_config(parse({**table, "data": "loans"}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_loss_geometry_is_shown_where_it_was_measured(run: Path, tmp_path: Path) -> None:
    assert "Loss geometry" not in write_page(run).read_text(encoding="utf-8")
    table = {"data": "synthetic", "rounds": 1, "geometry": True, "engine": {"engine": "vectorized"}}
    result = run_config(parse(table), tmp_path / "run")
    text, _ = checked(write_page(tmp_path / "run"))
    means = result.geometry().mean()
    for name in ("sign_entropy", "flip_rate", "hessian_trace", "top_eigenvalue"):
        assert f"{means[name]:.3f}" in text


def test_a_report_from_python_is_that_of_the_folder(tmp_path: Path) -> None:
    table = {"data": "loans", "rounds": 1, "engine": {"engine": "vectorized"}}
    result = run_config(parse(table), tmp_path / "run")
    path = result.report(tmp_path / "own.html")
    assert path.read_text() == write_page(tmp_path / "run").read_text()
    without = ef.train("fedavg", "loans", rounds=1, engine="vectorized").report(tmp_path / "b.html")
    assert "no command rebuilds it" in without.read_text()


def test_a_study_without_a_folder_has_a_report(tmp_path: Path) -> None:
    found = ef.study(["fedavg", "local"], "synthetic", seeds=[0], rounds=1, engine="vectorized",
                     references=[])  # fmt: skip
    text, _ = checked(found.report(tmp_path / "s.html"))
    assert "Is it good?" in text


def test_a_regression_is_reported_by_its_loss(tmp_path: Path) -> None:
    path = ef.train("fedavg", "linear", rounds=1, engine="vectorized").report(tmp_path / "r.html")
    text, _ = checked(path)
    assert "Its mean loss on the test examples" in text
    assert "most frequent answer" not in text


def test_a_predicted_number_stands_beside_the_mean_with_intervals_by_group(tmp_path: Path) -> None:
    """By hand: the interval of a group's mean loss from its rows."""
    rng = np.random.default_rng(0)
    for name, n in {"a": 80, "b": 120}.items():
        frame = pd.DataFrame({"x": rng.normal(size=n), "sex": rng.choice(["f", "m"], n)})
        frame["pay"] = frame["x"] + (frame["sex"] == "m") + rng.normal(0, 0.1, n)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    data = ef.load_silos(f"{tmp_path}/*.csv", label="pay", sensitive="sex")
    result = ef.train("fedavg", data, rounds=5, engine="sequential", model="linear")
    found, record = result.summary(), result.record()
    text = " ".join(_section(record, "good").sentences)
    assert f"always giving the mean has {found['constant_mean_squared_error']:.3f}" in text
    (table,) = _section(record, "good").grids
    column = list(table.head).index("R² ↑")
    assert [row[0] for row in table.rows] == ["fedavg", "constant predictor (reference)"]
    error = list(table.head).index("mean squared error ↓")
    for row, name in zip(table.rows, ("", "constant_"), strict=True):
        around = result.intervals()[f"{name}mean_squared_error"]
        assert around.low < found[f"{name}mean_squared_error"] < around.high
        assert row[error].endswith(f"({around.low:.3f} to {around.high:.3f})")
    span = result.intervals()["r2"]
    shown = f"{found['r2']:.3f}\n({span.low:.3f} to {span.high:.3f})"
    assert [row[column] for row in table.rows] == [shown, "0.000"]
    groups = _section(record, "groups")
    module = result.model()
    losses = []
    for client in data:
        own = client.test.group == 1
        with torch.no_grad():
            said = module(client.test.x[own]).squeeze(-1)
        losses += [(said - client.test.y[own]).double() ** 2]
    loss = torch.cat(losses)
    half = 1.959964 * float(loss.std()) / len(loss) ** 0.5
    mean = float(loss.mean())
    assert groups.grids[0].rows[1][-1] == f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"
    assert [figure.key for figure in groups.figures] == ["loss", "mean_residual"]
    residual = result.groups.loc["m", "mean_residual"]
    assert residual > 0
    assert f"{residual:.3f} too little for m" in groups.sentences[1]
    offset, scale = data.schema.target
    rows = {}
    for client in data:
        with torch.no_grad():
            said = module(client.test.x).squeeze(-1).double()
        for group, sex in enumerate("fm"):
            at = client.test.group == group
            own = offset + scale * said[at], scale * (client.test.y[at].double() - said[at])
            rows[client.name, sex] = own
    for (client, sex), (said, left) in rows.items():
        (row,) = (r for r in groups.grids[1].rows if tuple(r[1:3]) == (client, sex))
        assert _near(row[4], said), "mean prediction by client and group"
        assert _near(row[5], left), "label minus prediction by client and group"
    said, left = (torch.cat([rows[c, "m"][i] for c in "ab"]) for i in range(2))
    assert list(groups.grids[0].head[3:5]) == ["mean prediction", "label minus prediction"]
    assert _near(groups.grids[0].rows[1][3], said)
    assert _near(groups.grids[0].rows[1][4], left)
    span = next(s for s in groups.figures[1].spans if s.part == "m")  # type: ignore[union-attr]
    assert (span.low, span.high) == pytest.approx(_mean_span(left)[1:], abs=1e-4)
    (worst,) = _section(record, "clients").grids
    assert all(" to " in row[3] for row in worst.rows)


def test_a_run_of_numbers_that_kept_fewer_sums_has_a_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=90), "sex": rng.choice(["f", "m"], 90)})
    for name in "ab":
        own = frame.assign(pay=frame["x"] + rng.normal(size=90))
        own.to_csv(tmp_path / f"{name}.csv", index=False)
    data = ef.load_silos(f"{tmp_path}/*.csv", label="pay", sensitive="sex", features="x")
    record = ef.train("fedavg", data, rounds=1, engine="sequential", model="linear").record()
    assert record.cells is not None
    assert record.measured is not None
    later = [c for c in record.cells if c.startswith(("prediction", "residual"))]
    assert len(later) == 4
    known = {
        k: v for k, v in record.measured["intervals"].items() if k in ("loss", "client_loss_max")
    }
    measured = {**record.measured, "intervals": known}
    old = replace(record, cells=record.cells.drop(columns=later), measured=measured)
    groups = _section(old, "groups")
    assert groups.grids[0].rows[0][3] == f"{measured['groups']['f']['mean_prediction']:.3f}"
    assert list(groups.grids[1].head[3:]) == ["test examples", "loss"]
    assert render(page_of(old))


def _mean_span(values: torch.Tensor) -> tuple[float, float, float]:
    mean, half = float(values.mean()), 1.959964 * float(values.std()) / len(values) ** 0.5
    return mean, mean - half, mean + half


def _near(text: str, values: torch.Tensor) -> bool:
    """Whether a cell shows the mean of rows with its normal interval."""
    shown = [float(part) for part in re.findall(r"-?[\d.]+", text)]
    return shown == pytest.approx(_mean_span(values), abs=6e-4)


def test_commands_are_quoted_and_say_where_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("my runs", "a")
    run_config(parse({"data": "synthetic", "rounds": 1}), out)
    settings = page_of(Record.read(out)).settings
    commands = dict(settings.pre)
    assert commands["To rebuild it"] == "evenfed run 'my runs/a/config.toml' --out NEW"
    assert commands["This page again"] == "evenfed report 'my runs/a'"
    assert "in the folder that holds my runs" in settings.sentences[0]
    text = render(page_of(Record.read(out)))
    assert "local (reference)" in text


@pytest.mark.parametrize(("every", "said"), [(5, "= 5` and 2 rounds"), (0, "= 0` and")])
def test_a_run_too_short_for_curves_says_so_and_keeps_the_order(
    tmp_path: Path, every: int, said: str
) -> None:
    table = {"data": "loans", "rounds": 2, "method": "pffl", "evaluate_every": every}
    run_config(parse(table), tmp_path / "run")
    record = Record.read(tmp_path / "run")
    assert said in _section(record, "converged").sentences[0]
    keys = [s.key for s in sections(Chapter("loans", [record]))]
    assert keys.index("ledger") < keys.index("converged") < keys.index("certificates")
    text = render(page_of(record))
    assert "<code>--set evaluate_every=1</code> looks every round" in text


def test_the_data_are_named_in_plain_words(run: Path) -> None:
    facts = dict(_section(Record.read(run), "trained").facts)
    assert facts["data"].startswith("Mortgage applications in Boston")


def test_names_are_escaped(run: Path) -> None:
    record = Record.read(run)
    assert record.clients is not None
    clients = record.clients.rename(lambda name: f"<b>{name}&</b>")
    object.__setattr__(record, "clients", clients)
    text = render(page_of(record))
    assert "<b>" not in text
    assert re.search(r"&lt;b&gt;client-\d&amp;&lt;/b&gt;", text)


def test_a_run_that_is_not_finished_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no folder"):
        write_page(tmp_path / "none")
    (tmp_path / "config.toml").write_text("rounds = 3")
    with pytest.raises(RunFolderError, match="not finished"):
        write_page(tmp_path)


def test_sections_of_an_unfinished_run_come_from_its_history(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "history.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    found = sections(Chapter("loans", [Record.read(tmp_path)]))
    assert [section.key for section in found][:1] == ["converged"]
    assert found[0].figures[0].lines[0].x == [1, 2]


def _few(run: Path, group: str) -> Record:
    """The run as if a group had three test examples and nobody were tested less often right."""
    record = Record.read(run)
    measured = json.loads(json.dumps(record.measured))
    measured["groups"][group] |= {"examples": 3.0, "accuracy": 0.0, "selection_rate": 0.0}
    return replace(record, measured=measured)


def test_sentences_say_on_how_few_examples_they_rest(run: Path) -> None:
    said = _section(_few(run, "black"), "groups").sentences
    assert "0 % of black (3 test examples, interval" in said[0]
    assert "of white (interval" in said[0]
    assert said[1].endswith("(rests on black, 3 test examples).")
    assert said[2] == "It is least often right for black: in 0 % of cases (3 test examples)."
    assert "test examples" not in " ".join(_section(Record.read(run), "groups").sentences)


def test_the_favourable_prediction_is_named(run: Path) -> None:
    record = Record.read(run)
    assert record.measured is not None
    assert record.measured["task"]["class_names"] == ["refused", "approved"]
    section = _section(record, "groups")
    assert section.sentences[0].startswith("The prediction decision = approved goes to ")
    assert "Selection rate: the share for which decision = approved is predicted." in section.notes
    assert "predict decision (refused or approved)" in _section(record, "trained").sentences[0]


def test_a_run_that_did_not_record_class_names_takes_them_from_its_settings(run: Path) -> None:
    record = Record.read(run)
    measured = json.loads(json.dumps(record.measured))
    del measured["task"]["class_names"]
    older = replace(record, measured=measured)
    said = _section(older, "groups").sentences[0]
    assert said.startswith("The positive prediction of decision goes to ")
    assert "predict decision (two classes)" in _section(older, "trained").sentences[0]
    data = DataConfig.model_validate({**record.config.data.model_dump(), "classes": ["no", "yes"]})
    named = replace(older, config=record.config.model_copy(update={"data": data}))
    said = _section(named, "groups").sentences[0]
    assert said.startswith("The prediction decision = yes goes to ")


def test_the_worst_tail_is_left_out_where_it_is_the_worst_client(run: Path) -> None:
    record = Record.read(run)
    measured = json.loads(json.dumps(record.measured))
    shown = _section(record, "good").grids[0].head
    assert "worst client ↑" in shown
    assert not any("% of clients" in name for name in shown)
    measured["metrics"]["clients"] = 20.0
    many = replace(record, measured=measured)
    shown = _section(many, "good").grids[0].head
    assert "worst 10 % of clients ↑" in shown


def test_a_study_says_of_how_many_clients_and_examples_its_worst_one_is(study: Path) -> None:
    page = page_of(opened(study))
    section = next(s for s in page.parts[0].sections if s.key.startswith("clients"))
    frames = [pd.read_parquet(f / CLIENTS) for f in (study / "runs").glob("*-synthetic-*")
              if (f / CLIENTS).is_file()]  # fmt: skip
    totals = {int(frame["examples"].sum()) for frame in frames}
    assert {len(frame) for frame in frames} == {3}
    assert len(totals) == 1, "seeds deal data of one size here"
    assert section.sentences[0].startswith(f"Of 3 clients with {totals.pop():,} test examples, ")
    method = re.search(r"fares best with (\w+):", section.sentences[0])
    assert method is not None
    sizes = []
    for seed in (0, 1):
        frame = pd.read_parquet(study / "runs" / f"{method[1]}-synthetic-{seed}" / CLIENTS)
        sizes.append(frame.loc[frame["accuracy"].idxmin(), "examples"])
    low, high = min(sizes), max(sizes)
    words = f"{low} test examples" if low == high else f"{low} to {high} test examples"
    assert f"mean over seeds ({words})" in section.sentences[0]


def test_a_client_without_test_examples_is_listed(run: Path) -> None:
    record = Record.read(run)
    assert record.clients is not None
    clients = record.clients.copy()
    clients.loc["client-1", "examples"] = 0
    clients.loc["client-1", ["accuracy", "loss"]] = float("nan")
    section = _section(replace(record, clients=clients), "clients")
    assert "No test examples, so nothing is known here of: client-1." in section.sentences
    assert section.grids[0].rows[-1][1:3] == ["client-1", "no test examples"]
    assert "No test examples" not in " ".join(_section(record, "clients").sentences)


def _section(record: Record, key: str) -> Section:
    return next(s for s in sections(Chapter("loans", [record])) if s.key == key)
