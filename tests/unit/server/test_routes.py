"""Every route: how it is found, its access check, and its place in the OpenAPI document.

The tests walk the table of routes, so that a new route is held to them without being named.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from penstock.model.runs import Run
from penstock.server.access import Access, Keys
from penstock.server.health import ROUTES as HEALTH
from penstock.server.native import ROUTES as NATIVE
from penstock.server.routing import ANYONE, AnyRoute, Routes
from penstock.testing.laws import law
from tests.unit.server.conftest import Door, application

ALL = (*NATIVE, *HEALTH)
GUARDED = [route for route in ALL if route.need != ANYONE]
OPEN = [route for route in ALL if route.need == ANYONE]


def name_of(route) -> str:
    return f"{route.method} {route.path}"


#: Verbs with the queue in their query.
_NAMES_A_QUEUE = ("result", "explain", "cancel", "stats_history")


def path_of(route) -> str:
    values = {"queue": "orders", "topic": "orders", "id": "0", "consumer": "w", "key": "k"}
    path = re.sub(r"{(\w+)}", lambda found: values[found[1]], route.path)
    return path + ("?queue=orders" if route.verb in _NAMES_A_QUEUE else "")


BODIES: dict[str, Any] = {
    "join": {"consumer": "w"},
    "purge": {"state": "failed"},
    "archived": {"through": 0},
    "assign": {"filter": "topic = 'orders'", "start": 0, "end": 1, "offsets": [0]},
    "put_report": {"page": "orders"},
    "put_run": {"job": "orders", "state": "running", "started_at": 0, "updated_at": 0},
    "create_key": {"grants": ["publish:*"]},
    "settle": {"settlements": [{"verb": "ack", "receipt": "0-0-1-1"}]},
    "publish": "x",
    "validate_filter": {"text": "TRUE"},
    "complete_filter": {"text": "", "cursor": 0},
}


@pytest.fixture
async def guarded(door):
    """The same store behind a door that asks for credentials."""
    keys = Keys(door.broker.engine, door.clock)
    guarded = Door(application(door.broker, Access(door.clock, keys)), door.broker, door.clock)
    await door.broker.publish("orders", b"x")
    await door.broker.put_run(
        Run(id="0", job="orders", state="running", started_at=0, updated_at=0)
    )
    await door.broker.put_report("orders")
    return guarded


async def call(door: Door, route, key: str | None):
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    if route.verb in ("stream", "stats_stream"):
        # Nobody listens: an accepted stream ends at once.
        door.service.stopping.set()
    try:
        return await door.call(route.method, path_of(route), BODIES.get(route.verb), headers)
    finally:
        door.service.stopping.clear()


@law("T1")
@pytest.mark.parametrize("route", GUARDED, ids=name_of)
async def test_no_route_answers_without_a_credential(guarded, route):
    for key in (None, "psk_" + "a" * 16 + "_" + "b" * 43, "nonsense"):
        reply = await call(guarded, route, key)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")


@law("T1")
@pytest.mark.parametrize("route", GUARDED, ids=name_of)
async def test_no_route_answers_to_too_small_a_credential(guarded, route):
    """A grant on another name, or of another action, is no grant."""
    other = "consume" if route.need.action == "publish" else "publish"
    small = [] if route.need.or_read else [[f"{other}:*"]]
    if route.need.parameter != "any":
        small.append([f"{route.need.action}:billing", "read:billing"])
    for grants in small:
        made = await guarded.keys.create("default", grants)
        reply = await call(guarded, route, made.key)
        assert reply.status == 403, reply.body
        assert reply.json()["type"] == "urn:penstock:problem:forbidden"


@pytest.mark.parametrize("route", GUARDED, ids=name_of)
async def test_every_route_answers_to_the_grant_it_names(guarded, route):
    name = "orders" if route.need.parameter in ("queue", "topic", "any") else "*"
    made = await guarded.keys.create("default", [f"{route.need.action}:{name}"])
    reply = await call(guarded, route, made.key)
    assert reply.status not in (401, 403), reply.body


#: The routes that change nothing. A new route is added here only if that is true of it.
READ_ONLY = {
    "complete_filter",
    "explain",
    "failures",
    "find",
    "get_credential",
    "get_queue",
    "get_report",
    "get_run",
    "get_topic",
    "history",
    "identity",
    "list_queues",
    "list_runs",
    "list_topics",
    "log_end",
    "log_splits",
    "log_start",
    "log_trimmed",
    "message",
    "payload",
    "peek",
    "preview",
    "queue_history",
    "queue_log",
    "read_history",
    "read_log",
    "result",
    "server_settings",
    "stats",
    "stats_history",
    "stats_stream",
    "validate_filter",
}


@law("T1")
@pytest.mark.parametrize("route", GUARDED, ids=name_of)
async def test_a_read_only_credential_reads_and_changes_nothing(guarded, route):
    before = await guarded.broker.stats("orders"), await guarded.broker.log_end()
    made = await guarded.keys.create("default", ["read:*"])
    reply = await call(guarded, route, made.key)
    if route.verb in READ_ONLY:
        assert reply.status not in (401, 403), reply.body
    else:
        assert reply.status == 403, reply.body
    assert (await guarded.broker.stats("orders"), await guarded.broker.log_end()) == before


def test_every_read_only_verb_is_a_route() -> None:
    assert {route.verb for route in GUARDED} >= READ_ONLY


@law("T1")
@pytest.mark.parametrize("route", GUARDED, ids=name_of)
async def test_another_tenants_administrator_sees_nothing(guarded, route):
    """The strongest key of another tenant finds neither names nor ids nor counts here."""
    before = await guarded.broker.stats("orders")
    made = await guarded.keys.create("stranger", ["admin:*"])
    reply = await call(guarded, route, made.key)
    assert b"cj1" not in reply.body
    listings = {"list_queues", "list_topics", "list_keys", "list_runs", "read_log", "log_end"}
    listings.add("get_report")
    if route.verb in listings:
        assert "orders" not in reply.body.decode()
    elif (route.need.parameter == "queue" and route.verb != "put_queue") or route.verb == "get_run":
        assert reply.status == 404, reply.body
    assert await guarded.broker.stats("orders") == before
    assert len(await guarded.broker.runs()) == 1


@pytest.mark.parametrize("route", OPEN, ids=name_of)
async def test_open_routes_tell_nothing_of_a_tenant(guarded, route):
    reply = await guarded.call(route.method, route.path)
    assert reply.status == 200
    if route.verb != "openapi":
        assert b"orders" not in reply.body


async def test_listings_show_only_what_the_grants_cover(guarded):
    await guarded.broker.create_queue("secret")
    made = await guarded.keys.create("default", ["consume:orders"])
    reply = await guarded.call("GET", "/v1/queues", headers={"authorization": f"Bearer {made.key}"})
    assert [one["name"] for one in reply.json()["queues"]] == ["orders"]


async def test_publishing_with_a_settlement_needs_the_topics_grant_too(guarded):
    made = await guarded.keys.create("default", ["consume:orders"])
    headers = {"authorization": f"Bearer {made.key}"}
    claimed = await guarded.call("POST", "/v1/queues/orders/claims", {}, headers)
    [delivery] = claimed.json()["deliveries"]
    body = {
        "settlements": [{"verb": "ack", "receipt": delivery["receipt"]}],
        "publish": [{"topic": "bills", "messages": [{"payload": 1}]}],
    }
    reply = await guarded.call("POST", "/v1/queues/orders/settlements", body, headers)
    assert reply.status == 403
    assert (await guarded.broker.stats("orders")).in_flight == 1


async def test_a_dead_letter_topic_needs_the_topics_grant_too(guarded):
    """A consumer of the queue would publish there, by rejecting."""
    made = await guarded.keys.create("default", ["admin:orders", "publish:dead"])
    headers = {"authorization": f"Bearer {made.key}"}
    defaults = {"queue_defaults": {"dead_letter_topic": "bills"}}
    for method, path, body in (
        ("PUT", "/v1/queues/orders", {"dead_letter_topic": "bills"}),
        ("PATCH", "/v1/queues/orders", {"dead_letter_topic": "bills"}),
        ("PUT", "/v1/topics/orders", defaults),
    ):
        reply = await guarded.call(method, path, body, headers)
        assert reply.status == 403
        assert "publish:bills" in reply.json()["detail"]
    assert (await guarded.broker.queue("orders")).policy.dead_letter_topic is None
    assert await guarded.broker.topic("orders") is None
    body = {"dead_letter_topic": "dead"}
    reply = await guarded.call("PATCH", "/v1/queues/orders", body, headers)
    assert reply.json()["policy"]["dead_letter_topic"] == "dead"
    body = {"dead_letter_topic": ""}
    reply = await guarded.call("PATCH", "/v1/queues/orders", body, headers)
    assert reply.json()["policy"]["dead_letter_topic"] is None


async def test_a_claim_of_several_queues_needs_the_grant_on_each(guarded):
    await guarded.broker.create_queue("secret")
    made = await guarded.keys.create("default", ["consume:orders"])
    headers = {"authorization": f"Bearer {made.key}"}
    body = {"queues": ["orders", "secret"], "limit": 2}
    reply = await guarded.call("POST", "/v1/claims", body, headers)
    assert reply.status == 403
    assert (await guarded.broker.stats("orders")).in_flight == 0
    reply = await guarded.call("POST", "/v1/claims", {"queues": ["orders"]}, headers)
    assert [one["queue"] for one in reply.json()["deliveries"]] == ["orders"]


async def test_a_revoked_key_is_refused_at_once(guarded):
    made = await guarded.keys.create("default", ["admin:*"])
    headers = {"authorization": f"Bearer {made.key}"}
    assert (await guarded.call("GET", "/v1/queues", headers=headers)).status == 200
    path = f"/v1/keys/{made.info.id}"
    assert (await guarded.call("DELETE", path, headers=headers)).status == 204
    assert (await guarded.call("GET", "/v1/queues", headers=headers)).status == 401


async def test_keys_are_made_for_the_callers_tenant_and_shown_once(guarded):
    made = await guarded.keys.create("acme", ["admin:*"])
    headers = {"authorization": f"Bearer {made.key}"}
    reply = await guarded.call(
        "POST", "/v1/keys", {"grants": ["publish:orders-*"], "name": "shop"}, headers
    )
    assert reply.status == 201
    assert reply.json()["info"]["tenant"] == "acme"
    listed = await guarded.call("GET", "/v1/keys", headers=headers)
    assert "shop" in [one["name"] for one in listed.json()["keys"]]
    assert reply.json()["key"].split("_", 2)[2] not in listed.body.decode()


async def test_the_openapi_document_has_every_route_and_the_limits(door):
    document = json.loads((await door.call("GET", "/openapi.json")).body)
    # Calls that may send or request Arrow need an extra of the server.
    paths = document["paths"]
    assert "501" in paths["/v1/topics/{topic}/messages"]["post"]["responses"]
    assert "501" in paths["/v1/log"]["get"]["responses"]
    assert "501" not in paths["/v1/log/end"]["get"]["responses"]
    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described == {(route.method, route.path) for route in ALL}
    assert document["x-limits"]["messages_a_batch"] == 10_000
    operations = [
        operation["operationId"]
        for item in document["paths"].values()
        for operation in item.values()
    ]
    assert len(set(operations)) == len(operations)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= document["components"]["schemas"].keys()
    for route in GUARDED:
        operation = document["paths"][route.path][route.method.lower()]
        assert {"401", "403"} <= operation["responses"].keys()
        assert operation["x-grant"].startswith(str(route.need.action))


def test_found_paths_are_cached_within_bounds() -> None:
    routes: Routes[AnyRoute] = Routes(ALL)
    for number in range(3_000):
        route, values = routes.find("POST", f"/v1/queues/q{number}/claims")
        assert (route.verb, values) == ("claim", (f"q{number}",))
    assert 0 < len(routes._found) <= 1_024
    long = "q" * 100_000
    assert routes.find("POST", f"/v1/queues/{long}/claims")[1] == (long,)
    assert max(len(path) for _, path in routes._found) <= 512
