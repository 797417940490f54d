"""kill -9 at random moments, two hundred times, on one store (P1-P4, C1, C2, S1-S3, C5, Q2).

The parent counts the child's events on a pipe and kills after a random number of them, so
that kills land everywhere: while the store opens, inside a commit, between a commit and its
reply. What the dead child was sure of is in the history; the next child goes on with it, and
repeats what was lost. In the end the store is scanned, drained, scanned again, and the
history of all runs is checked.

PENSTOCK_KILLS sets how often, PENSTOCK_KILL_SEED what happens; the seed is printed. The
same seed means the same programs, not the same moments.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Self

import pytest

from penstock.model.clock import SystemClock
from penstock.model.delivery import Ack, Settlement
from penstock.model.message import Offset
from penstock.model.states import State
from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.checker import check
from penstock.testing.history import (
    Claim,
    Claimed,
    Found,
    Granted,
    HistoryEvent,
    Logged,
    Publish,
    Published,
    Recorder,
    Refused,
    Scanned,
    Settled,
    digest,
    read_history,
)
from tests.crash import workload
from tests.object_stores import SERVERS, s3_endpoint, s3_url

KILLS = int(os.environ.get("PENSTOCK_KILLS", "200"))
#: Events that a child lives for, at most; some 50 are one commit of every client.
MAX_EVENTS = 250
#: A child that says nothing for so long is stuck.
SILENCE_S = 30
#: Enough for every lease and every backoff to be over.
LATER_MS = 3_600_000
PAGE = 500


class LaterClock(SystemClock):
    """The machine's clock, an hour on: what is in flight has lapsed."""

    def now(self) -> int:
        return super().now() + LATER_MS


class Nursery:
    """The process that forks children, and the history they leave."""

    def __init__(self, folder: Path, scheme: str = "rocksdb") -> None:
        self.store = folder / "store"
        if scheme in SERVERS:
            self.url = s3_url(s3_endpoint(scheme))
        else:
            self.url = workload.store_url(str(self.store), scheme)
        self.history: list[bytes] = []
        self._torn = b""
        self._events, self._writer = os.pipe()
        os.set_blocking(self._events, False)
        script = Path(workload.__file__)
        self._process = subprocess.Popen(
            [sys.executable, str(script), self.url, str(self._writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._writer,),
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(SILENCE_S)
        self._process.stdout.close()
        os.close(self._events)
        os.close(self._writer)

    def run_and_kill(self, run: int, seed: int, events: int) -> None:
        """Start a child and kill it once it has written ``events`` events."""
        retry, old = self._left_over()
        assert self._process.stdin is not None
        command = f"{run} {seed} {','.join(retry)} {','.join(old)}\n"
        self._process.stdin.write(command.encode())
        pid = int(self._line())
        before, answers = len(self.history), self._process.stdout
        assert answers is not None
        while len(self.history) < before + events:
            readable, _, _ = select.select([self._events, answers.fileno()], [], [], SILENCE_S)
            if self._events not in readable:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                pytest.fail(f"run {run} ended by itself or is stuck: {self._line()!r}")
            self._drain()
        os.kill(pid, signal.SIGKILL)
        assert int(self._line()) == -signal.SIGKILL
        self._drain()
        assert not self._torn

    def record(self, descriptor: int) -> None:
        """Take over what this process recorded to a file."""
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            self.history += file.readlines()

    def events(self) -> list[HistoryEvent]:
        return list(read_history(self.history))

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _drain(self) -> None:
        while True:
            try:
                chunk = os.read(self._events, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._torn = (self._torn + chunk).split(b"\n")
            self.history += lines

    def _left_over(self) -> tuple[list[str], list[str]]:
        """Batches whose reply was lost, and the newest receipts, of the last run."""
        if not self.history:
            return [], []
        events = list(read_history(self.history[-2 * MAX_EVENTS :]))
        last = [event for event in events if event.run == events[-1].run]
        ended = {event.call for event in last if isinstance(event, Published | Refused)}
        lost = {
            id_.rpartition("/")[0]
            for event in last
            if isinstance(event, Publish) and event.call not in ended
            for id_ in event.ids
            if id_ is not None
        }
        receipts = [event.receipt for event in last if isinstance(event, Granted)]
        return sorted(lost), receipts[-12:]


@pytest.mark.slow
@pytest.mark.timeout(60 + 2 * KILLS)
@pytest.mark.parametrize(
    "scheme, kills",
    [
        ("rocksdb", KILLS),
        ("files", KILLS),
        ("slatedb+file", KILLS // 8),
        ("seaweedfs", KILLS // 25),
        ("moto", KILLS // 50),
    ],
)
async def test_nothing_that_was_acknowledged_is_lost_or_repeated(
    tmp_path: Path, scheme: str, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("PENSTOCK_KILL_SEED", int.from_bytes(os.urandom(4))))
    print(f"PENSTOCK_KILL_SEED={seed} PENSTOCK_KILLS={KILLS}")
    random = Random(seed)
    # So that many kills hit a checkpoint.
    monkeypatch.setenv(workload.CHECKPOINT_BYTES, "100000")
    with Nursery(tmp_path, scheme) as nursery:
        for run in range(1, kills + 1):
            # The first run makes the queue; every later one may die before it does anything.
            shortest = 1 if run == 1 else 0
            lifetime = random.randint(shortest, random.choice((5, 40, MAX_EVENTS)))
            nursery.run_and_kill(run, seed, lifetime)
        await scan_and_drain(nursery)
        events = nursery.events()
    violations = check(
        events,
        max_attempts={workload.QUEUE: workload.MAX_ATTEMPTS},
        grant_number=lambda receipt: int(receipt.split("-")[2], 16),
    )
    for violation in violations[:20]:
        print(violation)
    print(summary(events))
    assert not violations
    if kills >= 200:
        # A history in which nothing went wrong would prove nothing.
        assert min(summary(events).values()) > 0


async def scan_and_drain(nursery: Nursery) -> None:
    """Open the store once more, look at all of it, and consume what is left."""
    path = nursery.store.with_name("last.jsonl")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    recorder = Recorder(descriptor, KILLS + 1)
    options = EngineOptions(clock=LaterClock())
    engine = await open_engine(nursery.url, options)
    try:
        await scan(engine, recorder, 1, drained=False)
        client = workload.Client(engine, recorder, options)
        while deliveries := await client.claim("last", PAGE, None):
            acks: list[Settlement] = [Ack(item.receipt) for item in deliveries]
            await client.settle(acks)
        await scan(engine, recorder, 2, drained=True)
    finally:
        await engine.close()
        nursery.record(descriptor)
        os.close(descriptor)


async def scan(engine: Engine, recorder: Recorder, number: int, *, drained: bool) -> None:
    """Record the whole log and the whole queue; counts equal what is found (Q2)."""
    offset, end = Offset(0), await engine.log_end(workload.TENANT)
    while offset < end:
        page = await engine.read_log(workload.TENANT, offset, PAGE, payloads=True)
        offset = page.next_offset
        for entry in page.entries:
            assert entry.payload is not None
            payload = digest(entry.payload)
            recorder.record(Logged(scan=number, message=entry.message.id, payload=payload))
    counts: Counter[str] = Counter()
    for state in State:
        cursor: str | None = None
        while True:
            found = await engine.peek(workload.TENANT, workload.QUEUE, state, None, PAGE, cursor)
            for item in found.items:
                counts[state] += 1
                recorder.record(
                    Found(
                        scan=number,
                        queue=workload.QUEUE,
                        message=item.message.id,
                        state=item.state,
                        attempts=item.attempts,
                    )
                )
            if (cursor := found.cursor) is None:
                break
    stats = await engine.stats(workload.TENANT, workload.QUEUE)
    assert {state: getattr(stats, state) for state in State} == {s: counts[s] for s in State}
    recorder.record(Scanned(scan=number, queue=workload.QUEUE, drained=drained))


def summary(events: list[HistoryEvent]) -> dict[str, int]:
    """How much of what can go wrong did."""
    kinds = Counter(type(event).__name__ for event in events)
    ended = {event.call for event in events if isinstance(event, Published | Refused)}
    begun = [event for event in events if isinstance(event, Publish)]
    payloads = {payload for event in begun for payload in event.payloads}
    kept = {event.payload for event in events if isinstance(event, Logged) and event.scan == 2}
    lost = [event for event in begun if event.call not in ended]
    lost_there = [event for event in lost if kept.issuperset(event.payloads)]
    verdicts = Counter(event.verdict for event in events if isinstance(event, Settled))
    states = Counter(event.state for event in events if isinstance(event, Settled))
    return {
        "events": len(events),
        "publishes": kinds["Publish"],
        "publishes lost": len(lost),
        "publishes lost but there": len(lost_there),
        "publishes retried": sum(len(event.payloads) for event in begun) - len(payloads),
        "messages": sum(isinstance(event, Logged) and event.scan == 2 for event in events),
        "grants": kinds["Granted"],
        "claims lost": kinds[Claim.__name__] - kinds[Claimed.__name__],
        "settlements": verdicts["ok"],
        "settlements stale": verdicts["stale"],
        "settlements lost": kinds["Settle"] - kinds["Settled"],
        "failed": states["failed"],
    }
