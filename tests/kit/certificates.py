"""Certificates for servers of tests."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """A certificate authority and what it signed for a server, as files."""

    ca: Path
    cert: Path
    key: Path


def make_certificates(folder: Path, address: str) -> Certificates:
    folder.mkdir(parents=True)
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begin(subject: str, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name("test authority"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=30))

    def save(path: Path, content: bytes) -> Path:
        path.write_bytes(content)
        return path

    authority_key = rsa.generate_private_key(65537, 2048)
    authority = begin("test authority", authority_key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    server_key = rsa.generate_private_key(65537, 2048)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    signed = begin("server", server_key).add_extension(names, critical=False).sign(authority_key, hashes.SHA256())
    key_text = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    return Certificates(
        save(folder / "ca.pem", authority.sign(authority_key, hashes.SHA256()).public_bytes(pem)),
        save(folder / "cert.pem", signed.public_bytes(pem)),
        save(folder / "key.pem", key_text),
    )
