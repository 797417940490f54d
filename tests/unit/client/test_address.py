from __future__ import annotations

import pytest

import penstock
from penstock.client import ClientOptions, connect
from penstock.client.address import parse_address
from penstock.errors import BadInput, BadUrl, PenstockError
from penstock.testing.laws import law


@pytest.mark.parametrize(
    "url, base",
    [
        ("http://localhost:8080", "http://localhost:8080"),
        ("http://localhost:8080/", "http://localhost:8080"),
        ("HTTP://LocalHost", "http://localhost"),
        ("https://queue.example.org", "https://queue.example.org"),
        ("https://example.org/penstock/", "https://example.org/penstock"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://:key@host:1", "http://host:1"),
        ("http://example.org.:1", "http://example.org.:1"),
    ],
)
def test_urls_of_servers(url: str, base: str) -> None:
    address = parse_address(url)
    assert address.url == base
    assert address.is_secure == base.startswith("https")


@law("E1")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "rocksdb:///data",
        "memory://",
        "ftp://host",
        "http://",
        "http:///path",
        "http://host:99999",
        "http://host:port",
        "http://host:0",
        "http://host?x=1",
        "http://host/?",
        "http://host#x",
        "http://ho st",
        "http://host\r\nX: y",
        "http://[::1",
        "http://a..b",
        f"http://{'x' * 64}.org",
        "http://user@host",
        "http://user:key@host",
        "http://:@host",
        None,
        7,
        b"http://host",
    ],
)
async def test_what_is_no_server_is_a_bad_url(url: object) -> None:
    with pytest.raises(BadUrl) as caught:
        await connect(url)  # type: ignore[arg-type]
    assert caught.value.field == "url"
    assert "http://localhost" in caught.value.detail or "http://:KEY@" in caught.value.detail


async def test_a_credential_may_stand_in_the_url_and_is_not_shown() -> None:
    assert parse_address("http://:a%2Fb@host").credential == "a/b"
    async with connect("http://:secret@localhost:1", options=ONCE) as q:
        assert q.url == "http://localhost:1"
        with pytest.raises(penstock.errors.Unreachable) as caught:
            await q.queues()
        assert "secret" not in str(caught.value)
    with pytest.raises(BadUrl) as refused:
        await connect("http://me:secret@localhost")
    assert "secret" not in str(refused.value)


ONCE = ClientOptions(retries=0)


@law("E1")
@pytest.mark.parametrize(
    "credential, ca, field",
    [
        ("", None, "credential"),
        (7, None, "credential"),
        ("two words", None, "credential"),
        ("line\r\nX-Evil: 1", None, "credential"),
        ("schlüssel", None, "credential"),
        (None, "/no/such/file.pem", "ca"),
        (None, 7, "ca"),
    ],
)
async def test_what_cannot_be_sent_is_refused(credential: object, ca: object, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        await connect("https://host", credential=credential, ca=ca)  # type: ignore[arg-type]
    assert caught.value.field == field


async def test_two_credentials_are_one_too_many() -> None:
    with pytest.raises(BadInput, match="give one"):
        await connect("http://:key@host", credential="other")


async def test_authorities_are_for_https(tmp_path: object) -> None:
    with pytest.raises(BadUrl):
        await connect("http://host", ca="/etc/ssl/cert.pem")


@law("E1")
@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": -1},
        {"max_batch": 0},
        {"max_batch": 10_001},
        {"max_batch_bytes": 0},
        {"max_under_way": 0},
        {"timeout_ms": 0},
        {"retries": -1},
        {"retry_ms": True},
        {"max_connections": 1.5},
    ],
)
async def test_options_are_checked(options: dict[str, int]) -> None:
    chosen = ClientOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(PenstockError) as caught:
        await connect("http://host", options=chosen)
    assert caught.value.field == next(iter(options))
    with pytest.raises(BadInput, match="ClientOptions"):
        await connect("http://host", options={"retries": 1})  # type: ignore[arg-type]
