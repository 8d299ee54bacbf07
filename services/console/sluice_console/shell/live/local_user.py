"""
The user of a system of this machine: one, with a password that is generated at each start, in its data directory.

Without it any user of the machine, and any container in its network, could order and delete everything.
"""

import os
import secrets
from pathlib import Path

from sluice.runtime.nats.credential_files import CredentialFiles
from sluice.runtime.settings import CommonSettings
from sluice_console.shell.live.running_systems import running_at

USER = "sluice"
FILE = "bus-password"
_OWN: dict[str, Path] = {}
"""Data directories of the systems of this process, by their broker's URL: not all are announced."""


def make_password(data_dir: Path, url: str) -> str:
    """A new password for the system with this broker, in a file of its owner."""
    password = secrets.token_urlsafe(24)
    file = data_dir / FILE
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(f"{password}\n")
    remember(data_dir, url)
    return password


def remember(data_dir: Path, url: str) -> None:
    """Of the system with this broker, whether or not it is announced, this is the data directory."""
    _OWN[url] = data_dir


def forget_password(data_dir: Path, url: str) -> None:
    """The system has ended."""
    _OWN.pop(url, None)
    (data_dir / FILE).unlink(missing_ok=True)


def environment_of(data_dir: Path) -> dict[str, str]:
    """The settings of the system's processes."""
    return {"SLUICE_NATS_USER": USER, "SLUICE_NATS_PASSWORD_FILE": str(data_dir / FILE)}


def local_credentials(url: str) -> CredentialFiles | None:
    """How to log in at a system of this machine and user; None for others. Raises CredentialError."""
    running = None if url in _OWN else running_at(url)
    data_dir = _OWN.get(url) or (Path(running.data_dir) if running is not None else None)
    if data_dir is None or not (data_dir / FILE).exists():
        return None
    return CredentialFiles(CommonSettings(nats_password_file=data_dir / FILE), USER)
