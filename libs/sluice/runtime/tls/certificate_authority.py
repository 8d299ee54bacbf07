"""Signs certificates with an authority: ECDSA on P-256, extensions by RFC 5280. Writes no file, tells no key."""

import datetime as dt
import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.contracts.rpc_permissions import Caller
from sluice.runtime.errors import ServiceError

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
"""825 days is the longest that common TLS clients accept of a server."""
RENEW_DAYS = 30
AS_SERVER, AS_CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
USAGES = {
    Caller.ALLOCATOR: (AS_SERVER,),
    Caller.INVENTORY: (AS_SERVER, AS_CLIENT),
    Caller.CONSOLE: (AS_CLIENT,),
    Caller.OPERATOR: (AS_CLIENT,),
    Caller.WEB: (AS_CLIENT,),
}
"""Usages of a certificate. An agent's is for a server only: it cannot call others."""


class CredentialsError(ServiceError):
    """The requested credentials cannot be made. One sentence."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def kept_pair(
    kept: KeyPair | None,
    authority: KeyPair,
    names: Sequence[str],
    usages: Iterable[x509.ObjectIdentifier],
    now: dt.datetime,
) -> KeyPair:
    """`kept` if it is still valid, of this authority and for these names; else a new one."""
    return kept if kept is not None and is_good(kept, authority, names, now) else issue(authority, names, usages, now)


def is_good(kept: KeyPair, authority: KeyPair, names: Sequence[str], now: dt.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(kept.certificate)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        said = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False  # another authority
    lasts = certificate.not_valid_after_utc - now > dt.timedelta(days=RENEW_DAYS)
    return lasts and list(said) == [_alternative(name) for name in names]


def check_authority(given: KeyPair, now: dt.datetime) -> None:
    """Check that a given authority can sign. Raises CredentialsError."""
    try:
        certificate = x509.load_pem_x509_certificate(given.certificate)
        authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise CredentialsError("--authority: this is no certificate (PEM) of an authority") from error
    if not authority.ca:
        raise CredentialsError("--authority: this certificate may not sign others (basicConstraints: CA is false)")
    if certificate.not_valid_after_utc - now < dt.timedelta(days=RENEW_DAYS):
        raise CredentialsError(f"--authority: this certificate ends at {certificate.not_valid_after_utc:%Y-%m-%d}")
    if _signer(given).public_key() != certificate.public_key():
        raise CredentialsError("--authority-key: this is not the key of the certificate")


def names_of(certificate: bytes) -> tuple[str, ...]:
    """The alternative names of one of our certificates. Raises CredentialsError."""
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions
        said = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise CredentialsError("the broker's certificate has no alternative names") from error
    return tuple(str(name.value) for name in said)


def _signer(authority: KeyPair) -> ec.EllipticCurvePrivateKey:
    try:
        signer = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError) as error:
        raise CredentialsError("the key of the authority is no PEM key without a password") from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CredentialsError("the key of the authority is not an EC key")
    return signer


def new_authority(
    common_name: str, now: dt.datetime, *, lasts: dt.timedelta = dt.timedelta(days=AUTHORITY_DAYS)
) -> KeyPair:
    """An authority that may sign certificates, and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    certificate = (
        _certificate(name, name, key.public_key(), now, lasts)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def issue(
    authority: KeyPair,
    names: Sequence[str],
    usages: Iterable[x509.ObjectIdentifier],
    now: dt.datetime,
    *,
    lasts: dt.timedelta = dt.timedelta(days=SERVER_DAYS),
) -> KeyPair:
    """A new certificate with these DNS names or IP addresses, and these extended usages. Raises CredentialsError."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = _signer(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    # Node names may be longer than a subject allows: the identity is in the alternative names alone.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sluice")])
    certificate = (
        _certificate(subject, issuer.subject, key.public_key(), now, lasts)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def self_signed(names: Sequence[str], usages: Iterable[x509.ObjectIdentifier], now: dt.datetime) -> KeyPair:
    """A certificate for those that trust it. Its subject is random: no peer takes an older one for its issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"sluice-{secrets.token_hex(8)}")])
    certificate = (
        _certificate(name, name, key.public_key(), now, dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.SubjectAlternativeName([_alternative(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, lasts: dt.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + lasts)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
