"""Requests per second of a credential."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadInput, BadSetting, TooManyRequests
from penstock.server.access import Access, Credential, Keys, Tokens, open_access
from penstock.server.access.keys import MAX_REQUEST_RATE
from penstock.server.access.rates import MAX_BUCKETS, Rates
from penstock.settings import Settings
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.server.access.test_tokens import SECRET, claims, token
from tests.unit.server.conftest import Door, application


def credential(rate: int | None, counted_as: str = "key a", tenant: str = "acme") -> Credential:
    return Credential(
        tenant=tenant, grants=(), name="shop", id="k", requests_per_s=rate, counted_as=counted_as
    )


def test_a_burst_of_one_second_then_the_rate(clock: FakeClock) -> None:
    rates = Rates(clock)
    for _ in range(10):
        rates.take(credential(10))
    with pytest.raises(TooManyRequests) as refusal:
        rates.take(credential(10))
    assert (refusal.value.limit, refusal.value.retry_after_ms) == (10, 100)
    clock.advance(99)
    with pytest.raises(TooManyRequests):
        rates.take(credential(10))
    clock.advance(1)
    rates.take(credential(10))


def test_credentials_count_separately(clock: FakeClock) -> None:
    rates = Rates(clock)
    for other in (credential(1), credential(1, "key b"), credential(1, tenant="other")):
        rates.take(other)
    rates.take(credential(2))  # Another limit begins with another bucket.
    for _ in range(100):
        rates.take(credential(None))


def test_buckets_are_bounded(clock: FakeClock) -> None:
    rates = Rates(clock)
    for n in range(MAX_BUCKETS + 10):
        rates.take(credential(1, f"key {n}"))
    assert len(rates._buckets) == MAX_BUCKETS


async def test_a_key_has_its_own_limit_or_the_servers(engine, clock: FakeClock) -> None:
    keys = Keys(engine, clock, requests_per_s=5)
    own = await keys.create("acme", ["publish:*"], requests_per_s=7)
    plain = await keys.create("acme", ["publish:*"])
    assert (await keys.authenticate(own.key)).requests_per_s == 7
    assert (await keys.authenticate(plain.key)).requests_per_s == 5
    assert {info.requests_per_s for info in await keys.list("acme")} == {7, None}


def test_tokens_count_by_subject(clock: FakeClock) -> None:
    tokens = Tokens(clock, secret=SECRET, requests_per_s=5)
    first, second = (tokens.authenticate(token(claims(jti=jti))) for jti in ("1", "2"))
    assert (first.requests_per_s, first.counted_as) == (5, second.counted_as)
    assert tokens.authenticate(token(claims(sub="other"))).counted_as != first.counted_as


@law("E1")
@pytest.mark.parametrize("rate", [0, -1, MAX_REQUEST_RATE + 1, 1.5, "5", True])
async def test_bad_limits_are_refused(keys: Keys, rate: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        await keys.create("acme", ["publish:*"], requests_per_s=rate)
    assert refusal.value.field == "requests_per_s"
    assert await keys.list("acme") == ()


def test_a_limit_without_auth_is_refused(engine, clock: FakeClock) -> None:
    with pytest.raises(BadSetting) as refusal:
        open_access(Settings(requests_per_s=5), engine, clock)
    assert refusal.value.field == "requests_per_s"


async def test_over_http(engine, clock: FakeClock) -> None:
    from penstock.broker import Broker, BrokerOptions

    broker = Broker(engine, BrokerOptions())
    keys = Keys(engine, clock)
    door = Door(application(broker, Access(clock, keys)), broker, clock)
    made = await keys.create("default", ["admin:*"], requests_per_s=2)
    headers = {"authorization": f"Bearer {made.key}"}
    statuses = [(await door.call("GET", "/v1/queues", headers=headers)).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = await door.call("PUT", "/v1/queues/orders", {}, headers)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["type"] == "urn:penstock:problem:too-many-requests"
    assert refused.json()["limit"] == 2
    assert (await door.call("GET", "/healthz", headers=headers)).status == 200
    clock.advance(1_000)
    assert (await door.call("GET", "/v1/queues", headers=headers)).json()["queues"] == []
    body = {"grants": ["publish:*"], "requests_per_s": 0}
    bad = await door.call("POST", "/v1/keys", body, headers)
    assert (bad.status, bad.json()["field"]) == (400, "requests_per_s")
