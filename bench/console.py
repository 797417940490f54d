"""The console: what a viewer costs the server, and how quick the page is with many queues.

The store has ten thousand queues and a million messages; every second some of the queues change.
Needs Chromium and playwright, as the tests do.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from bench.measuring import Figure, scratch, seconds_figure
from bench.processes import Server, penstock_server
from penstock import NewMessage

QUEUES = 10_000
#: Queues that get a message per second while the server is measured.
CHANGING = 100
_BATCH = 1_000
_CREATED = 500
_SHARE = 0.01
_FIRST_PAINT_S = 1.0
_LONG_TASK_S = 0.05
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")
#: Of so many loads the quickest counts: what a busy machine adds is not the page's.
_LOADS = 3
#: Tasks of the page, with the processor time of each.
_TASKS = ["toplevel", "devtools.timeline"]
_SCROLL = """async () => {
  const box = document.querySelector(".virtual");
  for (let i = 0; i < 120; i += 1) {
    box.scrollTop = (i % 60) * box.scrollHeight / 60;
    await new Promise(requestAnimationFrame);
  }
}"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


async def console(seconds: float, messages: int, queues: int = QUEUES) -> AsyncIterator[Figure]:
    """The figures of the console."""
    with scratch() as folder:
        await _fill(folder, messages, queues)
        with penstock_server(folder) as server:
            yield await asyncio.to_thread(_viewer_cost, server, max(seconds, 0.5), queues)
            for figure in await asyncio.to_thread(_in_a_browser, server, queues):
                yield figure


async def _fill(folder: Path, messages: int, queues: int) -> None:
    async with penstock.open(f"rocksdb://{folder}/store") as q:
        await q.create_queue("work", "topic = 'work'")
        for start in range(0, queues - 1, _CREATED):
            names = range(start, min(start + _CREATED, queues - 1))
            filters = [q.create_queue(f"q{n:05}", f"topic = 't{n:05}'") for n in names]
            await asyncio.gather(*filters)
        for start in range(0, messages, _BATCH):
            count = min(_BATCH, messages - start)
            await q.publish_batch("work", [NewMessage(b"x") for _ in range(count)])


# -- the server ---------------------------------------------------------------------------


def _viewer_cost(server: Server, seconds: float, queues: int) -> Figure:
    """The processor time of the server with a viewer, less that without, per second."""
    changing = min(CHANGING, queues - 1)
    with _publishing(server, changing):
        without = _load(server, seconds)
        with _viewing(server):
            beside = _load(server, seconds)
    cost = max(beside - without, 0.0001)
    return Figure(
        f"cost of a viewer, of 1 % of a core ({queues:,} queues, {changing} change per second)",
        cost / _SHARE,
        1.0,
        f"{cost:.2%}",
        f"{_SHARE:.0%}",
        at_most=True,
    )


def _load(server: Server, seconds: float) -> float:
    time.sleep(min(1.0, seconds))
    began, before = time.perf_counter(), _cpu_s(server.process.pid)
    time.sleep(seconds)
    return (_cpu_s(server.process.pid) - before) / (time.perf_counter() - began)


def _cpu_s(pid: int) -> float:
    """Processor time in nanoseconds' resolution: the usual counters have hundredths of seconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextmanager
def _publishing(server: Server, queues: int) -> Iterator[None]:
    """Publish one message per second to each of some queues."""
    stop = threading.Event()

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        headers = {"Content-Type": "text/x", "Penstock-Durability": "os"}
        while True:
            for number in range(queues):
                if stop.wait(1 / queues):
                    connection.close()
                    return
                connection.request("POST", f"/v1/topics/t{number:05}/messages", b"x", headers)
                connection.getresponse().read()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _viewing(server: Server) -> Iterator[None]:
    """A viewer that has received all queues, and reads on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/v1/stats/stream")
    link = connection.sock
    reply = connection.getresponse()
    complete = threading.Event()

    def work() -> None:
        while line := reply.readline():
            if b'"rows":[["' in line and b'"complete":true' in line:
                complete.set()

    thread = threading.Thread(target=work)
    thread.start()
    complete.wait(60)
    try:
        yield
    finally:
        link.shutdown(socket.SHUT_RDWR)
        thread.join()
        connection.close()


# -- the page ---------------------------------------------------------------------------------


def _in_a_browser(server: Server, queues: int) -> list[Figure]:
    # Imported here: the other parts of the benchmarks need no browser.
    from playwright.sync_api import ViewportSize, sync_playwright  # noqa: PLC0415

    chromium = shutil.which("chromium")
    if chromium is None:
        raise RuntimeError("chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_FLAGS))
        # A context of its own has nothing in its cache.
        viewport = ViewportSize(width=1440, height=900)
        pages = [browser.new_context(viewport=viewport).new_page() for _ in range(_LOADS)]
        painted = []
        for page in pages:
            page.goto(f"{server.url}/console/")
            page.wait_for_selector(f'.virtual[aria-rowcount="{queues + 1}"]', timeout=60_000)
            painted.append(page.evaluate(_PAINTED) / 1000)
        page = pages[-1]
        browser.start_tracing(page=page, categories=_TASKS)
        page.evaluate(_SCROLL)
        longest = _longest_task_s(browser.stop_tracing())
        browser.close()
    return [
        seconds_figure(
            f"first paint of the console, {queues:,} queues", min(painted), _FIRST_PAINT_S
        ),
        seconds_figure(
            f"longest task while {queues:,} rows scroll, processor time", longest, _LONG_TASK_S
        ),
    ]


def _longest_task_s(trace: bytes) -> float:
    """The processor time of the page's longest task: on a busy machine, a task also waits."""
    events = json.loads(trace)["traceEvents"]
    threads = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    times = [
        one["tdur"]
        for one in events
        if (one["pid"], one["tid"]) in threads and one["name"].endswith("RunTask") and "tdur" in one
    ]
    return float(max(times)) / 1e6
