"""A real deployment: a SuperLink and three nodes as processes, with TLS and node keys.

All tests share one deployment, and most share runs: a round of Flower takes seconds. They wait on
conditions, with generous limits.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import subprocess
import sys
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
from evenfed.runs.flower.processes import Address, environment, flwr, free_port
from evenfed.runs.train import run_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "EVENFED_DEPLOYMENT" not in os.environ,
        reason="starts a server and nodes for five minutes; set EVENFED_DEPLOYMENT=1 to run it",
    ),
]

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

    def submit(self, name: str, *more: str, **config: Any) -> str:
        path = self.root / f"{name}.toml"
        engine = {"engine": "flower", "nodes": 3, "timeout": 60.0}
        table = {"data": SCHEMA, "engine": engine, "evaluate_every": 0, "checkpoint_every": 1}
        path.write_text(tomli_w.dumps({**table, **config}))
        done = self.call("submit", str(path), *self.address.flags(), *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

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
            private, public = node_key(root, f"{name}.key")
            assert private.is_file()
            flwr(address, "supernode", "register", str(public), "evenfed")
            made.start_node(name)
        yield made
    finally:
        made.deployment.stop()


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


def test_three_methods_give_the_numbers_of_one_process(
    site: Site, flat: Any, distance: Any
) -> None:
    """At the same time: a deployment carries several runs."""
    for method in ("fedavg", "scaffold", "ditto"):
        site.submit(method, method=method, rounds=2)
    for method in ("fedavg", "scaffold", "ditto"):
        check_parity(site, method, flat, distance, method=method, rounds=2)


def test_a_killed_server_goes_on_from_its_checkpoint(site: Site, flat: Any, distance: Any) -> None:
    config = {"method": "scaffold", "rounds": 4, "checkpoint_every": 2}
    site.submit("killed", **config)
    until("the third round", lambda: len(site.lines("killed")) >= 3)
    site.deployment.kill("server")
    assert not (site.folder("killed") / "result.json").exists()
    site.start_server()
    site.submit("killed", "--resume", **config)
    check_parity(site, "killed", flat, distance, **config)


def test_a_deaf_node_is_left_out_after_the_timeout_and_a_killed_one_too(site: Site) -> None:
    """The run goes on during the next tests; `came_back` looks at its end."""
    engine = {"engine": "flower", "nodes": 3, "timeout": 8.0}
    said = site.submit(
        "faults", method="scaffold", rounds=200, engine=engine, participation={"quorum": 0.5}
    )
    site.faults = said.split()[1]
    until("the first round", lambda: len(site.lines("faults")) >= 1)
    assert "dropped" not in site.lines("faults")[0]
    os.killpg(site.deployment.processes["c"].pid, signal.SIGSTOP)
    deaf = until("a round without the deaf node", lambda: site.dropped("faults"))[0]
    assert deaf["dropped"] == {"did not answer": 1}
    assert deaf["seconds"] >= 8.0, "the timeout"
    # the next round has begun and waits for the node
    site.deployment.kill("c")
    until("a round without the killed node", lambda: len(site.dropped("faults")) >= 2)
    site.start_node("c")


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


def test_the_killed_node_came_back(site: Site) -> None:
    last = site.dropped("faults")[-1]["round"]
    until(
        "a round with the node again",
        lambda: [x for x in site.lines("faults") if x["round"] > last and "dropped" not in x],
    )
    assert not any("void" in line for line in site.lines("faults")), "the quorum was always there"
    flwr(site.address, "stop", site.faults, "evenfed")


def test_a_node_that_answers_nan_is_left_out(site: Site) -> None:
    odd = {**SCHEMA, "numeric": ["age", "odd"], "scale": "none"}
    site.submit("nan", method="fedavg", rounds=1, data=odd)
    result = site.result("nan")
    assert site.lines("nan")[0]["dropped"] == {"sent a value that is not finite": 1}
    assert np.isfinite(result["metrics"]["accuracy"])


def test_a_file_that_does_not_fit_is_refused_before_training(site: Site) -> None:
    site.submit("misfit", method="fedavg", rounds=1, data={**SCHEMA, "numeric": ["age", "height"]})
    error = site.root / "runs" / ".misfit.error"
    until("the refusal", error.is_file)
    assert "there is no column 'height'" in error.read_text()
    assert not site.folder("misfit").exists()


def test_nodes_keep_what_they_hold_in_their_own_folder(site: Site) -> None:
    """After the runs above: states of SCAFFOLD at every node, and none at the server."""
    for name in SILOS:
        found = list((site.deployment.folder / name).glob("*/*/*.safetensors"))
        assert found, f"node {name} kept nothing"
    for name in ("scaffold", "ditto"):
        states = load_file(next(site.folder(name).glob("states-*.safetensors")))
        assert {tensor.numel() for tensor in states.values()} == {1}, "version numbers only"
