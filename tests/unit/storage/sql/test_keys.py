"""Keys while others claim, route and replay what a publish is about to replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest

from penstock.model.delivery import ReplaySource
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.storage.sql import claim, keys, replay, route
from penstock.testing.conformance.harness import TENANT, Store, msg
from tests.unit.storage.sql.ordered import Pair, opened_pair

#: Until a statement that waits for a lock has come to it.
SETTLE_S = 0.3


@pytest.fixture(params=["postgresql", "mysql"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with opened_pair(request.param) as pair:
        yield pair


class Pause:
    """Holds a transaction open when it has called a function, the first time it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self._called: Callable[..., Awaitable[Any]] = getattr(module, name)
        self.reached = asyncio.Event()
        self.over = asyncio.Event()
        monkeypatch.setattr(module, name, self._call)

    async def _call(self, *arguments: Any, **named: Any) -> Any:
        result = await self._called(*arguments, **named)
        if not self.reached.is_set():
            self.reached.set()
            await self.over.wait()
        return result


async def _begin(pair: Pair, by: str) -> Callable[[], Coroutine[Any, Any, object]]:
    """A queue for what is red; what brings the log into it."""
    engine = pair.first.engine
    if by == "replay":
        await pair.first.queue("q", "color = 'red'")
        return lambda: engine.replay(TENANT, "q", ReplaySource.LOG, None, 9)
    await pair.first.queue("q", "color = 'red'", start=Start(Start.EARLIEST))
    return lambda: engine.route(TENANT, "q", 9)


async def _catch_up(pair: Pair) -> None:
    while (await pair.first.engine.route(TENANT, "q", 9)).cursor is not None:
        pass


async def _payloads(one: Store, queue: str) -> list[bytes | None]:
    return [s.payload for s in await one.browse(queue, State.AVAILABLE, payloads=True)]


async def test_a_claim_that_splits_the_run_hides_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publish waits for the claim of another message of the run, and finds its own."""
    await pair.first.queue()
    _, second = await pair.first.publish(msg(b"1", key="a"), msg(b"2", key="b"))
    pause = Pause(monkeypatch, claim, "deliver")
    claiming = asyncio.create_task(pair.first.claim())
    await pause.reached.wait()
    publishing = asyncio.create_task(pair.second.publish(msg(b"new", key="b")))
    await asyncio.sleep(SETTLE_S)
    pause.over.set()
    assert [d.payload for d in await claiming] == [b"1"]
    assert await publishing == [second]
    assert await _payloads(pair.first, "q") == [b"new"]


@pytest.mark.parametrize("by", ["replay", "route"])
@pytest.mark.parametrize("color", ["red", "blue"])
async def test_what_is_added_while_it_is_replaced_is_added_as_it_is_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, by: str, color: str
) -> None:
    """The publish waits for whoever adds the message, and moves that delivery too."""
    await pair.first.queue("keeper")
    (message_id,) = await pair.first.publish(msg(b"old", key="k", color="red"))
    adding = await _begin(pair, by)
    pause = Pause(monkeypatch, replay if by == "replay" else route, "share")
    added = asyncio.create_task(adding())
    await pause.reached.wait()
    publishing = asyncio.create_task(pair.second.publish(msg(b"new", key="k", color=color)))
    await asyncio.sleep(SETTLE_S)
    pause.over.set()
    await added
    assert await publishing == [message_id]
    await _catch_up(pair)
    assert await _payloads(pair.first, "keeper") == [b"new"]
    assert await _payloads(pair.first, "q") == ([b"new"] if color == "red" else [])


@pytest.mark.parametrize("by", ["replay", "route"])
async def test_what_is_replaced_while_it_is_added_is_there_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Whoever adds the message waits for the publish, which has brought it in itself."""
    await pair.first.queue("keeper")
    (message_id,) = await pair.first.publish(msg(b"old", key="k", color="red"))
    adding = await _begin(pair, by)
    pause = Pause(monkeypatch, keys, "newest_entries")
    publishing = asyncio.create_task(pair.second.publish(msg(b"new", key="k", color="red")))
    await pause.reached.wait()
    added = asyncio.create_task(adding())
    await asyncio.sleep(SETTLE_S)
    pause.over.set()
    assert await publishing == [message_id]
    await added
    await _catch_up(pair)
    assert await _payloads(pair.first, "q") == [b"new"]
