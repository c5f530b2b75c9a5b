"""What methods write down on their way, for the panels of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import evenfed as ef
from evenfed.runs.config import parse
from evenfed.runs.folder import RunFolder
from evenfed.runs.runner import Silent
from evenfed.runs.train import resume, run_config

METHODS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "fedeba": ({"local": {"lr": 0.05}}, ("weights", "fair_angle")),
    "focus": ({"m": 2}, ("cluster_shares", "effective_clusters")),
    "pffl": ({"zeta": 0.3, "certify": {"solve": False}}, ("multipliers", "group_losses")),
}


class Breaks(Silent):
    """Ends a run after its third round, between two checkpoints."""

    def round_done(self, line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", METHODS)
def test_what_is_recorded_survives_a_break_to_the_last_bit(name: str, tmp_path: Path) -> None:
    options, noted = METHODS[name]
    config = parse(
        {
            "data": {"name": "synthetic", "examples": 300, "test_examples": 150},
            "method": {"name": name, **options}, "model": "logistic", "rounds": 4,
            "checkpoint_every": 2, "evaluate_every": 0, "engine": {"engine": "vectorized"},
        }
    )  # fmt: skip
    run_config(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_config(config, tmp_path / "broken", Breaks())
    resume(tmp_path / "broken")
    whole, broken = (RunFolder(tmp_path / part) for part in ("whole", "broken"))
    for a, b in zip(whole.history(), broken.history(), strict=True):
        assert set(noted) <= set(a)
        assert {k: v for k, v in a.items() if k != "seconds"} == {
            k: v for k, v in b.items() if k != "seconds"
        }
    assert whole.result()["diagnostics"] == broken.result()["diagnostics"]
    json.dumps([whole.history(), whole.result()["diagnostics"]], allow_nan=False)


def test_labels_of_a_large_federation_are_not_kept_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evenfed.methods.focus.NOTED_CLIENTS", 2)
    data = ef.load("synthetic", seed=0, examples=300, test_examples=150)
    found = ef.train("focus", data, rounds=1, m=2, engine="vectorized").measured()["diagnostics"]
    assert "memberships" not in found
    assert sum(found["cluster_shares"]) == pytest.approx(1)


def test_local_bounds_leave_no_multiplier_at_the_server() -> None:
    data = ef.load("synthetic", seed=0, examples=300, test_examples=150)
    result = ef.train("pffl", data, rounds=2, zeta=0.3, scope="local", model="logistic",
                      engine="vectorized", **{"certify.solve": False})  # fmt: skip
    assert not {"multipliers", "group_losses"} & set(result.history.columns)
    assert result.measured()["diagnostics"]["multipliers"] == [0.0, 0.0]


def test_a_bound_that_is_none_is_null() -> None:
    data = ef.load("synthetic", seed=0, examples=300, test_examples=150)
    result = ef.train("pffl", data, rounds=1, zeta=(0.3, float("inf")), model="logistic",
                      engine="vectorized", **{"certify.solve": False})  # fmt: skip
    found = result.measured()["diagnostics"]
    assert found["bounds"] == [0.3, None]
    assert result.history["group_losses"].iloc[0][1] is None
    json.dumps(found, allow_nan=False)
