"""Logging and tracing of a process: log lines, request ids, trace context.

A record is always one log line: control characters are escaped, so that input cannot forge a
second line, and text that looks like a credential is masked. Trace context follows W3C's
https://www.w3.org/TR/trace-context/: a ``traceparent`` that breaks a rule is ignored. Metrics
are in ``penstock.server.metrics``.
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

from msgspec import Struct
from msgspec.structs import replace

from penstock.model.limits import shown

__all__ = [
    "RandomBytes",
    "Trace",
    "configure_logging",
    "current_request_id",
    "current_tenant",
    "current_trace",
    "id_bytes",
    "new_request_id",
    "new_span_id",
    "new_trace",
    "parse_traceparent",
    "parse_tracestate",
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
current_trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def new_request_id(source: RandomBytes = id_bytes) -> str:
    """An id for a request that has none."""
    return source(8).hex()


# -- trace context -------------------------------------------------------------------------

_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<rest>-.*)?"
)
_MAX_TRACEPARENT: Final = 512
#: Sampled and random; the other bits have no meaning yet and are not passed on.
_KNOWN_FLAGS: Final = 0x03
_MAX_STATE_MEMBERS: Final = 32
#: The length that every vendor has to propagate; a longer state is dropped as a whole.
_MAX_STATE: Final = 512
_STATE_MEMBER: Final = re.compile(
    r"(?P<key>[a-z0-9][a-z0-9_*/@-]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class Trace(Struct, frozen=True):
    """A position in a trace."""

    trace_id: str
    span_id: str
    flags: int = 0
    state: str = ""
    """Vendor data, as in ``tracestate``."""

    def child(self, span_id: str) -> Trace:
        """The same trace with a child span."""
        return replace(self, span_id=span_id)

    def format(self) -> str:
        """The value of the header ``traceparent``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str, state: str = "") -> Trace | None:
    """The trace in the two headers, or None if ``traceparent`` breaks a rule."""
    if len(text) > _MAX_TRACEPARENT:
        return None
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, rest = found["version"], found["rest"]
    # Later versions may have more fields; version 00 has exactly these, and ff is reserved.
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    flags = int(found["flags"], 16) & _KNOWN_FLAGS
    return Trace(found["trace"], found["span"], flags, parse_tracestate(state))


def parse_tracestate(text: str) -> str:
    """The members of ``tracestate`` without blanks between them; empty if one is malformed."""
    if not text or len(text) > _MAX_STATE:
        return ""
    members = [member for item in text.split(",") if (member := item.strip(" \t"))]
    matches = [_STATE_MEMBER.fullmatch(member) for member in members]
    keys = {match["key"] for match in matches if match is not None}
    # A malformed member or a duplicate key leaves fewer keys than members.
    if len(keys) != len(members) or len(members) > _MAX_STATE_MEMBERS:
        return ""
    return ",".join(members)


def new_span_id(source: RandomBytes = id_bytes) -> str:
    """An id for a span; never zero, which means none."""
    return source(8).hex().replace("0" * 16, "0" * 15 + "1")


def new_trace(source: RandomBytes = id_bytes, *, sampled: bool = True) -> Trace:
    """A new trace."""
    trace_id = source(16).hex().replace("0" * 32, "0" * 31 + "1")
    # Random: all of the id is, so it may be used for sampling.
    return Trace(trace_id, new_span_id(source), 0x02 | sampled)


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
    trace = current_trace.get()
    context: Fields = {
        "request_id": current_request_id.get(),
        "tenant": current_tenant.get(),
        "trace_id": None if trace is None else trace.trace_id,
        "span_id": None if trace is None else trace.span_id,
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
