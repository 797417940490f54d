"""Replies made of bytes, however they are cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.http import NotHttp, Reply, ReplyReader

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n1;name=value\r\nl\r\n0A\r\no, world!!\r\n0\r\n\r\n"
)
TRAILERS = CHUNKS[:-2] + b"Checksum: 7\r\nX: y\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + LENGTH
LATER = b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n"

WHOLE = {
    LENGTH: Reply(200, b"hello"),
    CHUNKS: Reply(201, b"hello, world!!"),
    TRAILERS: Reply(201, b"hello, world!!"),
    NOTHING: Reply(204, b""),
    INTERIM: Reply(200, b"hello"),
    LATER: Reply(503, b"", 7000),
}


def read(pieces: Iterable[bytes], reader: ReplyReader | None = None) -> Reply | None:
    reader = reader or ReplyReader()
    replies = [reply for piece in pieces if (reply := reader.feed(piece)) is not None]
    assert len(replies) <= 1
    return replies[0] if replies else None


@pytest.mark.parametrize("text", WHOLE)
def test_a_reply_in_one_piece_and_byte_by_byte(text: bytes) -> None:
    assert read([text]) == WHOLE[text]
    assert read(bytes([byte]) for byte in text) == WHOLE[text]


@given(st.sampled_from(sorted(WHOLE)), st.lists(st.integers(0, 200), max_size=6))
def test_a_reply_however_it_is_cut(text: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    assert read(piece for piece in pieces if piece) == WHOLE[text]


@given(st.binary(max_size=300))
def test_bytes_are_a_reply_or_not_and_never_another_error(text: bytes) -> None:
    for begin in (b"", b"HTTP/1.1 200 OK\r\n", CHUNKS[:52]):
        reader = ReplyReader()
        try:
            reader.feed(begin + text)
        except NotHttp:
            continue
        reader.end()


def test_one_reply_after_the_other() -> None:
    reader = ReplyReader()
    for text, reply in WHOLE.items():
        assert read([text], reader) == reply
        assert reader.keep
        assert not reader.begun


@pytest.mark.parametrize(
    "text, keep",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", True),
        (LENGTH + b"more", False),
        (CHUNKS + b"more", False),
    ],
)
def test_whether_the_connection_is_kept(text: bytes, keep: bool) -> None:
    reader = ReplyReader()
    assert read([text], reader) is not None
    assert reader.keep is keep


def test_a_reply_that_ends_with_its_connection() -> None:
    reader = ReplyReader()
    assert read([b"HTTP/1.1 200 OK\r\n\r\n", b"hel", b"lo"], reader) is None
    assert reader.end() == Reply(200, b"hello")
    assert not reader.keep


@pytest.mark.parametrize("text", WHOLE)
def test_a_reply_that_was_cut_short_is_none(text: bytes) -> None:
    for end in range(1, len(text) - 1):
        reader = ReplyReader()
        if read([text[:end]], reader) is None:
            assert reader.end() is None
            assert reader.begun


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01 a TLS alert, say",
        b"-ERR unknown command\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ],
)
def test_what_is_no_reply_is_told(text: bytes) -> None:
    with pytest.raises(NotHttp):
        read([text])


@pytest.mark.parametrize(
    "value", [b"Wed, 21 Oct 2015 07:28:00 GMT", b"-1", b"\xb2", b"", b"9" * 99]
)
def test_a_retry_after_that_is_no_number_says_nothing(value: bytes) -> None:
    text = b"HTTP/1.1 503 X\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n" % value
    assert read([text]) == Reply(503, b"")


def test_a_retry_after_is_bounded() -> None:
    text = b"HTTP/1.1 503 X\r\nRetry-After: 999999\r\nContent-Length: 0\r\n\r\n"
    assert read([text]) == Reply(503, b"", 3_600_000)
