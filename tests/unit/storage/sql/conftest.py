"""What most tests of the SQL engine begin with: both dialects, and two servers on one store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.storage.sql.callers import DIALECTS
from tests.unit.storage.sql.pairs import Pair, opened_pair


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def pair(dialect: str) -> AsyncIterator[Pair]:
    async with opened_pair(dialect) as found:
        yield found
