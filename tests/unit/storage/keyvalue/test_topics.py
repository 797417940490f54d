from __future__ import annotations

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.queue import TopicPolicy
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.topics import decode_topic, encode_topic
from penstock.testing.laws import law

POLICIES = [
    TopicPolicy(),
    TopicPolicy(default_ttl_ms=1, dedup_window_ms=0),
    TopicPolicy(dedup_scope="partition_key"),
    TopicPolicy(schema_type="json-schema", schema='{"type": "object"}'),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_topic_is_found_again(policy: TopicPolicy) -> None:
    assert decode_topic(encode_topic(policy)) == policy


def test_fields_that_are_not_there_have_their_defaults() -> None:
    assert decode_topic(seal(b"\x80")) == TopicPolicy()


@law("X1")
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93", b"\x81\xaedefault_ttl_ms\xa1x"])
def test_a_topic_that_nobody_wrote(body: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode_topic(seal(body))


@law("X1")
def test_any_flipped_bit() -> None:
    encoded = encode_topic(TopicPolicy())
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorrupt):
            decode_topic(bytes(damaged))
