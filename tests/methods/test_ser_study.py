"""The study of SER: what a kept run may answer for, and the controls of every form."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evenfed.core import regularizer

FILE = Path(__file__).parents[2] / "benchmarks" / "ser_study.py"


@pytest.fixture
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ser_study", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Change = Callable[[ModuleType, pytest.MonkeyPatch], Any]
CHANGES: dict[str, Change] = {
    "an option of the arm": lambda s, m: s.ARMS["step 0.3"].update({"ser.rho": 0.2}),
    "one more option": lambda s, m: s.ARMS["step 0.3"].update({"ser.kappa": 2.0}),
    "an option of the method": lambda s, m: s.ARMS["step 0.3"].update({"mu": 0.1}),
    "the rounds": lambda s, m: m.setattr(s, "ROUNDS", 26),
    "the rate": lambda s, m: m.setattr(s, "RATE", 0.1),
    "the steps": lambda s, m: s.REGIMES["mini"].update({"steps": 9}),
    "the batch": lambda s, m: s.REGIMES["mini"].update({"batch": 32}),
    "the clients": lambda s, m: s.DATA["mnist"].update({"kept": 19}),
    "the labels": lambda s, m: m.setattr(s, "ALPHA", 0.5),
    "the model": lambda s, m: m.setattr(s, "HIDDEN", (32,)),
    "the measures": lambda s, m: s.MEASURED.update({"probes": 31}),
    "the target": lambda s, m: m.setattr(s, "TARGET", 0.7),
    "a default of the method": lambda s, m: m.setattr(regularizer, "usual_measure", _plain),
}


def _plain(axis: str) -> str:
    return "entropy"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_run_has_another_key(
    change: Change, study: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = study.key_of("mnist", "mini", "step 0.3", 0)
    assert study.key_of("mnist", "mini", "step 0.3", 0) == before
    change(study, monkeypatch)
    assert study.key_of("mnist", "mini", "step 0.3", 0) != before


def test_seed_data_batches_and_matched_form_have_keys_of_their_own(study: ModuleType) -> None:
    runs = [
        ("mnist", "mini", "step 0.3, rate", 0), ("mnist", "mini", "step 0.3, rate", 1),
        ("mnist", "full", "step 0.3, rate", 0), ("digits", "mini", "step 0.3, rate", 0),
        ("mnist", "mini", "step 0.3, entropy, rate", 0), ("mnist", "mini", "none", 0),
    ]  # fmt: skip
    assert len({study.key_of(*run) for run in runs}) == len(runs)


def test_only_random_controls_of_one_strength_share_a_run(study: ModuleType) -> None:
    names: dict[str, list[str]] = {}
    for arm in study.ARMS:
        names.setdefault(study.key_of("mnist", "mini", arm, 0), []).append(arm)
    shared = [arms for arms in names.values() if len(arms) > 1]
    at_steps = ("step 0.3", "step 0.3, entropy", "step 0.3, coordinates")
    assert shared == [[f"{form}, random" for form in at_steps]]


def test_a_kept_run_answers_only_for_its_own_options(
    study: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[dict[str, Any]] = []

    def measure(name: str, data: Any, seed: int, options: dict[str, Any]) -> dict[str, float]:
        measured.append(options)
        return {"local_mean": float(len(measured))}

    arms = {"none": {"ser.rho": 0.0}, "step": {"ser.when": "step", "ser.rho": 0.3}}
    for name, value in {
        "RESULTS": tmp_path, "ARMS": arms, "measure": measure, "dataset": lambda *_: [1],
    }.items():  # fmt: skip
        monkeypatch.setattr(study, name, value)
    first = study.finished("digits", "mini", [0, 1])
    assert len(measured) == 4
    assert study.finished("digits", "mini", [0, 1]) == first
    assert len(measured) == 4
    arms["step"]["ser.rho"] = 0.1
    again = study.finished("digits", "mini", [0, 1])
    assert [m["ser.rho"] for m in measured[4:]] == [0.1, 0.1]
    assert again["step", 0] != first["step", 0]
    assert again["none", 0] == first["none", 0]
    assert len(json.loads((tmp_path / "ser_digits_mini.json").read_text())) == 6


def test_every_form_has_controls_of_its_own_length(study: ModuleType) -> None:
    assert {"step 0.3", "step 0.3, entropy", "step 0.3, coordinates"} <= set(study.FORMS)
    for form, options in study.FORMS.items():
        shrink, rate = (study.ARMS[f"{form}, {control}"] for control in ("shrink", "rate"))
        assert shrink == {**options, "ser.control": "shrink"}
        assert rate == {"ser.rho": 0.0, "matched": options}
        if "ser.mode" not in options:
            random = study.ARMS[f"{form}, random"]
            assert random["ser.control"] == "random"
            assert all(random[key] == options[key] for key in ("ser.when", "ser.rho"))
    among = study.resolved(study.ARMS["step 0.3, coordinates"])["local"]["ser"]
    assert (among["axis"], among["objective"]) == ("coordinates", "entropy")
    among = study.resolved(study.ARMS["step 0.3, coordinates, js"])["local"]["ser"]
    assert (among["axis"], among["objective"]) == ("coordinates", "js")


def test_a_form_is_compared_with_each_of_its_own_controls(study: ModuleType) -> None:
    """Arm number `i` has `i^2` everywhere, so that no two pairs of arms have one difference."""
    runs = {
        (arm, seed): dict.fromkeys(study.COLUMNS, float(i * i + seed))
        for i, arm in enumerate(study.ARMS)
        for seed in (0, 1)
    }
    place = {arm: i for i, arm in enumerate(study.ARMS)}
    pairs = [
        (form, control)
        for form, options in study.FORMS.items()
        for control in ("random", "shrink", "rate")
        if control != "random" or "ser.mode" not in options
    ]
    lines = study.beyond(runs, [0, 1]).splitlines()[2:]
    assert len(lines) == len(pairs)
    for line, (form, control) in zip(lines, pairs, strict=True):
        expected = place[form] ** 2 - place[f"{form}, {control}"] ** 2
        assert line.startswith(f"| {form} less {control} | ")
        assert re.findall(r"([+-]\d+\.\d+) ± 0", line)[0] == f"{expected:+.3f}"
