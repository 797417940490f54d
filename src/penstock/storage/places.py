"""Places of stores: what a store knows about where it is, as ``name=value`` words.

A copy of the store is at another place, and begins a new epoch when it is opened (A1).
"""

from __future__ import annotations

__all__ = ["is_same_place"]


def is_same_place(one: str, other: str) -> bool:
    """Whether two places agree in everything that both of them tell."""
    left, right = _parts(one), _parts(other)
    return all(left[name] == right[name] for name in left.keys() & right.keys())


def _parts(place: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in place.split())
