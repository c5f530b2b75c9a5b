"""Losses by group under partial participation and missing replies."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import evenfed as ef
from evenfed.core.errors import ConfigError, QuorumError
from evenfed.engines.exchange import Dropped
from evenfed.methods.group_loss import Cells, bounds, counted, risks
from evenfed.methods.multipliers import Multipliers
from evenfed.methods.pffl import PFFL
from evenfed.report.answers.chapter import Chapter
from evenfed.report.page import sections

ALL = torch.tensor([True, True, True])


def sums(*pairs: tuple[float, float]) -> dict[str, torch.Tensor]:
    return dict(zip(("sums", "counts"), torch.tensor(pairs, dtype=torch.float64).T, strict=True))


def test_a_group_that_nobody_of_the_cohort_has_gets_the_mean_of_the_others() -> None:
    found = sums((2.0, 4.0), (0.0, 0.0), (6.0, 4.0))
    assert risks(found, ALL).tolist() == [0.5, 1.0, 1.5]


def test_where_no_group_is_seen_nothing_moves() -> None:
    found = risks(sums((0.0, 0.0), (0.0, 0.0), (3.0, 2.0)), torch.tensor([True, True, False]))
    assert found.tolist() == [0.0, 0.0, 0.0]


def test_counts_of_all_clients_or_none() -> None:
    gone = Dropped(1, "Ulm", "did not answer")

    def mean(*args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(dropped=(gone,), value={"counts": ALL}, clients=[0])

    federation: Any = SimpleNamespace(mean=mean, everyone=[0, 1])
    with pytest.raises(QuorumError, match="'Ulm' did not answer"):
        counted(federation, lambda *parts: ({}, ()))


def test_no_bounded_group_means_no_multiplier() -> None:
    kind = Multipliers("exponentiated", 10.0, slack=False)
    assert kind.of(torch.zeros(3), ~ALL).tolist() == [0.0, 0.0, 0.0]


def test_whole_numbers_are_bounds_and_what_is_no_number_is_not() -> None:
    assert bounds(Cells(2, 1), 1, (), "pffl").tolist() == [1.0, 1.0]
    for wrong in (math.nan, -math.inf):
        with pytest.raises(ConfigError, match="zeta must be numbers"):
            bounds(Cells(2, 1), wrong, (), "pffl")


def test_history_says_nothing_of_groups_that_were_not_seen() -> None:
    """One client a round, and a group that a single client has."""
    data = ef.load("synthetic", seed=0, examples=300, test_examples=90)
    alone = [
        ef.data.dataset.ClientData(c.name, *(part(p, i) for p in (c.train, c.val, c.test)))
        for i, c in enumerate(data)
    ]
    some = ef.FederatedDataset(data.schema, alone)
    result = ef.train(
        PFFL(zeta=0.5), some, rounds=4, evaluate_every=0, engine="vectorized",
        participation=ef.Participation(number=1),
    )  # fmt: skip
    losses = [line["group_losses"] for line in result._runner.history]
    assert any(None in line for line in losses)
    assert all(value is None or math.isfinite(value) for line in losses for value in line)


def part(examples: Any, client: int) -> Any:
    """All of group 1, but for the first client's, who are of group 0."""
    return replace(examples, group=torch.full_like(examples.group, int(client > 0)))


@pytest.mark.parametrize(
    ("options", "exchanges", "sent"),
    [
        ({}, 2, set()),
        ({"sums": "piggyback"}, 1, {("train", "sums"), ("train", "counts")}),
        ({"scope": "local"}, 1, set()),
    ],
)
def test_the_ledger_is_of_the_form_that_is_run(
    options: dict[str, Any], exchanges: int, sent: set[tuple[str, str]]
) -> None:
    """Against the exchanges that are made, of which the second round has no count of groups."""
    method = PFFL(**options)
    result = ef.train(method, "synthetic", rounds=2, engine="vectorized")
    assert method.exchanges == exchanges == result.history["exchanges"].iloc[1]
    trained = {(r.function, r.part) for r in method.reveals if r.function == "train"}
    assert trained == {("train", "update"), *sent}
    by_group = [r for r in method.reveals if r.function == "group_losses"]
    assert all(("for a certificate" in r.meaning) == (exchanges == 1) for r in by_group)
    assert len(by_group) == 2
    assert {r.part for r in PFFL.reveals if r.function == "train"} == {"update", "sums", "counts"}
    text = " ".join(result.measured()["ledger"])
    assert ("piggyback" in text) == bool(sent)
    said = next(s for s in sections(Chapter("x", [result.record()])) if s.key == "ledger")
    assert [row[0] for row in said.grids[0].rows].count("pffl") == len(method.reveals)
