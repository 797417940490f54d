"""Cron expressions: what they mean, also where the clock changes, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.model.cron import parse_cron
from penstock.testing.laws import law

UTC_ZONE = ZoneInfo("UTC")
BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def slots(text: str, zone: ZoneInfo, start: str, count: int) -> list[str]:
    cron = parse_cron(text, zone)
    at, found = ms(start), []
    for _ in range(count):
        at = cron.after(at)
        found.append(datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    "text, start, expected",
    [
        ("*/5 * * * *", "2026-01-01T00:01", ["2026-01-01 00:05", "2026-01-01 00:10"]),
        ("0 0 1 * *", "2026-01-01T00:00", ["2026-02-01 00:00", "2026-03-01 00:00"]),
        ("30 8-10/2 * * mon-fri", "2026-01-02T09:00", ["2026-01-02 10:30", "2026-01-05 08:30"]),
        ("0 12 * JAN,jul 0", "2026-01-26T00:00", ["2026-07-05 12:00", "2026-07-12 12:00"]),
        ("0 12 * 1,7 7", "2026-01-26T00:00", ["2026-07-05 12:00"]),
        # Either of two restricted days suffices.
        ("0 0 13 * fri", "2026-03-01T00:00", ["2026-03-06 00:00", "2026-03-13 00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 *", "2096-03-01T00:00", ["2104-02-29 00:00"]),
    ],
)
def test_slots_in_utc(text: str, start: str, expected: list[str]) -> None:
    assert slots(text, UTC_ZONE, start, len(expected)) == expected


def test_a_zone() -> None:
    assert slots("0 9 * * *", BERLIN, "2026-03-28T00:00", 2) == [
        "2026-03-28 08:00",
        "2026-03-29 07:00",
    ]


def test_a_skipped_time_fires_once_an_hour_later() -> None:
    # 2026-03-29 in Berlin has no 02:30; 03:30 is 01:30 UTC.
    assert slots("30 2 * * *", BERLIN, "2026-03-28T02:00", 2) == [
        "2026-03-29 01:30",
        "2026-03-30 00:30",
    ]


def test_a_repeated_time_fires_once() -> None:
    # 2026-10-25 in Berlin has 02:30 at 00:30 and at 01:30 UTC.
    assert slots("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == [
        "2026-10-25 00:30",
        "2026-10-26 01:30",
    ]


@pytest.mark.parametrize("start", ["2026-03-29T00:00", "2026-10-25T00:00"])
def test_an_interval_within_the_hour_ignores_changes_of_the_clock(start: str) -> None:
    cron = parse_cron("*/20 * * * *", BERLIN)
    at, found = ms(start), []
    for _ in range(12):
        at = cron.after(at)
        found.append(at)
    assert {later - earlier for earlier, later in pairwise(found)} == {20 * 60_000}


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 */6 * * *", "15 4 1 * mon", "0 0 * * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    st.integers(1_700_000_000_000, 1_900_000_000_000),
)
def test_the_latest_slot_agrees_with_the_next(text: str, zone: str, at: int) -> None:
    cron = parse_cron(text, ZoneInfo(zone))
    slot = cron.after(at)
    assert slot > at
    assert cron.latest(at, slot) == slot
    assert cron.latest(at, slot - 1) is None
    assert cron.latest(slot, slot) is None


@law("E1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5/10 * * * *",
        "*/0 * * * *",
        "9-5 * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "٣ * * * *",
        "* * * mon *",
        "@daily",
        "0 0 30 2 *",
        "* " * 200,
        7,
    ],
)
def test_a_bad_expression_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_cron(text, UTC_ZONE)
    assert caught.value.field == "cron"
