"""``penstock copy``, ``backup`` and ``restore``, as an operator sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.testing.laws import law


@law("X1")
def test_a_store_moves_from_engine_to_engine(sh: Any, tmp_path: Path) -> None:
    sh.publish("one", "two")
    target = f"files://{tmp_path}/copy"
    done = json.loads(sh.run("copy", sh.store, target, "--json").stdout)
    assert (done["continued"], done["renumbered"]) == (False, False)
    assert done["items"]["payload"] == 2
    before = sh.json("store", "show")
    sh.store = target
    after = sh.json("store", "show")
    assert (before["store"], before["epoch"] != after["epoch"]) == (after["store"], True)
    taken = sh("consume", "orders")
    assert taken.stdout.split() == ["one", "two"]


@law("X1")
def test_a_store_comes_back_from_its_backup(sh: Any, tmp_path: Path) -> None:
    sh.publish("one")
    shown = sh("backup", f"{tmp_path}/backup")
    assert "is a backup of" in shown.stdout
    sh.publish("two")
    found = sh.run("restore", f"{tmp_path}/backup", f"rocksdb://{tmp_path}/restored")
    assert (found.exit_code, "in a new epoch" in found.stdout) == (0, True)
    sh.store = f"rocksdb://{tmp_path}/restored"
    assert sh("consume", "orders").stdout.split() == ["one"]


def test_refusals_say_what_to_do(sh: Any, tmp_path: Path) -> None:
    sh.publish("one")
    occupied = sh.run("copy", sh.store, sh.store)
    assert occupied.exit_code == 7  # The source has locked it.
    missing = sh.run("copy", f"rocksdb://{tmp_path}/missing", f"files://{tmp_path}/copy")
    assert (missing.exit_code, "There is no store" in missing.output) == (7, True)
    assert sh.run("copy", "memory://", f"files://{tmp_path}/copy").exit_code == 3
    sh("backup", f"{tmp_path}/backup")
    again = sh("backup", f"{tmp_path}/backup", code=5)
    assert "nothing is ever overwritten" in again.output
    over = sh.run("restore", f"{tmp_path}/backup", sh.store)
    assert over.exit_code == 5
    (tmp_path / "backup" / "MANIFEST").unlink()
    damaged = sh.run("restore", f"{tmp_path}/backup", f"files://{tmp_path}/restored")
    assert (damaged.exit_code, "not complete" in damaged.output) == (7, True)
    assert not (tmp_path / "restored").exists()
