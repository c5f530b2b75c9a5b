"""Run all benchmarks (or those named), print a table, write JSON.

python -m benchmarks [small limit cnn memory population start front]
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measures import MEASURES, Row


def main() -> None:
    wanted = sys.argv[1:] or list(MEASURES)
    unknown = set(wanted) - set(MEASURES)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MEASURES)}")
    rows: list[Row] = []
    for name in wanted:
        print(f"measuring {name} ...", file=sys.stderr)
        rows += MEASURES[name]()
    table = Table(title="Evenfed, ratios measured in one run")
    for column in ("measure", "value", "target", "met"):
        table.add_column(column)
    for row in rows:
        met = "" if row.met is None else ("yes" if row.met else "no")
        table.add_row(row.name, f"{row.value:.4g} {row.unit}", row.target, met)
    Console(width=130).print(table)
    out = Path(__file__).parent / "results"
    out.mkdir(exist_ok=True)
    machine = {"torch": torch.__version__, "python": platform.python_version()}
    machine["threads"] = str(torch.get_num_threads())
    content = {"machine": machine, "rows": [asdict(row) for row in rows]}
    (out / "latest.json").write_text(json.dumps(content, indent=1))
    print(f"written: {out / 'latest.json'}", file=sys.stderr)


if __name__ == "__main__":
    main()
