"""Bounds on the number of values in a JSON body, checked before the body is decoded.

Decoding a body of some megabytes takes milliseconds if it is a few long texts, and hundreds of
milliseconds if it is a million empty objects. The protocols of doors have no use for the latter.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from penstock.errors import BadInput, TooLarge
from penstock.server.decoding import DIRECT_BYTES, in_turns
from penstock.wire.json_cursor import JsonCursor
from penstock.wire.splitting import Bounds, Steps

__all__ = ["MAX_VALUES", "check_values"]

#: A batch of SQS with ten attributes for each of ten messages has 500 values.
MAX_VALUES: Final = 5_000
_MAX_DEPTH: Final = 16
#: Values visited before other calls get their turn: about a millisecond.
_VALUES_A_STEP: Final = 200


async def check_values(body: bytes, opaque: AbstractSet[str] = frozenset()) -> None:
    """Raise ``BadInput`` if a large body has too many values, or cannot be read.

    Members whose names are ``opaque`` count as one value each: they are kept undecoded. A small
    body is not checked.
    """
    if len(body) > DIRECT_BYTES:
        await in_turns(_Walk(body, opaque).value(0))


class _Walk:
    """One visit of all values."""

    def __init__(self, body: bytes, opaque: AbstractSet[str]) -> None:
        self._body = body
        self._cursor = JsonCursor(body, 0, len(body))
        self._opaque = opaque
        self._any = Bounds(1, item_bytes=len(body))
        self._count = 0

    def value(self, depth: int) -> Steps[None]:
        """Move past a value and those inside it."""
        cursor = self._cursor
        self._count += 1
        if self._count > MAX_VALUES:
            raise TooLarge(
                f"The body has more than {MAX_VALUES} values.", field="body", limit=MAX_VALUES
            )
        if depth > _MAX_DEPTH:
            raise BadInput("The body is nested too deeply.", field="body")
        if not self._count % _VALUES_A_STEP:
            yield
        if cursor.begin_array():
            while cursor.next_item():
                yield from self.value(depth + 1)
        elif self._body[cursor.position : cursor.position + 1] == b"{":
            cursor.begin_object()
            while (name := cursor.next_key()) is not None:
                if name in self._opaque:
                    yield from cursor.skip(self._any)
                else:
                    yield from self.value(depth + 1)
        else:
            yield from cursor.skip(self._any)
