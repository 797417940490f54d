from __future__ import annotations

import pytest

from penstock.model.delivery import Outcome, QueueStats, Receipt, Verdict
from penstock.model.message import NewMessage, Offset


@pytest.mark.parametrize("verdict", Verdict)
def test_only_ok_is_ok(verdict: Verdict) -> None:
    assert Outcome(Receipt("r"), verdict).ok == (verdict is Verdict.OK)


def test_depth_is_what_is_live() -> None:
    stats = QueueStats(
        delayed=1,
        available=20,
        in_flight=300,
        done=4000,
        failed=50_000,
        expired=600_000,
        in_flight_by_consumer={},
        watermark=Offset(-1),
        lag=0,
    )
    assert stats.depth == 321


def test_values_are_frozen() -> None:
    message = NewMessage(b"x")
    with pytest.raises(AttributeError):
        message.payload = b"y"  # type: ignore[misc]
