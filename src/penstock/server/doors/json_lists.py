"""Long lists in the JSON of doors, read and written piece by piece.

A request or a reply may have megabytes for each item of its list. Other calls run between two
items, so the event loop is held for one item at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.server.call import Call
from penstock.server.decoding import DIRECT_BYTES, in_turns, item_bytes
from penstock.server.doors.json_bodies import decode_json
from penstock.server.doors.json_values import check_values
from penstock.server.replies import PART_BYTES, Plain
from penstock.wire.codecs import JSON
from penstock.wire.json_cursor import JsonCursor
from penstock.wire.splitting import Bounds, split

__all__ = ["json_list", "read_json_list"]

S = TypeVar("S", bound=Struct)

_encode: Final = msgspec.json.Encoder().encode


async def read_json_list(
    call: Call, kind: type[S], item: type[Struct], most: int, opaque: AbstractSet[str]
) -> S:
    """The body of a call, whose first field is a list of at most ``most`` items.

    Members of an item whose names are ``opaque`` are kept undecoded. Raises ``BadInput``, also if
    a large body has more items; a small one is decoded, for the caller to refuse.
    """
    body = await call.read_body(call.service.limits.body_bytes)
    if len(body) <= DIRECT_BYTES:
        return decode_json(body, kind)
    name = kind.__struct_fields__[0]
    each = Bounds(most, item_bytes(call.service.payload_bytes), piece_items=1, large_member="")
    cursor = JsonCursor(body, 0, len(body))
    found = await in_turns(split(cursor, body, len(body), {name: each}))
    frame = decode_json(found.frame, kind)
    items = []
    for piece in found.arrays.get(name, ()):
        text = bytes(body[piece.begin : piece.end])
        await check_values(text, opaque)
        items.append(decode_json(text, item))
        await asyncio.sleep(0)
    return replace(frame, **{name: items})


async def json_list(value: Struct, status: int = 200) -> Plain:
    """A value as JSON, whose first field is a list that may be long, or have large items."""
    name = value.__struct_fields__[0]
    # The list is the first field, so the first empty list in the frame is where items go.
    before, _, after = _encode(replace(value, **{name: []})).partition(b"[]")
    sent: list[bytes] = []
    part = [before + b"["]
    size = 0
    for number, item in enumerate(getattr(value, name)):
        encoded = _encode(item)
        part.append(b"," + encoded if number else encoded)
        size += len(encoded)
        if size >= PART_BYTES:
            sent.append(b"".join(part))
            part, size = [], 0
            await asyncio.sleep(0)
    part.append(b"]" + after)
    return Plain(status, [*sent, b"".join(part)], JSON)
