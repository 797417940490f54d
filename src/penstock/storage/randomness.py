"""Sources of randomness for engines. Options inject them, so that tests are deterministic."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeAlias

from penstock.model.decisions import Jitter

__all__ = ["Jitter", "RandomBytes", "full_jitter", "random_bytes", "random_token"]


def full_jitter(ceiling_ms: int) -> int:
    """A uniformly random wait from 0 to ``ceiling_ms``."""
    # The only default source of randomness; jitter for retries need not be secure.
    return random.randint(0, ceiling_ms)  # noqa: S311, TID251


def random_token() -> int:
    """A random 62-bit number, unique across transactions and servers."""
    # From the operating system, so that servers that start at the same time differ.
    return random.SystemRandom().getrandbits(62)  # noqa: TID251


#: Returns the given number of random bytes. Injected, like ``Jitter``.
RandomBytes: TypeAlias = Callable[[int], bytes]


def random_bytes(count: int) -> bytes:
    """Random bytes from the operating system, unique to this store."""
    return os.urandom(count)  # noqa: TID251
