"""The record of a topic's policy."""

from __future__ import annotations

import msgspec

from penstock.errors import StoreCorrupt
from penstock.model.queue import TopicPolicy
from penstock.storage.keyvalue.encoding import seal, unseal

__all__ = ["decode_topic", "encode_topic"]

_decoder = msgspec.msgpack.Decoder(TopicPolicy)


def encode_topic(policy: TopicPolicy) -> bytes:
    """MessagePack, sealed: the policy has text of any length and will grow fields."""
    return seal(msgspec.msgpack.encode(policy))


def decode_topic(value: bytes) -> TopicPolicy:
    """What ``encode_topic`` wrote."""
    try:
        return _decoder.decode(unseal(value, "topic"))
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("A topic record cannot be read.") from error
