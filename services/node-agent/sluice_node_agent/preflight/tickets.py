"""Preflight of tickets (a reboot removes them, ready slices have theirs) and of ResourceClaims (`findings`)."""

import os
from pathlib import Path

from sluice_node_agent.core.journal_records import NodeRecord, SliceRecord
from sluice_node_agent.preflight.findings import Check, Finding, Machine
from sluice_node_agent.preflight.permissions import is_seen

FORGOTTEN_AT_REBOOT = frozenset({"tmpfs", "ramfs"})
_DOCUMENT = "slice.json"
_NAMED_MAX = 5
_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}
"""The kernel's escapes in mount points (proc(5), mountinfo)."""


def check_tickets(machine: Machine) -> list[Finding]:
    """Whether tickets are on a file system that a reboot empties, and none is missing."""
    return [*_check_their_place(machine), *_check_they_are_there(machine)]


def _check_they_are_there(machine: Machine) -> list[Finding]:
    """Only in the boot of the journal's last record: after a reboot the agent creates all tickets again."""
    boots = {record.boot_id for record in machine.journal.records if isinstance(record, NodeRecord)}
    ready = [
        record
        for record in machine.journal.records
        if isinstance(record, SliceRecord) and record.phase == "ready" and record.ticket and record.boot_id in boots
    ]
    flat = machine.data_dir / "tickets" / machine.node
    missing = [
        record.booking
        for record in ready
        if not any(
            is_seen(folder / record.ticket / _DOCUMENT)
            for folder in (flat, *([machine.pods_dir / record.booking.owner] if machine.pods_dir is not None else ()))
        )
    ]
    if not missing:
        return []
    pods = ", ".join(f"{booking.namespace}/{booking.name}" for booking in missing[:_NAMED_MAX])
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    return Check.TICKETS.problem(
        f"{len(missing)} of {len(ready)} slices have no ticket, so no container of their pods starts: {pods}{more}",
        "a running agent restores them within ten seconds: check that it runs, and its log; if the disk of tickets "
        "is full, free some space there",
    )


def _check_their_place(machine: Machine) -> list[Finding]:
    place = machine.pods_dir
    if place is None:
        return []  # without a kubelet no container starts by a ticket
    try:
        text = (machine.processes.root / "self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # no /proc: `host-processes` says so
    kind = file_system_of(Path(os.path.realpath(place)), text)  # /var/run is a link to /run, not a mount
    if kind in FORGOTTEN_AT_REBOOT:
        return Check.TICKETS.ok(f"{place} is on a {kind}, which a reboot empties")
    return Check.TICKETS.warning(
        f"{place} is on {kind or 'an unknown file system'} and outlives a reboot: until the driver has cleaned it, "
        "tickets are there of devices that are not",
        "set SLUICE_NODE_AGENT_PODS_DIR to a directory below /run, which is a tmpfs on the node; in a container, "
        "mount the node's own at the same path",
    )


def file_system_of(place: Path, mountinfo: str) -> str:
    """The type of a path's file system, from the text of /proc/<pid>/mountinfo (proc(5)); empty for none."""
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
        if place.is_relative_to(point) and depth >= best:  # of two at one place the later is on top
            best, kind = depth, of[0]
    return kind


def check_hand_over(machine: Machine) -> list[Finding]:
    """Whether the kubelet could hand devices over. Without that, pods get them by ticket."""
    if not machine.hand_over:
        return Check.HAND_OVER.ok("no kubelet hands devices over by ResourceClaim here: it is off")
    found = []
    there = next(place for place in (machine.cdi_dir, *machine.cdi_dir.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        found += Check.HAND_OVER.warning(
            f"{there} cannot be written by user {machine.uid}, so the kubelet cannot hand devices over by "
            f"ResourceClaim (CDI files are kept in {machine.cdi_dir})",
            f"run the agent as root; in a container, mount the host's {machine.cdi_dir} at the same path",
        )
    why = "" if machine.simulated else machine.why_no_cdi()
    if why:
        found += Check.HAND_OVER.warning(
            f"the kubelet cannot hand devices over by ResourceClaim: {why}",
            "mend it, or set SLUICE_NODE_AGENT_HAND_OVER=false: pods then get their devices by ticket",
        )
    return found or Check.HAND_OVER.ok("the kubelet can hand devices over by ResourceClaim (CDI)")
