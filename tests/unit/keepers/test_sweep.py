"""The sweep keeper: time takes effect and retention runs, a bounded pass at a time."""

from __future__ import annotations

import pytest

from penstock import Broker, NewMessage
from penstock.keepers import Pass, Sweep, sweep
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law


async def test_a_pass_with_nothing_to_do(q: Broker) -> None:
    await q.publish("orders", b"")
    assert await Sweep(q.engine).run() == Pass(0, more=False)


async def test_a_pass_lets_time_take_effect_in_every_tenant(q: Broker, clock: FakeClock) -> None:
    for broker in (q, q.for_tenant("other")):
        await broker.publish("orders", b"due", delay_ms=100)
        await broker.publish("orders", b"expired", ttl_ms=100)
        await broker.publish("orders", b"lapsed", priority=9)
        await broker.claim("orders", lease_ms=100)
    clock.advance(100)
    assert await Sweep(q.engine).run() == Pass(6, more=False)
    for broker in (q, q.for_tenant("other")):
        stats = await broker.stats("orders")
        assert (stats.available, stats.expired, stats.in_flight) == (2, 1, 0)


@law("G1")
async def test_retention_runs(q: Broker, clock: FakeClock) -> None:
    await q.create_queue("orders", done_retention_s=60, failed_retention_s=120)
    await q.publish_batch("orders", [NewMessage(b"")] * 2)
    done, failed = await q.claim("orders", limit=2)
    await q.ack(done)
    await q.reject(failed)
    keeper = Sweep(q.engine)
    clock.advance(100_000)
    assert (await keeper.run()).work == 1
    stats = await q.stats("orders")
    assert (stats.done, stats.failed) == (0, 1)
    clock.advance(100_000)
    while (await keeper.run()).more:
        pass
    assert (await q.stats("orders")).failed == 0
    # Nothing refers to the log entries any more.
    while (await keeper.run()).work:
        pass
    assert (await q.read_log()).entries == ()


async def test_a_large_backlog_is_swept_in_bounded_passes(
    q: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_LIMIT", 10)
    await q.create_queue("orders")
    await q.publish_batch("orders", [NewMessage(b"", delay_ms=100)] * 95)
    clock.advance(100)
    keeper = Sweep(q.engine)
    passes: list[Pass] = []
    while not passes or passes[-1].more:
        passes.append(await keeper.run())
    assert sum(item.work for item in passes) == 95
    assert all(item.work <= 10 for item in passes)
    assert (await q.stats("orders")).available == 95
