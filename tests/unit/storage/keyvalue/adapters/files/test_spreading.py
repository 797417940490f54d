from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.storage.keyvalue.adapters.files.spreading import (
    TOP_DIRECTORY,
    get_flags,
    spread_directories,
)


def is_spread(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bool(get_flags(descriptor) & TOP_DIRECTORY)
    finally:
        os.close(descriptor)


def takes_flags(folder: Path) -> bool:
    """Whether ``chattr`` can set the flag on the file system of a folder."""
    probe = folder / "probe"
    probe.mkdir()
    chattr = shutil.which("chattr", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin")
    if chattr is None:
        return False
    return subprocess.run([chattr, "+T", probe], capture_output=True).returncode == 0


def test_directories_of_message_files_are_spread(tmp_path: Path) -> None:
    if not takes_flags(tmp_path):
        pytest.skip("the file system has no flag for top directories")
    for _ in range(2):
        FilesAdapter(tmp_path / "store").close()
        assert is_spread(tmp_path / "store" / "messages")
        assert not is_spread(tmp_path / "store" / "queues")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_a_file_system_without_the_flag_is_used_as_it_is() -> None:
    spread_directories(Path("/dev/shm"))
    spread_directories(Path("/dev/shm/missing"))
