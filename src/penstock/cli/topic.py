"""``penstock topic``: policies of topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION
from penstock.cli.options import Family
from penstock.cli.printing import Column, age
from penstock.cli.session import creating, on_target
from penstock.errors import BadInput, UnknownTopic
from penstock.model.queue import MAX_SCHEMA_BYTES, DedupScope, TopicPolicy

__all__ = ["topic"]

_COLUMNS: Final[tuple[Column[tuple[str, TopicPolicy]], ...]] = (
    Column("topic", lambda item: item[0], style="bold"),
    Column("default ttl", lambda item: age(item[1].default_ttl_ms)),
    Column("dedup window", lambda item: age(item[1].dedup_window_ms)),
    Column("schema", lambda item: item[1].schema_type),
)


@click.group(cls=Family)
def topic() -> None:
    """Register topics: default ttl, dedup window, payload schema.

    Topics need no registration unless the setting require_topics is on.

    \b
    Example:
      penstock topic put orders --schema-type json-schema --schema @order.schema.json
    """


@topic.command
@click.argument("name")
@click.option("--default-ttl", type=DURATION, help="For messages without a ttl of their own.")
@click.option("--dedup-window", type=DURATION, help="How long an idempotency id is remembered.")
@click.option(
    "--dedup-scope",
    type=click.Choice(["topic", "partition_key"]),
    default="topic",
    show_default=True,
    help="Where an idempotency id is unique.",
)
@click.option("--schema-type", type=click.Choice(["json-schema", "avro"]), help="Schema language.")
@click.option("--schema", metavar="TEXT|@FILE", help="The schema of payloads.")
@click.option(
    "--queue-defaults",
    metavar="JSON|@FILE",
    help="Policy fields of the queue that a publish creates for the topic.",
)
@creating
async def put(
    q: QueueApi,
    /,
    name: str,
    default_ttl: int | None,
    dedup_window: int | None,
    dedup_scope: DedupScope,
    schema_type: str | None,
    schema: str | None,
    queue_defaults: str | None,
) -> None:
    """Register the topic NAME, or replace its policy.

    \b
    Examples:
      penstock topic put orders --default-ttl 7d --dedup-window 1h
      penstock topic put orders --schema-type json-schema --schema @order.schema.json
    """
    policy = TopicPolicy(
        default_ttl_ms=default_ttl,
        dedup_window_ms=TopicPolicy().dedup_window_ms if dedup_window is None else dedup_window,
        schema_type=schema_type,
        schema=None if schema is None else _read_text(schema, "schema"),
        queue_defaults={} if queue_defaults is None else _read_defaults(queue_defaults),
        dedup_scope=dedup_scope,
    )
    await q.put_topic(name, policy)
    _print(name, policy)


@topic.command(name="list")
@on_target
async def list_topics(q: QueueApi) -> None:
    """List the registered topics.

    \b
    Example:
      penstock topic list --json
    """
    listed = await q.topics()
    if not printing.as_json([{"name": name, "policy": policy} for name, policy in listed]):
        printing.table(_COLUMNS, listed, "No topic is registered.")


@topic.command
@click.argument("name")
@on_target
async def show(q: QueueApi, /, name: str) -> None:
    """Show the policy of the topic NAME.

    \b
    Example:
      penstock topic show orders
    """
    policy = await q.topic(name)
    if policy is None:
        raise UnknownTopic(f"The topic {name!r} is not registered.", field="topic")
    _print(name, policy)


@topic.command
@click.argument("name")
@on_target
async def delete(q: QueueApi, /, name: str) -> None:
    """Remove the policy of the topic NAME; its messages stay.

    \b
    Example:
      penstock topic delete orders
    """
    await q.delete_topic(name)
    printing.outcome({"deleted": name}, f"deleted {name}")


def _print(name: str, policy: TopicPolicy) -> None:
    if printing.as_json({"name": name, "policy": policy}):
        return
    printing.fields(
        [
            ("topic", name),
            ("default ttl", age(policy.default_ttl_ms) or "none"),
            ("dedup window", age(policy.dedup_window_ms)),
            ("dedup scope", policy.dedup_scope),
            ("schema type", policy.schema_type),
            ("schema", policy.schema),
            (
                "queue defaults",
                msgspec.json.encode(policy.queue_defaults).decode()
                if policy.queue_defaults
                else None,
            ),
        ]
    )


def _read_defaults(given: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_read_text(given, "queue_defaults"), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        detail = f"queue_defaults is not a JSON object: {error}."
        raise BadInput(detail, field="queue_defaults") from error


def _read_text(given: str, field: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        with Path(given[1:]).open("rb") as file:
            # One byte more than allowed, so that the broker reports the limit.
            return file.read(MAX_SCHEMA_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"Cannot read {given[1:]}: {error}.", field=field) from error
