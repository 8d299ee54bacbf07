"""The directories that let a pod's containers start, and what their removal must never touch."""

import errno
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from factories.tickets import make_ticket

from sluice.contracts.ids import AllocationId, RunId
from sluice.contracts.kube.names import is_ticket_name
from sluice.contracts.messages import ContainerDevices
from sluice.contracts.ticket_paths import is_ticket_of, pipe_directory_in, ticket_name, ticket_of
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.device import mounts as mounting
from sluice_node_agent.shell.tickets.tickets import Tickets

TICKET = "a1-run-1"
UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"


def _order(*containers, ticket=TICKET, owner="pod-1"):
    return make_ticket(ticket, owner=owner, containers=containers)


def _for_pod(*containers, ticket=TICKET):
    """Of a pod that a kubelet knows."""
    return _order(*containers, ticket=ticket, owner=UID)


@pytest.fixture
def home():
    """A daemon's directories, with a socket in them (whose path has to be short)."""
    with tempfile.TemporaryDirectory(prefix="h") as name:
        for part in ("pipe", "log"):
            (Path(name) / part).mkdir()
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(f"{name}/pipe/control")
            yield Path(name)


def _sharing(home, name="main"):
    return ContainerDevices(
        container=name,
        visible_devices="MIG-1",
        memory_mib=4096,
        mps_pipe_directory=f"{home}/pipe",
        mps_log_directory=f"{home}/log",
        active_thread_percentage=25,
        pinned_memory_limit="0=4096M",
    )


def test_tickets_are_there_whole_or_not_at_all(tmp_path):
    tickets = Tickets(tmp_path / "t")
    assert tickets.names() == ()
    (tmp_path / "t" / f".{TICKET}" / "main").mkdir(parents=True)  # an agent ended while it made it
    tickets.make(_order())
    tickets.make(_order())
    assert tickets.names() == (TICKET,)
    assert (tmp_path / "t" / TICKET / "slice.json").exists()
    tickets.remove(TICKET)
    tickets.remove(TICKET)
    assert list((tmp_path / "t").iterdir()) == []
    with pytest.raises(OSError, match="no ticket's name"):
        tickets.remove("../../etc")


def test_a_ticket_says_everything_that_its_containers_are_told(tmp_path, home):
    """A person who looks for a pod's devices finds what the pod was given, and strangers find nothing."""
    before = os.umask(0o077)
    try:
        tickets = Tickets(tmp_path / "t")
        tickets.make(_order(_sharing(home), ContainerDevices(container="sidecar", visible_devices="MIG-2")))
    finally:
        os.umask(before)
    place = tmp_path / "t" / TICKET
    said = msgspec.json.decode((place / "slice.json").read_bytes())
    assert (said["allocation"], said["owner"]) == ("a1", "pod-1")
    assert msgspec.convert(said["containers"][0], ContainerDevices) == _sharing(home)
    assert set(said["containers"][0]) == {*ContainerDevices.__struct_fields__} - {"driver_capabilities"}
    assert stat.S_IMODE((place / "slice.json").stat().st_mode) == 0o600
    for directory in (place, place / "main"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o711, directory
    assert sorted(path.name for path in place.iterdir()) == ["main", "slice.json"]


def test_a_real_mount_in_a_ticket_is_left_alone(tmp_path, home):
    tickets = Tickets(tmp_path / "t")
    tickets.make(_order(_sharing(home)))
    point = tmp_path / "t" / TICKET / "main" / "mnt"
    point.mkdir()
    mounted = subprocess.run(["mount", "--bind", f"{home}/pipe", str(point)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode().strip()}")
    moved = tmp_path / "t" / f".{TICKET}" / "main" / "mnt"
    try:
        with pytest.raises(OSError, match="something is mounted at"):
            tickets.remove(TICKET)
        assert (home / "pipe" / "control").is_socket()
    finally:
        subprocess.run(["umount", str(moved)], check=True)
    tickets.remove(TICKET)
    assert tickets.names() == ()
    assert (home / "pipe" / "control").is_socket()


def test_a_container_cannot_name_its_way_out_of_its_ticket(tmp_path, home):
    for name in ("../x", "..", "a/b", ""):
        with pytest.raises(OSError, match="no container's name"):
            Tickets(tmp_path / "t").make(_order(_sharing(home, name)))
    assert not (tmp_path / "t" / TICKET).exists()


@pytest.fixture
def pods(tmp_path):
    sources = PodDirectories(tmp_path / "pods")
    sources.open()
    return sources


def test_a_pods_ticket_is_where_its_volume_shows_it(tmp_path, pods):
    """A pod on a node with a kubelet finds its ticket in its volume, and it goes with its slice."""
    tickets = Tickets(tmp_path / "t", pods)
    tickets.make(_for_pod())
    tickets.make(_for_pod())
    tickets.make(_order(ticket="a1-run-2", owner="run-7"))  # not a pod's: `sluice run`, a manifest
    assert (pods.root / UID / TICKET / "slice.json").exists()
    assert (tmp_path / "t" / "a1-run-2" / "slice.json").exists()
    assert tickets.names() == (TICKET, "a1-run-2")
    for name in 2 * tickets.names():
        tickets.remove(name)
    assert tickets.names() == ()
    assert pods.all() == []


def test_half_a_ticket_of_a_pod_is_found_and_removed(tmp_path, pods):
    """An agent that was killed while it made or removed a ticket leaves nothing for ever."""
    tickets = Tickets(tmp_path / "t", pods)
    folder = pods.make(UID)
    (folder / f".{TICKET}").mkdir()
    (folder / f"mps-{TICKET}-main").mkdir()
    assert tickets.names() == (TICKET,)
    tickets.make(_for_pod())
    assert sorted(path.name for path in folder.iterdir()) == [TICKET]
    (folder / f"mps-{TICKET}-main").mkdir()
    tickets.remove(TICKET)
    assert pods.all() == []


@pytest.mark.parametrize("name", [".", "..", "a.b", "A", "a/b", "", "-a", "a-", "a b", "mps-a1-run-1-main"])
def test_a_name_that_would_open_the_gate_is_no_tickets(tmp_path, pods, name):
    for tickets in (Tickets(tmp_path / "t"), Tickets(tmp_path / "t", pods)):
        with pytest.raises(OSError, match="is no ticket's name"):
            tickets.make(_for_pod(ticket=name))
    assert pods.all() == []


def test_who_may_not_mount_makes_links(tmp_path, pods, home, monkeypatch):
    """Without the right to mount a share is found on the node itself at least, and its removal touches nothing else."""
    refuse = Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted"))
    monkeypatch.setattr(mounting, "bind", refuse)
    tickets = Tickets(tmp_path / "t", pods)
    tickets.make(_for_pod(_sharing(home)))
    place = pods.root / UID / ticket_of(TICKET, _sharing(home))
    assert (place / "pipe" / "control").is_socket()
    assert (place / "log").samefile(home / "log")
    tickets.remove(TICKET)
    assert pods.all() == []
    assert (home / "pipe" / "control").is_socket()


def test_the_directories_of_two_homes_are_not_one_view(tmp_path, pods, home):
    """A container is never shown more than its own daemon's home."""
    wrong = msgspec.structs.replace(_sharing(home), mps_log_directory="/var/log")
    with pytest.raises(OSError, match="are not of one home"):
        Tickets(tmp_path / "t", pods).make(_for_pod(wrong))
    assert not (pods.root / UID / TICKET).exists()


def test_tickets_names_are_never_used_twice_and_found_again():
    """A container of one run never starts with the ticket of another; a lost journal loses no ticket."""
    ids = [AllocationId(text) for text in ("a-b_r_1", "a_b_r_1", "A-b_r_1", "a-b_r_1-r_2", "a" * 253)]
    names = [ticket_name(one, RunId(run), n) for one in ids for run in ("r-0-1", "r-0-11", "s-0-1") for n in (1, 11)]
    assert len(set(names)) == len(names)
    for name in names:
        assert is_ticket_name(name)
        assert len(f".mps-{name}-{'c' * 63}") <= 255, "a file's name (NAME_MAX)"
        assert [is_ticket_of(name, one) for one in ids].count(True) == 1


def test_pods_are_told_where_they_find_their_daemon():
    """The tickets that the agent creates and the pod's mounts match."""
    plain, sharing = ContainerDevices(container="main", visible_devices="MIG-1"), _sharing("/mps/h1")
    assert (ticket_of(TICKET, plain), pipe_directory_in(plain)) == (TICKET, "")
    assert ticket_of(TICKET, sharing) == f"mps-{TICKET}-main"
    assert is_ticket_name(ticket_of(TICKET, sharing))
    assert pipe_directory_in(sharing) == "/run/sluice/slice/pipe"


@pytest.mark.parametrize("owner", [UID, "run-7"])
def test_a_ticket_of_before_a_reboot_is_removed_and_no_other(tmp_path, pods, owner):
    """A container would start with a device, or a daemon, that the reboot has ended."""
    tickets = Tickets(tmp_path / "t", pods)
    for name, boot_id in (("a1-run-1", "before"), ("a2-run-1", "now"), ("a3-run-1", "before")):
        tickets.make(make_ticket(name, owner=owner, boot_id=boot_id))
    (document,) = (tmp_path).glob("*/**/a3-run-1/slice.json")
    document.write_text("{}")  # it does not say of which boot it is
    assert tickets.clear("now") == ("a1-run-1",)
    assert tickets.names() == ("a2-run-1", "a3-run-1")
    assert tickets.clear("now") == ()


def test_a_ticket_in_another_pods_directory_says_nothing(tmp_path, pods):
    """A slice would be taken over by a copy of its ticket."""
    tickets = Tickets(tmp_path / "t", pods)
    tickets.make(_for_pod())
    (folder,) = pods.all()
    other = pods.make(f"{UID[:-1]}{'1' if UID[-1] != '1' else '2'}")
    (folder / TICKET).rename(other / TICKET)
    (found,) = tickets.read()
    assert found.record is None
    assert found.problem == f"it is of pod {UID}, and in the directory of pod {other.name}"


def test_a_pods_directory_that_goes_away_while_it_is_read_ends_nothing(tmp_path, pods, monkeypatch):
    """The driver of volumes removes it at any moment; an agent that starts just then would end with a traceback."""
    tickets, pod = Tickets(tmp_path / "t", pods), pods.root / UID
    real = Path.iterdir

    def gone(folder):
        if folder == pod:
            shutil.rmtree(pod)
        return real(folder)

    monkeypatch.setattr(Path, "iterdir", gone)
    for look in (tickets.names, tickets.read):
        pod.mkdir()
        assert look() == ()
        assert not pod.exists()


def test_what_is_mounted_in_a_ticket_is_left_alone(tmp_path, home):
    """A daemon's directory mounted into a ticket, and the sockets of those who stay, survive the ticket."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:1 / / rw - rootfs rootfs rw\n")
    tickets = Tickets(tmp_path / "t t", mounts=mounts)
    tickets.make(_order(_sharing(home)))
    inside = tmp_path / "t t" / f".{TICKET}" / "main" / "mnt"
    escaped = str(inside).replace(" ", "\\040")
    mounts.write_text(f"1 0 0:1 / / rw - rootfs rootfs rw\n2 1 0:2 / {escaped} rw - tmpfs tmpfs rw\n")
    with pytest.raises(OSError, match="something is mounted at"):
        tickets.remove(TICKET)
    assert not (tmp_path / "t t" / TICKET).exists(), "no container can start with it any more"
    assert (tmp_path / "t t" / f".{TICKET}" / "slice.json").exists()
    mounts.write_text("")
    tickets.remove(TICKET)
    assert tickets.names() == ()
    assert (home / "pipe" / "control").is_socket()
    assert (home / "log").is_dir()
