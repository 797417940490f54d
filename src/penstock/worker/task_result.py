"""Waiting for the outcome of a task."""

from __future__ import annotations

import asyncio
from typing import Final, assert_never

from penstock.api import QueueApi
from penstock.errors import ResultTimeout, TaskExpired, TaskFailed
from penstock.model.delivery import Result, ResultStatus
from penstock.model.limits import MAX_WAIT_MS, check_whole
from penstock.model.message import MessageId

__all__ = ["wait_for_result"]

#: The longest timeout of a result: a year, which no caller means.
MAX_TIMEOUT_MS: Final = 366 * 24 * 3600 * 1000


async def wait_for_result(
    q: QueueApi, queue: str, message_id: MessageId, task: str, timeout_ms: int | None
) -> bytes | None:
    """The result of the delivery's ack; raises if there will be none, or after the timeout."""
    if timeout_ms is not None:
        check_whole("timeout_ms", timeout_ms, 0, MAX_TIMEOUT_MS)
    loop = asyncio.get_running_loop()
    deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
    left_ms = 0
    while True:
        found = await q.result(queue, message_id, wait_ms=left_ms)
        if found is not None:
            return _value(found, task)
        left_ms = MAX_WAIT_MS
        if deadline is not None:
            left_ms = min(MAX_WAIT_MS, int((deadline - loop.time()) * 1000))
        if left_ms <= 0:
            raise ResultTimeout(
                f"Task {task!r}, message {message_id}, has no result after {timeout_ms} ms.",
                field="timeout_ms",
                limit=timeout_ms,
            )


def _value(found: Result, task: str) -> bytes | None:
    match found.status:
        case ResultStatus.DONE:
            return found.result
        case ResultStatus.FAILED:
            raise TaskFailed(
                f"Task {task!r}, message {found.message_id}, failed at attempt {found.attempts}: "
                f"{found.error or 'no error was given'}.",
                error=found.error,
                attempts=found.attempts,
            )
        case ResultStatus.EXPIRED:
            raise TaskExpired(
                f"Task {task!r}, message {found.message_id}, expired before it was done."
            )
        case _:
            assert_never(found.status)
