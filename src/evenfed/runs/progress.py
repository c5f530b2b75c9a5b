"""What a user sees while a run goes on: rounds, time left, the current metric. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_SHOWN = ("val_accuracy", "val_loss")


class ProgressObserver:
    """A bar over all rounds of one run or several.

    The bar is shown only where stderr is a terminal; messages are plain lines elsewhere.

    Parameters
    ----------
    rounds : int
        Rounds of one run.
    runs : int
        Runs that follow each other. With several, what engine each one chose is not said: the
        results hold it.
    quiet : bool
        Show nothing at all.

    Examples
    --------
    >>> with ProgressObserver(2, quiet=True) as observer:
    ...     observer.round_done({"round": 0, "val_accuracy": 0.5})
    >>> observer.metric
    'val accuracy 0.500'
    """

    def __init__(
        self, rounds: int, runs: int = 1, *, quiet: bool = False, console: Console | None = None
    ) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.rounds, self.runs, self.quiet = rounds, runs, quiet
        self.metric = ""
        self._name = ""
        self._begun = 0
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metric]}", markup=False),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("round", total=rounds * runs, metric="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, message: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.quiet or (self.runs > 1 and message.startswith("engine:")):
            return
        text = f"{self._name}: {message}" if self._name else message
        self.console.print(text, markup=False, soft_wrap=True)

    def run_begins(self, name: str) -> None:
        """The next run of a study begins."""
        self._name, self.metric = name, ""
        done = self._begun * self.rounds
        self._begun += 1
        self._bar.update(
            self._task, completed=done, metric="",
            description=f"{name} ({self._begun} of {self.runs})",
        )  # fmt: skip

    def round_done(self, line: dict[str, Any]) -> None:
        """Advance the bar; the metric is the last one that was measured on validation data."""
        for name in _SHOWN:
            if name in line:
                self.metric = f"{name.replace('_', ' ')} {line[name]:.3f}"
                break
        done = (max(self._begun, 1) - 1) * self.rounds + int(line["round"]) + 1
        self._bar.update(self._task, completed=done, metric=self.metric)
