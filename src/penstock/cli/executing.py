"""``consume --exec``: runs one command per delivery and settles by its exit code.

The lease is extended while the command runs. If this process is stopped, it terminates the
command and releases the delivery.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from penstock.cli import printing
from penstock.errors import StaleReceipt
from penstock.model.delivery import Delivery
from penstock.verbs import Verbs

__all__ = ["execute"]


async def execute(q: Verbs, delivery: Delivery, arguments: Sequence[str], given: bytes) -> None:
    """Run the command with ``given`` as its input, and settle by its exit code."""
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=PIPE, env={**os.environ, **_variables(delivery)}
    )
    holding = asyncio.create_task(_hold(q, delivery))
    try:
        await process.communicate(given)
    except asyncio.CancelledError:
        await _stop(process)
        await q.release(delivery)
        raise
    finally:
        holding.cancel()
    try:
        if process.returncode == 0:
            await q.ack(delivery)
        else:
            await q.nack(delivery, f"{arguments[0]} ended with {process.returncode}")
    except StaleReceipt as error:
        printing.note(f"{error.detail} {error.advice}")


async def _hold(q: Verbs, delivery: Delivery) -> None:
    """Keep extending the lease, often enough that two extensions may fail."""
    lease_ms = delivery.lease_deadline - delivery.claimed_at
    while True:
        await asyncio.sleep(lease_ms / 3000)
        try:
            await q.extend(delivery, lease_ms)
        except StaleReceipt:
            return  # Settling will report it.


async def _stop(process: Process) -> None:
    try:
        process.terminate()
    except ProcessLookupError:
        return
    await process.wait()


def _variables(delivery: Delivery) -> dict[str, str]:
    """Environment variables for the command, in addition to the payload.

    Without the prefix of the settings, because the command may be ``penstock`` itself.
    """
    message = delivery.message
    return {
        "DELIVERY_MESSAGE_ID": str(message.id),
        "DELIVERY_QUEUE": delivery.queue,
        "DELIVERY_TOPIC": message.topic,
        "DELIVERY_ATTEMPTS": str(delivery.attempts),
        "DELIVERY_CONTENT_TYPE": message.content_type or "",
    }
