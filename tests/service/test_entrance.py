"""Who gets in: the address, credentials and TLS of a real server."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import penstock
from penstock.client import ClientOptions
from penstock.errors import BadReply, Forbidden, Unauthenticated, Unreachable
from penstock.testing.laws import law
from tests.service.certificates import self_signed
from tests.service.serving import Serve

QUICK = ClientOptions(retry_ms=0)


# -- the address ---------------------------------------------------------------------------


@law("E1")
def test_the_world_is_not_let_in_by_default(serve: Serve) -> None:
    process, log = serve.begin("--host", "0.0.0.0")
    assert process.wait(60) == 3
    assert "--auth" in log.read_text()
    assert not (serve.folder / "store").exists()


def test_the_world_is_let_in_on_request(serve: Serve) -> None:
    server = serve("--host", "0.0.0.0", "--insecure")
    assert "Anybody who reaches 0.0.0.0 may do anything" in server.said()
    assert server.call("GET", "/readyz").status == 200


async def test_a_name_stands_for_its_address(serve: Serve) -> None:
    server = serve("--host", "localhost", store="memory://")
    assert server.url == f"http://localhost:{server.port}"
    async with penstock.connect(server.url) as client:
        await client.publish("orders", b"x")
    assert server.stop() == 0


@law("E1")
def test_a_name_that_stands_for_nothing(serve: Serve) -> None:
    process, log = serve.begin("--host", "nosuch.invalid", "--insecure")
    assert process.wait(60) == 3
    assert "Cannot listen on nosuch.invalid" in log.read_text()


# -- credentials ---------------------------------------------------------------------------


@law("T1")
async def test_keys_that_were_made_before_the_server_started(serve: Serve) -> None:
    """401 without, 403 beyond its grants, 200 within; and no other key is made up (T1)."""
    made = serve.run(
        *("key", "create", "--grant", "publish:orders", "--grant", "consume:orders"),
        *("--name", "shop", "--store", serve.store),
    )
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    server = serve("--auth")
    assert server.told["key"] is None
    assert server.call("GET", "/readyz").status == 200
    unknown = server.call("GET", "/v1/queues")
    assert unknown.status == 401
    assert unknown.headers["www-authenticate"].startswith("Bearer")
    assert server.call("GET", "/v1/queues", credential="psk_wrong").status == 401
    assert server.call("GET", "/metrics", credential=key).status == 403
    assert server.call("GET", "/v1/queues", credential=key).status == 200
    async with penstock.connect(server.url, options=QUICK) as nobody:
        with pytest.raises(Unauthenticated):
            await nobody.publish("orders", b"x")
    async with penstock.connect(server.url, credential=key, options=QUICK) as shop:
        await shop.publish("orders", b"x")
        with pytest.raises(Forbidden, match="publish:invoices"):
            await shop.publish("invoices", b"x")
        (delivery,) = await shop.claim("orders")
        await shop.ack(delivery)
    assert server.stop() == 0
    assert key not in server.said()


def test_a_revoked_key_is_refused_at_once(serve: Serve) -> None:
    server = serve("--auth")
    first = server.told["key"]
    made = server.call("POST", "/v1/keys", {"grants": ["admin:*"], "name": "b"}, credential=first)
    key, key_id = made.json()["key"], made.json()["info"]["id"]
    assert server.call("GET", "/v1/queues", credential=key).status == 200
    assert server.call("DELETE", f"/v1/keys/{key_id}", credential=first).status < 300
    assert server.call("GET", "/v1/queues", credential=key).status == 401


# -- TLS -----------------------------------------------------------------------------------


async def test_tls_with_a_certificate_of_ones_own(serve: Serve) -> None:
    pair = self_signed(serve.folder)
    server = serve("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    assert server.url.startswith("https://")
    async with penstock.connect(server.url, ca=str(pair.cert), options=QUICK) as client:
        await client.publish("orders", b"x" * 500_000)
        (delivery,) = await client.claim("orders", wait_ms=1_000)
        assert delivery.payload == b"x" * 500_000
    async with penstock.connect(server.url, options=QUICK) as stranger:
        with pytest.raises(Unreachable, match="certificate"):
            await stranger.log_end()
    plain = server.url.replace("https", "http")
    async with penstock.connect(plain, options=QUICK) as clear:
        with pytest.raises((BadReply, Unreachable)):
            await clear.log_end()
    assert server.stop() == 0


async def test_tls_with_certificates_of_clients(serve: Serve) -> None:
    pair, client_pair = self_signed(serve.folder), self_signed(serve.folder, "client")
    server = serve(
        *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key)),
        *("--tls-client-ca", str(client_pair.cert)),
    )
    known = ssl.create_default_context(cafile=pair.cert)
    known.load_cert_chain(client_pair.cert, client_pair.key)
    async with penstock.connect(server.url, ca=known, options=QUICK) as client:
        await client.publish("orders", b"x")
    unknown = ssl.create_default_context(cafile=pair.cert)
    async with penstock.connect(server.url, ca=unknown, options=QUICK) as client:
        with pytest.raises(Unreachable):
            await client.log_end()
    assert server.stop() == 0


@law("E1")
def test_a_key_that_does_not_fit(serve: Serve, tmp_path: Path) -> None:
    pair, other = self_signed(tmp_path), self_signed(tmp_path, "other")
    process, log = serve.begin("--tls-cert", str(pair.cert), "--tls-key", str(other.key))
    assert process.wait(60) == 3
    assert "do not fit together" in log.read_text()
