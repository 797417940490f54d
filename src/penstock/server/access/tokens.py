"""Tokens: claims signed by a trusted issuer, as JWT (RFC 7519).

The configured keys decide which algorithms are accepted: a secret for HS256, a public key
for RS256 and the issuer's key set for RS256 and ES256, each key with its own algorithm only. So
neither ``none`` nor a public key misused as a secret verifies anything, no matter what the token's
header says. Every invalid token raises ``Unauthenticated``, with the reason only if its signature
is right.

::

    {
        "exp": 1767225600,
        "tenant": "acme",
        "grants": ["publish:orders-*", "consume:*"],
        "sub": "shop",
    }
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from penstock.errors import BadInput, BadName, BadSetting, Unauthenticated
from penstock.model.clock import Clock
from penstock.model.limits import MAX_TIME_MS, check_name
from penstock.server.access.credential import Credential
from penstock.server.access.grants import parse_grants
from penstock.server.access.key_set import KeySet, PublicKey

if TYPE_CHECKING:
    from jwt.types import Options

__all__ = ["MIN_SECRET_BYTES", "SET_ALGORITHMS", "Tokens"]

#: Algorithms of the keys in an issuer's set.
SET_ALGORITHMS: Final = frozenset({"ES256", "RS256"})

#: As long as the hash, as RFC 7518 demands; a shorter one can be guessed offline.
MIN_SECRET_BYTES: Final = 32
_MIN_RSA_BITS: Final = 2048
_MAX_SHOWN: Final = 200

#: Times are compared with the injected clock, so PyJWT must not check them with its own.
_OPTIONS: Final[Options] = {
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
}


class Tokens:
    """Verifies tokens with the configured keys."""

    def __init__(
        self,
        clock: Clock,
        *,
        secret: str | None = None,
        public_key: str | None = None,
        key_set: KeySet | None = None,
        issuer: str | None = None,
        audience: str | None = None,
        leeway_s: int = 30,
        requests_per_s: int | None = None,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._clock = clock
        self._issuer = issuer
        self._audience = audience
        self._leeway_ms = leeway_s * 1000
        self._key_set = key_set
        self._keys: dict[str, bytes | RSAPublicKey] = {}
        if secret is not None:
            self._keys["HS256"] = _to_secret(secret)
        if public_key is not None:
            self._keys["RS256"] = _to_public_key(public_key)

    async def prepare(self, text: str) -> None:
        """Read the issuer's keys again if this token may need that."""
        if self._key_set is None:
            return
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm in SET_ALGORITHMS:
            await self._key_set.prepare(kid if isinstance(kid, str) else None, algorithm)

    def claims(self, text: str, audience: str) -> Mapping[str, Any]:
        """The claims of a token with this audience, for doors whose tokens have other claims.

        Raises ``Unauthenticated`` unless the signature, issuer, audience and times are right.
        """
        claims = self._verified(text, audience, ["exp"])
        self._check_times(claims)
        return claims

    def authenticate(self, text: str) -> Credential:
        """The credential in a token; raises ``Unauthenticated`` unless every claim is valid."""
        claims = self._verified(text, self._audience, ["exp", "tenant"])
        expires_at = self._check_times(claims)
        grants = claims.get("grants", [])
        if not isinstance(grants, list):
            raise _bad_claim("grants", "a list of texts such as publish:orders-*")
        try:
            return Credential(
                tenant=check_name(claims["tenant"], "tenant"),
                grants=parse_grants(grants),
                name=_label(claims.get("sub"), "token"),
                id=_label(claims.get("jti"), "token"),
                expires_at=expires_at,
                requests_per_s=self._requests_per_s,
                # Not by jti: a subject must not get a new bucket with every token.
                counted_as=f"token {_label(claims.get('sub'), '')}",
            )
        except BadName as error:
            raise _bad_claim("tenant", "the name of a tenant") from error
        except BadInput as error:
            raise Unauthenticated(
                f"The token's claim `grants` is not valid. {error.detail}"
            ) from error

    def _check_times(self, claims: Mapping[str, Any]) -> int:
        """When the token expires; raises ``Unauthenticated`` if it is not valid now."""
        now = self._clock.now()
        expires_at = _time(claims, "exp") + self._leeway_ms
        if now >= expires_at:
            raise Unauthenticated("The token has expired.")
        if "nbf" in claims and now < _time(claims, "nbf") - self._leeway_ms:
            raise Unauthenticated("The token is not valid yet.")
        return expires_at

    def _verified(self, text: str, audience: str | None, required: list[str]) -> Mapping[str, Any]:
        """The claims, if the signature, issuer and audience are right."""
        try:
            header = jwt.get_unverified_header(text)
            algorithm = header.get("alg")
            key = self._key(algorithm, header.get("kid"))
            # The header only selects one of our own pairs of algorithm and key.
            return jwt.decode(
                text,
                key,
                algorithms=[str(algorithm)],
                issuer=self._issuer,
                audience=audience,
                options={**_OPTIONS, "require": required},
            )
        except (jwt.InvalidIssuerError, jwt.InvalidAudienceError) as error:
            raise Unauthenticated(
                "The token is for another service or from another issuer."
            ) from error
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(f"The token has no claim `{error.claim}`.") from error
        # A token is untrusted input: any error in decoding it is the caller's, not ours.
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise Unauthenticated(
                "The token is not valid: malformed, or not signed with a key of this server."
            ) from error

    def _key(self, algorithm: object, kid: object) -> bytes | PublicKey:
        """The key for a token's header: of the issuer's set by its id, else the configured one."""
        key: bytes | PublicKey | None = None
        if self._key_set is not None and algorithm in SET_ALGORITHMS:
            key = self._key_set.find(kid if isinstance(kid, str) else None, str(algorithm))
        if key is None and isinstance(algorithm, str):
            key = self._keys.get(algorithm)
        if key is None:
            raise jwt.InvalidAlgorithmError
        return key


def _time(claims: Mapping[str, Any], name: str) -> int:
    """A time in epoch milliseconds, from a claim in seconds."""
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise _bad_claim(name, "a time in seconds")
    # Bounded, so that a time in the far future stays representable elsewhere.
    return int(min(max(value * 1000, 0), MAX_TIME_MS))


def _bad_claim(name: str, what: str) -> Unauthenticated:
    return Unauthenticated(f"The token's claim `{name}` is not {what}.")


def _label(value: object, otherwise: str) -> str:
    text = value[:_MAX_SHOWN] if isinstance(value, str) else ""
    return text if text and text.isprintable() else otherwise


def _to_secret(secret: str) -> bytes:
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise BadSetting(
            f"jwt_secret has fewer than {MIN_SECRET_BYTES} bytes and could be guessed.",
            field="jwt_secret",
            limit=MIN_SECRET_BYTES,
        )
    try:
        key: bytes = jwt.get_algorithm_by_name("HS256").prepare_key(secret)
    except jwt.InvalidKeyError as error:
        # A public key is public: accepted as a secret, it would let anyone sign tokens.
        raise BadSetting(f"jwt_secret is not a secret. {error}", field="jwt_secret") from error
    return key


def _to_public_key(pem: str) -> RSAPublicKey:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadSetting(
            "jwt_public_key is not a public key in PEM (BEGIN PUBLIC KEY).", field="jwt_public_key"
        ) from error
    if not isinstance(key, RSAPublicKey) or key.key_size < _MIN_RSA_BITS:
        raise BadSetting(
            f"jwt_public_key is not an RSA key of at least {_MIN_RSA_BITS} bits.",
            field="jwt_public_key",
            limit=_MIN_RSA_BITS,
        )
    return key
