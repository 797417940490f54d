"""Live statistics: the stream, who sees what, what a pass reads, and the past."""

from __future__ import annotations

import asyncio
import json

import pytest

from penstock.server.access import Access, Keys
from penstock.server.live import COLUMNS, LiveStats
from penstock.server.live.board import _EMPTY, Board, Deltas, Level
from penstock.server.live.histories import MAX_QUEUES, Histories
from penstock.server.live.history import HISTORY_COLUMNS, History, Ring
from penstock.testing.laws import law
from tests.unit.server.conftest import Door, application


class Watcher(Door):
    """A door that parses what a stream has sent so far."""

    chunks: list[bytes]

    def sent(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.arrived.set()

    async def watch(self, key: str | None = None) -> None:
        self.arrived = asyncio.Event()
        self.chunks = []
        self.leave = asyncio.Event()
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.watching = asyncio.create_task(
            self.call("GET", "/v1/stats/stream", headers=headers, leave=self.leave)
        )

    async def until(self, wanted) -> dict[str, dict]:
        """The queues, as soon as they are as wanted."""
        async with asyncio.timeout(20):
            while not wanted(self.queues()):
                self.arrived.clear()
                await self.arrived.wait()
        return self.queues()

    def queues(self) -> dict[str, dict]:
        known: dict[str, dict] = {}
        for change in self.changes():
            if change["reset"]:
                known.clear()
            known |= {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in change["rows"]}
            for removed in change["removed"]:
                known.pop(removed, None)
        return known

    def changes(self) -> list[dict]:
        events = [block.partition("\ndata: ") for block in self.text().split("\n\n")]
        return [json.loads(data) for name, _, data in events if name == "event: queues"]

    def text(self) -> str:
        return b"".join(self.chunks).decode()

    async def until_complete(self) -> int:
        """The number of queues when the stream first says that these are all."""
        async with asyncio.timeout(20):
            while not any(change["complete"] for change in self.changes()):
                self.arrived.clear()
                await self.arrived.wait()
        known: set[str] = set()
        for change in self.changes():
            known |= {row[0] for row in change["rows"]}
            if change["complete"]:
                break
        return len(known)

    async def end(self) -> None:
        self.leave.set()
        await self.watching
        await self.service.live.close()


@pytest.fixture
async def watcher(door):
    return Watcher(door.app, door.broker, door.clock)


async def test_the_stream_begins_with_all_queues_and_goes_on_with_what_changed(watcher):
    q = watcher.broker
    await q.create_queue("idle", "FALSE")
    await q.create_queue("work", max_attempts=1)
    await q.publish("orders", b"x")
    await watcher.watch()
    found = await watcher.until(lambda queues: "work" in queues)
    assert (found["work"]["available"], found["idle"]["available"]) == (1, 0)
    assert found["work"]["oldest_at"] == watcher.clock.now()
    watcher.clock.advance(1000)
    await q.publish("orders", b"x")
    (delivery,) = await q.claim("work")
    await q.reject(delivery)
    await q.pause("idle")
    await q.create_queue("new", "FALSE")
    found = await watcher.until(lambda queues: "new" in queues)
    assert (found["work"]["failed"], found["work"]["available"]) == (1, 1)
    assert (found["work"]["entered_per_s"], found["work"]["failed_per_s"]) == (1.0, 1.0)
    assert found["idle"]["paused"]
    watcher.clock.advance(1000)
    await q.delete_queue("new")
    found = await watcher.until(lambda queues: "new" not in queues)
    assert found["work"]["entered_per_s"] == 0.0
    await watcher.end()


async def test_a_tenant_without_queues_is_complete_once_that_is_known(watcher):
    await watcher.watch()
    assert await watcher.until_complete() == 0
    # Not before the queues are listed: the console would teach how to create the first one.
    assert not watcher.changes()[0]["complete"]
    await watcher.end()


@pytest.mark.parametrize("number", [6, 7])
async def test_the_rows_are_complete_with_the_last_of_them(watcher, monkeypatch, number):
    monkeypatch.setattr("penstock.server.native.live._ROWS", 3)
    monkeypatch.setattr("penstock.server.live.feed._CHUNK", 2)
    for one in range(number):
        await watcher.broker.create_queue(f"queue-{one}", "FALSE")
    for _ in ("while they are read", "when all are known"):
        await watcher.watch()
        assert await watcher.until_complete() == number
        await watcher.end()


@law("T1")
async def test_a_viewer_sees_the_queues_of_its_grants_in_its_tenant(door):
    keys = Keys(door.broker.engine, door.clock)
    guarded = Watcher(application(door.broker, Access(door.clock, keys)), door.broker, door.clock)
    for name in ("billing", "secret"):
        await door.broker.create_queue(name, "FALSE")
    await door.broker.for_tenant("other").create_queue("theirs", "FALSE")
    narrow = await keys.create("default", ["read:bill*"])
    await guarded.watch(narrow.key)
    assert set(await guarded.until(bool)) == {"billing"}
    await door.broker.pause("secret")
    await door.broker.pause("billing")
    found = await guarded.until(lambda queues: queues["billing"]["paused"])
    assert set(found) == {"billing"}
    authorization = {"authorization": f"Bearer {narrow.key}"}
    for path, status in (("", 403), ("?queue=secret", 403), ("?queue=billing", 200)):
        reply = await guarded.call("GET", f"/v1/stats/history{path}", headers=authorization)
        assert reply.status == status
    await keys.revoke("default", narrow.info.id)
    await door.broker.resume("billing")
    async with asyncio.timeout(20):
        await guarded.watching
    assert b"event: problem" in b"".join(guarded.chunks)
    await guarded.service.live.close()


async def test_a_pass_reads_no_queue_that_did_not_change(door, monkeypatch):
    for number in range(10):
        await door.broker.create_queue(f"q{number}", "FALSE")
    live = door.service.live
    with live.watching("default"):
        await live.make_pass()
        read: list[str] = []
        counts = door.broker.engine.counts

        async def recorded(tenant, queues):
            read.extend(queues)
            return await counts(tenant, queues)

        monkeypatch.setattr(door.broker.engine, "counts", recorded)
        await live.make_pass()
        assert read == []
        await door.broker.pause("q3")
        await live.make_pass()
        assert read == ["q3"]
    await live.close()


async def test_a_pass_that_runs_out_of_time_continues_in_the_next(door, monkeypatch):
    monkeypatch.setattr("penstock.server.live.feed._PASS_S", -1.0)
    monkeypatch.setattr("penstock.server.live.feed._CHUNK", 2)
    for number in range(6):
        await door.broker.create_queue(f"q{number}", "FALSE")
    live = LiveStats(door.broker.engine)
    with live.watching("default") as board:
        for known in (2, 4, 6, 6):
            await live.make_pass()
            assert len(board.queues) == known
        for number in range(6):
            live.changed("default", f"q{number}")
            await door.broker.pause(f"q{number}")
        for _ in range(3):
            await live.make_pass()
        assert all(known.row.paused for known in board.queues.values())
    await live.close()


async def test_the_past_survives_a_restart(door):
    live = door.service.live
    await door.broker.create_queue("work")
    await live.make_pass()
    for _ in range(3):
        door.clock.advance(1000)
        await door.broker.publish("orders", b"x")
        await live.make_pass()
    live.start()
    await live.close()
    before = _recent(live.histories, door.clock.now())
    assert [sample[HISTORY_COLUMNS.index("entered")] for sample in before][-3:] == [1, 1, 1]
    after = Histories(door.broker.engine)
    await after.load("default")
    assert _recent(after, door.clock.now()) == before
    assert after.get("default", None) is not None


def _recent(histories: Histories, now: int) -> list[list[int]]:
    found = histories.get("default", "work")
    assert found is not None
    return found.recent(now // 1000, day=False)


async def test_a_damaged_past_is_left_out(door, caplog):
    await door.broker.engine.put_document("live-history", "default", b"nonsense")
    histories = Histories(door.broker.engine)
    await histories.load("default")
    assert histories.get("default", None) is None
    assert "cannot be read" in caplog.text


def test_histories_are_bounded() -> None:
    histories = Histories(None)  # type: ignore[arg-type]
    level = Level(0, 1, 0, 0, 0)
    for number in range(MAX_QUEUES + 5):
        histories.add("t", f"q{number}", 0, number * 1000, level, Deltas(1))
    assert histories.get("t", "q0") is None
    assert histories.get("t", f"q{MAX_QUEUES}") is not None


def test_a_ring_keeps_the_newest_samples_in_order() -> None:
    ring = Ring(3)
    for at in range(5):
        ring.add((at, *[0] * (len(HISTORY_COLUMNS) - 2), 2**40))
    assert [sample[0] for sample in ring.samples(0)] == [2, 3, 4]
    assert next(ring.samples(0))[-1] == 2**32 - 1
    again = Ring(3)
    again.restore(ring.dump())
    assert list(again.samples(0)) == list(ring.samples(0))
    with pytest.raises(ValueError, match="within a sample"):
        again.restore(b"abcd")


def test_a_history_draws_levels_and_adds_up_minutes() -> None:
    history = History()
    idle, busy = Level(0, 0, 0, 0, 0), Level(0, 5, 0, 0, 0)
    history.add(599, 600, idle, Deltas())
    history.add(609, 610, busy, Deltas(5))
    history.add(610, 611, busy, Deltas(0, 1))
    history.add(670, 671, busy, Deltas(0, 2))
    hour = history.recent(671, day=False)
    assert [sample[0] for sample in hour] == [600, 609, 610, 611, 670, 671]
    assert [sample[2] for sample in hour] == [0, 0, 5, 5, 5, 5]
    day = history.recent(671, day=True)
    assert [(sample[0], sample[6], sample[7]) for sample in day] == [(659, 5, 1), (671, 0, 2)]


def test_a_board_forgets_no_deletion_that_a_viewer_has_not_seen(monkeypatch) -> None:
    monkeypatch.setattr("penstock.server.live.board._MAX_REMOVED", 2)
    counts = _EMPTY
    board = Board("t")
    for name in "abc":
        board.put(name, counts, 0, 0)
    board.next_version()
    board.compare(["c"], 0)
    assert board.removed_since(1, None) in (["a", "b"], ["b", "a"])
    board.compare([], 0)
    assert board.complete_since > 1
