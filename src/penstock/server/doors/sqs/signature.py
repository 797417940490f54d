"""AWS Signature Version 4, in a header or in the query string of a presigned URL.

The access key id is the id of an API key; its secret is derived (``access.signing_secrets``). A
signature covers the method, the path, the query, the signed headers and the body, and the time at
which it was made, which may be fifteen minutes off.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote_plus

from msgspec import Struct

from penstock.server.doors.sqs.failures import BadSignature

__all__ = ["Signed", "read_signature", "region_of", "verify"]

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_HEADER: Final = re.compile(
    rf"{_ALGORITHM} +Credential=(?P<credential>[^,\s]+),\s*"
    r"SignedHeaders=(?P<headers>[^,\s]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_CREDENTIAL: Final = re.compile(
    r"(?P<key>[A-Za-z0-9_-]{1,128})/(?P<day>[0-9]{8})/(?P<region>[a-z0-9-]{1,40})/sqs/aws4_request"
)
_REGION: Final = re.compile(r"Credential=[^/,\s]+/[0-9]{8}/([a-z0-9-]{1,40})/")
_TIME: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z")
_SKEW_MS: Final = 15 * 60 * 1000
#: A presigned URL is valid for at most a week.
_MAX_EXPIRES_S: Final = 7 * 24 * 3600
#: Headers that must be signed, if the request has them: they decide what the request means.
_MUST_SIGN: Final = (b"host", b"x-amz-target")
_SIGNATURE: Final = "X-Amz-Signature"
_MAX_HEADERS: Final = 100
_KEYS_CACHED: Final = 1_024


class Signed(Struct, frozen=True):
    """What a request says about its signature."""

    key_id: str
    day: str
    region: str
    time: str
    headers: tuple[str, ...]
    signature: str
    expires_s: int | None = None
    """For how long a presigned URL is valid; None if the signature is in a header."""


def region_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The region that a client uses, whether or not its signature is valid."""
    found = _REGION.search(headers.get(b"authorization", b"").decode("latin-1"))
    return None if found is None else found[1]


def read_signature(headers: Mapping[bytes, bytes], query: bytes) -> Signed:
    """The signature of a request; raises ``BadSignature`` if it has none, or another kind."""
    authorization = headers.get(b"authorization")
    if authorization is not None:
        found = _HEADER.fullmatch(authorization.decode("latin-1").strip())
        if found is None:
            raise _incomplete("The Authorization header is not an AWS4-HMAC-SHA256 signature.")
        time = headers.get(b"x-amz-date", b"").decode("latin-1")
        return _signed(found["credential"], time, found["headers"], found["signature"], None)
    fields = dict(_pairs(query))
    if _SIGNATURE not in fields:
        raise BadSignature("MissingAuthenticationToken", "Request is missing Authentication Token")
    expires = fields.get("X-Amz-Expires", "")
    if fields.get("X-Amz-Algorithm") != _ALGORITHM or not expires.isdigit() or len(expires) > 6:
        raise _incomplete("The query string lacks X-Amz-Algorithm or X-Amz-Expires.")
    return _signed(
        fields.get("X-Amz-Credential", ""),
        fields.get("X-Amz-Date", ""),
        fields.get("X-Amz-SignedHeaders", ""),
        fields[_SIGNATURE],
        int(expires),
    )


def _signed(
    credential: str, time: str, headers: str, signature: str, expires_s: int | None
) -> Signed:
    found = _CREDENTIAL.fullmatch(credential)
    if found is None:
        raise _incomplete("Credential must be KEY/DATE/REGION/sqs/aws4_request.")
    if _TIME.fullmatch(time) is None or not time.startswith(found["day"]):
        raise _incomplete("X-Amz-Date is missing, or is not of the day in Credential.")
    names = tuple(headers.split(";"))
    if len(names) > _MAX_HEADERS:
        raise _incomplete("Too many headers are signed.")
    return Signed(found["key"], found["day"], found["region"], time, names, signature, expires_s)


def _incomplete(message: str) -> BadSignature:
    return BadSignature("IncompleteSignature", message, 400)


def verify(
    signed: Signed,
    secret: str,
    now: int,
    *,
    method: str,
    path: str,
    query: bytes,
    headers: Mapping[bytes, bytes],
    body: bytes,
) -> None:
    """Raise ``BadSignature`` unless the request was signed with the secret, at about this time."""
    _check_time(signed, now)
    for name in _MUST_SIGN:
        if name in headers and name.decode() not in signed.headers:
            raise _wrong()
    canonical = "\n".join(
        (
            method,
            quote(quote(path, safe="/-_.~"), safe="/-_.~"),
            _canonical_query(query),
            *(f"{name}:{_header(headers, name)}" for name in signed.headers),
            "",
            ";".join(signed.headers),
            hashlib.sha256(body).hexdigest(),
        )
    )
    scope = f"{signed.day}/{signed.region}/sqs/aws4_request"
    digest = hashlib.sha256(canonical.encode("latin-1", "replace")).hexdigest()
    text = f"{_ALGORITHM}\n{signed.time}\n{scope}\n{digest}"
    key = _signing_key(secret, signed.day, signed.region)
    wanted = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    given = signed.signature.encode(errors="replace")
    if not hmac.compare_digest(wanted.encode(), given):
        raise _wrong()


def _wrong() -> BadSignature:
    return BadSignature(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your"
        " AWS Secret Access Key and signing method.",
    )


def _check_time(signed: Signed, now: int) -> None:
    found = _TIME.fullmatch(signed.time)
    assert found is not None
    year, month, day, hour, minute, second = map(int, found.groups())
    try:
        made_at = calendar.timegm((year, month, day, hour, minute, second)) * 1000
    except ValueError as error:
        raise _incomplete("X-Amz-Date is not a time.") from error
    if signed.expires_s is None:
        latest = made_at + _SKEW_MS
    else:
        if not 1 <= signed.expires_s <= _MAX_EXPIRES_S:
            raise _incomplete(f"X-Amz-Expires is between 1 and {_MAX_EXPIRES_S}.")
        latest = made_at + signed.expires_s * 1000
    if not made_at - _SKEW_MS <= now <= latest:
        raise BadSignature(
            "SignatureDoesNotMatch",
            f"Signature expired or not yet valid: it was made at {signed.time}.",
        )


def _canonical_query(query: bytes) -> str:
    pairs = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~"))
        for name, value in _pairs(query)
        if name != _SIGNATURE
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def _pairs(query: bytes) -> Iterable[tuple[str, str]]:
    for part in query.decode("latin-1").split("&"):
        if part:
            name, _, value = part.partition("=")
            yield unquote_plus(name), unquote_plus(value)


def _header(headers: Mapping[bytes, bytes], name: str) -> str:
    value = headers.get(name.encode("latin-1", "replace"), b"")
    return " ".join(value.decode("latin-1").split())


@lru_cache(maxsize=_KEYS_CACHED)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "sqs", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
