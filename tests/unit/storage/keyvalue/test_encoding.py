from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.encoding import (
    Reader,
    pack_utf8,
    pack_var_bytes,
    pack_var_u64,
    prefix_end,
    seal,
    terminated,
    unpack_var_u64,
    unseal,
    untangle,
)
from penstock.testing.laws import law

U64 = st.integers(0, 2**64 - 1)
# Bytes that matter to the escape more often than chance would have it.
TRICKY = st.lists(st.sampled_from([0x00, 0x01, 0x02, 0x61, 0xFF]), max_size=8).map(bytes)
RAW = st.binary(max_size=24) | TRICKY


# -- TerminatedBytes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, encoded",
    [
        ("", "00"),
        ("68656c6c6f", "68656c6c6f00"),
        ("00", "010100"),
        ("01", "010200"),
        ("0001", "0101010200"),
        ("ff", "ff00"),
        ("610062 0163 ff64", "61 0101 62 0102 63 ff 64 00"),
    ],
)
def test_terminated_bytes(raw: str, encoded: str) -> None:
    assert terminated(bytes.fromhex(raw)) == bytes.fromhex(encoded)
    assert untangle(bytes.fromhex(encoded)) == (bytes.fromhex(raw), len(bytes.fromhex(encoded)))


@given(RAW, RAW)
def test_terminated_bytes_keep_the_order(one: bytes, other: bytes) -> None:
    assert (one < other) == (terminated(one) < terminated(other))


@given(RAW, RAW, RAW, RAW)
def test_terminated_bytes_come_before_what_follows(
    one: bytes, other: bytes, after_one: bytes, after_other: bytes
) -> None:
    """Whatever stands behind the terminator, different names never change places."""
    if one != other:
        keys = terminated(one) + after_one, terminated(other) + after_other
        assert (one < other) == (keys[0] < keys[1])


@given(RAW, st.binary(max_size=4), st.binary(max_size=4))
def test_terminated_bytes_are_found_again(raw: bytes, before: bytes, after: bytes) -> None:
    encoded = terminated(raw)
    assert untangle(before + encoded + after, len(before)) == (raw, len(before) + len(encoded))


@given(RAW, RAW)
def test_no_terminated_bytes_begin_another(one: bytes, other: bytes) -> None:
    if one != other:
        assert not terminated(one).startswith(terminated(other))


@law("X1")
@pytest.mark.parametrize(
    "encoded, reason",
    [
        ("", "no terminator"),
        ("68656c6c6f", "no terminator"),
        ("6101", "no terminator"),
        ("610100", "inside an escape"),
        ("0100", "inside an escape"),
        ("610103 00", "unknown escape 01 03"),
        ("61016100", "unknown escape 01 61"),
        ("01ff00", "unknown escape 01 ff"),
    ],
)
def test_terminated_bytes_that_nobody_wrote(encoded: str, reason: str) -> None:
    with pytest.raises(StoreCorrupt, match=reason):
        untangle(bytes.fromhex(encoded))


def test_a_terminator_before_the_start_does_not_count() -> None:
    with pytest.raises(StoreCorrupt):
        untangle(b"a\x00b", 2)


# -- prefixes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix, end", [("61", "62"), ("61ff", "62"), ("00", "01"), ("01ffff", "02"), ("fffe", "ffff")]
)
def test_prefix_end(prefix: str, end: str) -> None:
    assert prefix_end(bytes.fromhex(prefix)) == bytes.fromhex(end)


@given(st.binary(min_size=1, max_size=6), st.binary(max_size=6))
def test_prefix_end_is_the_first_key_behind(prefix: bytes, rest: bytes) -> None:
    if prefix.strip(b"\xff"):
        end = prefix_end(prefix)
        assert prefix <= prefix + rest < end
        assert not end.startswith(prefix)
        assert (rest >= end) or rest.startswith(prefix) or rest < prefix


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_prefixes_without_an_end(prefix: bytes) -> None:
    with pytest.raises(ValueError, match="no end"):
        prefix_end(prefix)


# -- lengths -------------------------------------------------------------------------------


def test_utf8() -> None:
    assert pack_utf8("hello").hex() == "050068656c6c6f"
    assert pack_utf8("").hex() == "0000"
    assert pack_utf8("é").hex() == "0200c3a9"


def test_var_bytes() -> None:
    assert pack_var_bytes(b"hello").hex() == "0500000068656c6c6f"
    assert pack_var_bytes(b"").hex() == "00000000"


# -- var_u64 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, encoded",
    [
        (0, "00"),
        (15, "0f"),
        (16, "1010"),
        (100, "1064"),
        (4095, "1fff"),
        (4096, "201000"),
        (2**20 - 1, "2fffff"),
        (2**20, "30100000"),
        (2**60 - 1, "7f" + "ff" * 7),
        (2**60, "8010" + "00" * 7),
        (2**64 - 1, "80" + "ff" * 8),
    ],
)
def test_var_u64(value: int, encoded: str) -> None:
    assert pack_var_u64(value).hex() == encoded
    assert unpack_var_u64(bytes.fromhex(encoded)) == (value, len(encoded) // 2)


@given(U64, U64)
def test_var_u64_keeps_the_order(one: int, other: int) -> None:
    assert (one < other) == (pack_var_u64(one) < pack_var_u64(other))


@given(st.integers(0, 64).flatmap(lambda bits: st.integers(0, 2**bits - 1)), st.binary(max_size=3))
def test_var_u64_is_found_again(value: int, before: bytes) -> None:
    encoded = before + pack_var_u64(value) + b"\xff"
    assert unpack_var_u64(encoded, len(before)) == (value, len(encoded) - 1)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_var_u64_has_64_bits(value: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        pack_var_u64(value)


@law("X1")
@pytest.mark.parametrize(
    "encoded, reason",
    [
        ("", "ends before"),
        ("10", "truncated"),
        ("2010", "truncated"),
        ("80" + "ff" * 7, "truncated"),
        ("90" + "00" * 9, "truncated"),
        ("f0" + "00" * 15, "truncated"),
        ("100f", "non-canonical"),
        ("1000", "non-canonical"),
        ("200fff", "non-canonical"),
        ("80" + "0f" + "ff" * 7, "non-canonical"),
        ("81" + "00" * 8, "non-canonical"),
    ],
)
def test_var_u64_that_nobody_wrote(encoded: str, reason: str) -> None:
    with pytest.raises(StoreCorrupt, match=reason):
        unpack_var_u64(bytes.fromhex(encoded))


@given(st.binary(max_size=10))
def test_every_number_has_one_form(encoded: bytes) -> None:
    try:
        value, end = unpack_var_u64(encoded)
    except StoreCorrupt:
        return
    assert pack_var_u64(value) == encoded[:end]


# -- seals ---------------------------------------------------------------------------------


def test_a_seal_is_a_little_endian_crc_32() -> None:
    # 0xcbf43926 is the check value of CRC-32.
    assert seal(b"123456789") == b"123456789" + bytes.fromhex("2639f4cb")
    assert unseal(seal(b""), "x") == b""


@law("X1")
@given(st.binary(max_size=40), st.data())
def test_any_flipped_bit_breaks_a_seal(body: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(body))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreCorrupt, match="checksum of a lease record"):
        unseal(bytes(sealed), "lease")


@law("X1")
@pytest.mark.parametrize("length", range(4))
def test_a_seal_cannot_be_shorter_than_itself(length: int) -> None:
    with pytest.raises(StoreCorrupt):
        unseal(bytes(length), "lease")


# -- Reader --------------------------------------------------------------------------------


def test_reader_reads_in_order() -> None:
    value = bytes.fromhex(
        "07 0201 04030201 0807060504030201 ffffffffffffffff 0100 78 02000000 7979 7a7a"
    )
    reader = Reader(value, "test")
    numbers = reader.u8(), reader.u16(), reader.u32(), reader.u64(), reader.i64()
    assert numbers == (7, 0x0102, 0x01020304, 0x0102030405060708, -1)
    assert (reader.utf8(), reader.var_bytes()) == ("x", b"yy")
    left = [reader.exhausted]
    assert reader.raw(2) == b"zz"
    left.append(reader.exhausted)
    assert left == [False, True]
    reader.finish()


@law("X1")
@pytest.mark.parametrize(
    "read, value",
    [
        (Reader.u8, ""),
        (Reader.u16, "00"),
        (Reader.u32, "000000"),
        (Reader.u64, "00000000000000"),
        (Reader.i64, "00000000000000"),
        (Reader.utf8, "0500 6162"),
        (Reader.var_bytes, "05000000 6162"),
        (Reader.var_bytes, "ffffffff"),
    ],
)
def test_reader_refuses_to_run_past_the_end(read: Callable[[Reader], object], value: str) -> None:
    with pytest.raises(StoreCorrupt, match="A test record is truncated"):
        read(Reader(bytes.fromhex(value), "test"))


@law("X1")
def test_reader_refuses_what_is_left_over() -> None:
    reader = Reader(b"\x01\x02", "test")
    reader.u8()
    with pytest.raises(StoreCorrupt, match="has trailing bytes"):
        reader.finish()


@law("X1")
def test_reader_refuses_text_that_is_not_utf8() -> None:
    with pytest.raises(StoreCorrupt, match="not UTF-8"):
        Reader(b"\x01\x00\xff", "test").utf8()
