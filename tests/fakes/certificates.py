"""A certificate authority for tests: makes itself, and certificates for host names."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM


class Authority:
    """An authority whose own certificate is the PEM file `path`; its files lie in `folder`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.path = folder / f"{name}.pem"
        self._folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, self._name, self._key.public_key())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        signed = builder.add_extension(constraints, critical=True).sign(self._key, hashes.SHA256())
        self.path.write_bytes(signed.public_bytes(_PEM))

    def issue(self, *hosts: str) -> tuple[Path, Path]:
        """Return the files of a certificate for names or addresses, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(hosts[0]), self._name, key.public_key())
        names = x509.SubjectAlternativeName([_general(host) for host in hosts])
        signed = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        paths = self._folder / f"{hosts[0]}.pem", self._folder / f"{hosts[0]}.key"
        paths[0].write_bytes(signed.public_bytes(_PEM))
        paths[1].write_bytes(
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return paths

    def serving(self, *hosts: str) -> ssl.SSLContext:
        """Return what a server for these hosts listens with."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.issue(*hosts))
        return context


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
