"""Which values of a register a reader may see."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.registers import Register


def read(register: Register[str]) -> list[str]:
    return register.possible(register.now(), register.now())


def test_the_last_of_several_answered_writes() -> None:
    register = Register("a")
    assert read(register) == ["a"]
    for value in ("b", "c"):
        with register.setting(value):
            pass
    assert read(register) == ["c"]


def test_a_write_that_overlaps_the_reader_or_another_write() -> None:
    register = Register("a")
    begun = register.now()
    with register.setting("b"):
        assert read(register) == ["a", "b"]
        with register.setting("c"):
            pass
    assert read(register) == ["b", "c"]
    assert register.possible(begun, register.now()) == ["a", "b", "c"]


def test_a_write_that_failed_may_be_seen_from_then_on() -> None:
    register = Register("a")
    with pytest.raises(ValueError, match="lost"), register.setting("b"):
        raise ValueError("lost")
    with register.setting("c"):
        pass
    assert read(register) == ["b", "c"]
