"""What a node's files and daemons say: journal, simulated hardware, homes, logs, answers, what the kernel shows."""

import re
import struct
import tempfile
import zlib
from pathlib import Path

from fuzz.checking import Target
from fuzz.memory_files import as_text, in_memory, of_file, of_text
from message_examples import EXAMPLES

from sluice.contracts.ids import HomeId, NodeName
from sluice.contracts.messages import Grant
from sluice_node_agent.core import journal_records as records
from sluice_node_agent.core.events import FoundTicket
from sluice_node_agent.core.instructions import MakeTicket
from sluice_node_agent.core.quota import wire
from sluice_node_agent.core.recovery.discovered import Discovered
from sluice_node_agent.core.recovery.ticket_proofs import verify_ticket
from sluice_node_agent.core.state.node_state import NodeState
from sluice_node_agent.device.mounts import mounted_below
from sluice_node_agent.device.mps.control import answers_in, limits_in, numbers_in
from sluice_node_agent.device.mps.control_log import ControlLog
from sluice_node_agent.device.mps.home_directory import HomeDirectory, MpsError
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.preflight.findings import version_of
from sluice_node_agent.preflight.tickets import file_system_of
from sluice_node_agent.shell.journal.lines import DamagedError, Lines, pack, read_lines, read_note
from sluice_node_agent.shell.tickets.tickets import pack as pack_ticket
from sluice_node_agent.shell.tickets.tickets import unpack
from sluice_node_agent.simulated.hardware_file import HardwareFile, HardwareFileError

_HOME = records.SharedDeviceRecord(
    home="h1", gpu="GPU-1", profile="3g.20gb", start=0, size=4, namespace="x", uid=7, phase="making", boot_id="b",
    limits=records.MpsLimits(active_thread_percentage=30, memory_mib=4096),
)  # fmt: skip
_BOOKING = next(each for each in EXAMPLES if isinstance(each, Grant)).booking
_RECORDS = (
    records.NodeRecord(node="n1", boot_id="b", generation_upto=1000),
    records.SliceRecord(booking=_BOOKING, revision=1, phase="ready", devices=(), boot_id="b", ticket="t"),
    records.Tombstone(allocation="a1", request="r", revision=2, cause="pod gone"),
    _HOME,
    records.WarmRecord(gpu="GPU-1", gi_id=3, profile="1g.5gb", start=0, size=1, boot_id="b"),
    records.ForgottenTombstone(allocation="a1"),
)

_TICKET = records.TicketRecord(
    booking=_BOOKING,
    revision=1,
    boot_id="b",
    devices=tuple(records.DeviceRecord(step="made", gi_id=3, uuid="MIG-1") for _ in _BOOKING.devices),
    counts=_BOOKING.devices,
)
_FLOOR = NodeState(boot_id="b")


def _records(data: bytes) -> None:
    """As if another version had written them: the checksums are right, what is in the lines is not."""
    chain, lines = 0, []
    for body in data.split(b"\n"):
        chain = zlib.crc32(body, chain)
        lines.append(b"%08x %s\n" % (chain, body))
    found = read_lines(b"".join(lines))
    again = read_lines(Lines(kept=dict(found.kept)).rewritten())
    assert again.records() == found.records(), "the journal says something else once it was rewritten"


def _ticket(data: bytes) -> str:
    found = unpack(data)
    return found if isinstance(found, str) else ""


def _ticket_record(data: bytes) -> None:
    """As if another version had written it: the checksum is right, what is in the record is not."""
    record = unpack(b'{"record":%s,"checksum":"%08x"}' % (data, zlib.crc32(data)))
    if isinstance(record, records.TicketRecord):
        verify_ticket(FoundTicket("t", record), NodeName("n1"), _FLOOR, Discovered())
        assert unpack(pack_ticket(MakeTicket(1, "t", record, ()))) == record, "it says something else once rewritten"


def _home(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory = HomeDirectory(Path(root), HomeId("h1"))
        directory.path.mkdir()
        (directory.path / "home.json").write_bytes(data)
        directory.read()


def _control_log(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        (folder / "control.log").write_bytes(data)
        (folder / "server.log").write_bytes(data)
        log = ControlLog(folder, Processes(folder / "proc"))
        log.read()
        log.waiting_for_another(7)
        with (folder / "control.log").open("ab") as file:
            file.write(data[: len(data) // 2])
        log.read()


def _daemon_answer(data: bytes) -> str:
    lines = answers_in(as_text(data))
    numbers_in(lines)
    return limits_in(lines).mismatch(records.MpsLimits(active_thread_percentage=30, memory_mib=4096))


def _process(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "7"
        folder.mkdir()
        for name in ("cgroup", "comm", "stat", "cmdline", "environ"):
            (folder / name).write_bytes(data)
        processes = Processes(Path(root))
        owner = processes.owner_of(7)
        assert not owner or re.fullmatch(r"[0-9a-f-]{32,36}", owner), f"{owner!r} is taken for a pod"
        processes.name_of(7)
        processes.started_at(7)
        processes.command_of(7)
        processes.environment_of(7)


def _mounts(data: bytes) -> None:
    file_system_of(Path("/run/sluice/pods"), as_text(data))
    with in_memory(data) as path:
        mounted_below(Path("/run/sluice"), path)


_JOURNAL_LINES = Lines()
_WHOLE_JOURNAL = b"".join(_JOURNAL_LINES.next(pack(each)) for each in _RECORDS)
_HARDWARE = (
    b'{"node":"n1","boot_id":"b","gpus":[{"uuid":"GPU-1","index":0,"model":"a100-40gb","product_name":"A","mig":true,'
    b'"instances":[{"gi_id":1,"profile":"1g.5gb","start":0,"size":1,"uuid":"MIG-1"}],'
    b'"processes":[{"pid":7,"owner":"p","device":"MIG-1"}]}],"faults":{"slow":1.0},"declared_faults":{"xid":79}}'
)
_UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
_PROC = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_UID.replace('-', '_')}.slice/cri.scope\n"
    f"5:devices:/kubepods/besteffort/pod{_UID}/x\n"
).encode()
_STAT = b"7 (python (x) y) S 1 7 7 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 123456 1 1"
_LOG = b"".join(
    b"[2026-01-01 00:00:00.000 Control 7] %s\n" % line
    for line in (
        b"NEW CLIENT 9 from user 1000: Server is not ready, push client to pending list",
        b"Starting new server 11 for user 1000",
        b"NEW SERVER 11: Ready",
        b"Server 11 exited with status 0",
    )
)
_MOUNTINFO = (
    b"25 1 0:23 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=1000k\n"
    b"36 25 0:40 / /run/sluice/pods\\040x rw master:1 - ext4 /dev/sda1 rw\n"
)

_PACKETS = tuple(
    (struct.pack("<IHHQ", wire.MAGIC, wire.VERSION, kind, 1) + body).ljust(wire.PACKET_BYTES, b"\0")
    for kind, body in (
        (1, struct.pack("<III16s", 77, wire.FAIL_CLOSED, 1 << 16, b"")),
        (2, struct.pack("<QQ", 20_000, 0)),
        (3, struct.pack("<QQ", 5, 19_000)),
    )
)

TARGETS: tuple[Target, ...] = (
    Target("journal", read_lines, [_WHOLE_JOURNAL], (DamagedError,)),
    Target("journal's records", _records, [b"\n".join(pack(each) for each in _RECORDS)], (DamagedError,)),
    Target("ticket", _ticket, [pack_ticket(MakeTicket(1, "t", _TICKET, ()))]),
    Target("ticket's record", _ticket_record, [pack(_TICKET)]),
    Target("journal's note", lambda data: read_note(data, 7), [struct.pack("<QQ", 7, 100)]),
    Target("simulated hardware", of_file(lambda path: HardwareFile(path).read()), [_HARDWARE], (HardwareFileError,)),
    Target(
        "home of shares",
        _home,
        [b'{"gpu":"GPU-1","device":"MIG-1","namespace":"x","uid":7,"agent_pod":"p"}'],
        (MpsError,),
        weight=0.3,
    ),
    Target("daemon's log", _control_log, [_LOG], weight=0.3),
    Target(
        "daemon's answer",
        _daemon_answer,
        [b"30.0\n4G\n", b"30\n4096M\n", b"1\n2\n3\n", b"Server 7 not found\n", b"Unknown command get_server_status\n"],
        (MpsError,),
    ),
    Target("process", _process, [_PROC, _STAT, b"A=b\0C=d\0", b"nvidia-cuda-mps-control\0-d\0"], weight=0.3),
    Target("mounts", _mounts, [_MOUNTINFO], (OSError,)),
    Target("time quota's packet", wire.read, _PACKETS, (wire.WireError,)),
    Target("driver's version", of_text(version_of), [b"550.163.01", b"535.261"]),
)
