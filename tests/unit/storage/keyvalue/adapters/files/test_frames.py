"""Frames: damage is told from a torn tail, byte by byte and bit by bit (X1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage.keyvalue.adapters.files.commit_body import (
    decode_commit,
    encode_commit,
    split_commit,
)
from penstock.storage.keyvalue.adapters.files.frames import (
    NO_HASH,
    DamagedFrame,
    Frame,
    TornFrame,
    encode_frame,
    read_frame,
    read_frames,
)
from penstock.storage.keyvalue.keys import payload_key
from penstock.testing.laws import law

SALT = 0x1234ABCD
GOLDEN = bytes.fromhex(
    "50534631 0100000000000000 0000000000000000 0102030405060708 2100000000000000 47e6fe08 a5"
    "18000000 949192c40163c4016482c40161c40131c40162c091079105 68656c6c6f"
    "2743a393 b5ddaf505843dd9a a5"
)
#: Bodies that end in one-bit bytes, are empty, or have whole sectors of zeros.
BODIES = [b"", b"@", b"first" * 20, bytes(1100) + b"\x01", b" " * 700, bytes(2000), b"last\x01"]


def chain(bodies: list[bytes], synced: int | None = None) -> tuple[bytes, list[bytes]]:
    """A file of frames, and the frames."""
    raw, previous = encode_frame(0, 0, NO_HASH, b"title")
    frames = [raw]
    for number, body in enumerate(bodies, 1):
        known = number - 1 if synced is None else min(synced, number - 1)
        frame, previous = encode_frame(number, known, previous, body, sum(map(len, frames)), SALT)
        frames.append(frame)
    return b"".join(frames), frames


def read(content: bytes) -> Iterator[Frame]:
    title = read_frame(content)
    yield from read_frames(content, title, SALT)


def outcome(content: bytes) -> list[bytes] | str:
    """The bodies, up to a torn frame, or ``damaged``."""
    found = []
    try:
        for frame in read(content):
            found.append(frame.body)
    except TornFrame:
        pass
    except DamagedFrame:
        return "damaged"
    return found


def test_what_was_written_is_read() -> None:
    content, frames = chain(BODIES)
    read_back = list(read(content))
    assert [frame.body for frame in read_back] == BODIES
    assert [frame.sequence for frame in read_back] == list(range(1, len(BODIES) + 1))
    for frame in read_back:
        assert content[frame.start : frame.start + len(frame.body)] == frame.body
    assert read_back[-1].end == len(content) == sum(map(len, frames))


@law("X1")
def test_the_golden_frame_is_on_the_page_of_formats() -> None:
    writes = {b"a": b"1", b"b": None, payload_key(7): b"hello"}
    head, payloads = split_commit(writes, [(b"c", b"d")])
    body, start = encode_commit(head, payloads)
    raw, _ = encode_frame(1, 0, bytes.fromhex("0102030405060708"), body, 0, SALT)
    assert raw == GOLDEN
    page = (Path(__file__).parents[6] / "docs" / "formats.md").read_text()
    assert GOLDEN.hex() in "".join(page.split())
    frame = read_frame(GOLDEN, 0, SALT)
    commit = decode_commit(frame.body)
    assert (commit.head, commit.payloads, commit.start) == (head, payloads, start)


@law("X1")
def test_a_file_that_is_cut_anywhere_has_the_frames_before_the_cut() -> None:
    content, frames = chain(BODIES)
    ends = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    for size in range(ends[0], len(content)):
        whole = sum(end <= size for end in ends) - 1
        assert outcome(content[:size]) == BODIES[:whole], size


@law("X1")
def test_no_flipped_bit_looks_like_a_torn_frame() -> None:
    content, frames = chain(BODIES)
    damaged = bytearray(content)
    for bit in range(8 * len(frames[0]), 8 * len(content)):
        damaged[bit // 8] ^= 1 << bit % 8
        assert outcome(bytes(damaged)) == "damaged", bit
        damaged[bit // 8] ^= 1 << bit % 8


def zeroed(content: bytes, sector: int) -> bytes:
    return content[: 512 * sector] + bytes(512) + content[512 * (sector + 1) :]


@law("X1", "P2")
def test_a_sector_that_was_never_written_ends_the_file_if_nothing_later_was_synced() -> None:
    bodies = [bytes([number]) * 700 for number in range(1, 8)]
    content, frames = chain(bodies, synced=2)
    ends = [sum(map(len, frames[: count + 1])) for count in range(len(frames))]
    for sector in range(1, len(content) // 512):
        whole = sum(end <= 512 * sector for end in ends) - 1
        found = outcome(zeroed(content, sector))
        assert found == (bodies[:whole] if whole >= 2 else "damaged"), sector


@law("X1")
def test_a_synced_frame_that_is_incomplete_is_damage() -> None:
    content, _ = chain([b"x" * 2000] * 4)
    assert outcome(zeroed(content, 2)) == "damaged"
    # The last frame is not known to be synced.
    assert outcome(zeroed(content, len(content) // 512 - 1)) == [b"x" * 2000] * 3


def test_a_payload_that_contains_a_frame_is_none() -> None:
    """Otherwise a client could make a torn tail look like damage."""
    forged, _ = encode_frame(10**6, 10**6, NO_HASH, b"forged")
    content, _ = chain([b"a", forged * 20 + b"end"])
    cut = content[:-1]
    assert outcome(cut) == [b"a"]
    assert outcome(cut[:200] + bytes(312) + cut[512:]) == [b"a"]


@law("X1")
@pytest.mark.parametrize("kept", [[0, 1, 3], [0, 2, 1, 3], [0, 2, 3], [0, 1, 1, 2]], ids=str)
def test_frames_in_another_order_are_damage(kept: list[int]) -> None:
    bodies = [bytes(512 - 59)] * 3  # A whole number of sectors, so that they fit anywhere.
    _, frames = chain(bodies)
    assert outcome(b"".join(frames[index] for index in kept)) == "damaged"


@law("X1")
def test_frames_of_another_copy_are_damage() -> None:
    _, ours = chain([b"a", b"b"])
    _, others = chain([b"A", b"b"])
    assert outcome(b"".join((*ours[:2], others[2]))) == "damaged"
