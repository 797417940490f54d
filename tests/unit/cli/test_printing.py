"""How values look: to people on a terminal, in a pipe, and that neither is obeyed."""

from __future__ import annotations

import io
import json
import sys
import unicodedata
from collections.abc import Callable
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import printing, progress
from penstock.cli.printing import Column, age, amount, moment, preview, safe
from penstock.wire.payloads import Shown, show


@given(st.text(max_size=50))
def test_safe_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = safe(text)
    assert shown == safe(shown)
    for character in shown:
        assert unicodedata.category(character) not in {"Cc", "Cs"}
    assert "\u202e" not in shown


def test_safe_text_keeps_what_can_be_read() -> None:
    assert safe("grün ✓ 日本 \\n") == "grün ✓ 日本 \\n"
    assert safe("a\tb\nc", lines=True) == "a\tb\nc"
    assert safe("a\x1b[0mb\nc", lines=True) == "a\\x1b[0mb\nc"


@pytest.mark.parametrize(
    "duration_ms, text",
    [
        (None, ""),
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (61_000, "1m1s"),
        (3_600_000, "1h"),
        (3_661_000, "1h1m"),
        (90_000_000, "1d1h"),
        (86_400_000 + 60_000, "1d"),
    ],
)
def test_ages(duration_ms: int | None, text: str) -> None:
    assert age(duration_ms) == text


def test_moments_are_utc_to_the_millisecond() -> None:
    assert moment(1_735_689_600_123) == "2025-01-01T00:00:00.123Z"
    assert moment(None) == ""
    assert moment(10**18) == str(10**18)


def test_sizes() -> None:
    assert [amount(size) for size in (0, 1023, 1024, 5 * 1024**2, 3 * 1024**3)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]


@given(st.binary(max_size=300))
def test_a_preview_is_one_short_line(payload: bytes) -> None:
    shown = preview(payload, 40)
    assert len(shown) <= 40
    assert shown.isprintable() or not shown.replace(" ", "").isascii()
    assert "\n" not in shown


# -- tables ------------------------------------------------------------------------------

COLUMNS = (
    Column("queue", itemgetter(0)),
    Column("failed", itemgetter(1), right=True, alarm=True),
    Column("note", itemgetter(2)),
)
ROWS = [("billing", 12_345, "a\x1b[2Jb"), ("audit", 0, None)]


class Terminal(io.TextIOWrapper):
    """Says that it is one."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode()


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Called by the test itself: pytest puts its own stdout in place between the phases."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def sit_down() -> Terminal:
        screen = Terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return sit_down


def test_a_pipe_gets_aligned_text_and_bare_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    printing.table(COLUMNS, ROWS)
    assert capsys.readouterr().out == (
        "queue    failed  note\nbilling   12345  a\\x1b[2Jb\naudit         0\n"
    )


def test_a_terminal_gets_colours_and_grouped_digits(at_terminal: Callable[[], Terminal]) -> None:
    terminal = at_terminal()
    printing.table(COLUMNS, ROWS)
    shown = terminal.text()
    assert "\x1b[1;31m12,345\x1b[0m" in shown
    assert "\\x1b[2Jb" in shown
    assert "\x1b[2J" not in shown


def test_text_that_looks_like_markup_is_text(at_terminal: Callable[[], Terminal]) -> None:
    terminal = at_terminal()
    printing.table((Column("error", str),), ["[red]not red[/red]"])
    assert "[red]not red[/red]" in terminal.text()


def test_a_narrow_terminal_hides_nothing(
    at_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    terminal = at_terminal()
    columns = (
        Column("queue", itemgetter(0)),
        Column("nothing", itemgetter(1)),
        Column("filter", itemgetter(2), wide=True),
    )
    printing.table(columns, [("a-queue-with-a-long-name" * 2, None, "amount >= 100 " * 5)])
    shown = terminal.text()
    assert "a-queue-with-a-long-name" * 2 in shown
    assert shown.count("amount") == 5
    assert "nothing" not in shown


def test_no_color_is_respected(
    at_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = at_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    printing.table(COLUMNS, ROWS)
    assert "\x1b[1;31m" not in terminal.text()


def test_json_is_indented_for_people_only(at_terminal: Callable[[], Terminal]) -> None:
    terminal = at_terminal()
    printing.document({"a": [1, 2]})
    assert json.loads(terminal.text()) == {"a": [1, 2]}
    assert "\n  " in terminal.text()


def test_json_keeps_a_payloads_numbers_as_they_were_written(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """A reader that cares for 1.10 gets 1.10, and one line stays one line."""
    shown: Shown = show(
        b'{\n "price": 1.10,\n "big": 12345678901234567890123 }', "application/json"
    )
    printing.line(shown)
    assert capfdbinary.readouterr().out == (
        b'{"payload":{"price":1.10,"big":12345678901234567890123}}\n'
    )


# -- progress ----------------------------------------------------------------------------


def test_a_bar_is_drawn_on_a_terminal(at_terminal: Callable[[], Terminal]) -> None:
    terminal = at_terminal()
    with progress.meter("publishing", 10) as bar:
        bar(advance=4)
        bar(completed=10, description="published 10")
    assert "published 10" in terminal.text()


def test_nothing_is_drawn_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.meter("publishing", 10) as bar:
        bar(advance=4)
        bar(completed=10, description="published 10")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
