"""Log lines that cannot be forged and tell no secrets, and the ids in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from penstock.telemetry import (
    configure_logging,
    current_request_id,
    current_tenant,
    id_bytes,
    new_request_id,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"

log = logging.getLogger("penstock.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What is logged; the root logger is as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # The test runner's handlers are put aside, not closed.
    root.handlers = []
    yield io.StringIO()
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# -- log lines -----------------------------------------------------------------------------


def test_a_json_line_says_when_what_and_for_whom(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    tokens = [current_request_id.set("r-1"), current_tenant.set("acme")]
    span = NonRecordingSpan(SpanContext(int(TRACE, 16), int(SPAN, 16), is_remote=False))
    try:
        with use_span(span):
            log.info("Took %d.", 5, extra={"queue": "billing", "took_ms": 1.5, "level": "x"})
    finally:
        current_request_id.reset(tokens[0])
        current_tenant.reset(tokens[1])
    log.debug("Nobody hears this.")
    (line,) = lines(stream)
    time = line.pop("time")
    assert isinstance(time, str)
    assert time.endswith("Z")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert line == {
        "level": "info",
        "logger": "penstock.test",
        "message": "Took 5.",
        "queue": "billing",
        "took_ms": 1.5,
        "request_id": "r-1",
        "tenant": "acme",
        "trace_id": TRACE,
        "span_id": SPAN,
    }


def test_an_exception_is_part_of_its_line(stream: io.StringIO) -> None:
    configure_logging("json", "error", stream)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("Failed.")
    (line,) = lines(stream)
    assert "ValueError: first\nsecond" in str(line["exception"])


def test_text_lines_are_for_people(stream: io.StringIO) -> None:
    configure_logging("text", "info", stream)
    log.warning("Grüße %s", "x", extra={"queue": "q"})
    assert stream.getvalue().endswith("Z WARNING penstock.test: Grüße x  queue=q\n")


def test_a_traceback_in_text_is_indented(stream: io.StringIO) -> None:
    configure_logging("text", "info", stream)
    try:
        raise ValueError("first\n2026-01-01T00:00:00.000Z INFO    forged\rforged")
    except ValueError:
        log.exception("Failed.")
    head, *rest = stream.getvalue().splitlines()
    assert head.endswith("penstock.test: Failed.")
    assert rest
    assert all(line.startswith("    ") for line in rest)


@pytest.mark.parametrize("format", ["json", "text"])
@settings(deadline=None)
@given(text=st.text(), name=st.sampled_from(["field", "other"]))
def test_whatever_is_logged_is_one_line(format: str, text: str, name: str) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    stream = io.StringIO()
    try:
        configure_logging("json" if format == "json" else "text", "info", stream)
        log.info("%s", text, extra={name: text})
    finally:
        root.handlers = handlers
    root.setLevel(level)
    written = stream.getvalue()
    assert written.endswith("\n")
    # str.splitlines knows every character that any viewer takes for the end of a line.
    assert len(written.splitlines()) == 1
    assert written[:-1].isprintable()


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**5000, b"\xff", object(), [1]],
    ids=lambda value: type(value).__name__,
)
def test_any_value_of_a_field_is_valid_json(stream: io.StringIO, value: object) -> None:
    configure_logging("json", "info", stream)
    log.info("Odd.", extra={"value": value})
    (line,) = lines(stream)
    assert isinstance(line["value"], str)


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize(
    "told",
    [
        "Authorization: Bearer hunter2",
        "bearer   hunter2",
        "Basic hunter2",
        "psk_abcdef_hunter2-_hunter2",
        "eyJhbGciOiJIUzI1NiJ9.hunter2.hunter2",
        "postgresql://me:hunter2@host/db",
    ],
)
def test_credentials_are_masked(stream: io.StringIO, format: str, told: str) -> None:
    configure_logging("json" if format == "json" else "text", "info", stream)
    log.info("It said %s here.", told, extra={"value": told, "headers": {"a": told}})
    try:
        raise ValueError(told)
    except ValueError:
        log.exception("Failed.")
    assert "hunter2" not in stream.getvalue()
    assert "***" in stream.getvalue()
    assert "here." in stream.getvalue()


def test_fields_that_are_named_like_secrets_are_masked(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    log.info("Came in.", extra={"Authorization": "hunter2", "credential": "hunter2"})
    assert "hunter2" not in stream.getvalue()


def test_long_texts_are_cut(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    log.info("%s", "x" * 1_000_000)
    assert len(stream.getvalue()) < 10_000


def test_configuring_again_replaces(stream: io.StringIO) -> None:
    configure_logging("json", "info", io.StringIO())
    configure_logging("text", "error", stream)
    log.info("Too quiet.")
    log.error("Loud.")
    assert stream.getvalue().count("\n") == 1


# -- ids -----------------------------------------------------------------------------------


def test_new_ids_come_from_the_source() -> None:
    assert new_request_id((6).to_bytes) == f"{6:016x}"


def test_ids_differ() -> None:
    assert len({id_bytes(8) for _ in range(1000)}) == 1000
