"""The service: HTTP server and client processes, against Redis on the same work in the same run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import penstock
from bench.lanes import BATCH, GROUP, QUEUE, body
from bench.measuring import Figure, scratch
from bench.processes import Server, bare_server, penstock_server, redis_server
from penstock import BrokerOptions, NewMessage

_CONNECTIONS = 64
_RATE = 500
_LUA = """
wrk.method = "POST"
wrk.body = '{"payload":"' .. string.rep("x", 1000) .. '"}'
wrk.headers["content-type"] = "application/json"
"""


def publish_over_http(seconds: float, rounds: int) -> Figure:
    """Durable single publishes over 64 connections against a handler that only parses."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk is missing: apt-get install wrk")
    with scratch() as folder, penstock_server(folder) as server, bare_server() as bare:
        script = folder / "post.lua"
        script.write_text(_LUA)
        path = f"/v1/topics/{QUEUE}/messages"
        pairs = [
            (
                _wrk(wrk, script, server.url + path, seconds),
                _wrk(wrk, script, bare.url + "/", seconds),
            )
            for _ in range(rounds)
        ]
    ours, reference = (median(rates) for rates in zip(*pairs, strict=True))
    return Figure(
        "durable publish over HTTP, 64 connections, against a bare ASGI handler",
        median(a / b for a, b in pairs),
        0.35,
        f"{ours:,.0f} a second",
        f"{reference:,.0f}",
    )


def _wrk(wrk: str, script: Path, url: str, seconds: float) -> float:
    command = [wrk, "-t1", f"-c{_CONNECTIONS}", f"-d{max(1, round(seconds))}", "-s", str(script)]
    out = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(out)
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    assert found is not None
    return float(found[1])


async def batches_over_http(seconds: float, rounds: int) -> Figure:
    """Batches of a hundred over HTTP against the same batches in this process."""
    with scratch() as folder, penstock_server(folder) as server:
        options = BrokerOptions()
        async with (
            penstock.connect(server.url) as client,
            penstock.open(f"rocksdb://{folder}/here", options=options) as broker,
        ):
            pairs = [
                (await _batches(client, seconds), await _batches(broker, seconds))
                for _ in range(rounds)
            ]
    ours, reference = (median(rates) for rates in zip(*pairs, strict=True))
    return Figure(
        "publish in batches of 100 over HTTP, against the engine in process",
        median(a / b for a, b in pairs),
        0.5,
        f"{ours:,.0f} messages a second",
        f"{reference:,.0f}",
    )


async def _batches(q: Any, seconds: float) -> float:
    """Four callers, so that neither side is idle while it waits for the disk."""
    done = 0
    begin = time.monotonic()

    async def one() -> None:
        nonlocal done
        while time.monotonic() - begin < seconds:
            await q.publish_batch(QUEUE, [NewMessage(body(n)) for n in range(BATCH)])
            done += BATCH

    await asyncio.gather(*(one() for _ in range(4)))
    return done / (time.monotonic() - begin)


def whole_way(count: int, rounds: int) -> list[Figure]:
    """One producer and one consumer process, every message checked, against Redis Streams."""
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    for _ in range(rounds):
        with scratch() as folder:
            with penstock_server(folder) as server:
                ours.append(_whole_way(server, server.url, "", count, folder))
            with redis_server(folder / "redis") as server:
                _make_group(server.port)
                theirs.append(_whole_way(server, str(server.port), "-redis", count, folder))
    rate, cpu = (median(values) for values in zip(*ours, strict=True))
    redis_rate, redis_cpu = (median(values) for values in zip(*theirs, strict=True))
    return [
        Figure(
            "publish, claim, ack between two processes, against Redis Streams (always)",
            median(a[0] / b[0] for a, b in zip(ours, theirs, strict=True)),
            1.2,
            f"{rate:,.0f} messages a second",
            f"{redis_rate:,.0f}",
        ),
        Figure(
            "processor seconds for a million messages, server and clients",
            cpu / 45,
            1.0,
            f"{cpu:.1f} s",
            f"45 s; Redis {redis_cpu:.1f} s",
            at_most=True,
        ),
    ]


def _whole_way(
    server: Server, target: str, suffix: str, count: int, folder: Path
) -> tuple[float, float]:
    """The rate, and the CPU seconds per million messages."""
    if not suffix:
        subprocess.run(
            [*_lane("produce", target), "100", str(folder / "warm")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(
            [*_lane("consume", target), "100", str(folder / "warm")],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    progress = str(folder / f"progress{suffix}")
    cpu = server.cpu_s()
    lanes = [
        subprocess.Popen(
            [*_lane(role + suffix, target), str(count), progress], stdout=subprocess.PIPE
        )
        for role in ("produce", "consume")
    ]
    reports = [json.loads(lane.communicate()[0]) for lane in lanes]
    seconds = reports[1]["ended"] - reports[0]["began"]
    used = server.cpu_s() - cpu + sum(report["cpu_s"] for report in reports)
    return count / seconds, used * 1_000_000 / count


def _make_group(port: int) -> None:
    import redis  # noqa: PLC0415

    with redis.Redis(port=port) as connection:
        connection.xgroup_create(QUEUE, GROUP, id="0", mkstream=True)


def many_tasks(seconds: float, rounds: int) -> Figure:
    """64 tasks of one client process, one publish per call, against Redis."""
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        with scratch() as folder:
            with penstock_server(folder) as server:
                ours = _report("many", server.url, str(seconds))["rate"]
            with redis_server(folder / "redis") as server:
                theirs = _report("many-redis", str(server.port), str(seconds))["rate"]
            pairs.append((ours, theirs))
    rate, reference = (median(rates) for rates in zip(*pairs, strict=True))
    return Figure(
        "64 tasks of one client, one publish a call, against Redis",
        median(a / b for a, b in pairs),
        1.2,
        f"{rate:,.0f} a second",
        f"{reference:,.0f}",
    )


def latency(seconds: float, rounds: int) -> list[Figure]:
    """The time from publish to handler at 500 messages per second, with one waiting consumer."""
    count = max(200, round(seconds * _RATE))
    p50s: list[float] = []
    p99s: list[float] = []
    bounds: list[float] = []
    for _ in range(rounds):
        with scratch() as folder, penstock_server(folder) as server:
            bounds.append(6 + 2 * _sync_p99_ms(folder))
            _report("produce", server.url, "100", str(folder / "warm"))
            _report("consume", server.url, "100", str(folder / "warm"))
            consumer = subprocess.Popen(
                [*_lane("latency-consumer", server.url), str(count)], stdout=subprocess.PIPE
            )
            time.sleep(1.0)
            _report("latency-producer", server.url, str(count), str(_RATE))
            found = json.loads(consumer.communicate()[0])
            p50s.append(found["p50_ms"])
            p99s.append(found["p99_ms"])
    return [
        Figure(
            "latency of a message, median, against 2 ms",
            median(p50s) / 2,
            1.0,
            f"{median(p50s):.2f} ms",
            "2 ms",
            at_most=True,
        ),
        Figure(
            "latency of a message, 99th percentile, against 6 ms and two syncs of the disk",
            median(p99 / bound for p99, bound in zip(p99s, bounds, strict=True)),
            1.0,
            f"{median(p99s):.2f} ms",
            f"{median(bounds):.2f} ms",
            at_most=True,
        ),
    ]


def _sync_p99_ms(folder: Path) -> float:
    """The disk's 99th percentile for appending a message and syncing it."""
    taken: list[float] = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(500):
            file.write(body(0))
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - begin) * 1000)
    taken.sort()
    return taken[len(taken) * 99 // 100]


def _lane(role: str, target: str) -> list[str]:
    return [sys.executable, "-m", "bench.lanes", role, target]


def _report(role: str, target: str, *rest: str) -> dict[str, Any]:
    out = subprocess.run([*_lane(role, target), *rest], check=True, stdout=subprocess.PIPE).stdout
    report: dict[str, Any] = json.loads(out)
    return report
