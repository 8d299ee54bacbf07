"""A certificate, its key and the trusted authorities: files, read again when they change, and verified at once.

A TLS handshake with ourselves in memory tries them, so that a bad file is an error at the start. If files turn bad at
run time, the last good ones stay in use."""

import datetime as dt
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sluice.runtime import logs
from sluice.runtime.errors import ServiceError


def warn_if_open(setting: str, path: Path) -> None:
    """Warn when others than owner and group may read the secret in `path`, or others than its owner may change it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return  # its reader reports the error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        why = "others may read the secret in it, or change it" if mode & stat.S_IRWXO else "its group may change it"
        logs.get("secrets").warning(
            "a secret is not private", setting=setting, file=str(path), mode=f"{mode:04o}", why=why, cure="chmod 600"
        )


CHECK_EVERY_S = 1.0
RETRY_AFTER_CHECKS = 60
"""Bad files are read again after so many checks: a certificate becomes valid, a file readable."""
WARN_BEFORE = dt.timedelta(days=14)
"""A certificate that expires sooner is logged: it should have been renewed."""
FILE_BYTES_MAX = 256 * 1024
_READS_MAX = 3
"""Read attempts for files that change while they are read."""
_ROUNDS_MAX = 10
_HAS_ENDED, _NOT_YET, _WRONG_PURPOSE = 10, 9, 26
"""X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_INVALID_PURPOSE (OpenSSL, x509_vfy.h)."""

Signature = tuple[tuple[int, int, int], ...]
T = TypeVar("T")


class CertificateError(ServiceError):
    """A certificate, its key or the authorities cannot be used. One sentence with the file."""


@dataclass(frozen=True, slots=True, eq=False)
class CertificateMaterial:
    """The files' content at one time, verified then. PEM texts."""

    certificate: bytes
    key: bytes
    authority: bytes
    names: tuple[str, ...]
    ends: dt.datetime

    def __repr__(self) -> str:
        return f"Material(names={self.names}, ends={self.ends.isoformat()})"


def file_signature(paths: Iterable[Path]) -> Signature:
    """Identifies a version of the files and their permissions: inode, size, times; zeros for a missing one."""
    found = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            found.append((0, 0, 0))  # reading reports the reason
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_ctime_ns))
    return tuple(found)


class WatchedFiles(Generic[T]):
    """The result of `read` on some files, renewed when they change; its text goes to the log. Thread-safe."""

    def __init__(
        self, paths: Iterable[Path], read: Callable[[], T], *, part: str, look_s: float = CHECK_EVERY_S
    ) -> None:
        """Read the files. `part` names the logger. Raises what `read` raises: ServiceError."""
        self._paths = tuple(paths)
        self._read = read
        self._look_s = look_s
        self._log = logs.get(part, file=str(self._paths[0]))
        self._lock = threading.Lock()
        self._seen = file_signature(self._paths)
        self._value = self._read_whole()
        self._looked_at = time.monotonic()
        self._no_good = ""
        """Why the current files cannot be used; empty when they can."""
        self._again_at = 0.0

    def current(self) -> T:
        """What is valid now: another object when the files have changed. Bad files are logged once a change."""
        with self._lock:
            if time.monotonic() - self._looked_at >= self._look_s:
                self._look()
                self._looked_at = time.monotonic()
            return self._value

    def _look(self) -> None:
        found = file_signature(self._paths)
        if found == self._seen and not (self._no_good and time.monotonic() >= self._again_at):
            return
        told, self._seen = (self._no_good if found == self._seen else ""), found
        try:
            self._value = self._read_whole()
        except ServiceError as error:
            self._no_good = str(error)
            self._again_at = time.monotonic() + RETRY_AFTER_CHECKS * self._look_s
            if self._no_good != told:
                self._log.error("the new files are invalid; the old ones stay in use", why=self._no_good)
        else:
            self._no_good = ""
            self._log.info("read again", found=str(self._value))

    def _read_whole(self) -> T:
        for _ in range(_READS_MAX):
            before = file_signature(self._paths)
            value = self._read()
            if file_signature(self._paths) == before:
                return value
        raise CertificateError(f"{self._paths[0]} changes while it is read")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Their paths, and their `settings` prefix. `vouches`: whether `ca_file` must have signed the certificate."""

    certificate_file: Path
    key_file: Path
    ca_file: Path
    names: tuple[str, ...] = ()
    settings: str = "grpc"
    vouches: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.certificate_file, self.key_file, self.ca_file)

    def read(self) -> CertificateMaterial:
        certificate = self._content("certificate", self.certificate_file)
        key = self._content("key", self.key_file)
        warn_if_open(f"{self.settings}_key_file", self.key_file)
        authority = self._content("ca", self.ca_file)
        shown = self._shown(authority, certificate)
        names = tuple(str(value) for kind, value in shown.get("subjectAltName", ()) if kind == "DNS")
        missing = [name for name in self.names if name not in names]
        if missing:
            raise CertificateError(
                f"{self._start} must be for {', '.join(missing)}, and is for {', '.join(names) or 'no DNS name'}"
            )
        ends = dt.datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), dt.UTC)
        return CertificateMaterial(certificate, key, authority, names, ends)

    @property
    def _start(self) -> str:
        return f"{self.settings}_certificate_file: the certificate in {self.certificate_file}"

    def _content(self, setting: str, path: Path) -> bytes:
        return read_pem_file(f"{self.settings}_{setting}_file", path)

    def _shown(self, authority: bytes, certificate: bytes) -> dict[str, Any]:
        """The certificate as others will see it. Raises CertificateError."""
        ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (ours, theirs):
            with _of_authorities(f"{self.settings}_ca_file", self.ca_file):
                context.load_verify_locations(cadata=authority.decode("ascii"))
            self._load_own(context)
            if not self.vouches:  # trusts itself: its dates and its use are checked all the same
                context.load_verify_locations(cadata=certificate.decode("ascii", "replace"))
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
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
            raise CertificateError(f"{self._start} cannot be used: {error}") from error

    def _load_own(self, context: ssl.SSLContext) -> None:
        try:
            # An empty password, because for a key with one OpenSSL would ask on the terminal.
            context.load_cert_chain(self.certificate_file, self.key_file, password="")
        except (ssl.SSLError, OSError) as error:
            if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                raise CertificateError(
                    f"{self.settings}_key_file: {self.key_file} is not the key of the certificate in "
                    f"{self.certificate_file}"
                ) from error
            raise CertificateError(
                f"{self.settings}_certificate_file, {self.settings}_key_file: {self.certificate_file} and "
                f"{self.key_file} must hold a certificate and its key as PEM, the key without a password: {error}"
            ) from error

    def _why(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code == _HAS_ENDED:
            return f"{self._start} has expired; renew it"
        if error.verify_code == _NOT_YET:
            return f"{self._start} is not valid yet; is the clock of this machine right?"
        return (
            f"{self._start} is not one that {self.ca_file} ({self.settings}_ca_file) vouches for: "
            f"{error.verify_message}"
        )


def read_pem_file(setting: str, path: Path) -> bytes:
    """A small file. Raises CertificateError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateError(f"{setting}: {path} cannot be read: {error.strerror or error}") from error
    if not content.strip() or len(content) > FILE_BYTES_MAX:
        raise CertificateError(f"{setting}: {path} has {len(content)} bytes; PEM is expected, up to {FILE_BYTES_MAX}")
    return content


def trusting(setting: str, path: Path, authority: bytes) -> ssl.SSLContext:
    """A client's context that trusts what was read from the file of a setting. Raises CertificateError."""
    with _of_authorities(setting, path):
        return ssl.create_default_context(cadata=authority.decode("ascii"))


@contextmanager
def _of_authorities(setting: str, path: Path) -> Iterator[None]:
    """Raise failures for a file without valid authorities; the library's own text has only a position."""
    try:
        yield
    except (ssl.SSLError, ValueError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) and error.reason else type(error).__name__
        raise CertificateError(f"{setting}: {path} holds no certificates (PEM): {why}") from error


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, *, look_at_client: bool) -> dict[str, Any]:
    """One side's view of the other's certificate, in a connection within memory. Raises ssl.SSLError."""
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


class ExpiryWarning:
    """Warns once for each certificate that expires soon."""

    def __init__(self, part: str, path: Path) -> None:
        self._warned: CertificateMaterial | None = None
        self._log = logs.get(part, file=str(path))

    def look(self, found: CertificateMaterial) -> None:
        if found.ends - dt.datetime.now(dt.UTC) < WARN_BEFORE and self._warned is not found:
            self._warned = found
            self._log.warning("the certificate should have been renewed", ends=found.ends.isoformat())
