"""How an engine recognises a settle with publish that is sent again (P4).

A receipt ends one claim once, so the claims that a settle ends identify it: the caller needs no id
of its own. The engine keeps the answer under that id for a while and gives it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.model.delivery import Extend, Outcome, Settlement, SettleReply, Verdict
from penstock.model.message import Durability, MessageId, Offset, Published
from penstock.model.states import State

__all__ = ["REPEAT_WINDOW_MS", "decode_reply", "encode_reply", "settle_id"]

#: How long the answer is kept. A caller that lost its reply repeats within seconds.
REPEAT_WINDOW_MS: Final = 60 * 60 * 1000
_ID_BYTES: Final = 16

_encode: Final = msgspec.msgpack.Encoder().encode
#: The state and the time of every outcome; the id, the offset, and whether it was a duplicate or a
#: replacement, of every message. The receipts are those of the call that repeats it.
_decode: Final = msgspec.msgpack.Decoder(
    tuple[list[tuple[State, int | None]], list[tuple[MessageId, Offset, bool, bool]]]
).decode


def settle_id(settlements: Sequence[Settlement]) -> str | None:
    """The id of a settle with publish; None if it ends no claim, so that it may happen twice."""
    if all(isinstance(item, Extend) for item in settlements):
        return None
    # All of them, in order: the answer that is kept has one outcome for each.
    asked = [f"{type(item).__name__} {item.receipt}" for item in settlements]
    return blake2b("\n".join(asked).encode(), digest_size=_ID_BYTES).hexdigest()


def encode_reply(outcomes: Sequence[Outcome], published: Sequence[Published]) -> bytes:
    """What has to be kept of an answer."""
    states = [(item.state, item.until) for item in outcomes]
    messages = [(item.id, item.offset, item.duplicate, item.replaced) for item in published]
    return _encode((states, messages))


def decode_reply(
    kept: bytes, settlements: Sequence[Settlement], durability: Durability
) -> SettleReply:
    """The answer again, to the settlements it was given to."""
    states, published = _decode(kept)
    outcomes = tuple(
        Outcome(item.receipt, Verdict.OK, state, until)
        for item, (state, until) in zip(settlements, states, strict=True)
    )
    messages = tuple(Published(*fields) for fields in published)
    return SettleReply(outcomes, messages, durability, repeated=True)
