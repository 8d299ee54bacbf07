"""A cluster's authority, and what it signs: every component and every person has a certificate of its own."""

import ipaddress
import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Pair:
    """Certificate and key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates into `folder`."""

    folder: Path

    @property
    def pair(self) -> Pair:
        """Its own."""
        return Pair(self.folder / "ca.crt", self.folder / "ca.key")

    def make(self) -> None:
        """A new authority, and the key that signs tokens of service accounts."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sluice-cluster")])
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(self.pair, certificate, key)
        account = ec.generate_private_key(ec.SECP256R1())
        (self.folder / "sa.key").write_bytes(_pem(account))
        public = account.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / "sa.pub").write_bytes(public)

    def issue(
        self,
        file: str,
        user: str,
        *,
        groups: Iterable[str] = (),
        names: Iterable[str] = (),
        addresses: Iterable[str] = (),
    ) -> Pair:
        """A certificate for a user in groups; with names or addresses, for a server that has them."""
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        authority = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        signing = serialization.load_pem_private_key(self.pair.key.read_bytes(), None)
        if not isinstance(signing, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self.pair.key} holds no EC key")
        key = ec.generate_private_key(ec.SECP256R1())
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in groups]
        subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if alternatives else [])]
        builder = _builder(subject, authority.subject, key.public_key()).add_extension(
            x509.ExtendedKeyUsage(uses), critical=False
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        _write(pair, builder.sign(signing, hashes.SHA256()), key)
        return pair

    def kubeconfig(self, file: Path, server: str, user: str, by: Pair | str) -> Path:
        """For a person or a component, by a certificate or a token; holds what it needs, so that it can be copied."""
        cluster = {"server": server, "certificate-authority-data": _base64(self.pair.certificate)}
        identity = {"token": by}
        if isinstance(by, Pair):
            identity = {"client-certificate-data": _base64(by.certificate), "client-key-data": _base64(by.key)}
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sluice-cluster",
            "clusters": [{"name": "sluice-cluster", "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "sluice-cluster", "context": {"cluster": "sluice-cluster", "user": user}}],
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(text, indent=1))
        return file


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(minutes=5)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + VALID)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pair.key.touch(mode=0o600)
    pair.key.write_bytes(_pem(key))


def _base64(path: Path) -> str:
    return b64encode(path.read_bytes()).decode()
