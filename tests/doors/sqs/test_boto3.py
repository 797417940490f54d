"""boto3: the current one speaks JSON, and 1.28 the Query protocol; each with and without auth."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.doors.sqs import scenario
from tests.doors.sqs.conftest import Keys, Signed, installed
from tests.service.serving import Serve, surroundings


@pytest.mark.parametrize("step", scenario.STEPS, ids=lambda step: step.__name__)
def test_boto3(step: Any, sqs: Any) -> None:
    step(sqs)


def test_signed_requests_of_boto3(signed: Signed) -> None:
    sqs = signed.client()
    assert sqs.meta.service_model.metadata["protocol"] == "json"
    scenario.queues(sqs)
    scenario.messages(sqs)
    scenario.fifo(sqs)


@pytest.mark.parametrize("auth", [False, True], ids=["open", "signed"])
def test_the_query_protocol_of_old_boto3(auth: bool, serve: Serve) -> None:
    server = serve("--door", "sqs", *(("--auth",) if auth else ()))
    key = ["any", "any"]
    if auth:
        made = Signed(server, Keys("", "", server.told["key"])).new_key("admin:*")
        key = [made.access, made.secret]
    ran = subprocess.run(
        [sys.executable, scenario.__file__, server.url, *key],
        env={**surroundings(), "PYTHONPATH": str(installed("query"))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["query"]


def test_no_key_and_wrong_keys_are_refused(signed: Signed) -> None:
    def code(access: str, secret: str) -> str:
        return scenario.refusal(scenario.new_client(signed.server.url, access, secret).list_queues)

    assert code(signed.key.access, "wrong") == "SignatureDoesNotMatch"
    assert code("abcdefghijklmnop", signed.key.secret) == "InvalidClientTokenId"
    assert code("AKIAIOSFODNN7EXAMPLE", signed.key.secret) == "InvalidClientTokenId"


def test_grants_decide_what_a_key_may_do(signed: Signed) -> None:
    admin = signed.client()
    url = admin.create_queue(QueueName="granted")["QueueUrl"]
    admin.create_queue(QueueName="hidden")
    producer = signed.client(signed.new_key("publish:granted"))
    consumer = signed.client(signed.new_key("consume:granted"))
    url = producer.get_queue_url(QueueName="granted")["QueueUrl"]
    producer.send_message(QueueUrl=url, MessageBody="x")
    (message,) = scenario.receive(consumer, url)
    consumer.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert consumer.list_queues()["QueueUrls"] == [url]
    denied = "AccessDenied"
    assert scenario.refusal(producer.receive_message, QueueUrl=url) == denied
    assert scenario.refusal(consumer.send_message, QueueUrl=url, MessageBody="x") == denied
    assert scenario.refusal(consumer.purge_queue, QueueUrl=url) == denied
    assert scenario.refusal(consumer.get_queue_url, QueueName="hidden") == denied
    assert scenario.refusal(producer.create_queue, QueueName="new") == denied


def test_a_revoked_key_signs_nothing(signed: Signed) -> None:
    key = signed.new_key("admin:*")
    client = signed.client(key)
    client.list_queues()
    path = f"/v1/keys/{key.access}"
    assert signed.server.call("DELETE", path, credential=signed.key.credential).status == 204
    assert scenario.refusal(client.list_queues) == "InvalidClientTokenId"


def test_the_command_line_prints_what_sdks_read(signed: Signed) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "key", "create", "--sqs", "--grant", "read:*"],
        env={
            **surroundings(),
            "PENSTOCK_URL": signed.server.url,
            "PENSTOCK_CREDENTIAL": signed.key.credential,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.removeprefix("export ").partition("=") for line in ran.stdout.split("\n")[:2]]
    exported = {name: value for name, _, value in lines}
    access, secret = exported["AWS_ACCESS_KEY_ID"], exported["AWS_SECRET_ACCESS_KEY"]
    scenario.new_client(signed.server.url, access, secret).list_queues()
    assert os.environ.get("AWS_ACCESS_KEY_ID") != access
