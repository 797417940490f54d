"""The parser of request heads: strict, and the same for every way in which the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.server.http.request_head import CHUNKED, check_partial, parse_head
from penstock.testing.laws import law

GET = b"GET / HTTP/1.1\r\nHost: a"


def test_an_ordinary_head() -> None:
    head = parse_head(
        b"POST /v1/queues/a%20b/claims?limit=2 HTTP/1.1\r\nHost: a\r\n"
        b"Content-Length: 12\r\nX-Empty:\r\nX-Padded: \t b c \t"
    )
    assert (head.method, head.path, head.query) == ("POST", "/v1/queues/a b/claims", b"limit=2")
    assert head.target == b"/v1/queues/a%20b/claims?limit=2"
    assert head.headers == (
        (b"host", b"a"),
        (b"content-length", b"12"),
        (b"x-empty", b""),
        (b"x-padded", b"b c"),
    )
    assert (head.version, head.length) == ("1.1", 12)
    assert head.keeps_alive
    assert not head.expects_continue


@pytest.mark.parametrize(
    "lines, keeps_alive",
    [
        (b"GET / HTTP/1.1", True),
        (b"GET / HTTP/1.1\r\nConnection: close", False),
        (b"GET / HTTP/1.1\r\nConnection: X, Close", False),
        (b"GET / HTTP/1.1\r\nConnection: x\r\nConnection: close", False),
        (b"GET / HTTP/1.0", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive, close", False),
    ],
)
def test_whether_a_connection_is_kept(lines: bytes, keeps_alive: bool) -> None:
    assert parse_head(lines).keeps_alive == keeps_alive


def test_a_body_in_chunks_and_a_caller_that_asks_first() -> None:
    head = parse_head(GET + b"\r\nTransfer-Encoding: Chunked\r\nExpect: 100-Continue")
    assert head.length == CHUNKED
    assert head.expects_continue
    assert not parse_head(b"GET / HTTP/1.0\r\nExpect: 100-continue").expects_continue


def test_a_length_that_no_number_holds_is_too_large_for_every_limit() -> None:
    assert parse_head(GET + b"\r\nContent-Length: " + b"9" * 1000).length == 10**18


@pytest.mark.parametrize(
    "target, path, query",
    [
        (b"/", "/", b""),
        (b"*", "*", b""),
        (b"/a?b?c", "/a", b"b?c"),
        (b"/%ff", "/�", b""),
        (b"http://A/b?c", "/b", b"c"),
        (b"HTTPS://a", "/", b""),
        (b"http://a?b", "/", b"b"),
    ],
)
def test_targets(target: bytes, path: str, query: bytes) -> None:
    head = parse_head(b"GET " + target + b" HTTP/1.1\r\nHost: a")
    assert (head.path, head.query) == (path, query)


@law("E1")
@pytest.mark.parametrize(
    "head, field",
    [
        (b"", "head"),
        (b"GET /", "head"),
        (b"GET / HTTP/1.2", "head"),
        (b"GET / HTTP/2.0", "head"),
        (b"GET / HTTP/0.9", "head"),
        (b"OPTIONS / RTSP/1.0", "head"),
        (b"GET / http/1.1", "head"),
        (b"GET  / HTTP/1.1", "head"),
        (b"GET /  HTTP/1.1", "head"),
        (b"GET\t/ HTTP/1.1", "head"),
        (b" GET / HTTP/1.1", "head"),
        (b"G(T / HTTP/1.1", "head"),
        (b"GET /a#b HTTP/1.1", "head"),
        (b"GET /\xc3\xa9 HTTP/1.1", "head"),
        (b"GET a HTTP/1.1", "head"),
        (b"CONNECT a:80 HTTP/1.1", "head"),
        (b"GET ftp://a/ HTTP/1.1\r\nHost: a", "head"),
        (b"GET http://evil/ HTTP/1.1\r\nHost: a", "Host"),
        (GET + b"\r\nX", "head"),
        (GET + b"\r\n: x", "head"),
        (GET + b"\r\nX : x", "head"),
        (GET + b"\r\n X: x", "head"),
        (GET + b"\r\nX: a\r\n b", "head"),
        (GET + b"\r\nX\xe9: x", "head"),
        (GET + b"\nX: x", "head"),
        (GET + b"\rX: x", "head"),
        (GET + b"\n\rX: x", "head"),
        (GET + b"\r\n\nX: x", "head"),
        (GET + b"\r\nX: a\x00b", "head"),
        (GET + b"\r\nX: a\x7fb", "head"),
        (GET + b"\r\nX: a\x0bb", "head"),
        (GET + b"\r\nContent-Length:", "Content-Length"),
        (GET + b"\r\nContent-Length: -1", "Content-Length"),
        (GET + b"\r\nContent-Length: 1, 1", "Content-Length"),
        (GET + b"\r\nContent-Length: 0x1", "Content-Length"),
        (GET + b"\r\nContent-Length: 1_0", "Content-Length"),
        (GET + b"\r\nContent-Length: 1\r\ncontent-length: 1", "Content-Length"),
        (GET + b"\r\nTransfer-Encoding: identity, chunked", "Transfer-Encoding"),
        (GET + b"\r\nTransfer-Encoding: xchunked", "Transfer-Encoding"),
        (GET + b"\r\nTransfer-Encoding:", "Transfer-Encoding"),
        (
            GET + b"\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding",
        ),
        (GET + b"\r\nTransfer-Encoding: chunked\r\nContent-Length: 0", "Transfer-Encoding"),
        (GET + b"\r\nContent-Length: 0\r\nTransfer-Encoding: chunked", "Transfer-Encoding"),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked", "Transfer-Encoding"),
    ],
)
def test_what_is_refused(head: bytes, field: str) -> None:
    # A cached head is refused again, and so is one that is too long for the cache.
    for given_head in (head, head, head + b"\r\nX-Long: " + b"x" * 1000):
        with pytest.raises(BadInput) as caught:
            parse_head(given_head)
        assert caught.value.field == field


@law("E1")
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for head in (data, GET + b"\r\n" + data, GET + b"\r\nX:" + data):
        try:
            parsed = parse_head(head)
        except BadInput:
            continue
        assert all(b"\n" not in value and b"\r" not in value for _, value in parsed.headers)


@given(st.data())
def test_a_part_of_a_good_head_is_never_refused(data: st.DataObject) -> None:
    head = GET + b"\r\nX-A: b\tc\r\nX-D: \xe9\r\n\r\n"
    first = data.draw(st.integers(0, len(head)))
    second = data.draw(st.integers(first, len(head)))
    check_partial(head[:first], head[first:second])


@law("E1")
@pytest.mark.parametrize(
    "before, part",
    [(b"", b"\n"), (b"a", b"\n"), (b"GET", b" / HTTP/1.1\n"), (b"", b"\x16\x03"), (b"\n", b"\n")],
)
def test_a_head_that_cannot_go_on(before: bytes, part: bytes) -> None:
    with pytest.raises(BadInput):
        check_partial(before, part)
    check_partial(b"\r", b"\n")


def test_a_head_has_a_limited_number_of_headers() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a" + b"\r\na:" * 255
    assert len(parse_head(head).headers) == 256
    with pytest.raises(BadInput, match="256 headers"):
        parse_head(head + b"\r\na:")
