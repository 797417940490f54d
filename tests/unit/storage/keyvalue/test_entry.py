from __future__ import annotations

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.checksum import checksum
from penstock.model.message import Message, MessageId, Offset
from penstock.storage.keyvalue.entry import LEASE, Entry
from penstock.storage.keyvalue.keys import claim_id_of
from penstock.storage.keyvalue.metadata import encode_metadata
from penstock.testing.laws import law

CLAIM = claim_id_of(2, 4, 7)
HEAD = "0700000000000000 0700b2d3595bf026"


def _entry() -> Entry:
    return Entry.waiting(7, CLAIM, 1, b"hi")


def test_the_forms_of_an_entry() -> None:
    entry = _entry()
    available = bytes.fromhex(HEAD + "0100 02000000 6869")
    assert entry.encoded == available
    entry.claimed_at = 1_000
    entry.hold(31_000)
    held = HEAD + "e803000000000000 1879000000000000 0100 02000000 6869"
    assert entry.encoded == bytes.fromhex(held)
    assert entry.deadline == 31_000
    entry.rest()
    assert entry.encoded == available
    entry.at = 2_000
    entry.rest_failed()
    failed = bytes.fromhex(HEAD + "d007000000000000 0100 02000000 6869")
    assert entry.encoded == failed == entry.settled(2_000)


def test_a_lease_is_claim_grant_epoch_and_time_of_failure() -> None:
    assert LEASE.pack(CLAIM, 2, 3, 4).hex() == (
        "0700b2d3595bf026020000000000000003000000000000000400000000000000"
    )


def test_metadata_is_decoded_when_somebody_asks() -> None:
    message = Message(MessageId(7), Offset(7), "t", 4, 0, 0, None, 2, checksum(b"hi"))
    entry = Entry.waiting(7, CLAIM, 0, encode_metadata(message))
    assert entry.loaded is None
    assert entry.message == message
    assert entry.message is entry.message


@law("X1")
def test_damaged_metadata_is_noticed_when_somebody_asks() -> None:
    with pytest.raises(StoreCorrupt):
        _ = _entry().message


def test_a_replacement_takes_new_metadata_at_the_same_place() -> None:
    message = Message(MessageId(7), Offset(9), "t", 4, 0, 0, None, 2, checksum(b"hi"))
    metadata = encode_metadata(message)
    entry = _entry()
    entry.replace(metadata, message)
    assert entry.message is message
    assert entry.encoded == Entry.waiting(7, CLAIM, 1, metadata).encoded
