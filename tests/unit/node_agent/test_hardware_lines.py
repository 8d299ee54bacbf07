"""The file of simulated hardware: whatever happens to who writes it, the next one finds what was there."""

import json
import threading
from pathlib import Path

import pytest

from sluice.contracts.fleet_file.fleet_spec import parse_fleet
from sluice_node_agent.simulated import hardware_lines
from sluice_node_agent.simulated.hardware_file import HardwareFile
from sluice_node_agent.simulated.hardware_lines import ProcessEntries


@pytest.fixture
def path(tmp_path):
    made = str(tmp_path / "n1.json")
    hardware_lines.begin(made, b"first")
    hardware_lines.add_line(made, b"second")
    return made


def test_a_writer_who_is_killed_half_way_has_written_nothing(path):
    """A node whose agent was killed at the wrong moment would have no hardware any more, or half of it."""
    file = Path(path)
    whole = file.read_bytes()
    added = b"a third state\n"
    for written in range(len(added)):
        file.write_bytes(whole + added[:written])
        assert hardware_lines.last_line(path) == b"second", written
        hardware_lines.add_line(path, b"next")
        assert hardware_lines.last_line(path) == b"next", written
        assert file.read_bytes() == whole + b"next\n", written


def test_who_looks_without_the_lock_finds_a_whole_state(path):
    """An agent that reads its GPUs while a person makes an instance by hand would take the node for broken."""
    found = set()
    over = threading.Event()

    def look():
        while not over.is_set():
            found.add(hardware_lines.last_line(path))

    reader = threading.Thread(target=look)
    reader.start()
    lines = [b"%05d" % number * 4_000 for number in range(300)]
    for line in lines:
        hardware_lines.add_line(path, line)
    over.set()
    reader.join()
    assert found <= {b"second", *lines}
    assert len(found) > 1


def test_the_file_does_not_grow_for_ever(path, tmp_path):
    """A node that runs for a year would fill the disk with what its GPUs once were."""
    for number in range(300):
        hardware_lines.add_line(path, b"%05d" % number * 2_000)
        assert hardware_lines.last_line(path) == b"%05d" % number * 2_000
        assert (tmp_path / "n1.json").stat().st_size <= hardware_lines.BYTES_MAX
    assert not (tmp_path / "n1.json.new").exists()


def test_a_full_disk_changes_nothing(path, monkeypatch):
    """An instance would be on a GPU although its creation was reported as failed."""
    monkeypatch.setattr(hardware_lines.os, "pwrite", lambda *_: 3)
    with pytest.raises(OSError, match="No space left"):
        hardware_lines.add_line(path, b"third")
    monkeypatch.undo()
    assert hardware_lines.last_line(path) == b"second"


def _fleet(gpus):
    return parse_fleet(f'[[node]]\nname = "n1"\ngpus = [{gpus}]\n', origin="test").nodes[0]


def test_a_file_of_an_earlier_version_is_taken_over(tmp_path):
    """`sluice up --data` of a folder that is older than this version would find no nodes in it."""
    fleet = _fleet('{model="a100-40gb", count=2}')
    file = HardwareFile(tmp_path / "n1.json")
    file.make(fleet)
    with file.changing() as hardware:
        hardware.gpus[1].lost = "fell off the bus"
    before = file.read()
    document = json.loads(hardware_lines.last_line(str(tmp_path / "n1.json")))
    (tmp_path / "n1.json").write_text(json.dumps(document, indent=1))
    file.make(fleet)
    assert file.read() == before


def test_the_daemons_processes_and_the_agents_instances_are_on_one_node(tmp_path):
    """An instance would be destroyed under the server of an MPS daemon that is on it."""
    file = HardwareFile(tmp_path / "n1.json")
    file.make(_fleet('{model="a100-40gb", mig=false}'))
    daemon = ProcessEntries(str(tmp_path / "n1.json"), file.read().gpus[0].uuid)
    assert daemon.has_device()
    daemon.enter(7, owner="pod", name="nvidia-cuda-mps-server", kind="mps")
    with file.changing() as hardware:
        hardware.faults.xid = 79
    assert [(each.pid, each.kind) for each in file.read().gpus[0].processes] == [(7, "mps")]
    daemon.remove({7})
    assert (file.read().gpus[0].processes, file.read().faults.xid) == ([], 79)
