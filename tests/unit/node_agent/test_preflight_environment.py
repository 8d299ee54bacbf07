"""What `check` says of a node's environment, tickets and programs."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories.gpus.machine import DRIVER, PROC_VERSION, TOOLKIT, Gpus, found, only, process, programs, version_file

from sluice_node_agent.preflight.environment import check_machine
from sluice_node_agent.preflight.findings import Check, Ran, ReadJournal, worst


def test_no_mps_by_choice_is_well(well):
    assert worst(check_machine(replace(well, mps_control="off"))) == "ok"


def mps_says(ran):
    return {"run": programs(nvidia_cuda_mps_control=ran, nvidia_ctk=TOOLKIT)}


def toolkit_says(said):
    return {"run": programs(nvidia_cuda_mps_control="", nvidia_ctk=said)}


OF_N2 = ReadJournal(exists=True, problem="it is the journal of node n2, not of n1")
WRONG = {
    "no program for MPS": ({"mps_control": "", "mps_asked": "/opt/mps"}, Check.MPS, "problem", "/opt/mps"),
    "MPS of another driver": (mps_says(Ran(127, "no libcuda.so.1")), Check.MPS, "problem", "does not run"),
    "MPS that is killed": (mps_says(Ran(-11, "")), Check.MPS, "problem", "does not run"),
    "MPS that hangs": (mps_says(Ran(None, "it did not end")), Check.MPS, "problem", "does not run"),
    "no toolkit": ({"find_program": lambda _: ""}, Check.TOOLKIT, "warning", ""),
    "a toolkit without version": (toolkit_says("what?"), Check.TOOLKIT, "warning", ""),
    "a toolkit that fails": (toolkit_says(Ran(1, TOOLKIT)), Check.TOOLKIT, "warning", ""),
    "a toolkit that hangs": (toolkit_says(Ran(None, "")), Check.TOOLKIT, "warning", ""),
    "another node's journal": ({"journal": OF_N2}, Check.JOURNAL, "problem", "of node n2"),
}


@pytest.mark.parametrize(("changes", "check", "level", "what"), WRONG.values(), ids=WRONG)
def test_what_is_not_as_an_agent_needs_it_is_told(well, changes, check, level, what):
    """Each start of a daemon would fail, a container would get no devices, or the agent not start: nothing says why."""
    assert what in only(replace(well, **changes), check, level).what


def test_a_driver_without_memory_limits_for_mps_is_told(well, monkeypatch):
    monkeypatch.setattr(Gpus, "version", "470.82.01")
    version_file(well).write_text(PROC_VERSION.replace(DRIVER, "470.82.01"))
    assert "cannot limit the memory" in found(well, Check.MPS)[0].what


@pytest.mark.parametrize(
    ("version", "level", "cves"),
    [
        ("1.13.5", "problem", ["CVE-2024-0132", "CVE-2025-23266", "CVE-2026-24260"]),
        ("1.16.1", "problem", ["CVE-2024-0132", "CVE-2025-23266", "CVE-2026-24260"]),
        ("1.16.2", "problem", ["CVE-2025-23266", "CVE-2026-24260"]),
        ("1.17.7", "problem", ["CVE-2025-23266", "CVE-2026-24260"]),
        ("1.17.8", "warning", ["CVE-2026-24260"]),
        ("1.19.0", "warning", ["CVE-2026-24260"]),
        ("1.19.1", "ok", []),
        ("1.20.0", "ok", []),
    ],
)
def test_a_toolkit_with_a_known_way_out_is_told(well, version, level, cves):
    """On a shared node one image could take over all tenants."""
    said = f"NVIDIA Container Toolkit CLI version {version}\ncommit: 62bd015475656ef795cb0d59cc4030a6bd4a9526\n"
    (told,) = found(replace(well, **toolkit_says(said)), Check.TOOLKIT)
    assert told.level == level
    assert [cve for cve in ("CVE-2024-0132", "CVE-2025-23266", "CVE-2026-24260") if cve in told.what] == cves
    assert ("1.19.1" in told.remedy) is bool(cves)


MANAGERS = ("nvidia-mig-manager", "nvidia-device-plugin", "gpu-kubelet-plugin", "mps-control-daemon", "vGPUmonitor")


@pytest.mark.parametrize("name", [*MANAGERS, "nv-hostengine"])
def test_others_who_hand_out_gpus_or_watch_them_are_told(well, name):
    """Two would make and destroy instances of one GPU; a monitor keeps devices in use."""
    process(well.processes.root, 5000, f"/usr/bin/{name}", "-n")
    check, level = (Check.MANAGERS, "problem") if name in MANAGERS else (Check.MONITORS, "warning")
    assert f"{name} runs here (pid 5000)" in only(well, check, level).what


def test_an_mps_daemon_that_is_not_ours_is_told(well):
    process(well.processes.root, 5000, "nvidia-cuda-mps-control", "-d")
    ours = f"HOME=/\0CUDA_MPS_PIPE_DIRECTORY={well.mps_root}/h1/pipe\0"
    process(well.processes.root, 5001, "nvidia-cuda-mps-control", "-d", environ=ours)
    assert "(pid 5000)" in only(well, Check.FOREIGN_MPS, "warning").what


def test_two_agents_on_one_node_are_told(well):
    """With two data directories they do not notice each other."""
    process(well.processes.root, 5000, "/usr/bin/python3", "-m", "sluice_node_agent")
    process(well.processes.root, 5002, "/usr/bin/python3", "/usr/bin/sluice-node-agent", "check")
    process(well.processes.root, 5003, "vim", "sluice_node_agent")
    fleet = "SLUICE_NODE_AGENT_FLEET_FILE=fleet.toml\0"
    process(well.processes.root, 5004, "/usr/bin/python3", "-m", "sluice_node_agent", environ=fleet)
    assert "pid 5000)" in found(well, Check.AGENT)[0].what
    assert worst(check_machine(well)) == "ok"
    process(well.processes.root, 5001, "/usr/bin/python3", "/usr/bin/sluice-node-agent")
    assert "2 agents run on this node (pids 5000, 5001)" in only(well, Check.AGENT, "problem").what


def test_the_agent_and_the_driver_of_volumes_in_their_containers_are_one_agent(well):
    """On a node as we deploy it `check` says that no agent runs, or that one of its two containers must be stopped."""
    started = "/opt/sluice/bin/python", "/opt/sluice/bin/run"
    of_node = "SLUICE_NODE_AGENT_NODES=n1\0"
    process(well.processes.root, 5000, *started, environ=f"{of_node}SLUICE_NODE_AGENT_ROLE=csi\0")
    process(well.processes.root, 5001, *started, environ=f"{of_node}SLUICE_NODE_AGENT_ROLE=agent\0")
    process(well.processes.root, 5002, *started, environ="SLUICE_NATS_URL=tls://nats:4222\0")  # an allocator's image
    process(well.processes.root, 5003, *started, "check", environ=of_node)
    process(well.processes.root, 4999, "/sbin/docker-init", "--", started[1], environ=of_node)
    assert found(well, Check.AGENT)[0].what == "an agent runs on this node (pid 5001)"
    process(well.processes.root, 5004, "/usr/bin/sluice-node-agent", environ="SLUICE_NODE_AGENT_ROLE=csi\0")
    assert worst(check_machine(well)) == "ok"
    process(well.processes.root, 5005, *started, environ=of_node)
    assert "2 agents run on this node (pids 5001, 5005)" in only(well, Check.AGENT, "problem").what


def test_a_kubelet_that_cannot_hand_devices_over_is_found_before_the_start(well, tmp_path):
    """The allocator would place no pod with a claim there, and give no reason."""
    said = "NVIDIA container toolkit 1.18.2 cannot describe single devices; install 1.19.0 or later"
    machine = replace(well, hand_over=True, cdi_dir=tmp_path / "cdi", why_no_cdi=lambda: said)
    (finding,) = found(machine, Check.HAND_OVER)
    assert finding.level == "warning"
    assert finding.what == f"the kubelet cannot hand devices over by ResourceClaim: {said}"
    assert "SLUICE_NODE_AGENT_HAND_OVER=false" in finding.remedy
    (finding,) = found(replace(machine, why_no_cdi=str), Check.HAND_OVER)
    assert finding.level == "ok"


def test_a_node_that_is_all_well_has_nothing_to_fix(well):
    findings = check_machine(well)
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert {finding.check for finding in findings} == set(Check) - {Check.SETTINGS, Check.DRIVER_FOR_GPU}
    assert not any(finding.remedy for finding in findings)
    assert worst(findings) == "ok"


def test_a_check_changes_nothing(well, hardware):
    def all_files():
        return {path: path.lstat().st_mtime_ns for path in well.data_dir.parent.rglob("*")}

    before = all_files()
    check_machine(well)
    assert all_files() == before


def test_a_simulated_node_is_not_asked_for_a_driver(well):
    machine = replace(well, simulated=True, root=well.root / "nowhere", mps_control="stand-in")
    findings = check_machine(machine)
    assert worst(findings) == "ok"
    assert {finding.check for finding in findings}.isdisjoint({Check.DRIVER, Check.TOOLKIT, Check.CAPABILITY_FILES})


def test_every_check_has_a_row_in_the_documentation():
    """A reader of a finding looks there for what to do."""
    lines = (Path(__file__).resolve().parents[3] / "docs/node.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1].strip().strip("`") for line in lines if line.startswith("| `")]
    assert [row for row in rows if row in set(Check)] == list(Check)
