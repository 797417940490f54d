"""The location of a store, as ``name=value`` words: what identifies where its data is.

A copy of the store has another location and begins a new epoch when it is opened (A1).
"""

from __future__ import annotations

__all__ = ["is_same_location"]


def is_same_location(one: str, other: str) -> bool:
    """Whether two locations agree on every name that both contain."""
    left, right = _parts(one), _parts(other)
    return all(left[name] == right[name] for name in left.keys() & right.keys())


def _parts(place: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in place.split())
