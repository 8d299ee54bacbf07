"""Puts the node agent together and runs it. `python -m sluice_node_agent`, or `sluice-node-agent`."""

import os
import sys

from sluice.runtime.service import run
from sluice.runtime.settings import load
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.app import serve


def main() -> int:
    """Run until told to stop, or do one thing to simulated hardware. Returns the exit code."""
    if sys.argv[1:]:
        from sluice_node_agent.shell.hardware_command import change_hardware  # noqa: PLC0415 - not for the service

        return change_hardware(sys.argv[1:])
    return run(
        serve, lambda: load(NodeAgentSettings, service="node-agent", config=None, environ=os.environ), "node-agent"
    )


if __name__ == "__main__":
    sys.exit(main())
