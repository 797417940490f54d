"""Items, their totals, and the neutral records of a dump: the bytes of docs/formats.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.model.message import Message, MessageId, Offset
from penstock.model.states import State, Transition
from penstock.storage import dump
from penstock.storage.copied_receipts import decode_claims, encode_claim
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.sql.transfer.numbering import Numbering
from penstock.storage.transfer import (
    Item,
    Origin,
    Progress,
    Totals,
    decode_progress,
    encode_progress,
)

FORMATS = "".join(Path("docs/formats.md").read_text(encoding="utf-8").split())
ORIGIN = Origin(b"\1" * 16, b"\2" * 16, "keyvalue")


def test_the_progress_of_a_copy_is_what_formats_md_says() -> None:
    assert seal(encode_progress(Progress(ORIGIN))).hex() in FORMATS
    totals = Totals()
    totals.add([Item("payload", b"k", b"v"), Item("log", b"l", b"")])
    progress = Progress(ORIGIN, 3, totals)
    assert decode_progress(encode_progress(progress)) == progress
    with pytest.raises(StoreCorrupt):
        decode_progress(b"\xc1")


def test_totals_notice_every_difference_but_the_order() -> None:
    items = [Item("payload", b"k%d" % nth, b"v%d" % nth) for nth in range(10)]
    one, other = Totals(), Totals()
    one.add(items)
    other.add(reversed(items))
    assert one.difference(other) is None
    for changed in (
        items[1:],
        [*items, items[0]],
        [items[0]._replace(value=b"w"), *items[1:]],
        [items[0]._replace(key=b"w"), *items[1:]],
        [items[0]._replace(kind="log"), *items[1:]],
        [Item("payload", b"k0v", b"0"), *items[1:]],
    ):
        found = Totals()
        found.add(changed)
        assert one.difference(found) is not None


def test_a_dump_record_is_what_formats_md_says() -> None:
    encoded = dump.encode(dump.Position("t", 5))
    assert encoded.hex() in FORMATS
    assert dump.decode(encoded) == dump.Position("t", 5)


def test_every_dump_record_comes_back() -> None:
    message = Message(MessageId(1), Offset(2), "t", 4, 5, 5, None, 1, 7, key="k", headers={"a": 1})
    step = dump.Step(6, Transition.NACK, State.AVAILABLE, error="again")
    for record in (
        dump.StoreInfo(7),
        dump.TenantInfo("t", 5, None, 0),
        dump.Entry("t", message, b"x", newest=False),
        dump.Delivery("t", "q", message, State.DELAYED, dead=True, history=(step,)),
        dump.OpenKey("t", "topic", "k", 1, 4, ("q",)),
        dump.SettleId("t", "q", "i", 1, 2, b"reply"),
        dump.ReplayMark("t", "q", False, 1, "r"),
        dump.Document("kind", "name", b"\xff"),
    ):
        assert dump.decode(dump.encode(record)) == record
    with pytest.raises(StoreCorrupt, match="version"):
        dump.decode(dump.encode(dump.StoreInfo(7, version=99)))
    with pytest.raises(StoreCorrupt):
        dump.decode(b"\x91\xa1x")


def test_receipts_of_before_a_copy() -> None:
    assert decode_claims([("r", encode_claim((1, 2, 3, 4)))]) == {"r": (1, 2, 3, 4)}
    with pytest.raises(StoreCorrupt):
        decode_claims([("r", b"\x91\x01")])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20_000)), max_size=40))
def test_numbers_keep_their_order(steps: list[tuple[int, int]]) -> None:
    numbering, known = Numbering(), dict[int, int]()
    old = new = 100
    for gap, jump in steps:
        old, new = old + gap, new + jump
        numbering.add(old, new)
        known[old] = new
    for number in range(99, old + 2):
        assert numbering.find(number) == known.get(number)
        after = [known[one] for one in sorted(known) if one >= number]
        assert numbering.at_or_after(number) == (after[0] if after else None)
