"""Failures by error: what belongs together, counts, bounds, refusals."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import BadFilter, BadInput, UnknownQueue
from penstock.model.failures import NO_ERROR, error_pattern
from penstock.testing.laws import law

_TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 12, in handle
    raise ValueError(message)
ValueError: no order 17
  which has a second line"""


@pytest.mark.parametrize(
    "error, pattern",
    [
        (None, NO_ERROR),
        (" \n", NO_ERROR),
        ("card 123 declined", "card <n> declined"),
        ("took 1.5 s, 3,000 bytes", "took <n> s, <n> bytes"),
        ("user 'anna' is not \"here\"", "user <text> is not <text>"),
        ("no f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "no <id>"),
        ("at 0x7f3a in deadbeef01", "at <n> in <id>"),
        ("first line\nsecond 5", "first line"),
        ("feedback accepted", "feedback accepted"),
        (_TRACEBACK, "ValueError: no order <n>"),
        (
            f"{_TRACEBACK}\n\nDuring handling:\n\n{_TRACEBACK[:35]}\n  at x\nKeyError: 7",
            "KeyError: <n>",
        ),
        (_TRACEBACK[:60], "Traceback (most recent call last):"),
        ("x" * 500, "x" * 200),
    ],
)
def test_what_varies_is_left_out(error, pattern):
    assert error_pattern(error) == pattern


@law("D1")
async def test_failures_are_grouped_counted_and_named_for_a_replay():
    async with penstock.open("memory://") as q:
        await q.create_queue("work", max_attempts=1)
        for number in range(7):
            await q.publish("orders", b"x", headers={"n": number})
        for number, delivery in enumerate(await q.claim("work", limit=7)):
            await q.reject(delivery, None if number == 6 else f"error {number % 2}{number}")
        found = await q.failures("work")
        assert [(group.error, group.count) for group in found.groups] == [
            ("error <n>", 6),
            (NO_ERROR, 1),
        ]
        assert (found.scanned, found.more) == (7, False)
        first = found.groups[0]
        assert len(first.sample) == 3
        assert first.ids == ()
        assert first.first_at <= first.last_at
        (only,) = (await q.failures("work", fingerprint=first.fingerprint)).groups
        assert len(only.ids) == 6
        assert (await q.replay("work", ids=only.ids)).count == 6
        (rest,) = (await q.failures("work")).groups
        assert rest.error == NO_ERROR
        assert (await q.failures("work", where="n < 6")).groups == ()
        part = await q.failures("work", limit=1)
        assert part.scanned == 1


@law("E1")
async def test_bad_calls_are_refused():
    async with penstock.open("memory://") as q:
        await q.create_queue("work")
        for call, error in (
            ({"queue": "none"}, UnknownQueue),
            ({"queue": "work.dlq"}, BadInput),
            ({"queue": "work", "limit": 0}, BadInput),
            ({"queue": "work", "limit": 10**9}, BadInput),
            ({"queue": "work", "where": "n >"}, BadFilter),
            ({"queue": "work", "fingerprint": "x"}, BadInput),
            ({"queue": "work", "fingerprint": 5}, BadInput),
        ):
            with pytest.raises(error):
                await q.failures(**call)
