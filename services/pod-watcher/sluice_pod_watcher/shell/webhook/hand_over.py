"""How new pods get their devices, from the mounted ConfigMap that the pod-watcher keeps. A kubelet exchanges the files
of a mounted ConfigMap at once, by a link. It takes up to a minute or two after a change."""

from dataclasses import dataclass, field
from pathlib import Path

from sluice.contracts.kube.names import HAND_OVERS
from sluice.contracts.reasons import shorten
from sluice.runtime import logs

BYTES_MAX = 64


@dataclass(slots=True)
class HandOverFile:
    """The file with the present value, read for each review. It may be missing: then tickets hand over, as everywhere.
    Tickets also where it cannot be read or holds another word: they need nothing of the kubelet."""

    path: Path
    _told: str = field(default="", init=False)

    def __call__(self) -> str:
        try:
            with self.path.open("rb") as file:
                text = file.read(BYTES_MAX).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            return "tickets"
        except OSError as error:
            return self._tickets(f"{self.path} cannot be read: {error.strerror}")
        if text not in HAND_OVERS:
            allowed = " or ".join(HAND_OVERS)
            return self._tickets(f"{self.path} holds {shorten(text)!r}: it must hold {allowed}")
        self._told = ""
        return text

    def _tickets(self, why: str) -> str:
        if why != self._told:
            self._told = why
            logs.get("webhook").warning("new pods get their devices by tickets", why=why)
        return "tickets"
