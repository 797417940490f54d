"""Log lines that cannot be forged and tell no secrets; trace context as the W3C has it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.telemetry import (
    Trace,
    configure_logging,
    current_request_id,
    current_tenant,
    current_trace,
    id_bytes,
    new_request_id,
    new_span_id,
    new_trace,
    parse_traceparent,
    parse_tracestate,
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
    trace = current_trace.set(Trace(TRACE, SPAN))
    try:
        log.info("Took %d.", 5, extra={"queue": "billing", "took_ms": 1.5, "level": "x"})
    finally:
        current_request_id.reset(tokens[0])
        current_tenant.reset(tokens[1])
        current_trace.reset(trace)
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


# -- trace context -------------------------------------------------------------------------


def test_a_traceparent_is_read_and_written() -> None:
    text = f"00-{TRACE}-{SPAN}-01"
    trace = parse_traceparent(text, "vendor=1")
    assert trace == Trace(TRACE, SPAN, 1, "vendor=1")
    assert trace.format() == text


def test_a_child_keeps_the_trace() -> None:
    child = Trace(TRACE, SPAN, 1, "a=b").child("00f067aa0ba902b7")
    assert child == Trace(TRACE, "00f067aa0ba902b7", 1, "a=b")


def test_flags_that_mean_nothing_yet_are_not_passed_on() -> None:
    trace = parse_traceparent(f"00-{TRACE}-{SPAN}-ff")
    assert trace is not None
    assert trace.flags == 3


@pytest.mark.parametrize("rest", ["", "-", "-what-the-future-will-be-like"])
def test_later_versions_are_read_as_far_as_they_are_known(rest: str) -> None:
    trace = parse_traceparent(f"cc-{TRACE}-{SPAN}-01{rest}")
    assert trace == Trace(TRACE, SPAN, 1)
    assert trace.format().startswith("00-")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN.upper()}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{'٣' * 32}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 1000}",
    ],
)
def test_a_traceparent_that_breaks_a_rule_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


@pytest.mark.parametrize(
    "text, read",
    [
        ("", ""),
        ("a=1", "a=1"),
        (" a=1 ,\tb=2,,", "a=1,b=2"),
        ("1@vendor=x y", "1@vendor=x y"),
        ("a=1,a=2", ""),
        ("a", ""),
        ("A=1", ""),
        ("a=", ""),
        ("a=1=2", ""),
        ("a=\x7f", ""),
        ("a=ü", ""),
        (",".join(f"k{n}=v" for n in range(32)), ",".join(f"k{n}=v" for n in range(32))),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        ("a=" + "x" * 600, ""),
    ],
)
def test_a_malformed_tracestate_is_dropped_whole(text: str, read: str) -> None:
    assert parse_tracestate(text) == read
    trace = parse_traceparent(f"00-{TRACE}-{SPAN}-00", text)
    assert trace is not None
    assert trace.state == read


@settings(deadline=None)
@given(st.text())
def test_no_header_is_too_odd(text: str) -> None:
    trace = parse_traceparent(text, text)
    assert trace is None or parse_traceparent(trace.format(), trace.state) == trace


def test_new_ids_come_from_the_source() -> None:
    numbers = count(1)
    source = lambda size: next(numbers).to_bytes(size)  # noqa: E731
    trace = new_trace(source)
    assert trace == Trace(f"{1:032x}", f"{2:016x}", 3)
    assert new_trace(source, sampled=False).flags == 2
    assert new_span_id(source) == f"{5:016x}"
    assert new_request_id(source) == f"{6:016x}"


def test_an_id_is_never_zero() -> None:
    trace = new_trace(bytes)
    assert parse_traceparent(trace.format()) == trace


def test_ids_differ() -> None:
    assert len({id_bytes(8) for _ in range(1000)}) == 1000
