"""Bodies in chunks: decoded alike however they are cut on the way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.server.http.chunks import ChunkDecoder
from penstock.testing.laws import law


def decode(*parts: bytes) -> tuple[bytes, bytes | None]:
    decoder = ChunkDecoder()
    body = b""
    for part in parts:
        if decoder.rest is None:
            body += decoder.feed(part)
        else:
            decoder.rest += part
    return body, decoder.rest


@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=5),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_a_body_cut_anywhere(chunks: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(b'%X;ext="1"\r\n%b\r\n' % (len(chunk), chunk) for chunk in chunks)
    sent += b"00\r\nTrailer: x\r\n\r\nNEXT"
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    parts = [sent[begin:end] for begin, end in pairwise(edges)]
    assert decode(*parts) == (b"".join(chunks), b"NEXT")


def test_a_body_that_is_not_complete() -> None:
    for sent in (b"", b"5", b"5\r\nabc", b"5\r\nabcde", b"1\r\na\r\n0\r\n", b"0\r\nA: b\r\n"):
        assert decode(sent)[1] is None


@law("E1")
@pytest.mark.parametrize(
    "sent",
    [
        b"1\n7\n0\n\n",
        b"1\r\n7\n0\r\n\r\n",
        b"1\r\n7\r\n0\r\n\n",
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"1 \r\n",
        b" 1\r\n",
        b"1_0\r\n",
        b"1\r\n77\r\n",
        b"F" * 16 + b"\r\n",
        b"1;" + b"x" * 300,
        b"1;" + b"x" * 300 + b"\r\n",
        b"1;a\x00b\r\n",
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\nA: \x00\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 3_000,
        b"0\r\nA: " + b"b" * 10_000,
    ],
)
def test_what_is_refused(sent: bytes) -> None:
    with pytest.raises(BadInput) as caught:
        decode(sent)
    assert caught.value.field == "Transfer-Encoding"
    with pytest.raises(BadInput):
        decode(*(sent[index : index + 1] for index in range(len(sent))))
