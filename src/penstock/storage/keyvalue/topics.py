"""The record of a topic's policy."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict

from penstock.errors import StoreCorrupt
from penstock.model.queue import TopicPolicy
from penstock.storage.keyvalue.encoding import seal, unseal

__all__ = ["decode_topic", "encode_topic"]

_DEFAULT = TopicPolicy()
_decoder = msgspec.msgpack.Decoder(TopicPolicy)


def encode_topic(policy: TopicPolicy) -> bytes:
    """Sealed MessagePack: the policy has text of any length and may gain fields."""
    fields = asdict(policy)
    if not policy.queue_defaults:
        del fields["queue_defaults"]
    if policy.dedup_scope == _DEFAULT.dedup_scope:
        del fields["dedup_scope"]  # As before the field existed.
    return seal(msgspec.msgpack.encode(fields))


def decode_topic(value: bytes) -> TopicPolicy:
    """Decode what ``encode_topic`` wrote."""
    try:
        return _decoder.decode(unseal(value, "topic"))
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("A topic record cannot be read.") from error
