"""``--format`` of ``consume`` and ``tail``."""

from __future__ import annotations

import pytest

from penstock.model.delivery import LogEntry
from tests.unit.cli.conftest import Shell

BINARY = bytes(range(256))


@pytest.fixture
def one(sh: Shell) -> Shell:
    """One message with everything, in the queue ``billing``."""
    sh("queue", "create", "billing")
    options = ("-H", "amount=250", "-H", "eu=true", "-H", "name=x y", "--key", "k")
    more = ("--partition-key", "p", "--priority", "3", "--content-type", "text/x")
    sh("publish", "orders", "-", *options, *more, stdin=BINARY)
    return sh


def consumed(sh: Shell, text: str, *options: str) -> bytes:
    return sh("consume", "billing", "--no-ack", "--format", text, *options).stdout_bytes


@pytest.mark.parametrize(
    "text, line",
    [
        ("{topic} {key} {partition_key} {priority}", "orders k p 3"),
        ("{size} {content_type} {headers}", "256 text/x amount=250 eu=true name=x y"),
        ("{headers.amount}|{headers.eu}|{headers.name}|{headers.none}|", "250|true|x y||"),
        (r"a\tb\\n{{topic}}\nc", "a\tb\\n{topic}\nc"),
        ("{queue} {attempts} {error}{failed_at}{original_queue}", "billing 1 "),
        ("é", "é"),
        ("", ""),
    ],
)
def test_fields_of_a_delivery(one: Shell, text: str, line: str) -> None:
    assert consumed(one, text).decode() == line + "\n"


def test_a_payload_goes_through_a_pipe_byte_for_byte(one: Shell) -> None:
    assert consumed(one, "{payload}|{topic}") == BINARY + b"|orders\n"
    assert consumed(one, "{payload}", "--null") == BINARY + b"\0"
    assert one("tail", "--format", "{payload}|").stdout_bytes == BINARY + b"|\n"


def test_a_terminal_gets_escapes(
    one: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli.line_format import entry_format
    from penstock.model.message import Message, MessageId, Offset

    message = Message(MessageId(1), Offset(1), "orders", 0, 0, 0, None, 1, 0)
    entry = LogEntry(message, b"\x1b[2J\xff")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert entry_format(r"{topic}\t{payload}")(entry) == rb"orders" + b"\t" + rb"\x1b[2J\xff"


def test_fields_of_the_log(one: Shell) -> None:
    one("publish", "refunds", "x")
    [first, second] = one("tail", "--format", "{offset}:{id}:{published_at}:{time}").stdout.split()
    offset, identity, at_ms, *_ = first.split(":")
    assert offset == identity
    [entry, _] = one.lines("tail")
    assert int(at_ms) == entry["message"]["published_at"]
    assert first.endswith("Z")
    assert second != first
    lines = one("tail", "--format", "{topic}", "--where", "topic = 'refunds'").stdout
    assert lines == "refunds\n"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{tpoic}", "there is no field {tpoic}"),
        ("{}", "there is no field {}"),
        ("{headers.}", "there is no field {headers.}"),
        ("{topic", "a single { at 0"),
        ("topic}", "a single } at 5"),
        (r"\x", r"\x is no escape"),
        ("topic\\", "is no escape"),
    ],
)
def test_a_bad_format_claims_nothing(one: Shell, text: str, reason: str) -> None:
    for command in (("consume", "billing"), ("tail",)):
        refused = one(*command, "--format", text, code=3)
        assert reason in refused.stderr
        assert refused.stdout == ""
    assert one.json("queue", "show", "billing")["stats"]["grants"] == 0


def test_tail_has_no_fields_of_deliveries(one: Shell) -> None:
    assert "there is no field {attempts}" in one("tail", "--format", "{attempts}", code=3).stderr


def test_what_format_excludes(one: Shell) -> None:
    one("consume", "billing", "--format", "{id}", "--json", code=2)
    one("consume", "billing", "--format", "{id}", "--exec", "true", code=2)
    one("tail", "--format", "{id}", "--json", code=2)
