"""An exception as text that a delivery can keep."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from penstock.consume.failure import describe
from penstock.errors import BadInput
from penstock.model.limits import MAX_ERROR_BYTES
from penstock.worker.threads import _carry_out


class Outer:
    class Declined(Exception):
        pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raised(error: ValueError) -> ValueError:
    try:
        raise error
    except ValueError as caught:
        return caught


@pytest.mark.parametrize(
    "error, expected",
    [
        (ValueError("no card"), "ValueError: no card"),
        (ValueError(), "ValueError"),
        (KeyError("amount"), "KeyError: 'amount'"),
        (Outer.Declined("stolen"), "Declined: stolen"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (ValueError("\udcff"), "ValueError: ?"),
    ],
)
def test_the_type_comes_first(error: Exception, expected: str) -> None:
    assert describe(error) == expected


def test_the_advice_of_our_own_errors_is_in_it() -> None:
    assert describe(BadInput("No.")).startswith("BadInput: No. Correct the call")


def test_an_exception_that_cannot_be_shown_is_named() -> None:
    assert describe(Unspeakable()).startswith("Unspeakable")


@pytest.mark.parametrize("letter", ["x", "ü", "€", "😀"])
def test_a_long_text_is_cut_between_letters_and_says_so(letter: str) -> None:
    text = describe(ValueError(letter * MAX_ERROR_BYTES))
    assert MAX_ERROR_BYTES - 8 < len(text.encode()) <= MAX_ERROR_BYTES
    assert text.endswith(f"{letter}…")


def test_the_innermost_frames_come_after() -> None:
    lines = describe(raised(ValueError("x")), frames=5).splitlines()
    assert lines[0] == "ValueError: x"
    assert "in raised" in lines[1]


def test_frames_of_penstock_around_the_program_are_left_out() -> None:
    def program() -> None:
        raise ValueError("x")

    future: Future[object] = Future()
    _carry_out(future, program)
    error = future.exception()
    assert error is not None
    lines = describe(error, frames=5).splitlines()
    assert lines[0] == "ValueError: x"
    assert "in program" in lines[1]


def test_an_exception_that_was_never_raised_has_no_frames() -> None:
    assert describe(ValueError("x"), frames=5) == "ValueError: x"
