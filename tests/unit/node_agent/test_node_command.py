"""`check`, `show` and `release-quarantine` where no agent runs: what a person reads, and the exit codes of scripts."""

import contextlib
import errno
import json
import os
import socket
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from factories.agent_driver import short_folder
from factories.journals import append
from factories.scheduling.allocator import gpu_report
from factories.words import booking_of

from sluice.contracts import messages as msg
from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice.contracts.ids import GpuUuid, HomeId, NodeName, RunId
from sluice_node_agent.core.journal_records import DeviceRecord, NodeRecord, SharedDeviceRecord, SliceRecord, WarmRecord
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.commands.machine import RefusedError, ask_snapshot, run_program
from sluice_node_agent.shell.commands.node_command import run_command
from sluice_node_agent.shell.commands.text import aligned, shown_text
from sluice_node_agent.shell.commands.view import shown_by_agent, shown_by_journal
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.simulated.hardware_file import HardwareFile

NODE = NodeName("n1.example")
GPU = GpuUuid("GPU-0a")
FLEET = """
[[node]]
name = "n1.example"
gpus = [{ model = "a100-40gb", count = 2 }]
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """None of the settings of the developer's environment."""
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def data(monkeypatch):
    """A data folder of a fleet of one simulated node; its path is as short as that of a real one."""
    with short_folder() as folder:
        folder.chmod(0o755)
        (folder / "fleet.toml").write_text(FLEET)
        monkeypatch.setenv("SLUICE_NODE_AGENT_FLEET_FILE", str(folder / "fleet.toml"))
        monkeypatch.setenv("SLUICE_DATA_DIR", str(folder / "data"))
        yield folder / "data"


def booking(name: str, *, share: msg.Share | None = None, start: int = 0) -> msg.Booking:
    device = msg.DeviceGrant(container="main", gpu=GPU, profile="1g.5gb", start=start, size=1, share=share)
    return booking_of(f"{name}_a_1", NODE, (device,), request=name, owner=f"uid-{name}", namespace="team")


def made(gi_id: int) -> DeviceRecord:
    return DeviceRecord(step="made", gi_id=gi_id, uuid=f"MIG-{gi_id}")


SHARED = booking("shared", share=msg.Share(mode="mps", uid=1000, memory_mib=2000), start=1)
PLACE = {"gpu": GPU, "profile": "1g.5gb", "size": 1, "boot_id": "boot-1"}
TENANT = {"namespace": "team", "uid": 1000}
RECORDS = (
    NodeRecord(node=NODE, boot_id="boot-1", generation_upto=1000),
    SliceRecord(booking=booking("alone"), revision=1, phase="ready", devices=(made(7),)),
    SliceRecord(booking=SHARED, revision=1, phase="unmaking", devices=(made(8),)),
    SharedDeviceRecord(
        home=HomeId("run-h1"), start=1, phase="ready", device=made(8), daemon=True, pid=4711, **PLACE, **TENANT
    ),
    WarmRecord(gi_id=9, start=2, **PLACE),
)


def report(index: int = 3, **changes) -> msg.GpuReport:
    instances = tuple(
        msg.InstanceReport(gi_id=gi_id, profile="1g.5gb", start=gi_id - 7, size=1, uuid=uuid)
        for gi_id, uuid in ((10, "MIG-10"), (9, ""), (8, "MIG-8"), (7, "MIG-7"))
    )
    return gpu_report(NODE, index, **{"uuid": GPU, "instances": instances} | changes)


def test_check_says_what_it_finds_to_who_may_not_look_into_the_data_folder(data, monkeypatch, capsys):
    """Another user than the agent's gets a traceback, and learns nothing of driver, GPUs and rights."""
    exists = Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    monkeypatch.delenv("SLUICE_NODE_AGENT_FLEET_FILE")
    monkeypatch.setattr(HardwareFile, "exists", property(exists))
    run_command(["check", "--node", NODE])
    assert "host-processes" in capsys.readouterr().out


def test_a_reboot_that_no_agent_has_seen_yet_is_said():
    shown = shown_by_journal(NODE, RECORDS, (report(instances=()),), boot_id="boot-2", driver_version="580")
    assert "rebooted" in shown.warnings[0]
    assert [each.state for each in shown.slices] == ["ready", "unmaking"]


def test_the_page_names_everything_a_person_needs():
    """One look: devices, their tenants, homes with their daemons, slices with their pods."""
    text = shown_text(shown_by_journal(NODE, RECORDS, (report(),), boot_id="boot-1", driver_version="580"))
    assert text.splitlines() == [
        "node n1.example, from its journal and devices: no agent answers",
        "boot boot-1  driver 580",
        "",
        "GPU  MODEL                  MEMORY     MIG  STATE  UUID",
        "3    NVIDIA A100-SXM4-40GB  40960 MiB  on   ok     GPU-0a",
        "",
        "GPU  PROFILE  AT   MIG DEVICE           OF",
        "3    1g.5gb   0:1  MIG-7                alone_a_1",
        "3    1g.5gb   1:1  MIG-8                home run-h1",
        "3    1g.5gb   2:1  no compute instance  kept warm",
        "3    1g.5gb   3:1  MIG-10               foreign",
        "",
        "GPU  PROFILE  AT  HOME    FOR            DAEMON  PID   CLIENTS",
        "3    1g.5gb   1   run-h1  team uid 1000  ready   4711  -",
        "",
        "ALLOCATION  REQUEST  POD          STATE     DEVICES",
        "alone_a_1   alone    team/alone   ready     GPU 3 1g.5gb@0",
        "shared_a_1  shared   team/shared  unmaking  GPU 3 1g.5gb@1 mps 2000 MiB",
    ]


def test_what_an_agent_says_is_shown_with_the_homes_of_its_journal():
    """Quarantine, faults and client counts are known to the agent alone; the names of homes to the journal."""
    daemon = msg.MpsDaemonReport(
        profile="1g.5gb", start=1, size=1, device="MIG-8", namespace="team", uid=1000, state="fault", pid=4711,
        clients=3, message="its server does not serve",
    )  # fmt: skip
    gpus = (
        report(daemons=(daemon,), quarantined=(msg.PlacementReport(start=4, size=4),)),
        report(4, uuid=GpuUuid("GPU-0b"), instances=(), healthy=False, lost=True, health_message="Xid 79"),
    )
    alone = msg.SliceReport(booking=booking("alone"), revision=1, state="quarantined", revoked=True)
    snapshot = msg.NodeSnapshot(
        node=NODE, boot_id="boot-1", agent_run=RunId("run"), generation=12, driver_version="580", gpus=gpus,
        slices=(alone,), modes=("exclusive", "mps"), toolkit_version="1.20.0", warnings=("the journal was lost",),
    )  # fmt: skip
    lines = shown_text(shown_by_agent(snapshot, RECORDS)).splitlines()
    assert lines[0] == "node n1.example, from its agent (run run, generation 12)"
    assert lines[1] == "boot boot-1  driver 580  toolkit 1.20.0  modes exclusive, mps"
    assert "3    1g.5gb   1   run-h1  team uid 1000  fault   4711  3" in lines
    assert "alone_a_1   alone    team/alone  quarantined  GPU 3 1g.5gb@0" in lines
    assert lines[-4:] == [
        "! GPU 4 is lost: Xid 79",
        "! GPU 3 has 4 memory slices from 4 in quarantine",
        "! home run-h1: its server does not serve",
        "! the journal was lost",
    ]


def test_columns_stay_below_each_other():
    assert aligned([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc  d"]


def test_a_node_is_shown_from_its_journal_without_touching_it(data, capsys):
    """It is called in an emergency: it locks out no agent, and changes nothing of what it shows."""
    _ran_once(data)
    directory = paths.agent_directory(data, NODE)
    journal = Journal(directory, NODE)
    append(journal, list(RECORDS))
    before = {path: path.read_bytes() for path in directory.iterdir()}
    assert run_command(["show", "--json"]) == 0  # the lock is held meanwhile
    journal.close()
    shown = json.loads(capsys.readouterr().out)
    assert (shown["node"], shown["source"], len(shown["gpus"])) == (NODE, "journal", 2)
    assert [each["allocation"] for each in shown["slices"]] == ["alone_a_1", "shared_a_1"]
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def _ran_once(data: Path):
    """An agent of the node has run with this folder: there is hardware."""
    HardwareFile(paths.hardware_path(data, NODE)).make(parse_fleet(FLEET, origin="test").nodes[0])


def test_an_agent_that_cannot_be_asked_is_not_said_to_be_away(data, monkeypatch, capsys):
    """Its path leaves no room for a socket; it may run, and know more than its journal."""
    long = data.parent / ("x" * 80)
    _ran_once(long)
    assert run_command(["show", "--data", str(long)]) == 1
    assert "longer than 107 bytes" in capsys.readouterr().out


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(data, capsys):
    directory = paths.agent_directory(data, NODE)
    directory.mkdir(parents=True)
    (directory / "journal").write_text("00000000 {}\n")
    assert run_command(["show"]) == 1
    out = capsys.readouterr().out
    assert "NVIDIA A100" in out
    assert "! " in out
    assert "checksum" in out


def test_a_simulated_node_that_never_ran_can_be_checked(data, capsys):
    """One looks before one starts; the check makes nothing."""
    assert run_command(["check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "node n1.example: nothing must be fixed"
    assert not data.exists()


def test_a_wrong_setting_is_a_finding(data, monkeypatch, capsys):
    """The sentence of the settings comes with what to do, and a script sees the failure."""
    monkeypatch.setenv("SLUICE_NODE_AGENT_TICK_S", "0")
    assert run_command(["check", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "problem"
    assert [finding["check"] for finding in told["findings"]] == ["settings"]
    assert "tick_s" in told["findings"][0]["what"]


@pytest.mark.parametrize(
    ("setting", "file", "said"),
    [("FLEET_FILE", "/none.toml", "/none.toml cannot be read"), ("MPS_CONTROL", "/no/mps", "/no/mps does not exist")],
)
def test_a_file_that_is_not_there_is_a_finding(data, monkeypatch, capsys, setting, file, said):
    """A person who checks a node before its first start gets a traceback, or reads that all is well."""
    monkeypatch.setenv(f"SLUICE_NODE_AGENT_{setting}", file)
    assert run_command(["check"]) == 1
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("command", [["check"], ["show"], ["release-quarantine", "a"]])
def test_several_nodes_must_be_told_apart(data, command, capsys):
    (data.parent / "fleet.toml").write_text(FLEET + FLEET.replace("n1", "n2"))
    assert run_command(command) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "sluice-node-agent: there are 2 nodes; say which with --node: n1.example, n2.example\n"
    if command == ["check"]:
        assert run_command([*command, "--node", "n2.example"]) == 0


def test_a_node_that_is_not_there_is_told(data, monkeypatch, capsys):
    """A mistyped name, or none, would show another node, or an empty one."""
    assert run_command(["check", "--node", "n3"]) == 2
    assert "has no node 'n3'" in capsys.readouterr().err
    monkeypatch.delenv("SLUICE_NODE_AGENT_FLEET_FILE")
    assert run_command(["show"]) == 2
    assert "SLUICE_NODE_AGENT_NODES" in capsys.readouterr().err


def test_the_only_node_of_a_data_folder_needs_no_name(data, monkeypatch, capsys):
    _ran_once(data)
    Journal(paths.agent_directory(data, NODE), NODE).close()
    for name in ("SLUICE_NODE_AGENT_FLEET_FILE", "SLUICE_DATA_DIR"):
        monkeypatch.delenv(name)
    assert run_command(["show", "--data", str(data)]) == 0
    assert capsys.readouterr().out.startswith("node n1.example,")


@pytest.mark.parametrize("command", [["chek"], ["release-quarantine"], ["show", "--nod"]])
def test_a_wrong_command_exits_with_2(command, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(command)
    assert ended.value.code == 2
    assert "usage: sluice-node-agent" in capsys.readouterr().err


def test_without_an_agent_nothing_can_be_released(data, capsys):
    assert run_command(["release-quarantine", "a_b_1"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("sluice-node-agent: no agent of node n1.example runs here: no process answers at ")
    assert said.out == ""


def test_an_agent_that_hangs_is_told_within_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("sluice_node_agent.shell.commands.machine.ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "s"))
        mute.listen(4)
        with pytest.raises(RefusedError, match=r"did not answer within 0\.2 s"):
            ask_snapshot(tmp_path / "s", NODE)


def test_something_else_on_the_socket_is_told(tmp_path):
    ready = threading.Event()

    def answer(listening: socket.socket) -> None:
        ready.set()
        with contextlib.suppress(OSError):  # the test has ended it
            while True:
                with listening.accept()[0] as caller, contextlib.suppress(OSError):
                    caller.sendall(b"HTTP/1.1 400 no\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "s"))
        other.listen(4)
        speaking = threading.Thread(target=answer, args=(other,))
        speaking.start()
        ready.wait(5)
        with pytest.raises(RefusedError):
            ask_snapshot(tmp_path / "s", NODE)
        other.shutdown(socket.SHUT_RDWR)
        speaking.join(6)
    assert not speaking.is_alive()


def test_a_program_that_hangs_is_ended(monkeypatch):
    """`check` must come to an end on a sick node, where tools hang."""
    monkeypatch.setattr("sluice_node_agent.shell.commands.machine.PROGRAM_S", 0.2)
    ran = run_program(("/bin/sleep", "30"))
    assert (ran.code, ran.said) == (None, "it did not end within 0.2 s")


def test_a_programs_words_are_taken_from_both_streams(tmp_path):
    """The reason why a tool failed would not be read; one that is not there has none, and no code."""
    ran = run_program(("/bin/sh", "-c", "echo one; echo two >&2; cat; exit 3"))
    assert (ran.code, sorted(ran.said.split())) == (3, ["one", "two"])
    assert run_program((str(tmp_path / "none"),)).code is None
