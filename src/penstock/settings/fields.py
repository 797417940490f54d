"""Every setting with its type, limits, default and meaning.

The struct is the only list: flags, environment variables, the file's keys and ``penstock config``
are derived from it. Whether a file exists or a key matches its certificate is checked where it
is used.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import fields

from penstock.model.limits import (
    MAX_FREE_DISK_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PUBLISH_DELIVERIES,
    MAX_QUEUES,
    MAX_TIME_MS,
    Limits,
)
from penstock.model.secrets import MASK, mask_password

__all__ = ["FILE_SUFFIX", "PREFIX", "Setting", "Settings", "all_settings"]

PREFIX: Final = "PENSTOCK_"
#: The setting ``jwt_secret`` may be given as ``jwt_secret_file``: the path of a file that holds it.
FILE_SUFFIX: Final = "_file"

#: A body is read into memory completely.
_MAX_BODY_BYTES: Final = 4 * 1024**3
#: More than a process has file descriptors for on any common system.
_MAX_CONNECTIONS: Final = 1_000_000
#: More would only wait for each other: one slice of such work runs at a time.
_MAX_SCANS: Final = 1_000
_HOUR_S: Final = 3600
#: Clocks that differ by more are broken, and the leeway prolongs every token.
_MAX_LEEWAY_S: Final = 300

#: May be given as a file, and is never printed.
_SECRET: Final = {"secret": True, "file": True}
#: May be given as a file: the value is long, or may contain a password.
_FILE: Final = {"file": True}


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of ``penstock serve`` and the client commands."""

    # -- the store ---------------------------------------------------------------------

    store: Annotated[
        str,
        Meta(
            description="The store's URL. A relative path is relative to the directory of the "
            "file that contains it, else to the working directory.",
            extra=_FILE,
        ),
    ] = "rocksdb:penstock-data"
    log_retention_s: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_TIME_MS // 1000,
            description="Seconds that the log keeps entries that no queue needs any more.",
        ),
    ] = 24 * _HOUR_S
    auto_create: Annotated[
        bool, Meta(description="A message that matches no queue creates one named after its topic.")
    ] = True
    require_topics: Annotated[
        bool, Meta(description="Refuse to publish to a topic that is not registered.")
    ] = False
    archive: Annotated[
        bool, Meta(description="Retention waits for a verified copy in the archive (A1).")
    ] = False
    routing: Annotated[
        Literal["broker", "pipeline"],
        Meta(
            description="What catches up queues that are far behind the log: the broker, or the "
            "job `penstock pipeline route`."
        ),
    ] = "broker"

    # -- the server --------------------------------------------------------------------

    host: Annotated[str, Meta(description="The address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="The port to listen on; 0 picks a free one.")
    ] = 8080
    grace_s: Annotated[
        float,
        Meta(
            ge=0,
            le=_HOUR_S,
            description="Seconds that a stopping server gives calls in progress to finish.",
        ),
    ] = 30.0

    # -- access ------------------------------------------------------------------------

    auth: Annotated[bool, Meta(description="Every call needs an API key or a token.")] = False
    insecure: Annotated[
        bool, Meta(description="Listen beyond this machine without auth. Anyone may do anything.")
    ] = False
    allowed_hosts: Annotated[
        str | None,
        Meta(
            description="Host names that callers may use for this server, separated by commas:"
            " `queue.example.com`, `*.example.com`, or `*` for any. Addresses and localhost are"
            " always allowed. Default: with auth any name, without auth the name in `host`."
        ),
    ] = None
    allowed_origins: Annotated[
        str | None,
        Meta(
            description="Origins whose web pages may call this server, separated by commas:"
            " `https://app.example.com`, or `*` for any. Default: with auth any, without auth"
            " the server's own."
        ),
    ] = None
    jwt_secret: Annotated[
        str | None,
        Meta(description="Accept tokens signed with HS256 and this secret.", extra=_SECRET),
    ] = None
    jwt_public_key: Annotated[
        str | None,
        Meta(description="Accept tokens signed with RS256; the public key, in PEM.", extra=_FILE),
    ] = None
    jwt_issuer: Annotated[str | None, Meta(description="The `iss` that tokens must have.")] = None
    jwt_audience: Annotated[str | None, Meta(description="The `aud` that tokens must have.")] = None
    jwt_leeway_s: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_LEEWAY_S,
            description="Seconds that the issuer's clock may differ from this one.",
        ),
    ] = 30
    tls_cert: Annotated[
        Path | None, Meta(description="The server's certificate chain, a PEM file.")
    ] = None
    tls_key: Annotated[
        Path | None, Meta(description="The private key of tls_cert, a PEM file (PKCS #8).")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Meta(description="Require client certificates signed by this CA, a PEM file."),
    ] = None

    # -- limits ------------------------------------------------------------------------

    max_payload_bytes: Annotated[
        int, Meta(ge=0, le=MAX_PAYLOAD_BYTES, description="The largest payload of a message.")
    ] = 1024 * 1024
    max_body_bytes: Annotated[
        int, Meta(ge=1024, le=_MAX_BODY_BYTES, description="The largest body of a request.")
    ] = 64 * 1024 * 1024
    memory_budget_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=1024 * _MAX_BODY_BYTES,
            description="Requests and replies that the server holds at one time, in total.",
        ),
    ] = 512 * 1024 * 1024
    max_queues: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_QUEUES,
            description="Queues per tenant, whether created by a call or by a publish.",
        ),
    ] = 10_000
    max_unindexed_filters: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_QUEUES,
            description="Queues per tenant whose filter is evaluated for every message, because it "
            "requires no equality and reads more than the topic.",
        ),
    ] = 1_000
    max_publish_deliveries: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_PUBLISH_DELIVERIES,
            description="Deliveries that the messages of one publish become, in all queues "
            "together. A single message is never refused.",
        ),
    ] = 100_000
    min_free_disk_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_FREE_DISK_BYTES,
            description="Free space on an embedded store's disk below which publishes are refused "
            "(507); at most a twentieth of the disk. 0 disables the check.",
        ),
    ] = 256 * 1024 * 1024
    max_connections: Annotated[
        int,
        Meta(ge=1, le=_MAX_CONNECTIONS, description="Connections that are open at one time."),
    ] = 10_000
    max_waits: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_CONNECTIONS,
            description="Claims, results and streams that wait at one time.",
        ),
    ] = 10_000
    max_tenant_waits: Annotated[
        int,
        Meta(
            ge=0,
            le=_MAX_CONNECTIONS,
            description="The same per tenant. While other tenants wait, a fair share at most.",
        ),
    ] = 10_000
    max_tenant_scans: Annotated[
        int,
        Meta(
            ge=1,
            le=_MAX_SCANS,
            description="Concurrent previews, dry runs and filtered browsing per tenant.",
        ),
    ] = 8
    header_timeout_s: Annotated[
        float,
        Meta(gt=0, le=_HOUR_S, description="Seconds for a request's headers to arrive."),
    ] = 10.0
    body_timeout_s: Annotated[
        float, Meta(gt=0, le=_HOUR_S, description="Seconds for a request's body to arrive.")
    ] = 30.0
    reply_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=_HOUR_S,
            description="Seconds after which a caller that reads nothing of its reply is cut off.",
        ),
    ] = 30.0

    # -- the log of the process --------------------------------------------------------

    log_format: Annotated[
        Literal["text", "json"], Meta(description="How log lines are written.")
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The lowest severity of log lines that are written."),
    ] = "info"

    # -- client commands ---------------------------------------------------------------

    url: Annotated[
        str,
        Meta(description="The server that client commands talk to.", extra=_FILE),
    ] = "http://127.0.0.1:8080"
    credential: Annotated[
        str | None,
        Meta(description="The API key or token that client commands send.", extra=_SECRET),
    ] = None
    tenant: Annotated[
        str,
        Meta(description="The tenant, if a client command opens a store directly."),
    ] = "default"

    @property
    def limits(self) -> Limits:
        """The limits that a store is opened with."""
        return Limits(
            payload_bytes=self.max_payload_bytes,
            log_retention_ms=self.log_retention_s * 1000,
            queues=self.max_queues,
            unindexed_filters=self.max_unindexed_filters,
            publish_deliveries=self.max_publish_deliveries,
            free_disk_bytes=self.min_free_disk_bytes,
        )

    def __repr__(self) -> str:
        # Settings end up in tracebacks and debug logs; secrets must not.
        changed = (
            (setting, value)
            for setting in all_settings()
            if (value := getattr(self, setting.name)) != setting.default
        )
        shown = (
            f"{setting.name}={MASK if setting.secret else mask_password(repr(value))}"
            for setting, value in changed
        )
        return f"Settings({', '.join(shown)})"


class Setting(Struct, frozen=True, kw_only=True):
    """One setting, as data."""

    name: str
    type: Any
    """Its type with its limits, which ``msgspec.convert`` checks values against."""
    kind: type
    """str, int, float, bool or Path."""
    default: str | int | float | Path | None
    optional: bool
    """None is allowed: the setting may be omitted."""
    description: str
    choices: tuple[str, ...] = ()
    secret: bool = False
    file: bool = False
    """A second setting with the suffix ``_file`` names a file that contains the value."""

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The name of its flag."""
        return "--" + self.name.replace("_", "-")


@cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting, in the order in which ``penstock config`` prints them."""
    hints = get_type_hints(Settings, include_extras=True)
    return tuple(
        _to_setting(field.name, hints[field.name], field.default) for field in fields(Settings)
    )


def _to_setting(name: str, annotation: Any, default: Any) -> Setting:
    bare, meta = get_args(annotation)
    assert isinstance(meta, Meta)
    assert meta.description
    extra = meta.extra or {}
    members = get_args(bare) if get_origin(bare) in {Union, UnionType} else (bare,)
    plain = next(member for member in members if member is not NoneType)
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    return Setting(
        name=name,
        type=Annotated[plain, meta],
        kind=str if choices else plain,
        default=default,
        optional=NoneType in members,
        description=meta.description,
        choices=choices,
        secret=bool(extra.get("secret")),
        file=bool(extra.get("file")),
    )
