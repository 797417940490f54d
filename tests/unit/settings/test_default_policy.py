"""The setting ``default_policy``: a table of the file, JSON elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadSetting
from penstock.model.queue import Backoff, QueuePolicy
from penstock.settings import load_settings
from penstock.testing.laws import law

WANTED = QueuePolicy(max_attempts=3, backoff=Backoff(5, 300_000), labels={"team": "ops"})


def test_there_are_no_defaults_unless_they_are_set(tmp_path: Path) -> None:
    loaded = load_settings({}, environ={}, config=None, cwd=tmp_path)
    assert loaded.settings.queue_defaults == QueuePolicy()


def test_a_table_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(
        "[default_policy]\nmax_attempts = 3\nbackoff = {base_ms = 5}\nlabels = {team = 'ops'}\n"
    )
    loaded = load_settings({}, environ={}, config=None, cwd=tmp_path)
    assert loaded.settings.queue_defaults == WANTED


def test_json_in_the_environment(tmp_path: Path) -> None:
    text = '{"max_attempts": 3, "backoff": {"base_ms": 5}, "labels": {"team": "ops"}}'
    loaded = load_settings({}, environ={"PENSTOCK_DEFAULT_POLICY": text}, config=None, cwd=tmp_path)
    assert loaded.settings.queue_defaults == WANTED


@law("E1")
@pytest.mark.parametrize(
    "text", ["x", "[]", '{"max_attempts": 0}', '{"filter": "TRUE"}', '{"color": 1}']
)
def test_what_is_no_policy_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings({}, environ={"PENSTOCK_DEFAULT_POLICY": text}, config=None, cwd=tmp_path)
    assert caught.value.field == "default_policy"
