"""All preflight checks, and those of MPS, the toolkit, other GPU managers, agents, the journal (`findings`)."""

import re
from pathlib import Path

from sluice_node_agent.core.journal_records import SharedDeviceRecord, SliceRecord
from sluice_node_agent.preflight import gpus, permissions
from sluice_node_agent.preflight.findings import Check, DriverReport, Finding, Machine, version_of
from sluice_node_agent.preflight.tickets import check_hand_over, check_tickets

TOOLKIT_FLOORS: tuple[tuple[str, str, str], ...] = (
    ("1.16.2", "CVE-2024-0132", "problem"),
    ("1.17.8", "CVE-2025-23266", "problem"),
    ("1.19.1", "CVE-2026-24260", "warning"),
)
"""The first version with the fix of a container escape, and the level of a node without it (CVEProject/cvelistV5). The
third is a warning: its version (NVIDIA bulletin 5850) is from a second-hand source."""
MANAGERS: dict[str, str] = {
    "nvidia-mig-manager": "it creates and destroys GPU instances by node label",
    "nvidia-mig-parted": "it creates and destroys GPU instances",
    "nvidia-device-plugin": "it hands out every GPU and MIG device that it finds, ours too",
    "gpu-kubelet-plugin": "the DRA driver hands out every GPU and MIG device that it finds, ours too",
    "mps-control-daemon": "the device plugin's daemon starts MPS on GPUs that we may hand out",
    "vGPUmonitor": "HAMi hands out the same GPUs",
}
"""Programs that hand out GPUs, by the names in `cmd/` of their repositories, and what they would do."""
MONITORS = ("nv-hostengine", "dcgm-exporter")
"""Programs that keep device files open while they run."""
MPS_CONTROL = "nvidia-cuda-mps-control"
AGENT_WORDS = frozenset({"check", "show", "release-quarantine", "hardware"})
"""With one of these as its first argument, the agent's program is a command, not an agent."""
IN_IMAGE = "/opt/sluice/bin/run"
"""The path at which our images start any program (deploy/docker/Dockerfile)."""
_VERSION = re.compile(r"\b(\d+\.\d+\.\d+)")


def check_mps(machine: Machine, devices: DriverReport) -> list[Finding]:
    """Whether MPS is available: the modes mps and fractional need it."""
    if machine.mps_control == "off":
        return Check.MPS.ok("MPS is switched off: this node takes no pods in the modes mps and fractional")
    if machine.mps_asked:
        return Check.MPS.problem(
            f"the MPS control program {machine.mps_asked} does not exist, or cannot be run",
            "set SLUICE_NODE_AGENT_MPS_CONTROL to its path, or unset it to search for it",
        )
    if not machine.mps_control:
        return Check.MPS.warning(
            f"{MPS_CONTROL} is not found: this node takes no pods in the modes mps and fractional",
            "install it (it comes with the driver; in packages often as nvidia-compute-utils), or set "
            "SLUICE_NODE_AGENT_MPS_CONTROL=off if this is intended",
        )
    if machine.simulated:
        return Check.MPS.ok("MPS: the stand-in for simulated nodes is used")
    ran = machine.run((machine.mps_control, "-v"))
    if ran.code is None or ran.code in {126, 127} or ran.code < 0:
        said = ran.said.strip().partition("\n")[0]
        return Check.MPS.problem(
            f"{machine.mps_control} does not run: {said or 'it ended without output'}",
            "install the version of the loaded driver",
        )
    if devices.driver_version and version_of(devices.driver_version) < gpus.MPS_FLOOR:
        return Check.MPS.problem(
            f"driver {devices.driver_version} cannot limit the memory of MPS clients",
            f"install a driver of at least R{gpus.MPS_FLOOR[0]}, or set SLUICE_NODE_AGENT_MPS_CONTROL=off",
        )
    version = _VERSION.search(ran.said)
    return Check.MPS.ok(f"MPS: {machine.mps_control} runs" + (f", version {version[1]}" if version else ""))


def check_toolkit(machine: Machine) -> list[Finding]:
    program = machine.find_program("nvidia-ctk")
    if not program:
        return Check.TOOLKIT.warning(
            "nvidia-ctk is not found, so the version of the NVIDIA container toolkit is not known",
            f"see on the host that `nvidia-ctk --version` says at least {TOOLKIT_FLOORS[-1][0]}; "
            "in a container, mount the host's toolkit directory",
        )
    ran = machine.run((program, "--version"))
    found = _VERSION.search(ran.said) if ran.code == 0 else None
    if found is None:
        return Check.TOOLKIT.warning(
            f"{program} --version does not say which version of the NVIDIA container toolkit this is",
            f"see on the host that it is at least {TOOLKIT_FLOORS[-1][0]}",
        )
    missing = [floor for floor in TOOLKIT_FLOORS if version_of(found[1]) < version_of(floor[0])]
    if not missing:
        return Check.TOOLKIT.ok(f"NVIDIA container toolkit {found[1]}: no known container escape")
    cves = " and ".join(cve for _, cve, _ in missing)
    say = Check.TOOLKIT.problem if any(level == "problem" for _, _, level in missing) else Check.TOOLKIT.warning
    return say(
        f"NVIDIA container toolkit {found[1]} lacks the fix of {cves}: a container image can take over the node",
        f"install NVIDIA container toolkit {missing[-1][0]} or later",
    )


def check_others(machine: Machine) -> list[Finding]:
    """Other users of the GPUs: managers, monitoring, MPS daemons and agents that are not ours."""
    managers: dict[str, list[int]] = {}
    monitors: dict[str, list[int]] = {}
    daemons, agents = [], []
    for pid in sorted(machine.processes.pids()):
        command = machine.processes.command_of(pid)
        name = Path(command[0]).name if command else ""
        if name in MANAGERS:
            managers.setdefault(name, []).append(pid)
        elif name in MONITORS:
            monitors.setdefault(name, []).append(pid)
        elif name == MPS_CONTROL and not _is_our_daemon(machine, pid):
            daemons.append(pid)
        elif _is_agent(machine, pid, command):
            agents.append(pid)
    foreign = Check.FOREIGN_MPS.ok("no foreign MPS daemon runs here")
    if daemons:
        foreign = Check.FOREIGN_MPS.warning(
            f"an MPS daemon runs here that is not ours (pid {_listed(daemons)}): it may hold GPUs that we hand out",
            "echo quit | nvidia-cuda-mps-control, with its CUDA_MPS_PIPE_DIRECTORY",
        )
    return [*_told_of(managers, monitors), *foreign, *_agents(machine, agents)]


def check_journal(machine: Machine) -> list[Finding]:
    journal = machine.journal
    if journal.problem:
        return Check.JOURNAL.problem(
            journal.problem,
            "give this node a data directory of its own (SLUICE_DATA_DIR); a damaged journal is set aside at the "
            "next start, and rebuilt from the devices and the ledger",
        )
    if not journal.exists:
        return Check.JOURNAL.ok("there is no journal yet: it is created at the first start")
    slices = sum(isinstance(record, SliceRecord) for record in journal.records)
    homes = sum(isinstance(record, SharedDeviceRecord) for record in journal.records)
    return Check.JOURNAL.ok(f"the journal can be read: {slices} slices, {homes} homes of shares")


def _told_of(managers: dict[str, list[int]], monitors: dict[str, list[int]]) -> list[Finding]:
    found = [] if managers else Check.MANAGERS.ok("no other GPU manager runs here")
    for name, pids in managers.items():
        found += Check.MANAGERS.problem(
            f"{name} runs here (pid {_listed(pids)}): {MANAGERS[name]}",
            "keep it off this node (by the node selector or the labels of its DaemonSet)",
        )
    for name, pids in monitors.items():
        found += Check.MONITORS.warning(
            f"{name} runs here (pid {_listed(pids)}) and holds GPUs open: a slice may be in use by it when it is "
            "taken away, and MIG mode cannot be changed",
            "nothing, unless slices are quarantined with it as their holder; then restart it",
        )
    if not monitors:
        found += Check.MONITORS.ok("no monitoring holds GPUs open")
    return found


def _agents(machine: Machine, pids: list[int]) -> list[Finding]:
    if not pids:
        return Check.AGENT.ok("no agent runs on this node now")
    if len(pids) == 1 or machine.simulated:
        return Check.AGENT.ok(f"an agent runs on this node (pid {_listed(pids)})")
    return Check.AGENT.problem(
        f"{len(pids)} agents run on this node (pids {_listed(pids)}): each would take the other's instances for "
        "foreign ones",
        "stop all but one; they only notice each other where they have the same data directory",
    )


def _is_our_daemon(machine: Machine, pid: int) -> bool:
    pipe = machine.processes.environment_of(pid).get("CUDA_MPS_PIPE_DIRECTORY", "")
    return bool(pipe) and Path(pipe).is_relative_to(machine.mps_root)


def _is_agent(machine: Machine, pid: int, command: tuple[str, ...]) -> bool:
    """`sluice-node-agent` with GPUs: run directly, as an interpreter's script or module, or in its image."""
    for number, word in enumerate(command[:4]):
        named = Path(word).name == "sluice-node-agent" or (word == "sluice_node_agent" and command[number - 1] == "-m")
        if named or (word == IN_IMAGE and number < 2):  # not a docker-init that waits for it
            if len(command) > number + 1 and command[number + 1] in AGENT_WORDS:
                return False
            told = machine.processes.environment_of(pid)
            # An agent of simulated nodes touches no GPU of this machine, and neither does a separate CSI driver.
            has_gpus = "SLUICE_NODE_AGENT_FLEET_FILE" not in told and told.get("SLUICE_NODE_AGENT_ROLE") != "csi"
            return (named or "SLUICE_NODE_AGENT_NODES" in told) and has_gpus
    return False


def _listed(pids: list[int]) -> str:
    return ", ".join(str(pid) for pid in pids[:5]) + (", ..." if len(pids) > 5 else "")


def check_machine(machine: Machine) -> list[Finding]:
    """Run all checks. A simulated node skips those of hardware."""
    found = [] if machine.simulated else gpus.check_driver(machine)
    opened, devices = gpus.look_at_gpus(machine)
    found += opened
    if all(finding.check is not Check.LIBRARY or finding.level == "ok" for finding in opened):
        for check in (gpus.check_gpus, gpus.check_instances, gpus.check_compute_mode):
            found += check(machine, devices)
    if not machine.simulated:
        found += permissions.check_rights(machine, devices)
        found += permissions.check_capability_files(machine, devices)
        seen = permissions.check_host_processes(machine)
        found += seen
        if all(finding.level == "ok" for finding in seen):
            found += check_others(machine)
        found += check_toolkit(machine)
    found += check_mps(machine, devices)
    of_machine = (permissions.check_directories, check_tickets, check_hand_over, permissions.check_socket_paths)
    for look in (*of_machine, check_journal):
        found += look(machine)
    return found
