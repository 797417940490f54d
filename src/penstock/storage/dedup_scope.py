"""Where idempotency ids are unique: the topic, or the topic and the partition key (P4).

In the second case engines store a hash of both, of fixed length: together they may be longer than
a key of the store. It is stored apart from the ids of the topic, so a hash never equals an id.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from penstock.model.queue import TopicPolicy

__all__ = ["is_partitioned", "stored_id"]

#: Two ids with the same hash would lose a message, so it is as long as that of a signature.
_ID_BYTES: Final = 32


def is_partitioned(policy: TopicPolicy) -> bool:
    """Whether ids are unique per partition only."""
    return policy.dedup_scope == "partition_key"


def stored_id(policy: TopicPolicy, id: str, partition_key: str | None) -> str:
    """The text under which the id of a message with this partition key is remembered."""
    if not is_partitioned(policy):
        return id
    partition = (partition_key or "").encode()
    prefix = len(partition).to_bytes(4, "big")
    return blake2b(prefix + partition + id.encode(), digest_size=_ID_BYTES).hexdigest()
