"""Simulates the key-value engine: one store on a disk that fails, with restarts.

Everything runs on one ``SimulatedLoop``. The committer's thread is replaced by ``SimulatedDisk``:
a batch reaches the disk at one moment that the seed picks, and the engine is notified at a later
one, so a crash falls before, between or after the two. Bulk verbs have slices of a few deliveries,
with other verbs in between. So do long changes, but these exclude other verbs. Half of the
publishes evaluate their filters in slices, as large ones do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker import Broker, BrokerOptions
from penstock.errors import PenstockError, StoreError
from penstock.filters.batch_routes import INLINE_EVALUATIONS
from penstock.keepers import CatchUp, Keeper, Keepers, Pass, Sweep
from penstock.model.limits import DLQ_SUFFIX, Limits
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.core import SLICE
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import SPEC_PREFIX, QueueKeys
from penstock.storage.keyvalue.log import SEGMENT_ENTRIES
from penstock.storage.keyvalue.long_changes import STEP
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.records import KEYED_BY_NUMBER, decode_spec
from penstock.storage.keyvalue.writer import Write, Written
from penstock.testing.faults import FaultyAdapter
from penstock.testing.model import Oracle
from penstock.testing.simulation.clients import Client
from penstock.testing.simulation.judges import (
    drain,
    finish_releases,
    judge_copies,
    judge_events,
    judge_history,
    judge_same,
    judge_store,
    picture,
)
from penstock.testing.simulation.loop import Deadlock, Endless, SimulatedClock, SimulatedLoop
from penstock.testing.simulation.mirror import Comparison, Mirror, compare_pictures
from penstock.testing.simulation.policies import TENANTS, create_first_queues, default_policy
from penstock.testing.simulation.program import Fault, Program
from penstock.testing.simulation.report import Outcome, Simulation
from penstock.testing.simulation.world import World

if TYPE_CHECKING:
    from penstock.testing.simulation.local_stores import LocalStore

__all__ = ["SIMULATION", "SimulatedDisk", "orphans", "run"]

#: A power loss keeps a prefix of the unsynced writes; a kill keeps all writes; a restart closes the
#: store properly. After a failed sync or a full disk the store is killed and reopened.
FAULT_KINDS: Final = ("power_loss", "kill", "restart", "failed_sync", "full_disk")
#: How often to check whether a store has noticed its failed disk, and the most checks.
_NOTICE_S: Final = 0.05
_NOTICES: Final = 200
#: One seed in this many runs alongside the oracle, with only orderly restarts as faults.
MIRRORED_ONE_IN: Final = 2
_NEVER_MS: Final = 10**13
#: The second byte of record types that have a third byte.
_OWN: Final = 0x07
#: Errors that a keeper may have while disks fail.
_EXCUSED: Final = ("CommitFailed", "StoreClosed", "StoreUnavailable")


#: A disk that fails, in memory or real.
FailingAdapter: TypeAlias = "FaultyAdapter | LocalStore"


class SimulatedDisk:
    """Writes batches when the seed decides, until the power is lost."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.dead = False

    def submit(self, write: Write, written: Written, size: int) -> None:
        self._loop.arrive(self._write, write, written)

    def _write(self, write: Write, written: Written) -> None:
        if not self.dead:
            self._loop.arrive(self._written, written, write())

    def _written(self, written: Written, error: Exception | None) -> None:
        if not self.dead:
            written(error)

    async def close(self) -> None:
        return


class _WatchedEngine(KeyValueEngine):
    """Reports verbs that begin, or continue, in the middle of a long change."""

    violations: list[str]

    def _begin(self) -> int:
        self._check_alone()
        return super()._begin()

    async def _next_slice(self, tenant: str = "", queue: Queue | None = None) -> None:
        await super()._next_slice(tenant, queue)
        self._check_alone()

    def _check_alone(self) -> None:
        if self._changes.under_way:
            self.violations.append("S3: a verb ran in the middle of a long change")


class _Seldom:
    """A keeper with longer pauses, because hours of virtual time would be thousands of passes."""

    every_ms = 10_000

    def __init__(self, keeper: Keeper) -> None:
        self.name = keeper.name
        self._keeper = keeper

    async def run(self) -> Pass:
        return await self._keeper.run()


class _Store:
    """One opening of the store: engine, broker, keepers."""

    def __init__(self, disk: SimulatedDisk, broker: Broker, keepers: Keepers) -> None:
        self.disk = disk
        self.broker = broker
        self.keepers = keepers

    def failures(self) -> list[str]:
        """Errors of keepers that a failing disk does not explain."""
        return [
            f"keeper {report.name}: {report.last_error}"
            for report in self.keepers.reports()
            if report.last_error is not None and not report.last_error.startswith(_EXCUSED)
        ]


class _Session:
    """One run of one program."""

    def __init__(
        self,
        program: Program,
        loop: SimulatedLoop,
        disk: Callable[[SimulatedLoop], SimulatedDisk],
        adapter: Callable[[int], FailingAdapter],
    ) -> None:
        self._program = program
        mirrored = program.seed % MIRRORED_ONE_IN == 0
        self._loop = loop
        self._new_disk = disk
        self._random = Random(f"store {program.seed}")
        self.clock = SimulatedClock(loop)
        retention_ms = self._random.choice((1_000, 60_000, 10**9))
        self._options = EngineOptions(
            clock=self.clock,
            jitter=lambda ceiling_ms: ceiling_ms // 2,
            token=lambda: self._random.getrandbits(62),
            random=Random(f"identity {program.seed}").randbytes,
            # An engine may keep the log longer than the oracle.
            limits=Limits(log_retention_ms=_NEVER_MS if mirrored else retention_ms),
            archive=not mirrored and self._random.random() < 0.3,
            default_policy=default_policy(program.seed),
        )
        self._slice_size = SLICE if mirrored else self._random.choice((1, 2, 3))
        #: ``slice_s`` is 0: every change of more than one step is a long one.
        self._step_size = self._random.choice((1, 2, STEP))
        self._segment_entries = 4 if self._step_size == 2 else SEGMENT_ENTRIES
        # The mirror compares the part of a verb before its first wait.
        ahead = not mirrored and self._random.random() < 0.5
        self._inline_evaluations = 0 if ahead else INLINE_EVALUATIONS
        self._comparison = Comparison(Oracle(self._options)) if mirrored else None
        self._adapter = adapter(program.seed)
        self._store: _Store | None = None
        self._striking: set[asyncio.Task[None]] = set()
        self._left = list(program.faults)
        self.faults: Counter[str] = Counter()
        self.world = World(lambda _: self._up.broker, self.clock)
        self.world.on_step = self._on_step

    @property
    def _up(self) -> _Store:
        assert self._store is not None
        return self._store

    # -- the run -----------------------------------------------------------------------

    async def run(self) -> list[str]:
        """Run the program to its end. Returns the violations."""
        await self._open()
        await create_first_queues(self._up.broker)
        clients = [
            self._loop.create_task(Client(self.world, number, steps).run(), name=f"client {number}")
            for number, steps in enumerate(self._program.clients)
        ]
        await asyncio.wait(clients)
        for client in clients:
            if (error := client.exception()) is not None:
                raise error
        while self._striking:
            await asyncio.wait(self._striking)
        try:
            found = await self._judge()
        except PenstockError as error:
            found = [f"the store cannot be judged: {error!r}: {error.detail}"]
        except AssertionError as error:
            # What the store shows is not even consistent, for example a delivery without an entry.
            found = [f"the store cannot be judged: {error}"]
        return [*self.world.violations, *found, *self._loop.errors]

    async def _judge(self) -> list[str]:
        broker = self._up.broker
        await finish_releases(broker)
        found = await drain(broker, self.world.history, self.clock)
        found += await judge_history(broker, self.world.history, _grant_number)
        found += await judge_copies(broker)
        found += await judge_events(broker)
        await self._up.keepers.stop()
        found += await self.world.judge_replies(broker)
        if self._comparison is not None:
            found += await self._compare(self._comparison)
        before = [await picture(broker.for_tenant(tenant)) for tenant in TENANTS]
        for tenant in TENANTS:
            found += await judge_store(broker.for_tenant(tenant), self.clock)
        await self._close()
        self._adapter = self._adapter.process_loss()
        await self._open(keepers=False)
        for tenant, seen in zip(TENANTS, before, strict=True):
            after = await picture(self._up.broker.for_tenant(tenant))
            found += judge_same(seen, after, "reopening")
        await self._close()
        return found + orphans(self._adapter.contents())

    async def _compare(self, comparison: Comparison) -> list[str]:
        if comparison.is_sound and not comparison.differences:
            # Both sides are asked how old things are; an engine may have a commit to wait for.
            self._loop.frozen = True
            where = await compare_pictures(comparison.oracle, self._engine, TENANTS)
            self._loop.frozen = False
            return [] if where is None else [f"the state differs from the oracle's: {where}"]
        return comparison.differences

    def remove(self) -> None:
        """Remove what the run has left on a real disk."""
        self._adapter.remove()

    # -- opening and losing ------------------------------------------------------------

    async def _open(self, *, keepers: bool = True) -> None:
        disk = self._new_disk(self._loop)
        engine = await _WatchedEngine.open(
            self._adapter,
            self._options,
            writer=disk,
            slice_size=self._slice_size,
            recent_payload_bytes=0,  # Every claim reads its payloads, so that a read can fail.
            step_size=self._step_size,
            slice_s=0.0,
            inline_evaluations=self._inline_evaluations,
            segment_entries=self._segment_entries,
        )
        engine.violations = self.world.violations
        self._engine = engine
        shown: Any = engine
        if self._comparison is not None:
            shown = Mirror(self._loop, engine, self._comparison)
        duties = Keepers(shown, self.clock, [_Seldom(Sweep(shown)), _Seldom(CatchUp(shown))])
        options = BrokerOptions(engine=self._options)
        broker = Broker(shown, options, TENANTS[0], background=duties)
        self._store = _Store(disk, broker, duties)
        self.world.promises.reopened(self.clock.now())
        if keepers:
            duties.start()
        self.world.up.set()

    async def _close(self) -> None:
        await self._up.broker.close()
        self.world.violations += self._up.failures()

    def _on_step(self, begun: int) -> None:
        while self._left and self._left[0].at_step <= begun:
            fault = self._left.pop(0)
            task = self._loop.create_task(self._strike(fault), name=f"fault {fault.kind}")
            self._striking.add(task)
            task.add_done_callback(self._struck)

    def _struck(self, task: asyncio.Task[None]) -> None:
        """A fault that cannot be injected, or a store that cannot be reopened, is a violation."""
        self._striking.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.violations.append(f"{task.get_name()} raised {error!r}")

    async def _strike(self, fault: Fault) -> None:
        if not self.world.up.is_set():
            return  # One fault at a time: the store is already down.
        # The oracle cannot undo what a crash loses.
        kind = fault.kind if self._comparison is None else "restart"
        self.faults[kind] += 1
        match kind:
            case "power_loss":
                await self._lose(self._adapter.power_loss)
            case "fence":
                self._adapter.fence()
                await self._restart_when_noticed()
            case "kill":
                await self._lose(self._adapter.process_loss)
            case "restart":
                await self._restart()
            case "failed_sync":
                self._adapter.fail_sync(self._random.randint(1, 3))
                await self._restart_when_noticed()
            case _:
                self._adapter.fail_space(self._random.randint(1, 3))
                await self._restart_when_noticed()

    async def _restart(self) -> None:
        self.world.up.clear()
        try:
            await self._close()
        except StoreError:
            # The disk failed while the store was being closed: treat it as a lost process.
            await self._lose(self._adapter.process_loss)
            return
        self._adapter = self._adapter.process_loss()
        await self._open()

    async def _restart_when_noticed(self) -> None:
        store = self._up
        for _ in range(_NOTICES):
            await asyncio.sleep(_NOTICE_S)
            if self._store is not store or not self.world.up.is_set():
                return
            if self._adapter.failed:
                break
        await self._lose(self._adapter.process_loss)

    async def _lose(self, survivor: Callable[[], FailingAdapter]) -> None:
        """End the process abruptly, and reopen the store from what is left on the disk."""
        self.world.lose()
        self.world.history.next_run()
        self._up.disk.dead = True
        self.world.violations += self._up.failures()
        self._adapter = survivor()
        ours = ("client ", "fault ", "session")
        for task in self._loop.tasks:
            if not task.done() and not task.get_name().startswith(ours):
                task.cancel()
        await self._open()


def _in_memory(seed: int) -> FailingAdapter:
    return FaultyAdapter(seed=seed, inline=False)


def run(
    program: Program,
    disk: Callable[[SimulatedLoop], SimulatedDisk] = SimulatedDisk,
    adapter: Callable[[int], FailingAdapter] = _in_memory,
) -> Outcome:
    """Run one program on its own loop; a test may pass a faulty ``disk``."""
    # A loop without sockets lacks methods that typeshed declares abstract.
    loop = SimulatedLoop(program.seed)  # type: ignore[abstract]
    session = _Session(program, loop, disk, adapter)
    with _silence():
        try:
            found = loop.run_until_complete(loop.create_task(session.run(), name="session"))
        except (Deadlock, Endless) as error:
            found = [*session.world.violations, f"{type(error).__name__}: {error}"]
        finally:
            loop.close()
            session.remove()
    return Outcome(
        tuple(found), loop.trace, loop.turns, dict(session.world.verbs), dict(session.faults)
    )


SIMULATION: Final = Simulation(run, FAULT_KINDS)


def orphans(contents: dict[bytes, bytes]) -> list[str]:
    """Records of queues that do not exist."""
    ranges: list[tuple[bytes, bytes]] = []
    for key, value in contents.items():
        if key.startswith(SPEC_PREFIX):
            tenant, _, name = key[len(SPEC_PREFIX) :].decode().partition("/")
            _, facts = decode_spec(value)
            number = facts["queue_number"] if KEYED_BY_NUMBER in facts else None
            for queue in (name, name + DLQ_SUFFIX):
                ranges += QueueKeys(tenant, queue, number).ranges()
    kinds = {start[: 3 if start[1] == _OWN else 2] for start, _ in ranges}
    found = [
        key.hex()
        for key in contents
        if (key[:3] in kinds or key[:2] in kinds)
        and not any(start <= key < end for start, end in ranges)
    ]
    return [f"S3: {len(found)} records of no queue, the first is {found[0]}"] if found else []


def _grant_number(receipt: str) -> int:
    return int(receipt.split("-")[2], 16)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence logging: keepers log the effects of the failing disks."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
