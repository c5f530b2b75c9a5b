"""A live page of a run or a study in progress, for browsers of this machine alone.

The page is made of the report's own sections from what the folder holds at that moment; nothing
is written, trained or evaluated. The server listens on the loopback address, answers GET of `/`
(the page) and `/state` (whether it has changed), and nothing else: no other path, no file, no
request that names another host.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from evenfed.core.errors import ConfigError, EvenfedError, RunFolderError
from evenfed.report.answers.chapter import Chapter
from evenfed.report.answers.converged import converged
from evenfed.report.answers.good import good
from evenfed.report.page import page_of, render, sections
from evenfed.report.sections import Grid, Page, Part, Section
from evenfed.report.words import count, number, seconds
from evenfed.runs.folder import CONFIG, HISTORY, RESULT, RunFolder
from evenfed.runs.plan import PlannedRun
from evenfed.runs.record import Record
from evenfed.runs.study import FAILURES, RUNS, STUDY, open_study, study_config

LOOPBACK = "127.0.0.1"
_NAMES = (LOOPBACK, "localhost")
_EVERY = 2000
"""Milliseconds between two looks of the page."""
_SHOWN = ("val_accuracy", "val_client_accuracy_worst_tail", "val_loss", "val_client_loss_max")
_SCRIPT = """
<script>
"use strict";
(() => {
  let seen = %(version)s, busy = false;
  const swap = (next, tag) => document.querySelector(tag).replaceChildren(
    ...document.importNode(next.querySelector(tag), true).childNodes);
  const folds = () => [...document.querySelectorAll("main details")];
  const look = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      const state = await (await fetch("state", { cache: "no-store" })).json();
      if (state.version !== seen) {
        if (state.finished) { location.reload(); return; }
        const text = await (await fetch("./", { cache: "no-store" })).text();
        const next = new DOMParser().parseFromString(text, "text/html");
        const open = folds().map((fold) => fold.open);
        swap(next, "header");
        swap(next, "main");
        folds().forEach((fold, i) => { fold.open = Boolean(open[i]); });
        document.title = next.title;
        seen = state.version;
      }
      document.documentElement.dataset.watch = "live";
    } catch {
      if (document.documentElement.dataset.watch !== "ended") {
        document.documentElement.dataset.watch = "ended";
        const note = document.createElement("p");
        note.className = "lead";
        note.textContent = "The watch has ended: this page is as it was last seen.";
        document.querySelector("header").append(note);
      }
    } finally { busy = false; }
  };
  setInterval(look, %(every)d);
})();
</script>
"""


@dataclass(frozen=True)
class Progress:
    """How far one run of a folder has come."""

    name: str
    rounds: int
    record: Record | None = None
    error: str = ""

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return 0 if self.record is None or not self.record.history else self._last["round"] + 1

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.record is not None and self.record.measured is not None

    @property
    def _last(self) -> dict[str, Any]:
        assert self.record is not None
        return self.record.history[-1]

    @property
    def spent(self) -> float:
        """Seconds of the rounds so far."""
        lines = [] if self.record is None else self.record.history
        return float(sum(line.get("seconds", 0.0) for line in lines))

    @property
    def state(self) -> str:
        """In words."""
        if self.finished:
            return "finished"
        if self.record is None:
            return self.error or "waiting"
        if self.done >= self.rounds:
            return "all rounds done; measuring"
        return f"round {self.done} of {self.rounds}"

    def metrics(self) -> list[tuple[str, str]]:
        """The last values on validation data, by name."""
        found = []
        for name in _SHOWN:
            values = [] if self.record is None else [
                (line["round"] + 1, line[name]) for line in self.record.history if name in line
            ]  # fmt: skip
            if values:
                t, value = values[-1]
                words = name.removeprefix("val_").replace("_", " ")
                found.append((words, f"{number(value)} on validation data, round {t}"))
        return found


@dataclass(frozen=True)
class _Kept:
    """A page that was made, the folder's mark at that time, and until when it will do."""

    version: str
    content: bytes
    until: float


class Watch:
    """What is seen of a folder.

    Examples
    --------
    >>> import tempfile
    >>> from evenfed.runs.config import parse
    >>> from evenfed.runs.train import run_config
    >>> out = Path(tempfile.mkdtemp()) / "run"
    >>> _ = run_config(parse({"data": "synthetic", "rounds": 1}), out)
    >>> Watch(out).state()["finished"]
    True
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / STUDY).is_file() and not (folder / CONFIG).is_file():
            raise RunFolderError(f"'{folder}' is not the folder of a run or a study")
        self.folder = folder
        self._lock = Lock()
        self._kept: _Kept | None = None

    @property
    def is_study(self) -> bool:
        """Whether it is a study."""
        return (self.folder / STUDY).is_file()

    @cached_property
    def plans(self) -> list[PlannedRun]:
        """The runs of a study; its settings do not change."""
        return study_config(self.folder).planned()

    def state(self) -> dict[str, Any]:
        """A mark that changes with the page, and whether everything is finished; cheap."""
        version, finished = self._looked()
        kept = self._kept
        if kept is not None and not finished and time.monotonic() < kept.until:
            version = kept.version
        return {"version": version, "finished": finished}

    def _looked(self) -> tuple[str, bool]:
        runs = [self.folder]
        if self.is_study:
            runs = [self.folder / RUNS / plan.name for plan in self.plans]
        files = [self.folder / FAILURES]
        files += [run / name for run in runs for name in (CONFIG, HISTORY, RESULT)]
        marks = [
            (i, s.st_mtime_ns, s.st_size) for i, file in enumerate(files) if (s := _stat(file))
        ]
        done = all((run / RESULT).is_file() for run in runs) or (self.folder / FAILURES).is_file()
        return sha256(repr(marks).encode()).hexdigest()[:16], done

    def page(self) -> bytes:
        """The page as HTML, made again where the folder has changed.

        Making it takes at most a tenth of the time, so that it does not slow the run down.
        """
        with self._lock:
            version = self.state()["version"]
            if self._kept is None or self._kept.version != version:
                begun = time.monotonic()
                script = _SCRIPT % {"version": json.dumps(version), "every": _EVERY}
                text = render(self._page()).replace("</body>", script + "</body>")
                now = time.monotonic()
                self._kept = _Kept(version, text.encode(), now + 9 * (now - begun))
            return self._kept.content

    def _page(self) -> Page:
        try:
            return self._study() if self.is_study else self._run()
        except (EvenfedError, OSError) as error:
            settings = Section("settings", "Settings", ["They cannot be read at this moment."])
            return Page(f"{self.folder.name} cannot be read", str(error), [], [], settings)

    def _run(self) -> Page:
        record = Record.read(self.folder)
        one = Progress(record.method, record.config.rounds, record)
        head = _run_progress(one)
        if one.finished:
            page = page_of(record)
            parts = [replace(part, sections=[head, *part.sections]) for part in page.parts]
            return replace(page, parts=parts, lead=f"{page.lead} The run is finished.")
        found = [head, *sections(Chapter(record.config.data.name, [record]))]
        return Page(
            f"{record.method} on {record.config.data.name}: {one.state}",
            f"A run in progress, with seed {record.seed}. Test data are not looked at before the "
            "end.",
            [Part("", found)], [], _settings(record.config.toml()),
        )  # fmt: skip

    def _study(self) -> Page:
        study = open_study(self.folder)
        errors = {(r.method, r.dataset, r.seed): r.error for r in study.runs}
        runs = [(p, self._progress(p, errors)) for p in self.plans]
        head = _study_progress([one for _, one in runs])
        finished = sum(one.finished for _, one in runs)
        if self._looked()[1]:
            page = page_of(study)
            return replace(
                page, parts=[Part("", [head]), *_named(page.parts, study.datasets)],
                lead=f"{page.lead} The study is finished.",
            )  # fmt: skip
        parts = [Part("", [head])]
        for table in study.sections():
            records = [
                replace(one.record, method=plan.method)
                for plan, one in runs
                if plan.dataset == table.dataset and one.record is not None
            ]
            if records:
                names = (table.dataset, records, table, study.config.references)
                chapter = Chapter(*names, study.legend("Bold"))
                answers = [good(chapter) if chapter.done else None, converged(chapter)]
                suffix = f"-{len(parts)}"
                found = [replace(s, key=f"{s.key}{suffix}") for s in answers if s is not None]
                parts.append(Part(table.dataset, found))
        lead = (
            f"A study in progress: {finished} of {count(len(runs), 'run')} finished. Everything "
            "below is about those so far: methods do not have the same seeds yet."
        )
        title = f"{self.folder.name}: {finished} of {len(runs)} runs"
        return Page(title, lead, parts, [], _settings(study.config.toml()))

    def _progress(self, plan: PlannedRun, errors: dict[tuple[str, str, int], str]) -> Progress:
        path = self.folder / RUNS / plan.name
        record = Record.read(path, plan.method) if RunFolder(path).exists else None
        why = errors[plan.method, plan.dataset, plan.seed]
        return Progress(plan.name, plan.config.rounds, record, "" if why == "not finished" else why)


def _named(parts: Sequence[Part], datasets: Sequence[str]) -> list[Part]:
    """The parts with names, beside a part that has none."""
    return [replace(part, name=part.name or datasets[i]) for i, part in enumerate(parts)]


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None


def _settings(text: str) -> Section:
    said = ["What the run was started with."]
    return Section("settings", "All settings", said, pre=[("All settings", text)])


def _run_progress(one: Progress) -> Section:
    facts = [("state", one.state), ("time in rounds", seconds(one.spent)), *one.metrics()]
    said = [f"{one.done} of {count(one.rounds, 'round')} are over."]
    if 0 < one.done < one.rounds and not one.finished:
        left = one.spent / one.done * (one.rounds - one.done)
        said.append(f"At this pace the others take {seconds(max(1.0, round(left)))}.")
    if one.record is not None and (void := sum("void" in line for line in one.record.history)):
        said.append(f"{count(void, 'round')} had no quorum.")
    return Section("progress", "How far is it?", said, facts=facts)


def _study_progress(runs: Sequence[Progress]) -> Section:
    finished = sum(one.finished for one in runs)
    said = [f"{finished} of {count(len(runs), 'run')} are finished."]
    if now := next((o for o in runs if o.record is not None and not o.finished), None):
        said.append(f"Now {now.name}: {now.state}.")
    rows = []
    for one in runs:
        shown = dict(one.metrics())
        last = next(iter(shown.values()), "").split(" ")[0]
        rows.append([one.name, one.state, last, seconds(one.spent) if one.done else ""])
    head = ["run", "state", "last accuracy or loss on validation data", "time in rounds"]
    grid = Grid("runs", "All runs", head, rows, folded="All runs" if len(rows) > 12 else "")
    return Section("progress", "How far is it?", said, grids=[grid])


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of two paths."""

    server_version, sys_version = "evenfed", ""
    watch: Watch

    def do_GET(self) -> None:
        host, _, port = self.headers.get("Host", "").rpartition(":")
        if host not in _NAMES or port != str(self.connection.getsockname()[1]):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is for this machine alone\n")
        elif self.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.watch.page())
        elif self.path == "/state":
            text = json.dumps(self.watch.state()).encode()
            self._send(HTTPStatus.OK, "application/json", text)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is / and /state\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'",
        )
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the user."""


def server(folder: Path, port: int = 0, host: str = LOOPBACK) -> ThreadingHTTPServer:
    """A server of a folder's page; port 0 takes a free one."""
    if host not in _NAMES:
        raise ConfigError(f"evenfed watch serves this machine alone ({LOOPBACK}), not '{host}'")
    watch = Watch(folder)
    handler = type("Handler", (_Handler,), {"watch": watch})
    try:
        made = ThreadingHTTPServer((LOOPBACK, port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on port {port}: {error}; choose another --port"
        ) from error
    made.daemon_threads = True
    return made


@contextmanager
def watching(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder's page while the block runs; gives its address."""
    made = server(folder, port)
    thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{made.server_address[1]}/"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def watch(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted."""
    # a shell that starts it in the background has interrupts ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with watching(folder, port) as address:
        say(f"{address}  (Ctrl-C ends it)")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            say("ended; the run goes on")
