"""Recognises a repeated settle with publish (P4).

A receipt ends one claim once, so the receipts of a settle identify it and the caller needs no id.
The engine keeps the reply under that id for a while and returns it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from penstock.model.delivery import Extend, Outcome, Settlement, SettleReply, Verdict
from penstock.model.message import Durability, MessageId, Offset, Published
from penstock.model.states import State

__all__ = ["REPEAT_WINDOW_MS", "decode_reply", "encode_reply", "settle_id"]

#: How long the reply is kept. A caller that lost it repeats the call within seconds.
REPEAT_WINDOW_MS: Final = 60 * 60 * 1000
_ID_BYTES: Final = 16

_encode: Final = msgspec.msgpack.Encoder().encode


class _Message(Struct, frozen=True, array_like=True):
    """The stored outcome of one message. Replies stored before 1.0 have no ``queues``."""

    id: MessageId
    offset: Offset
    duplicate: bool
    replaced: bool
    queues: int | None = None


#: State and time of every outcome, and the messages. Receipts are not stored: the repeated call
#: has them.
_decode: Final = msgspec.msgpack.Decoder(
    tuple[list[tuple[State, int | None]], list[_Message]]
).decode


def settle_id(settlements: Sequence[Settlement]) -> str | None:
    """The id of a settle with publish. None if it only extends: repeating it publishes again."""
    if all(isinstance(item, Extend) for item in settlements):
        return None
    # All settlements, in order: the stored reply has one outcome for each.
    asked = [f"{type(item).__name__} {item.receipt}" for item in settlements]
    return blake2b("\n".join(asked).encode(), digest_size=_ID_BYTES).hexdigest()


def encode_reply(outcomes: Sequence[Outcome], published: Sequence[Published]) -> bytes:
    """The parts of a reply that must be stored."""
    states = [(item.state, item.until) for item in outcomes]
    messages = [
        _Message(item.id, item.offset, item.duplicate, item.replaced, item.queues)
        for item in published
    ]
    return _encode((states, messages))


def decode_reply(
    kept: bytes, settlements: Sequence[Settlement], durability: Durability
) -> SettleReply:
    """The stored reply, with the receipts of the repeated settlements."""
    states, published = _decode(kept)
    outcomes = tuple(
        Outcome(item.receipt, Verdict.OK, state, until)
        for item, (state, until) in zip(settlements, states, strict=True)
    )
    messages = tuple(
        Published(item.id, item.offset, item.duplicate, item.replaced, item.queues)
        for item in published
    )
    return SettleReply(outcomes, messages, durability, repeated=True)
