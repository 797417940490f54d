"""Durations: milliseconds, or a ``timedelta``, wherever the public API takes a ``*_ms`` argument.

The stored and transmitted values are whole milliseconds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeAlias, overload

from msgspec import Struct
from msgspec.structs import force_setattr

__all__ = ["Duration", "convert_durations", "to_ms", "to_seconds"]

#: Milliseconds, or a ``timedelta``.
Duration: TypeAlias = int | timedelta

_MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND: Final = timedelta(seconds=1)


@overload
def to_ms(value: Duration) -> int: ...


@overload
def to_ms(value: Duration | None) -> int | None: ...


def to_ms(value: Duration | None) -> int | None:
    """The duration in whole milliseconds, rounded up. Other values are returned unchanged.

    The verb checks the type and the bounds, so a bad value gets the error of its field. A
    positive duration never becomes 0, which often has a meaning of its own.
    """
    return -(-value // _MILLISECOND) if isinstance(value, timedelta) else value


@overload
def to_seconds(value: Duration) -> int: ...


@overload
def to_seconds(value: Duration | None) -> int | None: ...


def to_seconds(value: Duration | None) -> int | None:
    """The same for fields in seconds: whole seconds, rounded up."""
    return -(-value // _SECOND) if isinstance(value, timedelta) else value


def convert_durations(struct: Struct, *fields: str) -> None:
    """Replace each ``timedelta`` in these fields by milliseconds, for use in ``__post_init__``."""
    for field in fields:
        value = getattr(struct, field)
        if isinstance(value, timedelta):
            force_setattr(struct, field, to_ms(value))
