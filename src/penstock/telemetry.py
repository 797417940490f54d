"""Logging of a process: log lines and request ids.

A record is always one log line: control characters are escaped, so that input cannot forge a
second line, and text that looks like a credential is masked. Lines inside a span have its
ids (``penstock.tracing``). Metrics are in ``penstock.server.metrics``.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal, TextIO, TypeAlias

from penstock.model.limits import shown
from penstock.tracing import current_ids

__all__ = [
    "RandomBytes",
    "configure_logging",
    "current_request_id",
    "current_tenant",
    "id_bytes",
    "new_request_id",
]

#: Returns that many random bytes.
RandomBytes: TypeAlias = Callable[[int], bytes]


def id_bytes(count: int) -> bytes:
    """Random bytes for ids, which have to be unique and need no secrecy."""
    # The default source of randomness for ids; keys have a source of their own.
    return random.randbytes(count)  # noqa: S311, TID251


# -- the context of a log line -------------------------------------------------------------

current_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
current_tenant: ContextVar[str | None] = ContextVar("tenant", default=None)


def new_request_id(source: RandomBytes = id_bytes) -> str:
    """An id for a request that has none."""
    return source(8).hex()


# -- log lines -----------------------------------------------------------------------------

LogFormat: TypeAlias = Literal["json", "text"]
Fields: TypeAlias = dict[str, object]

#: A field or message is truncated to this many characters, a traceback to ten times as many.
_MAX_TEXT: Final = 8_000
#: Larger numbers, infinity and NaN are text in JSON.
_MAX_NUMBER: Final = 2**63
_MASK: Final = "***"
#: The standard attributes of a record; all others come from ``extra``.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_SECRET_NAMES: Final = frozenset(
    {
        "api_key",
        "authorization",
        "cookie",
        "credential",
        "jwt_secret",
        "password",
        "secret",
        "token",
    }
)
#: API keys keep their id, which identifies the owner; all other credentials are masked.
_SECRETS: Final = (
    (re.compile(r"\b(psk_[A-Za-z0-9]+_)[A-Za-z0-9_-]+"), rf"\1{_MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_=-]*\.[A-Za-z0-9_=-]*(\.[A-Za-z0-9_=-]*)?"), _MASK),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]+"), rf"\1 {_MASK}"),
    (re.compile(r"(?<=://)([^/@:\s]*):[^/\s]*(?=@)"), rf"\1:{_MASK}"),
)


def configure_logging(
    format: LogFormat = "text", level: str = "info", stream: TextIO | None = None
) -> None:
    """Write the log of the whole process to ``stream`` (stderr), one line per record.

    Existing handlers are replaced; calling it again changes the settings.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Json() if format == "json" else _Text())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())


class _Json(logging.Formatter):
    """One JSON object per line, in ASCII: no character can end the line early."""

    def format(self, record: logging.LogRecord) -> str:
        line: Fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        trace = _traceback(self, record)
        if trace:
            line["exception"] = trace
        # Standard fields win: an extra field of the same name does not replace one.
        return json.dumps(line | {k: v for k, v in _fields(record).items() if k not in line})


class _Text(logging.Formatter):
    """For people: time, level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        message = f"{record.levelname:<7} {record.name}: {_clean(record.getMessage())}{fields}"
        lines = [f"{_time(record)} {_escaped(message)}"]
        # Indented, so that no line can be mistaken for a record of its own.
        lines += [f"    {_escaped(line)}" for line in _traceback(self, record).split("\n") if line]
        return "\n".join(lines)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> Fields:
    """The context of the line, and the fields of ``extra``."""
    trace_id, span_id = current_ids() or (None, None)
    context: Fields = {
        "request_id": current_request_id.get(),
        "tenant": current_tenant.get(),
        "trace_id": trace_id,
        "span_id": span_id,
    }
    extra = {name: value for name, value in vars(record).items() if name not in _OWN}
    return {
        name: _MASK if name.lower() in _SECRET_NAMES else _plain(value)
        for name, value in (context | extra).items()
        if value is not None
    }


def _plain(value: object) -> object:
    """Numbers that JSON can represent are unchanged, anything else becomes clean text."""
    if isinstance(value, int | float) and -_MAX_NUMBER < value < _MAX_NUMBER:
        return value
    return _clean(value if isinstance(value, str) else shown(value))


def _clean(text: str, most: int = _MAX_TEXT) -> str:
    # Truncate first: masking scans every character.
    text = text if len(text) <= most else text[: most - 1] + "…"
    for pattern, mask in _SECRETS:
        text = pattern.sub(mask, text)
    return text


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return _clean(formatter.formatException(record.exc_info), 10 * _MAX_TEXT)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
