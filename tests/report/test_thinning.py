"""A page that would be too large shows less, in fixed steps, and says so."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import evenfed as ef
from evenfed.report.charts import Lines
from evenfed.report.page import page_of, render
from evenfed.report.sections import Page, Section
from evenfed.report.thinning import LIMIT, STEPS, curves
from evenfed.runs.comparison import Study, StudyRun
from evenfed.runs.plan import parse_study
from evenfed.runs.record import Record

CLIENTS = 300


@pytest.fixture(scope="module")
def record() -> Record:
    """One small run, blown up below: nothing large is trained."""
    return ef.train("fedavg", "loans", rounds=1, evaluate_every=1, engine="vectorized").record()


def large(record: Record, methods: int, rounds: int) -> Page:
    """A study of many methods, two seeds, hundreds of clients and as many rounds as asked for."""
    rng = np.random.default_rng(0)
    assert record.clients is not None
    assert record.cells is not None
    assert record.measured is not None
    names = [f"client-{i}" for i in range(CLIENTS)]
    clients = pd.concat([record.clients.iloc[:1]] * CLIENTS)
    clients.index = pd.Index(names, name="client")
    clients["accuracy"] = rng.uniform(0.5, 1.0, CLIENTS)
    one = record.cells.loc[record.cells.index[0][0]]
    cells = pd.concat([one] * CLIENTS, keys=names, names=["client"])
    line = record.history[0]
    values = rng.uniform(size=rounds)
    history = [{**line, "round": t, "val_accuracy": values[t], "val_loss": values[-t]}
               for t in range(rounds)]  # fmt: skip
    labels = [f"method-{i}" for i in range(methods)]
    runs = []
    for label in labels:
        for seed in (0, 1):
            config = record.config.model_copy(update={"seed": seed})
            own = replace(record, method=label, config=config, history=history, clients=clients,
                          cells=cells)  # fmt: skip
            runs.append(StudyRun(label, "loans", seed, dict(record.measured), record=own))
    config = parse_study({"methods": "fedavg", "datasets": "loans", "references": []})
    return page_of(Study(config, runs))


def test_a_large_page_is_below_the_limit_and_says_what_it_leaves_out(record: Record) -> None:
    page = large(record, methods=12, rounds=4000)
    whole = render(page, limit=10**9)
    assert len(whole.encode()) > LIMIT == 6_000_000
    assert 'id="thinned"' not in whole
    text = render(page)
    assert len(text.encode()) <= LIMIT
    note = re.search(r'id="thinned">([^<]*)<', text)
    assert note is not None
    assert note[1].startswith("To stay below 6 MB this page shows less than the runs hold: curves")
    assert "evenfed report DIR --figures svg --tables csv" in note[1]
    # what is said in words, and the figures compared, stay
    for section in page.parts[0].sections:
        assert section.title in text
    grid = next(s for s in page.parts[0].sections if s.key == "good").grids[0]
    for row in grid.rows:
        assert f'<th scope="row">{row[0]}</th>' in text


def test_a_page_that_fits_is_left_alone(record: Record) -> None:
    page = large(record, methods=1, rounds=3)
    text = render(page)
    assert text == render(page, limit=10**9)
    assert len(text.encode()) < LIMIT


@pytest.mark.parametrize("share", [0.8, 0.5, 0.25])
def test_no_more_is_left_out_than_must_be(record: Record, share: float) -> None:
    """The page that was refused, one step before, is larger than the limit."""
    page = large(record, methods=2, rounds=600)
    limit = round(share * len(render(page, limit=10**9).encode()))
    text = render(page, limit=limit)
    assert len(text.encode()) <= limit
    taken = [step for step in STEPS if step.words in text]
    before = page
    for step in STEPS[: STEPS.index(taken[-1])]:
        parts = [replace(p, sections=[step.thin(s) for s in p.sections]) for p in before.parts]
        assert step in taken or parts == list(before.parts), "a step was passed over"
        before = replace(before, parts=parts)
    assert len(render(before, limit=10**9).encode()) > limit


def test_a_thinned_curve_keeps_its_ends_and_its_order(record: Record) -> None:
    page = large(record, methods=1, rounds=1000)
    section: Section = next(s for s in page.parts[0].sections if s.key == "converged")
    thin = curves(40)(section)
    for a, b in zip(section.figures, thin.figures, strict=True):
        assert isinstance(a, Lines)
        assert isinstance(b, Lines)
        old, new = a.lines[0], b.lines[0]
        assert len(new.x) == len(new.y) == 40
        assert (new.x[0], new.x[-1]) == (old.x[0], old.x[-1])
        assert list(new.x) == sorted(new.x)
        by_round = dict(zip(old.x, old.y, strict=True))
        assert [by_round[t] for t in new.x] == list(new.y)
    assert curves(1000)(section) is section


def test_a_cut_table_says_how_many_rows_are_missing(record: Record) -> None:
    page = large(record, methods=1, rounds=3)
    section = next(s for s in page.parts[0].sections if s.key == "groups")
    whole = next(g for g in section.grids if g.key == "groups_by_client")
    thin = next(
        g for g in STEPS[1].thin(section).grids if g.key == "groups_by_client"
    )  # fmt: skip
    assert len(thin.rows) == len(thin.marks) == 100
    assert list(thin.rows) == list(whole.rows[:100])
    assert f"{len(whole.rows) - 100} more rows left out." in thin.notes
    assert thin.folded == f"The first 100 rows of {len(whole.rows)}"


def test_what_cannot_be_made_small_enough_says_how_large_it_is(record: Record) -> None:
    page = large(record, methods=1, rounds=3)
    text = render(page, limit=1000)
    assert "<svg" not in text
    assert re.search(r"It is still \d+\.\d MB\.", text)
