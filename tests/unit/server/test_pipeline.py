"""Runs of pipeline jobs over HTTP: kept, found, listed; what is wrong is refused (E1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.runs import MAX_REPORT_PAGE_BYTES, Run
from penstock.testing.laws import law
from penstock.wire.codecs import MSGPACK
from tests.unit.server.conftest import Door

RUNS = "/v1/pipeline/runs"
REPORT = "/v1/pipeline/report"
BODY: dict[str, Any] = {
    "job": "archive",
    "state": "succeeded",
    "started_at": 5,
    "updated_at": 9,
    "finished_at": 9,
    "summary": {"files": 3, "share": 0.5, "topic": "orders"},
}


async def test_a_run_is_kept_and_found_in_json_and_messagepack(door: Door) -> None:
    assert (await door.call("PUT", f"{RUNS}/r1", BODY)).status == 204
    whole = {"id": "r1", "progress": {}, "error": None, "report": None, **BODY}
    assert (await door.call("GET", f"{RUNS}/r1")).json() == whole
    packed = {"content-type": MSGPACK, "accept": MSGPACK}
    running = {**BODY, "state": "running", "finished_at": None}
    body = msgspec.msgpack.encode(running)
    assert (await door.call("PUT", f"{RUNS}/r1", body, packed)).status == 204
    found = await door.call("GET", f"{RUNS}/r1", headers=packed)
    assert msgspec.msgpack.decode(found.body, type=Run) == Run(id="r1", **running)


async def test_runs_are_listed_by_job_and_bounded(door: Door) -> None:
    for at, job in [(1, "archive"), (2, "report"), (3, "archive")]:
        await door.call("PUT", f"{RUNS}/r{at}", {**BODY, "job": job, "started_at": at})

    async def ids(query: str) -> list[str]:
        return [item["id"] for item in (await door.call("GET", RUNS + query)).json()["runs"]]

    assert await ids("") == ["r3", "r2", "r1"]
    assert await ids("?job=archive") == ["r3", "r1"]
    assert await ids("?limit=1") == ["r3"]


async def test_a_run_that_is_not_there(door: Door) -> None:
    reply = await door.call("GET", f"{RUNS}/nobody")
    assert reply.status == 404
    assert reply.json()["type"] == "urn:penstock:problem:unknown-run"


@law("E1")
@pytest.mark.parametrize(
    "path, body, field",
    [
        ("/a%20b", BODY, "id"),
        ("/r1", {**BODY, "id": "r2"}, "id"),
        ("/r1", {**BODY, "state": "lost"}, "state"),
        ("/r1", {**BODY, "state": "running"}, "finished_at"),
        ("/r1", {**BODY, "progress": {"a": True}}, "progress[...]"),
        ("/r1", {**BODY, "progress": {"a": 2**70}}, "progress"),
        ("/r1", {"job": "archive"}, "state"),
    ],
)
async def test_what_is_no_run_is_refused(door: Door, path: str, body: object, field: str) -> None:
    reply = await door.call("PUT", RUNS + path, msgspec.json.encode(body))
    assert reply.status == 400, reply.body
    assert reply.json()["field"] == field
    assert await door.broker.runs() == ()


@law("E1")
@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?job=a%20b", "?state=running"])
async def test_a_listing_that_cannot_be(door: Door, query: str) -> None:
    assert (await door.call("GET", RUNS + query)).status == 400


async def test_the_newest_report_is_kept(door: Door) -> None:
    assert (await door.call("GET", REPORT)).json() == {"report": None}
    for page in ("<p>one</p>", "<p>zwei: größer</p>"):
        assert (await door.call("PUT", REPORT, {"page": page})).status == 204
    found = await door.call("GET", REPORT)
    # As data: a browser that opens the address does not run what is in it.
    assert found.headers["content-type"].startswith("application/json")
    assert found.json()["report"]["page"] == "<p>zwei: größer</p>"
    assert found.json()["report"]["stored_at"] == door.broker.engine.clock.now()


@law("E1")
@pytest.mark.parametrize("page, status", [("", 400), (7, 400), ("x" * (4 * 2**20 + 1), 413)])
async def test_what_is_no_report_is_refused(door: Door, page: object, status: int) -> None:
    reply = await door.call("PUT", REPORT, msgspec.json.encode({"page": page}))
    assert (reply.status, reply.json()["field"]) == (status, "page")
    assert await door.broker.report() is None


async def test_a_report_may_be_as_large_as_the_limit(door: Door) -> None:
    page = "größe" * (MAX_REPORT_PAGE_BYTES // 8) + "\x01" * 100
    assert (await door.call("PUT", REPORT, {"page": page})).status == 204
    assert (await door.call("GET", REPORT)).json()["report"]["page"] == page
