"""``penstock consume``: deliveries to stdout or to a command, settled afterwards.

A delivery is acked after its line has left this process, never before: the reader of the pipe
may see one twice, but never misses one. Deliveries that could not be written are released.

``--exec`` runs one command per delivery and settles by its exit code. The lease is extended while
the command runs. If this process is stopped, it terminates the command and releases the delivery.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import click
import msgspec

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.line_format import delivery_format
from penstock.cli.options import choices
from penstock.cli.printing import safe
from penstock.cli.session import lasting
from penstock.errors import PenstockError, StaleReceipt
from penstock.model.delivery import Ack, ClaimOrder, Delivery, Release, Settlement
from penstock.model.limits import MAX_CLAIM
from penstock.model.queue import Ordering

__all__ = ["consume"]

#: The longest wait of one claim; a longer wait takes several claims.
_WAIT_MS: Final = 30_000
_DEFAULT_BATCH: Final = 100


@click.command
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option(
    "--wait", "wait_ms", type=DURATION, default="0", help="End if none arrives for this long: 10s."
)
@click.option(
    "--ack/--no-ack",
    default=True,
    show_default=True,
    help="--no-ack prints the deliveries of one claim and releases them.",
)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run this for each, with the payload as its input: ack if it succeeds, else nack.",
)
@click.option(
    "--format",
    "format_text",
    metavar="TEXT",
    help=r"Print this for each: '{topic} {id}\t{payload}'.",
)
@click.option("--null", "-0", is_flag=True, help="End payloads with a zero byte, not a newline.")
@click.option("--consumer", help="The consumer name for claims.")
@click.option("--lease", "lease_ms", type=DURATION, help="The lease of each claim: 30s.")
@click.option(
    "--batch",
    type=click.IntRange(1, MAX_CLAIM),
    default=_DEFAULT_BATCH,
    show_default=True,
    help="The most deliveries per claim.",
)
@click.option(
    "--order",
    type=click.Choice(["given", "fair"]),
    default="given",
    show_default=True,
    help="Of several queues: the first that has some, or each in turn.",
)
@click.option("--where", metavar="FILTER", help="Only those that match, of the first 1,000.")
@lasting
async def consume(
    q: QueueApi,
    /,
    queues: tuple[str, ...],
    limit: int | None,
    follow: bool,
    wait_ms: int,
    ack: bool,
    command: str | None,
    format_text: str | None,
    null: bool,
    consumer: str | None,
    lease_ms: int | None,
    batch: int,
    order: ClaimOrder,
    where: str | None,
) -> None:
    """Print the payloads of queues, one per line, and ack them.

    Ends when the queues are empty; with --follow it waits for more. With --json each line is the
    whole delivery. A delivery is acked after its line was written.

    \b
    Examples:
      penstock consume billing --follow
      penstock consume urgent billing --follow
      penstock consume billing --where "country = 'CH'"
      penstock consume billing --limit 10 --json
      penstock consume billing --no-ack
      penstock consume billing --format '{time} {id} {headers.amount} {payload}'
      penstock consume mails --follow --exec 'sendmail -t'
    """
    if not ack and (follow or command):
        raise click.UsageError("--no-ack prints one claim: it excludes --follow and --exec.")
    if format_text is not None and (command or choices().json):
        raise click.UsageError("--format excludes --exec and --json.")
    to_line = _line if format_text is None else delivery_format(format_text)
    arguments = _split(command)
    consumer = consumer or f"penstock-cli-{os.getpid()}"
    names: str | tuple[str, ...] = queues[0] if len(queues) == 1 else queues
    claim = partial(q.claim, names, consumer=consumer, lease_ms=lease_ms, order=order, where=where)
    # The command runs for one delivery at a time; others should not wait claimed.
    batches = _claims(claim, limit, 1 if arguments else batch, None if follow else wait_ms)
    ordered = [name for name in queues if await _is_ordered(q, name)]
    try:
        async for deliveries in batches:
            if arguments:
                (delivery,) = deliveries
                await _execute(q, delivery, arguments)
            else:
                end = b"\0" if null and not choices().json else b"\n"
                await _print(q, deliveries, to_line, end=end, ack=ack)
            if not ack:
                return
    finally:
        for name in ordered:
            # Free its partitions immediately instead of when the lease lapses.
            await q.leave(name, consumer)


async def _is_ordered(q: QueueApi, queue: str) -> bool:
    return (await q.queue(queue)).policy.ordering is Ordering.PARTITION


async def _claims(
    claim: Callable[..., Awaitable[list[Delivery]]],
    left: int | None,
    batch: int,
    patience_ms: int | None,
) -> AsyncIterator[list[Delivery]]:
    """Claims until ``left`` are claimed or none came for ``patience_ms``; None is no limit."""
    waited_ms = 0
    while left is None or left > 0:
        wait_ms = _WAIT_MS if patience_ms is None else min(_WAIT_MS, patience_ms - waited_ms)
        deliveries = await claim(limit=batch if left is None else min(batch, left), wait_ms=wait_ms)
        if deliveries:
            waited_ms = 0
            left = None if left is None else left - len(deliveries)
            yield deliveries
            continue
        waited_ms += wait_ms
        if patience_ms is not None and waited_ms >= patience_ms:
            return


async def _print(
    q: QueueApi,
    deliveries: Sequence[Delivery],
    to_line: Callable[[Delivery], bytes],
    *,
    end: bytes,
    ack: bool,
) -> None:
    """Write, then settle. Only the end of the process can interrupt between the two."""
    stream = printing.raw_output()
    try:
        for delivery in deliveries:
            stream.write(to_line(delivery) + end)
        stream.flush()
    except OSError:
        # The reader is gone or the disk is full. Lines that did arrive will arrive twice.
        await _settle(q, deliveries, Release)
        raise
    await _settle(q, deliveries, Ack if ack else Release)


async def _settle(q: QueueApi, deliveries: Sequence[Delivery], verb: type[Ack | Release]) -> None:
    """Settle completely, even if Ctrl-C comes meanwhile: the lines are written already."""
    settling = asyncio.ensure_future(_settle_queues(q, deliveries, verb))
    try:
        stale = await asyncio.shield(settling)
    except asyncio.CancelledError:
        await settling
        raise
    if stale:
        printing.note(f"{stale} leases lapsed before they could be settled: see --lease.")


async def _settle_queues(
    q: QueueApi, deliveries: Sequence[Delivery], verb: type[Ack | Release]
) -> int:
    """Settle the deliveries of each queue; returns how many leases had lapsed."""
    by_queue: dict[str, list[Settlement]] = {}
    for item in deliveries:
        by_queue.setdefault(item.queue, []).append(verb(item.receipt))
    replies = [await q.settle(queue, items) for queue, items in by_queue.items()]
    return sum(not outcome.ok for reply in replies for outcome in reply.outcomes)


def _line(delivery: Delivery) -> bytes:
    if choices().json:
        return msgspec.json.format(_as_json(delivery), indent=-1)
    if sys.stdout.isatty():
        # Payloads are untrusted: a terminal must not interpret control characters in them.
        return safe(delivery.payload.decode(errors="backslashreplace"), lines=True).encode()
    return delivery.payload


def _as_json(delivery: Delivery) -> bytes:
    # The JSON form of the HTTP interface; nothing else here needs this import.
    from penstock.wire.payloads import shown_delivery  # noqa: PLC0415

    return msgspec.json.encode(shown_delivery(delivery))


def _split(command: str | None) -> list[str]:
    """The words of the command; raises before anything is claimed if it does not exist."""
    if command is None:
        return []
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise click.UsageError(f"--exec does not parse: {error}.") from error
    if not arguments or shutil.which(arguments[0]) is None:
        raise click.UsageError(f"--exec: there is no command {safe(command)!r}.")
    return arguments


async def _execute(q: QueueApi, delivery: Delivery, arguments: Sequence[str]) -> None:
    """Run the command with the delivery as its input, and settle by its exit code."""
    given = _as_json(delivery) if choices().json else delivery.payload
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


async def _hold(q: QueueApi, delivery: Delivery) -> None:
    """Keep extending the lease, often enough that two extensions may fail."""
    lease_ms = delivery.lease_deadline - delivery.claimed_at
    while True:
        await asyncio.sleep(lease_ms / 3000)
        try:
            await q.extend(delivery, lease_ms)
        except StaleReceipt:
            return  # Settling will report it.
        except PenstockError as error:
            printing.note(f"The lease was not extended: {error.detail}")


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
        # An environment variable cannot contain a NUL.
        "DELIVERY_CONTENT_TYPE": (message.content_type or "").replace("\0", "�"),
        "DELIVERY_ERROR": (delivery.error or "").replace("\0", "�"),
        "DELIVERY_FAILED_AT": "" if delivery.failed_at is None else str(delivery.failed_at),
        "DELIVERY_ORIGINAL_QUEUE": delivery.original_queue or "",
    }
