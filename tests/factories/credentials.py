"""Certificates of a test, good and bad, in files."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.runtime.tls import certificate_authority

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def days(count: float) -> dt.timedelta:
    return dt.timedelta(days=count)


_LASTS = days(certificate_authority.SERVER_DAYS)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a process: its certificate, its key, and the authorities that it trusts."""

    certificate: Path
    key: Path
    authority: Path

    def environment(self) -> dict[str, str]:
        files = {"CERTIFICATE": self.certificate, "KEY": self.key, "CA": self.authority}
        return {f"SLUICE_GRPC_{name}_FILE": str(file) for name, file in files.items()}


class Authority:
    """An authority of a test, and the folder for what it signs."""

    def __init__(self, folder: Path, name: str = "Sluice gRPC") -> None:
        """A new one; two of one name differ in nothing but their key."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Older than what it signs, so that of an ended certificate it is the certificate that has ended.
        self.pair = certificate_authority.new_authority(name, dt.datetime.now(dt.UTC) - days(2000))

    def files(
        self,
        label: str,
        *names: str,
        usages: tuple[Any, ...] = (SERVER, CLIENT),
        age_days: float = 0,
        lasts: dt.timedelta = _LASTS,
    ) -> Files:
        """A certificate made `age_days` ago, written over what `label` had before; its key is in the same file."""
        at = dt.datetime.now(dt.UTC) - days(age_days)
        made = certificate_authority.issue(self.pair, names, usages, at, lasts=lasts)
        both, authority = self._folder / f"{label}.pem", self._folder / "ca.crt"
        authority.write_bytes(self.pair.certificate)
        draft = both.with_suffix(".draft")
        draft.write_bytes(made.certificate + made.key)
        draft.rename(both)  # at once, as a kubelet changes a mounted Secret
        return Files(both, both, authority)
