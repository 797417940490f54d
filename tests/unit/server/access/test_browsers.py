"""Web pages of other sites cannot use a server that asks for no credential."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker import Broker, BrokerOptions
from penstock.errors import BadSetting, ForeignOrigin, UnsupportedMedia
from penstock.server.access import Access, Browsers, Keys
from penstock.server.app import Application
from penstock.server.health import ROUTES as HEALTH
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.service import Service
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.unit.server.conftest import Door


def browsers(
    *,
    auth: bool = False,
    host: str = "127.0.0.1",
    hosts: str | None = None,
    origins: str | None = None,
) -> Browsers:
    return Browsers.of(
        auth=auth,
        listening=(host, "Box"),
        allowed_hosts=hosts,
        allowed_origins=origins,
    )


def get(guard: Browsers, host: str, **headers: str) -> None:
    named = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    guard.check("GET", {b"host": host.encode(), **named})


def post(guard: Browsers, **headers: str) -> None:
    named = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    guard.check("POST", {b"host": b"localhost", **named})


# -- the host ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST.", "app.localhost:8080", "127.0.0.1:8080"),
        *("[::1]:8080", "192.168.1.7:8080", "box", "BOX:9000", "queue.example.com:8080"),
    ],
)
def test_names_of_this_server(host: str) -> None:
    guard = browsers(host="queue.example.com")
    for _ in range(2):
        get(guard, host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("evil.example@localhost", "localhost:8080:1", "local host", "[::1", "[::1].evil.example"),
    ],
)
def test_a_name_that_an_attacker_may_have_made_resolve_to_this_server(host: str) -> None:
    guard = browsers()
    for _ in range(2):
        with pytest.raises(ForeignOrigin, match="allowed_hosts") as caught:
            get(guard, host)
        assert caught.value.field == "Host"


def test_names_that_are_allowed() -> None:
    guard = browsers(host="0.0.0.0", hosts="Queue.example.com, *.internal")
    for host in ("queue.example.com", "a.internal:80", "a.b.internal", "localhost", "10.0.0.1"):
        get(guard, host)
    for host in ("internal", "evilinternal", "example.com", "queue.example.com.evil.example"):
        with pytest.raises(ForeignOrigin):
            get(guard, host)
    get(browsers(hosts="*"), "anything.example")


def test_with_auth_names_are_checked_only_where_they_are_configured() -> None:
    get(browsers(auth=True), "behind.a.proxy.example", origin="https://evil.example")
    with pytest.raises(ForeignOrigin):
        get(browsers(auth=True, hosts="queue.example.com"), "behind.a.proxy.example")


@law("E1")
@pytest.mark.parametrize(
    "text", ["http://queue.example.com", "queue.example.com:80", "a b", "*.*", "exa*mple"]
)
def test_a_setting_that_is_no_list_of_names(text: str) -> None:
    with pytest.raises(BadSetting) as caught:
        browsers(hosts=text)
    assert caught.value.field == "allowed_hosts"


# -- the origin ----------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", ""])
def test_a_page_of_another_site(origin: str) -> None:
    with pytest.raises(ForeignOrigin) as caught:
        get(browsers(), "localhost:8080", origin=origin)
    assert caught.value.field == "Origin"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_an_image_of_another_site(site: str) -> None:
    """It has no Origin, and a stream that is opened as an image would claim deliveries."""
    with pytest.raises(ForeignOrigin):
        get(browsers(), "localhost:8080", sec_fetch_site=site)


def test_a_page_of_its_own_and_one_that_is_allowed() -> None:
    guard = browsers(origins="https://app.example.com")
    get(guard, "localhost:8080", origin="http://localhost:8080", sec_fetch_site="same-origin")
    # A proxy that ends TLS: the page's origin has another scheme than the call.
    get(browsers(hosts="q.example.com"), "q.example.com", origin="https://q.example.com")
    get(guard, "localhost:8080", origin="https://App.example.com", sec_fetch_site="cross-site")
    get(guard, "localhost:8080", sec_fetch_site="none")
    with pytest.raises(ForeignOrigin):
        get(guard, "localhost:8080", origin="http://app.example.com")
    with pytest.raises(BadSetting):
        browsers(origins="app.example.com")


# -- what a form can send ------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain;charset=UTF-8",
        "multipart/form-data; boundary=x",
        "Text/Plain",
        "application/x-www-form-urlencoded",
    ],
)
def test_a_post_that_a_form_could_send(content_type: str) -> None:
    guard = browsers()
    with pytest.raises(UnsupportedMedia, match="application/json") as caught:
        post(guard, content_type=content_type)
    assert caught.value.field == "Content-Type"
    post(guard, content_type=content_type, penstock_id="7")
    post(browsers(auth=True), content_type=content_type)


@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream", "a/b"])
def test_a_post_that_a_browser_asks_before(content_type: str) -> None:
    post(browsers(), content_type=content_type)


def test_other_methods_are_never_sent_unasked() -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        browsers().check(method, {b"host": b"localhost"})


# -- the application -----------------------------------------------------------------------


@pytest.fixture
async def guarded() -> AsyncIterator[Door]:
    clock = FakeClock()
    options = BrokerOptions(engine=EngineOptions(clock=clock))
    engine = await open_engine("memory://", options.engine)
    async with Broker(engine, options) as broker:
        access = Access(clock, Keys(engine, clock), enabled=False)
        service = Service(broker, access, Metrics(engine), browsers=browsers())
        door = Door(Application(service, (*NATIVE, *HEALTH)), broker, clock)
        door.headers["host"] = "localhost:8080"
        yield door


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/v1/topics/orders/messages"),
        ("POST", "/v1/queues/orders/claims"),
        ("POST", "/v1/queues/orders/pause"),
        ("POST", "/v1/queues/orders/purges"),
        ("GET", "/v1/log?payloads=true"),
        ("GET", "/v1/queues/orders/stream"),
        ("DELETE", "/v1/queues/orders"),
    ],
)
async def test_nothing_is_done_for_a_page_of_another_site(
    guarded: Door, method: str, path: str
) -> None:
    await guarded.broker.publish("orders", b"x")
    for headers in (
        {"host": "evil.example:8080"},
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = await guarded.call(method, path, "{}", headers)
        assert answer.status == 403
        assert answer.json()["type"] == "urn:penstock:problem:foreign-origin"
    assert (await guarded.broker.queue("orders")).policy.paused is False
    assert (await guarded.broker.stats("orders")).available == 1


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"accept": "*/*"}])
async def test_an_image_on_a_page_opens_no_stream_over_a_network(
    guarded: Door, headers: dict[str, str]
) -> None:
    """Browsers send neither Origin nor Sec-Fetch-Site for it, and yet it would claim."""
    await guarded.broker.publish("orders", b"x")
    sent = {"host": "192.168.1.7:8080", **headers}
    async with asyncio.timeout(60):
        answer = await guarded.call("GET", "/v1/queues/orders/stream", None, sent)
    assert (answer.status, answer.json()["field"]) == (403, "Penstock-Request-Id")
    assert (await guarded.broker.stats("orders")).available == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"penstock-request-id": "7"},
        {"content-type": "application/json"},
        {"origin": "http://192.168.1.7:8080"},
        {"sec-fetch-site": "same-origin"},
    ],
)
async def test_a_stream_that_no_other_page_could_open(
    guarded: Door, headers: dict[str, str]
) -> None:
    await guarded.broker.publish("orders", b"x")
    leave = asyncio.Event()
    sent = {"host": "192.168.1.7:8080", **headers}
    streaming = asyncio.ensure_future(
        guarded.call("GET", "/v1/queues/orders/stream", None, sent, leave=leave)
    )
    async with asyncio.timeout(60):
        while (await guarded.broker.stats("orders")).available:  # noqa: ASYNC110  (a turn of the loop, no time)
            await asyncio.sleep(0)
        leave.set()
        assert (await streaming).status == 200


async def test_ordinary_callers_notice_nothing(guarded: Door) -> None:
    json = {"content-type": "application/json"}
    sent = await guarded.call("POST", "/v1/topics/orders/messages", '{"order": 7}', json)
    assert sent.status == 201
    claimed = await guarded.call("POST", "/v1/queues/orders/claims", None, json)
    assert len(claimed.json()["deliveries"]) == 1
    plain = await guarded.call("POST", "/v1/queues/orders/claims")
    assert (plain.status, plain.json()["field"]) == (415, "Content-Type")
