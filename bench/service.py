"""The service: the HTTP server against a bare handler, and the client against the engine."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import penstock
from bench.measuring import Figure, scratch
from bench.messages import body
from bench.processes import bare_server, penstock_server
from penstock import BrokerOptions, NewMessage

QUEUE = "work"
BATCH = 100
CONNECTIONS = 64
_LUA = """
wrk.method = "POST"
wrk.body = '{"payload":"' .. string.rep("x", 1000) .. '"}'
wrk.headers["content-type"] = "application/json"
"""


def publish_over_http(seconds: float, rounds: int) -> Figure:
    """Durable single publishes over 64 connections against a handler that only parses."""
    with scratch() as folder, penstock_server(folder) as server, bare_server() as bare:
        pairs = [
            (
                publish_rate(server.url, folder, seconds, CONNECTIONS),
                publish_rate(bare.url, folder, seconds, CONNECTIONS),
            )
            for _ in range(rounds)
        ]
    ours, reference = (median(rates) for rates in zip(*pairs, strict=True))
    return Figure(
        f"durable publish over HTTP, {CONNECTIONS} connections, against a bare ASGI handler",
        median(a / b for a, b in pairs),
        0.35,
        f"{ours:,.0f} a second",
        f"{reference:,.0f}",
    )


def publish_rate(url: str, folder: Path, seconds: float, connections: int) -> float:
    """Publish calls per second, one message each, over so many connections."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk is missing: apt-get install wrk")
    script = folder / "post.lua"
    script.write_text(_LUA)
    command = [wrk, "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", "-s", str(script)]
    target = f"{url}/v1/topics/{QUEUE}/messages"
    out = subprocess.run([*command, target], check=True, capture_output=True, text=True).stdout
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
