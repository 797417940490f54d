"""Large bodies, decoded piece by piece with a turn for everybody else after each.

``penstock.wire.splitting`` finds the pieces. A small body is decoded in one go: that takes less
than finding them would.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import BadInput, UnsupportedMedia
from penstock.wire.codecs import JSON, MSGPACK_ALIASES, Codec
from penstock.wire.json_cursor import JsonCursor
from penstock.wire.msgpack_cursor import MsgpackCursor, array_header
from penstock.wire.splitting import Bounds, Cursor, Piece, Steps, split

__all__ = [
    "DIRECT_BYTES",
    "DIRECT_MSGPACK_BYTES",
    "JSON_FORMAT",
    "MSGPACK_FORMAT",
    "Format",
    "Lists",
    "format_of",
    "in_turns",
    "item_bytes",
]

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

#: A body up to this is decoded in one go, in at most ten milliseconds.
DIRECT_BYTES: Final = 64 * 1024
#: A batch of messages in MessagePack takes a fifth of the time for its bytes.
DIRECT_MSGPACK_BYTES: Final = 256 * 1024
#: JSON may write a byte as six; options and headers come beside the payload.
_ESCAPED: Final = 6
_OPTIONS_BYTES: Final = 256 * 1024
#: How msgspec says which item of a list is wrong.
_INDEX: Final = re.compile(r"`\$\[(\d+)\]")


_NOTHING: Final[Mapping[str, Any]] = {}


async def in_turns(steps: Steps[T]) -> T:
    """The outcome of work that is done in steps; others have their turn between them."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
        await asyncio.sleep(0)


def item_bytes(payload_bytes: int) -> int:
    """What a message with a payload of that size takes at most in a body."""
    return _ESCAPED * payload_bytes + _OPTIONS_BYTES


class Format(Struct, frozen=True):
    """JSON or MessagePack: how values are found in it, and how lists are put together again."""

    cursor: Callable[[bytes, int, int], Cursor]
    is_json: bool

    def decode(self, codec: Codec[T], body: bytes) -> T:
        """The value of a whole body."""
        return codec.from_json(body) if self.is_json else codec.from_msgpack(body)

    def decode_piece(self, codec: Codec[list[T]], body: bytes, piece: Piece, name: str) -> list[T]:
        """The items of one piece; an error names the item as it is in the body."""
        content = body[piece.begin : piece.end]
        whole = b"[%b]" % content if self.is_json else array_header(piece.count) + content
        try:
            return self.decode(codec, whole)
        except BadInput as error:
            text = _INDEX.sub(
                lambda found: f"`$.{name}[{piece.first + int(found[1])}]", error.detail
            )
            field = re.sub(
                r"^\[(\d+)\]",
                lambda found: f"{name}[{piece.first + int(found[1])}]",
                error.field or name,
            )
            raise BadInput(text, field=field) from error


JSON_FORMAT: Final = Format(JsonCursor, is_json=True)
MSGPACK_FORMAT: Final = Format(MsgpackCursor, is_json=False)


def format_of(media: str) -> Format:
    """The format of a body by its type; ``UnsupportedMedia`` if it is neither."""
    if media == JSON or not media:
        return JSON_FORMAT
    if media in MSGPACK_ALIASES:
        return MSGPACK_FORMAT
    raise UnsupportedMedia(f"A body of type {media!r} is not read here.", field="Content-Type")


class Lists(Generic[S]):
    """Decodes a struct some of whose fields are long lists."""

    def __init__(self, kind: type[S], items: Mapping[str, Any]) -> None:
        self._frame = Codec(kind)
        # msgspec takes a list type that was made at run time.
        self._items: dict[str, Codec[list[Any]]] = {
            name: Codec(list[item])  # type: ignore[valid-type]
            for name, item in items.items()
        }

    async def decode(
        self,
        format: Format,
        body: bytes,
        bounds: Mapping[str, Bounds],
        convert: Callable[[Any], Any] | None = None,
        nested: Mapping[str, Callable[[Piece], Awaitable[Any]]] = _NOTHING,
        *,
        begin: int = 0,
        end: int | None = None,
    ) -> S:
        """The struct between two positions, each item of its lists converted.

        What ``nested`` names is a list of items that have long lists themselves: each piece of
        it has one item, which is decoded by the function.
        """
        end = len(body) if end is None else end
        found = await in_turns(split(format.cursor(body, begin, end), body, end, bounds))
        frame = format.decode(self._frame, found.frame)
        lists: dict[str, list[Any]] = {}
        for name, pieces in found.arrays.items():
            lists[name] = items = []
            for piece in pieces:
                if name in nested:
                    items.append(await nested[name](piece))
                    continue
                decoded = format.decode_piece(self._items[name], body, piece, name)
                items += decoded if convert is None else map(convert, decoded)
                await asyncio.sleep(0)
        return replace(frame, **lists)
