"""Where the webhook's certificates are kept, so that all replicas and later restarts serve the same. The port fits a
Secret (`shell.kube.webhook_certificates`): read all, and replace all if unchanged since. In memory it serves one
process."""

from dataclasses import dataclass
from typing import Protocol


class StoreUnavailableError(Exception):
    """The store cannot be read or written now. Its text is a sentence."""


@dataclass(frozen=True, slots=True)
class StoredCertificates:
    """The content of a store, and its version: any text that differs once the content does."""

    text: str
    version: str


class CertificateStore(Protocol):
    """Keeps one text, which holds private keys."""

    async def load(self) -> StoredCertificates | None:
        """The stored text; None if there is none. Raises StoreUnavailableError."""

    async def save(self, text: str, *, replaces: str | None) -> bool:
        """Replace the version `replaces` (None: nothing). False when it has changed since: read again. Raises
        StoreUnavailableError; the write may have happened all the same."""


@dataclass(slots=True)
class MemoryStore:
    """In this process."""

    kept: StoredCertificates | None = None
    _count: int = 0

    async def load(self) -> StoredCertificates | None:
        return self.kept

    async def save(self, text: str, *, replaces: str | None) -> bool:
        if (self.kept.version if self.kept is not None else None) != replaces:
            return False
        self._count += 1
        self.kept = StoredCertificates(text, str(self._count))
        return True
