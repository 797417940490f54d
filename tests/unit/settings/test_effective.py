"""What `penstock config` prints can be fed back, and tells no secrets."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.settings import effective, load_settings, to_toml


def test_every_setting_is_listed_with_its_source(tmp_path: Path) -> None:
    loaded = load_settings({"port": 1}, {"PENSTOCK_HOST": "::1"}, None, tmp_path)
    items = {item.name: item for item in effective(loaded)}
    assert items.keys() == loaded.sources.keys()
    assert (items["port"].value, str(items["port"].source)) == (1, "flag --port")
    assert (items["host"].value, str(items["host"].source)) == ("::1", "environment PENSTOCK_HOST")
    assert items["tls_cert"].value is None
    assert all(item.description.endswith(".") for item in items.values())


def test_the_toml_gives_the_same_settings_back(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    first = load_settings(
        {
            "port": 1,
            "grace_s": 0.5,
            "auth": True,
            "auto_create": False,
            "tls_cert": Path("a\nb\x7f.pem"),
            "jwt_issuer": 'quo"te\\ü\u2028',
            "jwt_public_key": "-----BEGIN\nx\n-----END\n",
        },
        {"PENSTOCK_JWT_SECRET_FILE": "secret"},
        None,
        tmp_path,
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "penstock.toml").write_text(to_toml(first))
    assert load_settings({}, {}, None, elsewhere).settings == first.settings


@settings(deadline=None)
@given(issuer=st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, issuer: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    printed = to_toml(load_settings({"jwt_issuer": issuer}, {}, None, folder))
    assert tomllib.loads(printed)["jwt_issuer"] == issuer


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    loaded = load_settings(
        {"jwt_secret": "hunter2", "store": "postgresql://me:hunter2@host/db"},
        {"PENSTOCK_CREDENTIAL": "hunter2", "PENSTOCK_URL": "https://me:hunter2@host"},
        None,
        tmp_path,
    )
    printed = to_toml(loaded)
    assert "hunter2" not in printed
    assert "hunter2" not in repr(effective(loaded))
    assert "hunter2" not in repr(loaded)
    assert '# store = "postgresql://me:***@host/db"' in printed
    # A masked value would be wrong if it were fed back, so it is left out.
    assert not {"jwt_secret", "credential", "store", "url"} & tomllib.loads(printed).keys()


def test_the_repr_shows_what_differs_from_the_defaults(tmp_path: Path) -> None:
    settings = load_settings({"port": 1, "store": "memory://"}, {}, None, tmp_path).settings
    assert repr(settings) == "Settings(store='memory://', port=1)"
