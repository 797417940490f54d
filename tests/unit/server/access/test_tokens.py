"""Tokens: what is accepted, and a table of what is tried against servers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadSetting, Unauthenticated
from penstock.server.access import Tokens, parse_grants
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

SECRET: Final = "a secret of more than thirty-two bytes"
PRIVATE: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
NOW_S: Final = FakeClock().now() // 1000


def to_pem(key: Any) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


PUBLIC: Final = to_pem(PRIVATE)


def claims(**changes: object) -> dict[str, Any]:
    """Valid ones, with changes; None leaves one out."""
    valid = {"exp": NOW_S + 60, "tenant": "acme", "grants": ["publish:orders-*"], "sub": "shop"}
    return {name: value for name, value in (valid | changes).items() if value is not None}


def signed(head: dict[str, object], body: object, sign: Callable[[bytes], bytes]) -> str:
    """A token as an attacker makes it, without a library that refuses to."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in (head, body)]
    text = b".".join(part.rstrip(b"=") for part in parts)
    return (text + b"." + base64.urlsafe_b64encode(sign(text)).rstrip(b"=")).decode()


def hs256(key: bytes | str) -> Callable[[bytes], bytes]:
    secret = key.encode() if isinstance(key, str) else key
    return lambda text: hmac.new(secret, text, hashlib.sha256).digest()


def token(body: object = None, head: dict[str, object] | None = None, key: str = SECRET) -> str:
    return signed(head or {"alg": "HS256"}, claims() if body is None else body, hs256(key))


def resigned(text: str) -> str:
    """Any head and claims, signed by who may."""
    signature = base64.urlsafe_b64encode(hs256(SECRET)(text.encode())).rstrip(b"=").decode()
    return f"{text}.{signature}"


#: 12,000 opening brackets.
NESTED: Final = "W1tb" * 4_000


@pytest.fixture
def tokens() -> Tokens:
    return Tokens(FakeClock(), secret=SECRET, public_key=PUBLIC, leeway_s=5)


def refusal(tokens: Tokens, text: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        tokens.authenticate(text)
    assert caught.value.status == 401
    # Nothing of the token comes back, and nothing of the keys.
    assert len(text) < 40 or text[:40] not in str(caught.value)
    assert SECRET not in str(caught.value)
    return caught.value.detail


# -- what is accepted ----------------------------------------------------------------------


@pytest.mark.parametrize("algorithm, key", [("HS256", SECRET), ("RS256", PRIVATE)])
def test_a_token_stands_for_its_claims(tokens: Tokens, algorithm: str, key: Any) -> None:
    credential = tokens.authenticate(jwt.encode(claims(jti="t-1"), key, algorithm))
    assert (credential.tenant, credential.name, credential.id) == ("acme", "shop", "t-1")
    assert credential.grants == parse_grants(["publish:orders-*"])
    # It is good for the leeway longer than it says.
    assert credential.expires_at == (NOW_S + 65) * 1000


def test_a_token_without_grants_may_do_nothing(tokens: Tokens) -> None:
    credential = tokens.authenticate(token(claims(grants=None, sub=None)))
    assert credential.grants == ()
    assert (credential.name, credential.id) == ("token", "token")


def test_a_name_that_could_forge_a_log_line_is_not_kept(tokens: Tokens) -> None:
    assert tokens.authenticate(token(claims(sub="a\nb"))).name == "token"
    assert len(tokens.authenticate(token(claims(sub="x" * 10_000))).name) == 200


def test_time_is_the_injected_clocks() -> None:
    clock = FakeClock()
    tokens = Tokens(clock, secret=SECRET, leeway_s=5)
    text = token(claims(exp=NOW_S + 60, nbf=NOW_S + 6))
    assert "not valid yet" in refusal(tokens, text)
    clock.advance(1_000)
    tokens.authenticate(text)
    clock.advance(63_999)
    tokens.authenticate(text)
    clock.advance(1)
    assert "expired" in refusal(tokens, text)


@pytest.mark.parametrize("exp", [NOW_S + 0.5, 10**30, 1e30, 10**400])
def test_any_time_to_come_will_do(tokens: Tokens, exp: float) -> None:
    credential = tokens.authenticate(token(claims(exp=exp)))
    assert credential.expires_at is not None
    assert credential.expires_at < 2**63


def test_issuer_and_audience_are_checked_where_they_are_configured() -> None:
    tokens = Tokens(FakeClock(), secret=SECRET, issuer="us", audience="penstock")
    tokens.authenticate(token(claims(iss="us", aud="penstock")))
    tokens.authenticate(token(claims(iss="us", aud=["other", "penstock"])))
    for changes in (
        {"iss": "them", "aud": "penstock"},
        {"iss": "us", "aud": "other"},
        {"iss": ["us"], "aud": "penstock"},
        {"iss": "us", "aud": {"penstock": 1}},
    ):
        assert "another" in refusal(tokens, token(claims(**changes)))
    assert "`iss`" in refusal(tokens, token(claims(aud="penstock")))
    assert "`aud`" in refusal(tokens, token(claims(iss="us")))


def test_a_token_for_somebody_else_is_refused_even_if_nobody_asked(tokens: Tokens) -> None:
    assert "another" in refusal(tokens, token(claims(aud="billing-service")))


# -- what is tried -------------------------------------------------------------------------

INVALID: Final = "not valid: malformed"

ATTACKS: Final = {
    "empty": ("", INVALID),
    "no token": ("nonsense", INVALID),
    "two parts": (".".join(token().split(".")[:2]), INVALID),
    "four parts": (token() + ".x", INVALID),
    "truncated": (token()[:-2], INVALID),
    "signature cut off": (token().rsplit(".", 1)[0] + ".", INVALID),
    "wrong secret": (token(key="b" * 40), INVALID),
    "empty secret": (token(key=""), INVALID),
    "alg none": (signed({"alg": "none"}, claims(), lambda _: b""), INVALID),
    "alg None": (signed({"alg": "None"}, claims(), lambda _: b""), INVALID),
    "alg none, signed": (signed({"alg": "none"}, claims(), hs256(SECRET)), INVALID),
    "no alg": (token(head={"typ": "JWT"}), INVALID),
    "alg null": (token(head={"alg": None}), INVALID),
    "alg a list": (token(head={"alg": ["HS256"]}), INVALID),
    "alg a dict": (token(head={"alg": {}}), INVALID),
    "alg lower case": (token(head={"alg": "hs256"}), INVALID),
    "HS512": (jwt.encode(claims(), SECRET * 2, "HS512"), INVALID),
    "HS256 with the public key": (token(key=PUBLIC), INVALID),
    "HS256 with the public key, stripped": (token(key=PUBLIC.strip()), INVALID),
    "RS256 that is an HMAC": (token(head={"alg": "RS256"}), INVALID),
    "RS256 of another key": (jwt.encode(claims(), OTHER, "RS256"), INVALID),
    "RS512": (jwt.encode(claims(), PRIVATE, "RS512"), INVALID),
    "PS256": (jwt.encode(claims(), PRIVATE, "PS256"), INVALID),
    "unknown critical header": (token(head={"alg": "HS256", "crit": ["x"], "x": 1}), INVALID),
    "key in the head": (
        token(head={"alg": "HS256", "jwk": {"kty": "oct", "k": "AAAA"}}, key="\0\0\0"),
        INVALID,
    ),
    "kid a path": (token(head={"alg": "HS256", "kid": "/dev/null"}, key=""), INVALID),
    "kid a number": (token(head={"alg": "HS256", "kid": 1}), INVALID),
    "detached": (token(head={"alg": "HS256", "b64": False, "crit": ["b64"]}), INVALID),
    "deep head": (NESTED + ".e30.AAAA", INVALID),
    "deep claims": (resigned(f"{token().split('.')[0]}.{NESTED}"), INVALID),
    "claims a list": (token([1]), INVALID),
    "claims a number": (token(5), INVALID),
    "tampered": (
        token().split(".")[0]
        + "."
        + token(claims(tenant="other")).split(".")[1]
        + "."
        + token().split(".")[2],
        INVALID,
    ),
    "expired": (token(claims(exp=NOW_S - 5)), "expired"),
    "expired long ago": (token(claims(exp=-(10**30))), "expired"),
    "not yet valid": (token(claims(nbf=NOW_S + 6)), "not valid yet"),
    "no exp": (token(claims(exp=None)), "no claim `exp`"),
    "exp a text": (token(claims(exp=str(NOW_S + 60))), "`exp`"),
    "exp true": (token(claims(exp=True)), "`exp`"),
    "exp infinite": (token(claims(exp=float("inf"))), "`exp`"),
    "exp not a number": (token(claims(exp=float("nan"))), "`exp`"),
    "nbf a list": (token(claims(nbf=[1])), "`nbf`"),
    "no tenant": (token(claims(tenant=None)), "no claim `tenant`"),
    "tenant empty": (token(claims(tenant="")), "`tenant`"),
    "tenant a wildcard": (token(claims(tenant="*")), "`tenant`"),
    "tenant a path": (token(claims(tenant="../default")), "`tenant`"),
    "tenant a list": (token(claims(tenant=["acme", "default"])), "`tenant`"),
    "grants a text": (token(claims(grants="admin:*")), "`grants`"),
    "grants of nonsense": (token(claims(grants=["root:*"])), "`grants`"),
    "grants nested": (token(claims(grants=[["admin:*"]])), "`grants`"),
    "too many grants": (token(claims(grants=["publish:a"] * 65)), "`grants`"),
    "huge": (token(claims(grants=["x" * 1_000_000])), "`grants`"),
    "not ASCII": ("ä.ö.ü", INVALID),
    "surrogates": ("\udcff.\udcff.\udcff", INVALID),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks(tokens: Tokens, attack: str) -> None:
    text, told = ATTACKS[attack]
    assert told in refusal(tokens, text)


def test_a_server_with_one_key_takes_one_algorithm() -> None:
    symmetric = Tokens(FakeClock(), secret=SECRET)
    asymmetric = Tokens(FakeClock(), public_key=PUBLIC)
    by_rsa = jwt.encode(claims(), PRIVATE, "RS256")
    symmetric.authenticate(token())
    asymmetric.authenticate(by_rsa)
    assert INVALID in refusal(symmetric, by_rsa)
    assert INVALID in refusal(asymmetric, token())
    assert INVALID in refusal(asymmetric, token(key=PUBLIC))


@settings(deadline=None)
@given(st.text())
def test_whatever_comes_is_unauthenticated(text: str) -> None:
    refusal(Tokens(FakeClock(), secret=SECRET, public_key=PUBLIC), text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(["exp", "nbf", "iat", "tenant", "grants", "sub", "jti", "aud", "iss"])


@settings(deadline=None)
@given(st.dictionaries(NAMES, JSON), st.dictionaries(st.sampled_from(["kid", "crit", "b64"]), JSON))
def test_whatever_is_signed_is_a_credential_or_unauthenticated(
    body: dict[str, object], head: dict[str, object]
) -> None:
    tokens = Tokens(FakeClock(), secret=SECRET)
    with suppress(Unauthenticated):
        tokens.authenticate(token(claims() | body, {"alg": "HS256"} | head))


# -- what is configured --------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "keys, field",
    [
        ({"secret": "x" * 31}, "jwt_secret"),
        ({"secret": ""}, "jwt_secret"),
        ({"secret": PUBLIC}, "jwt_secret"),
        ({"secret": '{"kty": "oct", "k": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}'}, "jwt_secret"),
        ({"public_key": ""}, "jwt_public_key"),
        ({"public_key": SECRET}, "jwt_public_key"),
        (
            {
                "public_key": PRIVATE.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ).decode()
            },
            "jwt_public_key",
        ),
        ({"public_key": to_pem(ec.generate_private_key(ec.SECP256R1()))}, "jwt_public_key"),
        (
            {"public_key": to_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024))},
            "jwt_public_key",
        ),
    ],
    ids=[
        "a short secret",
        "no secret",
        "a public key for a secret",
        "a JWK for a secret",
        "no public key",
        "a secret for a public key",
        "a private key",
        "an elliptic curve",
        "a short key",
    ],
)
def test_keys_that_protect_nothing_are_refused(keys: dict[str, str], field: str) -> None:
    with pytest.raises(BadSetting) as caught:
        Tokens(FakeClock(), **keys)  # type: ignore[arg-type]
    assert caught.value.field == field
    for key in keys.values():
        assert not key or key not in str(caught.value)
