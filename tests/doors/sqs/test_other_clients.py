"""Other clients of SQS, unchanged: aws-cli, aiobotocore, the JavaScript SDK with sqs-consumer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from aiobotocore.session import get_session

from tests.doors.sqs.conftest import Signed, installed
from tests.service.serving import surroundings

JAVASCRIPT = Path(__file__).with_name("javascript") / "clients.mjs"


def environment(signed: Signed) -> dict[str, str]:
    return {
        **surroundings(),
        "AWS_ACCESS_KEY_ID": signed.key.access,
        "AWS_SECRET_ACCESS_KEY": signed.key.secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "ENDPOINT": signed.server.url,
    }


def test_aws_cli(signed: Signed) -> None:
    environ = {**environment(signed), "PYTHONPATH": str(installed("query"))}

    def aws(*arguments: str) -> dict:
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "awscli", "sqs", *arguments, "--output", "json"),
                *("--endpoint-url", signed.server.url),
            ],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout or "{}")

    url = aws("create-queue", "--queue-name", "from-cli")["QueueUrl"]
    attributes = '{"city": {"DataType": "String", "StringValue": "Köln"}}'
    body = ("--message-body", "hello", "--message-attributes", attributes)
    sent = aws("send-message", "--queue-url", url, *body)
    (message,) = aws(
        *("receive-message", "--queue-url", url, "--message-attribute-names", "All"),
        *("--wait-time-seconds", "1", "--attribute-names", "All"),
    )["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["MessageAttributes"]["city"]["StringValue"] == "Köln"
    aws("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])


async def test_aiobotocore(signed: Signed) -> None:
    async with get_session().create_client(
        "sqs",
        endpoint_url=signed.server.url,
        region_name="us-east-1",
        aws_access_key_id=signed.key.access,
        aws_secret_access_key=signed.key.secret,
    ) as sqs:
        url = (await sqs.create_queue(QueueName="from-aiobotocore"))["QueueUrl"]
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(10)]
        assert (
            len((await sqs.send_message_batch(QueueUrl=url, Entries=entries))["Successful"]) == 10
        )
        found = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        assert [one["Body"] for one in found["Messages"]] == [str(n) for n in range(10)]
        for one in found["Messages"]:
            await sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])


def test_the_javascript_sdk_and_sqs_consumer(signed: Signed, tmp_path: Path) -> None:
    # A module's packages are found beside it.
    script = tmp_path / "clients.mjs"
    script.write_bytes(JAVASCRIPT.read_bytes())
    (tmp_path / "node_modules").symlink_to(installed("javascript", "node_modules"))
    ran = subprocess.run(
        ["node", str(script)], env=environment(signed), capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "passed"), ran.stderr
