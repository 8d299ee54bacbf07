"""The node agent's entry point: `python -m sluice_node_agent`, or `sluice-node-agent`."""

from sluice.runtime import sigint  # noqa: F401 - the first import, so that Ctrl-C ends the others quietly

# isort: split
import sys
from collections.abc import Sequence


def main() -> int:
    """Run until stopped, or carry out one command on the node. Returns the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["hardware"]:
        from sluice_node_agent.shell.commands.hardware_command import change_hardware  # noqa: PLC0415 - not for the service

        return change_hardware(words)
    if words and words != ["--version"]:
        from sluice_node_agent.shell.commands.node_command import run_command  # noqa: PLC0415 - not for the service

        return run_command(words)
    return _serve(words)


def _serve(words: Sequence[str]) -> int:
    from sluice.runtime.service import run  # noqa: PLC0415 - the commands need none of it
    from sluice.runtime.settings import load  # noqa: PLC0415
    from sluice_node_agent.settings import NodeAgentSettings  # noqa: PLC0415
    from sluice_node_agent.shell.app import serve  # noqa: PLC0415

    return run(serve, lambda: load(NodeAgentSettings, service="node-agent"), "node-agent", words=words)


if __name__ == "__main__":
    sys.exit(main())
