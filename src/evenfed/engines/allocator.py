"""How the C library keeps freed memory.

A chunk of clients takes and frees the same tens of megabytes at every step. By default glibc hands
such pieces back to the system, which must clear them again at the next step: a twentieth of the
time of a round.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

_TRIM, _MAP = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""
_LARGEST_PIECE = 32 << 20
"""The most that glibc takes for M_MMAP_THRESHOLD."""
_KEPT = 256 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep up to 256 MB of freed memory; whether that could be set.

    Nothing is changed where the user has set a threshold by an environment variable (`MALLOC_...`,
    `GLIBC_TUNABLES`), nor without glibc.
    """
    chosen = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    if sys.platform != "linux" or any(name in os.environ for name in chosen):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MAP, _LARGEST_PIECE) and mallopt(_TRIM, _KEPT))
