"""Where settings come from, in which order, and what is refused (E1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadSetting
from penstock.settings import Loaded, Settings, Source, all_settings, load_settings
from penstock.testing.laws import law

Load: TypeAlias = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads with a settings file of the given text."""

    def loaded(
        file: str = "",
        environ: Mapping[str, str] | None = None,
        **flags: object,
    ) -> Loaded:
        (tmp_path / "penstock.toml").write_text(file)
        return load_settings(flags, environ or {}, None, tmp_path)

    return loaded


def refusal(call: Callable[[], object]) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        call()
    return caught.value


def test_defaults_without_any_source(tmp_path: Path) -> None:
    loaded = load_settings({}, {}, None, tmp_path)
    settings = loaded.settings
    assert (settings.host, settings.port, settings.auth, settings.insecure) == (
        "127.0.0.1",
        8080,
        False,
        False,
    )
    assert settings.store == f"rocksdb://{tmp_path}/penstock-data"
    assert {source.kind for source in loaded.sources.values()} == {"default"}
    assert loaded.sources.keys() == {setting.name for setting in all_settings()}


def test_flag_beats_environment_beats_file_beats_default(load: Load) -> None:
    file = "port = 1\nhost = 'file'\ngrace_s = 5\n"
    environ = {"PENSTOCK_PORT": "2", "PENSTOCK_HOST": "environment"}
    loaded = load(file, environ, port=3, host=None)
    settings = loaded.settings
    assert (settings.port, settings.host, settings.grace_s) == (3, "environment", 5.0)
    assert [str(loaded.sources[name]) for name in ("port", "host", "log_level")] == [
        "flag --port",
        "environment PENSTOCK_HOST",
        "default",
    ]
    assert str(loaded.sources["grace_s"]).endswith("penstock.toml, line 3")
    assert loaded.given("port")
    assert not loaded.given("log_level")


def test_doors_are_a_list_with_commas_or_a_list_of_the_file(load: Load) -> None:
    assert load("door = ['sqs', 'mq']").settings.door == "sqs,mq"
    assert load("door = 'sqs'").settings.door == "sqs"
    assert load("", {"PENSTOCK_DOOR": "sqs,mq"}).settings.door == "sqs,mq"
    assert "is [1]" in str(refusal(lambda: load("door = [1]")))
    assert "is ['sqs']" in str(refusal(lambda: load("host = ['sqs']")))


def test_values_from_the_environment_are_read_as_their_types(load: Load, tmp_path: Path) -> None:
    settings = load(
        "",
        {
            "PENSTOCK_PORT": " 9000 ",
            "PENSTOCK_AUTH": "TRUE",
            "PENSTOCK_AUTO_CREATE": "0",
            "PENSTOCK_GRACE_S": "2.5",
            "PENSTOCK_TLS_CERT": "cert.pem",
            "PENSTOCK_LOG_FORMAT": "json",
            "PENSTOCK_JWT_ISSUER": "null",
            "HOME": "/elsewhere",
        },
    ).settings
    assert (settings.port, settings.auth, settings.auto_create) == (9000, True, False)
    assert (settings.grace_s, settings.tls_cert) == (2.5, tmp_path / "cert.pem")
    assert (settings.log_format, settings.jwt_issuer) == ("json", "null")


def test_an_empty_variable_is_not_set(load: Load) -> None:
    loaded = load("port = 7", {"PENSTOCK_PORT": "", "PENSTOCK_CREDENTIAL": "  "})
    assert loaded.settings.port == 7
    assert loaded.settings.credential is None


def test_variables_of_tests_and_benchmarks_are_nobodys_business(load: Load) -> None:
    assert load("", {"PENSTOCK_BENCH_DIR": "x", "PENSTOCK_TEST_SEED": "1"}).settings == Settings(
        store=load().settings.store
    )


@law("E1")
@pytest.mark.parametrize(
    "file, environ, flags, told",
    [
        ("prot = 1", {}, {}, "Did you mean port?"),
        ("tls-cert = 'x'", {}, {}, "Did you mean tls_cert?"),
        ("[server]\nport = 1", {}, {}, "'server'"),
        ("", {}, {"prot": 1}, "Did you mean --port?"),
    ],
)
def test_unknown_names_suggest_the_nearest(
    load: Load, file: str, environ: dict[str, str], flags: dict[str, object], told: str
) -> None:
    error = refusal(lambda: load(file, environ, **flags))
    assert told in error.detail
    assert error.field is not None


def test_variables_of_others_are_ignored_with_a_warning(load: Load) -> None:
    """They are not ours to refuse: every command would fail where another program sets them."""
    environ = {
        "PENSTOCK_PROT": "1",
        "PENSTOCK_PORT_FILE": "x",
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_HOST": "example",
    }
    loaded = load("", environ)
    assert loaded.settings.host == "example"
    assert loaded.settings.port == 8080
    file, prot, service = loaded.warnings
    assert "'PENSTOCK_PORT_FILE', which is not a setting" in file
    assert prot.endswith("'PENSTOCK_PROT', which is not a setting. Did you mean PENSTOCK_PORT?")
    assert service.endswith("'PENSTOCK_SERVICE_HOST', which is not a setting.")


def test_what_kubernetes_sets_is_ignored_with_a_warning(load: Load) -> None:
    loaded = load("", {"PENSTOCK_PORT": "tcp://10.0.0.1:80"}, port=None)
    assert loaded.settings.port == 8080
    assert loaded.sources["port"] == Source("default")
    (warning,) = loaded.warnings
    assert "enableServiceLinks" in warning


def test_no_warnings_without_a_reason(load: Load) -> None:
    environ = {"PENSTOCK_PORT": "1", "PENSTOCK_TEST_X": "1", "PENSTOCK_EMPTY": " ", "OTHER": "1"}
    assert load("", environ).warnings == ()


@law("E1")
@pytest.mark.parametrize(
    "file, environ, flags, field, told",
    [
        ("\nport = 'x'", {}, {}, "port", "penstock.toml, line 2) is 'x': expected `int`"),
        ("port = true", {}, {}, "port", "expected `int`, got `bool`"),
        ("port = 65536", {}, {}, "port", "<= 65535"),
        ("port = 1.5", {}, {}, "port", "expected `int`"),
        ("auth = 1", {}, {}, "auth", "expected `bool`"),
        ("grace_s = nan", {}, {}, "grace_s", "expected"),
        ("grace_s = inf", {}, {}, "grace_s", "expected"),
        ("header_timeout_s = 0", {}, {}, "header_timeout_s", "> 0"),
        ("log_format = 'xml'", {}, {}, "log_format", "one of text, json"),
        ("tls_cert = 5", {}, {}, "tls_cert", "expected a path"),
        ("tls_cert = ''", {}, {}, "tls_cert", "expected a path"),
        ("host = ''", {}, {}, "host", "expected"),
        ("tenant = 'a b'", {}, {}, "tenant", "name"),
        ("url = 'ftp://x'", {}, {}, "url", "http://host:port"),
        ("url = 'http://[bad'", {}, {}, "url", "http://host:port"),
        ("url = 'http://x:99999'", {}, {}, "url", "http://host:port"),
        ('store = "rocksdb:a\\u0000b"', {}, {}, "store", "zero byte"),
        ("max_payload_bytes = 2048\nmax_body_bytes = 1024", {}, {}, "max_payload_bytes", "above"),
        ("", {"PENSTOCK_PORT": "http"}, {}, "port", "(environment PENSTOCK_PORT) is 'http'"),
        ("", {"PENSTOCK_AUTH": "maybe"}, {}, "auth", "PENSTOCK_AUTH"),
        ("", {"PENSTOCK_GRACE_S": "nan"}, {}, "grace_s", "PENSTOCK_GRACE_S"),
        ("", {}, {"port": "1"}, "port", "(flag --port)"),
        ("jwt_secret = 'a'\njwt_secret_file = 'b'", {}, {}, "jwt_secret", "exclude each other"),
        ("jwt_secret_file = 5", {}, {}, "jwt_secret_file", "expected a path"),
        ("port = \nhost = 1", {}, {}, "config", "line 1"),
    ],
)
def test_bad_values_name_their_source(
    load: Load,
    file: str,
    environ: dict[str, str],
    flags: dict[str, object],
    field: str,
    told: str,
) -> None:
    error = refusal(lambda: load(file, environ, **flags))
    assert told in error.detail
    assert error.field == field


@law("E1")
def test_a_mistake_is_told_even_where_a_stronger_source_decides(load: Load) -> None:
    assert refusal(lambda: load("port = 'x'", {}, port=1)).field == "port"


@law("E1")
@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * 2_000_000, b"a = " + b"[" * 100_000])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "penstock.toml").write_bytes(content)
    error = refusal(lambda: load_settings({}, {}, None, tmp_path))
    assert str(tmp_path / "penstock.toml") in error.detail


def test_a_file_that_is_named_has_to_exist(tmp_path: Path) -> None:
    for environ, config in (({}, Path("no.toml")), ({"PENSTOCK_CONFIG": "no.toml"}, None)):
        error = refusal(lambda: load_settings({}, environ, config, tmp_path))  # noqa: B023
        assert str(tmp_path / "no.toml") in error.detail


def test_the_flag_names_the_file_before_the_variable_before_the_default(tmp_path: Path) -> None:
    for name, port in (("flag", 1), ("variable", 2), ("penstock", 3)):
        (tmp_path / f"{name}.toml").write_text(f"port = {port}")
    environ = {"PENSTOCK_CONFIG": "variable.toml"}
    ports = [
        load_settings({}, given, config, tmp_path).settings.port
        for given, config in ((environ, Path("flag.toml")), (environ, None), ({}, None))
    ]
    assert ports == [1, 2, 3]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "p.toml").write_text("tls_cert = 'c.pem'\nstore = 'rocksdb:data/a b'")
    settings = load_settings({"tls_key": "k.pem"}, {}, Path("etc/p.toml"), tmp_path).settings
    assert settings.tls_cert == tmp_path / "etc" / "c.pem"
    assert settings.tls_key == tmp_path / "k.pem"
    assert settings.store == f"rocksdb://{tmp_path}/etc/data/a%20b"


@pytest.mark.parametrize("url", ["memory://", "rocksdb:///data", "rocksdb:/data", "nonsense"])
def test_other_stores_are_left_to_the_engines(load: Load, url: str) -> None:
    assert load(store=url).settings.store == url


def test_a_secret_may_stand_in_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("psk_a_secret\n")
    for call in (
        lambda: load("credential_file = 'key'"),
        lambda: load("", {"PENSTOCK_CREDENTIAL_FILE": str(tmp_path / "key")}),
        lambda: load(credential_file=tmp_path / "key"),
    ):
        loaded = call()
        assert loaded.settings.credential == "psk_a_secret"
        assert loaded.sources["credential"].path == tmp_path / "key"


def test_only_the_secret_file_that_decides_is_read(load: Load) -> None:
    loaded = load("credential_file = 'missing'", {"PENSTOCK_CREDENTIAL": "here"})
    assert loaded.settings.credential == "here"
    assert loaded.sources["credential"] == Source("environment", "PENSTOCK_CREDENTIAL")


@law("E1")
@pytest.mark.parametrize("content", [None, b"\xff\xff", b"x" * 100_000])
def test_a_secret_file_that_cannot_be_read(
    load: Load, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    error = refusal(lambda: load("jwt_secret_file = 'key'"))
    assert error.field == "jwt_secret"
    assert str(tmp_path / "key") in error.detail


def test_no_error_shows_a_secret(load: Load) -> None:
    secret = "hunter2\0hunter2"
    for call in (
        lambda: load(jwt_secret=secret),
        lambda: load(store=f"postgresql://me:{secret}@host/db"),
    ):
        assert "hunter2" not in str(refusal(call))


@law("E1")
@settings(deadline=None)
@given(
    file=st.binary(max_size=200),
    environ=st.dictionaries(
        st.sampled_from([setting.variable for setting in all_settings()]) | st.text(),
        st.text(max_size=30),
        max_size=3,
    ),
)
def test_anything_else_is_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, file: bytes, environ: dict[str, str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "fuzz.toml").write_bytes(file)
    with suppress(BadSetting):
        load_settings({}, environ, Path("fuzz.toml"), folder)
