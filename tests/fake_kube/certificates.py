"""An authority and a server certificate for loopback and given names, for tests only."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sluice.runtime.tls.certificate_authority import AS_SERVER, issue, new_authority


@dataclass(frozen=True, slots=True)
class Files:
    """Where they lie, as PEM."""

    authority: Path
    certificate: Path
    key: Path


def make(name: str, *, folder: Path, names: tuple[str, ...] = ()) -> Files:
    """An authority, and a certificate for 127.0.0.1, localhost and these names."""
    start = datetime.now(UTC) - timedelta(minutes=5)
    authority = new_authority(f"{name} authority", start)
    pair = issue(authority, ("localhost", "127.0.0.1", *names), (AS_SERVER,), start)
    files = Files(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    files.authority.write_bytes(authority.certificate)
    files.certificate.write_bytes(pair.certificate)
    files.key.write_bytes(pair.key)
    return files
