"""A steady load for long: memory, descriptors, disk and latencies stay where they are.

PENSTOCK_TEST_SOAK_S sets for how long; twenty seconds show that nothing is wrong at once, half
an hour that nothing creeps. Retentions are short, so that things leave as fast as they come:

- done and failed deliveries leave one by one, some seconds after they are settled;
- the log leaves by whole segments of 65,536 entries (or an hour), so its size, and that of the
  payloads beside it, is a sawtooth: one segment that fills, and for a moment one that goes. In
  twenty seconds no segment would fill, so a burst to a topic that no queue wants fills the
  first, and the test sees it go. In half an hour five more fill and go.

RocksDB itself keeps up to 192 MiB of write-ahead log and its write buffers before it gives
anything back, so disk and memory are compared in the last two thirds only, when it has turned
over. Bounds on latencies are wide: other tests share the cores.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
import pytest

from penstock import connect
from penstock.client import Client
from penstock.model.message import NewMessage
from penstock.model.queue import Backoff, TopicPolicy
from tests.service.load import QUEUE, TOPIC, Load, Sample, Seen, milliseconds
from tests.service.serving import Serve, Served, folder_bytes

SECONDS = int(os.environ.get("PENSTOCK_TEST_SOAK_S", "20"))
RATE = int(os.environ.get("PENSTOCK_TEST_SOAK_RATE", "200"))
#: Long enough for several segments, and for RocksDB to turn over.
IS_LONG = SECONDS >= 900
LOG_RETENTION_S = 5
DONE_RETENTION_S = 4
FAILED_RETENTION_S = 8
SEGMENT = 65_536
SAMPLE_S = max(1.0, SECONDS / 90)


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * SECONDS)
async def test_nothing_grows_under_a_steady_load(serve: Serve) -> None:
    server = serve("--log-retention-s", str(LOG_RETENTION_S), "--no-auto-create")
    async with connect(server.url) as client:
        await _prepare(client)
        await _fill_a_segment(client)
        load = Load(client, RATE, seed=1)
        begun = asyncio.get_running_loop().time()
        samples: list[Sample] = []
        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(load.consume())
            watching = group.create_task(_watch(serve.folder, server, client, load, samples))
            await load.produce(SECONDS)
            watching.cancel()
            lasted = asyncio.get_running_loop().time() - begun
            await _drained(client)
            consuming.cancel()
        _check_flow(load, samples, lasted)
        _check_flat(samples)
    assert server.stop() == 0
    assert "ERROR" not in server.said()
    report = serve.run("verify", "--store", serve.store, "--json")
    assert report.returncode == 0, report.stdout + report.stderr


async def _prepare(client: Client) -> None:
    # The client gives every message an idempotency id; they would be kept for an hour.
    await client.put_topic(TOPIC, TopicPolicy(dedup_window_ms=5_000))
    await client.put_topic("unwanted", TopicPolicy(dedup_window_ms=5_000))
    await client.create_queue(
        QUEUE,
        f"topic = '{TOPIC}'",
        max_attempts=2,
        backoff=Backoff(base_ms=50, max_ms=200),
        done_retention_s=DONE_RETENTION_S,
        failed_retention_s=FAILED_RETENTION_S,
    )


async def _fill_a_segment(client: Client) -> None:
    batch = [NewMessage(b"nobody wants this")] * 1_000
    for _ in range(SEGMENT // len(batch) + 1):
        await client.publish_batch("unwanted", batch)


async def _watch(
    folder: Path, server: Served, client: Client, load: Load, samples: list[Sample]
) -> None:
    begun = asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(SAMPLE_S)
        seen, load.seen = load.seen, Seen()
        stats = await client.stats(QUEUE)
        page = await client.read_log(0, limit=1)
        samples.append(
            Sample(
                at_s=round(asyncio.get_running_loop().time() - begun, 1),
                rss_mb=round(server.rss_bytes() / 2**20, 1),
                store_mb=round(folder_bytes(folder / "store") / 2**20, 1),
                descriptors=server.descriptors(),
                publish_ms=milliseconds(seen.publish),
                deliver_ms=milliseconds(seen.deliver),
                slowest_ms=round(max(seen.publish, default=0) * 1000, 1),
                done=stats.done,
                failed=stats.failed,
                live=stats.depth,
                log_start=page.entries[0].message.offset if page.entries else page.next_offset,
                log_end=await client.log_end(),
            )
        )
        shown = msgspec.structs.asdict(samples[-1])
        print(*(f"{name}={value}" for name, value in shown.items()), flush=True)
        # What an operator's monitoring does all the time.
        metrics = await asyncio.to_thread(server.call, "GET", "/metrics")
        assert metrics.status == 200


async def _drained(client: Client) -> None:
    async with asyncio.timeout(30):
        while (await client.stats(QUEUE)).depth:  # noqa: ASYNC110  (it is in another process)
            await asyncio.sleep(0.1)


def _check_flow(load: Load, samples: Sequence[Sample], lasted_s: float) -> None:
    """Everything went through, and left when its retention was over."""
    counts = load.counts
    print(dict(counts), f"in {lasted_s:.1f} s")
    assert counts["published"] == SECONDS * 20 * (RATE // 20)
    assert counts["done"] + counts["failed"] == counts["published"]
    assert counts["stale"] == 0
    last = samples[-1]
    # Twice as much as retention allows, and as much as a slow second brings.
    assert last.done <= 2 * RATE * (DONE_RETENTION_S + 5)
    assert last.failed <= 2 * 0.05 * RATE * (FAILED_RETENTION_S + 10)
    # The segment that the burst filled is gone, and in a long run all but the last two.
    assert last.log_start >= SEGMENT
    assert last.log_end - last.log_start <= 2 * SEGMENT + RATE * (LOG_RETENTION_S + 60)


def _check_flat(samples: Sequence[Sample]) -> None:
    """The last third looks like the one before."""
    third = len(samples) // 3
    before, after = samples[third : 2 * third], samples[2 * third :]

    def grew(field: str) -> tuple[float, float]:
        return median(getattr(one, field) for one in before), median(
            getattr(one, field) for one in after
        )

    then, now = grew("rss_mb")
    assert now <= then * 1.1 + 20, f"memory grew from {then} to {now} MB"
    then, now = grew("descriptors")
    assert now <= then + 10, f"descriptors grew from {then} to {now}"
    for field in ("publish_ms", "deliver_ms"):
        then, now = grew(field)
        assert now <= 3 * then + 100, f"{field} grew from {then} to {now}"
    if IS_LONG:
        peak_then = max(one.store_mb for one in before)
        peak_now = max(one.store_mb for one in after)
        assert peak_now <= peak_then * 1.1 + 20, f"disk grew from {peak_then} to {peak_now} MB"
