from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadUrl
from penstock.storage.contract import EngineOptions, full_jitter
from penstock.storage.engines import SCHEMES, open_engine
from penstock.testing.laws import law


@law("E1")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory://somewhere",
        "memory:///path",
        "memory://?a=b",
        "rocksdb://",
        "rocksdb://host/path",
        "rocksdb:///path?a=b",
        "rocksdb:///path#f",
        "mysql:///path",
        "http://[bad",
        None,
    ],
)
async def test_bad_urls(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        await open_engine(url)
    assert caught.value.field == "url"


async def test_memory() -> None:
    for url in ("memory://", "memory:", "memory:///"):
        engine = await open_engine(url)
        assert engine.capabilities.engine == "memory"
        assert (engine.capabilities.durability, engine.capabilities.persistent) == ("memory", False)
        await engine.close()


async def test_rocksdb_by_an_absolute_and_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"rocksdb://{tmp_path}/a%20b", "rocksdb:below/c"):
        engine = await open_engine(url, EngineOptions())
        assert (engine.capabilities.durability, engine.capabilities.persistent) == ("fsync", True)
        await engine.close()
    assert (tmp_path / "a b" / "CURRENT").exists()
    assert (tmp_path / "below" / "c" / "CURRENT").exists()


def test_every_scheme_has_a_function() -> None:
    assert all(":" in target for target in SCHEMES.values())
    assert {"memory", "rocksdb"} <= SCHEMES.keys()


def test_full_jitter_stays_below_its_ceiling() -> None:
    waits = {full_jitter(3) for _ in range(1000)}
    assert waits == {0, 1, 2, 3}
    assert full_jitter(0) == 0
