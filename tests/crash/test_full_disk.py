"""A disk that really fills up: a small file system of its own, where the test may mount one."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import StoreFull
from penstock.model.delivery import Ack
from penstock.model.message import NewMessage
from penstock.storage.contract import EngineOptions
from penstock.storage.engines import open_engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from tests.crash.program import TENANT
from tests.crash.workload import store_url

MIB = 1024 * 1024


def mount(path: Path, *options: str) -> bool:
    command = ["mount", *options, "tmpfs", str(path)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None or not mount(path, "-t", "tmpfs", "-o", "size=16m"):
        pytest.skip("mounting a file system needs root")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@law("P2")
@pytest.mark.parametrize("scheme", ["rocksdb", "files"])
async def test_publishes_stop_before_the_disk_is_full_and_go_on_when_there_is_room(
    small_disk: Path, scheme: str
) -> None:
    clock = FakeClock()
    url = store_url(str(small_disk / "store"), scheme)
    engine = await open_engine(url, EngineOptions(clock=clock))
    published = 0
    with contextlib.suppress(StoreFull):
        while published < 20 * 16:
            clock.advance(1000)
            await engine.publish(TENANT, "t", [NewMessage(bytes(MIB // 20))])
            published += 1
    assert 50 < published < 20 * 16
    with pytest.raises(StoreFull):
        await engine.publish(TENANT, "t", [NewMessage(b"x")])
    # What makes room still works, with what was kept free.
    deliveries = await engine.claim(TENANT, "t", "c", 10, None)
    reply = await engine.settle(TENANT, "t", [Ack(item.receipt) for item in deliveries])
    assert all(outcome.ok for outcome in reply.outcomes)
    assert mount(small_disk, "-o", "remount,size=64m")
    clock.advance(1000)
    await engine.publish(TENANT, "t", [NewMessage(b"x")])
    await engine.close()
