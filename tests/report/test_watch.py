from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evenfed as ef
from evenfed.core.errors import ConfigError, RunFolderError
from evenfed.report.watch import Watch, server, watching
from evenfed.runs.config import parse
from evenfed.runs.folder import HISTORY, RESULT
from evenfed.runs.train import run_config

CHROMIUM = Path("/usr/bin/chromium")
TABLE = {
    "data": {"name": "synthetic", "examples": 300, "test_examples": 150}, "rounds": 4,
    "method": {"name": "fedeba"}, "evaluate_every": 1, "engine": {"engine": "vectorized"},
}  # fmt: skip


def asked(
    address: str, path: str = "/", host: str = "", method: str = "GET"
) -> tuple[int, str, Any]:
    """Status, text and headers of a real request."""
    where = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(where, timeout=30)
    connection.request(method, path, headers={"Host": host or where})
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after two rounds of four."""
    folder = tmp_path / "run"
    run_config(parse(TABLE), folder)
    lines = (folder / HISTORY).read_text().splitlines(keepends=True)
    (tmp_path / "later").write_text("".join(lines[2:]))
    (folder / HISTORY).write_text("".join(lines[:2]))
    (folder / RESULT).rename(tmp_path / RESULT)
    return folder


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with watching(run) as found:
        yield found


def test_a_run_in_progress_shows_rounds_metrics_and_curves(run: Path, address: str) -> None:
    status, text, _ = asked(address)
    assert status == 200
    assert "fedeba on synthetic: round 2 of 4" in text
    last = json.loads((run / HISTORY).read_text().splitlines()[-1])
    assert f"{last['val_accuracy']:.3f} on validation data, round 2" in text
    assert "How did it converge?" in text
    assert "Whom did the server listen to?" in text
    assert "Is it good?" not in text  # no test figure before the end


def test_the_page_follows_the_run_to_its_end(run: Path, address: str) -> None:
    def state() -> dict[str, Any]:
        return json.loads(asked(address, "/state")[1])  # type: ignore[no-any-return]

    first = state()
    assert first == state()
    assert not first["finished"]
    with (run / HISTORY).open("a") as file:
        file.write((run.parent / "later").read_text()[:40])  # a line that is being written
    assert "round 2 of 4" in asked(address)[1]
    (run.parent / RESULT).rename(run / RESULT)
    last = state()
    assert last["finished"]
    assert last["version"] != first["version"]
    text = asked(address)[1]
    assert "Is it good?" in text
    assert "The run is finished" in text


def test_nothing_but_two_paths_is_answered(run: Path, address: str) -> None:
    for path in ("/config.toml", "/../run/config.toml", "/%2e%2e/run/config.toml", "/etc/passwd",
                 "/?x", "/state/", "/runs/", "."):  # fmt: skip
        status, text, _ = asked(address, path)
        assert status in (400, 404), path
        assert "fedeba" not in text
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert asked(address, method=method)[0] == 501
    assert list(run.parent.glob("**/report.html")) == []


def test_other_hosts_are_refused(run: Path, address: str) -> None:
    port = address.rstrip("/").rpartition(":")[2]
    assert asked(address, host=f"localhost:{port}")[0] == 200
    for host in ("example.org", f"example.org:{port}", f"192.168.0.1:{port}", "127.0.0.1:1"):
        status, text, _ = asked(address, host=host)
        assert status == 403
        assert "fedeba" not in text
    with pytest.raises(ConfigError, match="this machine alone"):
        server(run, host="0.0.0.0")
    made = server(run)
    assert made.server_address[0] == "127.0.0.1"
    made.server_close()


def test_the_page_may_load_nothing_and_is_not_kept(address: str) -> None:
    headers = asked(address)[2]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]


def test_folders_and_ports_that_cannot_be_served_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not the folder of a run or a study"):
        Watch(tmp_path)
    made = server(run)
    with pytest.raises(ConfigError, match="choose another --port"):
        server(run, made.server_address[1])
    made.server_close()


def test_a_study_shows_finished_running_and_waiting_runs(tmp_path: Path) -> None:
    out = tmp_path / "s"
    ef.study(["fedavg", "qffl"], "synthetic:examples=300,test_examples=150", seeds=[0, 1],
             rounds=2, engine="vectorized", evaluate_every=1, references=[], out=out)  # fmt: skip
    finished = Watch(out)
    assert finished.state()["finished"]
    assert "The study is finished" in finished.page().decode()
    (out / "runs" / "qffl-synthetic-1" / RESULT).unlink()
    for file in (out / "runs" / "fedavg-synthetic-1").iterdir():
        file.unlink()
    watch = Watch(out)
    text = watch.page().decode()
    assert not watch.state()["finished"]
    assert "s: 2 of 4 runs" in text
    assert "Now qffl-synthetic-1: all rounds done; measuring." in text
    assert text.count(">waiting<") == 1
    assert text.count(">finished<") == 2
    assert "Is it good?" in text
    assert "How did it converge?" in text


def test_the_command_serves_until_it_is_interrupted(run: Path) -> None:
    command = [sys.executable, "-m", "evenfed", "watch", str(run), "--port", "0"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert asked(line.split(" ")[0], "/state")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert "the run goes on" in process.stdout.read()


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")
def test_a_browser_sees_new_rounds_without_loading_the_page_again(run: Path, address: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        chromium = play.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        page = chromium.new_page()
        complaints: list[str] = []
        page.on("console", lambda m: complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(address)
        page.evaluate("window.same = true; document.querySelector('main details').open = true")
        lines = (run.parent / "later").read_text().splitlines(keepends=True)
        with (run / HISTORY).open("a") as file:
            file.write(lines[0])
        deadline = time.monotonic() + 30
        while "round 3 of 4" not in page.inner_text("h1") and time.monotonic() < deadline:
            page.wait_for_timeout(200)
        assert "round 3 of 4" in page.inner_text("h1")
        assert page.evaluate("window.same")  # the document was not loaded anew
        assert page.evaluate("document.querySelector('main details').open")
        assert complaints == []
        chromium.close()
