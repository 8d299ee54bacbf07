"""Looks for leaks: what is on the node, held against what the ledger says it should be.

Shares no code with the agent: it reads the hardware's own state, parses the journal by itself, lists directories and
walks /proc. `after_death` says what must hold at any instant (whatever is on the node, the journal knows of it),
`at_rest` what must hold when nothing is under way (whatever is on the node, the ledger says so, and all of that is
there), `why_not_gone` and `why_not_ready` what makes a message of the agent's true.
"""

import json
import os
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.broker import Held
from soak.life import Place
from soak.machine import Found, FoundGpu, Machine

from sluice.contracts.messages import SliceReady

PIPE_VARIABLE = b"CUDA_MPS_PIPE_DIRECTORY="
Key = tuple[str, int]
Spot = tuple[str, str | None, int, int]
"""GPU, profile (None for whole), start, size."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that works for a home: its daemon, its server or its client."""

    pid: int
    home: str
    started_at: int
    command: str
    is_daemon: bool


@dataclass(slots=True)
class JournalSeen:
    """The last record of everything in the journal, as plain JSON."""

    slices: dict[str, Any] = field(default_factory=dict)
    homes: dict[str, Any] = field(default_factory=dict)
    warm: dict[Key, Any] = field(default_factory=dict)
    problem: str = ""


def read_journal(path: Path) -> JournalSeen:
    """Parse it independently: a checksum that continues from line to line, a space, JSON; a torn end does not count."""
    seen = JournalSeen()
    if not path.exists():
        return seen
    chain = 0
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        checksum, _, body = line.partition(b" ")
        chain = zlib.crc32(body, chain)
        if checksum != b"%08x" % chain:
            seen.problem = f"line {number} does not match its checksum"
            return seen
        record = json.loads(body)
        match record["type"]:
            case "slice":
                seen.slices[record["booking"]["allocation"]] = record
            case "tombstone" | "forgotten":
                seen.slices.pop(record["allocation"], None)
            case "home":
                seen.homes[record["home"]] = record
            case "home-gone":
                seen.homes.pop(record["home"], None)
            case "warm":
                seen.warm[record["gpu"], record["gi_id"]] = record
            case "warm-gone":
                seen.warm.pop((record["gpu"], record["gi_id"]), None)
    return seen


def processes_of(mps: Path, *, asking: bool = False) -> list[Process]:
    """All processes whose environment names a home below `mps`; those that only ask a daemon only if `asking`."""
    root = os.fsencode(mps) + b"/"
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            pipe = next((v.removeprefix(PIPE_VARIABLE) for v in variables if v.startswith(PIPE_VARIABLE)), b"")
            if not pipe.startswith(root):
                continue
            state, started_at = _stat(entry)
            command = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ProcessLookupError):
            continue  # it has just ended, or is not ours to look into
        if state not in {"Z", "X"} and (asking or not command.endswith("/nvidia-cuda-mps-control")):
            home = os.fsdecode(pipe.removeprefix(root).split(b"/")[0])
            is_daemon = _pid_in(mps / home / "pipe" / "nvidia-cuda-mps-control.pid") == int(entry.name)
            found.append(Process(int(entry.name), home, started_at, command, is_daemon))
    return found


@dataclass(slots=True)
class Node:
    """Everything about one node, read at one moment."""

    gpus: tuple[FoundGpu, ...]
    journal: JournalSeen
    tickets: tuple[str, ...]
    homes: tuple[str, ...]
    """Directories."""
    processes: list[Process]

    @property
    def instances(self) -> list[Found]:
        return [instance for gpu in self.gpus for instance in gpu.instances]

    def says(self) -> list[str]:
        daemons = [f"{p.pid} of {p.home}{' (daemon)' if p.is_daemon else ''}: {p.command}" for p in self.processes]
        seen = (self.journal.slices, self.journal.homes, self.journal.warm)
        return [
            *(f"on the device: {instance}" for instance in self.instances),
            *(f"EXCLUSIVE_PROCESS: {gpu.uuid}" for gpu in self.gpus if gpu.exclusive_process),
            *(f"ticket: {ticket}" for ticket in self.tickets),
            *(f"home directory: {home}" for home in self.homes),
            *(f"process: {daemon}" for daemon in daemons),
            *(f"journal: {json.dumps(record)}" for records in seen for record in records.values()),
            *([f"journal: {self.journal.problem}"] if self.journal.problem else []),
        ]


def look(place: Place, machine: Machine) -> Node:
    return Node(
        gpus=machine.look(),
        journal=read_journal(place.journal),
        tickets=names_in(place.tickets),
        homes=names_in(place.mps),
        processes=processes_of(place.mps),
    )


def after_death(node: Node, foreign: Collection[Key]) -> list[str]:
    """What is on the node without a record in the journal or an owner."""
    wrong = [node.journal.problem] if node.journal.problem else []
    known: set[Spot] = set()
    tickets: set[str] = set()
    for record in node.journal.slices.values():
        booked = zip(record["booking"]["devices"], record["devices"], strict=True)
        known.update(_spot(device) for device, far in booked if far["step"] != "planned" or far["gi_id"] is not None)
        tickets.update([record["ticket"], *record["stale_tickets"]])
    known.update(_spot(home) for home in node.journal.homes.values())
    known.update(_spot(warm) for warm in node.journal.warm.values())
    wrong += [
        f"{i} is on the device and the journal does not know of it"
        for i in node.instances
        if (i.gpu, i.gi_id) not in foreign and (i.gpu, i.profile, i.start, i.size) not in known
    ]
    wrong += [f"the ticket {t} is there and the journal does not know of it" for t in node.tickets if t not in tickets]
    begun = {name for name, home in node.journal.homes.items() if home.get("daemon")}
    wrong += [f"{p} works for a home that the journal does not know of" for p in node.processes if p.home not in begun]
    whole = {home["gpu"] for home in node.journal.homes.values() if home["profile"] is None}
    wrong += [
        f"{gpu.uuid} is in mode EXCLUSIVE_PROCESS without a home"
        for gpu in node.gpus
        if gpu.exclusive_process and gpu.uuid not in whole
    ]
    return wrong


def at_rest(node: Node, held: Collection[Held], foreign: Collection[Key]) -> list[str]:
    """Where node and ledger differ, with nothing under way."""
    ready = [one for one in held if one.is_ready and not one.revoked]
    return [*_instances(node, ready, foreign), *_homes(node, ready), *_tickets(node, ready), *_journal(node, held)]


def why_not_gone(
    held: Held, others: Collection[Held], place: Place, machine: Machine, foreign: Collection[Key]
) -> list[str]:
    """What contradicts `SliceGone`: its device or its ticket; a bare GPU instance may be kept warm."""
    taken = {spot_of(device) for other in others for device in other.booking.devices}
    spots = [spot for device in held.booking.devices if (spot := spot_of(device)) not in taken]
    wrong = [
        f"{i} is still there"
        for gpu in machine.look()
        for i in gpu.instances
        if i.uuid and (i.gpu, i.profile, i.start, i.size) in spots and (i.gpu, i.gi_id) not in foreign
    ]
    tickets = [name for name in names_in(place.tickets) if allocation_of(place.tickets / name) == held.allocation]
    return wrong + [f"its ticket {ticket} is still there" for ticket in tickets]


def why_not_ready(word: SliceReady, place: Place, machine: Machine) -> list[str]:
    """What contradicts `SliceReady`: a device, ticket or daemon that is not there."""
    gpus = machine.look()
    uuids = {gpu.uuid for gpu in gpus} | {instance.uuid for gpu in gpus for instance in gpu.instances}
    wrong = [
        f"{state.uuid or 'nothing'} is no device of this node" for state in word.devices if state.uuid not in uuids
    ]
    if word.ticket not in names_in(place.tickets):
        wrong.append(f"its ticket {word.ticket} is not there")
    pipes = {told.mps_pipe_directory for told in word.containers} - {""}
    served = {f"{place.mps}/{p.home}/pipe" for p in processes_of(place.mps) if p.is_daemon} if pipes else set()
    return wrong + [f"no daemon works for {pipe}" for pipe in sorted(pipes - served)]


# -- inside -------------------------------------------------------------------------------------------------------


def _instances(node: Node, ready: list[Held], foreign: Collection[Key]) -> list[str]:
    wanted = {
        (state.gpu, state.profile, state.start, state.size): state.uuid
        for one in ready
        for state in one.word.devices
        if state.profile is not None
    }
    wrong = []
    for i in node.instances:
        if (i.gpu, i.gi_id) in foreign:
            continue
        if (i.gpu, i.gi_id) in node.journal.warm:
            if i.uuid:
                wrong.append(f"{i} is kept warm and has a compute instance")
            continue
        uuid = wanted.pop((i.gpu, i.profile, i.start, i.size), None)
        if uuid is None:
            wrong.append(f"{i} is on the device and not in the ledger")
        elif not i.uuid:
            wrong.append(f"{i} has no compute instance")
        elif uuid != i.uuid:
            wrong.append(f"{i} was reported as {uuid}")
    wrong += [f"{spot} is in the ledger and not on the device" for spot in wanted]
    there = {(i.gpu, i.gi_id) for i in node.instances}
    wrong += [f"foreign {key} is gone" for key in foreign if key not in there]
    wrong += [f"warm {key} is not on the device" for key in node.journal.warm if key not in there]
    return wrong


def _homes(node: Node, ready: list[Held]) -> list[str]:
    """One daemon per place with shares, and no process, directory or compute mode beyond."""
    places = {spot_of(d) for one in ready for d in one.booking.devices if d.share is not None}
    homes = {name: _spot(home) for name, home in node.journal.homes.items()}
    wrong = [f"home {name} at {spot} has no tenant" for name, spot in homes.items() if spot not in places]
    wrong += [f"{spot} has tenants and no home" for spot in places if spot not in homes.values()]
    for name in homes:
        daemons = [p for p in node.processes if p.home == name and p.is_daemon]
        if len(daemons) != 1:
            wrong.append(f"home {name} has {len(daemons)} daemons: {daemons}")
    wrong += [f"{process} has no tenant" for process in node.processes if process.home not in homes]
    wrong += [f"the directory of home {name} is left" for name in node.homes if name not in homes]
    whole = {spot[0] for spot in places if spot[1] is None}
    for gpu in node.gpus:
        if gpu.exclusive_process != (gpu.uuid in whole):
            wrong.append(f"{gpu.uuid}: EXCLUSIVE_PROCESS is {gpu.exclusive_process}, shares on it: {gpu.uuid in whole}")
    return wrong


def _tickets(node: Node, ready: list[Held]) -> list[str]:
    wanted = {one.word.ticket for one in ready}
    there = set(node.tickets)
    return [
        *(f"ticket {ticket} has no slice" for ticket in sorted(there - wanted)),
        *(f"ticket {ticket} is missing" for ticket in sorted(wanted - there)),
    ]


def _journal(node: Node, held: Collection[Held]) -> list[str]:
    wanted = {one.allocation for one in held if not one.is_gone}
    known = set(node.journal.slices)
    return [
        *(f"the journal has {one} and the ledger has not" for one in sorted(known - wanted)),
        *(f"the ledger has {one} and the journal has not" for one in sorted(wanted - known)),
        *([node.journal.problem] if node.journal.problem else []),
    ]


def _spot(record: Any) -> Spot:
    return record["gpu"], record["profile"], record["start"], record["size"]


def spot_of(device: Any) -> Spot:
    return device.gpu, device.profile, device.start, device.size


def allocation_of(ticket: Path) -> str:
    """The owner of a ticket, as it says itself; empty when it went while it was read."""
    try:
        return str(json.loads((ticket / "slice.json").read_bytes())["allocation"])
    except FileNotFoundError:
        return ""


def names_in(directory: Path) -> tuple[str, ...]:
    """What is in a directory, but for drafts."""
    if not directory.is_dir():
        return ()
    return tuple(sorted(path.name for path in directory.iterdir() if not path.name.startswith(".")))


def _stat(entry: Path) -> tuple[str, int]:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _pid_in(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
