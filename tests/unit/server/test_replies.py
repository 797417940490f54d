"""Long replies: the same bytes as in one go, in few parts."""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.delivery import Delivery, Receipt
from penstock.model.message import Message, MessageId, Offset
from penstock.server.replies import PART_BYTES, encode
from penstock.wire.bodies import ClaimReply


def delivery(number: int) -> Delivery:
    message = Message(MessageId(number), Offset(number), "t", 5, 0, 0, None, 1_024, 0)
    return Delivery("q", Receipt(f"r{number}"), message, b"x" * 1_024, 1, 0, 1)


@pytest.mark.parametrize("count", [1, 15, 16, 100, 101, 250, 1_000])
async def test_a_long_list_is_encoded_in_few_parts(count: int) -> None:
    reply = ClaimReply([delivery(number) for number in range(count)])
    body = (await encode(reply, 200, as_msgpack=True)).body
    parts = [body] if isinstance(body, bytes) else body
    assert msgspec.msgpack.decode(b"".join(parts), type=ClaimReply) == reply
    # One small write per message would fill the receiver's buffer with overhead.
    assert len(parts) <= 4 * sum(map(len, parts)) // PART_BYTES + 3
