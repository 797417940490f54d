"""TLS files are tried before the server starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import BadSetting
from penstock.server.access import Tls, check_tls
from penstock.testing.laws import law


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / f"{name}.crt", folder / f"{name}.key"
    cert_path.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(written(key, serialization.PrivateFormat.PKCS8))
    return cert_path, key_path


def written(
    key: Any,
    format: serialization.PrivateFormat,
    protection: serialization.KeySerializationEncryption | None = None,
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, format, protection or serialization.NoEncryption()
    )


def test_none_is_no_tls() -> None:
    assert check_tls(None, None) is None


def test_files_that_fit(tmp_path: Path) -> None:
    cert, key = write_pair(tmp_path, "server")
    ca, _ = write_pair(tmp_path, "ca")
    assert check_tls(cert, key) == Tls(cert, key)
    assert check_tls(cert, key, ca) == Tls(cert, key, ca)


def refusal(*files: Path | None) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        check_tls(*files)
    return caught.value


@law("E1")
def test_one_without_the_other(tmp_path: Path) -> None:
    cert, key = write_pair(tmp_path, "server")
    assert refusal(cert, None).field == "tls_key"
    assert refusal(None, key).field == "tls_cert"
    assert refusal(None, None, cert).field == "tls_cert"


@law("E1")
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"\xff" * 100, b"x" * 5_000_000])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_file_that_is_not_what_it_should_be(
    tmp_path: Path, place: int, content: bytes | None
) -> None:
    cert, key = write_pair(tmp_path, "server")
    ca, _ = write_pair(tmp_path, "ca")
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_bytes(content)
    files: list[Path | None] = [cert, key, ca]
    files[place] = bad
    error = refusal(*files)
    assert error.field == ("tls_cert", "tls_key", "tls_client_ca")[place]
    assert str(bad) in error.detail


@law("E1")
def test_a_folder_is_no_file(tmp_path: Path) -> None:
    _, key = write_pair(tmp_path, "server")
    assert refusal(tmp_path, key).field == "tls_cert"


@law("E1")
def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    cert, _ = write_pair(tmp_path, "server")
    _, other = write_pair(tmp_path, "other")
    assert "fit" in refusal(cert, other).detail


@law("E1")
@pytest.mark.timeout(20)
def test_a_key_that_the_server_cannot_read_is_told_how_to_convert(tmp_path: Path) -> None:
    """Nor is anybody asked for a password: nobody may be sitting there."""
    cert, _ = write_pair(tmp_path, "server")
    key = ec.generate_private_key(ec.SECP256R1())
    old = tmp_path / "old.key"
    for content in (
        written(key, serialization.PrivateFormat.TraditionalOpenSSL),
        written(
            key,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        ),
    ):
        old.write_bytes(content)
        error = refusal(cert, old)
        assert error.field == "tls_key"
        assert "openssl pkcs8" in error.detail
