"""Where a result or a study asks for its report.

The report stands above this folder and reads it; no module here may import it. So what makes a
report is named here and found when it is asked for, as a plugin would be.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

WRITER = "evenfed.report.page:write_report"
"""Takes what is reported, a `Record` or a `Study`, and the file's path; returns that path."""


def write(what: object, path: Path | str) -> Path:
    """Write the report of a record or a study as one HTML file."""
    module, _, name = WRITER.partition(":")
    writer: Callable[[object, Path], Path] = getattr(importlib.import_module(module), name)
    return writer(what, Path(path))
