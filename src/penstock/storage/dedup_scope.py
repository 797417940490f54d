"""Where idempotency ids are unique: the topic, or the topic and the partition key (P4).

In the second case engines store a hash of both, of fixed length: together they may be longer than
a key of the store. It is stored apart from the ids of the topic, so a hash never equals an id.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from penstock.model.message import NewMessage
from penstock.model.queue import TopicPolicy

__all__ = ["is_partitioned", "stored_id"]

#: Two ids with the same hash would lose a message, so it is as long as that of a signature.
_ID_BYTES: Final = 32


def is_partitioned(policy: TopicPolicy) -> bool:
    """Whether ids are unique per partition only."""
    return policy.dedup_scope == "partition_key"


def stored_id(policy: TopicPolicy, new: NewMessage) -> str:
    """The text under which the message's id is remembered. The message must have an id."""
    assert new.id is not None
    if not is_partitioned(policy):
        return new.id
    partition = (new.partition_key or "").encode()
    prefix = len(partition).to_bytes(4, "big")
    return blake2b(prefix + partition + new.id.encode(), digest_size=_ID_BYTES).hexdigest()
