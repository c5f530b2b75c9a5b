"""Flower's SuperNode, looking for messages more often than every three seconds.

Those seconds are most of what an exchange costs, and Flower has no option for them: they are a
constant of the loop that is run here. Everything else is Flower's own.
"""

from __future__ import annotations

import importlib
import os
import time
from types import SimpleNamespace

from flwr.supernode.cli.flower_supernode import flower_supernode

POLL = "EVENFED_POLL"
"""Environment variable: seconds between two looks for messages, at most."""


def main() -> None:
    """Entry point of the process; its options are those of `flower-supernode`."""
    pause = float(os.environ[POLL])
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    loop.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, pause)))  # type: ignore[attr-defined]
    flower_supernode()


if __name__ == "__main__":
    main()
