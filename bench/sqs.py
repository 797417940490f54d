"""The SQS door: boto3 against it, against moto's SQS server, and against the native door.

Every thread sends a batch of ten, receives ten and deletes them, with its own connection. boto3
takes most of the processor time of the machine in every case, so the native door is driven by a
blocking client too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import boto3
from botocore.config import Config

import penstock.sync
from bench.measuring import Figure, scratch
from bench.processes import Server, free_port, penstock_server, running
from penstock import Ack, NewMessage

THREADS = 32
BATCH = 10
_BODY = "x" * 1_000
_QUEUE = "work"

#: One cycle; returns how many messages it completed.
Cycle = Callable[[], int]


def sqs_door(seconds: float, rounds: int) -> list[Figure]:
    """Messages per second, sent, received and deleted."""
    with (
        scratch() as folder,
        penstock_server(folder, "--door", "sqs") as ours,
        moto_server(folder) as moto,
    ):
        found = [
            (
                cycles(lambda: boto3_cycle(ours.url), seconds),
                cycles(lambda: boto3_cycle(moto.url), seconds),
                cycles(lambda: native_cycle(ours.url), seconds),
            )
            for _ in range(rounds)
        ]
    door, reference, native = (median(rates) for rates in zip(*found, strict=True))
    name = f"boto3 through the SQS door, batches of {BATCH} over {THREADS} threads"
    rate = f"{door:,.0f} messages a second"
    return [
        Figure(
            f"{name}, against moto's server",
            median(one / other for one, other, _ in found),
            3.0,
            rate,
            f"{reference:,.0f}",
        ),
        Figure(
            f"{name}, against penstock.sync through the native door",
            median(one / other for one, _, other in found),
            0.5,
            rate,
            f"{native:,.0f}",
        ),
    ]


@contextmanager
def moto_server(folder: Path) -> Iterator[Server]:
    """Moto's server, which keeps everything in memory."""
    del folder
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port) as server:
        yield server


def cycles(connect: Callable[[], tuple[Cycle, Callable[[], None]]], seconds: float) -> float:
    """Messages per second of all threads together."""
    begun = threading.Barrier(THREADS + 1)
    end = threading.Event()

    def run() -> int:
        cycle, close = connect()
        try:
            cycle()
            begun.wait()
            done = 0
            while not end.is_set():
                done += cycle()
            return done
        finally:
            close()

    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(run) for _ in range(THREADS)]
        begun.wait()
        begin = time.monotonic()
        end.wait(seconds)
        end.set()
        done = sum(thread.result() for thread in running)
        return done / (time.monotonic() - begin)


_connecting = threading.Lock()


@cache
def _session() -> Any:
    """One session: each reads the models of all services."""
    return boto3.session.Session()


def boto3_cycle(url: str) -> tuple[Cycle, Callable[[], None]]:
    """Send, receive and delete through SQS."""
    # Making clients is not safe in several threads.
    with _connecting:
        sqs: Any = _session().client(
            "sqs",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"max_attempts": 0}),
        )
    queue = sqs.create_queue(QueueName=_QUEUE)["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": _BODY} for number in range(BATCH)]

    def cycle() -> int:
        sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        assert len(sent["Successful"]) == BATCH
        found = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=BATCH).get("Messages", [])
        if found:
            handles = [
                {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
                for number, one in enumerate(found)
            ]
            sqs.delete_message_batch(QueueUrl=queue, Entries=handles)
        return len(found)

    return cycle, sqs.close


def native_cycle(url: str) -> tuple[Cycle, Callable[[], None]]:
    """Publish, claim and settle through the native door."""
    q = penstock.sync.connect(url)
    q.ensure_queue("native", "topic = 'native'")
    body = _BODY.encode()

    def cycle() -> int:
        q.publish_batch("native", [NewMessage(body) for _ in range(BATCH)])
        found = q.claim("native", limit=BATCH)
        if found:
            q.settle("native", [Ack(one.receipt) for one in found])
        return len(found)

    return cycle, q.close
