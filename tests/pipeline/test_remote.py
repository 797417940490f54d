"""A server as Spark's processes see it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock import NewMessage
from penstock.errors import UnknownQueue
from penstock.pipeline.remote import Server
from tests.pipeline.hosted import Hosted


class Megabytes:
    """An answer that takes long to write down."""

    def __repr__(self) -> str:
        raise AssertionError("nobody asked to see it")


def test_answers_are_not_written_down(server: Hosted) -> None:
    """In the main thread too, where asyncio's runner would do so with every answer."""
    answer = Megabytes()

    async def big(_: Any) -> Megabytes:
        return answer

    with Server(server.url).open() as remote:
        assert remote.ask(big) is answer
        assert remote.ask(big) is answer


def test_streams_are_received_into_memory_of_arrow(server: Hosted) -> None:
    """It is used again; Python's would be given back to the system after every stream."""
    with Server(server.url).open() as remote:
        remote.ask(lambda q: q.publish_batch("t", [NewMessage(b"x" * 100_000)] * 5))
        before = pa.total_allocated_bytes()
        stream = remote.ask(lambda q: q.arrow("/v1/log", (("payloads", True),)))
        assert pa.total_allocated_bytes() - before >= len(stream) > 500_000


def test_what_a_verb_raises_is_raised(server: Hosted) -> None:
    with Server(server.url).open() as remote:
        with pytest.raises(UnknownQueue):
            remote.ask(lambda q: q.stats("none"))
        assert remote.ask(lambda q: q.log_end()) == 0
