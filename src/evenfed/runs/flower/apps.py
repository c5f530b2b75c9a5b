"""The two apps of Flower: what a SuperNode and a SuperLink run of this package."""

from __future__ import annotations

import logging
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from evenfed.core.errors import ClientError, EvenfedError
from evenfed.runs.flower.node import NamedData, Node, SiloFile, Source
from evenfed.runs.flower.server import Order, serve

ORDER = "evenfed-order"
"""Key of the run config that holds what is submitted."""
RUNS = "EVENFED_RUNS"
"""Environment variable of the server: the folder of its runs."""
STATE = "EVENFED_STATE"
"""Environment variable of a node without `evenfed-state`: folder of what clients keep."""
_REFUSED = 2
"""Flower's code of an error raised by a client app."""

log = logging.getLogger("evenfed.flower")

client = ClientApp()
server = ServerApp()


@lru_cache(maxsize=64)
def _node(data: str, name: str, column: str, index: int, folder: str, device: str) -> Node:
    source: Source
    if data:
        path = Path(data)
        source = SiloFile(path, name or path.stem, column)
    else:
        source = NamedData(index)
    return Node(source, Path(folder), device)


def node_of(config: dict[str, Any]) -> Node:
    """The node that a SuperNode's configuration describes; a simulation numbers its partitions."""
    index = int(config.get("evenfed-client", config.get("partition-id", -1)))
    data = str(config.get("evenfed-data", ""))
    root = os.environ.get(STATE, Path(tempfile.gettempdir()) / f"evenfed-node-{os.getuid()}")
    default = Path(root) / str(index)
    folder = str(config.get("evenfed-state", default))
    name, device = config.get("evenfed-name", ""), config.get("evenfed-device", "cpu")
    column = str(config.get("evenfed-column", ""))
    return _node(data, str(name), column, index, folder, str(device))


def reply_to(message: Message, node: Node) -> Message:
    """The node's reply, or an error without a word of its data."""
    try:
        return Message(node.answer(message.content), reply_to=message)
    except ClientError as error:
        log.exception("a client function failed")
        cause = type(error.__cause__ or error).__name__
        reason = f"a client function failed ({cause}); the node's log says more"
    except EvenfedError as error:
        log.warning("refused a message: %s", error)
        reason = str(error)
    except Exception as error:
        log.exception("a message could not be answered")
        reason = f"the node failed ({type(error).__name__}); its log says more"
    return Message(Error(code=_REFUSED, reason=reason), reply_to=message)


@client.query()
def _asked(message: Message, context: Context) -> Message:
    return reply_to(message, node_of(dict(context.node_config)))


@client.train()
def _exchanged(message: Message, context: Context) -> Message:
    return reply_to(message, node_of(dict(context.node_config)))


class _Logged:
    """Shows a run's progress in the server's log."""

    def say(self, message: str) -> None:
        log.warning("%s", message)

    def round_done(self, line: dict[str, Any]) -> None:
        log.warning("round %s done in %.1f s", line["round"] + 1, line["seconds"])


@server.main()
def _main(grid: Grid, context: Context) -> None:
    order = Order.read(str(context.run_config[ORDER]))
    serve(grid, order, Path(os.environ.get(RUNS, "runs")), _Logged())
