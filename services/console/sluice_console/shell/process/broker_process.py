"""The embedded broker as a supervised child, configured by `sluice.runtime.nats_server.server_config`."""

import os
from pathlib import Path

from sluice.runtime.bus import BusError
from sluice.runtime.nats_server.server_config import BrokerError, NatsServerConfig, server_binary
from sluice_console.shell.process.children import ChildSpec


def store_of(data_dir: Path) -> Path:
    """Folder of the broker's store."""
    return data_dir / "nats"


def broker_spec(
    name: str, port: int, data_dir: Path, log: Path, *, monitor_port: int = 0, owner: tuple[str, str] | None = None
) -> ChildSpec:
    """Write the configuration, and return how to run the server. Raises BusError without nats-server.

    `owner`: user and password of its one user; None lets all clients in.
    The store is `nats/` in the data directory with the configuration beside it: deleting the store of a running system
    loses the broker's data, but nothing needed to restart."""
    config = data_dir / "nats-server.conf"
    plan = NatsServerConfig("sluice", store_of(data_dir), port, monitor_port=monitor_port, owner=owner)
    config.touch(mode=0o600)
    config.chmod(0o600)
    config.write_text(plan.config(), encoding="utf-8")
    try:
        command = (str(server_binary()), "-c", str(config))
    except BrokerError as error:
        raise BusError(str(error)) from error
    return ChildSpec(name, command, dict(os.environ), log)
