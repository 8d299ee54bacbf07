"""
Who this process is to those it speaks gRPC with, and whom it believes: files, read again when they change.

What is read is tried at once: the certificate is shown to ourselves in memory, with the system's own TLS. So a key of
another certificate, one that has ended or one of another authority is a sentence at the start, and not a failed
handshake somewhere else an hour later. Files that turn bad while we run change nothing: the last good ones stay in use.

It says who somebody is, never what he may (`sluice.contracts.callers`).
"""

import datetime as dt
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from sluice.runtime import logs
from sluice.runtime.errors import ServiceError
from sluice.runtime.settings import CommonSettings

LOOK_S = 1.0
"""How often, at most, it is looked whether the files have changed."""
WARN = dt.timedelta(days=14)
"""A certificate that ends sooner is warned of: it should have been renewed."""
FILE_BYTES_MAX = 256 * 1024
_READS_MAX = 3
"""How often files are read that change while they are read."""
_ROUNDS_MAX = 10
"""Of a handshake with ourselves, which takes three."""
_HAS_ENDED, _NOT_YET, _WRONG_PURPOSE = 10, 9, 26
"""X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_INVALID_PURPOSE (OpenSSL, x509_vfy.h)."""

_Signature = tuple[tuple[int, int, int], ...]


class CertificateError(ServiceError):
    """A certificate, its key or the authorities cannot be used. One sentence with the file."""


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What the files held at one time, known to be good then. PEM texts."""

    certificate: bytes
    key: bytes
    authority: bytes
    names: tuple[str, ...]
    """The DNS names that the certificate says."""
    ends: dt.datetime


@dataclass(eq=False)
class Identity:
    """The certificate of this process, its key, and the authorities that it believes. Safe to use in any thread."""

    certificate_file: Path
    key_file: Path
    ca_file: Path
    names: tuple[str, ...] = ()
    """What the certificate must say, all of it."""
    look_s: float = LOOK_S
    _material: Material = field(init=False, repr=False)
    _seen: _Signature = field(init=False, repr=False)
    _looked_at: float = field(init=False, repr=False)
    _warned: Material | None = field(init=False, default=None, repr=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        """Read the files. Raises CertificateError."""
        self._seen = self._signature()
        self._material = self._read()
        self._looked_at = time.monotonic()

    def current(self) -> Material:
        """
        What is good now: another object when the files have changed, the same one until then.

        Looks at three small files once in LOOK_S. Files that are no good are logged, once for each change of them.
        """
        with self._lock:
            if time.monotonic() - self._looked_at >= self.look_s:
                self._look()
                self._looked_at = time.monotonic()
            return self._material

    def server_credentials(self) -> grpc.ServerCredentials:
        """
        For a server that shows this certificate and wants one of everybody.

        Each handshake uses what the files hold by then; connections that are there stay.
        """
        shown: list[Material] = [self.current()]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            found = self.current()
            if found is shown[0]:
                return None  # as before (grpc.dynamic_ssl_server_credentials)
            shown[0] = found
            return _configuration(found)

        return grpc.dynamic_ssl_server_credentials(_configuration(shown[0]), fetch, require_client_authentication=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client, as the files are now: a channel keeps them for its life."""
        found = self.current()
        return grpc.ssl_channel_credentials(found.authority, found.key, found.certificate)

    # -- reading --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        log = logs.get("certificate", file=str(self.certificate_file))
        try:
            signature = self._signature()
            if signature != self._seen:
                self._seen = signature
                self._material = self._read()
                log.info("read again", names=self._material.names, ends=self._material.ends.isoformat())
        except CertificateError as error:
            log.error(  # noqa: TRY400 - the sentence says it all
                "the new files are no good; the old ones stay in use", why=str(error)
            )
        left = self._material.ends - dt.datetime.now(dt.UTC)
        if left < WARN and self._warned is not self._material:
            self._warned = self._material
            log.warning("the certificate should have been renewed", ends=self._material.ends.isoformat())

    def _signature(self) -> _Signature:
        found = []
        for path in (self.certificate_file, self.key_file, self.ca_file):
            try:
                stat = path.stat()
            except OSError:
                found.append((0, 0, 0))  # reading says why
            else:
                found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(found)

    def _read(self) -> Material:
        """Everything, as of one moment. Raises CertificateError."""
        for _ in range(_READS_MAX):
            before = self._signature()
            certificate = _content("grpc_certificate_file", self.certificate_file)
            key = _content("grpc_key_file", self.key_file)
            authority = _content("grpc_ca_file", self.ca_file)
            shown = self._shown(authority)
            if self._signature() == before:
                names = tuple(str(value) for kind, value in shown["subjectAltName"] if kind == "DNS")
                missing = [name for name in self.names if name not in names]
                if missing:
                    raise CertificateError(
                        f"grpc_certificate_file: the certificate in {self.certificate_file} must say "
                        f"{', '.join(missing)}, and says {', '.join(names) or 'no DNS name'}"
                    )
                ends = dt.datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), dt.UTC)
                return Material(certificate, key, authority, names, ends)
        raise CertificateError(f"grpc_certificate_file: {self.certificate_file} changes while it is read")

    def _shown(self, authority: bytes) -> dict[str, Any]:
        """The certificate as others will see it. Raises CertificateError."""
        ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (ours, theirs):
            self._load_authority(context, authority)
            self._load_own(context)
        theirs.check_hostname = False
        try:
            try:
                return _handshake(ours, theirs, look_at_client=False)
            except ssl.SSLCertVerificationError as error:
                if error.verify_code != _WRONG_PURPOSE:
                    raise
                theirs.verify_mode, ours.verify_mode = ssl.CERT_NONE, ssl.CERT_REQUIRED
                return _handshake(ours, theirs, look_at_client=True)  # it is one for clients
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(self._why(error)) from error
        except ssl.SSLError as error:
            raise CertificateError(
                f"grpc_certificate_file: the certificate in {self.certificate_file} cannot be used: {error}"
            ) from error

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            # An empty password, or a key that has one would ask the terminal for it.
            context.load_cert_chain(self.certificate_file, self.key_file, password="")
        except (ssl.SSLError, OSError) as error:
            if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                raise CertificateError(
                    f"grpc_key_file: {self.key_file} is not the key of the certificate in {self.certificate_file}"
                ) from error
            raise CertificateError(
                f"grpc_certificate_file, grpc_key_file: {self.certificate_file} and {self.key_file} must hold a "
                f"certificate and its key as PEM, the key without a password: {error}"
            ) from error

    def _load_authority(self, context: ssl.SSLContext, authority: bytes) -> None:
        try:
            context.load_verify_locations(cadata=authority.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"grpc_ca_file: {self.ca_file} holds no certificates (PEM): {error}") from error

    def _why(self, error: ssl.SSLCertVerificationError) -> str:
        start = f"grpc_certificate_file: the certificate in {self.certificate_file}"
        if error.verify_code == _HAS_ENDED:
            return f"{start} has ended; it must be made anew"
        if error.verify_code == _NOT_YET:
            return f"{start} is not valid yet; is the clock of this machine right?"
        return f"{start} is not one that {self.ca_file} (grpc_ca_file) vouches for: {error.verify_message}"


def _configuration(found: Material) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.authority)


def _content(setting: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateError(f"{setting}: {path} cannot be read: {error.strerror or error}") from error
    if not content.strip() or len(content) > FILE_BYTES_MAX:
        raise CertificateError(f"{setting}: {path} has {len(content)} bytes; PEM is expected, up to {FILE_BYTES_MAX}")
    return content


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, *, look_at_client: bool) -> dict[str, Any]:
    """What one side saw of the other's certificate, in a connection within memory. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server)
    looking = serving if look_at_client else asking
    for _ in range(_ROUNDS_MAX):
        waiting = [side for side in (asking, serving) if not _is_done(side.do_handshake)]
        if not waiting:
            return looking.getpeercert() or {}
    raise ssl.SSLError("the handshake does not end")


def _is_done(step: Callable[[], None]) -> bool:
    try:
        step()
    except ssl.SSLWantReadError:
        return False
    return True


# -- from settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trust:
    """How a process speaks gRPC: with its certificate, or in plain text, which is for the loopback alone."""

    identity: Identity | None = None
    plain_text: bool = False
    """Plain text to and from anywhere: the network is vouched for."""

    def current(self) -> Material | None:
        """What a channel that is made now would use: who holds one open compares."""
        return self.identity.current() if self.identity is not None else None


LOOPBACK = Trust()
"""Plain text on this machine, and nothing else."""


def trust_of(settings: CommonSettings, *names: str) -> Trust:
    """
    As the settings say; a certificate must say all of `names`. Blocks for reading small files.

    Raises CertificateError, also when only some of the files are named.
    """
    files = {
        "grpc_certificate_file": settings.grpc_certificate_file,
        "grpc_key_file": settings.grpc_key_file,
        "grpc_ca_file": settings.grpc_ca_file,
    }
    paths = [path for path in files.values() if path is not None]
    if not paths:
        return Trust(plain_text=settings.grpc_plain_text)
    missing = [name for name, path in files.items() if path is None]
    if missing:
        raise CertificateError(f"{', '.join(missing)} must be set too: all three of them, or none")
    if settings.grpc_plain_text:
        raise CertificateError("grpc_plain_text is true, and grpc_certificate_file is set; only one of them can hold")
    certificate_file, key_file, ca_file = paths
    return Trust(Identity(certificate_file, key_file, ca_file, names))
