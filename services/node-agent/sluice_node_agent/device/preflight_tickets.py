"""
Preflight of where tickets lie: a reboot must take them along, for it takes the devices that they stand for.

See `preflight` for what a check may do.
"""

import os
from pathlib import Path

from sluice_node_agent.device.preflight import Check, Finding, Machine

FORGOTTEN_AT_REBOOT = frozenset({"tmpfs", "ramfs"})
_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}
"""How the kernel writes these in mount points (proc(5), mountinfo)."""


def check_tickets(machine: Machine) -> list[Finding]:
    """Whether the directory of tickets is on a file system that a reboot empties."""
    place = machine.pods_dir
    if place is None:
        return []  # no kubelet here, so nobody starts containers by tickets
    try:
        text = (machine.processes.root / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # no /proc: `host-processes` says so
    kind = file_system_of(Path(os.path.realpath(place)), text)  # /var/run is a link to /run, and no mount
    if kind in FORGOTTEN_AT_REBOOT:
        return [Finding(Check.TICKETS, "ok", f"{place} is on a {kind}, which a reboot empties")]
    return [
        Finding(
            Check.TICKETS,
            "warning",
            f"{place} is on {kind or 'an unknown file system'} and outlives a reboot: until the driver has cleaned it, "
            "tickets are there of devices that are not",
            "set SLUICE_NODE_AGENT_PODS_DIR to a directory below /run, which is a tmpfs on the node; in a container, "
            "mount the node's own at the same path",
        )
    ]


def file_system_of(place: Path, mountinfo: str) -> str:
    """The type of the file system that a path is on, by the text of /proc/<pid>/mountinfo (proc(5)); empty for none."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, of = left.split(), right.split()
        if len(fields) < 5 or not of:
            continue
        point = fields[4]
        for escape, character in _ESCAPES.items():
            point = point.replace(escape, character)
        depth = len(Path(point).parts)
        if place.is_relative_to(point) and depth >= best:  # of two at one place the later lies on top
            best, kind = depth, of[0]
    return kind
