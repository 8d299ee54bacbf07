"""
The token scheduler of a home in a process of its own, as an agent's thread would serve it: no bus, no agent.

Reads one JSON command per line and answers each with one JSON line; ends with the end of its input.

    {"do": "add", "name": "a", "socket": "/.../quota.sock", "request": 0.3, "limit": 1.0, "width": 100, "memory": 0}
    {"do": "change", ...}      the same, without a socket
    {"do": "usage"}            what each tenant used, by the scheduler's own count
    {"do": "counted"}          what was done to strangers, liars and floods
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from sluice_node_agent.shell.quota.server import QuotaServer


def main() -> int:
    """Serve until there is no more input."""
    server = QuotaServer("home")
    server.start()
    try:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(_answer(server, json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        server.stop()
    return 0


def _answer(server: QuotaServer, command: dict) -> object:
    match command["do"]:
        case "add" | "change":
            sizes = {
                "request": command["request"],
                "limit": command["limit"],
                "width_percent": command["width"],
                "memory_bytes": command["memory"],
            }
            if command["do"] == "add":
                server.add_tenant(command["name"], Path(command["socket"]), uid=os.getuid(), **sizes)
            else:
                server.change_tenant(command["name"], **sizes)
            return {}
        case "usage":
            return {name: asdict(usage) for name, usage in server.usage().items()}
        case _:
            return asdict(server.counted)


if __name__ == "__main__":
    sys.exit(main())
