"""``penstock publish``: one message, or a stream of them in batches.

Bytes are stored exactly as they come in (P3). A batch is stored completely or not at all (P2);
after an error the command prints how many messages were published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.api import QueueApi
from penstock.cli import printing
from penstock.cli.amounts import DURATION, HEADER
from penstock.cli.inputs import Source, open_source, read_payload
from penstock.cli.options import target_options
from penstock.cli.progress import meter
from penstock.cli.session import find_target, open_target, run
from penstock.errors import BadInput, PenstockError
from penstock.model.limits import DEFAULT_PRIORITY, MAX_ATTEMPTS, MAX_BATCH, MAX_PRIORITY
from penstock.model.message import HeaderValue, NewMessage, PublishReply

__all__ = ["publish"]

#: Payload bytes per batch, so that a request stays far below the server's limit.
_BATCH_BYTES: Final = 4 * 1024 * 1024
_DEFAULT_BATCH: Final = 500
_LINES: Final = "lines"
_NDJSON: Final = "ndjson"


class Streamed(Struct, frozen=True):
    """The result of publishing a stream."""

    published: int = 0
    duplicates: int = 0
    replaced: int = 0
    first_id: int | None = None
    last_id: int | None = None
    durability: str | None = None


@click.command
@click.argument("topic")
@click.argument("payload", required=False)
@click.option(
    "--header",
    "-H",
    "headers",
    type=HEADER,
    multiple=True,
    help="A header; may be repeated. 250, 2.5, true and false have their type; quotes "
    "('zip=\"01234\"') make anything text.",
)
@click.option(
    "--id", metavar="ID", help="The idempotency id; the messages of a stream get ID-NUMBER."
)
@click.option("--key", help="Replaces the waiting message with the same key.")
@click.option("--partition-key", help="Ordered queues keep the order within this key.")
@click.option(
    "--priority",
    type=click.IntRange(0, MAX_PRIORITY),
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="9 is delivered first.",
)
@click.option("--delay", type=DURATION, help="Deliver after this time: 5s, 10m, 2h.")
@click.option("--ttl", type=DURATION, help="Expire after this time.")
@click.option(
    "--max-attempts",
    type=click.IntRange(1, MAX_ATTEMPTS),
    help="Attempts before a delivery fails, instead of each queue's own limit.",
)
@click.option("--content-type", help="The type of the payload, such as application/json.")
@click.option(
    "--no-auto-create",
    "auto_create",
    flag_value=False,
    default=True,
    help="Create no queue for a message that no queue takes.",
)
@click.option("--lines", "form", flag_value=_LINES, help="Every line of the input is a message.")
@click.option(
    "--ndjson",
    "form",
    flag_value=_NDJSON,
    help="Every line is a JSON object: payload, payload_text or payload_base64, and its own "
    "options (headers, id, key, priority …).",
)
@click.option(
    "--batch",
    type=click.IntRange(1, MAX_BATCH),
    default=_DEFAULT_BATCH,
    show_default=True,
    help="The most messages of a stream that are stored together.",
)
@target_options
def publish(
    topic: str,
    payload: str | None,
    headers: tuple[tuple[str, HeaderValue], ...],
    id: str | None,
    key: str | None,
    partition_key: str | None,
    priority: int,
    delay: int | None,
    ttl: int | None,
    max_attempts: int | None,
    content_type: str | None,
    auto_create: bool,
    form: str | None,
    batch: int,
) -> None:
    """Publish PAYLOAD to TOPIC: text, @FILE, or - for stdin.

    Returns when the message is on disk. Bytes are stored unchanged. Without PAYLOAD it reads
    stdin. With --lines or --ndjson the input is a stream, published in batches as it arrives;
    with --id, repeating an interrupted stream publishes nothing twice.

    \b
    Examples:
      penstock publish orders '{"order": 7}' -H amount=250 -H country=DE
      penstock publish images @photo.png --content-type image/png
      penstock publish jobs "wake up" --delay 10m --priority 9
      cat orders.txt | penstock publish orders --lines --id import-7
    """
    template = NewMessage(
        b"",
        dict(headers),
        id,
        key,
        partition_key,
        priority,
        content_type,
        delay_ms=delay,
        ttl_ms=ttl,
        auto_create=auto_create,
        max_attempts=max_attempts,
    )
    if form is None:
        run(_publish_one(topic, payload, template))
    else:
        run(_publish_stream(topic, payload, _Reader(template, form), batch))


async def _publish_one(topic: str, argument: str | None, template: NewMessage) -> None:
    # Read before opening the store: a missing file should not leave an empty store behind.
    raw, natural_type = await read_payload(argument)
    message = replace(template, payload=raw, content_type=template.content_type or natural_type)
    async with open_target(find_target()) as q:
        reply = await q.publish_batch(topic, [message])
    (done,) = reply.messages
    how = "duplicate of" if done.duplicate else "replaced" if done.replaced else "published"
    text = f"{how} message {done.id}{_where(done.queues)}"
    printing.outcome({**asdict(done), "durability": reply.durability}, text)


def _where(queues: int | None) -> str:
    """Where a message went, for people."""
    if queues is None:
        return ""
    return f" to {queues} queue{'s'[: queues != 1]}" if queues else ", which no queue takes"


async def _publish_stream(topic: str, argument: str | None, reader: _Reader, batch: int) -> None:
    with open_source(argument) as source:
        async with open_target(find_target(), patient=True) as q:
            done = await _pump(q, topic, source, reader, batch)
    counts = ((done.duplicates, "duplicates"), (done.replaced, "replaced"))
    details = ", ".join(f"{count} {what}" for count, what in counts if count)
    suffix = f" ({details})" if details else ""
    printing.outcome(done, f"published {done.published} messages{suffix}")


async def _pump(q: QueueApi, topic: str, source: Source, reader: _Reader, batch: int) -> Streamed:
    done = Streamed()
    try:
        with meter("publishing", source.size) as bar:
            async for lines in source.lines():
                for group in _batches(reader.messages(lines), batch):
                    done = _counted(done, await q.publish_batch(topic, group))
                    bar(description=f"published {done.published:,}")
                bar(completed=source.position if source.size is not None else done.published)
    except PenstockError:
        if done.published:
            printing.note(
                f"{done.published} messages were published before this. With --id the stream "
                "can be repeated from its beginning without publishing them twice."
            )
        raise
    return done


class _Reader:
    """Turns lines into messages."""

    def __init__(self, template: NewMessage, form: str) -> None:
        self._template = template
        self._form = form
        self._number = 0

    def messages(self, lines: Sequence[bytes]) -> Iterator[NewMessage]:
        """One message per line; errors name the number of the line."""
        for line in lines:
            self._number += 1
            if self._form == _LINES:
                yield self._named(replace(self._template, payload=line))
            elif line.strip():
                yield self._named(self._decoded(line))

    def _named(self, message: NewMessage) -> NewMessage:
        """Give the message an id made of the given one and the line number."""
        if self._template.id is None or message.id != self._template.id:
            return message
        return replace(message, id=f"{self._template.id}-{self._number}")

    def _decoded(self, line: bytes) -> NewMessage:
        # Only needed for NDJSON.
        from penstock.wire.codecs import Codec  # noqa: PLC0415
        from penstock.wire.payloads import JsonMessage, to_new_message  # noqa: PLC0415

        try:
            given = to_new_message(Codec(JsonMessage).from_json(line))
        except BadInput as error:
            raise BadInput(f"Line {self._number}: {error.detail}", field=error.field) from error
        common = self._template
        return NewMessage(
            given.payload,
            {**common.headers, **given.headers},
            given.id or common.id,
            given.key or common.key,
            given.partition_key or common.partition_key,
            given.priority if given.priority != DEFAULT_PRIORITY else common.priority,
            given.content_type or common.content_type,
            given.deliver_at,
            given.expires_at,
            common.delay_ms if given.delay_ms is given.deliver_at is None else given.delay_ms,
            common.ttl_ms if given.ttl_ms is given.expires_at is None else given.ttl_ms,
            given.auto_create and common.auto_create,
            common.max_attempts if given.max_attempts is None else given.max_attempts,
        )


def _batches(messages: Iterator[NewMessage], most: int) -> Iterator[list[NewMessage]]:
    group: list[NewMessage] = []
    size = 0
    for message in messages:
        if group and (len(group) == most or size + len(message.payload) > _BATCH_BYTES):
            yield group
            group, size = [], 0
        group.append(message)
        size += len(message.payload)
    if group:
        yield group


def _counted(done: Streamed, reply: PublishReply) -> Streamed:
    ids = [item.id for item in reply.messages]
    return Streamed(
        done.published + len(ids),
        done.duplicates + sum(item.duplicate for item in reply.messages),
        done.replaced + sum(item.replaced for item in reply.messages),
        min(ids) if done.first_id is None else done.first_id,
        ids[-1],
        reply.durability,
    )
