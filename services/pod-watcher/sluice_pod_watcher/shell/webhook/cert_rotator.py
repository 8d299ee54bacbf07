"""Keep the server's certificate valid: refresh it, serve new ones, publish their authorities. An outage of the store or
of the API server does no harm while the served one is valid. Only this module decides by the wall clock."""

import os
import ssl
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

import msgspec

from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import Sample
from sluice_pod_watcher.shell.metrics import CERTIFICATE_ENDS, WEBHOOK_READY
from sluice_pod_watcher.shell.webhook.cert_sources import (
    CertificateSource,
    CertificateUnavailableError,
    ServedCertificate,
)


class UnusableCertificateError(Exception):
    """A certificate or key is invalid, or they do not match. Its text is a sentence."""


def new_context() -> ssl.SSLContext:
    """A server's context without a certificate: handshakes fail until one is set."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def show(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Serve this certificate to new connections. Raises UnusableCertificateError; then the old one stays: it is tried
    in a context of its own first. No key touches a disk: the library wants a file, and gets one in memory."""
    descriptor = os.memfd_create("sluice-webhook", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate_pem + b"\n" + key_pem)
        file.flush()
        path = f"/proc/self/fd/{descriptor}"
        try:
            new_context().load_cert_chain(path, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise UnusableCertificateError(f"the certificate cannot be used: {error}") from error
        context.load_cert_chain(path, password=_no_password)


def _no_password() -> str:
    """Instead of prompting on the terminal for the password of an encrypted key, which would block the service."""
    raise ValueError("its key is encrypted")


REFRESH_S = 60.0
"""Between two rounds: far below the hour in which a new authority must reach all, and each is one read of a Secret."""
RETRY_S = 5.0  # while there is no certificate, or its authority is not published


class NotPublishedError(Exception):
    """The authorities could not be published. Its text is a sentence."""


class BundlePublisher(Protocol):
    """Publishes to the API servers which authorities to trust (the caBundle of the webhook's configuration)."""

    async def publish(self, bundle_pem: str) -> None:
        """Publish it, unless it is there: called every round, as others may overwrite it. Raises NotPublishedError."""


class NoBundlePublisher(msgspec.Struct, frozen=True):
    """For authorities that are published elsewhere: by cert-manager's injector, or read by a test."""

    async def publish(self, bundle_pem: str) -> None:
        """Nothing to do."""


class CertificateRotator:
    """Owns what the server shows. `context` is given to the server."""

    def __init__(
        self, context: ssl.SSLContext, source: CertificateSource, publisher: BundlePublisher, clock: Clock
    ) -> None:
        self._context, self._source, self._publisher, self._clock = context, source, publisher, clock
        self._shown: ServedCertificate | None = None
        self._published = ""
        self._trouble = ""
        self._log = logs.get("certificate")

    @property
    def bundle(self) -> str:
        return self._published

    @property
    def expires(self) -> datetime | None:
        return self._shown.expires if self._shown is not None else None

    def why_not_ready(self) -> str:
        """Why callers cannot connect now, in a sentence; empty when they can."""
        if self._shown is None:
            return f"there is no certificate yet: {self._trouble or 'not requested yet'}"
        if self._shown.expires <= self._clock.utc():
            return f"the certificate has expired: {self._trouble or 'not renewed'}"
        if self._shown.bundle and not self._published:
            return f"the certificate's authority is not published: {self._trouble}"
        return ""

    async def run(self) -> None:
        with metrics.collecting_from(self._samples):
            while True:
                await self.refresh()
                await self._clock.sleep(RETRY_S if self.why_not_ready() else REFRESH_S)

    def _samples(self) -> Iterator[Sample]:
        """The expiry as a metric: a failing renewal is logged once, and a month later no pod could be created."""
        yield Sample(WEBHOOK_READY, not self.why_not_ready())
        if self._shown is not None:
            yield Sample(CERTIFICATE_ENDS, self._shown.expires.timestamp())

    async def refresh(self) -> None:
        """One round. A failure is logged once, and retried in the next."""
        try:
            found = await self._source.refresh(self._clock.utc(), published=self._published)
            self._show(found)
            if found.bundle:
                await self._publisher.publish(found.bundle)
                if found.bundle != self._published:
                    self._log.info("the caBundle is published")
                self._published = found.bundle
        except (CertificateUnavailableError, UnusableCertificateError, NotPublishedError) as error:
            if str(error) != self._trouble:
                self._log.warning("the certificate cannot be refreshed; retrying", why=str(error))
            self._trouble = str(error)
        else:
            if self._trouble:
                self._log.info("the certificate is refreshed again")
            self._trouble = ""

    def _show(self, found: ServedCertificate) -> None:
        before = self._shown
        if before is None or (before.certificate_pem, before.key_pem) != (found.certificate_pem, found.key_pem):
            show(self._context, found.certificate_pem, found.key_pem)
            self._log.info("serves a new certificate", expires=found.expires.isoformat())
        self._shown = found
