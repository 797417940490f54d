"""``penstock message``, ``history``, ``result``, ``cancel`` and ``find``: single messages."""

from __future__ import annotations

from typing import Final

import click

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.exits import Exit
from penstock.cli.options import choices
from penstock.cli.printing import Column, amount, moment, preview
from penstock.cli.session import on_target
from penstock.model.delivery import Event, ResultStatus, Snapshot
from penstock.model.message import Message

__all__ = ["cancel", "find", "history", "message", "result"]

_DELIVERIES: Final[tuple[Column[Snapshot], ...]] = (
    Column("queue", lambda item: item.queue, style="bold"),
    Column("state", lambda item: item.state.value),
    Column("attempts", lambda item: item.attempts, right=True),
    Column("at", lambda item: moment(item.at or item.claimed_at)),
    Column("consumer", lambda item: item.consumer),
    Column("error", lambda item: printing.summary(item.error), style="red", wide=True),
)
_EVENTS: Final[tuple[Column[Event], ...]] = (
    Column("at", lambda event: moment(event.at)),
    Column("queue", lambda event: event.queue, style="bold"),
    Column("transition", lambda event: event.transition.value),
    Column("state", lambda event: "gone" if event.state is None else event.state.value),
    Column("consumer", lambda event: event.consumer),
    Column("error", lambda event: printing.summary(event.error), style="red", wide=True),
)
_MESSAGES: Final[tuple[Column[Message], ...]] = (
    Column("message", lambda item: item.id, right=True),
    Column("published", lambda item: moment(item.published_at)),
    Column("key", lambda item: item.key),
    Column("partition key", lambda item: item.partition_key),
    Column("size", lambda item: amount(item.size), right=True),
    Column("headers", lambda item: printing.headers(item.headers), wide=True),
)
#: The longest wait of one call; a longer wait takes several calls.
_MAX_WAIT_MS: Final = 30_000


@click.command
@click.argument("message_id", type=int)
@click.option("--payload", "only_payload", is_flag=True, help="Print only the payload's bytes.")
@on_target
async def message(q: QueueApi, /, message_id: int, only_payload: bool) -> None:
    """Show a message, its payload, and its state in every queue.

    \b
    Examples:
      penstock message 17
      penstock message 17 --payload > order.json
    """
    found = await q.message(message_id)
    if only_payload:
        printing.write_bytes(found.payload)
        return
    if choices().json:
        # The JSON form of the HTTP interface; nothing else here needs this import.
        from penstock.wire.payloads import shown_message  # noqa: PLC0415

        printing.document(shown_message(found))
        return
    printing.fields([*_fields(found.message), ("payload", preview(found.payload, 200))])
    click.echo()
    printing.table(_DELIVERIES, found.deliveries, "No queue has it.")


@click.command
@click.argument("message_id", type=int)
@on_target
async def history(q: QueueApi, /, message_id: int) -> None:
    """List every recorded transition of a message.

    \b
    Example:
      penstock history 17
    """
    events = await q.history(message_id)
    if not printing.as_json(events):
        printing.table(_EVENTS, events, "There is no record.")


@click.command
@click.argument("queue")
@click.argument("message_id", type=int)
@click.option("--wait", "wait_ms", type=DURATION, default="0", help="Wait up to this long: 10s.")
@on_target
async def result(q: QueueApi, /, queue: str, message_id: int, wait_ms: int) -> None:
    """Print the result of a message in QUEUE, or how it ended.

    Prints the result's bytes unchanged. Exits with 4 while the message has not ended, and with 5
    if it failed or expired.

    \b
    Example:
      penstock result billing 17 --wait 30s
    """
    found = None
    while found is None:
        step_ms = min(wait_ms, _MAX_WAIT_MS)
        found = await q.result(queue, message_id, wait_ms=step_ms)
        wait_ms -= step_ms
        if not wait_ms:
            break
    if found is None:
        click.echo(f"message {message_id} has not ended in {queue}", err=True)
        raise click.exceptions.Exit(Exit.NOT_FOUND)
    done = found.status is ResultStatus.DONE
    if not printing.as_json(found) and done:
        printing.write_bytes(found.result or b"")
    if not done:
        attempts = f"after {found.attempts} attempt{'' if found.attempts == 1 else 's'}"
        reason = "" if found.error is None else f": {printing.summary(found.error)}"
        text = f"message {message_id} {found.status} in {queue} {attempts}{reason}"
        click.echo(printing.safe(text), err=True)
        raise click.exceptions.Exit(Exit.CONFLICT)


@click.command
@click.argument("message_id", type=int)
@click.option("--queue", help="Only in this queue; by default in every queue.")
@on_target
async def cancel(q: QueueApi, /, message_id: int, queue: str | None) -> None:
    """Remove a message from one queue or all, waiting or in flight.

    A consumer that holds it can no longer settle it. The message stays in the log.

    \b
    Examples:
      penstock cancel 17
      penstock cancel 17 --queue billing
    """
    reply = await q.cancel(message_id, queue=queue)
    where = ", ".join(reply.queues) or "no queue"
    later = f"; not routed yet in {', '.join(reply.pending)}" if reply.pending else ""
    printing.outcome(reply, f"cancelled message {message_id} in {where}{later}")


@click.command
@click.argument("topic")
@click.option("--id", "id_", help="The idempotency id that the producer gave.")
@click.option("--key", help="The key that the producer gave.")
@click.option("--partition-key", help="With --id: the partition key that the producer gave.")
@on_target
async def find(
    q: QueueApi, /, topic: str, id_: str | None, key: str | None, partition_key: str | None
) -> None:
    """Find messages of TOPIC by idempotency id or by key.

    An id is found inside the topic's dedup window. If ids of the topic are unique per partition
    only, give the partition key too. A key is searched for in the whole log.

    \b
    Examples:
      penstock find orders --id order-4711
      penstock find orders --key customer-17
    """
    found: dict[int, Message] = {}
    start: int | None = 0
    while start is not None:
        page = await q.find(topic, id=id_, key=key, partition_key=partition_key, start=start)
        found.update((item.id, item) for item in page.messages)
        start = page.next_offset
    messages = [found[number] for number in sorted(found)]
    if not printing.as_json(messages):
        printing.table(_MESSAGES, messages, f"{topic} has no such message.")


def _fields(found: Message) -> list[tuple[str, printing.Cell]]:
    return [
        ("message", found.id),
        ("offset", found.offset if found.is_replacement else None),
        ("topic", found.topic),
        ("headers", printing.headers(found.headers)),
        ("key", found.key),
        ("partition key", found.partition_key),
        ("priority", found.priority),
        ("published", moment(found.published_at)),
        ("deliver at", moment(found.deliver_at) if found.deliver_at > found.published_at else None),
        ("expires", moment(found.expires_at)),
        ("max attempts", found.max_attempts),
        ("content type", found.content_type),
        ("size", amount(found.size)),
    ]
