"""API keys: shown once, kept as a hash, of one tenant, revoked at once."""

from __future__ import annotations

import hashlib

import pytest

from penstock.errors import (
    BadInput,
    BadName,
    Conflict,
    NotFound,
    StoreCorrupt,
    Unauthenticated,
)
from penstock.server.access import KeyInfo, Keys, parse_grants
from penstock.server.access.keys import DOCUMENT_KIND
from penstock.storage.contract import Engine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

GRANTS = ["publish:orders-*", "consume:billing"]


async def test_a_key_stands_for_its_tenant_and_grants(keys: Keys, clock: FakeClock) -> None:
    new = await keys.create("acme", GRANTS, name="shop", expires_at=clock.now() + 1000)
    assert new.info == KeyInfo(
        id=new.info.id,
        tenant="acme",
        name="shop",
        grants=tuple(GRANTS),
        created_at=clock.now(),
        expires_at=clock.now() + 1000,
    )
    credential = await keys.authenticate(new.key)
    assert (credential.tenant, credential.name, credential.id) == ("acme", "shop", new.info.id)
    assert credential.grants == parse_grants(GRANTS)
    assert credential.expires_at == clock.now() + 1000


async def test_the_default_source_of_secrets_is_wide(engine: Engine, clock: FakeClock) -> None:
    keys = Keys(engine, clock)
    texts = {(await keys.create("acme", GRANTS)).key for _ in range(20)}
    assert len(texts) == 20
    for text in texts:
        prefix, key_id, secret = text.split("_", 2)
        assert (prefix, len(key_id)) == ("psk", 16)
        # 43 characters of base64 hold 256 bits.
        assert len(secret) == 43


async def test_the_store_has_the_hash_only(keys: Keys, engine: Engine) -> None:
    new = await keys.create("acme", GRANTS)
    ((name, value),) = await engine.list_documents(DOCUMENT_KIND)
    secret = new.key.split("_", 2)[2]
    assert name == new.info.id
    assert secret.encode() not in value
    assert hashlib.sha256(new.key.encode()).hexdigest().encode() in value
    assert secret not in repr(await keys.list("acme"))


@law("T1")
async def test_a_tenant_lists_and_revokes_its_own_only(keys: Keys, clock: FakeClock) -> None:
    first = await keys.create("acme", GRANTS, name="b")
    clock.advance(1)
    second = await keys.create("acme", GRANTS, name="a")
    other = await keys.create("other", GRANTS)
    assert [info.name for info in await keys.list("acme")] == ["b", "a"]
    assert await keys.list("nobody") == ()
    with pytest.raises(NotFound):
        await keys.revoke("acme", other.info.id)
    assert (await keys.authenticate(other.key)).tenant == "other"
    await keys.revoke("acme", first.info.id)
    assert await keys.list("acme") == (second.info,)


async def test_a_revoked_key_is_unknown(keys: Keys) -> None:
    new = await keys.create("acme", GRANTS)
    before = keys.revision
    await keys.revoke("acme", new.info.id)
    assert keys.revision > before
    with pytest.raises(Unauthenticated):
        await keys.authenticate(new.key)
    with pytest.raises(NotFound) as caught:
        await keys.revoke("acme", new.info.id)
    assert caught.value.field == "id"


@law("E1")
@pytest.mark.parametrize("key_id", ["", "a", "\0", "x" * 10_000, "../api-key", "ä" * 16])
async def test_ids_that_are_none_are_not_found(keys: Keys, key_id: str) -> None:
    with pytest.raises(NotFound):
        await keys.revoke("acme", key_id)


async def test_an_expired_key_says_so(keys: Keys, clock: FakeClock) -> None:
    new = await keys.create("acme", GRANTS, expires_at=clock.now() + 1000)
    clock.advance(999)
    await keys.authenticate(new.key)
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="expired"):
        await keys.authenticate(new.key)
    # Whoever does not know the secret is not told even that.
    with pytest.raises(Unauthenticated, match="not valid"):
        await keys.authenticate(new.key[:-1] + "x")


async def test_the_refusals_of_unknown_and_wrong_keys_are_the_same(keys: Keys) -> None:
    new = await keys.create("acme", GRANTS)
    told = set()
    for text in (new.key[:-1] + "x", "psk_" + "a" * 16 + "_" + "b" * 43, "psk_", "nonsense"):
        with pytest.raises(Unauthenticated) as caught:
            await keys.authenticate(text)
        told.add(str(caught.value))
    assert len(told) == 1


@law("E1")
@pytest.mark.parametrize(
    "changes, kind, field",
    [
        ({"tenant": ""}, BadName, "tenant"),
        ({"tenant": "a/b"}, BadName, "tenant"),
        ({"grants": []}, BadInput, "grants"),
        ({"grants": ["publish"]}, BadInput, "grants"),
        ({"grants": ["publish:a", "drop:b"]}, BadInput, "grants"),
        ({"name": "a\nb"}, BadInput, "name"),
        ({"name": "x" * 201}, BadInput, "name"),
        ({"name": 5}, BadInput, "name"),
        ({"expires_at": 5}, BadInput, "expires_at"),
        ({"expires_at": 2**70}, BadInput, "expires_at"),
        ({"expires_at": True}, BadInput, "expires_at"),
        ({"expires_at": 1.8e12}, BadInput, "expires_at"),
    ],
)
async def test_bad_keys_are_not_made(
    keys: Keys, engine: Engine, changes: dict[str, object], kind: type[BadInput], field: str
) -> None:
    call: dict = {"tenant": "acme", "grants": GRANTS} | changes
    with pytest.raises(BadInput) as caught:
        await keys.create(call.pop("tenant"), call.pop("grants"), **call)
    assert type(caught.value) is kind
    assert caught.value.field == field
    assert await engine.list_documents(DOCUMENT_KIND) == ()


async def test_keys_of_a_tenant_are_bounded(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.access.keys.MAX_KEYS", 2)
    await keys.create("acme", GRANTS)
    await keys.create("acme", GRANTS)
    with pytest.raises(Conflict) as caught:
        await keys.create("acme", GRANTS)
    assert caught.value.limit == 2
    await keys.create("other", GRANTS)


async def test_an_id_that_comes_twice_replaces_nobody(engine: Engine, clock: FakeClock) -> None:
    stuck = Keys(engine, clock, bytes)
    new = await stuck.create("acme", GRANTS)
    with pytest.raises(Conflict):
        await stuck.create("other", GRANTS)
    assert (await stuck.authenticate(new.key)).tenant == "acme"


async def test_the_first_key_is_made_once(keys: Keys) -> None:
    first = await keys.first()
    assert first is not None
    assert (await keys.authenticate(first.key)).is_operator
    assert await keys.first() is None


@law("X1")
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"tenant":"a","name":"a","grants":["x"],"created_at":1,"expires_at":null,"sha256":"%s"}',
    ],
)
async def test_a_damaged_document_is_reported(keys: Keys, engine: Engine, value: bytes) -> None:
    text = "psk_" + "a" * 16 + "_" + "b" * 43
    digest = hashlib.sha256(text.encode()).hexdigest().encode()
    await engine.put_document(DOCUMENT_KIND, "a" * 16, value.replace(b"%s", digest))
    with pytest.raises(StoreCorrupt, match="a" * 16):
        await keys.authenticate(text)
