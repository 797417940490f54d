from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Attempt
from penstock.model.message import Message, MessageId, Offset
from penstock.model.queue import Backoff, Ordering, QueuePolicy, RetryPosition
from penstock.storage.keyvalue.encoding import pack_utf8
from penstock.storage.keyvalue.keys import claim_id_of
from penstock.storage.keyvalue.records import (
    AVAILABLE,
    IN_FLIGHT,
    SETTLED,
    append_attempt,
    array,
    decode_attempts,
    decode_spec,
    encode_spec,
    first_attempt,
    log_value,
    read_available,
    read_in_flight,
    read_log_value,
    read_settled,
)
from penstock.testing.laws import law

#: The claim id of message 7 with priority 9 and exponent 3.
CLAIM = 3 << 60 | 7
#: One Available (message 7, that claim, attempts 0, metadata "hi"), no InFlight.
ACTIVE = bytes.fromhex("0100 0700000000000000 0700000000000030 0000 02000000 6869 0000")
#: The same message in flight from 1,000 to 31,000 ms, attempts 1.
HELD = bytes.fromhex(
    "0100 0700000000000000 0700000000000030 e803000000000000 1879000000000000 0100 02000000 6869"
)
#: The same message done, or failed, at 2,000 ms.
DONE = bytes.fromhex("0100 0700000000000000 0700000000000030 d007000000000000 0100 02000000 6869")
LOGGED = bytes.fromhex("0100 0700000000000000 02000000 6869")
ATTEMPTS = bytes.fromhex("0200 e803000000000000 0200 7731 d007000000000000 0200 7732")


# -- arrays --------------------------------------------------------------------------------


def test_available() -> None:
    element = AVAILABLE.pack(7, CLAIM, 0, 2) + b"hi"
    assert array([element]) + array([]) == ACTIVE
    assert read_available(ACTIVE) == ([(7, CLAIM, 0, b"hi")], len(ACTIVE) - 2)
    assert read_in_flight(ACTIVE, len(ACTIVE) - 2) == ([], len(ACTIVE))


#: The layout with a claim number that is not ours: 12345 for message 7.
FOREIGN = bytes.fromhex("0100 0700000000000000 3930000000000030 0000 02000000 6869 0000")


def test_available_has_the_layout_of_the_rfc() -> None:
    element = AVAILABLE.pack(7, 3 << 60 | 12345, 0, 2) + b"hi"
    assert array([element]) + array([]) == FOREIGN


def test_a_vector_of_another_writer_is_read_as_it_is() -> None:
    assert read_available(FOREIGN)[0] == [(7, 3 << 60 | 12345, 0, b"hi")]


def test_in_flight() -> None:
    assert array([IN_FLIGHT.pack(7, CLAIM, 1_000, 31_000, 1, 2) + b"hi"]) == HELD
    assert read_in_flight(HELD, 0) == ([(7, CLAIM, 1_000, 31_000, 1, b"hi")], len(HELD))


def test_settled() -> None:
    assert array([SETTLED.pack(7, CLAIM, 2_000, 1, 2) + b"hi"]) == DONE
    assert read_settled(DONE) == [(7, CLAIM, 2_000, 1, b"hi")]


def _message(message_id: int) -> Message:
    return Message(MessageId(message_id), Offset(message_id), "t", 4, 0, 0, None, 0, 0)


def test_message_metadata() -> None:
    assert log_value([(_message(7), b"hi")]) == LOGGED
    assert list(read_log_value(LOGGED)) == [(7, b"hi")]


def test_a_log_entry_holds_a_commits_messages() -> None:
    value = log_value([(_message(7), b"hi"), (_message(8), b"")])
    assert value.hex() == "0200" + "0700000000000000020000006869" + "080000000000000000000000"


ROWS = st.lists(
    st.builds(
        lambda message_id, exponent, priority, *rest: (
            message_id,
            claim_id_of(exponent, priority, message_id),
            *rest,
        ),
        st.integers(0, 10**17 - 1),
        st.integers(0, 4),
        st.integers(0, 9),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**16 - 1),
        st.binary(max_size=20),
    ),
    max_size=5,
)


@given(ROWS)
def test_settled_rows_are_found_again(rows: list[tuple[int, int, int, int, bytes]]) -> None:
    value = array([SETTLED.pack(*row[:-1], len(row[-1])) + row[-1] for row in rows])
    assert read_settled(value) == rows


READERS: list[tuple[bytes, Callable[[bytes], object]]] = [
    (ACTIVE, lambda value: read_in_flight(value, read_available(value)[1])),
    (HELD, lambda value: read_in_flight(value, 0)),
    (DONE, read_settled),
    (LOGGED, lambda value: list(read_log_value(value))),
    (ATTEMPTS, decode_attempts),
]


@law("X1")
@pytest.mark.parametrize("value, read", READERS)
def test_records_that_are_cut_short(value: bytes, read: Callable[[bytes], object]) -> None:
    for length in range(len(value)):
        with pytest.raises(StoreCorrupt):
            read(value[:length])


@law("X1")
@pytest.mark.parametrize("value, read", READERS[2:])
def test_records_that_are_too_long(value: bytes, read: Callable[[bytes], object]) -> None:
    with pytest.raises(StoreCorrupt, match="has trailing bytes"):
        read(value + b"\x00")


@law("X1")
@given(st.binary(max_size=60))
def test_garbage_is_read_or_refused_but_never_guessed(value: bytes) -> None:
    for _, read in READERS:
        try:
            read(value)
        except StoreCorrupt as error:
            assert error.law == "X1"  # noqa: PT017  (either outcome is fine)


# -- attempts ------------------------------------------------------------------------------


def test_attempts() -> None:
    value = append_attempt(None, 1_000, pack_utf8("w1"))
    assert value == first_attempt(1_000, pack_utf8("w1"))
    assert value.hex() == "0100" + "e803000000000000" + "02007731"
    value = append_attempt(value, 2_000, pack_utf8("w2"))
    assert value == ATTEMPTS
    assert decode_attempts(value) == [Attempt(1_000, "w1"), Attempt(2_000, "w2")]
    assert decode_attempts(None) == []


def test_the_oldest_attempt_goes_when_the_count_would_not_fit() -> None:
    full = b"\xff\xff" + first_attempt(1, pack_utf8("first"))[2:]
    full += first_attempt(2, pack_utf8("w"))[2:] * 65_534
    value = append_attempt(full, 3, pack_utf8("last"))
    attempts = decode_attempts(value)
    assert len(attempts) == 65_535
    assert (attempts[0], attempts[-1]) == (Attempt(2, "w"), Attempt(3, "last"))


@law("X1")
@pytest.mark.parametrize("value", [b"", b"\x01"])
def test_an_attempt_after_a_damaged_record(value: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        append_attempt(value, 1, pack_utf8("w"))


# -- the queue specification ---------------------------------------------------------------

POLICIES = st.builds(
    QueuePolicy,
    filter=st.text(max_size=40),
    max_attempts=st.integers(1, 65_535),
    lease_ms=st.integers(1, 10**7),
    min_lease_ms=st.integers(1, 10**7),
    max_lease_ms=st.integers(1, 10**7),
    backoff=st.builds(Backoff, st.integers(0, 10**7), st.integers(0, 10**7)),
    done_retention_s=st.integers(0, 2**32 - 1),
    failed_retention_s=st.integers(0, 2**32 - 1),
    max_depth=st.none() | st.integers(1, 2**53),
    message_ttl_ms=st.none() | st.integers(1, 2**40),
    throughput_limit=st.none() | st.integers(1, 10**9),
    ordering=st.sampled_from(Ordering),
    partition_concurrency=st.integers(1, 1000),
    partition_batch=st.integers(1, 1000),
    retry_position=st.sampled_from(RetryPosition),
    bucket_size=st.integers(0, 4),
    paused=st.booleans(),
    dead_letters=st.booleans(),
    dead_letter_topic=st.none() | st.sampled_from(["dead", "t" * 128]),
    dead_letter_expired=st.booleans(),
    description=st.text(max_size=20),
    labels=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
FACTS = {"queue_number": 2, "filter_version": 1, "created_at": 1_700_000_000_000}

#: What the RFC has, and nothing behind it.
RFC_SPEC = bytes.fromhex("02000000 01 54 0500 100e0000 02 0200 6869")


@given(POLICIES)
def test_a_specification_is_found_again(policy: QueuePolicy) -> None:
    assert decode_spec(encode_spec(policy, FACTS)) == (policy, FACTS)


def test_the_head_of_a_specification_is_the_rfcs() -> None:
    policy = QueuePolicy(filter="T", description="hi")
    assert encode_spec(policy, FACTS).startswith(RFC_SPEC)


@law("X1")
def test_a_specification_without_its_checksum() -> None:
    with pytest.raises(StoreCorrupt, match="checksum"):
        decode_spec(RFC_SPEC)
    with pytest.raises(StoreCorrupt, match="checksum"):
        decode_spec(RFC_SPEC + b"\x00\x00")


def test_golden_specification() -> None:
    """The checksum goes over the RFC's part and over the later fields as text."""
    value = encode_spec(QueuePolicy(filter="T", description="hi"), {"queue_number": 2})
    listed = (
        b"backoff_base_ms=1000,backoff_max_ms=300000,failed_retention_s=1209600,"
        b"max_lease_ms=43200000,min_lease_ms=100,ordered=0,partition_concurrency=1,paused=0,"
        b"queue_number=2,visibility_timeout_ms=30000"
    )
    checksum = zlib.crc32(RFC_SPEC + listed).to_bytes(8, "little")
    field = pack_utf8("checksum") + bytes.fromhex("08000000") + checksum
    assert value.startswith(RFC_SPEC + b"\x0b\x00")
    assert field in value


def test_golden_labels() -> None:
    """Labels are JSON with sorted names, the only field that is text."""
    value = encode_spec(QueuePolicy(labels={"tier": "1", "team": "é"}), {})
    text = '{"team":"é","tier":"1"}'.encode()
    assert pack_utf8("labels") + len(text).to_bytes(4, "little") + text in value
    assert b"labels" not in encode_spec(QueuePolicy(), {})


@law("X1")
def test_no_flipped_bit_of_a_specification_goes_unnoticed() -> None:
    policy = QueuePolicy(filter="T", description="hi", labels={"a": "é"})
    value = encode_spec(policy, FACTS)
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorrupt):
            decode_spec(bytes(damaged))


def test_later_fields_are_sorted_by_name() -> None:
    value = encode_spec(QueuePolicy(max_depth=3), FACTS)
    names = [b"backoff_base_ms", b"created_at", b"filter_version", b"max_depth", b"queue_number"]
    places = [value.index(name) for name in names]
    assert places == sorted(places)


@law("X1")
def test_a_specification_that_is_cut_short() -> None:
    value = encode_spec(QueuePolicy(filter="T", description="hi"), FACTS)
    for length in range(len(value)):
        with pytest.raises(StoreCorrupt):
            decode_spec(value[:length])


@law("X1")
@pytest.mark.parametrize(
    "value",
    [
        b"\x02" + RFC_SPEC[1:4] + b"\x02" + RFC_SPEC[5:],
        b"\x00\x00\x00\x00" + RFC_SPEC[6:],
        encode_spec(QueuePolicy(), FACTS) + b"\x00",
    ],
    ids=["filter of another version", "no filter at all", "something behind it"],
)
def test_a_specification_that_nobody_wrote(value: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode_spec(value)
