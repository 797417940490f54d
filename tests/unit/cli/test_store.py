"""``penstock store`` and ``repair``: identity and epoch, and what is missing from a store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from penstock.cli.program import program
from penstock.model.message import NewMessage
from penstock.storage.engines import open_engine
from penstock.storage.keyvalue.adapters.mark_file import MARK_FILE
from penstock.testing.laws import law


def test_a_store_is_shown_and_begins_a_new_epoch(sh: Any) -> None:
    sh.publish("x")
    first = sh.json("store", "show")
    assert sh.json("store", "show") == first
    after = sh.json("store", "new-epoch")
    assert (after["store"], after["epoch"] != first["epoch"]) == (first["store"], True)
    assert sh("store", "show").stdout == f"store {after['store']}\nepoch {after['epoch']}\n"


@law("E1")
def test_a_store_that_is_not_there(sh: Any) -> None:
    refusal = sh("store", "new-epoch", code=7)
    assert "There is no store" in refusal.output


async def publish(url: str) -> None:
    engine = await open_engine(url)
    await engine.publish("default", "t", [NewMessage(b"x")])
    await engine.close()


def test_a_loss_is_shown_first_and_accepted_when_asked(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path / 'store'}"
    for _ in range(2):
        asyncio.run(publish(url))
    run = CliRunner().invoke
    whole = run(program, ["repair", "--store", url])
    assert (whole.exit_code, "nothing is known to be missing" in whole.output) == (0, True)
    (tmp_path / "store" / MARK_FILE).unlink()
    for _ in range(2):
        shown = run(program, ["repair", "--store", url])
        assert shown.exit_code == 9
        assert "nothing was changed" in shown.output
    accepted = run(program, ["repair", "--store", url, "--accept-loss", "--json"])
    assert accepted.exit_code == 0
    assert json.loads(accepted.output)["loss"]["kept_commit"] > 0
    asyncio.run(publish(url))
    assert run(program, ["repair", "--store", url]).exit_code == 0


@law("E1")
def test_only_a_folder_can_be_repaired() -> None:
    done = CliRunner().invoke(program, ["repair", "--store", "postgresql://u:p@localhost/d"])
    assert done.exit_code == 3
