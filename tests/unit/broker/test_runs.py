"""Runs of pipeline jobs: what they may say, which are kept, and who sees them (E1, T1)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

import penstock
from penstock import Broker
from penstock.broker import BrokerOptions, runs
from penstock.errors import BadInput, BadName, StoreCorrupt, TooLarge
from penstock.model.limits import MAX_ERROR_BYTES, MAX_TIME_MS
from penstock.model.runs import MAX_RUNS, RUN_LOST_MS, Run
from penstock.storage.contract import EngineOptions
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

RUNNING: Final = Run(id="r1", job="archive", state="running", started_at=10, updated_at=10)


def run_at(started_at: int, *, job: str = "archive", id: str | None = None) -> Run:
    return replace(
        RUNNING, id=id or f"r{started_at}", job=job, started_at=started_at, updated_at=started_at
    )


async def test_a_run_is_kept_and_changed_and_found(q: Broker) -> None:
    assert await q.run("r1") is None
    await q.put_run(RUNNING)
    assert await q.run("r1") == RUNNING
    over = replace(
        RUNNING,
        state="failed",
        updated_at=30,
        finished_at=30,
        progress={"entries": 5, "share": 1.0, "at": "größe"},
        summary={"least": -(2**63), "most": 2**63 - 1, "rate": 1e300},
        error="Fehler: groß\n  at line 1",
        report="s3://lake/reports/r1.html",
    )
    await q.put_run(over)
    found = await q.run("r1")
    assert found == over
    assert [type(value) for value in found.progress.values()] == [int, float, str]
    assert await q.runs() == (over,)


async def test_a_run_that_is_not_heard_of_is_shown_as_lost() -> None:
    clock = FakeClock()
    options = BrokerOptions(engine=EngineOptions(clock=clock))
    async with penstock.open("memory://", options=options, keepers=False) as q:
        over = replace(RUNNING, id="r2", state="stopped", finished_at=20)
        await q.put_run(RUNNING)
        await q.put_run(over)
        clock.advance(RUN_LOST_MS)
        assert (await q.run("r1"), await q.run("r2")) == (RUNNING, over)
        clock.advance(1)
        assert await q.run("r1") == replace(RUNNING, state="lost")
        assert {run.id: run.state for run in await q.runs()} == {"r1": "lost", "r2": "stopped"}
        # Heard of again, by a job whose own clock is wrong: it runs.
        await q.put_run(RUNNING)
        assert await q.run("r1") == RUNNING


async def test_runs_are_listed_by_their_start_the_newest_first(q: Broker) -> None:
    for at, job in [(20, "report"), (5, "archive"), (100, "archive"), (9, "report")]:
        await q.put_run(run_at(at, job=job))
    assert [item.started_at for item in await q.runs()] == [100, 20, 9, 5]
    assert [item.started_at for item in await q.runs("report")] == [20, 9]
    assert [item.started_at for item in await q.runs("archive", 1)] == [100]
    assert await q.runs("nobody") == ()


async def test_a_longer_run_is_not_dropped_while_it_tells_of_itself(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones are kept, by when they were last heard of: 1,000, of which 100 will do here."""
    kept_runs = 100
    monkeypatch.setattr(runs, "MAX_RUNS", kept_runs)
    long = run_at(0, id="long")
    await q.put_run(long)
    for at in range(1, kept_runs):
        await q.put_run(run_at(at))
    assert len(await q.runs(limit=kept_runs)) == kept_runs
    long = replace(long, updated_at=kept_runs)
    await q.put_run(long)
    assert await q.run("r1") is not None
    await q.put_run(run_at(kept_runs))
    assert await q.run("r1") is None
    assert await q.run("long") == long
    # What is put is kept, however old it says it is.
    await q.put_run(replace(run_at(0), id="late"))
    kept = {item.id for item in await q.runs(limit=kept_runs)}
    assert kept == {"late", "long", *(f"r{at}" for at in range(3, kept_runs + 1))}


@law("T1")
async def test_runs_belong_to_their_tenant(q: Broker) -> None:
    await q.put_run(RUNNING)
    for name in ("other", "default-2", "run"):
        other = q.for_tenant(name)
        assert await other.run("r1") is None
        assert await other.runs() == ()
        theirs = replace(RUNNING, job=name)
        await other.put_run(theirs)
        assert await other.runs() == (theirs,)
    assert await q.runs() == (RUNNING,)


@law("T1")
async def test_a_report_belongs_to_its_tenant(q: Broker) -> None:
    await q.put_report("<p>ours</p>")
    other = q.for_tenant("other")
    assert await other.report() is None
    await other.put_report("<p>theirs</p>")
    found = await q.report()
    assert found is not None
    assert found.page == "<p>ours</p>"


@law("X1")
async def test_a_damaged_report_is_refused(q: Broker) -> None:
    for value in (b"{}", b'{"stored_at":1,"page":"AAAA"}', b"\xff"):
        await q.engine.put_document("report", q.tenant, value)
        with pytest.raises(StoreCorrupt, match="report"):
            await q.report()


async def test_runs_survive_reopening(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/store"
    async with penstock.open(url, keepers=False) as q:
        await q.put_run(RUNNING)
    async with penstock.open(url, keepers=False) as q:
        assert await q.runs() == (RUNNING,)


async def test_a_long_error_is_cut(q: Broker) -> None:
    await q.put_run(
        replace(RUNNING, state="failed", finished_at=1, error="ü" * MAX_ERROR_BYTES + "\ud800")
    )
    found = await q.run("r1")
    assert found is not None
    assert found.error is not None
    assert len(found.error.encode()) <= MAX_ERROR_BYTES
    assert found.error.endswith("…")


@law("X1")
async def test_a_run_that_cannot_be_read_is_reported(q: Broker) -> None:
    await q.engine.put_document("run/default", "r9", b"{")
    for call in (q.run("r9"), q.runs(), q.put_run(RUNNING)):
        with pytest.raises(StoreCorrupt, match="r9"):
            await call
    assert await q.run("r1") is None


BAD: Final[list[tuple[dict[str, Any], type[BadInput], str, int | None]]] = [
    ({"id": "a b"}, BadName, "id", 128),
    ({"id": "../x"}, BadName, "id", 128),
    ({"id": 7}, BadName, "id", 128),
    ({"job": ""}, BadName, "job", 128),
    ({"job": "j" * 129}, BadName, "job", 128),
    ({"state": "lost"}, BadInput, "state", None),
    ({"state": None}, BadInput, "state", None),
    ({"started_at": -1}, BadInput, "started_at", MAX_TIME_MS),
    ({"started_at": True}, BadInput, "started_at", MAX_TIME_MS),
    ({"updated_at": MAX_TIME_MS + 1}, BadInput, "updated_at", MAX_TIME_MS),
    ({"updated_at": 1.5}, BadInput, "updated_at", MAX_TIME_MS),
    ({"finished_at": 5}, BadInput, "finished_at", None),
    ({"state": "stopped"}, BadInput, "finished_at", None),
    ({"state": "stopped", "finished_at": "5"}, BadInput, "finished_at", MAX_TIME_MS),
    ({"progress": None}, BadInput, "progress", None),
    ({"progress": [1]}, BadInput, "progress", None),
    ({"progress": {7: 1}}, BadInput, "progress", None),
    ({"progress": {"": 1}}, BadInput, "progress", None),
    ({"progress": {"x" * 256: 1}}, TooLarge, "progress", 255),
    ({"progress": {"\ud800": 1}}, BadInput, "progress", None),
    ({"progress": {"a": True}}, BadInput, "progress", None),
    ({"progress": {"a": None}}, BadInput, "progress", None),
    ({"progress": {"a": {"b": 1}}}, BadInput, "progress", None),
    ({"progress": {"a": 2**63}}, BadInput, "progress", None),
    ({"progress": {"a": float("nan")}}, BadInput, "progress", None),
    ({"progress": {"a": float("-inf")}}, BadInput, "progress", None),
    ({"summary": {"a": "\ud800"}}, BadInput, "summary", None),
    ({"summary": {f"n{n}": n for n in range(65)}}, TooLarge, "summary", 64),
    ({"summary": {"a": "x" * (8 * 1024)}}, TooLarge, "summary", 8 * 1024),
    ({"error": 7}, BadInput, "error", None),
    ({"report": b"path"}, BadInput, "report", None),
    ({"report": "\ud800"}, BadInput, "report", None),
    ({"report": "x" * 4097}, TooLarge, "report", 4096),
]


@law("E1")
@pytest.mark.parametrize("changes, kind, field, limit", BAD)
async def test_a_run_out_of_bounds(
    q: Broker,
    refuses: Refuses,
    changes: dict[str, Any],
    kind: type[BadInput],
    field: str,
    limit: int | None,
) -> None:
    await q.put_run(RUNNING)
    await refuses(q.put_run(replace(RUNNING, **changes)), kind, field, limit)


async def test_a_run_at_its_bounds(q: Broker) -> None:
    full = replace(
        RUNNING,
        id="i" * 128,
        job="j" * 128,
        updated_at=MAX_TIME_MS,
        progress={f"{n:0120}": 0 for n in range(64)},
        summary={"a": "x" * (8 * 1024 - 1)},
        report="x" * 4096,
    )
    await q.put_run(full)
    assert await q.run(full.id) == full


@law("E1")
async def test_questions_that_make_no_sense(q: Broker, refuses: Refuses) -> None:
    bad: Any = q
    await refuses(bad.put_run({"id": "r1"}), BadInput, "run")
    await refuses(bad.run(None), BadName, "id", 128)
    await refuses(bad.run("r1/../r2"), BadName, "id", 128)
    await refuses(bad.runs("a b"), BadName, "job", 128)
    await refuses(bad.runs(limit=0), BadInput, "limit", MAX_RUNS)
    await refuses(bad.runs(limit=MAX_RUNS + 1), BadInput, "limit", MAX_RUNS)
