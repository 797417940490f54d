"""Heads that two parsers could read in two ways, and codings that are not supported."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadInput, UnsupportedMedia
from penstock.server.head import check_head, ends_connection
from penstock.testing.laws import law


def check(*headers: tuple[str, str], version: str = "1.1") -> None:
    given = [(name.encode(), text.encode()) for name, text in headers]
    scope: dict[str, Any] = {"http_version": version, "headers": given}
    check_head(scope, dict(given))


HOST = ("host", "localhost")


def test_what_is_ordinary() -> None:
    check(HOST)
    check(HOST, ("transfer-encoding", "chunked"), ("content-encoding", "identity"))
    check(HOST, ("accept", "a/b"), ("accept", "c/d"))
    check(("host", ""), version="1.0")


@law("E1")
@pytest.mark.parametrize(
    "headers, field",
    [
        ((), "Host"),
        ((("host", ""),), "Host"),
        ((HOST, HOST), "Host"),
        ((HOST, ("content-type", "a/b"), ("content-type", "a/b")), "Content-Type"),
        ((HOST, ("authorization", "a"), ("authorization", "b")), "Authorization"),
        ((HOST, ("penstock-id", "a"), ("penstock-id", "b")), "Penstock-Id"),
    ],
)
def test_an_ambiguous_head(headers: tuple[tuple[str, str], ...], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        check(*headers)
    assert caught.value.field == field
    assert ends_connection(caught.value) == (field == "Host")


@law("E1")
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "identity, gzip"])
def test_a_body_that_is_compressed(encoding: str) -> None:
    with pytest.raises(UnsupportedMedia) as caught:
        check(HOST, ("content-encoding", encoding))
    assert caught.value.field == "Content-Encoding"
