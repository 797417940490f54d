"""Signatures that botocore makes, and what has been done to them on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.server.access import Keys, NewKey
from tests.unit.server.conftest import Answer
from tests.unit.server.doors.sqs.conftest import HOST, JSON, Sqs
from tests.unit.server.doors.sqs.test_hostile import json_error, xml_error

BODY = b'{"QueueNamePrefix": "a"}'
MINUTE_MS = 60_000


async def new_key(sqs: Sqs) -> NewKey:
    return await sqs.door.keys.create("shop", ["admin:*"])


def signed(key: NewKey, body: bytes = BODY) -> dict[str, str]:
    """The headers of a signed request."""
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": JSON, "Host": HOST}
    request = AWSRequest("POST", f"http://{HOST}/", headers, body)
    credentials = Credentials(key.info.id, key.signing_secret)
    SigV4Auth(credentials, "sqs", "eu-west-1").add_auth(request)
    return dict(request.headers)


async def send(sqs: Sqs, headers: dict[str, str], body: bytes = BODY) -> Answer:
    return await sqs.door.call("POST", "/", body, {k.lower(): v for k, v in headers.items()})


async def test_a_signed_request_is_that_of_its_key(guarded: Sqs) -> None:
    key = await new_key(guarded)
    await guarded.door.broker.for_tenant("shop").create_queue("abc", "topic = 'abc'")
    await guarded.door.broker.create_queue("another", "topic = 'another'")
    answer = await send(guarded, signed(key))
    assert answer.json() == {"QueueUrls": [f"http://{HOST}/000000000000/abc"]}


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda h: h.pop("Authorization"), "MissingAuthenticationToken"),
        (lambda h: h.update(Authorization="Bearer x"), "IncompleteSignature"),
        (lambda h: h.update(Authorization=h["Authorization"][:-1]), "IncompleteSignature"),
        (lambda h: h.update({"X-Amz-Date": "yesterday"}), "IncompleteSignature"),
        (lambda h: h.update({"X-Amz-Date": "20000101T000000Z"}), "IncompleteSignature"),
        (lambda h: h.update(Host="other.example.org"), "SignatureDoesNotMatch"),
        (lambda h: h.update({"X-Amz-Target": "AmazonSQS.PurgeQueue"}), "SignatureDoesNotMatch"),
        (
            lambda h: h.update(
                Authorization=h["Authorization"].replace(";x-amz-target", "")
            ),
            "SignatureDoesNotMatch",
        ),
        (
            lambda h: h.update(Authorization=h["Authorization"].replace("/sqs/", "/s3/")),
            "IncompleteSignature",
        ),
        (
            lambda h: h.update(
                Authorization=h["Authorization"][:-8] + h["Authorization"][-8:][::-1]
            ),
            "SignatureDoesNotMatch",
        ),
    ],
)  # fmt: skip
async def test_a_changed_request_is_refused(
    guarded: Sqs, change: Callable[[dict[str, str]], object], error: str
) -> None:
    headers = signed(await new_key(guarded))
    change(headers)
    assert json_error(await send(guarded, headers)) == error
    assert guarded.door.service.budget.held == 0


async def test_the_body_is_signed(guarded: Sqs) -> None:
    key = await new_key(guarded)
    assert json_error(await send(guarded, signed(key), b"{}")) == "SignatureDoesNotMatch"


async def test_a_signature_is_valid_for_fifteen_minutes(guarded: Sqs) -> None:
    headers = signed(await new_key(guarded))
    guarded.door.clock.advance(14 * MINUTE_MS)
    assert (await send(guarded, headers)).status == 200
    guarded.door.clock.advance(2 * MINUTE_MS)
    assert json_error(await send(guarded, headers)) == "SignatureDoesNotMatch"


async def test_presigned_urls_expire(guarded: Sqs) -> None:
    key = await new_key(guarded)
    url = f"http://{HOST}/?Action=ListQueues&Version=2012-11-05"
    request = AWSRequest("GET", url, {"Host": HOST})
    credentials = Credentials(key.info.id, key.signing_secret)
    SigV4QueryAuth(credentials, "sqs", "eu-west-1", expires=3_600).add_auth(request)
    target = request.url.removeprefix(f"http://{HOST}")

    async def call(path: str) -> Answer:
        return await guarded.door.call("GET", path, headers={"host": HOST})

    assert (await call(target)).status == 200
    longer = target.replace("X-Amz-Expires=3600", "X-Amz-Expires=86400")
    assert xml_error(await call(longer)) == "SignatureDoesNotMatch"
    assert xml_error(await call(target.replace("List", "Purge"))) == "SignatureDoesNotMatch"
    guarded.door.clock.advance(61 * MINUTE_MS)
    assert xml_error(await call(target)) == "SignatureDoesNotMatch"


async def test_the_id_of_a_key_is_no_credential_elsewhere(guarded: Sqs) -> None:
    """A signed request caches the credential under the key's id, which proves nothing by itself."""
    key = await new_key(guarded)
    assert (await send(guarded, signed(key))).status == 200
    for text in (key.info.id, f"Bearer {key.info.id}"):
        answer = await guarded.door.call("GET", "/v1/queues", headers={"authorization": text})
        assert answer.status == 401


async def test_the_secret_is_the_same_on_every_server_of_a_store(guarded: Sqs) -> None:
    key = await new_key(guarded)
    again = Keys(guarded.door.broker.engine, guarded.door.clock)
    assert await again.signing_secrets.of(key.info.id) == key.signing_secret
    assert key.signing_secret not in (await again.list("shop"))[0].id
