"""Durations: milliseconds and ``timedelta`` mean the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.model.duration import to_ms, to_seconds


@pytest.mark.parametrize(
    "value, ms",
    [
        (timedelta(seconds=1.5), 1_500),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (timedelta(seconds=-1), -1_000),
        (7, 7),
        (None, None),
        ("7", "7"),
    ],
)
def test_milliseconds(value: Any, ms: object) -> None:
    assert to_ms(value) == ms


@pytest.mark.parametrize(
    "value, seconds", [(timedelta(minutes=1), 60), (timedelta(milliseconds=1), 1), (5, 5)]
)
def test_seconds(value: Any, seconds: int) -> None:
    assert to_seconds(value) == seconds
