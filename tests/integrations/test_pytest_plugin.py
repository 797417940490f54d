"""The pytest plugin, in a run of pytest of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

_TESTS = """
import penstock
from penstock import State

app = penstock.App()


@app.worker("billing", filter="topic = 'orders'", retry_ms=60_000)
def charge(order: dict) -> str:
    if order["amount"] < 0:
        raise ValueError("negative")
    return f"charged {order['amount']}"


def test_without_a_loop(penstock):
    with penstock.inline(app) as q:
        q.publish("orders", {"amount": 5})
        (handled,) = q.run_until_idle()
        assert handled.state is State.DONE
        assert handled.result == b"charged 5"


def test_the_clock(penstock):
    with penstock.inline(app) as q:
        q.publish("orders", {"amount": -1})
        assert q.run_one("billing").state is State.DELAYED
        assert q.run_one("billing") is None
        q.clock.advance(60_000)
        assert q.run_one("billing").attempts == 2


async def test_with_a_loop(penstock):
    async with penstock.inline(app) as q:
        await q.publish("orders", {"amount": 5})
        assert len(await q.run_until_idle()) == 1


def test_a_store(penstock):
    q = penstock.store()
    q.create_queue("billing")
    assert penstock.store().queues() == ()
"""


def test_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_app=_TESTS)
    # The installed package registers the plugin.
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-o", "asyncio_mode=auto")
    result.assert_outcomes(passed=4)
