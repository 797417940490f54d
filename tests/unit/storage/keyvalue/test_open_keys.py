from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.open_keys import OpenKey
from penstock.testing.laws import law

OPEN_KEYS = st.builds(
    OpenKey,
    message_id=st.integers(0, 2**64 - 1),
    priority=st.integers(0, 9),
    queues=st.lists(st.text(max_size=8), max_size=4).map(tuple),
)


def test_golden_open_key() -> None:
    body = bytes.fromhex("0700000000000000 04 0200 0100 61 0100 62")
    assert OpenKey(7, 4, ("a", "b")).encode() == seal(body)
    assert OpenKey.decode(seal(body)) == OpenKey(7, 4, ("a", "b"))


@given(OPEN_KEYS)
def test_an_open_key_is_found_again(record: OpenKey) -> None:
    assert OpenKey.decode(record.encode()) == record


@law("X1")
@given(OPEN_KEYS, st.data())
def test_any_flipped_bit(record: OpenKey, data: st.DataObject) -> None:
    damaged = bytearray(record.encode())
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreCorrupt):
        OpenKey.decode(bytes(damaged))


@law("X1")
def test_an_open_key_that_is_cut_short() -> None:
    body = OpenKey(7, 4, ("a",)).encode()[:-4]
    with pytest.raises(StoreCorrupt):
        OpenKey.decode(seal(body[:-1]))
