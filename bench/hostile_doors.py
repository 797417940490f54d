"""Hostile bodies to the doors beside the native one: how long one may block the event loop.

Every kind of body, and of reply, that once blocked the loop for more than 20 ms is sent once per
round, to the application with all doors on a store on disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeAlias

import penstock
from bench.bounds import HOLD_MS, Longest, loop_holds, of_bound
from bench.measuring import Figure, scratch
from penstock.broker import Broker, BrokerOptions
from penstock.server.access import Access, Keys
from penstock.server.app import Application
from penstock.server.doors import load_doors
from penstock.server.memory import uncollected
from penstock.server.metrics import Metrics
from penstock.server.native import ROUTES
from penstock.server.service import Service
from penstock.settings import Settings

MB = 2**20
#: The largest body of a batch of tasks.
LARGEST = 64 * MB
_PART = 256 * 1024
_FORM = {"content-type": "application/x-www-form-urlencoded"}
_JSON = {"content-type": "application/json"}
_QUEUE = "http://localhost/000000000000/jobs"

Request: TypeAlias = tuple[str, str, dict[str, str], bytes]


def hostile() -> Iterator[tuple[Request, int]]:
    """Requests that are expensive to read or to answer, and the expected status of each."""
    yield from _to_sqs()
    tasks = "/v1/codeq/tasks"
    many = b'{"%s":[' + b"{}," * (LARGEST // 3 - 100) + b"{}]}"
    yield ("POST", f"{tasks}/batch", _JSON, many % b"tasks"), 400
    yield ("POST", f"{tasks}/batch/results", _JSON, many % b"results"), 400
    nested = b'{"results":[{"artifacts":[' + b"{}," * (2 * MB) + b"{}]}]}"
    yield ("POST", f"{tasks}/batch/results", _JSON, nested), 400
    items = [{"command": "C", "payload": "x" * 600_000}] * (LARGEST // 700_000)
    yield ("POST", f"{tasks}/batch", _JSON, json.dumps({"tasks": items}).encode()), 200
    claims = {"commands": [f"c{number}" for number in range(10_000)]}
    yield ("POST", f"{tasks}/claim", _JSON, json.dumps(claims).encode()), 400
    metadata = {"topic": "t", "payload": "x", "metadata": {str(n): "" for n in range(400_000)}}
    yield ("POST", "/api/messages", _JSON, json.dumps(metadata).encode()), 400
    escaped = b'{"topic":"t","payload":"' + b"\\u0001" * (MB - 100) + b'"}'
    for _ in range(10):
        yield ("POST", "/api/messages", _JSON, escaped), 201
    yield ("GET", "/api/messages?topic=t", {}, b""), 200
    yield ("POST", "/api/messages/dequeue", _JSON, b'{"topic":"t","count":10}'), 200


def _to_sqs() -> Iterator[tuple[Request, int]]:
    def ask(action: str, **members: object) -> Request:
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"AmazonSQS.{action}",
        }
        return "POST", "/", headers, json.dumps({"QueueUrl": _QUEUE, **members}).encode()

    yield ask("CreateQueue", QueueName="jobs"), 200
    yield ask("SendMessageBatch", Entries=[{}] * 1_000_000), 400
    attributes = {str(number): {} for number in range(300_000)}
    yield ask("SendMessage", MessageBody="x", MessageAttributes=attributes), 400
    yield ask("TagQueue", Tags={str(number): "" for number in range(300_000)}), 413
    form = f"Action=SendMessage&QueueUrl={_QUEUE}&MessageBody=".encode()
    yield ("POST", "/", _FORM, form + b"%3C" * (MB + 1)), 400
    for _ in range(10):
        yield ("POST", "/", _FORM, form + b"%3C" * MB), 200
    receive = f"Action=ReceiveMessage&MaxNumberOfMessages=10&QueueUrl={_QUEUE}"
    yield ("POST", "/", _FORM, f"{receive}&VisibilityTimeout=0".encode()), 200
    yield ask("ReceiveMessage", MaxNumberOfMessages=10, WaitTimeSeconds=1), 200


async def _call(app: Application, request: Request) -> int:
    method, target, headers, body = request
    path, _, query = target.partition("?")
    sent = {"host": "localhost", **headers}
    if body:
        sent["content-length"] = str(len(body))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), text.encode()) for name, text in sent.items()],
    }
    begins = iter(range(0, max(1, len(body)), _PART))
    status = 0

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        begin = next(begins, None)
        if begin is None:
            await asyncio.Event().wait()  # The caller stays connected.
        assert begin is not None
        more = begin + _PART < len(body)
        return {"type": "http.request", "body": body[begin : begin + _PART], "more_body": more}

    async def send(event: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = event.get("status", status)
        await asyncio.sleep(0)

    await app(scope, receive, send)
    return status


def _application(broker: Broker) -> Application:
    clock = broker.engine.clock
    access = Access(clock, Keys(broker.engine, clock), enabled=False)
    service = Service(broker, access, Metrics(broker.engine))
    settings = Settings(store="memory://", door="codeq,mq,queue-ti,sqs", queue_ti_grpc_port=0)
    doors = [opener(service, settings) for opener in load_doors(settings.door)]
    return Application(service, ROUTES, doors)


async def hostile_doors(rounds: int) -> list[Figure]:
    """The longest time that one callback blocked the loop."""
    found: list[Longest] = []
    requests = list(hostile())
    for _ in range(rounds):
        with scratch() as folder:
            url = f"rocksdb://{folder}/store"
            async with penstock.open(url, options=BrokerOptions()) as broker:
                app = _application(broker)
                with uncollected(), loop_holds() as longest:
                    for request, status in requests:
                        answered = await _call(app, request)
                        if answered != status:
                            raise RuntimeError(f"{request[:3]} was answered {answered}")
                found.append(longest)
    name = f"longest loop hold, hostile bodies of up to {LARGEST // MB} MiB to doors"
    return [of_bound(name, found, HOLD_MS)]
