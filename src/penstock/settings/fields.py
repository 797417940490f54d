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

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields

from penstock.errors import BadPolicy
from penstock.model.limits import (
    MAX_ATTEMPTS,
    MAX_FREE_DISK_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PUBLISH_DELIVERIES,
    MAX_QUEUES,
    MAX_TIME_MS,
    Limits,
)
from penstock.model.queue import QueuePolicy, changed_defaults
from penstock.model.secrets import MASK, mask_password
from penstock.model.webhooks import WebhookOptions

__all__ = [
    "FILE_SUFFIX",
    "PREFIX",
    "Setting",
    "Settings",
    "all_settings",
    "flag_of",
    "to_queue_defaults",
    "variable_of",
]

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
#: The lease of an event covers the wait for a free slot and one call.
_MAX_WEBHOOK_TIMEOUT_S: Final = 60
#: Clocks that differ by more are broken, and the leeway prolongs every token.
_MAX_LEEWAY_S: Final = 300


def _about(
    description: str, *, file: bool = False, secret: bool = False, many: bool = False
) -> Meta:
    """Describe a setting. ``file``: it may be given as a file, because it is long or may contain a
    password. ``secret``: it may be given as a file, and is never printed. ``many``: several values
    with commas, also as a repeated flag or a list of the settings file.
    """
    extra = {"file": file or secret, "secret": secret, "many": many}
    return Meta(description=description, extra=extra)


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of ``penstock serve`` and the client commands."""

    # -- the store ---------------------------------------------------------------------

    store: Annotated[
        str,
        _about(
            "The store's URL. A relative path is relative to the directory of the "
            "file that contains it, else to the working directory.",
            file=True,
        ),
    ] = "rocksdb:penstock-data"
    advertised_url: Annotated[
        str | None,
        _about(
            "Where callers reach this server, if several servers share a store on an object "
            "store. By default the address that it listens on."
        ),
    ] = None
    log_retention_s: Annotated[
        int,
        Meta(ge=0, le=MAX_TIME_MS // 1000),
        _about("Seconds that the log keeps entries that no queue needs any more."),
    ] = 24 * _HOUR_S
    auto_create: Annotated[
        bool, _about("A message that matches no queue creates one named after its topic.")
    ] = True
    default_policy: Annotated[
        str | None,
        _about(
            "Policy fields of queues that set none of their own, except the filter: a table of the"
            ' settings file, elsewhere JSON such as `{"max_attempts": 3}`.'
        ),
    ] = None
    require_topics: Annotated[
        bool, _about("Refuse to publish to a topic that is not registered.")
    ] = False
    archive: Annotated[bool, _about("Retention waits for a verified copy in the archive (A1).")] = (
        False
    )
    routing: Annotated[
        Literal["broker", "pipeline"],
        _about(
            "What catches up queues that are far behind the log: the broker, or the "
            "job `penstock pipeline route`."
        ),
    ] = "broker"

    # -- webhooks ----------------------------------------------------------------------

    webhook_private: Annotated[
        bool,
        _about("Let webhooks call private, loopback and link-local addresses."),
    ] = False
    webhook_timeout_s: Annotated[
        float,
        Meta(gt=0, le=_MAX_WEBHOOK_TIMEOUT_S),
        _about("Seconds for one call of a webhook."),
    ] = 10.0
    webhook_concurrency: Annotated[
        int,
        Meta(ge=1, le=1_000),
        _about("Calls of webhooks that this server makes at one time; 8 for each webhook."),
    ] = 64

    # -- the server --------------------------------------------------------------------

    host: Annotated[str, _about("The address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535), _about("The port to listen on; 0 picks a free one.")
    ] = 8080
    door: Annotated[
        str | None,
        _about(
            "Other APIs that the server offers beside its own, separated by commas: `codeq`, "
            "`mq`, `queue-ti`, `sqs`.",
            many=True,
        ),
    ] = None
    console: Annotated[bool, _about("Serve the web console at `/console/`.")] = True
    grace_s: Annotated[
        float,
        Meta(ge=0, le=_HOUR_S),
        _about("Seconds that a stopping server gives calls in progress to finish."),
    ] = 30.0

    # -- doors -------------------------------------------------------------------------

    queue_ti_grpc_port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        _about("The port of queue-ti's gRPC service, beside its HTTP API; 0 picks a free one."),
    ] = 50_051
    queue_ti_dlq_threshold: Annotated[
        int,
        Meta(ge=0, le=MAX_ATTEMPTS),
        _about("Attempts after which queue-ti moves a message to the DLQ; 0 leaves max_retries."),
    ] = 3
    codeq_worker_audience: Annotated[
        str, _about("The `aud` of codeQ's worker tokens; those of producers have `jwt_audience`.")
    ] = "codeq-worker"
    codeq_webhook_secret: Annotated[
        str | None,
        _about("The key that signs codeQ's webhooks; without it they are not signed.", secret=True),
    ] = None

    # -- access ------------------------------------------------------------------------

    auth: Annotated[bool, _about("Every call needs an API key or a token.")] = False
    insecure: Annotated[
        bool, _about("Listen beyond this machine without auth. Anyone may do anything.")
    ] = False
    allowed_hosts: Annotated[
        str | None,
        _about(
            "Host names that callers may use for this server, separated by commas:"
            " `queue.example.com`, `*.example.com`, or `*` for any. Addresses and localhost are"
            " always allowed. Default: with auth any name, without auth the name in `host`."
        ),
    ] = None
    allowed_origins: Annotated[
        str | None,
        _about(
            "Origins whose web pages may call this server, separated by commas:"
            " `https://app.example.com`, or `*` for any. Default: with auth any, without auth"
            " the server's own."
        ),
    ] = None
    jwt_secret: Annotated[
        str | None, _about("Accept tokens signed with HS256 and this secret.", secret=True)
    ] = None
    jwt_public_key: Annotated[
        str | None, _about("Accept tokens signed with RS256; the public key, in PEM.", file=True)
    ] = None
    jwt_jwks: Annotated[
        str | None,
        _about(
            "Accept tokens signed with a key of this JSON Web Key Set, which may change: an https"
            " URL or a file."
        ),
    ] = None
    jwt_jwks_http: Annotated[
        bool, _about("Read jwt_jwks over http from other machines. Anyone on the way can forge it.")
    ] = False
    jwt_issuer: Annotated[str | None, _about("The `iss` that tokens must have.")] = None
    jwt_audience: Annotated[str | None, _about("The `aud` that tokens must have.")] = None
    jwt_leeway_s: Annotated[
        int,
        Meta(ge=0, le=_MAX_LEEWAY_S),
        _about("Seconds that the issuer's clock may differ from this one."),
    ] = 30
    requests_per_s: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        _about(
            "Requests per second of each credential that has no limit of its own."
            " Default: no limit."
        ),
    ] = None
    tls_cert: Annotated[Path | None, _about("The server's certificate chain, a PEM file.")] = None
    tls_key: Annotated[
        Path | None, _about("The private key of tls_cert, a PEM file (PKCS #8).")
    ] = None
    tls_client_ca: Annotated[
        Path | None, _about("Require client certificates signed by this CA, a PEM file.")
    ] = None

    # -- limits ------------------------------------------------------------------------

    max_payload_bytes: Annotated[
        int, Meta(ge=0, le=MAX_PAYLOAD_BYTES), _about("The largest payload of a message.")
    ] = 1024 * 1024
    max_body_bytes: Annotated[
        int, Meta(ge=1024, le=_MAX_BODY_BYTES), _about("The largest body of a request.")
    ] = 64 * 1024 * 1024
    memory_budget_bytes: Annotated[
        int,
        Meta(ge=1024, le=1024 * _MAX_BODY_BYTES),
        _about("Requests and replies that the server holds at one time, in total."),
    ] = 512 * 1024 * 1024
    max_queues: Annotated[
        int,
        Meta(ge=0, le=MAX_QUEUES),
        _about("Queues per tenant, whether created by a call or by a publish."),
    ] = 10_000
    max_unindexed_filters: Annotated[
        int,
        Meta(ge=0, le=MAX_QUEUES),
        _about(
            "Queues per tenant whose filter is evaluated for every message, because it "
            "requires no equality and reads more than the topic."
        ),
    ] = 1_000
    max_publish_deliveries: Annotated[
        int,
        Meta(ge=0, le=MAX_PUBLISH_DELIVERIES),
        _about(
            "Deliveries that the messages of one publish become, in all queues "
            "together. A single message is never refused."
        ),
    ] = 100_000
    min_free_disk_bytes: Annotated[
        int,
        Meta(ge=0, le=MAX_FREE_DISK_BYTES),
        _about(
            "Free space on an embedded store's disk below which publishes are refused "
            "(507); at most a twentieth of the disk. 0 disables the check."
        ),
    ] = 256 * 1024 * 1024
    max_connections: Annotated[
        int, Meta(ge=1, le=_MAX_CONNECTIONS), _about("Connections that are open at one time.")
    ] = 10_000
    max_waits: Annotated[
        int,
        Meta(ge=0, le=_MAX_CONNECTIONS),
        _about("Claims, results and streams that wait at one time."),
    ] = 10_000
    max_tenant_waits: Annotated[
        int,
        Meta(ge=0, le=_MAX_CONNECTIONS),
        _about("The same per tenant. While other tenants wait, a fair share at most."),
    ] = 10_000
    max_tenant_scans: Annotated[
        int,
        Meta(ge=1, le=_MAX_SCANS),
        _about("Concurrent previews, dry runs and filtered browsing per tenant."),
    ] = 8
    header_timeout_s: Annotated[
        float, Meta(gt=0, le=_HOUR_S), _about("Seconds for a request's headers to arrive.")
    ] = 10.0
    body_timeout_s: Annotated[
        float, Meta(gt=0, le=_HOUR_S), _about("Seconds for a request's body to arrive.")
    ] = 30.0
    reply_timeout_s: Annotated[
        float,
        Meta(gt=0, le=_HOUR_S),
        _about("Seconds after which a caller that reads nothing of its reply is cut off."),
    ] = 30.0

    # -- the log of the process --------------------------------------------------------

    log_format: Annotated[Literal["text", "json"], _about("How log lines are written.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _about("The lowest severity of log lines that are written."),
    ] = "info"

    # -- client commands ---------------------------------------------------------------

    url: Annotated[
        str,
        _about(
            "The server that client commands talk to, or several of one store, with commas.",
            file=True,
        ),
    ] = "http://127.0.0.1:8080"
    credential: Annotated[
        str | None, _about("The API key or token that client commands send.", secret=True)
    ] = None
    tenant: Annotated[str, _about("The tenant, if a client command opens a store directly.")] = (
        "default"
    )

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

    @property
    def webhooks(self) -> WebhookOptions:
        """How webhooks are called."""
        return WebhookOptions(
            allow_private=self.webhook_private,
            timeout_ms=max(1, round(self.webhook_timeout_s * 1000)),
            concurrency=self.webhook_concurrency,
        )

    @property
    def queue_defaults(self) -> QueuePolicy:
        """``default_policy`` as a policy; raises ``BadPolicy`` if it is none."""
        if self.default_policy is None:
            return QueuePolicy()
        return to_queue_defaults(self.default_policy)

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


def to_queue_defaults(text: str) -> QueuePolicy:
    """The default policy that a JSON text describes; raises ``BadPolicy`` if it is none."""
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadPolicy(f"default_policy is not JSON: {error}.", field="default_policy") from error
    return changed_defaults(QueuePolicy(), given)


class Setting(Struct, frozen=True, kw_only=True):
    """One setting, as data."""

    name: str
    type: Any
    """Its type with its limits, which ``msgspec.convert`` checks values against."""
    kind: type
    """str, int, float, bool or Path."""
    default: str | int | float | Path | None
    description: str
    choices: tuple[str, ...] = ()
    secret: bool = False
    file: bool = False
    """A second setting with the suffix ``_file`` names a file that contains the value."""
    many: bool = False
    """Several texts, joined with commas."""

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return variable_of(self.name)

    @property
    def flag(self) -> str:
        """The name of its flag."""
        return flag_of(self.name)


def flag_of(name: str) -> str:
    """The flag of a setting, or of its file."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting, or of its file."""
    return PREFIX + name.upper()


@cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting, in the order in which ``penstock config`` prints them."""
    hints = get_type_hints(Settings, include_extras=True)
    return tuple(
        _to_setting(field.name, hints[field.name], field.default) for field in fields(Settings)
    )


def _to_setting(name: str, annotation: Any, default: Any) -> Setting:
    bare, *metas = get_args(annotation)
    about = metas[-1]
    members = get_args(bare) if get_origin(bare) in {Union, UnionType} else (bare,)
    plain = next(member for member in members if member is not NoneType)
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    return Setting(
        name=name,
        type=Annotated[(plain, *metas)],
        kind=str if choices else plain,
        default=default,
        description=about.description,
        choices=choices,
        **about.extra,
    )
