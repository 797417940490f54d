"""The demo: fifty thousand messages, five queues, workers that fail, and a replay by filter.

``make demo`` runs it on its own store in a temporary folder. A table accounts for every delivery,
and ``penstock verify`` checks the store. Then Spark takes over (``demo_pipeline``): archive, a
queue over older messages, a replay from the lake, a report. It exits with 1 if anything is wrong.

With ``--console`` it ends by serving the store, so that the web console shows all of this.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

import penstock
from penstock.verify import verify

#: The command line may set another number.
MESSAGES = next((int(given) for given in sys.argv[1:] if given.isdigit()), 50_000)
CONSOLE = "--console" in sys.argv[1:]
BATCH = 500
COUNTRIES = ("DE", "AT", "FR", "IT", "ES")
#: A message is published once, and is in every queue whose filter is TRUE for its headers.
QUEUES = {
    "billing": "topic = 'orders' AND amount >= 100",
    "germany": "topic = 'orders' AND country = 'DE'",
    "alps": "country IN ('AT', 'IT') AND amount BETWEEN 50 AND 150",
    "express": "express AND topic LIKE 'ord%'",
    "refunds": "topic = 'refunds'",
}
#: An order that no queue takes stays in the log and creates no queue.
OPTIONS = penstock.BrokerOptions(engine=penstock.EngineOptions(auto_create=False))
#: The failures to replay: the bank of these customers is back.
REPLAYED = "country = 'AT'"

#: Shows progress: what, how many are done, of how many.
Show: TypeAlias = Callable[[str, int, int], None]
console = Console()


class Order(Struct):
    """The type of the payloads; workers get them decoded."""

    number: int


async def main() -> int:
    """Publish, work with failures, replay, and account for every delivery."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        async with penstock.open(f"rocksdb:{folder}/store", options=OPTIONS) as q:
            for name, text in QUEUES.items():
                await q.create_queue(name, text, backoff=penstock.Backoff(50, 200))
            await publish(q)
            await work(q, handle)
            replayed = await replay(q)
            await work(q, handle_well)
            problems = await account(q, replayed)
            problems += await check(q)
        # Spark blocks, so it runs in a separate process.
        script = Path(__file__).with_name("demo_pipeline.py")
        ended = await asyncio.create_subprocess_exec(sys.executable, script, folder)
        if await ended.wait():
            problems.append("the pipeline")
        if CONSOLE and not problems:
            await show_console(folder)
    for problem in problems:
        print(f"off: {problem}")
    return 1 if problems else 0


async def show_console(folder: str) -> None:
    """Serve the store until Ctrl-C; dead letters are left for the console to replay."""
    print(
        "\nThe console shows what happened; its dead letters wait to be replayed. Ctrl-C ends it.\n"
    )
    command = ("-m", "penstock", "serve", "--store", f"rocksdb:{folder}/store", "--port", "0")
    served = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        await served.wait()
    except asyncio.CancelledError:
        # Ctrl-C reaches the server too, which stops by itself.
        await served.wait()


# -- publish -------------------------------------------------------------------------------


async def publish(q: penstock.Broker) -> None:
    """Publish all messages in atomic batches."""
    dice = random.Random(7)  # Seeded, so that every run is the same.
    begin = time.perf_counter()
    with progress() as show:
        for done in range(0, MESSAGES, BATCH):
            # Every twentieth batch has refunds.
            topic = "refunds" if done // BATCH % 20 == 19 else "orders"
            await q.publish_batch(topic, [message(dice, done + i) for i in range(BATCH)])
            show("publish", done + BATCH, MESSAGES)
    rate = MESSAGES / (time.perf_counter() - begin)
    print(f"published {MESSAGES:,} messages, {rate:,.0f} a second, every batch fsynced\n")


def message(dice: random.Random, number: int) -> penstock.NewMessage:
    headers: dict[str, str | int | bool] = {
        "amount": dice.randrange(1, 300),
        "country": dice.choice(COUNTRIES),
        "express": dice.random() < 0.1,
    }
    return penstock.NewMessage(b'{"number":%d}' % number, headers, content_type="application/json")


# -- work ----------------------------------------------------------------------------------


async def handle(order: Order, context: penstock.Context) -> None:
    """A faulty worker: 2 % always fail, another 3 % succeed only at the second attempt."""
    if order.number % 50 == 0:
        raise penstock.Reject("card declined")
    if order.number % 33 == 0 and context.attempts == 1:
        raise penstock.Retry("the bank did not answer")


async def handle_well(order: Order) -> None:
    """The same worker, fixed."""
    del order


async def work(q: penstock.Broker, handler: Callable[..., object]) -> None:
    """Run workers on all five queues until nothing is left."""
    app = penstock.App(q)
    for name in QUEUES:
        app.worker(name, concurrency=64)(handler)
    running = asyncio.create_task(app.run())
    begin = {name: (await q.stats(name)).depth for name in QUEUES}
    with progress() as show:
        while not running.done():
            left = {name: (await q.stats(name)).depth for name in QUEUES}
            for name in QUEUES:
                show(name, begin[name] - left[name], begin[name])
            if not any(left.values()):
                app.stop()
                break
            await asyncio.sleep(0.1)
    await running


# -- replay --------------------------------------------------------------------------------


async def replay(q: penstock.Broker) -> dict[str, int]:
    """Replay the failures of one country, after a dry run that only counts them."""
    replayed = {}
    for name in QUEUES:
        failed = (await q.stats(name)).failed
        would = await q.replay(name, where=REPLAYED, dry_run=True)
        moved = await q.replay(name, where=REPLAYED, replay_id="demo")
        again = await q.replay(name, where=REPLAYED, replay_id="demo")
        replayed[name] = moved.count
        print(
            f"{name:8} {failed:5,} failed, {would.count:4,} of them where {REPLAYED}: "
            f"{moved.count:,} replayed, {again.count} by the same replay id again"
        )
    print()
    return replayed


# -- account -------------------------------------------------------------------------------


async def account(q: penstock.Broker, replayed: dict[str, int]) -> list[str]:
    """Print the table; returns everything in it that does not add up."""
    titles = ("in the log", "acked", "retried", "failed", "replayed", "done", "dead letters")
    table = Table("queue", title="Where everything went")
    for title in titles:
        table.add_column(title, justify="right")
    problems = []
    for name, text in QUEUES.items():
        stats = await q.stats(name)
        matching = (await q.preview(text)).count
        rejected = stats.failures
        retried = stats.nacks
        row = (matching, stats.acks, retried, rejected, replayed[name], stats.done, stats.failed)
        table.add_row(name, *(f"{count:,}" for count in row))
        if stats.done + stats.failed != matching or stats.depth:
            problems.append(f"{name} has {stats.done} done and {stats.failed} failed of {matching}")
        if rejected - replayed[name] != stats.failed:
            problems.append(f"{name} failed {rejected}, replayed {replayed[name]}")
    console.print(table)
    end = await q.log_end()
    print(f"the log holds {end:,} messages, each once, however many queues took it\n")
    if end != MESSAGES:
        problems.append(f"{end} messages in the log, {MESSAGES} published")
    return problems


async def check(q: penstock.Broker) -> list[str]:
    """Check the laws by reading, as ``penstock verify --quick`` does."""
    with progress() as show:
        report = await verify(
            q, deep=False, progress=lambda what, done, total: show(what, done, total or done)
        )
    print(
        f"verify: {report.log_entries:,} log entries and {report.deliveries:,} deliveries, "
        f"{len(report.checks)} laws, {report.violation_count} violations"
    )
    return [str(violation) for violation in report.violations]


# -- progress ------------------------------------------------------------------------------


@contextmanager
def progress() -> Iterator[Show]:
    """Live bars on a terminal; elsewhere a plain line every two seconds."""
    if not console.is_terminal:
        yield plain_lines()
        return
    columns = (TextColumn("{task.description:20}"), BarColumn(40), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def plain_lines() -> Show:
    last: dict[str, float] = {}

    def show(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - last.setdefault(what, now) >= 2:
            last[what] = now
            print(f"{what}: {done:,} of {total:,}", flush=True)

    return show


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
