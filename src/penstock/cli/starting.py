"""What ``penstock serve`` prints at startup: its address, store and auth, and the next steps.

The printed commands work as they are, pasted into the shell of another terminal.
"""

from __future__ import annotations

import shutil
import sys
from shlex import quote
from typing import Final

from penstock.model.secrets import mask_password
from penstock.settings import Settings
from penstock.version import VERSION

__all__ = ["next_steps"]

_PYTHON: Final = """\
{python} - <<'END'
import asyncio, os, penstock

async def main():
    async with penstock.connect({arguments}) as q:
        await q.publish("orders", {{"order": 8}}, headers={{"amount": 250}})
        for delivery in await q.claim("orders", limit=10):
            print(delivery.payload, delivery.message.headers)
            await q.ack(delivery)

asyncio.run(main())
END"""


def next_steps(settings: Settings, url: str, key: str | None) -> str:
    """The text for a server that listens at ``url``; ``key`` is the first key, just created."""
    url = _reachable(url)
    command = "penstock" if shutil.which("penstock") else f"{quote(sys.executable)} -m penstock"
    lines = [
        f"penstock {VERSION} listens on {url}",
        f"  store  {mask_password(settings.store)}",
        f"  auth   {_auth(settings, command)}",
        *_first(key),
        "",
        "From another terminal, publish a message and claim it:",
        "",
        *_calls(settings, url),
        "",
        "The same from Python:",
        "",
        _PYTHON.format(python=quote(sys.executable), arguments=_arguments(settings, url)),
        "",
        f"{_trusting(settings)}{command} queue list --url {url}",
        f"lists the queues, {url}/openapi.json every call. Ctrl-C stops the server.",
    ]
    return "\n".join(lines)


def _first(key: str | None) -> list[str]:
    if key is None:
        return []
    told = "The first key may do everything. It is shown only once; keep it:"
    return ["", told, "", f"export PENSTOCK_CREDENTIAL={key}"]


def _calls(settings: Settings, url: str) -> list[str]:
    curl = "curl -sS"
    if settings.auth:
        curl += ' -H "Authorization: Bearer $PENSTOCK_CREDENTIAL"'
    if settings.tls_cert is not None:
        curl += f" --cacert {quote(str(settings.tls_cert))}"
    json = "-H 'Content-Type: application/json'"
    message = """-H 'Penstock-Headers: {"amount": 250}' -d '{"order": 7}'"""
    calls = [
        f"{curl} {url}/v1/topics/orders/messages {json} \\\n    {message}",
        f"{curl} -X POST {url}/v1/queues/orders/claims {json}",
    ]
    if not settings.auto_create:
        policy = quote("""{"filter": "topic = 'orders'"}""")
        calls.insert(0, f"{curl} -X PUT {url}/v1/queues/orders {json} -d {policy}")
    return calls


def _arguments(settings: Settings, url: str) -> str:
    arguments = [f'"{url}"']
    if settings.auth:
        arguments.append('credential=os.environ["PENSTOCK_CREDENTIAL"]')
    if settings.tls_cert is not None:
        arguments.append(f"ca={str(settings.tls_cert)!r}")
    return ", ".join(arguments)


def _trusting(settings: Settings) -> str:
    """The certificate may be self-signed; this variable makes OpenSSL trust it."""
    if settings.tls_cert is None:
        return ""
    return f"SSL_CERT_FILE={quote(str(settings.tls_cert))} "


def _auth(settings: Settings, command: str) -> str:
    if settings.auth:
        return f"on: put a key into PENSTOCK_CREDENTIAL; `{command} key create` creates more"
    if settings.insecure:
        return "off, by --insecure: anyone who can reach this address may do anything"
    return "off: this machine only"


def _reachable(url: str) -> str:
    """Replace an address that means all interfaces with loopback."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
