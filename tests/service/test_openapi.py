"""The OpenAPI document says what the server does: called with all that it allows, and more.

Every operation but the stream, which never ends, is called with generated requests, good and
bad; no reply is a 5xx, none has a status, a type or a shape that the document does not name,
and none is given without the credential that the document asks for.

PENSTOCK_TEST_SCHEMATHESIS sets how many requests are made up for each operation, and
PENSTOCK_TEST_SCHEMATHESIS_SEED which.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

import penstock
from penstock.client import Client
from penstock.model.delivery import Receipt
from penstock.model.queue import Ordering, TopicPolicy
from tests.service.serving import Serve, surroundings

EXAMPLES = int(os.environ.get("PENSTOCK_TEST_SCHEMATHESIS", "12"))
#: Ten times what it takes.
SECONDS = 120 + 10 * EXAMPLES
#: The same requests in every run, unless one wants others.
SEED = os.environ.get("PENSTOCK_TEST_SCHEMATHESIS_SEED", "1")
HOOKS = "tests.service.schemathesis_hooks"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
#: What OpenAPI 3.1 writes its schemas in.
DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Names and ids that exist, so that calls get further than "there is no such thing".
CONFIG = """
[dictionaries.queues]
values = ["jobs", "jobs.dlq", "ordered", "idle"]
[dictionaries.topics]
values = ["orders", "checked"]
[dictionaries.ids]
values = [0, 1, 2, 3]
[dictionaries.consumers]
values = ["anna", "bert"]
[dictionaries.filters]
values = ["TRUE", "amount > 1", "topic = 'orders'", "nosuch LIKE 'x%' OR NOT amount IS NULL"]
[dictionaries.receipts]
values = [{receipts}]
[dictionaries.states]
values = ["available", "in_flight", "delayed", "done", "failed", "expired"]

[parameters]
"path.queue" = { dictionary = "queues", probability = 0.7 }
"query.queue" = { dictionary = "queues", probability = 0.7 }
"path.topic" = { dictionary = "topics", probability = 0.7 }
"path.id" = { dictionary = "ids", probability = 0.7 }
"path.consumer" = { dictionary = "consumers", probability = 0.7 }
"query.filter" = { dictionary = "filters", probability = 0.7 }
"query.where" = { dictionary = "filters", probability = 0.5 }
"query.state" = { dictionary = "states", probability = 0.7 }
"body.where" = { dictionary = "filters", probability = 0.5 }
"body.filter" = { dictionary = "filters", probability = 0.7 }
"body.state" = { dictionary = "states", probability = 0.7 }
"body.settlements[*].receipt" = { dictionary = "receipts", probability = 0.7 }
"body.consumer" = { dictionary = "consumers", probability = 0.7 }
"""


def test_the_document_is_valid(serve: Serve) -> None:
    document = serve(store="memory://").call("GET", "/openapi.json").json()
    validator = jsonschema_rs.validator_for(OPENAPI_31)
    assert [str(error) for error in validator.iter_errors(document)] == []
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": DIALECT, **schema})


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
async def test_the_server_does_what_the_document_says(serve: Serve, tmp_path: Path) -> None:
    server = serve("--auth", "--log-level", "error", store="memory://")
    key = server.told["key"]
    async with penstock.connect(server.url, credential=key) as client:
        receipts = await _fill(client)
    written = CONFIG.replace("{receipts}", ", ".join(json.dumps(one) for one in receipts))
    (tmp_path / "schemathesis.toml").write_text(written)
    done = await asyncio.to_thread(_run, server.url, key, tmp_path)
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stderr
    assert server.call("GET", "/readyz").status == 200
    assert server.stop() == 0
    assert "Traceback" not in server.said()


def _run(url: str, key: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, where it leaves what it leaves."""
    repository = str(Path(__file__).parents[2])
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--exclude-path-regex", "/stream$"),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES)),
            *("--request-timeout", "20", "--continue-on-failure", "--no-color"),
            *("--warnings", "off", "--seed", SEED, "-H", f"Authorization: Bearer {key}"),
        ],
        cwd=folder,
        env=surroundings() | {"SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": repository},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


async def _fill(client: Client) -> list[Receipt]:
    """Something in every state, for calls to find; returns receipts of live claims."""
    schema = json.dumps({"type": "object", "required": ["order"]})
    await client.put_topic("checked", TopicPolicy(schema_type="json-schema", schema=schema))
    await client.create_queue("idle", "FALSE")
    await client.create_queue("jobs", "topic = 'orders'", max_attempts=1)
    await client.create_queue("ordered", "TRUE", ordering=Ordering.PARTITION)
    for number in range(60):
        await client.publish("orders", {"order": number}, headers={"amount": number})
    await client.publish("orders", b"later", delay_ms=3_600_000)
    done, failed, *held = await client.claim("jobs", limit=40, consumer="anna", lease_ms=3_600_000)
    await client.ack(done, b"result")
    await client.reject(failed, "broken")
    await client.join("ordered", "anna")
    return [delivery.receipt for delivery in held]
