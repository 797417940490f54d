"""A task that misses a cancellation is told again."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage.sql import database


async def test_a_task_ends_though_a_cancellation_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_AGAIN_S", 0.01)
    missed = 0

    async def work() -> None:
        nonlocal missed
        while missed < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                missed += 1
        await asyncio.Event().wait()

    stubborn = asyncio.create_task(work())
    docile: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await database.end(stubborn, None, docile)
    assert missed == 3
    assert stubborn.cancelled()
    assert docile.cancelled()
    await database.end(None)
