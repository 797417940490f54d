"""The key set of an issuer: rotation, bounded reading, and bad sets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from penstock.errors import BadSetting, Unauthenticated
from penstock.server.access import Access, Keys, Tokens, open_access
from penstock.server.access.key_set import (
    MAX_SET_BYTES,
    REFRESH_MS,
    RETRY_MS,
    STALE_MS,
    KeySet,
    source_of,
)
from penstock.settings import Settings
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.server.access.test_tokens import NOW_S, OTHER, PRIVATE, SECRET, claims, token

CURVE: Final = ec.generate_private_key(ec.SECP256R1())
SMALL: Final = rsa.generate_private_key(public_exponent=65537, key_size=1024)
HOURS: Final = NOW_S + 36_000


def listed(key: Any, kid: str | None, **changes: object) -> dict[str, object]:
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    found = json.loads(kind.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return found | ({} if kid is None else {"kid": kid}) | changes


def document(*keys: dict[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def by(key: Any, kid: str | None, algorithm: str = "RS256") -> str:
    head = None if kid is None else {"kid": kid}
    return jwt.encode(claims(exp=HOURS), key, algorithm=algorithm, headers=head)


class Source:
    """A set that the test changes, and how often it was read."""

    def __init__(self, content: bytes) -> None:
        self.content: bytes | Exception = content
        self.reads = 0

    def __call__(self) -> bytes:
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


async def accepted(tokens: Tokens, text: str) -> bool:
    await tokens.prepare(text)
    try:
        return tokens.authenticate(text).tenant == "acme"
    except Unauthenticated:
        return False


def opened(clock: FakeClock, source: Source, **others: Any) -> Tokens:
    keys = KeySet(clock, source)
    keys.load()
    return Tokens(clock, key_set=keys, **others)


async def test_keys_are_found_by_their_id(clock: FakeClock) -> None:
    source = Source(document(listed(PRIVATE, "a"), listed(CURVE, "b")))
    tokens = opened(clock, source)
    assert await accepted(tokens, by(PRIVATE, "a"))
    assert await accepted(tokens, by(CURVE, "b", "ES256"))
    assert await accepted(tokens, by(PRIVATE, None))
    assert not await accepted(tokens, by(OTHER, "a"))
    assert not await accepted(tokens, by(PRIVATE, "b"))
    assert not await accepted(tokens, token())
    assert source.reads == 1


async def test_a_token_without_an_id_needs_an_only_key(clock: FakeClock) -> None:
    tokens = opened(clock, Source(document(listed(PRIVATE, "a"), listed(OTHER, "b"))))
    assert not await accepted(tokens, by(PRIVATE, None))


async def test_a_new_key_is_read_once_it_is_used(clock: FakeClock) -> None:
    source = Source(document(listed(PRIVATE, "a")))
    tokens = opened(clock, source)
    clock.advance(RETRY_MS)
    source.content = document(listed(PRIVATE, "a"), listed(OTHER, "b"))
    assert await accepted(tokens, by(OTHER, "b"))
    assert source.reads == 2


async def test_unknown_ids_do_not_cause_more_reads(clock: FakeClock) -> None:
    source = Source(document(listed(PRIVATE, "a")))
    tokens = opened(clock, source)
    for n in range(20):
        assert not await accepted(tokens, by(OTHER, f"x{n}"))
    assert source.reads == 1
    clock.advance(RETRY_MS)
    found = await asyncio.gather(*(accepted(tokens, by(OTHER, f"y{n}")) for n in range(20)))
    assert (any(found), source.reads) == (False, 2)


async def test_a_removed_key_is_refused_after_the_next_read(clock: FakeClock) -> None:
    source = Source(document(listed(PRIVATE, "a")))
    tokens = opened(clock, source)
    source.content = document(listed(OTHER, "b"))
    assert await accepted(tokens, by(PRIVATE, "a"))
    clock.advance(REFRESH_MS)
    assert not await accepted(tokens, by(PRIVATE, "a"))


@pytest.mark.parametrize("fault", [OSError("down"), b"{}", b"nonsense"])
async def test_known_keys_outlive_a_fault_for_a_while(
    clock: FakeClock, fault: bytes | Exception
) -> None:
    source = Source(document(listed(PRIVATE, "a")))
    tokens = opened(clock, source)
    source.content = fault
    clock.advance(STALE_MS - 1)
    assert await accepted(tokens, by(PRIVATE, "a"))
    clock.advance(1)
    assert not await accepted(tokens, by(PRIVATE, "a"))
    source.content = document(listed(PRIVATE, "a"))
    clock.advance(RETRY_MS)
    assert await accepted(tokens, by(PRIVATE, "a"))


@law("E1")
@pytest.mark.parametrize(
    "content",
    [
        OSError("down"),
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [5, {}, {"kty": "oct", "k": "c2VjcmV0"}]}',
        document(listed(SMALL, "a")),
        document(listed(PRIVATE, "a", use="enc")),
        document(listed(PRIVATE, "a", alg="RS512")),
        document(listed(ec.generate_private_key(ec.SECP384R1()), "a")),
        document(listed(PRIVATE, "a") | {"n": "!"}),
        b" " * (MAX_SET_BYTES + 1),
        b"[" * 100_000,
        document(*[listed(PRIVATE, str(n)) for n in range(101)]),
    ],
    ids=range(15),
)
def test_a_bad_set_is_refused_at_start(clock: FakeClock, content: Any) -> None:
    with pytest.raises(BadSetting) as refusal:
        KeySet(clock, Source(content)).load()
    assert refusal.value.field == "jwt_jwks"


@law("E1")
@pytest.mark.parametrize(
    "place", ["http://issuer.example/jwks", "https:///jwks", "http://10.0.0.1/k"]
)
def test_a_bad_place_is_refused(place: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        source_of(place)
    assert refusal.value.field == "jwt_jwks"


def test_http_is_allowed_from_this_machine_or_if_asked() -> None:
    source_of("http://localhost:1/jwks")
    source_of("http://127.0.0.1:1/jwks")
    source_of("http://issuer.example/jwks", allow_http=True)


@pytest.mark.parametrize("prefix", ["", "file:"])
async def test_a_file(engine, clock: FakeClock, tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "jwks.json"
    settings = Settings(auth=True, jwt_jwks=f"{prefix}{path}")
    with pytest.raises(BadSetting) as refusal:
        open_access(settings, engine, clock)
    assert refusal.value.field == "jwt_jwks"
    path.write_bytes(document(listed(PRIVATE, "a")))
    access = open_access(settings, engine, clock)
    header = f"Bearer {by(PRIVATE, 'a')}".encode()
    assert (await access.authenticate(header)).tenant == "acme"


class _Issuer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/jwks")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(document(listed(PRIVATE, "a")))

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def issuer() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Issuer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_a_url(clock: FakeClock, keys: Keys, issuer: str) -> None:
    key_set = KeySet(clock, source_of(f"{issuer}/jwks"))
    key_set.load()
    access = Access(clock, keys, Tokens(clock, key_set=key_set, secret=SECRET))
    for text in (by(PRIVATE, "a"), token()):
        assert (await access.authenticate(f"Bearer {text}".encode())).tenant == "acme"
    clock.advance(REFRESH_MS)
    assert (await access.authenticate(f"Bearer {by(PRIVATE, 'a')}".encode())).tenant == "acme"


def test_redirects_are_refused(clock: FakeClock, issuer: str) -> None:
    with pytest.raises(BadSetting):
        KeySet(clock, source_of(f"{issuer}/moved")).load()
