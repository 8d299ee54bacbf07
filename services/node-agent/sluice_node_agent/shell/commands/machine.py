"""This machine, as the commands on a node see it, and its agent, over the control socket. Read-only: no lock is taken,
no daemon started. A socket that refuses connections was left by a killed agent."""

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.fleet_file.fleet_spec import NodeSpec
from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import NodeSnapshot
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc
from sluice.contracts.proto.snapshots import snapshot_from_proto
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice_node_agent.device.mps.home_directory import SOCKET_PATH_BYTES_MAX
from sluice_node_agent.device.nvidia_nodes import CdiError
from sluice_node_agent.device.port import BackendError, FixedLayoutSelector, GpuBackend, parse_selector
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.preflight.findings import Machine, Ran, ReadJournal
from sluice_node_agent.settings import MPS_OFF, NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.journal.journal import JournalError, read_journal
from sluice_node_agent.shell.nodes.node_backend import on_path
from sluice_node_agent.simulated.backend import SimulatedBackend
from sluice_node_agent.simulated.hardware_file import HardwareFile, HardwareFileError

PROGRAM_S = 5.0
_SAID_MAX = 10_000
_NODES_LISTED = 8


class WhichNodeError(ServiceError):
    """It is not clear which node is meant. One sentence."""


def choose_node(settings: NodeAgentSettings, named: str) -> NodeName:
    """The node that is named, else the only one. Raises WhichNodeError and NodeBackendError."""
    if named:
        return NodeName(named)
    known: Sequence[str] = settings.nodes or [node.name for node in _fleet(settings)] or _seen(settings.data_dir)
    if len(known) == 1:
        return NodeName(known[0])
    if not known:
        raise WhichNodeError("say which node with --node, or set SLUICE_NODE_AGENT_NODES to it")
    listed = ", ".join(known[:_NODES_LISTED]) + (", ..." if len(known) > _NODES_LISTED else "")
    raise WhichNodeError(f"there are {len(known)} nodes; say which with --node: {listed}")


@contextmanager
def opened_machine(settings: NodeAgentSettings, node: NodeName) -> Iterator[Machine]:
    """The machine of a node, within the `with`. Raises NodeBackendError."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as scratch:
        hardware = _hardware(settings, node, Path(scratch))
        processes = Processes()
        control, asked = _mps_control(settings, node, simulated=hardware is not None)
        yield Machine(
            node=node,
            simulated=hardware is not None,
            processes=processes,
            uid=os.geteuid(),
            capabilities=_capabilities(),
            data_dir=settings.data_dir.absolute(),
            mps_root=paths.mps_root(settings.data_dir, settings.mps_dir, node),
            pods_dir=settings.pods_dir if settings.kubelet_root is not None else None,
            hand_over=settings.kubelet_root is not None and settings.hand_over,
            cdi_dir=settings.cdi_dir,
            why_no_cdi=lambda: _why_no_cdi(settings),
            mps_control=control,
            mps_asked=asked,
            open_gpus=lambda: _open(hardware, processes, parse_selector(settings.fixed_layout, node)),
            exclusive=lambda: _exclusive(hardware),
            journal=look_into_journal(settings.data_dir, node),
            run=run_program,
            find_program=lambda name: str(on_path(name) or ""),
        )


def _why_no_cdi(settings: NodeAgentSettings) -> str:
    from sluice_node_agent.shell.nodes.real_node import container_toolkit  # noqa: PLC0415 - not for simulated nodes

    try:
        container_toolkit(settings).check()
    except CdiError as error:
        return str(error)
    return ""


def look_into_journal(data_dir: Path, node: NodeName) -> ReadJournal:
    directory = paths.agent_directory(data_dir, node)
    try:
        records = read_journal(directory, node)
    except JournalError as error:
        return ReadJournal(exists=True, problem=str(error))
    return ReadJournal(exists=bool(records), records=records)


def run_program(command: Sequence[str]) -> Ran:
    """Run a program for its output. It gets no input, and ends within 5 s."""
    try:
        done = subprocess.run(  # noqa: S603 - paths come from PATH and settings, which are the operator's
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(None, f"it did not end within {PROGRAM_S:g} s")
    except OSError as error:
        return Ran(None, error.strerror or str(error))
    return Ran(done.returncode, done.stdout.decode("utf-8", "replace")[:_SAID_MAX])


def _fleet(settings: NodeAgentSettings) -> Sequence[NodeSpec]:
    if settings.fleet_file is None:
        return ()
    from sluice_node_agent.shell.nodes.simulated_node import fleet_nodes  # noqa: PLC0415 - not on real nodes

    return fleet_nodes(settings, settings.fleet_file)


def _fleet_node(settings: NodeAgentSettings, node: NodeName) -> NodeSpec | None:
    return next((each for each in _fleet(settings) if each.name == node), None)


def _seen(data_dir: Path) -> list[str]:
    folder = data_dir / "agents"
    try:
        return sorted(place.name for place in folder.iterdir() if place.is_dir())
    except OSError:
        return []


def _hardware(settings: NodeAgentSettings, node: NodeName, scratch: Path) -> HardwareFile | None:
    file = HardwareFile(paths.hardware_path(settings.data_dir, node))
    with suppress(PermissionError):  # without access, the checks of directories and journal report it
        if file.exists:
            return file
    if settings.fleet_file is None:
        return None
    fleet_node = _fleet_node(settings, node)
    if fleet_node is None:
        raise WhichNodeError(f"{settings.fleet_file} has no node {node!r}")
    file = HardwareFile(scratch / "hardware.json")
    file.make(fleet_node)
    return file


def _mps_control(settings: NodeAgentSettings, node: NodeName, *, simulated: bool) -> tuple[str, str]:
    if settings.mps_control == MPS_OFF:
        return MPS_OFF, ""
    if settings.mps_control:
        found = on_path(settings.mps_control)
        return (str(found), "") if found else ("", settings.mps_control)
    if not simulated:
        return str(on_path("nvidia-cuda-mps-control") or ""), ""
    fleet_node = _fleet_node(settings, node)
    shares = fleet_node is None or any(mode != "exclusive" for mode in fleet_node.modes)
    return ("stand-in", "") if shares else (MPS_OFF, "")


def _open(hardware: HardwareFile | None, processes: Processes, fixed: FixedLayoutSelector) -> GpuBackend:
    if hardware is None:
        from sluice_node_agent.device.nvml.backend import NvmlBackend  # noqa: PLC0415 - not for simulated nodes

        return NvmlBackend(processes, fixed=fixed)
    try:
        hardware.read()
    except HardwareFileError as error:
        raise BackendError(str(error)) from error
    return SimulatedBackend(hardware)


def _exclusive(hardware: HardwareFile | None) -> frozenset[GpuUuid] | None:
    if hardware is not None:
        return frozenset(gpu.uuid for gpu in hardware.read().gpus if gpu.exclusive_process)
    program = on_path("nvidia-smi")
    if program is None:
        return None
    ran = run_program((str(program), "--query-gpu=uuid,compute_mode", "--format=csv,noheader"))
    if ran.code != 0:
        return None
    rows = (line.partition(",") for line in ran.said.splitlines())
    return frozenset(GpuUuid(uuid.strip()) for uuid, _, mode in rows if mode.strip() == "Exclusive_Process")


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


CONNECT_S = 2.0
ANSWER_S = 10.0
"""A release waits for the agent's next step, which may read a slow GPU first."""

T = TypeVar("T")


class NoAgentError(ServiceError):
    """No agent answers on this node."""


class RefusedError(ServiceError):
    """The agent refused the request."""


def ask_snapshot(path: Path, node: str) -> NodeSnapshot:
    """The agent's snapshot of the node. Raises NoAgentError and RefusedError."""

    async def ask(channel: grpc.aio.Channel) -> object:
        return await agent_pb2_grpc.AgentServiceStub(channel).GetInventory(agent_pb2.GetInventoryRequest(node=node))

    snapshot = snapshot_from_proto(_asked(path, node, ask))  # type: ignore[arg-type]  # grpc has no types
    if isinstance(snapshot, Undecodable):
        raise RefusedError(f"the answer of the agent of {node} is not understood: {snapshot.why}")
    return snapshot


def release_quarantine(path: Path, node: str, allocation: str, *, ignore_holders: bool) -> str:
    """Have a quarantined slice retried at once; returns the outcome. Raises NoAgentError and RefusedError."""

    async def ask(channel: grpc.aio.Channel) -> str:
        request = agent_pb2.ReleaseQuarantineRequest(node=node, allocation=allocation, ignore_holders=ignore_holders)
        answer = await agent_pb2_grpc.NodeControlServiceStub(channel).ReleaseQuarantine(request)
        return str(answer.message)

    return _asked(path, node, ask)


def _asked(path: Path, node: str, ask: Callable[[grpc.aio.Channel], Awaitable[T]]) -> T:
    _see_that_somebody_listens(path, node)
    address = f"unix:{path.absolute()}"

    async def call() -> T:
        async with transport.channel(address, deadline_s=ANSWER_S) as channel:
            return await ask(channel)

    try:
        return asyncio.run(call())
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise RefusedError(f"the agent of {node} did not answer within {ANSWER_S:g} s") from error
        raise RefusedError(error.details() or f"the agent of {node} answered {error.code().name}") from error


def _see_that_somebody_listens(path: Path, node: str) -> None:
    if not paths.fits_a_socket(path.absolute()):
        raise NoAgentError(
            f"the agent of {node} cannot be asked: the path of its control socket, {path}, is longer than "
            f"{SOCKET_PATH_BYTES_MAX} bytes"
        )
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(CONNECT_S)
        probe.connect(os.fspath(path))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise NoAgentError(f"no agent of node {node} runs here: no process answers at {path}") from error
    except PermissionError as error:
        raise RefusedError(f"only the user that the agent runs as may open {path}") from error
    except OSError as error:
        raise NoAgentError(f"the agent of node {node} does not answer at {path}: {error}") from error
    finally:
        probe.close()
