"""The table of settings fits the rest of the product."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.model.limits import Limits
from penstock.settings import Settings, all_settings

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_the_default_limits_are_the_products() -> None:
    assert Settings().limits == Limits()


def test_limits_follow_the_settings() -> None:
    settings = Settings(
        max_payload_bytes=5,
        log_retention_s=7,
        max_queues=3,
        max_unindexed_filters=2,
        max_publish_deliveries=8,
        min_free_disk_bytes=9,
    )
    assert settings.limits == Limits(
        payload_bytes=5,
        log_retention_ms=7000,
        queues=3,
        unindexed_filters=2,
        publish_deliveries=8,
        free_disk_bytes=9,
    )


def test_spellings() -> None:
    by_name = {setting.name: setting for setting in all_settings()}
    cert = by_name["tls_cert"]
    assert (cert.variable, cert.flag, cert.kind) == ("PENSTOCK_TLS_CERT", "--tls-cert", Path)
    assert by_name["log_format"].choices == ("text", "json")
    assert [name for name, setting in by_name.items() if setting.secret] == [
        "codeq_webhook_secret",
        "jwt_secret",
        "credential",
    ]


def test_no_setting_is_mistaken_for_the_file_of_another() -> None:
    assert not [setting.name for setting in all_settings() if setting.name.endswith("_file")]


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `(\w+)` \| (.*?) \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert rows.keys() == {setting.name for setting in all_settings()}
    for setting in all_settings():
        default = setting.default
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        assert rows[setting.name] == ("" if default is None else f"`{shown}`"), setting.name
