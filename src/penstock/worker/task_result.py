"""Waiting for the outcome of a task."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.api import QueueApi
from penstock.errors import ResultTimeout, TaskExpired, TaskFailed
from penstock.model.limits import MAX_WAIT_MS, check_whole
from penstock.model.message import MessageId
from penstock.model.states import State

__all__ = ["wait_for_result"]

#: The longest timeout of a result: a year, which no caller means.
MAX_TIMEOUT_MS: Final = 366 * 24 * 3600 * 1000
#: How often to look for a failure, of which the verb ``result`` does not tell.
_LOOK_MS: Final = 1_000


async def wait_for_result(
    q: QueueApi, queue: str, message_id: MessageId, task: str, timeout_ms: int | None
) -> bytes | None:
    """The result of the delivery's ack; raises if there will be none, or after the timeout."""
    if timeout_ms is not None:
        check_whole("timeout_ms", timeout_ms, 0, MAX_TIMEOUT_MS)
    loop = asyncio.get_running_loop()
    deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
    wait_ms = 0
    while True:
        found = await q.result(queue, message_id, wait_ms=wait_ms)
        if found is not None:
            return found.result
        await _raise_failure(q, queue, message_id, task)
        left_ms = MAX_WAIT_MS if deadline is None else int((deadline - loop.time()) * 1000)
        if left_ms <= 0:
            raise ResultTimeout(
                f"Task {task!r}, message {message_id}, has no result after {timeout_ms} ms.",
                field="timeout_ms",
                limit=timeout_ms,
            )
        wait_ms = min(left_ms, _LOOK_MS)


async def _raise_failure(q: QueueApi, queue: str, message_id: MessageId, task: str) -> None:
    found = await q.message(message_id)
    for snapshot in found.deliveries:
        if snapshot.queue != queue:
            continue
        if snapshot.state is State.FAILED:
            raise TaskFailed(
                f"Task {task!r}, message {message_id}, failed at attempt {snapshot.attempts}: "
                f"{snapshot.error or 'no error was given'}.",
                error=snapshot.error,
                attempts=snapshot.attempts,
            )
        if snapshot.state is State.EXPIRED:
            raise TaskExpired(f"Task {task!r}, message {message_id}, expired before it was done.")
