from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue import keys
from penstock.storage.keyvalue.keys import (
    LANE_SPAN,
    LANES,
    LogKeys,
    QueueKeys,
    bucket_of,
    check_claim_id,
    claim_id_of,
    claim_ranges,
    message_id_of,
)
from penstock.testing.laws import law

PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats.md"
EXPONENTS = st.integers(0, 4)
PRIORITIES = st.integers(0, 9)
IDS = st.integers(0, 10**17 - 1)
QUEUE = QueueKeys("default", "orders")
#: TerminatedBytes of default/orders, and what a claim id of message 7 looks like in it.
NAME = "64656661756c742f6f726465727300"
CLAIM = claim_id_of(2, 4, 7)


def test_bucket_and_claim_of_the_rfc() -> None:
    claim_id = 3 << 60 | 12345
    assert f"{claim_id:016x}" == "3000000000003039"
    assert f"{bucket_of(claim_id):016x}" == "3000000000002ee0"
    active = keys.SPEC_PREFIX[:1] + b"\x02" + b"orders\x00" + bucket_of(claim_id).to_bytes(8, "big")
    assert active.hex() == "01026f7264657273003000000000002ee0"


@pytest.mark.parametrize(
    "exponent, bucket",
    [
        (0, "0000000000003039"),
        (1, "1000000000003034"),
        (2, "200000000000300c"),
        (3, "3000000000002ee0"),
        (4, "4000000000002710"),
    ],
)
def test_a_bucket_begins_at_a_multiple_of_its_capacity(exponent: int, bucket: str) -> None:
    assert f"{bucket_of(exponent << 60 | 12345):016x}" == bucket


@pytest.mark.parametrize(
    "exponent, priority, message_id, claim",
    [
        (2, 9, 0, "2000000000000000"),
        (2, 9, 7, "2000000000000007"),
        (2, 4, 0, "26f05b59d3b20000"),
        (2, 4, 7, "26f05b59d3b20007"),
        (0, 4, 7, "06f05b59d3b20007"),
        (2, 0, 7, "2c7d713b49da0007"),
    ],
)
def test_claim_ids(exponent: int, priority: int, message_id: int, claim: str) -> None:
    assert f"{claim_id_of(exponent, priority, message_id):016x}" == claim


def test_ten_lanes_fit_and_no_bucket_lies_in_two() -> None:
    assert LANES * LANE_SPAN < 1 << 60
    assert all(LANE_SPAN % 10**exponent == 0 for exponent in range(5))


@law("C4")
@given(EXPONENTS, PRIORITIES, IDS, PRIORITIES, IDS)
def test_claim_order_is_priority_then_publish_order(
    exponent: int, one: int, one_id: int, other: int, other_id: int
) -> None:
    expected = (-one, one_id) < (-other, other_id)
    assert (claim_id_of(exponent, one, one_id) < claim_id_of(exponent, other, other_id)) == expected


@given(EXPONENTS, PRIORITIES, IDS)
def test_a_claim_id_gives_its_message_id_back(
    exponent: int, priority: int, message_id: int
) -> None:
    assert message_id_of(claim_id_of(exponent, priority, message_id)) == message_id


@given(EXPONENTS, PRIORITIES, IDS)
def test_a_bucket_holds_its_capacity_and_no_more(
    exponent: int, priority: int, message_id: int
) -> None:
    claim_id = claim_id_of(exponent, priority, message_id)
    bucket_id = bucket_of(claim_id)
    assert 0 <= claim_id - bucket_id < 10**exponent
    assert bucket_of(bucket_id) == bucket_id
    assert bucket_of(bucket_id + 10**exponent - 1) == bucket_id


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sets(EXPONENTS),
    EXPONENTS,
    PRIORITIES,
    st.integers(0, 10**6),
)
def test_claim_ranges_hold_exactly_those_messages(
    low: int, high: int, exponents: set[int], exponent: int, priority: int, message_id: int
) -> None:
    claim_id = claim_id_of(exponent, priority, message_id)
    inside = any(a <= claim_id < b for a, b in claim_ranges(low, high, exponents))
    assert inside == (low <= message_id < high and exponent in exponents)


# -- golden keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key, expected",
    [
        (keys.payload_key(7), "0101 0000000000000007"),
        (QUEUE.active, "0102" + NAME),
        (QUEUE.done, "0103" + NAME),
        (QUEUE.failed, "0104" + NAME),
        (QUEUE.attempts, "0105" + NAME),
        (QUEUE.spec, "0106" + NAME[:-2]),
        (keys.FORMAT_KEY, "010700"),
        (QUEUE.state, "010701" + NAME),
        (QUEUE.leases, "010702" + NAME),
        (QUEUE.delayed_at(0x18BCFE56BF2, CLAIM), f"010703{NAME}0000018bcfe56bf226f05b59d3b20007"),
        (QUEUE.place, "010704" + NAME),
        (QUEUE.expires_at(0x18BCFE56BFC, CLAIM), f"010705{NAME}0000018bcfe56bfc26f05b59d3b20007"),
        (QUEUE.trail, "010706" + NAME),
        (QUEUE.result, "010707" + NAME),
        (QUEUE.expired, "010708" + NAME),
        (QUEUE.slot(3, 0x1B05515, CLAIM), f"010709{NAME}030000000001b0551526f05b59d3b20007"),
        (QUEUE.partition, "01070a" + NAME),
        (QUEUE.partition_sequence("p"), f"01070b{NAME}7000"),
        (QUEUE.consumer, "01070c" + NAME),
        (QUEUE.position, "01071c" + NAME),
        (QUEUE.replay_mark(7, "r1"), f"01070d{NAME}0000000000000007 7231"),
        (keys.topic_key("default", "mail"), "01070e 64656661756c7400 6d61696c"),
        (keys.tenant_key("default"), "01070f 64656661756c74"),
        (keys.dedup_key("default", "mail", "id1"), "010710 64656661756c742f6d61696c00 696431"),
        (keys.dedup_slot_key(0x1B05551, 5), "010711 0000000001b05551 0000000000000005"),
        (keys.open_key("default", "mail", "k"), "010712 64656661756c742f6d61696c00 6b"),
        (keys.replaced_key(5), "010713 0000000000000005"),
        (keys.QUEUE_NUMBER_KEY, "010714"),
        (keys.replacement_key(6), "010715 0000000000000006"),
        (keys.document_key("keys", "k1"), "010716 6b65797300 6b31"),
        (keys.documents_prefix("keys"), "010716 6b65797300"),
        (keys.batch_key("default", "late", "b1"), "010717 64656661756c742f6c61746500 6231"),
        (keys.SEQ_BLOCK_KEY, "0301 00000000 20"),
        (keys.segment_meta_key(1), "0301 00000000 30 00000001"),
    ],
)
def test_golden_keys(key: bytes, expected: str) -> None:
    assert key == bytes.fromhex(expected)


def test_golden_keys_of_a_queue_that_is_keyed_by_its_number() -> None:
    later, dead = QueueKeys("default", "orders", 6), QueueKeys("default", "orders.dlq", 6)
    page = re.sub(r"\s", "", PAGE.read_text())
    for queue in (later, dead):
        key = (queue.active + bucket_of(CLAIM).to_bytes(8, "big")).hex()
        assert f"key{key}" in page
    assert later.active.hex() == "0102" + "64656661756c742f6f72646572732f36" + "00"
    assert later.spec == QUEUE.spec
    assert dead.attempts == later.attempts != QUEUE.attempts
    ranges = {start for start, _ in QUEUE.ranges()}
    assert ranges.isdisjoint(start for start, _ in later.ranges())


def test_golden_log_keys() -> None:
    user = b"opendata-queue/penstock/messages/metadata/default"
    log = LogKeys("default")
    assert log.entry(1, 100) == bytes.fromhex("03010000000110") + user + bytes.fromhex("001064")
    assert log.listing(1) == bytes.fromhex("03010000000140") + user
    assert keys.segment_range(1) == (bytes.fromhex("030100000001"), bytes.fromhex("030100000002"))


def test_dead_letters_share_their_queues_failed_attempts_and_trail() -> None:
    dead = QueueKeys("default", "orders.dlq")
    assert (dead.failed, dead.attempts, dead.trail) == (QUEUE.failed, QUEUE.attempts, QUEUE.trail)
    assert dead.active != QUEUE.active
    assert dead.result != QUEUE.result


@given(st.tuples(st.text(max_size=4), st.text(max_size=4)))
def test_the_ranges_of_a_queue_hold_its_keys_and_no_other_queues(other: tuple[str, str]) -> None:
    mine, theirs = QueueKeys("t", "q"), QueueKeys(*other)
    own = [getattr(mine, name) for name in QueueKeys.__slots__ if name not in {"_name", "spec"}]
    assert all(any(a <= key < b for a, b in mine.ranges()) for key in own)
    if "/".join(other).removesuffix(".dlq") != "t/q":
        foreign = [getattr(theirs, name) for name in QueueKeys.__slots__ if name != "_name"]
        assert not any(a <= key < b for a, b in mine.ranges() for key in foreign)


@law("L1")
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_log_keys_sort_by_offset(segment: int, one: int, other: int) -> None:
    log = LogKeys("default")
    assert (one < other) == (log.entry(segment, one) < log.entry(segment, other))


@law("T1")
def test_one_tenants_log_is_not_inside_another() -> None:
    assert not LogKeys("ab").entry(1, 0).startswith(LogKeys("a").prefix(1))


@law("X1")
def test_a_claim_id_ends_in_its_message_id() -> None:
    claim_id = claim_id_of(2, 4, 7)
    check_claim_id(claim_id, 7)
    for bit in (0, 13, 40):
        with pytest.raises(StoreCorrupt):
            check_claim_id(claim_id, 7 ^ 1 << bit)
        with pytest.raises(StoreCorrupt):
            check_claim_id(claim_id ^ 1 << bit, 7)
