"""What `check` says of a node's environment, tickets and programs."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories.gpus.machine import (
    DRIVER,
    PROC_VERSION,
    Gpus,
    found,
    only,
    process,
    programs,
    version_file,
)

from sluice_node_agent.preflight.environment import check_machine
from sluice_node_agent.preflight.findings import Check, Ran, ReadJournal, worst


def test_no_mps_by_choice_is_well(well):
    assert worst(check_machine(replace(well, mps_control="off"))) == "ok"


def test_an_mps_program_that_was_asked_for_must_be_there(well):
    told = only(replace(well, mps_control="", mps_asked="/opt/mps"), Check.MPS, "problem")
    assert "/opt/mps" in told.what


@pytest.mark.parametrize(
    "ran", [Ran(127, "error while loading shared libraries: libcuda.so.1"), Ran(-11, ""), Ran(None, "it did not end")]
)
def test_an_mps_program_that_does_not_run_is_told(well, ran):
    """It is there, and of another driver: each start of a daemon would fail."""
    toolkit = "NVIDIA Container Toolkit CLI version 1.20.0"
    machine = replace(well, run=programs(nvidia_cuda_mps_control=ran, nvidia_ctk=toolkit))
    assert "does not run" in only(machine, Check.MPS, "problem").what


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
    (told,) = found(replace(well, run=programs(nvidia_cuda_mps_control="", nvidia_ctk=said)), Check.TOOLKIT)
    assert told.level == level
    assert [cve for cve in ("CVE-2024-0132", "CVE-2025-23266", "CVE-2026-24260") if cve in told.what] == cves
    assert ("1.19.1" in told.remedy) is bool(cves)


@pytest.mark.parametrize("said", ["what?", Ran(1, "NVIDIA Container Toolkit CLI version 1.20.0"), Ran(None, "")])
def test_a_toolkit_that_does_not_say_its_version_is_a_warning(well, said):
    only(replace(well, run=programs(nvidia_cuda_mps_control="", nvidia_ctk=said)), Check.TOOLKIT, "warning")


def test_no_toolkit_is_a_warning(well):
    only(replace(well, find_program=lambda _: ""), Check.TOOLKIT, "warning")


@pytest.mark.parametrize(
    "name", ["nvidia-mig-manager", "nvidia-device-plugin", "gpu-kubelet-plugin", "mps-control-daemon", "vGPUmonitor"]
)
def test_others_who_hand_out_gpus_are_told(well, name):
    process(well.processes.root, 5000, f"/usr/bin/{name}", "--x")
    told = only(well, Check.MANAGERS, "problem")
    assert f"{name} runs here (pid 5000)" in told.what


def test_monitoring_is_a_warning(well):
    process(well.processes.root, 5000, "/usr/bin/nv-hostengine", "-n")
    assert "pid 5000" in only(well, Check.MONITORS, "warning").what


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


def test_a_journal_that_cannot_be_used_is_told(well):
    machine = replace(well, journal=ReadJournal(exists=True, problem="it is the journal of node n2, not of n1"))
    assert "of node n2" in only(machine, Check.JOURNAL, "problem").what


def test_a_kubelet_that_cannot_hand_devices_over_is_found_before_the_start(well, tmp_path):
    """The allocator would place no pod with a claim there, and give no reason."""
    said = "NVIDIA container toolkit 1.18.2 cannot describe single devices; install 1.19.0 or later"
    machine = replace(well, hand_over=True, cdi_dir=tmp_path / "cdi", why_no_cdi=lambda: said)
    (finding,) = [each for each in check_machine(machine) if each.check is Check.HAND_OVER]
    assert (finding.level, finding.what) == (
        "warning",
        f"the kubelet cannot hand devices over by ResourceClaim: {said}",
    )
    assert "SLUICE_NODE_AGENT_HAND_OVER=false" in finding.remedy
    (finding,) = [each for each in check_machine(replace(machine, why_no_cdi=str)) if each.check is Check.HAND_OVER]
    assert finding.level == "ok"


ROOT = Path(__file__).resolve().parents[3]


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
    rows = [
        line.split("|")[1].strip().strip("`")
        for line in (ROOT / "docs/node.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert [row for row in rows if row in set(Check)] == list(Check)
