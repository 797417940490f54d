"""Where randomness enters an engine. Options inject it, so that tests are deterministic."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Jitter", "RandomBytes", "full_jitter", "random_bytes", "random_token"]

#: Picks a wait below the ceiling it is given.
Jitter: TypeAlias = Callable[[int], int]


def full_jitter(ceiling_ms: int) -> int:
    """A uniformly random wait from 0 to ``ceiling_ms``."""
    # The one place where randomness enters by default; spreading retries needs no secrecy.
    return random.randint(0, ceiling_ms)  # noqa: S311, TID251


def random_token() -> int:
    """A random number of 62 bits, which no other transaction or server has."""
    # The operating system's randomness: servers that start at the same time differ.
    return random.SystemRandom().getrandbits(62)  # noqa: TID251


#: So many random bytes. Injected, like ``Jitter``.
RandomBytes: TypeAlias = Callable[[int], bytes]


def random_bytes(count: int) -> bytes:
    """Bytes that no other store has."""
    return os.urandom(count)  # noqa: TID251
