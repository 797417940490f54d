"""``penstock webhook``: URLs that are called when something happens in a queue."""

from __future__ import annotations

from typing import Final

import click

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.exits import Exit
from penstock.cli.options import Family
from penstock.cli.printing import Cell, Column, moment
from penstock.cli.session import on_target
from penstock.errors import BadInput
from penstock.model.limits import MAX_WAIT_MS
from penstock.model.webhooks import EVENTS, Webhook, webhook_queue

__all__ = ["webhook"]

_COLUMNS: Final[tuple[Column[Webhook], ...]] = (
    Column("id", lambda item: item.id, style="bold"),
    Column("queue", lambda item: item.queue),
    Column("events", lambda item: " ".join(item.events), wide=True),
    Column("url", lambda item: item.url, wide=True),
    Column("enabled", lambda item: "yes" if item.enabled else "no"),
)


@click.group(cls=Family)
def webhook() -> None:
    """Call URLs when deliveries end or a queue fills up.

    The events of a webhook wait in the queue penstock.webhook.ID until a server has delivered
    them. Those that it could not deliver are in penstock.webhook.ID.dlq.

    \b
    Example:
      penstock webhook add ops https://example.com/ops --queue orders --event message.failed
    """


@webhook.command
@click.argument("id")
@click.argument("receiver", metavar="URL")
@click.option(
    "--queue",
    required=True,
    help="The queue whose events it gets, or a pattern: `*` stands for any characters.",
)
@click.option(
    "--event",
    "events",
    type=click.Choice(list(EVENTS)),
    multiple=True,
    required=True,
    help="What it is called for; repeatable.",
)
@click.option("--threshold", type=int, help="The depth above which queue.depth fires.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Sent with calls; repeatable."
)
@click.option("--secret", help="Signs the calls: whsec_ and base64. Default: a new one.")
@click.option("--description", default="", help="What it is for.")
@click.option("--enabled/--disabled", default=True, help="Whether it is called.")
@on_target
async def add(
    q: QueueApi,
    /,
    id: str,
    receiver: str,
    queue: str,
    events: tuple[str, ...],
    threshold: int | None,
    headers: tuple[str, ...],
    secret: str | None,
    description: str,
    enabled: bool,
) -> None:
    """Add the webhook ID, or replace it. A new secret is printed once.

    \b
    Examples:
      penstock webhook add ops https://example.com/ops --queue orders --event message.failed
      penstock webhook add dead https://example.com/x --queue '*' --event message.dead_lettered
      penstock webhook add q https://example.com/q --queue jobs --event queue.depth --threshold 99
    """
    stored = await q.put_webhook(
        id,
        receiver,
        queue=queue,
        events=list(events),
        threshold=threshold,
        headers=dict(map(_header, headers)),
        description=description,
        enabled=enabled,
        secret=secret,
    )
    if not printing.as_json(stored):
        printing.fields([*_fields(stored.webhook), ("secret", stored.secret or "unchanged")])


@webhook.command(name="list")
@on_target
async def list_webhooks(q: QueueApi) -> None:
    """List the webhooks.

    \b
    Example:
      penstock webhook list --json
    """
    listed = await q.webhooks()
    if not printing.as_json(listed):
        printing.table(_COLUMNS, listed, "There is no webhook.")


@webhook.command
@click.argument("id")
@on_target
async def show(q: QueueApi, /, id: str) -> None:
    """Show the webhook ID, without its secret.

    \b
    Example:
      penstock webhook show ops
    """
    found = await q.webhook(id)
    if not printing.as_json(found):
        printing.fields(_fields(found))


@webhook.command
@click.argument("id")
@on_target
async def remove(q: QueueApi, /, id: str) -> None:
    """Remove the webhook ID, with its undelivered events and dead letters.

    \b
    Example:
      penstock webhook remove ops
    """
    await q.delete_webhook(id)
    printing.outcome({"removed": id}, f"removed {id}")


@webhook.command
@click.argument("id")
@click.option("--wait", "wait_ms", type=DURATION, default=15_000, help="How long to wait: 15s.")
@on_target
async def test(q: QueueApi, /, id: str, wait_ms: int) -> None:
    """Send a test event to the webhook ID, and wait for its delivery.

    Exits with 5 if the event was not delivered in time. A server, not this command, makes the call.

    \b
    Example:
      penstock webhook test ops
    """
    sent = await q.test_webhook(id)
    wait_ms = min(wait_ms, MAX_WAIT_MS)
    result = await q.result(webhook_queue(id), sent.id, wait_ms=wait_ms)
    status = "pending" if result is None else str(result.status)
    printing.outcome({"id": sent.id, "status": status}, f"event {sent.id}: {status}")
    if status != "done":
        raise click.exceptions.Exit(Exit.CONFLICT)


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals:
        raise BadInput("A header is given as NAME=VALUE.", field="headers")
    return name, value


def _fields(found: Webhook) -> list[tuple[str, Cell]]:
    return [
        ("webhook", found.id),
        ("url", found.url),
        ("queue", found.queue),
        ("events", ", ".join(found.events)),
        ("threshold", found.threshold),
        ("headers", ", ".join(found.headers)),
        ("description", found.description),
        ("enabled", found.enabled),
        ("disabled because", found.disabled_because),
        ("created", moment(found.created_at)),
    ]
