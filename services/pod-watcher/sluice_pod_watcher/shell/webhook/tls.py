"""The server's TLS context, whose certificate is replaced while connections stay open. New handshakes see the new
certificate; open connections keep theirs. No key touches a disk: the library wants a file, so it gets one in memory.
"""

import os
import ssl


class UnusableCertificateError(Exception):
    """A certificate or key is invalid, or they do not match. Its text is a sentence."""


def new_context() -> ssl.SSLContext:
    """A server's context without a certificate: handshakes fail until one is set."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def show(context: ssl.SSLContext, certificate_pem: bytes, key_pem: bytes) -> None:
    """Serve this certificate from now on. Raises UnusableCertificateError, and then the old one stays. It is tried in a
    context of its own first, because a context with half of a pair fails every handshake.
    """
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
