"""A CDI file gives a container exactly its devices, in a form that container runtimes accept."""

import json
import threading
from pathlib import Path, PurePosixPath

import pytest
from judges.cdi_rules import what_is_wrong

from sluice.contracts.messages import ContainerDevices
from sluice_node_agent.core.events import CdiCompared, CdiRefused, CdiRemoved, CdiWritten
from sluice_node_agent.core.instructions import CdiDevice, CdiPart, CompareCdi, RemoveCdi, WriteCdi
from sluice_node_agent.device.nvidia_nodes import (
    CdiError,
    CharDevice,
    CommonEdits,
    ContainerToolkit,
    GpuFiles,
    NvidiaNodes,
    RootChange,
)
from sluice_node_agent.dra.cdi_files import CdiFiles, ClaimFiles, HandedOver, cdi_spec

CLAIM = "0d2f3a44-9c1e-4b7a-8f10-2b6c5d4e3f21"
GPU = "GPU-8f6ee5d6-0000-0000-0000-000000000001"
HERE = RootChange(PurePosixPath("/"), PurePosixPath("/"))


def _mount(host, container, *options):
    return {"hostPath": host, "containerPath": container, "options": list(options)}


DRIVER = "/usr/lib/libcuda.so.580"
COMMON = {
    "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"],
    "deviceNodes": [{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}],
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook"]}],
    "mounts": [_mount(f"/run/nvidia/driver{DRIVER}", DRIVER, "ro", "nosuid", "nodev", "rbind", "rprivate")],
}


def _toolkit(folder: Path, version="1.19.0", *, spec=None, fails=0) -> Path:
    """A program in the place of nvidia-ctk, that counts its calls and keeps its arguments."""
    content = folder / "spec.json"
    content.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": spec or COMMON}))
    program = folder / "nvidia-ctk"
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Container Toolkit CLI version {version}"; exit 0; fi
echo "$@" >> {folder}/calls
[ {fails} = 0 ] || {{ echo 'level=error msg="failed to initialize NVML"'; exit {fails}; }}
echo 'level=info msg="Auto-detected mode as nvml"'
cat {content}
"""
    )
    program.chmod(0o755)
    return program


def _machine(folder: Path) -> Path:
    """The parts of /proc and /sys that name a GPU's device nodes."""
    for place, minor in (("access", 147), ("ci0/access", 148)):
        file = folder / "proc/driver/nvidia/capabilities/gpu1/mig/gi1" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    (folder / "proc/devices").write_text("Character devices:\n  1 mem\n195 nvidia\n236 nvidia-caps\n\nBlock devices:\n")
    for name in ("card1", "renderD129", "controlD64"):
        (folder / "sys/bus/pci/devices/0000:3b:00.0/drm" / name).mkdir(parents=True)
    return folder


def _nodes(folder: Path, **more) -> NvidiaNodes:
    toolkit = ContainerToolkit(_toolkit(folder, **more), root=HERE)
    return NvidiaNodes(lambda _: GpuFiles(1, "0000:3b:00.0"), lambda: GPU, "580.65", toolkit, root=_machine(folder))


def _mps(home="/run/sluice/mps/h1"):
    return ContainerDevices(
        container="main",
        visible_devices="MIG-1",
        mps_pipe_directory=f"{home}/pipe",
        mps_log_directory=f"{home}/log",
        active_thread_percentage=50,
        pinned_memory_limit="0=4096M",
        quota_socket=f"{home}/quota/ab.sock",
    )


def test_a_share_has_everything_that_a_tickets_container_has():
    """Its daemon, its limits and its time quota are in the same file as its device."""
    device = HandedOver("d-0", _mps(), (CharDevice("/dev/nvidia0", 195, 0),), "/run/sluice/mps/h1/shm", "t-1")
    spec = cdi_spec(CLAIM, [device], CommonEdits(COMMON, "0.5.0"))
    assert what_is_wrong(spec) == []
    (told,) = spec.pop("devices")
    assert spec == {"cdiVersion": "0.5.0", "kind": "k8s.gpu.sluice.dev/claim", "containerEdits": COMMON}
    edits = told.pop("containerEdits")
    assert told == {"name": f"{CLAIM}-d-0"}
    assert edits == {
        "deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "permissions": "rw"}],
        "env": [
            "CUDA_MPS_PIPE_DIRECTORY=/run/sluice/slice/pipe",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
            "SLUICE_QUOTA_SOCKET=/run/sluice/slice/quota/ab.sock",
            "LD_PRELOAD=/run/sluice/slice/quota/libsluice-quota.so",
            "SLUICE_TICKET=mps-t-1-main",
        ],
        "mounts": [
            _mount("/run/sluice/mps/h1", "/run/sluice/slice", "ro", "nosuid", "nodev", "bind"),
            _mount("/run/sluice/mps/h1/shm", "/dev/shm", "rw", "nosuid", "nodev", "noexec", "bind"),
        ],
    }


@pytest.mark.parametrize(
    ("edits", "version"),
    [
        ({}, "0.5.0"),
        ({"additionalGids": [44]}, "0.7.0"),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, "1.1.0"),
    ],
)
def test_a_file_claims_no_newer_version_than_it_needs(edits, version):
    """An older runtime reads it; one that is too old for it refuses it as a whole."""
    spec = cdi_spec(CLAIM, [HandedOver("d-0", _mps(), ())], CommonEdits(edits))
    assert (spec["cdiVersion"], what_is_wrong(spec)) == (version, [])


def test_a_mig_device_has_its_gpu_and_its_two_capabilities(tmp_path):
    """What another tool would leave out right after the instance is made."""
    assert _nodes(tmp_path).of(GPU, 1) == (
        CharDevice("/dev/nvidia1", 195, 1),
        CharDevice("/dev/nvidia-caps/nvidia-cap147", 236, 147),
        CharDevice("/dev/nvidia-caps/nvidia-cap148", 236, 148),
    )


def test_capabilities_made_after_the_agents_container_are_the_hosts(tmp_path):
    """NVIDIA's runtime shows a container only those of its start, and every instance of ours is newer."""
    (tmp_path / "inside/proc").mkdir(parents=True)
    (tmp_path / "host").mkdir()
    _machine(tmp_path / "host")
    (tmp_path / "inside/proc/devices").write_text((tmp_path / "host/proc/devices").read_text())
    toolkit = ContainerToolkit(None, root=HERE)
    seen = {"root": tmp_path / "inside", "host": tmp_path / "host"}
    nodes = NvidiaNodes(lambda _: GpuFiles(1), lambda: GPU, "580", toolkit, **seen)
    assert [node.minor for node in nodes.of(GPU, 1)] == [1, 147, 148]


def test_a_whole_gpu_has_its_drm_nodes(tmp_path):
    assert _nodes(tmp_path).of(GPU, None) == (
        CharDevice("/dev/nvidia1", 195, 1),
        CharDevice("/dev/dri/card1", 226, 1),
        CharDevice("/dev/dri/renderD129", 226, 129),
    )


def test_a_missing_capability_is_named(tmp_path):
    """An engineer who mends it would not know that the agent's pod lacks the host's processes."""
    why = r"gi5 has 0 compute instances, not one; the agent must see the host's processes"
    with pytest.raises(CdiError, match=why):
        _nodes(tmp_path).of(GPU, 5)


def test_the_driver_is_described_once_by_the_toolkit(tmp_path):
    """It takes seconds, and is the same for all devices."""
    nodes = _nodes(tmp_path)
    assert nodes.common() == nodes.common() == CommonEdits(COMMON, "0.5.0")
    (call,) = (tmp_path / "calls").read_text().splitlines()
    only_one = f"--device-id {GPU} --no-all-device --device-name-strategy uuid"
    assert call == f"cdi generate --format json --mode nvml {only_one}"


def test_a_drivers_root_is_changed_to_the_nodes(tmp_path):
    """The agent sees the driver's container under another path than the runtime."""
    root = RootChange(PurePosixPath("/host/run/nvidia/driver"), PurePosixPath("/run/nvidia/driver"))
    spec = {
        "mounts": [{"hostPath": "/host/run/nvidia/driver/lib/a.so", "containerPath": "/lib/a.so"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/host/run/nvidia/driver/dev/nvidiactl"}],
    }
    toolkit = ContainerToolkit(_toolkit(tmp_path, spec=spec), root=root, hook="/usr/bin/nvidia-cdi-hook")
    assert toolkit.common("580", lambda: GPU).edits == {
        "mounts": [{"hostPath": "/run/nvidia/driver/lib/a.so", "containerPath": "/lib/a.so"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/run/nvidia/driver/dev/nvidiactl"}],
    }
    said = (tmp_path / "calls").read_text()
    assert "--driver-root /host/run/nvidia/driver --nvidia-cdi-hook-path /usr/bin/nvidia-cdi-hook" in said


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"version": "1.18.2"},
            "NVIDIA container toolkit 1.18.2 cannot describe single devices; install 1.19.0 or later",
        ),
        ({"version": "unknown"}, "does not say its version"),
        ({"fails": 3}, r"cdi generate failed \(3\): .*failed to initialize NVML"),
        (
            {"spec": {"mounts": [{"hostPath": "/a"}]}},
            "containerEdits.mounts is no list of objects with hostPath and con",
        ),
    ],
)
def test_a_toolkit_that_cannot_describe_the_driver_says_why(tmp_path, more, why):
    """An operator reads it in the node's warnings, and in the pod's events."""
    with pytest.raises(CdiError, match=why):
        _nodes(tmp_path, **more).common()


def test_a_missing_toolkit_is_named_with_its_setting():
    """An operator would not know what to install, or where it is looked for."""
    why = r"nvidia-ctk is not found; install .* 1.19.0 or later, or set SLUICE_NODE_AGENT_N"
    with pytest.raises(CdiError, match=why):
        ContainerToolkit(None, root=HERE).check()


def test_a_file_appears_whole_and_goes(tmp_path):
    """A runtime that reads half a file refuses all devices of it."""
    directory = tmp_path / "cdi"
    files = ClaimFiles(CdiFiles(directory), _nodes(tmp_path))
    assert files.why_not() == ""
    order = WriteCdi(1, CLAIM, (CdiDevice("d-0", _mps(), (CdiPart(GPU, "MIG-1", 1),)),))
    assert files.carry_out(order) == CdiWritten(1)
    (file,) = directory.iterdir()
    assert file.name == f"k8s.gpu.sluice.dev-claim_{CLAIM}.json"
    spec = json.loads(file.read_text())
    assert what_is_wrong(spec) == []
    assert [node["minor"] for node in spec["devices"][0]["containerEdits"]["deviceNodes"]] == [1, 147, 148]
    assert files.claims() == (CLAIM,)
    inode = file.stat().st_ino
    files.carry_out(order)
    assert file.stat().st_ino == inode, "what is right is left alone"
    assert files.carry_out(CompareCdi(3, (order,))) == CdiCompared(3, ())
    file.write_text("{}")
    assert files.carry_out(CompareCdi(3, (order,))) == CdiCompared(3, (CLAIM,))
    assert files.carry_out(RemoveCdi(2, CLAIM)) == files.carry_out(RemoveCdi(2, CLAIM)) == CdiRemoved(2)
    assert list(directory.iterdir()) == []


def test_a_claim_cannot_name_a_file_elsewhere(tmp_path):
    files = ClaimFiles(CdiFiles(tmp_path / "cdi"), _nodes(tmp_path))
    refused = CdiRefused(1, "'../../etc/x' is no UID of a ResourceClaim")
    assert files.carry_out(WriteCdi(1, "../../etc/x", ())) == refused


def test_drafts_of_a_killed_agent_are_removed(tmp_path):
    directory = tmp_path / "cdi"
    directory.mkdir()
    (directory / f"k8s.gpu.sluice.dev-claim_{CLAIM}.draft").write_text("{")
    (directory / "others.yaml").write_text("theirs")
    assert ClaimFiles(CdiFiles(directory), _nodes(tmp_path)).why_not() == ""
    assert [path.name for path in directory.iterdir()] == ["others.yaml"]


def test_a_draft_that_is_being_written_is_none_of_a_killed_agent(tmp_path, monkeypatch):
    """An agent that starts writes its claims' files again while it looks whether it can."""
    files = CdiFiles(tmp_path)
    looking = threading.Thread(target=files.prepare)

    rename = Path.rename

    def look_and_rename(draft, place):
        looking.start()
        looking.join(0.2)
        rename(draft, place)

    monkeypatch.setattr(Path, "rename", look_and_rename)
    files.write(CLAIM, {"kind": "x"})
    looking.join()
    assert files.claims() == (CLAIM,)


def test_a_file_is_written_again_though_its_folder_was_removed(tmp_path):
    """By hand, on a node whose agent runs in no container."""
    files = CdiFiles(tmp_path / "cdi")
    files.prepare()
    (tmp_path / "cdi").rmdir()
    files.write(CLAIM, {"kind": "x"})
    assert files.claims() == (CLAIM,)


def test_the_nvidia_runtime_adds_nothing_whatever_the_image_says():
    """An image that says `all` would otherwise see every GPU of the node."""
    spec = cdi_spec(CLAIM, [HandedOver("d-0", _mps(), ())], CommonEdits({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}))
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
