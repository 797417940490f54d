"""Large bodies, received where they stay."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.body import Body, plain_memory
from penstock.client.http import Reply, ReplyReader

MIB = 1024 * 1024


class Made:
    """Memory, and how much of it was asked for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> memoryview:
        self.sizes.append(size)
        # What was there before must not show.
        return memoryview(bytearray(b"\xff" * size))


def put(room: memoryview, data: bytes) -> int:
    """As a socket does: as much as there is, and as fits."""
    count = min(len(room), len(data))
    room[:count] = data[:count]
    return count


def receive(text: bytes, reads: Iterable[int], reader: ReplyReader) -> tuple[list[Reply], int]:
    """What a connection does with bytes that come so many at a time; how often in place."""
    replies, in_place, at = [], 0, 0
    sizes = iter(reads)
    while at < len(text):
        piece = text[at : at + next(sizes, len(text))]
        room = reader.remaining()
        if room is None:
            at += len(piece)
            reply = reader.feed(piece)
        else:
            in_place += 1
            count = put(room, piece)
            at += count
            reply = reader.filled(count)
        if reply is not None:
            replies.append(reply)
    return replies, in_place


def of_length(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def in_chunks(*chunks: bytes) -> bytes:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % parts


def test_a_body_grows_by_what_is_added_and_what_is_put_into_it() -> None:
    made = Made()
    body = Body(made, [b"one ", memoryview(b"two ")])
    body.filled(put(body.remaining(6), b"three "))
    body.add(b"four")
    assert bytes(body.whole()) == b"one two three four"


def test_memory_is_not_taken_for_what_is_only_announced() -> None:
    made = Made()
    room = Body(made, []).remaining(10**15)
    assert made.sizes == [len(room)] == [16 * MIB]


def test_what_is_kept_is_not_much_more_than_what_came() -> None:
    body = Body(plain_memory, [])
    body.remaining(16 * MIB)
    body.filled(3)
    whole = body.whole()
    assert len(whole) == 3
    assert len(whole.obj) == 3  # type: ignore[arg-type]


def test_a_body_of_many_chunks_is_copied_less_than_once() -> None:
    made = Made()
    body = Body(made, [])
    for _ in range(16):
        body.filled(put(body.remaining(MIB), bytes(MIB)))
    assert len(body.whole()) == 16 * MIB
    assert sum(made.sizes[:-1]) < 16 * MIB


@pytest.mark.parametrize("size", [128 * 1024, 3 * MIB])
def test_a_large_body_is_received_in_place(size: int) -> None:
    made = Made()
    body = bytes(range(256)) * (size // 256)
    reader = ReplyReader(made)
    replies, in_place = receive(of_length(body), [60] + [10_000] * 7, reader)
    assert replies == [Reply(200, body)]
    assert in_place
    assert made.sizes[-1] == size
    # The next reply has nothing to do with it.
    assert receive(of_length(b"x"), [], reader) == ([Reply(200, b"x")], 0)


@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=5),
    st.lists(st.integers(1, 150_000), max_size=12),
)
def test_chunks_however_they_come(sizes: list[int], reads: list[int]) -> None:
    chunks = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    reader = ReplyReader(Made())
    replies, _ = receive(in_chunks(*chunks), reads, reader)
    assert replies == [Reply(200, b"".join(chunks))]
    assert reader.keep


def test_a_body_that_is_longer_than_its_length_ends_there() -> None:
    body = bytes(100_000)
    reader = ReplyReader()
    replies, in_place = receive(of_length(body) + b"more", [100, 50_000], reader)
    assert replies == [Reply(200, body)]
    assert in_place
    assert not reader.keep


def test_a_large_body_whose_head_came_alone() -> None:
    """The first part is then empty, and there is no memory yet."""
    reader = ReplyReader()
    size = 300_000
    assert reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size) is None
    room = reader.remaining()
    assert room is not None
    room[:size] = b"x" * size
    reply = reader.filled(size)
    assert reply is not None
    assert bytes(reply.body) == b"x" * size
