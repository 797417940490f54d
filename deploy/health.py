"""The health check of the image: exits with 0 if the server in this container does its work.

A server that stands by for another one cannot commit, and is healthy. Any other has to have made a
commit just now (/readyz). The port and TLS are those of the server's own settings.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4


def ask(path: str) -> dict[str, str]:
    """The answer of the server; its certificate is for the name by which clients call it."""
    scheme = "https" if os.environ.get("PENSTOCK_TLS_CERT") else "http"
    url = f"{scheme}://127.0.0.1:{os.environ.get('PENSTOCK_PORT', '8080')}{path}"
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=unverified) as reply:
        found: dict[str, str] = json.load(reply)
        return found


def main() -> None:
    """Ask, and exit."""
    try:
        if ask("/healthz")["role"] == "writer":
            ask("/readyz")
    except (OSError, ValueError, urllib.error.URLError) as error:
        sys.exit(f"not healthy: {error}")


if __name__ == "__main__":
    main()
