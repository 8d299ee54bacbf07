"""The real MPS daemon through our `MpsDaemons` on an unused whole GPU; checks go together, in order, over one home."""

import math
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from gpu.clients import Client, until
from gpu.hardware_report import HardwareReport

from sluice.contracts.ids import HomeId
from sluice.contracts.messages import GpuReport
from sluice_node_agent.core.events import MpsSeen
from sluice_node_agent.core.instructions import SetMpsLimits, StartMps, StopMps, TerminateMpsClients, WatchMps
from sluice_node_agent.core.journal_records import MpsLimits
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.device.processes import Processes

CONTROL = "nvidia-cuda-mps-control"
LIMITS = MpsLimits(active_thread_percentage=50, memory_mib=6144)
SMALLER = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M"}
SMALLER_PERCENT, SMALLER_MIB = 25, 3072
ROUNDING_SMS = 2
"""A thread percentage is rounded to what the hardware can: SMs come in pairs (TPCs)."""
CUDA_ERROR_OUT_OF_MEMORY = 2
NAMESPACE = "hardware-checks"


@dataclass(slots=True)
class Home:
    """One daemon of ours: how it was ordered and what it is."""

    daemons: object
    order: StartMps
    pid: int
    started_at: int

    @property
    def variables(self) -> dict[str, str]:
        base = self.daemons.root / self.order.home
        return {"CUDA_MPS_PIPE_DIRECTORY": str(base / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(base / "log")}

    def look(self) -> MpsSeen:
        return self.daemons.look(WatchMps(1, self.order.home, self.pid, self.started_at, self.order.uid))

    def is_gone(self) -> bool:
        """Whether it is visibly dead. While its process ends it exists and does not answer: polled again."""
        try:
            return not self.look().alive
        except MpsError:
            return False

    def clients(self) -> set[int]:
        return {client.pid for client in self.look().clients}

    def stop(self) -> None:
        self.daemons.stop(StopMps(1, self.order.home, self.pid, self.started_at))


def start(daemons, gpu: GpuReport, home: str) -> Home:
    order = StartMps(1, HomeId(home), gpu.uuid, gpu.uuid, NAMESPACE, os.getuid(), LIMITS)
    return Home(daemons, order, *daemons.start(order))


@pytest.fixture(scope="module")
def daemons(hardware_report: HardwareReport) -> Iterator[object]:
    """Our shell over the real control binary, in a folder with a short name (unix sockets allow 107 bytes)."""
    from sluice_node_agent.device.mps.daemons import MpsDaemons  # noqa: PLC0415 - the skip comes first

    control = shutil.which(CONTROL)
    hardware_report.fact("MPS", f"{CONTROL} is there", control is not None)
    if control is None:
        pytest.skip(f"there is no {CONTROL} on PATH")
    root = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
    root.chmod(0o711)
    yield MpsDaemons(root / "mps", Path(control), Processes(), timeout_s=60.0)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def exclusive(backend, quiet_gpu: GpuReport, daemons, hardware_report: HardwareReport) -> Iterator[bool]:
    """The GPU in EXCLUSIVE_PROCESS, and back; False where this machine does not allow it."""
    import pynvml  # noqa: PLC0415 - NVML's own mode

    handle = pynvml.nvmlDeviceGetHandleByUUID(quiet_gpu.uuid)
    if pynvml.nvmlDeviceGetComputeMode(handle) != pynvml.NVML_COMPUTEMODE_DEFAULT:
        pytest.skip("the GPU is in another compute mode than DEFAULT, which its owner must have wanted")
    try:
        backend.set_exclusive_process(quiet_gpu.uuid, exclusive=True)
    except DeviceError as error:
        hardware_report.fact("MPS", "EXCLUSIVE_PROCESS can be set", str(error))
        assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
        yield False
        return
    try:
        hardware_report.fact("MPS", "EXCLUSIVE_PROCESS can be set", value=True)
        assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        yield True
    finally:
        backend.set_exclusive_process(quiet_gpu.uuid, exclusive=False)
        assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT


@pytest.fixture(scope="module")
def home(daemons, quiet_gpu: GpuReport, exclusive: bool) -> Iterator[Home]:
    """A daemon on the quiet GPU; nothing of it is left afterwards, whatever the checks did."""
    started = start(daemons, quiet_gpu, "h1")
    yield started
    started.stop()


def test_the_daemon_is_ours_and_answers(home: Home) -> None:
    """A pid that is not the daemon's would have a stranger killed when the home is unmade."""
    processes = Processes()
    assert processes.started_at(home.pid) == home.started_at
    assert processes.name_of(home.pid).startswith("nvidia-cuda-mps")
    seen = home.look()
    assert (seen.alive, seen.fault, seen.clients) == (True, "", ())


def test_two_tenants_get_what_they_were_promised_and_no_more(
    home: Home, quiet_gpu: GpuReport, backend, hardware_report: HardwareReport
) -> None:
    """One tenant could take the memory or the SMs that the other was promised."""
    with Client(home.variables) as larger, Client(home.variables | SMALLER) as smaller:
        first, second = larger.ask("open"), smaller.ask("open")
        assert "error" not in first, first
        assert "error" not in second, second
        until(home.clients, lambda pids: {larger.pid, smaller.pid} <= pids, "both tenants to be served")
        for name, client, seen, percent in (
            ("the default", larger, first, LIMITS.active_thread_percentage),
            ("its own, smaller one", smaller, second, SMALLER_PERCENT),
        ):
            hardware_report.fact("MPS", f"SMs seen at {percent} % ({name})", seen["sms"])
            hardware_report.fact("MPS", f"SMs of the context's affinity at {percent} %", seen["affinity_sms"])
            hardware_report.fact("MPS", f"SMs used by a kernel at {percent} %", client.ask("run"))
            hardware_report.fact("MPS", f"memory in MiB seen at {percent} %", seen["memory_mib"])
            said = [int(seen[key]) for key in ("sms", "affinity_sms") if seen[key] is not None]
            allowed = math.ceil(quiet_gpu.multiprocessors * percent / 100) + ROUNDING_SMS
            assert min(said) <= allowed, f"{percent} % of {quiet_gpu.multiprocessors} SMs, and the tenant sees {said}"
        assert "error" not in smaller.ask("take", mib=SMALLER_MIB // 2)
        beyond = smaller.ask("take", mib=SMALLER_MIB)
        assert beyond.get("error") == CUDA_ERROR_OUT_OF_MEMORY, beyond
        assert "error" not in larger.ask("take", mib=SMALLER_MIB)
        beyond = larger.ask("take", mib=LIMITS.memory_mib)
        assert beyond.get("error") == CUDA_ERROR_OUT_OF_MEMORY, beyond
        kinds = {holder.pid: holder.kind for holder in backend.processes(quiet_gpu.uuid, quiet_gpu.uuid)}
        hardware_report.fact("MPS", "processes listed by NVML, by kind", sorted(kinds.values()))
        assert "mps" in kinds.values()
    until(home.clients, lambda pids: not pids, "the tenants to be gone")


def test_who_does_not_find_the_daemon_gets_nothing(home: Home, exclusive: bool, tmp_path: Path) -> None:
    """It would run beside the daemon, without limits, unnoticed."""
    if not exclusive:
        pytest.skip("this machine does not allow EXCLUSIVE_PROCESS")
    with Client(home.variables) as tenant:
        assert "error" not in tenant.ask("open")
        with Client({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) as stranger:
            assert "error" in stranger.ask("open")


def test_raised_limits_hold_for_the_next_tenant(home: Home, quiet_gpu: GpuReport, hardware_report) -> None:
    """A larger tenant that joins a home would be held to the limits of the first."""
    raised = MpsLimits(active_thread_percentage=100, memory_mib=2 * LIMITS.memory_mib)
    home.daemons.set_limits(SetMpsLimits(1, home.order.home, raised))
    with Client(home.variables) as tenant:
        seen = tenant.ask("open")
        assert "error" not in seen, seen
        hardware_report.fact("MPS", "SMs seen after the limit was raised to 100 %", seen["sms"])
        assert seen["sms"] == quiet_gpu.multiprocessors
        assert "error" not in tenant.ask("take", mib=LIMITS.memory_mib)
    until(home.clients, lambda pids: not pids, "the tenant to be gone")


def test_one_tenant_is_put_out_and_the_other_goes_on(home: Home, hardware_report: HardwareReport) -> None:
    """A tenant that leaves takes no neighbour with it, and does not stay on."""
    with Client(home.variables) as staying:
        assert "error" not in staying.ask("open")
        with Client(home.variables) as leaving:
            assert "error" not in leaving.ask("open")
            until(home.clients, lambda pids: {leaving.pid, staying.pid} <= pids, "both tenants to be served")
            put_out = TerminateMpsClients(1, home.order.home, (leaving.pid,))
            home.daemons.terminate_clients(put_out)
            answer = leaving.ask("take", mib=16)
            hardware_report.fact("MPS", "error of a disconnected tenant", answer.get("name", "nothing"))
            assert "error" in answer
            listed = leaving.pid in home.clients()
            hardware_report.fact("MPS", "a terminated client is listed until it ends", listed)
            home.daemons.terminate_clients(put_out)  # an agent asks again as long as the process is there
            assert staying.pid in home.clients(), "the daemon answers as before"
            assert "error" not in staying.ask("take", mib=16)
        until(home.clients, lambda pids: pids == {staying.pid}, "the tenant to be gone with its process")
        assert "error" not in staying.ask("run")


def test_a_restarted_agent_finds_the_daemon_and_disturbs_nobody(home: Home) -> None:
    """Each restart of an agent would end all its tenants."""
    from sluice_node_agent.device.mps.daemons import MpsDaemons  # noqa: PLC0415

    with Client(home.variables) as tenant:
        assert "error" not in tenant.ask("open")
        again = MpsDaemons(home.daemons.root, Path(str(shutil.which(CONTROL))), Processes(), timeout_s=60.0)
        (found,) = again.found()
        assert (found.home, found.pid, found.started_at) == (home.order.home, home.pid, home.started_at)
        assert (found.namespace, found.uid) == (NAMESPACE, home.order.uid)
        assert again.start(home.order) == (home.pid, home.started_at)
        assert "error" not in tenant.ask("take", mib=16)


def test_the_last_one_leaves_and_nothing_is_left(home: Home, backend, quiet_gpu: GpuReport) -> None:
    """A forgotten daemon keeps the GPU for a trust domain without pods."""
    home.stop()
    assert Processes().started_at(home.pid) != home.started_at
    assert not (home.daemons.root / home.order.home).exists()
    until(
        lambda: [holder.kind for holder in backend.processes(quiet_gpu.uuid, quiet_gpu.uuid)],
        lambda kinds: "mps" not in kinds and "compute" not in kinds,
        "the server to be gone",
    )
    home.stop()  # stopping what is not there is fine


def test_a_killed_daemon_is_noticed_and_cleaned_away(
    daemons, quiet_gpu: GpuReport, exclusive: bool, backend, hardware_report: HardwareReport
) -> None:
    """Tenants would wait for a daemon that is dead, and the next one would find its sockets."""
    home = start(daemons, quiet_gpu, "h2")
    try:
        with Client(home.variables) as tenant:
            assert "error" not in tenant.ask("open")
            os.kill(home.pid, signal.SIGKILL)
            until(home.is_gone, bool, "the death to be noticed")
            answer = tenant.ask("take", mib=16)
            hardware_report.fact("MPS", "a tenant's allocation after its daemon was killed", answer)
    finally:
        home.stop()
    assert not (daemons.root / "h2").exists()
    until(
        lambda: [holder.kind for holder in backend.processes(quiet_gpu.uuid, quiet_gpu.uuid)],
        lambda kinds: "mps" not in kinds,
        "the server to be gone",
    )
