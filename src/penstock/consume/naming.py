"""Generated names for consumers.

A name is new for every consumer: two consumers of an ordered queue under one name would share
their partitions, and the first to leave would take them from the other.
"""

from __future__ import annotations

import random

__all__ = ["new_consumer_name"]


def new_consumer_name() -> str:
    """A name that no other consumer has."""
    # The only source of randomness in this package. A name needs no secrecy, and Python
    # reseeds a forked process.
    return f"consumer-{random.getrandbits(64):016x}"  # noqa: TID251
