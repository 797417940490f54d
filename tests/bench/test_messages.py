"""Messages that prove their identity."""

from __future__ import annotations

import pytest

from bench.messages import SIZE, body, check


def test_a_message_tells_its_number_and_time() -> None:
    first, second = body(7), body(8)
    assert len(first) == SIZE
    assert check(first)[0] == 7
    assert check(second)[0] == 8
    assert check(first)[1] <= check(second)[1]


def test_a_message_fits_into_json() -> None:
    assert body(0).isascii()
    assert not {b'"', b"\\"} & {bytes([one]) for one in body(0)}


@pytest.mark.parametrize("at", [0, 20, 35, 41, SIZE - 1])
def test_one_changed_byte_is_damage(at: int) -> None:
    message = bytearray(body(7))
    message[at] = ord("x") if message[at] != ord("x") else ord("y")
    with pytest.raises(ValueError, match="damaged"):
        check(bytes(message))


@pytest.mark.parametrize("message", [b"", body(7)[:-1], body(7) + b"x"])
def test_another_size_is_damage(message: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        check(message)
