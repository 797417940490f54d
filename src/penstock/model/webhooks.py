"""Webhooks: URLs that are called when something happens in a queue."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from penstock.errors import BadInput, TooLarge
from penstock.model.limits import DLQ_SUFFIX, MAX_NAME, check_name, check_whole, shown
from penstock.model.name_patterns import WILDCARD, is_pattern, matches, to_like
from penstock.model.queue import Backoff
from penstock.model.queue_events import EVENTS_TOPIC, RESERVED_PREFIX, MessageEvent

__all__ = [
    "DEPTH",
    "EVENTS",
    "MAX_WEBHOOKS",
    "NONEMPTY",
    "TEST",
    "NewWebhook",
    "Webhook",
    "WebhookOptions",
    "check_webhook",
    "check_webhook_id",
    "filter_of",
    "is_one_queue",
    "is_public",
    "message_events",
    "new_secret",
    "queue_policy",
    "split_url",
    "to_secret",
    "watches",
    "webhook_of",
    "webhook_queue",
]

#: A keeper reads all webhooks of a store about once per second.
MAX_WEBHOOKS: Final = 100
_MAX_ID: Final = 64
_MAX_URL_BYTES: Final = 2048
_MAX_HEADERS: Final = 16
_MAX_HEADER_BYTES: Final = 1024
_MAX_DESCRIPTION: Final = 200
#: Keys of HMAC-SHA256: shorter ones are guessable, longer ones are hashed first.
_SECRET_BYTES: Final = range(24, 65)
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  (the prefix is public)

NONEMPTY: Final = "queue.nonempty"
DEPTH: Final = "queue.depth"
TEST: Final = "webhook.test"
#: Every event of a subscription, and the event of the queue's policy that it needs.
EVENTS: Final[Mapping[str, MessageEvent | None]] = {
    "message.done": "done",
    "message.failed": "failed",
    "message.dead_lettered": "failed",
    "message.expired": "expired",
    NONEMPTY: None,
    DEPTH: None,
}

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_URL: Final = re.compile(r"[\x21-\x7e]+")
#: The keeper sets these itself.
_OWN_HEADERS: Final = re.compile(
    r"(?:webhook-.*|content-.*|host|connection|transfer-encoding|te|trailer|upgrade|expect"
    r"|user-agent|accept-encoding)",
    re.IGNORECASE,
)
#: Addresses that stand for an IPv4 address, which is the one that counts.
_NAT64: Final = ip_network("64:ff9b::/96")
#: The only IPv6 addresses that are assigned on the public internet.
_GLOBAL_UNICAST: Final = ip_network("2000::/3")

Address: TypeAlias = IPv4Address | IPv6Address


class Webhook(Struct, frozen=True, kw_only=True):
    """A subscription to events of one queue, or of all queues that match a pattern."""

    id: str
    url: str
    queue: str
    """A name, or a pattern in which ``*`` stands for any characters."""
    events: tuple[str, ...]
    threshold: int | None = None
    """The depth above which ``queue.depth`` fires."""
    headers: dict[str, str] = {}
    """Sent with every call; replies show their names only."""
    description: str = ""
    enabled: bool = True
    disabled_because: str | None = None
    created_at: int = 0


class NewWebhook(Struct, frozen=True):
    """A webhook that was stored, and its secret if it is new: it cannot be shown again."""

    webhook: Webhook
    secret: str | None


class WebhookOptions(Struct, frozen=True, kw_only=True):
    """The operator's options for calling webhooks."""

    allow_private: bool = False
    """Whether private, loopback and link-local addresses may be called."""
    timeout_ms: int = 10_000
    """For one call, from the name lookup to the status line."""
    concurrency: int = 64
    """Calls of one server in progress at one time."""
    webhook_concurrency: int = 8
    """The same for each webhook."""


def webhook_queue(id: str) -> str:
    """The queue that holds the events of a webhook until they are delivered."""
    return f"{RESERVED_PREFIX}webhook.{id}"


def is_one_queue(webhook: Webhook) -> bool:
    """Whether it names a queue and not a pattern."""
    return WILDCARD not in webhook.queue


def watches(webhook: Webhook, queue: str) -> bool:
    """Whether the queue is the webhook's, or one of those that match its pattern."""
    # Queues of webhooks hold events, and deliveries of events have none.
    return matches(webhook.queue, queue) and not queue.startswith(RESERVED_PREFIX)


def message_events(webhook: Webhook) -> set[MessageEvent]:
    """What the watched queues have to publish for the webhook."""
    return {kind for name in webhook.events if (kind := EVENTS[name]) is not None}


def filter_of(webhook: Webhook) -> str:
    """The filter of the webhook's queue."""
    queue = to_like("queue", webhook.queue)
    plain = [name for name in webhook.events if name.startswith("message.")]
    wanted = [f"webhook = '{webhook.id}'"]
    if "message.dead_lettered" in plain and "message.failed" not in plain:
        wanted.append(f"({queue} AND event = 'message.failed' AND dead_letter)")
    named = ", ".join(f"'{name}'" for name in plain if name != "message.dead_lettered")
    if named:
        wanted.append(f"({queue} AND event IN ({named}))")
    return f"topic = '{EVENTS_TOPIC}' AND ({' OR '.join(wanted)})"


def queue_policy() -> dict[str, object]:
    """The policy of a webhook's queue, without its filter; an operator may change it later.

    All attempts take about half a day. Events of a disabled webhook expire after a week.
    """
    return {
        "max_attempts": 15,
        "backoff": Backoff(base_ms=5_000, max_ms=3_600_000),
        "lease_ms": 90_000,
        "message_ttl_ms": 7 * 24 * 3600 * 1000,
        "description": "Events for a webhook.",
    }


def webhook_of(
    id: str,
    url: str,
    queue: str,
    events: Sequence[str],
    threshold: int | None,
    headers: Mapping[str, str] | None,
    description: str,
    enabled: bool,
) -> Webhook:
    """The webhook that the arguments of a call describe; it is not checked."""
    return Webhook(
        id=id,
        url=url,
        queue=queue,
        events=tuple(events) if isinstance(events, list | tuple) else (),
        threshold=threshold,
        headers=_to_dict(headers),
        description=description,
        enabled=enabled,
    )


def _to_dict(headers: object) -> dict[str, str]:
    """The headers as a dict; ``check_webhook`` refuses other values."""
    if headers is None:
        return {}
    given: Any = headers
    return dict(given) if isinstance(headers, Mapping) else given


def check_webhook_id(id: object) -> str:
    """Return the id, or refuse it."""
    name = check_name(id, "id")
    if len(name) > _MAX_ID:
        raise BadInput(
            f"id has {len(name)} characters; the limit is {_MAX_ID}.", field="id", limit=_MAX_ID
        )
    return name


def check_webhook(webhook: Webhook, *, allow_private: bool) -> Webhook:
    """Return the webhook if every field is valid."""
    check_webhook_id(webhook.id)
    _check_queue(webhook.queue)
    _check_url(webhook.url, allow_private=allow_private)
    _check_events(webhook.events)
    if DEPTH in webhook.events:
        check_whole("threshold", webhook.threshold, 0, 2**53)
    elif webhook.threshold is not None:
        raise BadInput("threshold belongs to the event queue.depth.", field="threshold")
    _check_headers(webhook.headers)
    if type(webhook.description) is not str or len(webhook.description) > _MAX_DESCRIPTION:
        raise BadInput(
            f"description must be a text of at most {_MAX_DESCRIPTION} characters.",
            field="description",
            limit=_MAX_DESCRIPTION,
        )
    if type(webhook.enabled) is not bool:
        raise BadInput(
            f"enabled is {shown(webhook.enabled)}; it must be true or false.", field="enabled"
        )
    return webhook


def _check_queue(queue: object) -> None:
    """Accept the name of a queue, or a pattern of names."""
    if not isinstance(queue, str) or WILDCARD not in queue:
        queue = check_name(queue, "queue")
    elif not is_pattern(queue) or queue.endswith(DLQ_SUFFIX):
        raise BadInput(
            f"queue {shown(queue)} is not a valid pattern: a name of at most {MAX_NAME} characters "
            "in which * stands for any characters.",
            field="queue",
            limit=MAX_NAME,
        )
    if queue.startswith(RESERVED_PREFIX):
        raise BadInput(f"{queue!r} belongs to Penstock and has no events.", field="queue")


def split_url(url: str) -> tuple[SplitResult, str, int]:
    """The parts of a valid URL, its host and its port."""
    parts = urlsplit(url)
    return parts, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def is_public(address: Address) -> bool:
    """Whether the address is on the public internet, by itself or through a translation."""
    if isinstance(address, IPv6Address):
        if address.teredo is not None:
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast


def to_secret(text: object) -> bytes:
    """The key of signatures that a secret such as ``whsec_MfKQ…`` stands for."""
    raw = b""
    if isinstance(text, str) and text.startswith(SECRET_PREFIX):
        try:
            raw = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raw = b""
    if len(raw) not in _SECRET_BYTES:
        raise BadInput(
            f"secret must be {SECRET_PREFIX} and the base64 of {_SECRET_BYTES.start} to "
            f"{_SECRET_BYTES.stop - 1} bytes.",
            field="secret",
            limit=_SECRET_BYTES.stop - 1,
        )
    return raw


def new_secret(raw: bytes) -> str:
    """A secret as text."""
    return SECRET_PREFIX + base64.b64encode(raw).decode()


def _check_url(url: object, *, allow_private: bool) -> None:
    if not isinstance(url, str) or _URL.fullmatch(url) is None:
        raise BadInput("url must be a URL in ASCII, without spaces.", field="url")
    if len(url) > _MAX_URL_BYTES:
        raise TooLarge(
            f"url has {len(url)} bytes; the limit is {_MAX_URL_BYTES}.",
            field="url",
            limit=_MAX_URL_BYTES,
        )
    try:
        parts, host, port = split_url(url)
    except ValueError as error:
        raise BadInput(f"url cannot be read: {error}.", field="url") from error
    if parts.scheme not in ("http", "https") or not host or not port:
        raise BadInput("url must begin with https:// or http:// and name a host.", field="url")
    if "@" in parts.netloc or parts.fragment:
        raise BadInput("url must have no user, password or fragment.", field="url")
    try:
        address = ip_address(host)
    except ValueError:
        return  # A name. Its addresses are checked before each call.
    if not allow_private and not is_public(address):
        raise BadInput(
            f"url names the address {address}, which is not public; the operator may allow it "
            "(webhook_private).",
            field="url",
        )


def _check_events(events: object) -> None:
    known = ", ".join(EVENTS)
    if not isinstance(events, Sequence) or isinstance(events, str) or not events:
        raise BadInput(f"events must be a list with at least one of {known}.", field="events")
    for name in events:
        if name not in EVENTS:
            raise BadInput(f"{shown(name)} is not an event; there are {known}.", field="events")
    if len(set(events)) < len(events):
        raise BadInput("events names an event twice.", field="events")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, dict):
        raise BadInput("headers must be a dict of text.", field="headers")
    if len(headers) > _MAX_HEADERS:
        raise TooLarge(
            f"There are {len(headers)} headers; the limit is {_MAX_HEADERS}.",
            field="headers",
            limit=_MAX_HEADERS,
        )
    for name, value in headers.items():
        if not isinstance(name, str) or _HEADER_NAME.fullmatch(name) is None:
            raise BadInput(f"{shown(name)} is not the name of a header.", field="headers")
        if _OWN_HEADERS.fullmatch(name) is not None:
            raise BadInput(f"The header {name!r} is set by Penstock.", field="headers")
        if not isinstance(value, str) or _HEADER_VALUE.fullmatch(value) is None:
            raise BadInput(f"The header {name!r} must be printable ASCII.", field="headers")
        if len(value) > _MAX_HEADER_BYTES:
            raise TooLarge(
                f"The header {name!r} has {len(value)} bytes; the limit is {_MAX_HEADER_BYTES}.",
                field="headers",
                limit=_MAX_HEADER_BYTES,
            )
