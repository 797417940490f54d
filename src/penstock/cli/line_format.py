r"""Format strings of ``consume`` and ``tail``: ``--format '{topic} {id}\t{payload}'``.

A field is a name in braces; ``{headers.NAME}`` is one header. ``{{`` and ``}}`` are braces, and
``\n``, ``\r``, ``\t``, ``\0`` and ``\\`` stand for one character. A field without a value is empty.
A terminal gets control characters as escapes; a pipe gets the bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeAlias, TypeVar

from penstock.cli.printing import headers, moment, safe
from penstock.errors import BadInput
from penstock.model.delivery import Delivery, LogEntry
from penstock.model.message import HeaderValue, Message

__all__ = ["LineFormat", "delivery_format", "entry_format"]

T = TypeVar("T")
Value: TypeAlias = str | int | bytes | None
Field: TypeAlias = Callable[[T], Value]

_TOKEN: Final = re.compile(r"\\(.?)|(\{\{|\}\})|\{([^{}]*)\}|([{}])", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_HEADER: Final = "headers."

_MESSAGE: Final[Mapping[str, Field[Message]]] = {
    "id": lambda message: message.id,
    "offset": lambda message: message.offset,
    "topic": lambda message: message.topic,
    "key": lambda message: message.key,
    "partition_key": lambda message: message.partition_key,
    "priority": lambda message: message.priority,
    "published_at": lambda message: message.published_at,
    "time": lambda message: moment(message.published_at),
    "size": lambda message: message.size,
    "content_type": lambda message: message.content_type,
    "headers": lambda message: headers(message.headers),
}
_DELIVERY: Final[Mapping[str, Field[Delivery]]] = {
    "payload": lambda delivery: delivery.payload,
    "queue": lambda delivery: delivery.queue,
    "attempts": lambda delivery: delivery.attempts,
    "error": lambda delivery: delivery.error,
    "failed_at": lambda delivery: delivery.failed_at,
    "original_queue": lambda delivery: delivery.original_queue,
}
_ENTRY: Final[Mapping[str, Field[LogEntry]]] = {"payload": lambda entry: entry.payload}


class LineFormat(Generic[T]):
    """A compiled format string."""

    def __init__(
        self, text: str, own: Mapping[str, Field[T]], message: Callable[[T], Message]
    ) -> None:
        """``message`` returns the message of an item, which has further fields."""
        self._parts: list[bytes | Field[T]] = []
        self.fields: set[str] = set()
        end = 0
        for found in _TOKEN.finditer(text):
            self._parts.append(text[end : found.start()].encode())
            self._parts.append(self._part(found, own, message))
            end = found.end()
        self._parts.append(text[end:].encode())

    def __call__(self, item: T) -> bytes:
        """The line of an item, without a line end."""
        line = b"".join(
            part if isinstance(part, bytes) else _to_bytes(part(item)) for part in self._parts
        )
        if sys.stdout.isatty():
            # Messages are untrusted: a terminal must not interpret control characters in them.
            return safe(line.decode(errors="backslashreplace"), lines=True).encode()
        return line

    def _part(
        self, found: re.Match[str], own: Mapping[str, Field[T]], message: Callable[[T], Message]
    ) -> bytes | Field[T]:
        escape, doubled, name, single = found.groups()
        if doubled is not None:
            return doubled[:1].encode()
        if escape is not None:
            if escape not in _ESCAPES:
                raise _refused(rf"\{escape} is no escape; there are \n, \r, \t, \0 and \\.")
            return _ESCAPES[escape].encode()
        if single is not None:
            raise _refused(f"a single {single} at {found.start()}; write {single * 2} for a brace.")
        self.fields.add(name)
        if name in own:
            return own[name]
        field = _message_field(name, own)
        return lambda item: field(message(item))


def delivery_format(text: str) -> LineFormat[Delivery]:
    """For ``consume``; ``BadInput`` if a field is unknown."""
    return LineFormat(text, _DELIVERY, lambda delivery: delivery.message)


def entry_format(text: str) -> LineFormat[LogEntry]:
    """For ``tail``; ``BadInput`` if a field is unknown."""
    return LineFormat(text, _ENTRY, lambda entry: entry.message)


def _message_field(name: str, own: Mapping[str, object]) -> Field[Message]:
    if name in _MESSAGE:
        return _MESSAGE[name]
    header = name.removeprefix(_HEADER)
    if header in ("", name):
        known = ", ".join((*_MESSAGE, "headers.NAME", *own))
        raise _refused(f"there is no field {{{name}}}; there are {known}.")

    def value(message: Message) -> Value:
        return _header_text(message.headers.get(header))

    return value


def _header_text(value: HeaderValue | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _to_bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).encode(errors="backslashreplace")


def _refused(detail: str) -> BadInput:
    return BadInput(f"--format: {detail}", field="format")
