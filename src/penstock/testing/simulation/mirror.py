"""An engine with the oracle next to it: compares every verb in the turn in which it takes effect.

A verb of the key-value engine takes effect before it first waits, or in slices that exclude other
verbs. So the mirror runs it until it first waits, then runs the whole verb on the oracle, and
compares the replies when the engine's is durable. Both sides see the verbs in the order of turns,
even if calls overlap. Bulk verbs take several turns: while one runs, other verbs wait and time does
not pass.

Both sides assign the same ids and offsets, because the oracle continues where the engine's log
ends. Receipts are translated. A cursor may be anywhere between two entries, and the two sides
choose differently. An assign compares its range with the cursor, so the mirror first moves the
oracle's cursor to the engine's, unless an entry is between them. A store that is closed and
reopened properly keeps its oracle; the other judges check what a crash leaves behind.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from msgspec.structs import replace

from penstock.errors import PenstockError, StoreError
from penstock.model.delivery import Delivery, Receipt, SettleReply
from penstock.model.message import Offset
from penstock.storage.abandoned_claims import AbandonedClaims
from penstock.storage.contract import Engine
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.listener import Listener
from penstock.testing.comparing import Plain, Side, difference
from penstock.testing.model import Oracle
from penstock.testing.simulation.loop import SimulatedLoop

__all__ = ["Comparison", "Mirror", "compare_pictures"]

#: Verbs that take effect in one turn and have equal replies, except for receipts.
_COMPARED: Final = frozenset(
    {
        *("publish", "claim", "settle", "put_queue", "get_queue", "list_queues", "delete_queue"),
        *("pause", "put_topic", "delete_topic", "route", "assign", "join", "leave", "archived"),
        *("cancel", "find"),
    }
)
#: The tenant under which the mirror takes turns.
_MIRROR: Final = "mirror"
#: Verbs that take several turns.
_BULK: Final = frozenset({"replay", "purge", "sweep"})
_MAX_SWEEPS: Final = 10_000


class Comparison:
    """The oracle and the results so far, kept when the store is reopened."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        oracle._store.offset_step = 1
        oracle._store.appending_last = True
        #: Engine receipts to oracle receipts.
        self.receipts: dict[str, Receipt] = {}
        #: Where the oracle and the engine differ.
        self.differences: list[str] = []
        #: False once a bulk verb was interrupted: only the engine knows how far it got.
        self.is_sound = True


class Mirror:
    """A proxy for an engine that compares it with the oracle."""

    def __init__(self, loop: SimulatedLoop, engine: KeyValueEngine, comparison: Comparison) -> None:
        self._loop = loop
        self._engine = engine
        self._comparison = comparison
        self._oracle = comparison.oracle
        self._receipts = comparison.receipts
        # The engine itself releases what a cancelled claim granted; the oracle must do the same.
        self._abandoned = engine._abandoned = _Releases(cast(Engine, self))
        self._alone = asyncio.Lock()
        #: Verbs for which time stands still.
        self._still_verbs = 0

    def __getattr__(self, name: str) -> Any:
        if name == "settle_and_claim":
            return self._settle_and_claim
        if name == "claim":
            return self._claim
        if name in _COMPARED:
            return lambda *args, **kwargs: self._verb(name, args, kwargs)
        if name in _BULK:
            return lambda *args, **kwargs: self._bulk(name, args, kwargs)
        return getattr(self._engine, name)

    @property
    def listener(self) -> Listener:
        """The listener of the engine."""
        return self._engine.listener

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._engine.listener = listener

    # -- one turn ----------------------------------------------------------------------

    async def _verb(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changes = self._engine._core.changes
        while self._alone.locked() or changes.under_way:
            async with self._alone:
                pass
            await changes.over()
        self._oracle._store.next_offset = self._engine._core.log.next_offset
        if name == "assign":
            self._align_cursor(args[0], args[1])
        begun = _Begun(getattr(self._engine, name)(*args, **kwargs))
        if isinstance(begun.error, StoreError):
            raise begun.error  # Closed: nothing was done.
        if name == "archived":
            args = (*args[:2], _at_once(self._oracle.identity(args[0])))
        if name in ("settle", "settle_and_claim"):
            args = (*args[:2], [self._translated(item) for item in args[2]], *args[3:])
        expected = _at_once(getattr(self._oracle, name)(*args, **kwargs))
        try:
            found = await begun
        except StoreError:
            raise
        except PenstockError as error:
            self._compare(name, args, expected, type(error).__name__)
            raise
        except asyncio.CancelledError:
            granted = expected[1] if name == "settle_and_claim" else expected
            if name in ("claim", "settle_and_claim") and isinstance(granted, list):
                self._pair(granted, self._abandoned.last)
            raise
        self._answered(name, args, expected, found)
        return found

    async def _settle_and_claim(self, *args: Any) -> Any:
        if len(args[2]) <= self._engine._core.step_size:
            # The engine claims when it has appended the dead-letter copies of what it settled,
            # which excludes other verbs but may take several turns.
            async with self._still():
                return await self._verb("settle_and_claim", args, {})
        # The engine makes two calls of it, and other verbs may run between them.
        return await self._verb("settle", args[:3], {}), await self._verb(
            "claim", (*args[:2], *args[3:]), {}
        )

    def _answered(self, name: str, args: Any, expected: Any, found: Any) -> None:
        if name == "settle_and_claim" and isinstance(expected, tuple):
            for verb, theirs, ours in zip(("settle", "claim"), expected, found, strict=True):
                self._answered(verb, args, theirs, ours)
            return
        if name == "claim" and isinstance(expected, list):
            self._compare(name, args, _without_receipts(expected), _without_receipts(found))
            self._pair(expected, found)
            return
        offsets = self._offsets(args[0])
        self._compare(name, args, _plain(expected, offsets), _plain(found, offsets))

    def _pair(self, expected: Sequence[Delivery], found: Sequence[Delivery]) -> None:
        """Remember which receipts belong together."""
        for theirs, ours in zip(expected, found, strict=False):
            self._receipts[ours.receipt] = theirs.receipt

    def _align_cursor(self, tenant: str, queue: str) -> None:
        """Move the oracle's cursor to the engine's if no log entry is between the two."""
        owner = self._engine._core.tenants.get(tenant)
        ours = owner.queues.get(queue) if owner is not None else None
        theirs = self._oracle._store.queues.get((tenant, queue))
        if ours is None or theirs is None or ours.cursor is None or theirs.cursor is None:
            return
        offsets = self._offsets(tenant)
        if bisect_left(offsets, ours.cursor) == bisect_left(offsets, theirs.cursor):
            theirs.cursor = Offset(ours.cursor)

    def _offsets(self, tenant: str) -> list[Offset]:
        """The offsets of the tenant's log entries, ascending."""
        return [entry.message.offset for entry in self._oracle._store.entries_of(tenant)]

    def _translated(self, settlement: Any) -> Any:
        receipt = self._receipts.get(settlement.receipt, Receipt("unknown"))
        return replace(settlement, receipt=receipt)

    # -- several turns -----------------------------------------------------------------

    async def _bulk(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async with self._alone, self._still():
            await self._engine._core.changes.over()
            self._oracle._store.next_offset = self._engine._core.log.next_offset
            if name == "sweep":
                # With a limit, the order of the copies of several queues is not defined.
                args = (10_000,)
                begun = _Begun(self._swept(self._engine.sweep, args))
            else:
                begun = _Begun(getattr(self._engine, name)(*args, **kwargs))
            if isinstance(begun.error, StoreError):
                raise begun.error  # Closed: nothing was done.
            if name == "sweep":
                _at_once(self._swept(self._oracle.sweep, args))
                return await self._whole(begun)
            expected = _at_once(getattr(self._oracle, name)(*args, **kwargs))
            try:
                found = await self._whole(begun)
            except StoreError:
                raise
            except PenstockError as error:
                self._compare(name, args, expected, type(error).__name__)
                raise
            limit = args[4]
            self._compare(name, args, _counts(expected, limit), _counts(found, limit))
            return found

    async def _claim(self, *args: Any) -> Any:
        """A claim takes one turn, with a selector several."""
        if args[-1] is None:
            return await self._verb("claim", args, {})
        async with self._alone, self._still():
            await self._engine._core.changes.over()
            end = self._oracle._store.next_offset = self._engine._core.log.next_offset
            begun = _Begun(self._engine.claim(*args))
            if isinstance(begun.error, StoreError):
                raise begun.error  # Closed: nothing was done.
            expected = _at_once(self._oracle.claim(*args))
            try:
                found = await self._whole(begun)
            except StoreError:
                raise
            except PenstockError as error:
                self._compare("claim", args, expected, type(error).__name__)
                raise
            if any(delivery.message.id >= end for delivery in found):
                # A later turn granted dead-letter copies that an earlier one had appended.
                self._comparison.is_sound = False
            self._answered("claim", args, expected, found)
            return found

    async def _whole(self, begun: _Begun) -> Any:
        """Wait for the end of a verb of several turns; if it is interrupted, comparing ends."""
        try:
            return await begun
        except (StoreError, asyncio.CancelledError):
            self._comparison.is_sound = False
            raise

    @asynccontextmanager
    async def _still(self) -> Any:
        """Time stands still, so that the engine's slices all have the time of the oracle's turn."""
        self._still_verbs += 1
        self._loop.frozen = True
        try:
            # A pause that earlier slices made necessary is over with the second turn. Slices cause
            # none while time stands still.
            for _ in range(2):
                await self._engine.turns.take(_MIRROR)
            yield
        finally:
            self._still_verbs -= 1
            self._loop.frozen = self._still_verbs > 0

    @staticmethod
    async def _swept(sweep: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> Any:
        """Sweep until nothing is left: the engine decides how much one call does."""
        for _ in range(_MAX_SWEEPS):
            reply = await sweep(*args)
            if not reply.more:
                return reply
        raise AssertionError("the sweep never ends")

    def _compare(self, name: str, args: Any, expected: Plain, found: Plain) -> None:
        where = difference(expected, found)
        if where is not None and self._comparison.is_sound:
            self._comparison.differences.append(f"{name}{args!r} differs from the oracle: {where}")


class _Releases(AbandonedClaims):
    """Releases that the oracle sees too."""

    #: What the last cancelled claim was granted.
    last: Sequence[Delivery] = ()

    def release(self, tenant: str, queue: str, deliveries: Sequence[Delivery]) -> None:
        self.last = deliveries
        super().release(tenant, queue, deliveries)


class _Begun:
    """A coroutine that was run until it first waits; awaiting it continues from there."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._waits: Any = None
        self._answer: Any = None
        self._over = False
        self.error: PenstockError | None = None
        try:
            self._waits = coroutine.send(None)
        except StopIteration as end:
            self._answer, self._over = end.value, True
        except PenstockError as error:
            self.error, self._over = error, True

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.error is not None:
            raise self.error
        if self._over:
            return self._answer
        waits = self._waits
        while True:
            try:
                try:
                    sent = yield waits
                except BaseException as error:  # noqa: BLE001  (a cancellation, passed on)
                    waits = self._coroutine.throw(error)
                else:
                    waits = self._coroutine.send(sent)
            except StopIteration as end:
                return end.value


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits; an error is returned as its name."""
    begun = _Begun(coroutine)
    if begun.error is not None:
        return type(begun.error).__name__
    assert begun._over, "the oracle must not wait"
    return begun._answer


def _without_receipts(deliveries: Sequence[Delivery]) -> Plain:
    return [replace(delivery, receipt=Receipt("")) for delivery in deliveries]


def _plain(answer: Any, offsets: list[Offset]) -> Plain:
    """A reply without what the contract leaves to the engine.

    If no entry is between two offsets, a cursor may be at either.
    """
    if isinstance(answer, tuple):
        return [_plain(item, offsets) for item in answer]
    cursor = getattr(answer, "cursor", None)
    if cursor is not None:
        return replace(answer, cursor=bisect_left(offsets, cursor))
    if isinstance(answer, SettleReply):
        outcomes = [(item.verdict, item.state, item.until) for item in answer.outcomes]
        return outcomes, answer.published, answer.repeated
    if hasattr(answer, "durability"):
        return replace(answer, durability="")
    return answer


def _counts(reply: Any, limit: int) -> Plain:
    if not hasattr(reply, "sample"):
        return getattr(reply, "count", reply)
    sample = [shown.message.id for shown in reply.sample]
    return reply.count, sample, reply.skipped if reply.count < limit else None


async def compare_pictures(
    oracle: Oracle, engine: KeyValueEngine, tenants: Sequence[str]
) -> str | None:
    """The first difference between the observable states of the two."""
    for tenant in tenants:
        pictures: list[Plain] = []
        for side in (Side(oracle), Side(engine)):
            page = await side.engine.read_log(tenant, 0, 1_000_000)  # type: ignore[arg-type]
            side.offsets(tenant).extend(entry.message.offset for entry in page.entries)
            pictures.append(await side.picture(tenant, scan=True))
        where = difference(pictures[0], pictures[1], tenant)
        if where is not None:
            return where
    return None
