"""Runs this package's client app for a SuperNode, in one process that stays.

A SuperNode normally starts a process for each message and runs in it the code that the server
sent. With `--isolation process` it leaves that to an executor. This one takes the message, but
never the code: it answers with the client app of its own installation. It also keeps PyTorch and
the data in memory, which saves seconds a message.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import (
    pull_task_input,
    push_message,
    push_task_output,
)

from evenfed.runs.flower import apps

_PAUSE = 0.1
"""Seconds between two looks for a message."""

log = logging.getLogger("evenfed.flower")


class Executor:
    """Takes messages from a SuperNode on this machine and answers them."""

    def __init__(self, address: str, secret: bytes) -> None:
        self.address = address
        self.secret = secret
        self._turn = Lock()

    def _client(self, *interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=True,  # on this machine's loopback
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *interceptors,
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )  # fmt: skip

    def run(self) -> None:
        """Answer messages until the process ends."""
        guard = SuperExecAuthHttpInterceptor(
            master_secret=self.secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        client = self._client(guard)
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        while True:
            try:
                found = client.AcquireTask(wanted)
            except httpx.TransportError:  # the SuperNode is being started again
                time.sleep(1.0)
                continue
            if found.HasField("task") and found.token:
                # a task whose message never comes (its run has ended) must not hold up the others
                Thread(target=self._answer, args=(found.token,), daemon=True).start()
            else:
                time.sleep(_PAUSE)

    def _answer(self, token: str) -> None:
        """Answer one message; what goes wrong with it leaves the executor alive."""
        client = self._client(RuntimeTokenHttpInterceptor(token))
        heartbeat = HeartbeatSender(lambda: _alive(client))
        context, status, details = None, SubStatus.FAILED, "the message could not be read"
        heartbeat.start()
        try:
            message, context, _, _ = pull_task_input(client)
            with self._turn:
                reply = apps.client(message=message, context=context)
            push_message(client, reply, context)
            status, details = SubStatus.COMPLETED, ""
        except Exception as error:
            log.warning("a message was not answered: %s", type(error).__name__, exc_info=True)
            details = type(error).__name__
        finally:
            heartbeat.stop()
            push_task_output(client, context, status, details)
            client.close()


def _alive(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode that a message is being answered."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


def _wait_for(address: str, seconds: float) -> None:
    """Wait until the SuperNode answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            httpx.get(f"http://{address}/", timeout=2.0)
            return
        except httpx.TransportError:
            time.sleep(0.2)


def main() -> None:
    """Entry point of the executor's process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--secret", required=True, type=Path)
    parser.add_argument("--parent", required=True, type=int)
    given = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s", level=logging.WARNING)
    start_parent_process_monitor(given.parent)
    _wait_for(given.address, 300)
    Executor(given.address, given.secret.read_bytes()).run()


if __name__ == "__main__":
    main()
