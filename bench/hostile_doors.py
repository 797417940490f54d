"""Hostile bodies to the doors beside the native one: how long one may block the event loop.

Every kind of body, and of reply, that once blocked the loop for more than 20 ms is sent once per
round, to the application with all doors on a store on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import penstock
from bench.bounds import HOLD_MS, Longest, loop_holds, of_bound
from bench.hostile import MB, Request, call
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

#: The largest body of a batch of tasks.
LARGEST = 64 * MB
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_AMZ_JSON = "application/x-amz-json-1.0"
_TARGET = b"x-amz-target"
_QUEUE = "http://localhost/000000000000/jobs"

#: A request, the operation of SQS that it names in a header, and the expected status.
Hostile = tuple[Request, str, int]


def hostile() -> Iterator[Hostile]:
    """Requests that are expensive to read or to answer."""
    yield from _to_sqs()
    tasks = "/v1/codeq/tasks"

    def post(path: str, body: object, status: int) -> Hostile:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return ("POST", path, _JSON, raw), "", status

    many = b'{"%s":[' + b"{}," * (LARGEST // 3 - 100) + b"{}]}"
    yield post(f"{tasks}/batch", many % b"tasks", 400)
    yield post(f"{tasks}/batch/results", many % b"results", 400)
    nested = b'{"results":[{"artifacts":[' + b"{}," * (2 * MB) + b"{}]}]}"
    yield post(f"{tasks}/batch/results", nested, 400)
    items = [{"command": "C", "payload": "x" * 600_000}] * (LARGEST // 700_000)
    yield post(f"{tasks}/batch", {"tasks": items}, 200)
    yield post(f"{tasks}/claim", {"commands": [f"c{number}" for number in range(10_000)]}, 400)
    metadata = {str(number): "" for number in range(400_000)}
    yield post("/api/messages", {"topic": "t", "payload": "x", "metadata": metadata}, 400)
    escaped = b'{"topic":"t","payload":"' + b"\\u0001" * (MB - 100) + b'"}'
    for _ in range(10):
        yield post("/api/messages", escaped, 201)
    yield ("GET", "/api/messages?topic=t", _JSON, b""), "", 200
    yield post("/api/messages/dequeue", {"topic": "t", "count": 10}, 200)


def _to_sqs() -> Iterator[Hostile]:
    def ask(action: str, status: int, **members: object) -> Hostile:
        body = json.dumps({"QueueUrl": _QUEUE, **members}).encode()
        return ("POST", "/", _AMZ_JSON, body), f"AmazonSQS.{action}", status

    def form(fields: str, status: int, body: bytes = b"") -> Hostile:
        return ("POST", "/", _FORM, f"QueueUrl={_QUEUE}&{fields}".encode() + body), "", status

    yield ask("CreateQueue", 200, QueueName="jobs")
    yield ask("SendMessageBatch", 400, Entries=[{}] * 1_000_000)
    attributes: dict[str, object] = {str(number): {} for number in range(300_000)}
    yield ask("SendMessage", 400, MessageBody="x", MessageAttributes=attributes)
    yield ask("TagQueue", 413, Tags={str(number): "" for number in range(300_000)})
    send = "Action=SendMessage&MessageBody="
    yield form(send, 400, b"%3C" * (MB + 1))
    for _ in range(10):
        yield form(send, 200, b"%3C" * MB)
    yield form("Action=ReceiveMessage&MaxNumberOfMessages=10&VisibilityTimeout=0", 200)
    yield ask("ReceiveMessage", 200, MaxNumberOfMessages=10, WaitTimeSeconds=1)


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
                    for request, operation, status in requests:
                        headers = [(_TARGET, operation.encode())] if operation else []
                        answered = await call(app, request, *headers)
                        if answered != status:
                            raise RuntimeError(f"{request[:3]} was answered {answered}")
                found.append(longest)
    name = f"longest loop hold, hostile bodies of up to {LARGEST // MB} MiB to doors"
    return [of_bound(name, found, HOLD_MS)]
