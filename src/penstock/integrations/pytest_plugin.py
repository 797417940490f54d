"""A pytest plugin: the fixture ``penstock``, which runs an app's handlers inline.

::

    def test_an_order_is_charged(penstock):
        with penstock.inline(app) as q:
            q.publish("orders", {"amount": 250})
            (handled,) = q.run_until_idle()
            assert handled.state is State.DONE
            q.clock.advance(60_000)

``async with penstock.inline(app) as q`` is ``penstock.testing.inline``, with the same verbs to be
awaited. ``penstock.store()`` is an empty store in memory. pytest finds the plugin by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.sync import SyncVerbs
    from penstock.testing.blocking_inline import AnyInline
    from penstock.worker import App

__all__ = ["PenstockFixture", "penstock"]


class PenstockFixture:
    """What the fixture ``penstock`` is; what it opened is closed after the test."""

    def __init__(self, resources: ExitStack) -> None:
        self._resources = resources

    def inline(self, app: App) -> AnyInline:
        """A store in memory with the app's queues: for ``with`` or ``async with``."""
        # Most tests of a program need neither.
        from penstock.testing.blocking_inline import AnyInline  # noqa: PLC0415

        return AnyInline(app)

    def store(self, **options: Any) -> SyncVerbs:
        """An empty store in memory; ``options`` are those of ``penstock.sync.open``."""
        from penstock import sync  # noqa: PLC0415

        return self._resources.enter_context(sync.open("memory://", **options))


@pytest.fixture
def penstock() -> Iterator[PenstockFixture]:
    """Inline workers and stores in memory, for tests of programs that use Penstock."""
    with ExitStack() as resources:
        yield PenstockFixture(resources)
