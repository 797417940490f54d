"""An app as a program: what it refuses, how it starts, and that signals end it well."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import State
from penstock.errors import BadInput, BadName, BadPolicy, PenstockError, UnknownQueue
from penstock.testing.laws import law
from penstock.worker import App

ROOT = Path(__file__).parents[3]


async def nothing(payload: bytes) -> None: ...


# -- registering -----------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "options, kind, field",
    [
        ({"queue": "no such/name"}, BadName, "queue"),
        ({"concurrency": 0}, BadInput, "concurrency"),
        ({"concurrency": "8"}, BadInput, "concurrency"),
        ({"concurrency": 8, "max_in_flight": 7}, BadInput, "max_in_flight"),
        ({"max_in_flight": 10_001}, BadInput, "max_in_flight"),
        ({"lease_ms": 0}, BadInput, "lease_ms"),
        ({"retry_ms": -1}, BadInput, "retry_ms"),
        ({"retry_ms": (1, 2**40)}, BadInput, "retry_ms"),
        ({"retry_ms": 1.5}, BadInput, "retry_ms"),
        ({"reject_on": "KeyError"}, BadInput, "reject_on"),
        ({"reject_on": [KeyError, 5]}, BadInput, "reject_on"),
        ({"reject_on": KeyError("x")}, BadInput, "reject_on"),
        ({"reject_on": int}, BadInput, "reject_on"),
        ({"concurency": 8}, BadInput, "concurency"),
        ({"max_attempts": 3}, BadInput, "max_attempts"),
        ({"filter": "topic = ", "max_attempts": 3}, BadInput, "filter"),
        ({"filter": "TRUE", "concurency": 3}, BadPolicy, "concurency"),
        ({"filter": "TRUE", "max_attempts": 0}, BadPolicy, "max_attempts"),
        ({"filter": "TRUE", "start": "yesterday"}, BadInput, "start"),
        ({"queue": "q.dlq", "filter": "TRUE"}, BadInput, "filter"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_registered(
    options: dict[str, Any], kind: type[PenstockError], field: str
) -> None:
    app = App("http://nowhere")
    with pytest.raises(kind) as caught:
        app.worker(**{"queue": "q", **options})(nothing)
    assert caught.value.field == field
    assert app.registrations == ()


@pytest.mark.parametrize("given", [KeyError, (KeyError,), [KeyError]])
def test_reject_on_is_one_exception_or_several(given: Any) -> None:
    app = App("http://nowhere")
    app.worker("q", reject_on=given)(nothing)
    rules = app.registrations[0].choose(None)  # type: ignore[arg-type]
    assert rules.reject_on == (KeyError,)


def test_durations_may_be_timedeltas() -> None:
    app = App("http://nowhere")
    second = timedelta(seconds=1)
    app.worker("q", lease_ms=second, timeout_ms=2 * second, retry_ms=[second, 5])(nothing)
    app.task_queue("t", lease_ms=3 * second)
    app.task(queue="t", retry_ms=second)(nothing)
    worker, tasks = app.registrations
    assert (worker.lease_ms, tasks.lease_ms) == (1_000, 3_000)
    rules = worker.choose(None)  # type: ignore[arg-type]
    assert (rules.timeout_ms, rules.retry_ms) == (2_000, (1_000, 5))
    with pytest.raises(BadInput) as caught:
        app.worker("other", timeout_ms=timedelta(days=2))(nothing)
    assert caught.value.field == "timeout_ms"


@law("E1")
def test_a_queue_has_one_handler() -> None:
    app = App("http://nowhere")
    app.worker("q")(nothing)
    with pytest.raises(BadInput, match="already"):
        app.worker("q")(nothing)
    with pytest.raises(BadInput, match="already"):
        app.worker(["other", "q"])(nothing)
    # Nothing of the refused list stays.
    app.worker("other")(nothing)


@law("E1")
@pytest.mark.parametrize(
    "options, field",
    [
        ({"filter": "TRUE"}, "filter"),
        ({"order": "random"}, "order"),
        ({"queue": ["a", "a"]}, "queues"),
    ],
)
def test_bad_options_of_several_queues_are_refused(options: dict[str, Any], field: str) -> None:
    app = App("http://nowhere")
    with pytest.raises(BadInput) as caught:
        app.worker(**{"queue": ["a", "b"], **options})(nothing)
    assert caught.value.field == field
    assert app.registrations == ()


@law("E1")
@pytest.mark.parametrize(
    "options, field",
    [
        ({"grace_s": -1}, "grace_s"),
        ({"grace_s": float("nan")}, "grace_s"),
        ({"grace_s": "30"}, "grace_s"),
        ({"consumer": "no such/name"}, "consumer"),
    ],
)
def test_a_bad_option_of_the_app_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        App("http://nowhere", **options)
    assert caught.value.field == field


def test_a_decorated_function_stays_what_it_is() -> None:
    app = App("http://nowhere")

    def double(number: int) -> int:
        return 2 * number

    assert app.worker("q")(double) is double
    assert double(2) == 4


# -- starting --------------------------------------------------------------------------


@law("E1")
async def test_an_app_without_workers_does_not_run() -> None:
    with pytest.raises(BadInput):
        await App("memory://").run()


@law("E1")
async def test_a_store_takes_no_credential() -> None:
    app = App("memory://", credential="secret")
    app.worker("q")(nothing)
    with pytest.raises(BadInput) as caught:
        await app.run()
    assert caught.value.field == "credential"


@law("E1")
async def test_an_unknown_queue_is_told_at_once() -> None:
    app = App("memory://")
    app.worker("billing")(nothing)
    with pytest.raises(UnknownQueue, match=r"'billing'.*nothing.*filter"):
        await asyncio.wait_for(app.run(), 60)


async def test_a_queue_with_a_filter_is_created_and_one_that_is_there_stays() -> None:
    async with penstock.open("memory://") as q:
        await q.create_queue("old", "topic = 'old'", max_attempts=9)
        app = App(q)
        app.worker("new", filter="topic = 'new'", max_attempts=3)(nothing)
        app.worker("old", filter="topic = 'other'", max_attempts=3)(nothing)
        run = asyncio.create_task(app.run())
        async with asyncio.timeout(60):
            while len(await q.queues()) < 2:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.001)
        app.stop()
        await asyncio.wait_for(run, 60)
        new, old = [(await q.queue(name)).policy for name in ("new", "old")]
        assert (new.filter, new.max_attempts) == ("topic = 'new'", 3)
        assert (old.filter, old.max_attempts) == ("topic = 'old'", 9)


async def test_stop_works_from_another_thread_and_the_app_runs_again() -> None:
    async with penstock.open("memory://") as q:
        app = App(q, consumer="me")
        handled = asyncio.Event()

        @app.worker("q", filter="topic = 'q'")
        async def handler() -> None:
            handled.set()

        app.stop()  # Nothing runs: nothing happens.
        for _ in range(2):
            handled.clear()
            run = asyncio.create_task(app.run())
            await q.publish("q", b"")
            await asyncio.wait_for(handled.wait(), 60)
            with pytest.raises(BadInput, match="already"):
                await app.run()
            thread = threading.Thread(target=app.stop)
            thread.start()
            await asyncio.wait_for(run, 60)
            await asyncio.to_thread(thread.join)
        # What was given open stays open.
        assert (await q.stats("q")).done == 2


# -- as a process ----------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from penstock.worker import App

app = App(sys.argv[1], grace_s=20)

@app.worker("q", concurrency=1, max_in_flight=3)
async def handler(text: str) -> str:
    print("begun", text, flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    return "done"

app.main()
print("ended", flush=True)
"""


async def fill(url: str) -> None:
    async with penstock.open(url) as q:
        await q.create_queue("q")
        for number in range(5):
            await q.publish("t", str(number))


def launch(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@asynccontextmanager
async def started(tmp_path: Path, url: str, seconds: str) -> AsyncIterator[subprocess.Popen[str]]:
    """The program while its first handler runs; the process never outlives the block."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = launch(program, url, seconds)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "begun 0\n"
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda item: item.name)
async def test_a_signal_settles_what_runs_releases_the_rest_and_exits_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    url = f"rocksdb:{tmp_path}/store"
    await fill(url)
    async with started(tmp_path, url, "0.3") as process:
        process.send_signal(number)
        out, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, err
    assert out == "ended\n"
    assert f"{number.name}: stopping" in err
    async with penstock.open(url) as q:
        stats = await q.stats("q")
        assert (stats.done, stats.available, stats.in_flight) == (1, 4, 0)
        result = await q.result("q", 0)
        assert result is not None
        assert result.result == b"done"
        # C2: what was handed back unbegun counts no attempt.
        await q.update_queue("q", max_attempts=1)
        (again,) = await q.claim("q")
        assert (await q.nack(again)).state is State.FAILED


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path}/store"
    await fill(url)
    async with started(tmp_path, url, "600") as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        while "stopping" not in await asyncio.to_thread(process.stderr.readline):
            pass
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, err
    assert out == "ended\n"
    async with penstock.open(url) as q:
        stats = await q.stats("q")
        assert (stats.done, stats.available, stats.in_flight) == (0, 5, 0)
