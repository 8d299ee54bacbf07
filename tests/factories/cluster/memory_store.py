"""Where the webhook's certificates are kept in tests: in this process, as a Secret keeps them."""

from dataclasses import dataclass, field

from sluice_pod_watcher.shell.webhook.cert_sources import StoredCertificates


@dataclass(slots=True)
class MemoryStore:
    """In this process."""

    kept: StoredCertificates = field(default_factory=lambda: StoredCertificates("", "0"))

    async def load(self) -> StoredCertificates:
        return self.kept

    async def save(self, text: str, *, replaces: str) -> bool:
        if self.kept.version != replaces:
            return False
        self.kept = StoredCertificates(text, str(int(replaces) + 1))
        return True
