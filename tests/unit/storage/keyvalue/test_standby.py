"""Servers that open a new store on an object store at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.slatedb.location import parse_location
from penstock.storage.keyvalue.standby import FailoverEngine
from penstock.testing.laws import law


@law("S3")
async def test_one_writes_and_the_other_stands_by(tmp_path: Path) -> None:
    for number in range(4):
        url = urlsplit(f"slatedb+file://{tmp_path}/{number}?lease_ms=1000")
        engines = await asyncio.gather(
            *(
                FailoverEngine.open(parse_location(url), EngineOptions(), f"http://server-{name}")
                for name in ("a", "b")
            )
        )
        # A writer that was fenced notices at its next renewal.
        async with asyncio.timeout(20):
            while sorted(engine.role.name for engine in engines) != ["standby", "writer"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for engine in engines:
            await engine.close()
