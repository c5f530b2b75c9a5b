"""Threads that each run single-threaded kernels on their own clients.

Kernels of one thread give the same bits whatever the number of workers, and small kernels
gain nothing from more threads: so parallelism is over clients, not inside a kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from evenfed.core import tree as trees
from evenfed.core.tree import Tree

A = TypeVar("A")
B = TypeVar("B")


@contextmanager
def single_threaded_kernels() -> Iterator[None]:
    """Run kernels on one thread inside the block; the caller's setting returns after it."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workers:
    """A pool of `count` threads that hands results back in the order of the items."""

    def __init__(self, count: int) -> None:
        self.count = max(1, count)
        self._pool: ThreadPoolExecutor | None = None

    def ordered(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Apply `function` to all items; at most twice as many results as workers are waiting."""
        if self.count == 1:
            for item in items:
                yield function(item)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.count,
                thread_name_prefix="evenfed",
                initializer=torch.set_num_threads,
                initargs=(1,),
            )
        waiting: deque[Future[B]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(function, item))
                if len(waiting) > 2 * self.count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def on_device(tree: Tree, device: torch.device) -> Tree:
    """Move a tree to the engine's device; on the CPU nothing is copied."""
    if device.type == "cpu":
        return tree
    return trees.map(lambda t: t.to(device, non_blocking=True), tree)
