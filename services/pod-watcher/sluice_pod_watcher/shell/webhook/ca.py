"""Make a key, a certificate for names, and the authority that signed it. The only place that signs. ECDSA on P-256, as
Kubernetes' own tools make them; extensions by RFC 5280 for strict verifiers."""

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice_pod_watcher.shell.webhook.cert_generations import SKEW, Generation

_COMMON_NAME_MAX = 64


def make_generation(
    names: Sequence[str], made: datetime, validity: timedelta, *, of: str = "webhook", calls: bool = False
) -> Generation:
    """A new generation for DNS names or IP addresses (at least one), valid until `made + validity`. `of` is in the
    authority's name; the owner of one that `calls` is also a client, as a broker is of its peers. The authority's key
    lives in this call only."""
    if not names:
        raise ValueError("a certificate needs at least one name")
    made = made.replace(microsecond=0)
    expires = made + validity
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Sluice {of} {made:%Y-%m-%dT%H:%M:%SZ}")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:_COMMON_NAME_MAX])])
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), made, expires)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if calls else [])]
    certificate = (
        _builder(subject, issuer, key.public_key(), made, expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Generation(
        authority_pem=_pem(authority),
        certificate_pem=_pem(certificate),
        key_pem=private.decode(),
        names=tuple(names),
        made=made,
        expires=expires,
    )


def expiry_of(certificate_pem: bytes) -> datetime:
    """The expiry of a certificate, in UTC. Raises ValueError if it is not one."""
    return x509.load_pem_x509_certificate(certificate_pem).not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, made: datetime, expires: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(made - SKEW)
        .not_valid_after(expires)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
