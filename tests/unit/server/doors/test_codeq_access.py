"""codeQ: tokens with scopes, roles and tenants; no route is open without a credential."""

from __future__ import annotations

from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from penstock.broker import Broker
from penstock.server.access import Tokens
from penstock.testing.laws import law
from tests.unit.server.doors.conftest import Open, only
from tests.unit.server.doors.test_codeq import POLICY, Api

ISSUER, PRODUCER, WORKER = "https://issuer.example", "codeq-producer", "codeq-worker"
SCOPES: Final = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result codeq:subscribe"
KEY = rsa.generate_private_key(65537, 2048)


@pytest.fixture
def api(through: Open, broker: Broker) -> Api:
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    tokens = Tokens(broker.engine.clock, public_key=pem.decode(), issuer=ISSUER, audience=PRODUCER)
    return Api(through("codeq", auth=True, tokens=tokens, jwt_audience=PRODUCER))


def be(api: Api, audience: str, **claims: Any) -> None:
    """Send a token with these claims from now on."""
    now = api.door.clock.now() // 1000
    claims = {"iss": ISSUER, "aud": audience, "exp": now + 60, "sub": "shop", **claims}
    token = jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "k"})
    api.door.headers = {"authorization": f"bEARER {token}"}


def be_worker(api: Api, **claims: Any) -> None:
    be(
        api,
        WORKER,
        **{"eventTypes": ["RENDER"], "scope": SCOPES, "sub": "wörker/1", "tid": "acme", **claims},
    )


@law("T1")
async def test_no_route_is_open(through: Open) -> None:
    door = through("codeq", auth=True)
    codeq = only(door)
    assert len(codeq.routes.all) == 20
    for route in codeq.routes.all:
        path = route.path.format(id="i", name="t", command="C")
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic eDp5"}):
            answer = await door.call(route.method, path, {"command": "C", "payload": 1}, headers)
            assert answer.status == 401, (route, answer.body)
            assert list(answer.json()) == ["error"]
    assert await door.broker.queues() == ()
    assert await door.broker.log_end() == 0


async def test_producers_and_workers_share_a_tenant(api: Api) -> None:
    be(api, PRODUCER, tid="acme", tenantId="acme")
    made = await api.create()
    assert made["tenantId"] == "acme"
    await api(401, "POST", "/tasks/claim", {"commands": ["RENDER"]})
    be_worker(api)
    claimed = await api.claim()
    assert (claimed["id"], claimed["workerId"]) == (made["id"], "wörker/1")
    await api(401, "POST", "/tasks", {"command": "RENDER", "payload": 1})
    done = {"status": "COMPLETED", "result": {}}
    await api(200, "POST", f"/tasks/{made['id']}/result", done)
    be(api, PRODUCER, sub="acme")  # The subject, if no claim names a tenant.
    assert (await api(200, "GET", f"/tasks/{made['id']}/result"))["result"]["status"] == "COMPLETED"


@law("T1")
async def test_tenants_do_not_meet(api: Api) -> None:
    be(api, PRODUCER, tid="acme")
    made = await api.create(idempotencyKey="k")
    be(api, PRODUCER, tid="other")
    await api(404, "GET", f"/tasks/{made['id']}")
    await api.create(idempotencyKey="k")
    be_worker(api, tid="third")
    await api(204, "POST", "/tasks/claim", {})
    named: list[dict[str, Any]] = [
        {"tid": "acme", "organizationId": "other"},
        {"tid": "Acme"},
        {"tid": 5},
        {"tid": "a"},
        {"sub": "Not A Tenant"},
    ]
    for claims in named:
        be(api, PRODUCER, **claims)
        await api(403, "GET", f"/tasks/{made['id']}")


async def test_a_worker_needs_scopes_and_commands(api: Api) -> None:
    be(api, PRODUCER, tid="acme")
    made = await api.create()
    other = await api.create("OTHER")
    be_worker(api)
    body = {"commands": ["RENDER", "OTHER"]}
    await api(403, "POST", "/tasks/claim", body)
    await api(403, "POST", "/tasks/claim/batch", {**body, "count": 2})
    hook = {"callbackUrl": "http://x.example", "eventTypes": ["OTHER"]}
    await api(403, "POST", "/workers/subscriptions", hook)
    assert (await api(200, "POST", "/tasks/claim", {}))["id"] == made["id"]
    # A task of a command that is not the worker's.
    be_worker(api, eventTypes=["*"])
    assert (await api(200, "POST", "/tasks/claim", {"commands": ["OTHER"]}))["id"] == other["id"]
    be_worker(api)
    await api(403, "POST", f"/tasks/{other['id']}/nack", {})
    done = {"status": "COMPLETED", "result": {}}
    for scope, path, sent in (
        ("codeq:claim", "/tasks/claim", {}),
        ("codeq:heartbeat", f"/tasks/{made['id']}/heartbeat", {}),
        ("codeq:abandon", f"/tasks/{made['id']}/abandon", None),
        ("codeq:nack", f"/tasks/{made['id']}/nack", {}),
        ("codeq:result", f"/tasks/{made['id']}/result", done),
        ("codeq:subscribe", "/workers/subscriptions", {"callbackUrl": "http://x.example"}),
    ):
        be_worker(api, scope=" ".join({*SCOPES.split()} - {scope}))
        assert scope in await api.error(403, "POST", path, sent)
    wrong: list[dict[str, Any]] = [
        {"eventTypes": []},
        {"eventTypes": [5]},
        {"eventTypes": "*"},
        {"scope": ""},
        {"sub": ""},
        {"exp": 1},
        {"iss": "https://other.example"},
        {"aud": "someone-else"},
    ]
    for claims in wrong:
        be_worker(api, **claims)
        await api(401, "POST", "/tasks/claim", {})


@pytest.mark.parametrize("claims", [{"role": "admin"}, {"scope": "codeq:admin"}])
async def test_administrators(api: Api, claims: dict[str, str]) -> None:
    be(api, PRODUCER, tid="acme")
    for method, path in (
        ("PUT", "/admin/topics/t"),
        ("GET", "/admin/topics/t"),
        ("DELETE", "/admin/topics/t?deletionPolicy=Delete"),
        ("GET", "/admin/queues"),
        ("GET", "/admin/queues/T"),
        ("POST", "/admin/tasks/cleanup"),
    ):
        await api(401, method, path, POLICY)
    be(api, PRODUCER, tid="acme", **claims)
    made = await api(201, "PUT", "/admin/topics/t", POLICY)
    assert made["topicId"] == "acme.t"


async def test_keys_of_penstock_act_within_their_grants(api: Api) -> None:
    key = await api.door.keys.create("acme", ["publish:RENDER", "consume:RENDER"])
    api.door.headers = {"authorization": f"Bearer {key.key}"}
    made = await api.create()
    assert (await api.claim())["id"] == made["id"]
    await api(403, "POST", "/tasks", {"command": "OTHER", "payload": 1})
    batch = {"tasks": [{"command": "RENDER", "payload": 1}, {"command": "OTHER", "payload": 1}]}
    await api(403, "POST", "/tasks/batch", batch)
    await api(403, "POST", "/tasks/claim", {"commands": ["OTHER"]})
    await api(401, "GET", "/admin/queues")
    narrow = await api.door.keys.create("acme", ["publish:OTHER"])
    api.door.headers = {"authorization": f"Bearer {narrow.key}"}
    await api(403, "GET", f"/tasks/{made['id']}")
