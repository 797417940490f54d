"""URLs of SlateDB stores."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.errors import BadUrl
from penstock.storage.keyvalue.adapters.slatedb.location import parse_location


def parsed(url):
    return parse_location(urlsplit(url))


def test_a_directory_survives_the_process_only():
    location = parsed("slatedb+file:///srv/my%20queue")
    assert (location.path, location.durability) == ("/srv/my queue", "os")
    assert location.commit_interval_ms == 0


def test_a_bucket_limits_requests_and_survives_the_machine():
    location = parsed("slatedb+s3://bucket/a/b?region=eu-west-1&lease_ms=5000")
    assert (location.bucket, location.path, location.durability) == ("bucket", "a/b", "object")
    assert (location.commit_interval_ms, location.lease_ms) == (100, 5000)
    assert dict(location.config) == {"bucket": "bucket", "region": "eu-west-1"}


def test_explicit_credentials_are_not_shown():
    location = parsed("slatedb+s3://KEY:SEC%2FRET@bucket/a?endpoint=http://localhost:9000")
    assert dict(location.config) == {
        "bucket": "bucket",
        "aws_access_key_id": "KEY",
        "aws_secret_access_key": "SEC/RET",
        "endpoint": "http://localhost:9000",
        "allow_http": "true",
    }
    assert location.name == "slatedb+s3://bucket/a"


@pytest.mark.parametrize("general", ["[default]\nregion = x\n", "no section"])
def test_a_secret_of_a_profile_may_be_any_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, general: str
) -> None:
    """AWS's files have no interpolation; and an error must not show the secret."""
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = k\naws_secret_access_key = 100%secret\n"
    )
    (tmp_path / "config").write_text(general)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if general.startswith("["):
        config = dict(parsed("slatedb+s3://bucket/a?profile=work").config)
        assert config["aws_secret_access_key"] == "100%secret"
    else:
        with pytest.raises(BadUrl, match="cannot be read"):
            parsed("slatedb+s3://bucket/a?profile=work")


def test_a_profile_gives_credentials_and_region(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = id\naws_secret_access_key = secret\n"
    )
    (tmp_path / "config").write_text("[profile work]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    config = dict(parsed("slatedb+s3://bucket/a?profile=work").config)
    assert config["aws_access_key_id"] == "id"
    assert config["region"] == "eu-north-1"
    with pytest.raises(BadUrl, match="no access key"):
        parsed("slatedb+s3://bucket/a?profile=other")


@pytest.mark.parametrize(
    "url",
    [
        "slatedb+file://host/path",
        "slatedb+file:relative",
        "slatedb+file:///",
        "slatedb+file:///a?region=x",
        "slatedb+s3://bucket",
        "slatedb+s3:///path",
        "slatedb+s3://bucket/a/../b",
        "slatedb+s3://bucket/a?colour=red",
        "slatedb+s3://bucket/a?lease_ms=1",
        "slatedb+s3://bucket/a?lease_ms=many",
        "slatedb+s3://bucket/a?region=a&region=b",
        "slatedb+s3://KEY@bucket/a",
        "slatedb+gs://KEY:SECRET@bucket/a",
        "slatedb+gs://bucket/a?profile=x",
        "slatedb+s3://bucket/a?endpoint=nonsense",
        "slatedb+s3://bucket/a?endpoint=localhost:9000",
        "slatedb+s3://bucket/a?endpoint=http://",
        "slatedb+s3://bucket/a?endpoint=http://host:port",
        "slatedb+s3://bucket/a?endpoint=http://a%20host",
    ],
)
def test_a_bad_url_is_refused(url):
    with pytest.raises(BadUrl):
        parsed(url)


def test_a_secret_is_masked_in_the_refusal():
    with pytest.raises(BadUrl) as refused:
        parsed("slatedb+s3://KEY:SECRET@bucket/a?colour=red")
    assert "SECRET" not in str(refused.value)
