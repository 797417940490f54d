"""What the application does for every door: recognise, check, authenticate, refuse, count."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadSetting, PenstockError, UnknownRoute
from penstock.server import doors
from penstock.server.access import ANYBODY, Access, Browsers, Credential, Keys
from penstock.server.app import Application
from penstock.server.call import Call
from penstock.server.doors import load_doors
from penstock.server.doors.door import Door
from penstock.server.health import ROUTES as HEALTH
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES as NATIVE
from penstock.server.replies import Plain
from penstock.server.service import Service
from tests.unit.server.conftest import Door as Caller


class EchoDoor(Door):
    """Publishes what it is sent to the topic in its path, and echoes it."""

    name = "echo"
    page_proof = frozenset({b"x-echo"})

    def takes(self, call: Call) -> bool:
        return call.path.startswith("/echo/")

    def find(self, call: Call) -> None:
        topic = call.path.removeprefix("/echo/")
        if not topic:
            raise UnknownRoute("There is no such echo.")
        call.parameters = (topic,)
        call.verb = "echo.Publish"
        call.claims = call.method == "GET"

    async def authenticate(self, call: Call) -> Credential:
        access = call.service.access
        if not access.enabled:
            return ANYBODY
        await call.read_body(1_000)
        return await access.authenticate(b"bearer " + call.headers.get(b"x-echo", b""))

    async def answer(self, call: Call) -> Plain:
        body = call.raw or await call.read_body(1_000)
        call.check("publish", call.name)
        if body == b"bug":
            raise RuntimeError
        await call.broker.publish(call.name, body)
        return Plain(200, body, "text/echo")

    def refuse(self, call: Call, error: PenstockError) -> Plain:
        return Plain(error.status, f"echo: {type(error).__name__}".encode(), "text/echo")


def through(plain: Caller, *, auth: bool, guard: Browsers | None = None) -> Caller:
    """The same broker behind an application with the door."""
    keys = Keys(plain.broker.engine, plain.clock)
    access = Access(plain.clock, keys, enabled=auth)
    service = Service(plain.broker, access, Metrics(plain.broker.engine), browsers=guard)
    return Caller(
        Application(service, (*NATIVE, *HEALTH), (EchoDoor(),)), plain.broker, plain.clock
    )


async def test_a_door_answers_its_requests_and_the_native_door_all_others(door: Caller) -> None:
    echo = through(door, auth=False)
    answer = await echo.call("POST", "/echo/orders", b"hello")
    assert (answer.status, answer.body) == (200, b"hello")
    assert answer.headers["content-type"] == "text/echo"
    assert answer.headers["penstock-request-id"]
    found = await echo.call("POST", "/v1/queues/orders/claims", {})
    assert found.json()["deliveries"][0]["payload_base64"] == "aGVsbG8="
    assert b'penstock_calls_total{outcome="ok",verb="echo.Publish"} 1.0' in (
        await echo.service.metrics.render()
    )


async def test_a_door_renders_every_error_itself(door: Caller) -> None:
    echo = through(door, auth=False)

    async def refusal(path: str, body: bytes = b"", **more: Any) -> tuple[int, bytes]:
        answer = await echo.call("POST", path, body, **more)
        assert answer.headers["content-type"] == "text/echo"
        return answer.status, answer.body

    assert await refusal("/echo/") == (404, b"echo: UnknownRoute")
    assert await refusal("/echo/orders", b"x" * 1_001) == (413, b"echo: TooLarge")
    assert await refusal("/echo/orders", b"bug") == (500, b"echo: _Bug")
    head = {"content-encoding": "gzip"}
    assert await refusal("/echo/orders", b"x", headers=head) == (415, b"echo: UnsupportedMedia")
    assert echo.service.budget.held == 0
    assert await echo.broker.queues() == ()


async def test_no_request_of_a_door_is_answered_before_its_caller_is_authenticated(
    door: Caller,
) -> None:
    echo = through(door, auth=True)
    key = await echo.keys.create("other", ["publish:orders"])
    assert (await echo.call("POST", "/echo/orders", b"x")).body == b"echo: Unauthenticated"
    sent = {"x-echo": key.key}
    assert (await echo.call("POST", "/echo/bills", b"x", sent)).body == b"echo: Forbidden"
    assert (await echo.call("POST", "/echo/orders", b"x", sent)).body == b"x"
    assert [info.name for info in await echo.broker.for_tenant("other").queues()] == ["orders"]
    assert await echo.broker.queues() == ()
    assert echo.service.budget.share("other").held == echo.service.budget.held == 0


async def test_pages_of_other_sites_cannot_use_a_door(door: Caller) -> None:
    guard = Browsers.of(
        auth=False, listening=("127.0.0.1",), allowed_hosts=None, allowed_origins=None
    )
    echo = through(door, auth=False, guard=guard)
    form = {"content-type": "application/x-www-form-urlencoded", "host": "127.0.0.1"}
    assert (await echo.call("POST", "/echo/a", b"x", form)).body == b"echo: UnsupportedMedia"
    assert (await echo.call("POST", "/echo/a", b"x", form | {"x-echo": "1"})).status == 200
    assert (await echo.call("GET", "/echo/a", headers={"host": "127.0.0.1"})).status == 403
    foreign = form | {"x-echo": "1", "origin": "https://evil.example"}
    assert (await echo.call("POST", "/echo/a", b"x", foreign)).body == b"echo: ForeignOrigin"


def test_doors_are_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "DOORS", {"echo": f"{__name__}:EchoDoor"})
    monkeypatch.setattr(doors, "import_module", lambda name: __import__("sys").modules[name])
    assert load_doors(None) == ()
    assert [opener.__name__ for opener in load_doors("echo, echo,")] == ["EchoDoor"]
    with pytest.raises(BadSetting) as caught:
        load_doors("echo,telnet")
    assert caught.value.field == "door"
    assert str(caught.value).startswith("There is no door 'telnet'. The doors are echo;")
