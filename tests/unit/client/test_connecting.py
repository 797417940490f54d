"""``connect``: it sends nothing, several servers stand in for each other, TLS options."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from msgspec.structs import replace

import penstock
from penstock.broker import Broker
from penstock.client import ClientOptions, connect
from penstock.client.address import Address
from penstock.client.credentials import CredentialSource
from penstock.client.http import Reply
from penstock.client.transport import Request, Transport
from penstock.errors import BadInput, BadUrl, Busy, Unreachable
from penstock.testing.laws import law
from tests.unit.client.conftest import QUICK, application
from tests.unit.client.hosting import Fault, Host, problem

#: Nobody listens there.
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
async def second(broker: Broker) -> Any:
    """Another server of the same store."""
    host = Host(application(broker))
    await host.start()
    yield host
    await host.stop()


def calls(host: Host) -> int:
    """The calls that a server got, without questions for the role of servers."""
    return sum(request.path != "/healthz" for request in host.requests)


def test_a_client_can_be_made_before_there_is_an_event_loop() -> None:
    q = penstock.connect("http://localhost:8080")
    assert q.url == "http://localhost:8080"
    asyncio.run(q.close())


async def test_a_client_that_was_not_awaited_makes_calls(host: Host) -> None:
    q = connect(host.url, options=QUICK)
    await q.publish("t", b"x")
    assert await q.log_end() == 1
    assert await q is q
    await q.close()


@law("P4")
async def test_the_next_server_answers_if_the_first_cannot_be_reached(
    second: Host, broker: Broker
) -> None:
    async with connect(f"{NOWHERE},{second.url}", options=QUICK) as q:
        await q.publish("t", b"x")
        await q.publish("t", b"y")
    assert await broker.log_end() == 2
    assert calls(second) == 2


@law("P4")
async def test_a_publish_whose_reply_was_lost_is_stored_once(
    host: Host, second: Host, broker: Broker
) -> None:
    async with connect([host.url, second.url], options=QUICK) as q:
        host.fault(Fault.LOSE)
        await q.publish("t", b"x")
    assert await broker.log_end() == 1
    assert (calls(host), calls(second)) == (1, 1)


async def test_a_busy_server_is_left(host: Host, second: Host) -> None:
    async with connect([host.url, second.url], options=QUICK) as q:
        host.fault(problem(Busy("stopping", retry_after_ms=1)))
        await q.queues()
        await q.queues()
    assert (calls(host), calls(second)) == (1, 2)


async def test_a_call_that_may_have_taken_effect_is_not_sent_to_the_next_server(
    host: Host, second: Host, broker: Broker
) -> None:
    options = replace(QUICK, idempotent=False)
    async with connect([host.url, second.url], options=options) as q:
        host.fault(Fault.LOSE)
        with pytest.raises(Unreachable, match="unknown"):
            await q.publish("t", b"x")
    assert await broker.log_end() == 1
    assert not second.requests


async def test_another_transport(host: Host) -> None:
    seen: list[str] = []

    class Noting(Transport):
        async def exchange(self, request: Request) -> Reply:
            seen.append(request.target)
            return await super().exchange(request)

    def make(
        address: Address,
        credential: CredentialSource | None,
        tls: ssl.SSLContext | None,
        options: ClientOptions,
    ) -> Noting:
        return Noting(address, credential, tls, options)

    async with connect(host.url, options=QUICK, transport=make) as q:
        await q.queues()
    assert seen == ["/v1/queues"]


@law("E1")
@pytest.mark.parametrize(
    "url, options, kind, field",
    [
        ("", {}, BadUrl, "url"),
        ([], {}, BadUrl, "url"),
        (5, {}, BadUrl, "url"),
        ("http://a,,http://b", {}, BadUrl, "url"),
        ("http://a,https://b", {}, BadUrl, "url"),
        ("http://a/x,http://b/y", {}, BadUrl, "url"),
        ("http://a", {"ca": "x.pem"}, BadUrl, "ca"),
        ("http://a", {"cert": "x.pem"}, BadUrl, "cert"),
        ("https://a", {"key": "x.pem"}, BadInput, "key"),
        ("https://a", {"cert": "/no/such/file.pem"}, BadInput, "cert"),
        ("https://a", {"ca": "/no/such/file.pem"}, BadInput, "ca"),
        ("http://a", {"transport": 5}, BadInput, "transport"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    url: Any, options: dict[str, Any], kind: type[BadInput], field: str
) -> None:
    with pytest.raises(kind) as refused:
        connect(url, **options)
    assert refused.value.field == field


@pytest.mark.parametrize("url", ["memory://", "rocksdb:///store", "postgresql://u:s3cret@h/d"])
def test_the_url_of_a_store_is_for_open(url: str) -> None:
    with pytest.raises(BadUrl, match=r"penstock\.open opens a store") as refused:
        connect(url)
    assert "s3cret" not in str(refused.value)
