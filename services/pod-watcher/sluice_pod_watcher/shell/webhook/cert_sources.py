"""Where certificates come from: made and rotated here, or mounted by cert-manager. The rotator polls both. Those made
here are kept so that all replicas and later restarts serve the same (`shell.kube.webhook_certificates`: a Secret)."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice_pod_watcher.shell.webhook import cert_generations
from sluice_pod_watcher.shell.webhook.cert_generations import CertificateConfig, Generations

_ATTEMPTS_MAX = 4  # to replace the stored certificates while other replicas do the same; then the next refresh


class StoreUnavailableError(Exception):
    """The store cannot be read or written now. Its text is a sentence."""


class StoredCertificates(msgspec.Struct, frozen=True):
    """The content of a store, and its version: any text that differs once the content does."""

    text: str
    version: str


class CertificateStore(Protocol):
    """Keeps one text, which holds private keys."""

    async def load(self) -> StoredCertificates:
        """The stored text, empty at first. Raises StoreUnavailableError."""

    async def save(self, text: str, *, replaces: str) -> bool:
        """Replace the version `replaces`. False when it has changed since: read again. Raises StoreUnavailableError;
        the write may have happened all the same."""


class CertificateUnavailableError(Exception):
    """There is no certificate to serve now. Its text is a sentence."""


class ServedCertificate(msgspec.Struct, frozen=True):
    """A certificate with its key (PEM), and the authorities that callers must trust; empty if published elsewhere."""

    certificate_pem: bytes
    key_pem: bytes
    expires: datetime
    bundle: str = ""


class CertificateSource(Protocol):
    """Provides the certificate to serve."""

    async def refresh(self, now: datetime, *, published: str) -> ServedCertificate:
        """The certificate to serve at `now`, while callers trust `published`. Raises CertificateUnavailableError."""


class RotatingCertificates(msgspec.Struct, frozen=True):
    """Makes certificates for `names` and keeps them in a store that its replicas share."""

    store: CertificateStore
    names: Sequence[str]
    config: CertificateConfig

    async def refresh(self, now: datetime, *, published: str) -> ServedCertificate:
        """Read the store, make what is due, and return what to serve. Raises CertificateUnavailableError."""
        try:
            kept = await self._kept(now)
        except StoreUnavailableError as error:
            raise CertificateUnavailableError(str(error)) from error
        found = cert_generations.shown(kept.generations, self.names, now, self.config, published=published)
        if found is None:
            raise CertificateUnavailableError(f"no certificate for {', '.join(self.names)} is kept, and none could be")
        trusted = cert_generations.bundle(kept.generations, now)
        return ServedCertificate(found.certificate_pem.encode(), found.key_pem.encode(), found.expires, trusted)

    async def _kept(self, now: datetime) -> Generations:
        for _ in range(_ATTEMPTS_MAX):
            loaded = await self.store.load()
            kept = _decoded(loaded.text)
            if not cert_generations.is_due(kept.generations, self.names, now, self.config):
                return kept
            made = await asyncio.to_thread(cert_generations.make_generation, self.names, now, self.config.validity)
            new = cert_generations.with_new(kept.generations, made, now)
            text = msgspec.json.encode(new).decode()
            if await self.store.save(text, replaces=loaded.version):
                return new
        raise CertificateUnavailableError("the kept certificates changed at each attempt to renew them")


def _decoded(text: str) -> Generations:
    if not text.strip():
        return Generations()
    try:
        return msgspec.json.decode(text, type=Generations)
    except NOT_READABLE as error:
        right = "empty the Secret, and new ones are made"
        why = f"the stored certificates are damaged; {right} ({shorten(str(error), 300)})"
        raise CertificateUnavailableError(why) from error


class MountedCertificates(msgspec.Struct, frozen=True):
    """A certificate in a folder (`tls.crt`, `tls.key`), whose authorities cert-manager publishes itself."""

    folder: Path

    async def refresh(self, now: datetime, *, published: str) -> ServedCertificate:  # noqa: ARG002 - the port's question
        return await asyncio.to_thread(self._read, now)

    def _read(self, now: datetime) -> ServedCertificate:
        try:
            certificate, key = ((self.folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
            expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        except OSError as error:
            raise CertificateUnavailableError(f"{error.filename}: {error.strerror or error}") from error
        except ValueError as error:
            why = f"is not a valid certificate: {error}"
            raise CertificateUnavailableError(f"{self.folder / 'tls.crt'} {why}") from error
        if expires <= now:
            raise CertificateUnavailableError(f"{self.folder / 'tls.crt'} expired at {expires:%Y-%m-%d %H:%M} UTC")
        return ServedCertificate(certificate, key, expires)
