"""A real deployment: a SuperLink and three nodes as processes, with TLS and node keys.

All tests share one deployment, after one that a command starts itself: never two at once. They
wait on conditions, with generous limits, and every process ends with the test run.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from safetensors.torch import load_file

from evenfed.core import tree as trees
from evenfed.data.federate import federate
from evenfed.data.table import Table
from evenfed.runs.config import parse
from evenfed.runs.flower.local import Deployment, wait_for_server
from evenfed.runs.flower.processes import Address, environment, flwr, free_port, submit
from evenfed.runs.flower.server import Order
from evenfed.runs.train import run_config

pytestmark = pytest.mark.slow

PATIENCE = 240.0
SILOS = {"a": 60, "b": 80, "c": 50}
SCHEMA = {
    "name": "silos", "label": "paid", "numeric": ["age", "income"], "categorical": ["job"],
    "sensitive": ["sex"], "levels": {"sex": ["f", "m"], "job": ["clerk", "nurse"]},
}  # fmt: skip


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, and a server's certificate and key for the loopback."""
    now = datetime.datetime.now(datetime.UTC)
    span = (now - datetime.timedelta(days=1), now + datetime.timedelta(days=30))

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca = (
        x509.CertificateBuilder()
        .subject_name(named("test authority"))
        .issuer_name(named("test authority"))
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(named("localhost"))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    paths = (folder / "ca.crt", folder / "server.crt", folder / "server.key")
    paths[0].write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[2].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A node's private and public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return private, public


def silo(name: str) -> pd.DataFrame:
    rows = SILOS[name]
    rng = np.random.default_rng(rows)
    age = rng.normal(40, 10, rows)
    return pd.DataFrame(
        {
            "age": age,
            "income": rng.lognormal(3, 1, rows),
            "job": rng.choice(["clerk", "nurse"], rows),
            "sex": rng.choice(["f", "m"], rows),
            "paid": (age + rng.normal(0, 5, rows) > 41).astype(int),
            # overflows a model that reads it as it is: at client c alone
            "odd": np.full(rows, 3e38 if name == "c" else 0.0),
        }
    )


def until(what: str, condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait for a condition; its value."""
    end = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"waited {patience:.0f} s in vain: {what}")
        time.sleep(0.3)
    return value


@dataclass
class Site:
    """A deployment with the certificates and keys that it needs."""

    root: Path
    deployment: Deployment
    tls: tuple[str, ...]
    faults: str = ""

    @property
    def address(self) -> Address:
        return self.deployment.address

    def start_server(self) -> None:
        self.deployment.start_server(self.root / "runs", *self.tls, "--node-keys")
        wait_for_server(self.deployment)

    def start_node(self, name: str) -> None:
        data, key = str(self.root / f"{name}.csv"), str(self.root / f"{name}.key")
        self.deployment.start_node(name, "--data", data, "--key", key)

    def submit(self, name: str, *, resume: bool = False, **config: Any) -> str:
        """Hand over a run; the number that Flower gives it."""
        engine = {"engine": "flower", "nodes": 3, "timeout": 90.0}
        table = {"data": SCHEMA, "engine": engine, "evaluate_every": 0, "checkpoint_every": 1}
        return submit(self.address, Order({**table, **config}, name, resume))

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "evenfed", "flower", *words, "--server", self.address.text],
            capture_output=True, text=True, env=environment(), check=False, timeout=PATIENCE,
        )  # fmt: skip

    def folder(self, name: str) -> Path:
        return self.root / "runs" / name

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder(name) / "history.jsonl"
        found = path.read_text().splitlines() if path.is_file() else []
        return [json.loads(line) for line in found if line.endswith("}")]

    def dropped(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines(name) if "dropped" in line]

    def result(self, name: str) -> dict[str, Any]:
        """Wait for the end of a run."""
        error = self.root / "runs" / f".{name}.error"

        def ended() -> bool:
            self.deployment.check()
            if error.is_file():
                pytest.fail(f"run {name} failed: {error.read_text()}")
            return (self.folder(name) / "result.json").is_file()

        until(f"the end of run {name}", ended)
        return json.loads((self.folder(name) / "result.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module", autouse=True)
def only() -> Iterator[None]:
    """Hold off deployments of other test runs on this machine."""
    with (Path(tempfile.gettempdir()) / f"evenfed-deployment-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    authority, certificate, key = certificates(root)
    tls = ("--ca", str(authority), "--certificate", str(certificate), "--key", str(key))
    address = Address("127.0.0.1", free_port(), authority)
    made = Site(root, Deployment(root / "logs", address), tls)
    try:
        made.start_server()
        for name in SILOS:
            silo(name).to_csv(root / f"{name}.csv", index=False)
            _, public = node_key(root, f"{name}.key")
            done = made.call("register", str(public), *address.flags())
            assert done.returncode == 0, done.stderr
            made.start_node(name)
        yield made
    finally:
        made.deployment.stop()
    until("all processes to end", lambda: not processes_of(root), 30.0)


def processes_of(folder: Path) -> list[str]:
    """Commands of the processes whose command or environment names a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            words = (place / "cmdline").read_bytes()
            if str(folder).encode() in words + (place / "environ").read_bytes():
                found.append(words.replace(b"\0", b" ").decode())
    return found


def sequential(**config: Any) -> Any:
    """The same run in one process."""
    frame = pd.concat([silo(name).assign(site=name) for name in SILOS], ignore_index=True)
    table = Table(
        "silos", frame, label="paid", numeric=("age", "income"), categorical=("job",),
        sensitive=("sex",), levels={k: tuple(v) for k, v in SCHEMA["levels"].items()},  # type: ignore[attr-defined]
    )  # fmt: skip
    rows = {name: np.flatnonzero(frame["site"] == name) for name in SILOS}
    settings = {"engine": {"engine": "sequential"}, "evaluate_every": 0, **config}
    return run_config(parse(settings), data=federate(table, rows, seed=0))


def check_parity(site: Site, name: str, flat: Any, distance: Any, **config: Any) -> None:
    """The run's last model, its metrics and its clients' metrics are those of one process."""
    result, alone = site.result(name), sequential(**config)
    found = load_file(site.folder(name) / "checkpoint.safetensors")
    ours = trees.from_named(found, alone.server)
    if trees.leaves(ours):
        assert distance(flat(ours), flat(alone.server)) < 1e-5
    assert result["engine"] == "flower"
    for metric, value in alone.measured()["metrics"].items():
        assert result["metrics"][metric] == pytest.approx(value, rel=1e-5), metric
    clients = pd.read_parquet(site.folder(name) / "clients.parquet")
    assert clients["loss"].to_numpy() == pytest.approx(alone.clients["loss"].to_numpy(), rel=1e-5)


def test_a_run_on_this_machine_starts_and_stops_its_own_deployment(tmp_path: Path) -> None:
    config = {"method": "fedavg", "data": {"name": "synthetic"}, "rounds": 2}
    words = ("run", "--engine", "flower", "--method", "fedavg", "--dataset", "synthetic",
             "--rounds", "2", "--out", str(tmp_path / "here"))  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "evenfed", *words], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, check=False, timeout=2 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "engine: flower (a SuperLink and 3 nodes on this machine)" in done.stderr
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    alone = run_config(parse({**config, "engine": {"engine": "sequential"}}))
    assert result["engine"] == "flower"
    for metric, value in alone.measured()["metrics"].items():
        assert result["metrics"][metric] == pytest.approx(value, rel=1e-5), metric
    until("all processes to end", lambda: not processes_of(tmp_path), 30.0)
    assert [path.name for path in tmp_path.iterdir()] == ["here"], "nothing else is left"


def check_states_stay_at_nodes(site: Site) -> None:
    """States at every node, and none at the server."""
    for name in SILOS:
        found = list((site.deployment.folder / name).glob("*/*/*.safetensors"))
        assert found, f"node {name} kept nothing"
    for name in ("ditto",):
        states = load_file(next(site.folder(name).glob("states-*.safetensors")))
        assert {tensor.numel() for tensor in states.values()} == {1}, "version numbers only"


def test_runs_give_the_numbers_of_one_process_and_leave_out_nan(
    site: Site, flat: Any, distance: Any
) -> None:
    """Four at the same time: a deployment carries several runs."""
    path = site.root / "fedavg.toml"
    engine = {"engine": "flower", "nodes": 3, "timeout": 90.0}
    table = {"data": SCHEMA, "engine": engine, "method": "fedavg", "rounds": 3}
    path.write_text(tomli_w.dumps({**table, "evaluate_every": 1}))
    done = site.call("submit", str(path), *site.address.flags())
    assert done.returncode == 0, done.stderr
    site.submit("ditto", method="ditto", rounds=2)
    site.submit("scaffold", method="scaffold", rounds=2)
    odd = {**SCHEMA, "numeric": ["age", "odd"], "scale": "none"}
    site.submit("nan", method="fedavg", rounds=1, data=odd)
    check_parity(site, "fedavg", flat, distance, method="fedavg", rounds=3, evaluate_every=1)
    check_parity(site, "ditto", flat, distance, method="ditto", rounds=2)
    check_parity(site, "scaffold", flat, distance, method="scaffold", rounds=2)
    result = site.result("nan")
    assert site.lines("nan")[0]["dropped"] == {"sent a value that is not finite": 1}
    assert np.isfinite(result["metrics"]["accuracy"])
    check_states_stay_at_nodes(site)


def test_a_killed_server_goes_on_from_its_checkpoint(site: Site, flat: Any, distance: Any) -> None:
    config = {"method": "scaffold", "rounds": 5, "checkpoint_every": 2}
    site.submit("killed", **config)
    until("the first rounds", lambda: len(site.lines("killed")) >= 2)
    site.deployment.kill("server")
    assert not (site.folder("killed") / "result.json").exists()
    site.start_server()
    site.submit("killed", resume=True, **config)
    check_parity(site, "killed", flat, distance, **config)


def test_strangers_are_refused(site: Site) -> None:
    """TLS: who has not the certificate; node keys: who has another key, or none."""
    path = site.root / "refused.toml"
    path.write_text(tomli_w.dumps({"data": SCHEMA, "engine": {"engine": "flower", "nodes": 3}}))
    unsure = Deployment(site.root / "strangers", Address("127.0.0.1", site.address.port))
    known = Deployment(site.root / "strangers", site.address)
    node_key(site.root, "stranger.key")
    more = ("--data", str(site.root / "a.csv"), "--retry", "0")
    try:
        unsure.start_node("uncertain", *more, "--key", str(site.root / "a.key"))
        known.start_node("stranger", *more, "--key", str(site.root / "stranger.key"))
        known.start_node("nameless", *more)
        for words in ((), ("--insecure",)):
            done = site.call("submit", str(path), *words)
            assert done.returncode == 2
            assert "did not take the run" in done.stderr
        for place, name, reason in (
            (unsure, "uncertain", "CERTIFICATE_VERIFY_FAILED"),
            (known, "stranger", "Failed to activate SuperNode"),
            (known, "nameless", "SuperNodes must be registered"),
        ):
            process = place.processes[name]
            until(f"node {name} to give up", lambda p=process: p.poll() is not None)
            assert process.returncode != 0
            assert reason in place.log(name, 5000)
    finally:
        unsure.stop()
        known.stop()


def test_a_deaf_node_is_left_out_after_the_timeout_and_a_killed_one_too(site: Site) -> None:
    engine = {"engine": "flower", "nodes": 3, "timeout": 10.0}
    site.faults = site.submit(
        "faults", method="scaffold", rounds=500, engine=engine, participation={"quorum": 0.5}
    )
    until(
        "a round of all", lambda: [line for line in site.lines("faults") if "dropped" not in line]
    )
    os.killpg(site.deployment.processes["c"].pid, signal.SIGSTOP)
    before = len(site.lines("faults"))

    def without_it() -> list[dict[str, Any]]:
        lines = site.lines("faults")[before:]
        return [line for line in lines if line.get("dropped") == {"did not answer": 1}]

    deaf = until("a round without the deaf node", without_it)[0]
    assert deaf["seconds"] >= 10.0, "the timeout"
    assert deaf["exchanges"] == 1
    # the next round has begun and waits for the node
    site.deployment.kill("c")
    until("a round without the killed node", lambda: len(without_it()) >= 2)


def test_the_killed_node_comes_back(site: Site) -> None:
    site.start_node("c")
    last = site.dropped("faults")[-1]["round"]
    until(
        "a round with the node again",
        lambda: [x for x in site.lines("faults") if x["round"] > last and "dropped" not in x],
    )
    assert not any("void" in line for line in site.lines("faults")), "the quorum was always there"
    flwr(site.address, "stop", site.faults, "evenfed")
