"""Large bodies, decoded piece by piece so that the event loop can run other calls in between.

``penstock.wire.splitting`` finds the pieces. A small body is decoded in one step, which takes
less time than finding its pieces.
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

#: A body up to this size is decoded in one step, in at most ten milliseconds.
DIRECT_BYTES: Final = 64 * 1024
#: Per byte, a batch in MessagePack takes a fifth of the time.
DIRECT_MSGPACK_BYTES: Final = 256 * 1024
#: JSON may escape one byte as six; options and headers come on top of the payload.
_ESCAPED: Final = 6
_OPTIONS_BYTES: Final = 256 * 1024
#: How msgspec reports the index of the wrong item in a list.
_INDEX: Final = re.compile(r"`\$\[(\d+)\]")


_NOTHING: Final[Mapping[str, Any]] = {}


async def in_turns(steps: Steps[T]) -> T:
    """Run work in steps, yielding to the event loop between them; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            outcome: T = done.value
            return outcome
        await asyncio.sleep(0)


def item_bytes(payload_bytes: int) -> int:
    """The most bytes that a message with a payload of that size takes in a body."""
    return _ESCAPED * payload_bytes + _OPTIONS_BYTES


class Format(Struct, frozen=True):
    """JSON or MessagePack: how to find values in a body and how to rebuild lists from pieces."""

    cursor: Callable[[bytes, int, int], Cursor]
    is_json: bool

    def decode(self, codec: Codec[T], body: bytes) -> T:
        """The value of a whole body."""
        return codec.from_json(body) if self.is_json else codec.from_msgpack(body)

    def decode_piece(self, codec: Codec[list[T]], body: bytes, piece: Piece, name: str) -> list[T]:
        """The items of one piece; an error gives the item's index in the whole body."""
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
    """The format for a content type; raises ``UnsupportedMedia`` if it is neither."""
    if media == JSON or not media:
        return JSON_FORMAT
    if media in MSGPACK_ALIASES:
        return MSGPACK_FORMAT
    raise UnsupportedMedia(f"A body of type {media!r} is not supported.", field="Content-Type")


class Lists(Generic[S]):
    """Decodes a struct some of whose fields are long lists."""

    def __init__(self, kind: type[S], items: Mapping[str, Any]) -> None:
        self._frame = Codec(kind)
        # msgspec accepts a list type that is built at run time.
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
        """Decode the struct between two positions and convert each item of its lists.

        ``nested`` names lists whose items contain long lists themselves. Each piece of such a
        list is one item, which the given function decodes.
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
