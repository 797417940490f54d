"""From a header to a credential: attacks, what is remembered, and for how long."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress

import jwt
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.errors import BadSetting, StoreClosed, Unauthenticated
from penstock.server.access import ANYBODY, Access, Keys, Tokens, open_access
from penstock.server.access.access import MAX_REMEMBERED
from penstock.settings import Settings
from penstock.storage.contract import Engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.calls import calls_of

SECRET = "a secret of more than thirty-two bytes"


class SlowKeys(Keys):
    """Keys that count how often the store is asked, and wait for a signal if there is one."""

    def __init__(self, engine: Engine, clock: FakeClock) -> None:
        super().__init__(engine, clock)
        self.asked = 0
        self.waiting = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None

    async def authenticate(self, text: str):
        self.asked += 1
        credential = await super().authenticate(text)
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return credential


@pytest.fixture
def slow(engine: Engine, clock: FakeClock) -> SlowKeys:
    return SlowKeys(engine, clock)


@pytest.fixture
def access(slow: SlowKeys, clock: FakeClock) -> Access:
    return Access(clock, slow, Tokens(clock, secret=SECRET))


async def new_header(access: Access, tenant: str = "acme", **options: int) -> bytes:
    new = await access.keys.create(tenant, ["publish:*"], **options)  # type: ignore[arg-type]
    return f"Bearer {new.key}".encode()


async def test_off_lets_everybody_do_anything(keys: Keys, clock: FakeClock) -> None:
    access = Access(clock, keys, enabled=False)
    for header in (None, b"", b"Bearer nonsense", b"\xff" * 100_000):
        assert access.recall(header) is ANYBODY
        assert await access.authenticate(header) is ANYBODY
    assert ANYBODY.tenant == "default"


@pytest.mark.parametrize("form", [b"Bearer %s", b"bearer %s", b"BEARER   %s", b"Bearer %s  "])
async def test_keys_and_tokens_are_accepted(access: Access, clock: FakeClock, form: bytes) -> None:
    key = (await new_header(access)).removeprefix(b"Bearer ")
    claims = {"exp": clock.now() / 1000 + 60, "tenant": "other"}
    token = jwt.encode(claims, SECRET, "HS256").encode()
    assert (await access.authenticate(form % key)).tenant == "acme"
    assert (await access.authenticate(form % token)).tenant == "other"


@law("T1")
async def test_attacks(access: Access) -> None:
    """Everything but the very text of a key is refused, and T1: nobody gets another's tenant."""
    acme = (await new_header(access, "acme")).removeprefix(b"Bearer ")
    other = (await new_header(access, "other")).removeprefix(b"Bearer ")
    prefix, acme_id, acme_secret = acme.split(b"_", 2)
    _, other_id, other_secret = other.split(b"_", 2)
    attacks = [
        None,
        b"",
        b" ",
        b"Bearer",
        b"Bearer ",
        b"Bearer  ",
        acme,
        b"Basic " + base64.b64encode(b"user:" + acme),
        b"Token " + acme,
        b"Bearer" + acme,
        b"Bearer:" + acme,
        b"Bearer\t" + acme,
        b" Bearer " + acme,
        b"Bearer " + acme + b"\n",
        b"Bearer " + acme + b"\0",
        b"Bearer " + acme + b", Bearer " + other,
        b"Bearer " + acme[:-1],
        b"Bearer " + acme + b"A",
        b"Bearer " + acme + b"=",
        b"Bearer " + acme.upper(),
        b"Bearer pks" + acme[3:],
        b"Bearer xpsk" + acme[3:],
        b"Bearer " + b"_".join([prefix, acme_id]),
        b"Bearer " + b"_".join([prefix, acme_id, b""]),
        b"Bearer " + b"_".join([prefix, acme_id, other_secret]),
        b"Bearer " + b"_".join([prefix, other_id, acme_secret]),
        b"Bearer " + b"_".join([prefix, b"a" * 16, acme_secret]),
        b"Bearer " + b"_".join([prefix, b"*" * 16, acme_secret]),
        b"Bearer psk_" + acme_secret,
        b"Bearer psk__",
        b"Bearer psk_" + b"A" * 10_000,
        b"Bearer " + b"A" * 100_000,
        b"Bearer " + b"=" * 1_000,
        b"Bearer \xff\xfe\xfd",
        b"Bearer " + acme[:-1] + b"\xc3\xa4",
        "Bearer \uff50\uff53\uff4b_".encode(),
        b"Bearer " + jwt.encode({"exp": 2**33, "tenant": "acme"}, "x" * 32, "HS256").encode(),
    ]
    for attack in attacks:
        with pytest.raises(Unauthenticated) as caught:
            await access.authenticate(attack)
        assert caught.value.status == 401
        assert acme_secret.decode() not in str(caught.value)
        assert access.recall(attack) is None
    assert (await access.authenticate(b"Bearer " + acme)).tenant == "acme"
    assert (await access.authenticate(b"Bearer " + other)).tenant == "other"


async def test_refusals_say_what_helps(access: Access, keys: Keys, clock: FakeClock) -> None:
    without_tokens = Access(clock, keys)
    for asked, header, told in (
        (access, None, "no credential"),
        (access, b"Basic eA==", "not a bearer"),
        (access, b"Bearer psk_x", "API key is not valid"),
        (access, b"Bearer x.y.z", "token is not valid"),
        (without_tokens, b"Bearer x.y.z", "tokens are not accepted"),
    ):
        with pytest.raises(Unauthenticated, match=told):
            await asked.authenticate(header)


def test_whatever_comes_is_a_credential_or_unauthenticated() -> None:
    class NoDocuments:
        async def get_document(self, kind: str, name: str) -> None:
            return None

    clock = FakeClock()
    access = Access(clock, Keys(NoDocuments(), clock), Tokens(clock, secret=SECRET))  # type: ignore[arg-type]
    texts = st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass"))
    shapes = st.sampled_from([b"", b"Bearer ", b"Bearer psk_", b"Bearer eyJhbGciOiJIUzI1NiJ9."])

    @hypothesis_settings(deadline=None)
    @given(shapes, texts)
    def check(shape: bytes, text: bytes) -> None:
        with pytest.raises(Unauthenticated):
            runner.run(access.authenticate(shape + text))

    # One loop for all of them: making one takes longer than the test.
    with asyncio.Runner() as runner:
        check()


# -- what is remembered --------------------------------------------------------------------


async def test_a_known_header_costs_no_look_at_the_store(
    access: Access, slow: SlowKeys, clock: FakeClock
) -> None:
    header = await new_header(access)
    assert access.recall(header) is None
    credential = await access.authenticate(header)
    clock.advance(999)
    for _ in range(10):
        assert await access.authenticate(bytes(header)) is credential
        assert access.recall(header) is credential
    assert slow.asked == 1
    clock.advance(1)
    assert access.recall(header) is None
    assert await access.authenticate(header) == credential
    assert slow.asked == 2


async def test_a_key_revoked_here_is_refused_at_once(access: Access) -> None:
    header = await new_header(access)
    credential = await access.authenticate(header)
    await access.keys.revoke("acme", credential.id)
    assert access.recall(header) is None
    with pytest.raises(Unauthenticated):
        await access.authenticate(header)


async def test_a_key_revoked_elsewhere_is_refused_within_a_second(
    access: Access, engine: Engine, clock: FakeClock
) -> None:
    header = await new_header(access)
    credential = await access.authenticate(header)
    await Keys(engine, clock).revoke("acme", credential.id)
    clock.advance(1_000)
    with pytest.raises(Unauthenticated):
        await access.authenticate(header)
    assert access.recall(header) is None


async def test_one_call_looks_again_while_the_others_go_on(
    access: Access, slow: SlowKeys, clock: FakeClock
) -> None:
    header = await new_header(access)
    credential = await access.authenticate(header)
    slow.gate = asyncio.Event()
    clock.advance(1_000)
    looking = asyncio.ensure_future(access.authenticate(header))
    await waiting(slow)
    for _ in range(5):
        assert await access.authenticate(header) is credential
    assert slow.asked == 2
    # But not for ever: a store that does not answer keeps no revoked key alive.
    clock.advance(4_000)
    assert access.recall(header) is None
    slow.gate.set()
    assert await looking == credential


async def test_a_key_revoked_while_it_is_looked_at_is_not_remembered(
    access: Access, slow: SlowKeys
) -> None:
    header = await new_header(access)
    slow.gate = asyncio.Event()
    looking = asyncio.ensure_future(access.authenticate(header))
    await waiting(slow)
    (info,) = await access.keys.list("acme")
    await access.keys.revoke("acme", info.id)
    slow.gate.set()
    await looking
    assert access.recall(header) is None
    with pytest.raises(Unauthenticated):
        await access.authenticate(header)


async def test_a_look_that_was_given_up_or_failed_is_taken_up_by_the_next(
    access: Access, slow: SlowKeys, clock: FakeClock
) -> None:
    header = await new_header(access)
    credential = await access.authenticate(header)
    clock.advance(1_000)
    slow.gate = asyncio.Event()
    looking = asyncio.ensure_future(access.authenticate(header))
    await waiting(slow)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    slow.gate, slow.failure = None, StoreClosed("gone")
    with pytest.raises(StoreClosed):
        await access.authenticate(header)
    slow.failure = None
    assert await access.authenticate(header) == credential
    assert slow.asked == 4


async def test_an_expired_credential_is_not_recalled(access: Access, clock: FakeClock) -> None:
    header = await new_header(access, expires_at=clock.now() + 500)
    await access.authenticate(header)
    clock.advance(500)
    assert access.recall(header) is None
    with pytest.raises(Unauthenticated, match="expired"):
        await access.authenticate(header)


async def test_a_clock_that_goes_back_makes_it_look_again(engine: Engine, slow: SlowKeys) -> None:
    clock = FakeClock(10_000)
    access = Access(clock, slow)
    header = await new_header(access)
    await access.authenticate(header)
    clock._now_ms = 5_000
    assert access.recall(header) is None


async def test_memory_is_bounded(access: Access, clock: FakeClock) -> None:
    used = await new_header(access)
    claims = {"exp": clock.now() / 1000 + 3600, "tenant": "acme"}
    first = f"Bearer {jwt.encode(claims, SECRET)}".encode()
    await access.authenticate(first)
    await access.authenticate(used)
    for n in range(MAX_REMEMBERED - 1):
        token = jwt.encode(claims | {"jti": str(n)}, SECRET)
        await access.authenticate(f"Bearer {token}".encode())
    # The oldest one went, and is let in again all the same.
    assert access.recall(first) is None
    assert access.recall(used) is not None
    assert (await access.authenticate(first)).tenant == "acme"


async def test_refusals_are_not_remembered(access: Access, slow: SlowKeys) -> None:
    header = b"Bearer psk_" + b"a" * 16 + b"_" + b"b" * 43
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await access.authenticate(header)
    assert slow.asked == 3


async def test_recalling_is_fast(access: Access) -> None:
    """It is on the path of every call: a few calls of functions, and nothing is hashed."""
    header = await new_header(access)
    credential = await access.authenticate(header)

    def recall() -> None:
        assert access.recall(header) is credential
        credential.check("publish", "orders")

    recall()
    assert len(calls_of(recall)) <= 15


async def waiting(slow: SlowKeys) -> None:
    """Until somebody has looked at the store and waits for the gate."""
    async with asyncio.timeout(60):
        await slow.waiting.wait()


# -- as the settings want it ---------------------------------------------------------------


async def test_settings_decide(engine: Engine, clock: FakeClock) -> None:
    assert not open_access(Settings(), engine, clock).enabled
    assert open_access(Settings(auth=True), engine, clock).enabled
    access = open_access(
        Settings(auth=True, jwt_secret=SECRET, jwt_issuer="us", jwt_leeway_s=0), engine, clock
    )
    claims = {"exp": clock.now() // 1000 + 60, "tenant": "acme", "iss": "us"}
    token = jwt.encode(claims, SECRET).encode()
    assert (await access.authenticate(b"Bearer " + token)).tenant == "acme"


@law("E1")
@pytest.mark.parametrize(
    "settings, field",
    [
        (Settings(jwt_secret=SECRET), "auth"),
        (Settings(auth=True, jwt_secret="short"), "jwt_secret"),
        (Settings(auth=True, jwt_public_key="nonsense"), "jwt_public_key"),
        (Settings(auth=True, jwt_issuer="us"), "jwt_issuer"),
        (Settings(auth=True, jwt_audience="us"), "jwt_audience"),
    ],
)
def test_settings_that_make_no_sense(
    engine: Engine, clock: FakeClock, settings: Settings, field: str
) -> None:
    with pytest.raises(BadSetting) as caught:
        open_access(settings, engine, clock)
    assert caught.value.field == field
