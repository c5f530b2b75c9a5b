"""A certificate is kept with the results of a run and shown on its page."""

from __future__ import annotations

from pathlib import Path

import evenfed as ef
from evenfed.report.page import write_page
from evenfed.runs.config import parse
from evenfed.runs.folder import RunFolder
from evenfed.runs.run_text import run_text
from evenfed.runs.train import run_config


def test_a_certificate_is_stored_and_shown(tmp_path: Path) -> None:
    config = {
        "data": "synthetic", "rounds": 1, "model": "logistic",
        "method": {"name": "pffl", "zeta": 0.3},
    }  # fmt: skip
    result = run_config(parse(config), tmp_path / "run")
    assert result.certificate is not None
    stored = RunFolder.open(tmp_path / "run").result()
    assert stored["certificate"] == result.certificate.table()
    assert stored["certificate"]["status"] == "infeasible"
    first = result.certificate.sentences()[0]
    assert first.startswith("Achievable at all")
    assert first in write_page(tmp_path / "run").read_text(encoding="utf-8")
    assert first in run_text(stored)


def test_most_methods_have_none() -> None:
    assert ef.train("fedavg", "synthetic", rounds=1).certificate is None
