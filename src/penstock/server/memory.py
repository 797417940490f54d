"""Memory settings of the process: keep freed memory, exempt permanent objects from collection.

Streams and large requests allocate and free megabytes many times per second. By default glibc
returns such memory to the system immediately and faults it in again page by page, which takes
longer than filling it: a sixth of the processor time of a bulk read.

A full garbage collection visits every object, on the event loop. Most of them are modules,
classes and functions, which are never freed: up to 50 ms for nothing.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["keep_freed_memory", "uncollected"]

#: Free memory at the top of the heap above which glibc returns it to the system.
_KEPT_BYTES: Final = 64 * 1024 * 1024
#: Larger blocks are always mapped and unmapped: glibc does not allow a higher threshold.
_LARGE_BYTES: Final = 32 * 1024 * 1024
#: Parameters of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Keep up to ``_KEPT_BYTES`` for reuse; returns whether the C library supports it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _LARGE_BYTES))


@contextmanager
def uncollected() -> Iterator[None]:
    """Exempt every object that exists now from garbage collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
