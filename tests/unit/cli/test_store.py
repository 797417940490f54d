"""``penstock store``: identity and epoch."""

from __future__ import annotations

from typing import Any

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
