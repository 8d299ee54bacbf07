"""
The embedded broker as a supervised child: its configuration is that of `sluice.runtime.nats_server.process`, its life
is ours.
"""

import os
from pathlib import Path

from sluice.runtime.bus import BusError
from sluice.runtime.nats_server.process import BrokerError, NatsServerConfig, server_binary
from sluice_console.shell.process.children import ChildSpec


def store_of(data_dir: Path) -> Path:
    """Where the broker keeps what it stores."""
    return data_dir / "nats"


def broker_spec(name: str, port: int, data_dir: Path, log: Path, *, monitor_port: int = 0) -> ChildSpec:
    """
    Write the configuration, and say how to run the server. Raises BusError when there is no nats-server.

    The store is `nats/` in the data directory, the configuration beside it: whoever deletes the whole store of a
    running system loses what the broker knew, and nothing that it needs to start again.
    """
    config = data_dir / "nats-server.conf"
    plan = NatsServerConfig("sluice", store_of(data_dir), port, monitor_port=monitor_port)
    config.write_text(plan.config(), encoding="utf-8")
    try:
        command = (str(server_binary()), "-c", str(config))
    except BrokerError as error:
        raise BusError(str(error)) from error
    return ChildSpec(name, command, dict(os.environ), log)
