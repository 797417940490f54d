"""Simulates the SQL engine: two or three servers on one real database.

The database is real, to test its real locks and isolation. Everything around it is simulated: the
seed decides which statement or commit of which server the database gets next (``sql_loop``), which
connections break, which transactions are rolled back, and how time passes (``sql_gated``). Servers
do not notify each other and have no keepers: background duties are steps of the program, and are
interleaved like every other verb.

The database must be empty, and nothing else may use its server: MariaDB counts sessions that wait
for a lock for the whole server. The database is emptied before every seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final

from penstock.broker import Broker, BrokerOptions
from penstock.errors import BadInput, PenstockError
from penstock.model.limits import Limits
from penstock.storage.contract import EngineOptions
from penstock.storage.sql.database import Database, load_module
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.migrations import migrate
from penstock.storage.sql.urls import Address, parse
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
from penstock.testing.simulation.loop import Deadlock, Endless
from penstock.testing.simulation.policies import TENANTS, create_first_queues, default_policy
from penstock.testing.simulation.program import Program
from penstock.testing.simulation.report import Outcome, Simulation
from penstock.testing.simulation.sql_gated import Faults, GatedDatabase
from penstock.testing.simulation.sql_judges import judge_rows, live_in_narrow
from penstock.testing.simulation.sql_loop import Gate, SqlClock, SqlLoop, Ticket
from penstock.testing.simulation.sql_observer import Observer
from penstock.testing.simulation.world import World

__all__ = ["FAULT_KINDS", "SqlSimulation"]

#: Besides those of ``sql_gated``: a statement is delayed while others continue; time jumps; a
#: server loses its server number; a server is closed and reopened.
FAULT_KINDS: Final = ("drop", "lost_reply", "abort", "delay", "jump", "lapse", "restart")
_MAX_SERVERS: Final = 3
#: Real seconds for connections to close before they are dropped.
_CLOSE_S: Final = 5.0
#: Operations that run before a delayed one.
_DELAY_TURNS: Final = 40
#: One commit in this many waits until others have sent as many operations.
_HELD_ONE_IN: Final = 4
_HELD_TURNS: Final = 25
#: One operation in this many lets a few milliseconds pass.
_TICK_ONE_IN: Final = 12
_MAX_TICK_MS: Final = 3
_MAX_JUMP_S: Final = 60
#: One seed in this many compares the servers' views, which costs as much as all the rest.
_COMPARED_ONE_IN: Final = 20
#: One seed in this many is fully verified, which takes three times as long as the run. Counts are
#: compared with a full scan after every seed.
_VERIFIED_ONE_IN: Final = 5
_KINDS: Final = {"postgresql": "PostgreSQL", "mysql": "MySQL"}
_TABLES: Final = {
    "postgresql": "SELECT relname FROM pg_class"
    " WHERE relkind = 'r' AND relname LIKE 'penstock%' ORDER BY relname",
    "mysql": "SELECT table_name FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name LIKE 'penstock%' AND table_type <> 'VIEW'"
    " ORDER BY table_name",
}
_RESTART_SEQUENCES: Final = (
    "SELECT setval(oid::regclass, 1, false) FROM pg_class"
    " WHERE relkind = 'S' AND relname LIKE 'penstock%'"
)
_DELETE: Final = "DELETE FROM {}"
#: Tables that keep the first queues from one seed to the next.
_DROP: Final = "DROP TABLE IF EXISTS {}"
_KEEP: Final = "CREATE TABLE {} AS SELECT * FROM {}"
_PUT_BACK: Final = "INSERT INTO {} {} SELECT * FROM {}"
#: Continue after the rows of the template.
_CONTINUE_SEQUENCES: Final = (
    "SELECT setval('penstock_tenant_number_seq', (SELECT max(number) FROM penstock_tenant)),"
    " setval('penstock_queue_number_seq', (SELECT max(number) FROM penstock_queue))"
)


class SqlSimulation:
    """Servers on one database. ``simulation`` runs programs on it."""

    def __init__(self, url: str, seen_as: type[GatedDatabase] = GatedDatabase) -> None:
        """``url`` names an empty database; a test may pass a ``seen_as`` with a defect."""
        self._seen_as = seen_as
        self._address: Address = parse(url)
        asyncio.run(migrate(url))
        self._observer = Observer(self._open_database, self._address.scheme)
        try:
            self._observer.check_privilege()
            self._reset = self._statements_to_empty()
        except BaseException:
            self._observer.close()
            raise
        self._begin_loop()
        #: The same, with the first queues: creating them would take a third of the time.
        self._template: list[str] | None = None
        self.simulation = Simulation(self.run, FAULT_KINDS)

    def run(self, program: Program) -> Outcome:
        """Run one program on an empty store."""
        if self._template is None:
            self._observer.run_script(self._reset)
            _, first = self._new_run(Program(0, (), ()))
            self._loop.run_until_complete(first.prepare())
            self._template = self._keep_template()
        self._end_loop()
        self._begin_loop()
        self._observer.run_script(self._template)
        faults, run = self._new_run(program)
        with _silence():
            try:
                found = self._loop.run_until_complete(run.run())
            except (Deadlock, Endless) as error:
                found = [*run.world.violations, f"{type(error).__name__}: {error}"]
                self._give_up()
        return Outcome(
            tuple(found), run.trace, run.turns, dict(run.world.verbs), dict(faults.struck)
        )

    def _new_run(self, program: Program) -> tuple[Faults, _Run]:
        faults = Faults(self._gate)
        servers = [
            self._seen_as(database, number, self._gate, faults, self._observer)
            for number, database in enumerate(self._databases)
        ]
        return faults, _Run(program, self._loop, self._gate, faults, servers, self._observer)

    def close(self) -> None:
        """Close every connection, even if a run has left one in use."""
        self._end_loop()
        self._observer.close()

    async def _close_databases(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*(database.close() for database in self._databases))

    async def _open_database(self) -> Database:
        adapter = load_module(self._address.scheme, "adapter")
        database: Database = await getattr(adapter, _KINDS[self._address.scheme]).open(
            self._address
        )
        return database

    def _statements_to_empty(self) -> list[str]:
        """Statements that empty the store. Refuses a store that is in use."""
        if self._observer.ask("SELECT count(*) FROM penstock_tenant"):
            raise BadInput("The database contains a store; use an empty one.", field="store")
        names = [str(name) for (name,) in self._observer.rows(_TABLES[self._address.scheme])]
        kept = [name for name in names if name not in ("penstock_migration", "penstock_tenant")]
        statements = [_DELETE.format(name) for name in (*kept, "penstock_tenant")]
        if self._address.scheme == "postgresql":
            return [*statements, _RESTART_SEQUENCES]
        # Programs see the numbers of segments, as message ids, but no other numbers.
        return [*statements, "ALTER TABLE penstock_log AUTO_INCREMENT = 1"]

    def _keep_template(self) -> list[str]:
        """Statements that restore a store with the first queues, as they are now."""
        statements = list(self._reset)
        for table in ("penstock_tenant", "penstock_queue", "penstock_topic_policy"):
            kept = f"simulation_{table}"
            self._observer.run_script([_DROP.format(kept), _KEEP.format(kept, table)])
            over = "OVERRIDING SYSTEM VALUE" if self._address.scheme == "postgresql" else ""
            statements.append(_PUT_BACK.format(table, over, kept))
        if self._address.scheme == "postgresql":
            statements.append(_CONTINUE_SEQUENCES)
        return statements

    def _begin_loop(self) -> None:
        """Begin a loop, at time zero, with its own connections."""
        self._gate = Gate()
        self._loop = SqlLoop(self._gate)
        self._loop.watch(self._observer)
        self._databases = [
            self._loop.run_until_complete(self._open_database()) for _ in range(_MAX_SERVERS)
        ]

    def _end_loop(self) -> None:
        """Close the connections, so that the next run does not depend on this one."""
        self._gate.open = True
        # The drivers' own timers never fire on this loop, and others only in virtual time.
        self._loop.use_real_time()
        self._loop.run_until_complete(self._close_databases())
        self._loop.abandon()

    def _give_up(self) -> None:
        """Abort a run: its tasks and connections cannot be used again."""
        self._loop.abandon()
        self._observer.end_others()
        self._begin_loop()


class _Run:
    """One run of one program."""

    def __init__(
        self,
        program: Program,
        loop: SqlLoop,
        gate: Gate,
        faults: Faults,
        databases: list[GatedDatabase],
        observer: Observer,
    ) -> None:
        self._program = program
        self._loop = loop
        self._gate = gate
        self._faults = faults
        self._observer = observer
        self._random = random = Random(f"servers {program.seed}")
        self.clock = SqlClock(loop)
        self._options = EngineOptions(
            clock=self.clock,
            jitter=lambda ceiling_ms: random.randint(0, ceiling_ms),
            token=lambda: random.getrandbits(62),
            limits=Limits(log_retention_ms=random.choice((1_000, 60_000, 10**9))),
            archive=random.random() < 0.3,
            default_policy=default_policy(program.seed),
        )
        self._databases = databases[: random.choice((2, 2, 3))]
        self._engines: list[SqlEngine] = []
        self._brokers: list[Broker] = []
        self._striking: set[asyncio.Task[None]] = set()
        self._left = list(program.faults)
        self._delays = 0
        self.world = World(lambda client: self._brokers[client % len(self._brokers)], self.clock)
        self.world.on_step = self._on_step
        self.world.promises.live = lambda: live_in_narrow(observer)
        #: As of the end of the clients: judges are not part of the interleaving.
        self.trace = ""
        self.turns = 0

    async def run(self) -> list[str]:
        """Run the program to its end. Returns the violations."""
        for database in self._databases:
            engine = await self._open(database)
            self._engines.append(engine)
            self._brokers.append(self._broker(engine))
        self._gate.begin(self._program.seed)
        self._gate.on_pass = self._on_pass
        clients = [
            self._loop.create_task(Client(self.world, number, steps).run(), name=f"client {number}")
            for number, steps in enumerate(self._program.clients)
        ]
        await asyncio.wait(clients)
        while self._striking:
            await asyncio.wait(self._striking)
        self.trace, self.turns = self._gate.trace, self._gate.turns
        self._gate.on_pass = lambda _: False
        self._faults.end()
        for client in clients:
            if (error := client.exception()) is not None:
                raise error
        # Finish what cancelled callers left behind: while it publishes, readers do not see past it.
        for engine in self._engines:
            for lanes in (engine._publishes, engine._claims, engine._settles):
                await lanes.drain()
        for broker in self._brokers:
            await finish_releases(broker)
        try:
            found = await self._judge()
        except PenstockError as error:
            found = [f"the store cannot be judged: {error!r}: {error.detail}"]
        self._gate.let_all_pass()
        for broker in self._brokers:
            await broker.close()
        await self._end_tasks()
        return [*self.world.violations, *found, *self._loop.errors]

    async def _end_tasks(self) -> None:
        """Cancel what cancelled callers left behind, including its transactions."""
        left = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def prepare(self) -> None:
        """Create the first queues."""
        server = self._broker(await self._open(self._databases[0]))
        await create_first_queues(server)
        await server.close()

    async def _judge(self) -> list[str]:
        broker = self._brokers[0]
        found = await drain(broker, self.world.history, self.clock)
        # The rest only reads, and no time passes.
        self._gate.let_all_pass()
        found += await judge_history(broker, self.world.history, _grant_number)
        found += await judge_copies(broker)
        found += await judge_events(broker)
        found += await self.world.judge_replies(broker)
        if self._program.seed % _VERIFIED_ONE_IN == 0:
            for tenant in TENANTS:
                found += await judge_store(broker.for_tenant(tenant), self.clock)
        found += judge_rows(self._observer)
        if self._program.seed % _COMPARED_ONE_IN == 0:
            for tenant in TENANTS:
                shown = [await picture(one.for_tenant(tenant)) for one in self._brokers]
                for other in shown[1:]:
                    found += judge_same(shown[0], other, "asking another server")
        return found

    # -- servers -----------------------------------------------------------------------

    async def _open(self, database: GatedDatabase) -> SqlEngine:
        engine = await SqlEngine.open(database, self._options)
        await engine._watch.close()
        return engine

    def _broker(self, engine: SqlEngine) -> Broker:
        return Broker(engine, BrokerOptions(engine=self._options), TENANTS[0])

    # -- faults ------------------------------------------------------------------------

    def _on_step(self, begun: int) -> None:
        while self._left and self._left[0].at_step <= begun:
            kind = self._left.pop(0).kind
            match kind:
                case "jump":
                    self._jump()
                case "lapse":
                    self._faults.count(kind)
                    self._random.choice(self._engines)._core.leases.lapse()
                case "restart":
                    self._faults.count(kind)
                    task = self._loop.create_task(self._restart(), name="fault restart")
                    self._striking.add(task)
                    task.add_done_callback(self._striking.discard)
                case "delay":
                    self._delays += 1
                case _:
                    for _ in range(self._random.choice((1, 1, 2, 3))):
                        self._faults.add(kind)

    def _on_pass(self, ticket: Ticket) -> bool:
        if self._delays and ticket.held_until == 0:
            self._delays -= 1
            self._faults.count("delay")
            ticket.held_until = self._gate.turns + _DELAY_TURNS
            return True
        is_new_commit = ticket.label == "commit" and not ticket.held_until
        if is_new_commit and self._random.random() < 1 / _HELD_ONE_IN:
            ticket.held_until = self._gate.turns + _HELD_TURNS
            return True
        if not self._gate.in_flight and self._random.random() < 1 / _TICK_ONE_IN:
            self._loop.advance(self._random.randint(1, _MAX_TICK_MS) / 1000)
        return False

    def _jump(self) -> None:
        # Not while a statement is waiting in the database: its deadline is not under test.
        if not self._gate.in_flight:
            self._faults.count("jump")
            self._loop.advance(self._random.randint(1, _MAX_JUMP_S))

    async def _restart(self) -> None:
        number = self._random.randrange(len(self._engines))
        try:
            engine = await self._open(self._databases[number])
        except PenstockError:
            return  # Another fault occurred: the old server continues.
        before, self._brokers[number] = self._brokers[number], self._broker(engine)
        self._engines[number] = engine
        await before.close()


def _grant_number(receipt: str) -> int:
    return int(receipt.split("-")[2], 16)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence logging: engines log the effects of the faults."""
    logger: Any = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
