from __future__ import annotations

from typing import Any

from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.model import Oracle
from penstock.testing.simulation.loop import SimulatedClock, SimulatedLoop
from penstock.testing.simulation.mirror import Comparison, Mirror, compare_pictures

T, Q = "t", "q"


def differences(oracle_policy: QueuePolicy) -> list[str]:
    """Publish, claim and ack beside an oracle whose queue has a policy of its own."""
    loop = SimulatedLoop(1)  # type: ignore[abstract]
    found: list[str] = []

    async def main() -> None:
        options = EngineOptions(clock=SimulatedClock(loop), jitter=lambda _: 0)
        engine = await KeyValueEngine.open(MemoryAdapter(), options)
        oracle = Oracle(options)
        comparison = Comparison(oracle)
        mirror: Any = Mirror(loop, engine, comparison)
        loop.frozen = True  # Both queues are created at the same time.
        await engine.put_queue(T, Q, QueuePolicy(), Start())
        await oracle.put_queue(T, Q, oracle_policy, Start())
        await mirror.publish(T, "topic", [NewMessage(b"1"), NewMessage(b"2")])
        for delivery in await mirror.claim(T, Q, "c", 2, None):
            await mirror.settle(T, Q, [Ack(delivery.receipt)])
        await mirror.sweep()
        found.extend(comparison.differences)
        where = await compare_pictures(oracle, engine, [T])
        if where is not None:
            found.append(where)
        await engine.close()

    loop.run_until_complete(main())
    loop.close()
    return found


def test_an_engine_that_agrees() -> None:
    assert differences(QueuePolicy()) == []


def test_an_answer_that_differs_is_found() -> None:
    (claim, picture) = differences(QueuePolicy(visibility_timeout_ms=1_000))
    assert claim.startswith("claim('t', 'q'")
    assert "visibility_timeout_ms" in picture


def test_a_delivery_that_only_one_side_has_is_found() -> None:
    found = differences(QueuePolicy(filter="FALSE"))
    assert any(line.startswith("claim") for line in found)
