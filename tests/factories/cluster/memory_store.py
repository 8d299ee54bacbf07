"""Where the webhook's certificates are kept in tests: in this process, as a Secret keeps them."""

from dataclasses import dataclass

from sluice_pod_watcher.shell.webhook.cert_sources import StoredCertificates


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
