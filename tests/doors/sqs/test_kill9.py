"""kill -9 of the server between sends and receives through the door: nothing that was sent is lost.

PENSTOCK_TEST_SQS_KILLS=30 repeats it as often as a release does by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.doors.sqs.scenario import new_client
from tests.service.serving import Serve

KILLS = int(os.environ.get("PENSTOCK_TEST_SQS_KILLS", "3"))
SENDERS = 4


def test_nothing_that_was_sent_is_lost(serve: Serve) -> None:
    acknowledged: set[str] = set()
    received: set[str] = set()
    deleted: set[str] = set()
    for round_number in range(KILLS):
        server = serve("--door", "sqs")
        sqs = new_client(server.url)
        url = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "1"})["QueueUrl"]

        def send(
            sender: int,
            sqs: Any = sqs,
            url: str = url,
            prefix: int = round_number,
            kill: Callable[[], None] = server.process.kill,
        ) -> int:
            """Send until the server is killed."""
            count = 0
            while True:
                bodies = [f"{prefix}-{sender}-{count}-{n}" for n in range(10)]
                entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)]
                try:
                    reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
                except (BotoCoreError, ClientError):
                    return count
                acknowledged.update(bodies[int(one["Id"])] for one in reply["Successful"])
                count += 1
                if count == 5 and sender == 0:
                    kill()

        def receive(sqs: Any = sqs, url: str = url) -> None:
            while True:
                try:
                    take(sqs, url, received, deleted)
                except (BotoCoreError, ClientError):
                    return

        with ThreadPoolExecutor(SENDERS + 1) as threads:
            sending = [threads.submit(send, number) for number in range(SENDERS)]
            receiving = threads.submit(receive)
            assert sum(future.result() for future in sending) >= 5
            receiving.result()
        server.wait()
    server = serve("--door", "sqs")
    sqs = new_client(server.url)
    url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    while take(sqs, url, received, deleted, WaitTimeSeconds=2):
        pass
    assert acknowledged
    assert acknowledged <= received
    assert len(deleted) >= len(acknowledged)


def take(sqs: Any, url: str, received: set[str], deleted: set[str], **more: Any) -> int:
    """Receive and delete a batch."""
    reply = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **more)
    found = reply.get("Messages", [])
    received.update(one["Body"] for one in found)
    if found:
        handles = [
            {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)
        ]
        done = sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]
        deleted.update(found[int(one["Id"])]["Body"] for one in done)
    return len(found)
