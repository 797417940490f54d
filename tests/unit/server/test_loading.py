"""Libraries that take long to import are not imported on the event loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """if True:
    import asyncio, sys, threading
    import penstock
    from penstock.server.access import Access, Keys
    from penstock.testing.clock import FakeClock
    from tests.unit.server.conftest import Door, application

    threads = []

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "pyarrow":
                threads.append(threading.current_thread() is threading.main_thread())

    async def main(method, target):
        async with penstock.open("memory://") as broker:
            clock = FakeClock()
            access = Access(clock, Keys(broker.engine, clock), enabled=False)
            app = application(broker, access)
            await broker.create_queue("q")
            kind = {"content-type": "application/vnd.apache.arrow.stream"}
            door = Door(app, broker, clock)
            return (await door.call(method, target, b"" if method == "GET" else b"x", kind)).status

    sys.meta_path.insert(0, Finder)
    print(asyncio.run(main(*sys.argv[1:])), threads)
"""


@pytest.mark.parametrize(
    "method, target, status",
    [
        ("POST", "/v1/topics/t/messages", 400),
        ("GET", "/v1/log?format=arrow", 200),
        ("GET", "/v1/history", 200),
        ("GET", "/v1/queues/q/deliveries?format=arrow", 200),
        ("GET", "/v1/queues/q/history?format=arrow", 200),
    ],
)
def test_arrow_is_imported_on_a_thread(method: str, target: str, status: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, method, target],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert run.stdout.strip() == f"{status} [False]"
