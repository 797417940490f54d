"""Hostile calls of every route of the doors: an answer in the protocol's form, and no bug."""

from __future__ import annotations

import json

import pytest

from penstock.server.access import Browsers
from penstock.testing.laws import law
from tests.unit.server.conftest import Answer
from tests.unit.server.doors.conftest import Open, only

JSON = {"content-type": "application/json"}
BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"5",
    b"\xff\xfe",
    b'{"a":' * 5_000,
    b'{"topic":{},"payload":[],"command":7,"tasks":[null],"results":[5],"statuses":7}',
    b'{"topic":"\\u0000","payload":"\\ud800","command":"\\u0000","username":"\\u0000"}',
    json.dumps({"topic": "x" * 10_000, "command": "x" * 10_000, "count": 2**70}).encode(),
    json.dumps({"waitSeconds": -(2**62), "leaseSeconds": 2**62, "delaySeconds": 2**62}).encode(),
    b'{"statuses":["pending","pending"],"schedule":"* * * * * *","schema_json":"\\"null\\""}',
]
NAMES = ["x", "x" * 5_000, "é", "\x00", "..", "%2F", "a b", "'", "' OR TRUE", "penstock.events"]
QUERIES = ["", "?limit=-1&offset=99999999999999999999&waitSeconds=x", "?topic=%00&before=%FF"]


@law("E1", "T1")
@pytest.mark.parametrize("door_name", ["codeq", "mq", "queue-ti"])
async def test_every_route_answers_hostile_calls(through: Open, door_name: str) -> None:
    door = through(door_name)
    hostile = only(door)

    def check(answer: Answer, what: object) -> None:
        assert b"The server failed" not in answer.body, what
        assert answer.status in range(200, 600), what
        if answer.status >= 400 and door_name != "mq":
            assert "error" in answer.json(), what
        elif door_name == "mq" and answer.status != 200:
            assert answer.body == b"", what

    for route in hostile.routes.all:
        parameters = route.path.count("{")
        for name in NAMES if parameters else NAMES[:1]:
            path = route.path
            for part in route.path.split("/"):
                if part.startswith("{"):
                    path = path.replace(part, name)
            for query in QUERIES:
                check(await door.call(route.method, path + query, b"{}", JSON), (route, name))
        path = route.path.replace("{", "").replace("}", "")
        for body in BODIES:
            check(await door.call(route.method, path, body, JSON), (route, body))
    assert door.service.budget.held == 0
    assert door.service.waits == 0


@pytest.mark.parametrize(
    "door_name, method, path",
    [
        ("mq", "POST", "/mq/jobs/messages"),
        ("queue-ti", "POST", "/api/admin/delete-reaper/run"),
        ("codeq", "POST", "/v1/codeq/admin/tasks/cleanup"),
        ("mq", "GET", "/mq/jobs/messages"),
    ],
)
async def test_clients_without_headers_pass_and_pages_do_not(
    through: Open, door_name: str, method: str, path: str
) -> None:
    door = through(door_name)
    door.app._browsers = Browsers.of(
        auth=False, listening=("127.0.0.1",), allowed_hosts=None, allowed_origins=None
    )
    host = {"host": "127.0.0.1"}
    assert (await door.call(method, path, headers=host)).status < 300
    for page in (
        {"host": "evil.example"},
        {**host, "origin": "https://evil.example"},
        {**host, "sec-fetch-site": "cross-site"},
    ):
        assert (await door.call(method, path, headers=page)).status == 403
