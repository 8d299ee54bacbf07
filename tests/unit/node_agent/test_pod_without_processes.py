"""A slice goes when no process of its pod is left."""

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest
from factories.cluster.pod_cgroups import CGROUPS, names_of, pod_cgroups
from factories.gpus.shared_devices import KINDS, booked

from sluice.contracts.messages import SliceGone, SliceQuarantined
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.events import PodProcess, QuarantineReleased
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.dra.cdi_files import file_name
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell.runner.pod_volumes import PodProcesses

INSTANCE, WHOLE = (0, "3g.20gb", 4, 4), (2, None, 0, 1)
LEFT = (PodProcess(41, "python"), PodProcess(42, "tee", in_kernel=True))


@pytest.fixture
def node(make_node):
    return make_node(has_pods=True)


def _ready(node, *bookings):
    node.ready(*bookings)
    node.own_done.clear()
    return bookings[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_is_kept_while_a_process_of_its_pod_lives_that_holds_nothing(node, kind):
    """It may open the device again, beside the next tenant."""
    booking = _ready(node, booked(node, kind))
    node.pods["pod-1"] = LEFT[:1]
    node.take_back(booking)
    node.tick(0.25, times=100)
    assert not {do.DestroyComputeInstance, do.DestroyGpuInstance, do.StopMps} & set(node.steps())
    assert node.word("a1").message == "processes of its pod still run: python 41"
    assert node.word("a1").holders == ("python 41",)
    assert isinstance(node.word("a1"), SliceQuarantined)
    node.pods.clear()
    node.tick(node.config.look_for_tenants_s)
    assert isinstance(node.word("a1"), SliceGone), "it is given back with the next look"
    assert node.instances() == []


def test_where_processes_cannot_be_looked_for_nothing_is_given_back_and_it_is_said(node):
    """The next tenant would find the last one still at work, or its place stay booked for no visible reason."""
    booking = _ready(node, node.booking("a1", INSTANCE))
    node.unseen = "only its own; set hostPID: true in the agent's pod"
    node.take_back(booking)
    node.tick(times=40)
    assert "set hostPID: true" in node.says("a1", SliceQuarantined).message
    assert do.DestroyComputeInstance not in node.steps()


def test_an_agent_that_sees_no_processes_of_pods_warns_when_it_starts(make_node):
    node = make_node(has_pods=True, unseen="only its own")
    assert any("only its own" in warning for warning in node.agent.snapshot().warnings)


def test_who_serves_no_pods_of_a_kubelet_looks_at_devices_alone(make_node):
    """A manifest in a folder has no cgroup to look into; to wait for one would be for ever."""
    node = make_node()
    booking = _ready(node, node.booking("a1", INSTANCE))
    node.pods["pod-1"] = LEFT
    node.take_back(booking)
    assert do.ListTenants not in node.steps()
    assert isinstance(node.word("a1"), SliceGone)


def test_the_surplus_slice_of_a_running_pod_goes_while_it_runs(node):
    kept, surplus = node.booking("a1", INSTANCE), node.booking("a2", (1, "2g.10gb", 4, 2))
    _ready(node, kept, surplus)
    node.pods["pod-1"] = LEFT
    node.gone(surplus)
    node.take_back(kept)
    node.tick()
    assert not isinstance(node.word("a1"), SliceGone)


def test_a_person_who_vouches_for_what_is_left_is_believed(node):
    """A process that the kernel never lets go of would keep a GPU for ever."""
    booking = _ready(node, node.booking("a1", INSTANCE))
    node.pods["pod-1"] = LEFT
    node.take_back(booking)
    node.tick(times=40)
    assert "tee 42 (waits in the kernel" in node.word("a1").message
    node.happens(QuarantineReleased(booking.allocation, ignore_holders=True))
    assert isinstance(node.word("a1"), SliceGone)


def test_what_waits_is_not_said_again_and_again(node):
    """A pod that starts a process every second would be a write on the bus every second, for as long as it runs."""
    node.order(node.revoke(_ready(node, node.booking("a1", INSTANCE))))
    said = []
    for number in range(240):
        node.pods["pod-1"] = (PodProcess(100 + number, "sh"),)
        node.tick(0.5)
        said.append(node.word("a1"))
    assert len(dict.fromkeys(map(str, said))) <= 6


def test_a_client_of_a_shared_device_is_let_go_while_its_process_lives_on(node):
    """It computes beside the others no more, while its pod takes its time to end."""
    booking = _ready(node, node.share("a1", WHOLE))
    daemon = node.mps.connect(41)
    node.pods["pod-1"] = LEFT[:1]
    node.take_back(booking)
    node.tick(times=4)
    assert do.TerminateMpsClients in node.steps()
    assert 41 not in daemon.clients
    assert do.StopMps not in node.steps()
    node.pods.clear()
    node.tick()
    assert isinstance(node.word("a1"), SliceGone)


UID, OTHER = str(uuid4()), str(uuid4())
"""Real processes in real cgroups: those of a test that runs beside this one are not its own."""


def _fake(root: Path, *names: str) -> Processes:
    """A /proc of a container with processes of these names; `_has` says more of one."""
    (root / "self/ns").mkdir(parents=True)
    (root / "self/ns/pid").symlink_to("pid:[4026532000]")
    for pid, name in enumerate(names, 1):
        (root / str(pid)).mkdir()
        (root / str(pid) / "comm").write_text(f"{name}\n")
        (root / str(pid) / "cgroup").write_text("0::/system.slice\n")
        (root / str(pid) / "stat").write_text(f"{pid} ({name}) S " + "1 " * 30)
    return Processes(root)


def _has(root: Path, pid: int, cgroup: str, mounted: str, at: str, environment: str = "") -> None:
    (root / f"{pid}/task/{pid}").mkdir(parents=True)
    (root / f"{pid}/cgroup").write_text(cgroup)
    (root / f"{pid}/environ").write_text(environment)
    mounts = f"36 35 0:24 / /dev rw\n37 35 0:25 {mounted} {at} ro - tmpfs tmpfs rw\n"
    (root / f"{pid}/task/{pid}/mountinfo").write_text(mounts)


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
@pytest.mark.parametrize("version", CGROUPS)
async def test_a_process_of_a_pod_is_found_until_it_has_ended(threads, version, driver):
    """In a real cgroup, as a kubelet and its runtime call them."""
    pods = PodProcesses(Processes(), threads, has_kubelet=True)
    with pod_cgroups() as cgroups:
        process = cgroups.start(version=version, name=names_of(UID)[driver])
        assert await pods.left_of(UID) == (PodProcess(process.pid, "sleep"),)
        process.kill()
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert await pods.left_of(UID) == (), "a zombie holds nothing"


async def test_an_agent_that_sees_only_itself_does_not_say_that_no_process_is_there(threads, tmp_path):
    """All slices would be given back under their pods. In Kind and k3d a kubelet shows that its pods are seen."""
    pods = PodProcesses(_fake(tmp_path, "python"), threads, has_kubelet=True)
    assert "hostPID" in pods.why_unseen()
    with pytest.raises(OSError, match="hostPID"):
        await pods.left_of(UID)
    (tmp_path / "1" / "comm").write_text("kubelet\n")
    assert await pods.left_of(UID) == ()


async def test_processes_of_all_pods_with_a_claim_are_found_by_its_file(threads, tmp_path):
    """A pod that the agent does not know may open the device late; the file was written again, or is gone."""
    processes = _fake(tmp_path, "kubelet", "sleep", "other")
    name, at = f"/cdi/{file_name('claim-1')}", "/run/sluice/claims/claim-1.json"
    for pid, cgroup, root in ((1, "0::/", name), (2, f"0::/kubepods/pod{UID}/c", f"{name}//deleted"), (3, "0::/", "/")):
        _has(tmp_path, pid, cgroup, root, at)
    pods = PodProcesses(processes, threads, has_kubelet=True)
    assert await pods.left_of(OTHER, ("claim-1",)) == (PodProcess(2, "sleep", container="c"),)
    assert await pods.left_of(OTHER, ("claim-2",)) == ()


@pytest.mark.parametrize("links", ["", "/var"])
async def test_a_container_with_a_share_is_told_by_its_mount_and_its_ticket_by_its_environment(
    threads, tmp_path, links
):
    """A sandbox, a sidecar, a neighbour in the same home and what watches a container from its node are none of its; a
    program may have cleared its own. An image may have links above the mount."""
    names = "pause", "sh", "worker", "sidecar", "titled", "other", "neighbour", "conmon"
    processes = _fake(tmp_path, *names)
    home, mine, other = "/sluice/mps/h1", f"0::/kubepods/pod{UID}", f"0::/kubepods/pod{OTHER}"
    at = f"{links}/run/sluice/slice"
    _has(tmp_path, 1, f"{mine}/sandbox", "/", at, "PATH=/bin")
    _has(tmp_path, 2, f"{mine}/one", home, at, "PATH=/bin\0SLUICE_TICKET=mps-t-2-main\0")
    _has(tmp_path, 3, f"{mine}/one/nested", home, at, "PATH=/bin")
    _has(tmp_path, 4, f"{mine}/sidecar", "/", at, "SLUICE_TICKET=mps-t-1-main")
    _has(tmp_path, 5, f"{mine}/two", f"{home}//deleted", at, "\0\0\0")
    _has(tmp_path, 6, f"{mine}/three", "/sluice/mps/h11", at, "SLUICE_TICKET=mps-t-1-main")
    _has(tmp_path, 7, f"{other}/four", home, at, "SLUICE_TICKET=mps-u-1-main")
    _has(tmp_path, 8, f"{mine}/crio-conmon-one.scope", home, f"/run/sluice/pods/{UID}/mps-t-1-main", "PATH=/bin")
    pods = PodProcesses(processes, threads, has_kubelet=True)
    assert await pods.left_of(UID, homes=("h1", "h2")) == (
        PodProcess(2, "sh", container="one", ticket="mps-t-2-main"),
        PodProcess(3, "worker", container="one"),
        PodProcess(5, "titled", container="two"),
    )
    (tmp_path / "2/task/22").mkdir()
    (tmp_path / "2/task/22/stat").write_text("22 (its second thread) D " + "1 " * 30)
    stuck, *_ = await pods.left_of(UID, homes=("h1",))
    assert (stuck.in_kernel, stuck.ticket) == (True, ""), "who reads its environment may wait with it"


async def test_without_proc_nothing_is_concluded(threads, tmp_path):
    """Every pod would seem to have ended."""
    pods = PodProcesses(Processes(tmp_path / "nowhere"), threads, has_kubelet=True)
    assert "cannot be read" in pods.why_unseen()
    with pytest.raises(FileNotFoundError):
        await pods.left_of(UID)


async def test_who_is_no_pod_of_a_kubelet_has_no_cgroup(threads, tmp_path):
    """A manifest in a folder is waited for by its device; to ask for its cgroup would keep every slice."""
    pods = PodProcesses(_fake(tmp_path, "python"), threads, has_kubelet=False)
    assert await pods.left_of("94e5d9dd99-12") == ()
    assert await pods.left_of(UID) == ()
    assert pods.why_unseen() == ""


def test_simulated_nodes_without_a_kubelet_look_for_no_pods(threads, tmp_path):
    """A thousand simulated nodes would read all processes of their machine for each slice."""
    fleet = tmp_path / "fleet.toml"
    assert PodProcesses.of(NodeAgentSettings(fleet_file=fleet), threads) is None
    kubelet = NodeAgentSettings(fleet_file=fleet, nodes=("n1",), kubelet_root=tmp_path)
    assert PodProcesses.of(kubelet, threads) is not None
    assert PodProcesses.of(NodeAgentSettings(nodes=("n1",)), threads) is not None
