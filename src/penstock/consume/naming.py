"""Names for consumers that were given none.

A name is new for every consumer: two consumers of an ordered queue under one name would share
their partitions, and the first to leave would take them from the other.
"""

from __future__ import annotations

import random

__all__ = ["new_consumer_name"]


def new_consumer_name() -> str:
    """A name that no other consumer has."""
    # The one place where consuming takes randomness by default; a name needs no secrecy, and
    # Python seeds a forked process anew.
    return f"consumer-{random.getrandbits(64):016x}"  # noqa: TID251
