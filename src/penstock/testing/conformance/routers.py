"""Concurrent routers: the engine's own, and others that use ``assign`` (R1)."""

from __future__ import annotations

import asyncio
from random import Random

from penstock.model.queue import Start
from penstock.model.states import State
from penstock.testing.conformance.assign import Stretch, look
from penstock.testing.conformance.harness import TENANT, Conformance, Store, ids_of, msg
from penstock.testing.laws import law

__all__ = ["TestManyRouters"]

EARLIEST = Start(Start.EARLIEST)


class TestManyRouters(Conformance):
    """Concurrent publishes, the engine's own router and two others on the same queues."""

    FILTER = "color = 'red' OR amount > 7"

    async def publish(self, store: Store, random: Random) -> None:
        for n in range(12):
            now = store.clock.now()
            await store.publish(
                *(
                    msg(
                        b"%d" % n,
                        color=random.choice(("red", "blue")),
                        amount=random.randrange(10),
                        priority=random.choice((2, 4)),
                        key=random.choice((None, None, "k", "l")),
                        deliver_at=random.choice((None, None, now + 500)),
                    )
                    for _ in range(random.randint(1, 4))
                )
            )
            await asyncio.sleep(0)

    async def route(self, store: Store, queues: list[str], random: Random) -> None:
        """Act as an external router that is sometimes late and repeats itself."""
        behind = list(queues)
        stale: dict[str, Stretch] = {}
        while behind:
            for queue in list(behind):
                cursor = (await store.engine.get_queue(TENANT, queue)).cursor
                if cursor is None:
                    behind.remove(queue)
                    continue
                stretch = await look(store, self.FILTER, cursor, random.randint(1, 6))
                await asyncio.sleep(0)
                if queue in stale:
                    await stale.pop(queue).assign(store, queue)
                await stretch.assign(store, queue)
                if random.random() < 0.3:
                    stale[queue] = stretch

    async def keep(self, store: Store, random: Random, published: asyncio.Event) -> None:
        while not published.is_set() or await store.engine.behind():
            for tenant, queue in await store.engine.behind():
                if published.is_set() or random.random() < 0.3:
                    await store.engine.route(tenant, queue, random.choice((0, 1, 5)))
            await asyncio.sleep(0)

    @law("R1")
    async def test_nothing_is_lost_or_doubled(self, store: Store) -> None:
        random = Random(5)
        await store.queue("all")
        await store.queue("play", self.FILTER)
        await self.publish(store, random)
        queues = ["a", "b", "c"]
        for n, name in enumerate(queues):
            await store.queue(name, self.FILTER, start=EARLIEST, bucket_size=n)
        published = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.keep(store, random, published))
            for _ in range(2):
                group.create_task(self.route(store, queues, random))
            await asyncio.gather(*(self.publish(store, random) for _ in range(2)))
            published.set()
        for state in (State.AVAILABLE, State.DELAYED):
            live = await store.browse("play", state, payloads=True)
            assert live
            for name in queues:
                found = await store.browse(name, state, payloads=True)
                assert [(s.message, s.payload) for s in found] == [
                    (s.message, s.payload) for s in live
                ]
        store.clock.advance(1000)
        order = ids_of(await store.claim("play", 1000))
        for name in queues:
            assert ids_of(await store.claim(name, 1000)) == order
