"""Preflight of rights, capability files, the host's processes and directories (`findings`). No write is tried."""

import os
import re
import stat
from pathlib import Path

from sluice_node_agent.device.mps.home_directory import LONGEST_SOCKET, SOCKET_PATH_BYTES_MAX
from sluice_node_agent.preflight.findings import CAP_SYS_ADMIN, CAP_SYS_PTRACE, Check, DriverReport, Finding, Machine

HOME_ID_BYTES = 25
"""Bytes reserved for a home's name, as the agent does (`shell.paths`): `<run>-<node>-<life>-h<number>`."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO, the same on every kernel (include/linux/proc_ns.h)."""
KUBELETS = frozenset({"kubelet", "k3s", "k3s-server", "k3s-agent", "rke2", "k0s", "kubelite", "hyperkube"})
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)", re.MULTILINE)


def check_rights(machine: Machine, devices: DriverReport) -> list[Finding]:
    """Whether it may create instances, set compute modes, start MPS servers and list the processes on a device."""
    mighty = machine.uid == 0 and machine.may(CAP_SYS_ADMIN)
    mig = [gpu for gpu in devices.gpus if gpu.mig_enabled]
    found = []
    if mighty:
        found += Check.RIGHTS.ok("it runs as root with CAP_SYS_ADMIN")
    elif machine.may(CAP_SYS_ADMIN) or os.access(_mig_config(machine), os.R_OK, effective_ids=True):
        found += Check.RIGHTS.ok(f"user {machine.uid} may create GPU instances")
    elif mig:
        found += Check.RIGHTS.problem(
            f"user {machine.uid} may not create GPU instances: it lacks CAP_SYS_ADMIN and cannot read "
            f"{_mig_config(machine)}",
            "run the agent as root; in a container, privileged, or with CAP_SYS_ADMIN and "
            "NVIDIA_MIG_CONFIG_DEVICES=all",
        )
    elif devices.gpus:
        found += Check.RIGHTS.ok("no GPU has MIG enabled, so no right to create instances is needed")
    if not mighty and machine.mps_control not in {"", "off"}:
        found += Check.RIGHTS.problem(
            f"user {machine.uid} may neither set a GPU's compute mode nor start an MPS server for another user",
            "run the agent as root with CAP_SYS_ADMIN, or switch MPS off (SLUICE_NODE_AGENT_MPS_CONTROL=off)",
        )
    if machine.uid != 0 and not machine.may(CAP_SYS_PTRACE):
        found += Check.RIGHTS.warning(
            "without root or CAP_SYS_PTRACE it is not seen which processes only hold a device's file open, "
            "so a slice that stays in use cannot say by whom",
            "run the agent as root, or give it CAP_SYS_PTRACE",
        )
    return found


def check_capability_files(machine: Machine, devices: DriverReport) -> list[Finding]:
    """Whether the files exist through which MIG is configured and MIG devices are opened."""
    if not devices.gpus:
        return []  # unknown whether they are needed
    if not any(gpu.mig_enabled for gpu in devices.gpus):
        return Check.CAPABILITY_FILES.ok("no GPU has MIG enabled, so no capability file is needed")
    folder = machine.root / "proc/driver/nvidia/capabilities"
    wanted = [folder / "mig/config", folder / "mig/monitor", *sorted(folder.glob("gpu*/mig/gi*/**/access"))]
    unknown, missing = [], []
    for file in wanted:
        try:
            minor = _MINOR.search(file.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            minor = None
        except OSError:  # mig/config is for root alone: it exists
            continue
        node = machine.root / f"dev/nvidia-caps/nvidia-cap{minor[1]}" if minor else None
        if node is None:
            unknown.append(file)
        elif not node.exists():
            missing.append((file, node))
    if unknown:
        return Check.CAPABILITY_FILES.problem(
            f"MIG is on, but {unknown[0]} is missing or names no device",
            "give the agent the host's /proc/driver/nvidia/capabilities (a privileged container has it)",
        )
    if missing:
        file, node = missing[0]
        return Check.CAPABILITY_FILES.problem(
            f"{len(missing)} device files of MIG are missing, the first of them {node}",
            f"nvidia-modprobe -f {file}, for each; in a container, give it the host's /dev/nvidia-caps",
        )
    return Check.CAPABILITY_FILES.ok(f"all {len(wanted)} capability files have their device files")


def check_host_processes(machine: Machine) -> list[Finding]:
    """Whether the processes of all pods are visible: else a slice could be destroyed under a running one."""
    seen = machine.processes
    try:
        namespace = str((seen.root / "self/ns/pid").readlink())
        names = {seen.name_of(pid) for pid in seen.pids()}
    except OSError as error:
        return Check.HOST_PROCESSES.problem(
            f"the processes of this node cannot be seen: {error.strerror} at {error.filename}",
            "mount /proc in the agent's container",
        )
    if namespace != INITIAL_PID_NAMESPACE and not names & KUBELETS:
        return Check.HOST_PROCESSES.problem(
            "the agent sees only the processes of its own container: it could not tell which pod's processes "
            "are on a device, nor that a tenant's are gone",
            "set hostPID: true in the agent's pod (docker run --pid=host)",
        )
    if not is_seen(seen.root / "1/cgroup"):
        return Check.HOST_PROCESSES.problem(
            "/proc hides other users' processes (hidepid), so tenants' processes are not seen",
            "run the agent as root, or mount /proc without hidepid",
        )
    return _check_pods_are_known(machine, names) or Check.HOST_PROCESSES.ok(
        f"the agent sees the node's processes, {len(names)} different names"
    )


def check_directories(machine: Machine) -> list[Finding]:
    """Whether the agent can write where it must, and no other user can."""
    found = []
    agent = machine.data_dir / "agents" / machine.node
    places = [agent, machine.data_dir / "tickets" / machine.node]
    if machine.mps_control != "off":
        places.append(machine.mps_root)
    for place in places:
        there = next((each for each in (place, *place.parents) if is_seen(each)), place)
        if not there.is_dir():
            what = f"{there} is no directory, and {place} is to be made in it"
            found += Check.DIRECTORIES.problem(what, f"remove {there}")
        elif not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            inside = "" if there == place else f", and {place} is to be made in it"
            remedy = f"give {there} to that user, or set SLUICE_DATA_DIR to a directory of its own"
            found += Check.DIRECTORIES.problem(f"{there} cannot be written by user {machine.uid}{inside}", remedy)
        elif there.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:  # a sticky one, as /tmp, keeps ours
            what = f"all users may write in {there}, so a tenant could replace the agent's files"
            found += Check.DIRECTORIES.problem(what, f"chmod o-w {there}")
    above = [place for place in reversed((machine.mps_root, *machine.mps_root.parents)) if is_seen(place)]
    closed = [place for place in above if place.is_dir() and not place.stat().st_mode & stat.S_IXOTH]
    if machine.mps_control != "off" and closed:
        found += Check.DIRECTORIES.warning(
            f"others may not pass through {closed[0]}: the MPS server of a tenant who is not root could not reach "
            "its own directory, so only root's shares could be made",
            f"chmod o+x {closed[0]}, or set SLUICE_NODE_AGENT_MPS_DIR to a place that they can reach",
        )
    return found or Check.DIRECTORIES.ok(f"{machine.data_dir} and what is below it can be written")


def check_socket_paths(machine: Machine) -> list[Finding]:
    found = []
    longest = len(os.fsencode(machine.mps_root)) + 1 + HOME_ID_BYTES + 1 + len(LONGEST_SOCKET)
    if machine.mps_control != "off" and longest > SOCKET_PATH_BYTES_MAX:
        over = longest - SOCKET_PATH_BYTES_MAX
        found += Check.SOCKET_PATHS.problem(
            f"sockets below {machine.mps_root} would have paths of up to {longest} bytes, and the kernel takes "
            f"{SOCKET_PATH_BYTES_MAX}: no MPS daemon could start",
            f"set SLUICE_NODE_AGENT_MPS_DIR to a directory whose path is at least {over} bytes shorter",
        )
    control = len(os.fsencode(machine.data_dir / "agents" / machine.node / "control.sock"))
    if control > SOCKET_PATH_BYTES_MAX:
        found += Check.SOCKET_PATHS.warning(
            f"the agent's control socket would have a path of {control} bytes, and the kernel takes "
            f"{SOCKET_PATH_BYTES_MAX}: `show` could not reach the agent, and nothing could be released",
            f"set SLUICE_DATA_DIR to a path that is at least {control - SOCKET_PATH_BYTES_MAX} bytes shorter",
        )
    return found or Check.SOCKET_PATHS.ok("the paths of all sockets are short enough")


def is_seen(path: Path) -> bool:
    """Whether it visibly exists; False without access, where `exists` raises."""
    try:
        return path.exists()
    except PermissionError:
        return False


def _check_pods_are_known(machine: Machine, names: set[str]) -> list[Finding]:
    """Whether pods are recognised by their cgroups: if a kubelet names them differently, every pod looks gone."""
    seen = machine.processes
    if machine.pods_dir is None or not names & KUBELETS or any(seen.pod_of(pid) for pid in seen.pids()):
        return []
    return Check.HOST_PROCESSES.warning(
        "a kubelet runs here, but no process is in the cgroup of a pod: unless the node has no pods at all, the "
        "agent cannot tell whether processes of a pod are left when it destroys a slice",
        "let the container runtime put pods into the cgroups that the kubelet names (.../kubepods/.../pod<uid>, or "
        "kubepods-...-pod<uid>.slice), which is the default of both",
    )


def _mig_config(machine: Machine) -> Path:
    return machine.root / "proc/driver/nvidia/capabilities/mig/config"
