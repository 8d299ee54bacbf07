"""
Where a webhook's certificates are kept, so that all its replicas show one, and a restart none that nobody trusts.

The port is small enough for a Secret (`shell.kube.certificates`): read all, and replace all if it is still what was
read. In memory it serves one process.
"""

from dataclasses import dataclass
from typing import Protocol


class StoreUnavailableError(Exception):
    """The store cannot be read or written now. Its text is a sentence."""


@dataclass(frozen=True, slots=True)
class StoredCertificates:
    """What a store holds, and its version: any text that differs once the content does."""

    text: str
    version: str


class CertificateStore(Protocol):
    """Keeps one text, which holds private keys."""

    async def load(self) -> StoredCertificates | None:
        """What is there; None when nothing is. Raises StoreUnavailableError."""

    async def save(self, text: str, *, replaces: str | None) -> bool:
        """
        Replace the version `replaces` (None: nothing). False when something else is there by now: read again.

        Raises StoreUnavailableError; then it may have happened all the same.
        """


@dataclass(slots=True)
class MemoryStore:
    """In this process."""

    kept: StoredCertificates | None = None
    _count: int = 0

    async def load(self) -> StoredCertificates | None:
        """What is there."""
        return self.kept

    async def save(self, text: str, *, replaces: str | None) -> bool:
        """Replace it."""
        if (self.kept.version if self.kept is not None else None) != replaces:
            return False
        self._count += 1
        self.kept = StoredCertificates(text, str(self._count))
        return True
