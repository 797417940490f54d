from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum
from penstock.model.message import HeaderValue, Message, MessageId, Offset
from penstock.storage.keyvalue.metadata import decode_metadata, encode_metadata, expires_at_of
from penstock.testing.laws import law

TEXT = st.text(max_size=12)
TIMES = st.integers(0, 253_402_300_799_999)
U32 = st.integers(0, 2**32 - 1)
HEADER_VALUES: st.SearchStrategy[HeaderValue] = st.one_of(
    TEXT,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
)
MESSAGES = st.builds(
    Message,
    id=st.integers(0, 2**60).map(MessageId),
    offset=st.integers(0, 2**64 - 1).map(Offset),
    topic=TEXT,
    priority=st.integers(0, 9),
    published_at=TIMES,
    deliver_at=TIMES,
    expires_at=st.none() | TIMES,
    size=U32,
    checksum=U32,
    partition_key=st.none() | TEXT,
    key=st.none() | TEXT,
    content_type=st.none() | TEXT,
    headers=st.dictionaries(TEXT, HEADER_VALUES, max_size=6),
    max_attempts=st.none() | st.integers(1, 65_535),
)

PLAIN = Message(
    id=MessageId(7),
    offset=Offset(7),
    topic="t",
    priority=4,
    published_at=1_000,
    deliver_at=1_000,
    expires_at=None,
    size=2,
    checksum=checksum(b"hi"),
)
FULL = Message(
    id=MessageId(7),
    offset=Offset(9),
    topic="t",
    priority=9,
    published_at=1_000,
    deliver_at=2_000,
    expires_at=3_000,
    size=2,
    checksum=checksum(b"hi"),
    partition_key="p",
    key="k",
    content_type="c",
    headers={"s": "x", "b": True, "i": -2, "f": 0.5, "n": False},
)
# version, offset, published_at, deliver_at, expires_at (never), priority, size, checksum, flags
PLAIN_HEX = (
    "01 0700000000000000 e803000000000000 e803000000000000 ffffffffffffffff 04 02000000 9a6eead7 00"
    "0100 74"  # topic
    "0000"  # headers
    "2f8e7784"  # the CRC-32 of all that, begun with the message id
)
LIMITED = replace(PLAIN, max_attempts=258)
LIMITED_HEX = (
    "01 0700000000000000 e803000000000000 e803000000000000 ffffffffffffffff 04 02000000 9a6eead7 08"
    "0100 74"  # topic
    "0000"  # headers
    "0201"  # max_attempts
    "75e0d1e5"
)
FULL_HEX = (
    "01 0900000000000000 e803000000000000 d007000000000000 b80b000000000000 09 02000000 9a6eead7 07"
    "0100 74"  # topic
    "0100 70 0100 6b 0100 63"  # partition key, key, content type
    "0500"  # headers, by name
    "0100 62 04 01"
    "0100 66 03 000000000000e03f"
    "0100 69 02 feffffffffffffff"
    "0100 6e 04 00"
    "0100 73 01 0100 78"
    "e2105492"
)


@pytest.mark.parametrize(
    "message, encoded", [(PLAIN, PLAIN_HEX), (LIMITED, LIMITED_HEX), (FULL, FULL_HEX)]
)
def test_golden_metadata(message: Message, encoded: str) -> None:
    raw = bytes.fromhex(encoded)
    assert raw[-4:] == checksum(raw[:-4], 7).to_bytes(4, "little")
    assert encode_metadata(message) == raw
    assert decode_metadata(message.id, raw) == message


@law("P3")
@given(MESSAGES)
def test_every_message_is_found_again(message: Message) -> None:
    encoded = encode_metadata(message)
    found = decode_metadata(message.id, encoded)
    assert found == message
    # 1, 1.0 and True are equal to Python and different to a filter.
    kinds = {name: type(value) for name, value in message.headers.items()}
    assert {name: type(value) for name, value in found.headers.items()} == kinds
    assert expires_at_of(encoded) == message.expires_at


@given(MESSAGES)
def test_headers_are_encoded_in_one_order(message: Message) -> None:
    headers = dict(reversed(message.headers.items()))
    other = Message(
        **{name: getattr(message, name) for name in Message.__struct_fields__}
        | {"headers": headers}
    )
    assert encode_metadata(message) == encode_metadata(other)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), -0.0, 5e-324])
def test_floats_keep_every_bit(value: float) -> None:
    message = Message(
        **{name: getattr(PLAIN, name) for name in Message.__struct_fields__}
        | {"headers": {"f": value}}
    )
    (found,) = decode_metadata(7, encode_metadata(message)).headers.values()
    assert isinstance(found, float)
    assert found.hex() == value.hex()


@law("X1")
@pytest.mark.parametrize("message", [PLAIN, FULL], ids=["plain", "full"])
def test_no_flipped_bit_goes_unnoticed(message: Message) -> None:
    encoded = encode_metadata(message)
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorrupt):
            decode_metadata(7, bytes(damaged))


@law("X1")
@given(MESSAGES, st.data())
def test_no_flipped_bit_of_any_message(message: Message, data: st.DataObject) -> None:
    damaged = bytearray(encode_metadata(message))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreCorrupt):
        decode_metadata(message.id, bytes(damaged))


@law("X1")
def test_metadata_that_is_cut_short_or_too_long() -> None:
    encoded = encode_metadata(FULL)
    for length in range(len(encoded)):
        with pytest.raises(StoreCorrupt):
            decode_metadata(7, encoded[:length])
    with pytest.raises(StoreCorrupt):
        decode_metadata(7, encoded + b"\x00")


@law("X1")
def test_a_header_of_an_unknown_type() -> None:
    body = bytes.fromhex(PLAIN_HEX)[:-6] + bytes.fromhex("0100 0100 62 05 01")
    with pytest.raises(StoreCorrupt, match="unknown type 5"):
        decode_metadata(7, body + checksum(body, 7).to_bytes(4, "little"))


@law("X1")
def test_metadata_of_another_version() -> None:
    body = b"\x02" + bytes.fromhex(PLAIN_HEX)[1:-4]
    with pytest.raises(StoreCorrupt, match="unknown format"):
        decode_metadata(7, body + checksum(body, 7).to_bytes(4, "little"))


@law("X1")
@given(MESSAGES, st.integers(0, 63))
def test_metadata_belongs_to_its_message(message: Message, bit: int) -> None:
    """The id stands beside the metadata; a flipped bit there shows in the checksum."""
    with pytest.raises(StoreCorrupt, match="checksum"):
        decode_metadata(message.id ^ 1 << bit, encode_metadata(message))


def test_the_checksum_is_seeded_with_the_whole_id() -> None:
    message_id = 0x12345678_9ABCDEF0
    encoded = encode_metadata(replace(PLAIN, id=MessageId(message_id)))
    assert encoded[-4:] == checksum(encoded[:-4], message_id).to_bytes(4, "little")
