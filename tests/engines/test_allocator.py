"""Freed memory stays with the process, within a limit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from evenfed.engines.allocator import keep_freed_memory

FAULTS = """
import resource, sys, torch
from evenfed.engines.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def touch():
    held = [torch.ones(2 << 20) for _ in range(8)]  # 8 MB each
touch(); touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")


def faults(how: str) -> int:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    out = subprocess.run(
        [sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True, env=env
    )
    return int(out.stdout)


@glibc
def test_pages_are_not_handed_back_between_steps() -> None:
    assert faults("keep") * 4 < faults("plain")


def test_a_threshold_of_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    keep_freed_memory.cache_clear()
    assert not keep_freed_memory()
    keep_freed_memory.cache_clear()
