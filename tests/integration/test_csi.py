"""The CSI driver of pods' volumes as a real process, called as a kubelet calls it, with real mounts."""

import asyncio
import shutil
import signal
import stat
from contextlib import closing
from pathlib import Path

import grpc
import msgspec
import pytest
from factories.cluster.kubelet_node import NODE, KubeletNode, can_connect, daemon_home, in_time
from factories.waiting import wait_until

from sluice.contracts.kube.names import CSI_DRIVER
from sluice.contracts.messages import ContainerDevices
from sluice.contracts.pb import csi_pb2
from sluice.contracts.ticket_paths import QUOTA, QUOTA_LIBRARY, ticket_of
from sluice.runtime.service import EXIT_NEW_CONTAINER

UID = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
OTHER = "b1b1b1b1-9c1e-4b7a-8f10-2b6c5d4e3f21"
TICKET, LATER = "5f1c-run-1", "5f1c-run-2"
SEALED = {"ro", "nosuid", "nodev", "noexec"}


BOTH = pytest.mark.parametrize("node", ["host", "container"], indirect=True)
"""What mounts and paths decide is tried for either way to run a driver."""


@pytest.fixture
def bare():
    """A node without a driver."""
    with closing(KubeletNode()) as there:
        yield there


def _sharing(home):
    """The devices of a container with a share."""
    mps = {"mps_pipe_directory": f"{home}/pipe", "mps_log_directory": f"{home}/log"}
    return ContainerDevices(container="main", visible_devices="MIG-1", **mps)


def _start_sharing(node, home):
    """Start a container with a share, whose ticket is made; what it sees there."""
    node.agent("make", TICKET, UID, _sharing(home))
    return node.start_container(UID, "main", ticket_of(TICKET, _sharing(home)))


@BOTH
async def test_a_kubelet_learns_of_the_driver(node):
    """Without this no pod with a GPU starts on the node."""
    info, about = await node.register()
    assert (info.type, info.name, info.endpoint) == ("CSIPlugin", CSI_DRIVER, str(node.socket))
    assert list(info.supported_versions) == ["1.0.0"]
    assert about.node_id == NODE
    assert stat.S_IMODE(node.socket.stat().st_mode) == stat.S_IMODE(node.registration.stat().st_mode) == 0o600
    assert sorted(path.name for path in node.socket.parent.iterdir()) == ["csi.sock"]
    async with node.calling() as driver:
        answer = await driver.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest())
    assert answer == csi_pb2.NodeGetCapabilitiesResponse()


async def test_a_refusing_kubelet_is_told_of_loudly(node):
    """The kubelet reports it once, here, and nowhere else."""
    await node.register(error="illegal version string")
    (line,) = [line for line in node.lines() if line["level"] == "error"]
    assert line["why"] == "illegal version string"
    assert "no pod with a GPU starts or ends on this node" in line["event"]


@BOTH
async def test_a_volume_is_there_at_once_sealed_and_empty(node):
    """A pod whose slice is not ready is not held by its volume; no pod can pass the gate by creating a directory."""
    await node.publish(UID)
    (options,) = node.mounts(node.target(UID))
    assert set(options) >= SEALED
    assert list(node.seen(node.target(UID)).iterdir()) == []
    assert "Read-only file system" in node.run("mkdir", f"{node.target(UID)}/{TICKET}", ok=False)
    with pytest.raises(FileNotFoundError, match="failed to create subPath directory"):
        node.start_container(UID, "main", TICKET)


@BOTH
@pytest.mark.parametrize("how", ["emptied", "mounted over"])
async def test_a_volume_shows_its_pod_again_when_its_memory_disk_is_another(node, how):
    """A pod whose volume shows a lost directory finds no ticket, however often it is created again."""
    await node.publish(UID)
    await node.publish(OTHER)
    node.agent("make", TICKET, UID)
    if how == "emptied":
        node.run("sh", "-c", f"cd {node.pods} && rm -rf [!.]* .published .boot .lock .marks")
    else:
        node.run("mount", "-t", "tmpfs", "tmpfs", str(node.pods))
    assert not node.seen(node.pods / UID).exists()
    assert TICKET in node.agent("make", TICKET, UID)
    wait_until((node.seen(node.target(UID)) / TICKET).is_dir, "the volume shows the ticket")
    assert "slice.json" in [path.name for path in node.start_container(UID, "main", TICKET).iterdir()]
    (options,) = node.mounts(node.target(UID))
    assert set(options) >= SEALED
    node.run("umount", str(node.root / "pods" / UID / "c" / "main"))
    node.agent("remove", TICKET)
    for uid in (UID, OTHER):
        await in_time(node.unpublish(uid))
        assert node.mounts(node.target(uid)) == []


def test_a_driver_whose_folder_was_removed_ends_so_that_its_container_gets_another(bare):
    """`rm -rf /run/sluice`: what is mounted in the container can never hold a ticket again, and no pod starts."""
    removed, seen = bare.folder / "removed", bare.folder / "seen"
    for path in (removed, seen):
        path.mkdir()
    bare.run("mount", "--bind", str(removed), str(seen))
    number = bare.start(SLUICE_NODE_AGENT_PODS_DIR=f"{seen}/pods")
    below = f"mount | grep -o '{seen}/[^ ]*' | sort -r"
    bare.run("sh", "-c", f"for at in $({below}); do umount -l $at; done; rm -rf {removed}")
    assert bare.drivers[number].wait(60) == EXIT_NEW_CONTAINER
    assert "was removed" in bare.told(number)
    wait_until(lambda: not bare.socket.exists(), "nothing is left")
    bare.run("umount", str(seen))
    removed.mkdir()
    bare.run("mount", "--bind", str(removed), str(seen))
    bare.start(SLUICE_NODE_AGENT_PODS_DIR=f"{seen}/pods")


async def test_a_restarted_kubelet_asks_again_and_nothing_changes(node):
    """A kubelet's restart disturbs no running pod."""
    await node.publish(UID)
    node.agent("make", TICKET, UID)
    inside = node.start_container(UID, "main", TICKET)
    before = (node.all_mounts(), inside.stat().st_ino)
    for _ in range(3):
        await node.publish(UID)
    assert (node.all_mounts(), inside.stat().st_ino) == before


async def test_a_ticket_appears_in_a_volume_that_is_already_there(node):
    """A pod that was pinned before its slice was recreated starts as soon as it is ready."""
    await node.publish(UID)
    assert node.agent("make", TICKET, UID) == [TICKET]
    inside = node.start_container(UID, "main", TICKET)
    assert msgspec.json.decode((inside / "slice.json").read_bytes())["owner"] == UID
    assert node.agent("remove", TICKET) == []
    with pytest.raises(FileNotFoundError):
        node.start_container(UID, "again", TICKET)
    node.agent("make", LATER, UID)
    assert (node.start_container(UID, "again", LATER) / "slice.json").exists()


@BOTH
async def test_a_volume_shows_only_its_own_pod(node):
    """A tenant, ephemeral containers included, sees no other pod's directories."""
    node.agent("make", TICKET, UID)
    node.agent("make", LATER, OTHER)
    await node.publish(UID)
    await node.publish(OTHER)
    assert [path.name for path in node.seen(node.target(UID)).iterdir()] == [TICKET]
    assert [path.name for path in node.seen(node.target(OTHER)).iterdir()] == [LATER]


async def test_a_container_loads_the_library_of_the_time_quota_from_its_home(node):
    """A loader skips a library that it may not map, so no pod would be held to its time."""
    with daemon_home(node.folder) as home:
        (home / QUOTA).mkdir(mode=0o711)
        shutil.copyfile(_any_library(), home / QUOTA / QUOTA_LIBRARY)
        node.run("mount", "--bind", str(home), str(home))
        node.run("mount", "-o", "remount,bind,noexec", str(home))  # as /run is on many nodes
        await node.publish(UID)
        _start_sharing(node, home)
        library = node.root / "pods" / UID / "c" / "main" / QUOTA / QUOTA_LIBRARY
        assert node.run("env", f"LD_PRELOAD={library}", "true") == ""
        assert "LD_PRELOAD" in node.run("env", f"LD_PRELOAD={home / QUOTA / QUOTA_LIBRARY}", "true")


def _any_library():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "/libm.so" in line or "/libm-" in line)


@BOTH
@pytest.mark.parametrize("first", ["ticket", "volume"])
async def test_a_container_with_a_share_reaches_its_daemon_through_the_volume(node, first):
    """A container with a share reaches its MPS daemon, and other containers do not."""
    with daemon_home(node.folder) as home:
        container = _sharing(home)
        plain = ContainerDevices(container="plain", visible_devices="MIG-2")
        if first == "volume":
            await node.publish(UID)
        assert node.agent("make", TICKET, UID, container, plain) == [TICKET]
        if first == "ticket":
            await node.publish(UID)
        inside = node.start_container(UID, "main", ticket_of(TICKET, container))
        assert sorted(path.name for path in inside.iterdir()) == ["log", "pipe"]
        assert can_connect(inside / "pipe" / "control")
        (options,) = node.mounts(node.root / "pods" / UID / "c" / "main")
        assert set(options) >= SEALED - {"noexec"}
        other = node.start_container(UID, "plain", ticket_of(TICKET, plain))
        assert [path.name for path in other.iterdir()] == ["slice.json"]
        assert node.agent("remove", TICKET) == []
        assert list(node.seen(node.target(UID)).iterdir()) == []
        assert can_connect(inside / "pipe" / "control"), "who runs keeps what it has until it ends"
        assert (home / "pipe" / "control").is_socket(), "others live on that daemon"
        assert [path for path in node.all_mounts() if path.startswith(f"{node.pods}/")] == [f"{node.pods}/.sealed"]


async def test_a_daemon_that_is_started_again_is_found_in_the_same_volume(node):
    """A daemon recreates its pipe directory; its tenants see the new one."""
    with daemon_home(node.folder) as home:
        await node.publish(UID)
        inside = _start_sharing(node, home)
        (home / "pipe").rename(home / "old")
    with daemon_home(node.folder / "x") as other:
        (other / "pipe").rename(home / "pipe")
        assert can_connect(inside / "pipe" / "control")


@BOTH
async def test_an_ended_pod_leaves_nothing_and_may_end_twice(node):
    """A node that has run pods for a year has no mount and no directory of them."""
    with daemon_home(node.folder) as home:
        before = node.all_mounts()
        await node.publish(UID)
        node.agent("make", TICKET, UID, _sharing(home))
        await in_time(node.unpublish(UID))
        assert not node.target(UID).exists()
        assert node.target(UID).parent.is_dir(), "the kubelet made it, and removes it"
        assert node.all_mounts() == before
        await in_time(node.unpublish(UID))
        assert node.agent("remove", TICKET) == []
        assert not (node.pods / UID).exists()
        assert (home / "pipe" / "control").is_socket()


async def test_what_was_never_published_can_be_unpublished(node):
    """A pod that was deleted while its volume failed, or before a reboot, can end."""
    node.target(UID).parent.mkdir(parents=True)
    await in_time(node.unpublish(UID))
    await in_time(node.unpublish(OTHER))  # nothing of it is there at all
    assert not (node.pods / UID).exists()


async def test_a_pod_may_have_the_volume_twice(node):
    """The end of one volume takes nothing from the other."""
    await node.publish(UID)
    await node.publish(UID, "second")
    await in_time(node.unpublish(UID))
    node.agent("make", TICKET, UID)
    assert (node.seen(node.target(UID, "second")) / TICKET / "slice.json").exists()
    node.agent("remove", TICKET)
    await in_time(node.unpublish(UID, "second"))
    assert not (node.pods / UID).exists()


@pytest.mark.parametrize("name", [f"pod{UID}", f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice"])
@pytest.mark.parametrize("version", ["v1", "v2", "v2-only"])
async def test_a_volume_is_given_up_only_when_no_process_of_the_pod_is_left(bare, version, name):
    """The next tenant gets a device while the last one computes on it: a kubelet unpublishes too early."""
    process = bare.start_process(UID, version=version, name=name)
    bare.start()
    await bare.publish(UID)
    await bare.publish(OTHER)
    call = asyncio.ensure_future(bare.unpublish(UID))
    try:
        for _ in range(3):  # each as slow as one look at all processes
            await in_time(bare.publish(OTHER))
            await in_time(bare.unpublish(OTHER))
        assert not call.done()
        assert bare.mounts(bare.target(UID))
        process.kill()
        process.wait()
        await in_time(call)
    finally:
        call.cancel()
    assert not bare.target(UID).exists()


async def test_one_pod_that_does_not_end_holds_up_no_other(bare):
    """Fifty pods start and end while one is stuck."""
    bare.start_process(UID, version="v1", name=f"pod{UID}")
    bare.start()
    await bare.publish(UID)
    stuck = [asyncio.ensure_future(bare.unpublish(UID)) for _ in range(20)]
    try:
        others = [f"{number:08x}{UID[8:]}" for number in range(50)]
        await in_time(asyncio.gather(*(bare.publish(uid) for uid in others)))
        assert all(bare.mounts(bare.target(uid)) for uid in others)
        await in_time(asyncio.gather(*(bare.unpublish(uid) for uid in others)))
        assert not any(bare.mounts(bare.target(uid)) for uid in others)
        assert not any(call.done() for call in stuck)
    finally:
        for call in stuck:
            call.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


@BOTH
async def test_a_driver_that_was_killed_comes_back_to_running_pods(node):
    """Killed in the middle of the day: stale sockets are replaced, volumes are known, and new tickets appear."""
    with daemon_home(node.folder) as home:
        await node.publish(UID)
        node.stop(how=signal.SIGKILL)
        assert node.registration.is_socket(), "stale sockets are left"
        mounts = node.all_mounts()
        node.start()
        await node.register()
        await node.publish(UID)
        assert node.all_mounts() == mounts
        assert can_connect(_start_sharing(node, home) / "pipe" / "control")
        await node.publish(OTHER)
        (options,) = node.mounts(node.target(OTHER))
        assert set(options) >= SEALED


async def test_a_clean_stop_leaves_volumes_and_no_sockets(node):
    """The kubelet reports a missing driver, instead of calling into nothing; pods run on."""
    await node.publish(UID)
    assert node.stop() == 0
    assert not node.registration.exists()
    assert list(node.socket.parent.iterdir()) == []
    assert node.mounts(node.target(UID))


async def test_a_driver_whose_directories_cannot_be_kept_says_so_to_the_kubelet_and_serves_when_they_can(bare):
    """It ended, and its container's back-off held up every pod of the node for minutes after the disk was mended."""
    stranger = bare.pods / "of-another-driver"
    stranger.mkdir()
    bare.start()
    with pytest.raises(grpc.aio.AioRpcError, match="pods_dir must be a directory for Sluice alone") as refused:
        await bare.publish(UID)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert stranger.is_dir()
    assert "pods with a slice neither start nor end here until this is mended" in bare.told()
    stranger.rmdir()
    await bare.publish(UID)
    assert set(bare.mounts(bare.target(UID))[0]) >= SEALED


async def test_a_stop_does_not_take_a_successors_sockets(bare):
    """Two overlap while an agent is rolled out: the end of the old one leaves the new one's sockets."""
    bare.start()
    bare.start()
    assert bare.stop(0) == 0
    await bare.register()
    await bare.publish(UID)
    assert bare.mounts(bare.target(UID))


async def test_a_volume_that_was_opened_by_hand_is_sealed_again(bare):
    """A writable volume is no gate: the kubelet creates the missing directory."""
    bare.start()
    await bare.publish(UID)
    bare.run("mount", "-o", "remount,bind,rw", str(bare.target(UID)))
    await bare.publish(UID)
    assert "Read-only file system" in bare.run("mkdir", f"{bare.target(UID)}/{TICKET}", ok=False)


async def test_after_a_reboot_no_old_ticket_lets_a_container_start(bare):
    """The old ticket stands for a lost device; it would survive where pods_dir is not a tmpfs."""
    with daemon_home(bare.folder) as home:
        number = bare.start()
        await bare.publish(UID)
        bare.agent("make", TICKET, UID, _sharing(home))
        bare.stop(number, signal.SIGKILL)
        bare.lose_mounts()
        (bare.pods / ".boot").write_text("another boot\n")
        bare.start()
        await bare.publish(UID)
        assert list(bare.seen(bare.target(UID)).iterdir()) == []
        assert bare.agent("names") == []
        bare.agent("make", LATER, UID)
        assert (bare.start_container(UID, "main", LATER) / "slice.json").exists()
        assert (home / "pipe" / "control").is_socket()


async def test_only_the_unpublishing_comes_after_a_reboot(bare):
    """A pod that was deleted by force while the node was off can be cleaned up."""
    number = bare.start()
    await bare.publish(UID)
    bare.stop(number, signal.SIGKILL)
    bare.run("umount", "-l", str(bare.target(UID)))
    (bare.pods / ".boot").write_text("another boot\n")
    bare.start()
    await in_time(bare.unpublish(UID))
    assert not bare.target(UID).exists()


async def test_shares_work_where_no_mount_is_shared(request):
    """On a node with private mounts a driver shares the mount that it needs."""
    node = KubeletNode(shared=False)
    request.addfinalizer(node.close)
    node.start()
    with daemon_home(node.folder) as home:
        await node.publish(UID)
        assert can_connect(_start_sharing(node, home) / "pipe" / "control")
        await in_time(node.unpublish(UID))
        assert not node.mounts(node.target(UID))


@BOTH
@pytest.mark.parametrize("path", ["{root}/pods/{uid}/volumes/kubernetes.io~csi/../../../../../etc/mount", "/etc/mount"])
async def test_a_path_that_leads_elsewhere_is_refused(node, path):
    """Nothing outside the kubelet's pods is ever mounted on, or removed."""
    wrong = path.format(root=node.root, uid=UID)
    async with node.calling() as driver:
        for call, request in (
            (driver.NodePublishVolume, csi_pb2.NodePublishVolumeRequest(target_path=wrong)),
            (driver.NodeUnpublishVolume, csi_pb2.NodeUnpublishVolumeRequest(target_path=wrong)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details().startswith(f"target_path is {wrong!r}; it must be {node.root}/pods/<uid>/")


@BOTH
@pytest.mark.parametrize("what", ["mount", "volume"])
async def test_no_link_is_followed(node, what):
    """A link would have root mount and remove at a place of the attacker's choice."""
    elsewhere = node.folder / "elsewhere"
    (elsewhere / "mount").mkdir(parents=True)
    (elsewhere / "mount" / "kept").touch()
    link = node.target(UID) if what == "mount" else node.target(UID).parent
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / "mount" if what == "mount" else elsewhere)
    for call in (node.publish, node.unpublish):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await in_time(call(UID))
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        assert f"of pod {UID} cannot be" in refused.value.details()
    assert (elsewhere / "mount" / "kept").exists()
    assert not node.mounts(elsewhere / "mount")


def test_a_driver_that_cannot_serve_says_why_in_one_sentence(bare):
    """The operator of a node reads what is wrong with it."""
    bare.registration.write_text("not a socket")
    number = bare.start(wait=False)
    assert bare.drivers[number].wait(60) == 78
    assert "is there and is no socket" in bare.told(number)
    assert not bare.socket.exists(), "a driver that fails at the second socket removes the first"
    number = bare.start(wait=False, SLUICE_NODE_AGENT_KUBELET_ROOT=f"{bare.root}/not-there")
    assert bare.drivers[number].wait(60) == 78
    assert "it must be the kubelet's --root-dir" in bare.told(number)
    wait_until(lambda: not bare.socket.exists(), "nothing is left")
