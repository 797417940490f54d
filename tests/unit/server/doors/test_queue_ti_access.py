"""queue-ti: users, tokens, grants; no route is open without a credential."""

from __future__ import annotations

import asyncio
from typing import Any

import jwt
import pytest

from penstock.server.doors.queue_ti.access import TOKEN_S
from penstock.server.doors.queue_ti.passwords import MAX_WAITING
from penstock.testing.laws import law
from tests.unit.server.conftest import Door
from tests.unit.server.doors.conftest import Open, only
from tests.unit.server.doors.test_queue_ti import Api

PASSWORD = "correct horse battery"
#: The routes that queue-ti itself leaves open.
OPEN = {"/api/version", "/api/auth/status", "/api/auth/login"}


@pytest.fixture
async def api(through: Open) -> Api:
    """As an administrator who logged in with a key of Penstock."""
    door = through("queue-ti", auth=True)
    key = await door.keys.create("default", ["admin:*"], name="root")
    api = Api(door)
    await log_in(api, "root", key.key)
    return api


async def log_in(api: Api, username: str, password: str = PASSWORD) -> None:
    body = {"username": username, "password": password}
    token = (await api(200, "POST", "/auth/login", body))["token"]
    api.door.headers = {"authorization": f"Bearer {token}"}


async def user(api: Api, name: str, **more: Any) -> str:
    made = await api(201, "POST", "/users", {"username": name, "password": PASSWORD, **more})
    assert set(made) == {"id", "username", "is_admin", "created_at", "updated_at"}
    return made["id"]


@law("T1")
async def test_no_route_is_open(through: Open) -> None:
    door = through("queue-ti", auth=True)
    queue_ti = only(door)
    assert len(queue_ti.routes.all) == 38
    for route in queue_ti.routes.all:
        path = route.path.format(id="i", topic="t", group="g", key="k", grant="x")
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic eDp5"}):
            answer = await door.call(route.method, path, {"topic": "t", "payload": "x"}, headers)
            expected = 401 if path not in OPEN else 400 if route.method == "POST" else 200
            assert answer.status == expected, (route, answer.body)
    assert await door.broker.queues() == ()
    assert await door.broker.log_end() == 0


@law("T1")
async def test_administration_needs_an_administrator(api: Api) -> None:
    uid = await user(api, "ann")
    await api(201, "POST", f"/users/{uid}/grants", {"action": "write"})
    await api(201, "POST", f"/users/{uid}/grants", {"action": "read"})
    # The action opens nothing; the flag of the user would.
    await api(201, "POST", f"/users/{uid}/grants", {"action": "admin"})
    await log_in(api, "ann")
    queue_ti = only(api.door)
    refused = set()
    for route in queue_ti.routes.all:
        path = route.path.format(id=uid, topic="t", group="g", key="k", grant="x")
        answer = await api.door.call(route.method, path, {"topic": "t", "payload": "x"})
        if answer.status == 403:
            refused.add(f"{route.method} {route.path}")
    assert len(refused) == 29
    assert not any(path.partition(" ")[2].startswith("/api/messages") for path in refused)


async def test_users_are_managed(api: Api) -> None:
    uid = await user(api, "ann")
    for body in (
        {},
        {"username": "bob"},
        {"username": "bob", "password": "short"},
        {"username": "a/b", "password": PASSWORD},
        {"username": "x" * 300, "password": PASSWORD},
        {"username": "bob", "password": "p" * 5_000},
    ):
        await api(400, "POST", "/users", body)
    await api(409, "POST", "/users", {"username": "ann", "password": PASSWORD})
    changed = await api(200, "PUT", f"/users/{uid}", {"username": "anna", "is_admin": True})
    assert (changed["id"], changed["username"], changed["is_admin"]) == (uid, "anna", True)
    other = await user(api, "ann")
    await api(409, "PUT", f"/users/{other}", {"username": "anna"})
    await api(400, "PUT", f"/users/{other}", {"password": "short"})
    await api(404, "PUT", "/users/nobody", {"is_admin": True})
    await api(200, "PUT", f"/users/{other}", {"password": "another password"})
    assert {item["username"] for item in (await api(200, "GET", "/users"))["items"]} == {
        "ann",
        "anna",
    }
    await api(401, "POST", "/auth/login", {"username": "ann", "password": PASSWORD})
    await log_in(api, "anna")
    assert "yourself" in await api(400, "DELETE", f"/users/{uid}")
    await api(204, "DELETE", f"/users/{other}")
    await api(404, "DELETE", f"/users/{other}")


@law("T1")
async def test_users_of_tenants_do_not_meet(api: Api) -> None:
    await user(api, "ann")
    key = await api.door.keys.create("acme", ["admin:*"])
    await log_in(api, "whoever", key.key)
    assert await api(200, "GET", "/users") == {"items": []}
    uid = await user(api, "ann")
    await api(201, "POST", f"/users/{uid}/grants", {"action": "write"})
    await log_in(api, "acme/ann")
    await api.enqueue()
    assert await api.broker.log_end() == 0
    assert await api.broker.for_tenant("acme").log_end() == 1
    # The reaper would touch every tenant.
    await log_in(api, "whoever", key.key)
    await api(403, "POST", "/admin/expiry-reaper/run")


async def test_a_token_lasts_fifteen_minutes_and_is_refreshed(api: Api) -> None:
    uid = await user(api, "ann", is_admin=True)
    await log_in(api, "ann")
    token = api.door.headers["authorization"].removeprefix("Bearer ")
    claims = jwt.decode(token, options={"verify_signature": False, "verify_exp": False})
    assert (claims["uid"], claims["sub"], claims["adm"]) == (uid, "ann", True)
    assert claims["exp"] - claims["iat"] == TOKEN_S == 900
    api.door.clock.advance(899_000)
    fresh = (await api(200, "POST", "/auth/refresh"))["token"]
    api.door.clock.advance(1_000)
    await api(401, "GET", "/users")
    api.door.headers = {"authorization": f"Bearer {fresh}"}
    await api(200, "GET", "/users")
    api.door.headers = {"authorization": f"bearer {fresh}"}  # The scheme is case-sensitive.
    await api(401, "GET", "/users")
    forged = jwt.encode({**claims, "exp": claims["exp"] * 2}, "x" * 32)
    none = jwt.encode({**claims, "exp": claims["exp"] * 2}, "", algorithm="none")
    for text in (forged, none, fresh[:-2], ""):
        api.door.headers = {"authorization": f"Bearer {text}"}
        await api(401, "GET", "/users")


@law("T1")
async def test_what_is_revoked_counts_immediately(api: Api) -> None:
    admin = api.door.headers
    uid = await user(api, "ann")
    grant = await api(
        201, "POST", f"/users/{uid}/grants", {"action": "write", "topic_pattern": "a"}
    )
    assert grant["user_id"] == uid
    await log_in(api, "ann")
    ann = api.door.headers
    await api.enqueue("a")
    api.door.headers = admin
    await api(204, "DELETE", f"/users/{uid}/grants/{grant['id']}")
    await api(404, "DELETE", f"/users/{uid}/grants/{grant['id']}")
    api.door.headers = ann
    await api(403, "POST", "/messages", {"topic": "a", "payload": "x"})
    api.door.headers = admin
    await api(204, "DELETE", f"/users/{uid}")
    api.door.headers = ann
    await api(401, "POST", "/auth/refresh")
    # The administrator's own token ends with the key that it came from.
    api.door.headers = admin
    (key,) = await api.door.keys.list("default")
    await api.door.keys.revoke("default", key.id)
    await api(401, "POST", "/auth/refresh")


async def test_grants_match_topics_and_groups(api: Api) -> None:
    admin = api.door.headers
    uid = await user(api, "ann")
    path = f"/users/{uid}"
    for body in ({"action": "consume"}, {"action": ""}, {"action": "read", "topic_pattern": "\n"}):
        await api(400, "POST", f"{path}/grants", body)
    await api(400, "POST", f"{path}/consumer-group-grants", {})
    await api(404, "POST", "/users/nobody/grants", {"action": "read"})
    await api(404, "GET", "/users/nobody/grants")
    await api(201, "POST", f"{path}/grants", {"action": "read", "topic_pattern": "a.*"})
    body = {"consumer_group": "g", "topic_pattern": "a.b"}
    made = await api(201, "POST", f"{path}/consumer-group-grants", body)
    assert (made["action"], made["consumer_group"]) == ("consume", "g")
    await api(409, "POST", f"{path}/consumer-group-grants", body)
    assert len((await api(200, "GET", f"{path}/grants"))["items"]) == 2
    await log_in(api, "ann")
    await api.listed("a.b")
    await api(403, "GET", "/messages?topic=ab")
    await api(403, "GET", "/messages")
    await api(403, "POST", "/messages", {"topic": "a.b", "payload": "x"})
    assert await api.dequeue("a.b", consumer_group="g") == []
    assert await api.dequeue("a.b") == []
    for body in ({"topic": "a.b", "consumer_group": "h"}, {"topic": "a.c"}):
        await api(403, "POST", "/messages/dequeue", body)
    # Validation runs before the grants are checked.
    await api(400, "POST", "/messages/dequeue", {"topic": "a.c", "count": 0})
    api.door.headers = admin
    made = await api.enqueue("a.c")
    await api.dequeue("a.c")
    await log_in(api, "ann")
    await api(403, "POST", f"/messages/{made}/nack")
    await api(403, "POST", f"/messages/{made}/requeue")


async def test_keys_of_penstock_are_accepted_with_their_grants(through: Open) -> None:
    door: Door = through("queue-ti", auth=True)
    api = Api(door)
    key = await door.keys.create("default", ["publish:orders", "consume:orders*"])
    door.headers = {"authorization": f"Bearer {key.key}"}
    await api.enqueue("orders")
    await api.dequeue("orders")
    await api.listed("orders")
    await api(403, "POST", "/messages", {"topic": "bills", "payload": "x"})
    await api(403, "POST", "/messages/dequeue", {"topic": "bills"})
    await api(403, "GET", "/stats")
    await api(401, "POST", "/auth/login", {"username": "x", "password": key.key})
    await api(401, "POST", "/auth/refresh")


async def test_logins_are_limited(api: Api) -> None:
    api.door.clock.advance(60_000)
    wrong = {"username": "ann", "password": "wrong"}
    for _ in range(10):
        await api(401, "POST", "/auth/login", wrong)
    answer = await api.door.call("POST", "/api/auth/login", wrong)
    assert answer.status == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60
    # Another address does not help against one user, and another user not from one address.
    sent = {"x-real-ip": "192.0.2.1"}
    assert (await api.door.call("POST", "/api/auth/login", wrong, sent)).status == 429
    other = {"username": "bob", "password": "wrong"}
    assert (await api.door.call("POST", "/api/auth/login", other)).status == 429
    assert (await api.door.call("POST", "/api/auth/login", other, sent)).status == 401
    api.door.clock.advance(60_000)
    await api(401, "POST", "/auth/login", wrong)


async def test_without_auth_everybody_may_do_everything(through: Open) -> None:
    api = Api(through("queue-ti"))
    assert await api(200, "GET", "/auth/status") == {"auth_required": False}
    assert set(await api(200, "GET", "/version")) == {"version"}
    uid = await user(api, "ann")
    await api(204, "DELETE", f"/users/{uid}")


async def test_logins_wait_for_each_other_and_many_are_refused(through: Open) -> None:
    """The limit per address believes X-Real-IP, so hashes are bounded for the whole server."""
    door = through("queue-ti", auth=True)

    async def login(number: int) -> int:
        body = {"username": f"u{number}", "password": "x"}
        real = {"x-real-ip": f"192.0.2.{number}"}
        return (await door.call("POST", "/api/auth/login", body, real)).status

    statuses = await asyncio.gather(*(login(number) for number in range(MAX_WAITING + 5)))
    assert statuses.count(401) == MAX_WAITING
    assert statuses.count(429) == 5
    assert await login(100) == 401
