"""Where a lake in an S3 bucket is, and with which credentials.

::

    s3://bucket/path                                   Amazon S3, credentials from the environment
    s3://bucket/path?profile=work                      credentials of a profile of ``~/.aws``
    s3://KEY:SECRET@bucket/path?endpoint=http://…      a compatible store

What is not in the URI comes from the environment, as the tools of AWS read it: ``AWS_PROFILE``,
``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL`` and so on. The driver resolves it once,
so that Spark's workers need no environment of their own. Without keys, every process uses what its
machine provides, such as an instance profile.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.secrets import mask_password

__all__ = ["S3Location", "below_lake", "parse_s3", "public_name"]

_SETTINGS: Final = ("endpoint", "profile", "region")
#: The default of S3; compatible stores accept it.
_REGION: Final = "us-east-1"


class S3Location(Struct, frozen=True, kw_only=True):
    """A folder in a bucket. Its representation shows no secret."""

    bucket: str
    path: str
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"S3Location({self.name!r})"

    @property
    def name(self) -> str:
        """The URI without settings and credentials, for messages."""
        return f"s3://{self.bucket}/{self.path}"

    @property
    def service(self) -> str:
        """The server, for messages."""
        return self.endpoint or f"Amazon S3 in {self.region or _REGION}"


def public_name(lake: str) -> str:
    """The path or URI of a lake without credentials and settings."""
    if not _is_s3(lake):
        return lake
    parts = urlsplit(lake)
    return f"s3://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def below_lake(lake: str, folder: str) -> str:
    """The path or URI of a folder in a lake, with the same credentials and settings."""
    path, question, settings = lake.partition("?") if _is_s3(lake) else (lake, "", "")
    return f"{path.rstrip('/')}/{folder}{question}{settings}" if folder else lake


def _is_s3(lake: str) -> bool:
    return lake.startswith("s3://")


def parse_s3(lake: str, environment: Mapping[str, str] = os.environ) -> S3Location:
    """The location of a lake; raises ``BadInput``."""
    parts = urlsplit(lake)
    bucket, path = parts.netloc.rpartition("@")[2], unquote(parts.path).strip("/")
    if not bucket or not path or parts.fragment or ".." in path.split("/"):
        raise _bad(lake, "is not s3://bucket/path")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in settings.items():
        if name not in _SETTINGS or not value:
            raise _bad(lake, f"has the setting {name!r}; the settings are {', '.join(_SETTINGS)}")
    found = _from_environment(environment)
    profile = settings.get("profile") or (
        None if "access_key" in found else environment.get("AWS_PROFILE")
    )
    if profile is not None:
        found = {**_without_keys(found), **_from_profile(lake, profile, environment)}
    if parts.username is not None:
        if not parts.password:
            raise _bad(lake, "has an access key without its secret: s3://KEY:SECRET@bucket/path")
        found = _without_keys(found) | {
            "access_key": unquote(parts.username),
            "secret_key": unquote(parts.password),
        }
    found |= {name: settings[name] for name in ("endpoint", "region") if name in settings}
    endpoint = found.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise _bad(lake, f"has the endpoint {endpoint!r}, which is not http://… or https://…")
    if endpoint is not None:
        found.setdefault("region", _REGION)
    return S3Location(bucket=bucket, path=path, **found)


def _without_keys(found: dict[str, str]) -> dict[str, str]:
    return {name: found[name] for name in ("endpoint", "region") if name in found}


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    found = {
        "endpoint": environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL"),
        "region": environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"),
    }
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        found["access_key"] = environment["AWS_ACCESS_KEY_ID"]
        found["secret_key"] = environment["AWS_SECRET_ACCESS_KEY"]
        found["session_token"] = environment.get("AWS_SESSION_TOKEN")
    return {name: value for name, value in found.items() if value}


#: What a profile may set.
_PROFILE: Final = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}


def _from_profile(lake: str, profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a profile says, as the tools of AWS read it."""
    home = Path(environment.get("HOME") or Path.home()) / ".aws"
    secrets = configparser.ConfigParser(interpolation=None)
    general = configparser.ConfigParser(interpolation=None)
    secrets.read(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    general.read(environment.get("AWS_CONFIG_FILE") or home / "config")
    section = profile if profile == "default" else f"profile {profile}"
    both = {
        **(dict(general[section]) if section in general else {}),
        **(dict(secrets[profile]) if profile in secrets else {}),
    }
    found = {ours: both[theirs] for theirs, ours in _PROFILE.items() if both.get(theirs)}
    if "access_key" not in found or "secret_key" not in found:
        raise _bad(lake, f"uses the profile {profile!r}, which has no access key in ~/.aws")
    return found


def _bad(lake: str, problem: str) -> BadInput:
    return BadInput(f"The lake {mask_password(lake)!r} {problem}.", field="lake")
