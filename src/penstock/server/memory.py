"""How the process treats memory: what is freed is kept, what lives for good is not looked at.

Streams and large requests take and free megabytes many times a second. By default glibc gives
such memory back to the system at once and gets it again page by page, which takes longer than
filling it: a sixth of the processor time of a bulk read.

A full garbage collection looks at every object, on the event loop. Most of them are modules,
classes and functions, which live as long as the process does: up to 50 ms for nothing.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["keep_freed_memory", "uncollected"]

#: Free memory at the end of the heap above which it is given back.
_KEPT_BYTES: Final = 64 * 1024 * 1024
#: What is larger is always taken from the system and given back: glibc allows no higher bound.
_LARGE_BYTES: Final = 32 * 1024 * 1024
#: Of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Keep up to so much for the next time; whether the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _LARGE_BYTES))


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away from everything that exists now."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
