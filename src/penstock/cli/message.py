"""``penstock message``, ``history`` and ``result``: everything about one message."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.exits import Exit
from penstock.cli.options import choices, target_options
from penstock.cli.printing import Column
from penstock.cli.session import on_target
from penstock.cli.showing import amount, moment, preview
from penstock.model.message import Message
from penstock.verbs import Verbs

__all__ = ["history", "message", "result"]

_DELIVERIES: Final = (
    Column("queue", style="bold"),
    Column("state"),
    Column("attempts", right=True),
    Column("at"),
    Column("consumer"),
    Column("error", style="red", wide=True),
)
_EVENTS: Final = (
    Column("at"),
    Column("queue", style="bold"),
    Column("transition"),
    Column("state"),
    Column("consumer"),
    Column("error", style="red", wide=True),
)
#: The longest wait of one call; a longer wait takes several calls.
_MAX_WAIT_MS: Final = 30_000


@click.command
@click.argument("message_id", type=int)
@click.option("--payload", "only_payload", is_flag=True, help="Print only the payload's bytes.")
@target_options
@on_target
async def message(q: Verbs, /, message_id: int, only_payload: bool) -> None:
    """Show a message, its payload, and its state in every queue.

    \b
    Examples:
      penstock message 17
      penstock message 17 --payload > order.json
    """
    found = await q.message(message_id)
    if only_payload:
        stream = printing.raw_output()
        stream.write(found.payload)
        stream.flush()
        return
    if choices().json:
        # The JSON form of the HTTP interface; nothing else here needs this import.
        from penstock.wire.payloads import shown_message  # noqa: PLC0415

        printing.document(shown_message(found))
        return
    printing.fields([*_fields(found.message), ("payload", preview(found.payload, 200))])
    click.echo()
    rows = [
        (
            item.queue,
            item.state.value,
            item.attempts,
            moment(item.at or item.claimed_at),
            item.consumer,
            item.error,
        )
        for item in found.deliveries
    ]
    printing.table(_DELIVERIES, rows, "No queue has it.")


@click.command
@click.argument("message_id", type=int)
@target_options
@on_target
async def history(q: Verbs, /, message_id: int) -> None:
    """List every recorded transition of a message.

    \b
    Example:
      penstock history 17
    """
    events = await q.history(message_id)
    if choices().json:
        printing.document(events)
        return
    rows = [
        (
            moment(event.at),
            event.queue,
            event.transition.value,
            "gone" if event.state is None else event.state.value,
            event.consumer,
            event.error,
        )
        for event in events
    ]
    printing.table(_EVENTS, rows, "There is no record.")


@click.command
@click.argument("queue")
@click.argument("message_id", type=int)
@click.option("--wait", "wait_ms", type=DURATION, default="0", help="Wait up to this long: 10s.")
@target_options
@on_target
async def result(q: Verbs, /, queue: str, message_id: int, wait_ms: int) -> None:
    """Print the result that the ack of a message in QUEUE carried.

    Prints its bytes unchanged. Exits with 4 while there is none.

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
        click.echo(f"message {message_id} is not done in {queue}", err=True)
        raise click.exceptions.Exit(Exit.NOT_FOUND)
    if choices().json:
        printing.document(found)
        return
    stream = printing.raw_output()
    stream.write(found.result or b"")
    stream.flush()


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
        ("content type", found.content_type),
        ("size", amount(found.size)),
    ]
