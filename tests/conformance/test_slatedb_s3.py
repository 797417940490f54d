"""The key-value engine over SlateDB on S3.

The code above the object store is the same as in ``test_slatedb``, which runs the whole suite.
Every run has the files here, which open stores again, and race. PENSTOCK_TEST_S3 names a server,
``moto`` or ``seaweedfs``, on which the whole suite runs.
"""

import os
from pathlib import Path

from penstock.storage.contract import Engine, EngineOptions
from penstock.storage.engines import open_engine as open_by_url
from penstock.testing.conformance import engine_factory
from penstock.testing.conformance.concurrency import *  # noqa: F403
from penstock.testing.conformance.harness import store  # noqa: F401
from penstock.testing.conformance.identity import *  # noqa: F403
from penstock.testing.conformance.reopening import *  # noqa: F403
from tests.object_stores import s3_endpoint, s3_url

if server := os.environ.get("PENSTOCK_TEST_S3"):
    from penstock.testing.conformance import *  # noqa: F403

_urls: dict[Path, str] = {}
#: On a busy machine a commit may take longer than the default lease, and no other server waits.
_PATIENT = {"lease_ms": 60_000, "timeout_ms": 60_000}


async def _open(options: EngineOptions, path: Path) -> Engine:
    url = _urls.setdefault(path, s3_url(s3_endpoint(server or "seaweedfs"), **_PATIENT))
    return await open_by_url(url, options)


open_engine = engine_factory(_open)
