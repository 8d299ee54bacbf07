"""A gRPC server's certificate that it makes itself at its start. Apart, because it needs `cryptography`, which not
every service has."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from sluice.runtime.grpc.security import Identity
from sluice.runtime.tls.certificate_authority import AS_SERVER, AUTHORITY_DAYS, self_signed
from sluice.runtime.tls.certificate_files import CHECK_EVERY_S, CertificateMaterial, WatchedFiles, read_pem_file

LASTS = dt.timedelta(days=AUTHORITY_DAYS)


class SelfMadeIdentity(Identity):
    """A server's own certificate, made at its start; only the authorities of its clients are in a file."""

    def __init__(self, ca_file: Path, names: Sequence[str], *, look_s: float = CHECK_EVERY_S) -> None:
        """Read the file. Raises CertificateError."""
        now = dt.datetime.now(dt.UTC)
        self._pair, self._names = self_signed(names, (AS_SERVER,), now), tuple(names)
        self._ends = now + LASTS
        self._files = WatchedFiles((ca_file,), lambda: self._read(ca_file), part="certificate", look_s=look_s)

    @property
    def certificate(self) -> str:
        return self._pair.certificate.decode()

    def current(self) -> CertificateMaterial:
        return self._files.current()

    def _read(self, ca_file: Path) -> CertificateMaterial:
        authority = read_pem_file("grpc_ca_file", ca_file)
        return CertificateMaterial(self._pair.certificate, self._pair.key, authority, self._names, self._ends)
