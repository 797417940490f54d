"""Large calls of the doors: read and answered in steps, bounded, and charged to the budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote_plus
from xml.etree import ElementTree as ET

import pytest

from penstock.errors import BadInput, TooLarge
from penstock.model.states import State
from penstock.server.budget import Budget
from penstock.server.doors.json_values import MAX_VALUES, check_values
from penstock.server.doors.sqs.query_protocol import read_form, reply_xml
from penstock.testing.laws import law
from tests.unit.server.conftest import Answer, Door
from tests.unit.server.doors.conftest import Open

T = TypeVar("T")

MIB = 1024 * 1024
#: Characters that a form or XML escapes, and one that is several bytes.
SPECIAL = "<&>\r\n%+ é漢😀"


async def in_steps(work: Awaitable[T], least: int) -> T:
    """The result of work that lets other tasks run at least so many times."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        return await work
    finally:
        counting.cancel()
        with suppress(asyncio.CancelledError):
            await counting
        assert turns >= least


def parts_of(body: bytes) -> list[bytes]:
    return [body[begin : begin + MIB] for begin in range(0, len(body), MIB)]


async def send(door: Door, path: str, body: object) -> Answer:
    """Post a large body as a server receives it, in parts."""
    raw = json.dumps(body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(raw))}
    return await door.call("POST", path, headers=headers, parts=parts_of(raw))


# -- values ------------------------------------------------------------------------------


async def test_a_small_body_is_not_checked() -> None:
    await check_values(b"[" * 1_000)


async def test_large_values_are_few() -> None:
    await check_values(json.dumps({"a": "x" * MIB, "b": [1, {"c": None}]}).encode())
    most = {"a": ["x" * MIB, *range(MAX_VALUES - 3)]}
    await check_values(json.dumps(most).encode())
    with pytest.raises(TooLarge, match="5000 values"):
        await check_values(json.dumps({"a": [*most["a"], 1]}).encode())


async def test_opaque_members_count_once() -> None:
    body = json.dumps({"payload": list(range(100_000))}).encode()
    await check_values(body, {"payload"})
    with pytest.raises(TooLarge):
        await check_values(body)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 20_000, '{"a":[1,' + " " * 200_000])
async def test_large_malformed_bodies_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        await check_values(text.encode())


# -- forms and XML -----------------------------------------------------------------------


@law("E1")
async def test_a_large_form_is_read_in_steps() -> None:
    body = SPECIAL * 30_000
    form = f"Action=SendMessage&empty=&MessageBody={quote_plus(body)}&flag&&a+b=c+d".encode()
    assert len(form) > MIB
    fields = await in_steps(read_form(form), len(form) // (64 * 1024))
    assert fields == dict(parse_qsl(form.decode(), keep_blank_values=True))
    assert fields["MessageBody"] == body


async def test_escapes_are_read_wherever_a_step_ends() -> None:
    for shift in range(4):
        text = "x" * shift + "é" * 10_000
        assert await read_form(f"a={quote_plus(text)}".encode()) == {"a": text}


async def test_a_large_reply_in_xml_is_written_in_steps() -> None:
    body = SPECIAL * 20_000
    result = {"Messages": [{"Body": body}, {"Body": "small"}]}
    parts = await in_steps(reply_xml("ReceiveMessage", result, "id"), 2)
    assert len(parts) > 1
    document = ET.fromstring(b"".join(parts))
    assert [found.text for found in document.iter() if found.tag.endswith("}Body")] == [
        # A line feed is not escaped, and is the same in XML.
        body,
        "small",
    ]


# -- bodies of more than 4 MiB, which arrive as another type of buffer ---------------------


async def test_a_large_batch_of_tasks_is_created_and_its_results_submitted(through: Open) -> None:
    door = through("codeq")
    payload = "x" * 600_000
    tasks = [{"command": "RENDER", "payload": payload}] * 9 + [{"command": "RENDER"}]
    answer = await send(door, "/v1/codeq/tasks/batch", {"tasks": tasks})
    assert answer.status == 200, answer.body
    *made, failed = answer.json()["results"]
    assert [json.loads(item["task"]["payload"]) for item in made] == [payload] * 9
    assert failed == {"error": "payload is required"}
    claimed: list[dict[str, Any]] = []
    while len(claimed) < 9:  # One claim returns some megabytes.
        body = {"commands": ["RENDER"], "count": 9}
        found = await door.call("POST", "/v1/codeq/tasks/claim/batch", body)
        claimed += found.json()["tasks"]
    assert [task["id"] for task in claimed] == [item["task"]["id"] for item in made]
    results = [
        {"taskId": task["id"], "status": "COMPLETED", "result": {"a": payload}} for task in claimed
    ]
    answer = await send(door, "/v1/codeq/tasks/batch/results", {"results": results})
    assert [item["result"]["result"] for item in answer.json()["results"]] == [{"a": payload}] * 9
    assert door.service.budget.held == 0


async def test_a_payload_that_json_escapes_six_times_fits(through: Open) -> None:
    door = through("queue-ti")
    payload = "\x01" * 900_000
    answer = await send(door, "/api/messages", {"topic": "t", "payload": payload})
    assert answer.status == 201, answer.body
    answer = await door.call("POST", "/api/messages/dequeue", {"topic": "t"})
    assert answer.json()["messages"][0]["payload"] == payload


@law("E1")
@pytest.mark.parametrize(
    "door_name, path, body",
    [
        ("codeq", "/v1/codeq/tasks/batch", {"tasks": [{}] * 30_000}),
        ("codeq", "/v1/codeq/tasks/batch/results", {"results": [{}] * 30_000}),
        ("codeq", "/v1/codeq/tasks/batch/results", {"results": [{"artifacts": [{}] * 30_000}]}),
        ("codeq", "/v1/codeq/tasks/claim", {"commands": ["x"] * 30_000}),
        ("codeq", "/v1/codeq/workers/subscriptions", {"eventTypes": ["x"] * 30_000}),
        (
            "queue-ti",
            "/api/messages",
            {"topic": "t", "payload": "x", "metadata": {str(n): "" for n in range(9_000)}},
        ),
    ],
)
async def test_bodies_of_very_many_values_are_refused(
    through: Open, door_name: str, path: str, body: object
) -> None:
    door = through(door_name)
    answer = await send(door, path, body)
    assert answer.status == 400, answer.body
    assert not await door.broker.queues()


# -- claims ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tasks/claim", "/tasks/claim/batch", "/workers/subscriptions"])
async def test_commands_are_counted_before_their_queues_are_created(
    through: Open, path: str
) -> None:
    door = through("codeq")
    commands = [f"c{n}" for n in range(101)]
    body = {"commands": commands, "eventTypes": commands, "count": 1, "callbackUrl": "http://x"}
    answer = await door.call("POST", f"/v1/codeq{path}", body)
    assert (answer.status, answer.json()) == (400, {"error": "at most 100 commands"})
    assert not await door.broker.queues()


@law("E1")
@pytest.mark.parametrize(
    "door_name, method, path, body",
    [
        ("queue-ti", "POST", "/api/messages/dequeue", {"topic": "jobs", "count": 20}),
        ("codeq", "POST", "/v1/codeq/tasks/claim/batch", {"commands": ["jobs"], "count": 10}),
        ("codeq", "POST", "/v1/codeq/tasks/claim", {"commands": ["jobs"]}),
        ("mq", "GET", "/mq/jobs/messages", None),
    ],
)
async def test_claims_that_exceed_the_budget_are_given_back(
    through: Open, door_name: str, method: str, path: str, body: Any
) -> None:
    door = through(door_name)
    await door.broker.create_queue("jobs", "topic = 'jobs'")
    for _ in range(20):
        await door.broker.publish("jobs", bytes(100_000))
    door.service.budget = Budget(50_000)
    answer = await door.call(method, path, body)
    assert answer.status == 503, answer.body
    stats = await door.broker.stats("jobs")
    assert (stats.available, stats.in_flight) == (20, 0)
    assert door.service.budget.held == 0
    (first,) = (await door.broker.peek("jobs", State.AVAILABLE, limit=1)).items
    assert first.attempts == first.released
