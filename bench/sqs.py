"""The SQS door: boto3 against it, against moto's SQS server, and against the native door.

Every thread sends a batch of ten, receives ten and deletes them, with its own connection. boto3
takes more processor time than any server, so the two doors are compared by a plain HTTP client.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import boto3
import msgspec
from botocore.config import Config

from bench.measuring import Figure, scratch
from bench.processes import Server, free_port, penstock_server, running
from penstock.wire.codecs import BATCH_JSON, JSON

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
                cycles(lambda: plain_cycle(ours.url), seconds),
                cycles(lambda: native_cycle(ours.url), seconds),
            )
            for _ in range(rounds)
        ]
    door, reference, plain, native = (median(rates) for rates in zip(*found, strict=True))
    work = f"batches of {BATCH} over {THREADS} threads"
    return [
        Figure(
            f"boto3 through the SQS door, {work}, against moto's server",
            median(one / other for one, other, _, _ in found),
            3.0,
            f"{door:,.0f} messages a second",
            f"{reference:,.0f}",
        ),
        Figure(
            f"the SQS door, {work}, against the native door, both by a plain HTTP client",
            median(one / other for _, _, one, other in found),
            0.5,
            f"{plain:,.0f} messages a second",
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
            # Moto takes minutes for its part on a busy machine.
            config=Config(retries={"max_attempts": 0}, read_timeout=600),
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


class _Caller:
    """One connection, with as little of a client as possible: boto3 costs more than any server."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(url.removeprefix("http://"))
        self.close = self._connection.close

    def __call__(self, path: str, body: object, media: str, **headers: str) -> Any:
        sent = {"Content-Type": media, **headers}
        self._connection.request("POST", path, msgspec.json.encode(body), sent)
        reply = self._connection.getresponse()
        content = reply.read()
        assert reply.status < 300, content
        return msgspec.json.decode(content)


def plain_cycle(url: str) -> tuple[Cycle, Callable[[], None]]:
    """Send, receive and delete through the SQS door without an SDK."""
    caller = _Caller(url)

    def ask(action: str, **members: object) -> Any:
        headers = {"X-Amz-Target": f"AmazonSQS.{action}"}
        return caller("/", members, "application/x-amz-json-1.0", **headers)

    queue = ask("CreateQueue", QueueName="plain")["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": _BODY} for number in range(BATCH)]

    def cycle() -> int:
        ask("SendMessageBatch", QueueUrl=queue, Entries=entries)
        found = ask("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=BATCH).get("Messages", [])
        if found:
            handles = [
                {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
                for number, one in enumerate(found)
            ]
            ask("DeleteMessageBatch", QueueUrl=queue, Entries=handles)
        return len(found)

    return cycle, caller.close


def native_cycle(url: str) -> tuple[Cycle, Callable[[], None]]:
    """Publish, claim and settle through the native door, in JSON and by the same client."""
    caller = _Caller(url)
    batch = {"messages": [{"payload_text": _BODY} for _ in range(BATCH)]}

    def cycle() -> int:
        caller("/v1/topics/native/messages", batch, BATCH_JSON)
        claim = {"limit": BATCH}
        found = caller("/v1/queues/native/claims", claim, JSON)["deliveries"]
        if found:
            acks = [{"verb": "ack", "receipt": one["receipt"]} for one in found]
            caller("/v1/queues/native/settlements", {"settlements": acks}, JSON)
        return len(found)

    return cycle, caller.close
