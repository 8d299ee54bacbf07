"""What the journal keeps, when it is not trusted, and what it says when the disk refuses."""

import errno
import os
import subprocess
import sys
from typing import get_args

import pytest
from factories.journals import append
from factories.words import booking_of

from sluice.contracts.ids import AllocationId, RequestId
from sluice_node_agent.core import journal_records
from sluice_node_agent.shell.journal.journal import Journal, JournalError, read_journal
from sluice_node_agent.shell.journal.lines import DamagedError, read_lines

NODE = journal_records.NodeRecord(node="n1", boot_id="b", generation_upto=1000)
BEGUN = journal_records.NodeRecord(node="n1", boot_id="", generation_upto=0)


def _stone(number, revision=1):
    name = AllocationId(f"a{number}")
    return journal_records.Tombstone(allocation=name, request=RequestId("r"), revision=revision, cause="pod gone")


def _slice(phase):
    return journal_records.SliceRecord(booking=booking_of("a1", "n1"), revision=1, phase=phase, devices=())


@pytest.fixture
def directory(tmp_path):
    """A journal with a node record and three tombstones, closed."""
    journal = Journal(tmp_path / "n1", "n1")
    assert journal.is_new
    append(journal, [NODE, _stone(1)])
    forgotten = journal_records.ForgottenTombstone(allocation="a4")
    append(journal, [_stone(2), _stone(3), _stone(1, revision=2), _stone(4), forgotten])
    journal.close()
    return tmp_path / "n1"


def _records(directory):
    journal = Journal(directory, "n1")
    journal.close()
    return journal


def test_what_a_crash_tore_off_is_dropped(directory):
    """A power cut while writing does not cost the journal: what was being written had not been published."""
    path = directory / "journal"
    before = _records(directory).records()
    whole = path.read_bytes()
    torn = b"0a1b2c3d " + b'{"type":"tombstone","allocation":"a9"}'
    for cut in range(len(torn)):
        path.write_bytes(whole + torn[:cut])
        again = _records(directory)
        assert again.problem == ""
        assert again.records() == before


def test_what_was_written_is_there_for_the_next_life_although_no_disk_was_waited_for(tmp_path):
    """An agent that dies between a step and the next sync has still left its successor what it did."""
    directory = tmp_path / "n1"
    journal = Journal(directory, "n1")
    journal.write([_stone(1)])
    told = (directory / "journal.told").read_bytes()
    journal.sync()
    assert (directory / "journal.told").read_bytes() != told
    told = (directory / "journal.told").read_bytes()
    journal.write([_stone(2)])
    assert (directory / "journal.told").read_bytes() == told  # not published yet
    assert read_journal(directory, "n1")[1:] == (_stone(1), _stone(2))
    journal.close()
    assert _records(directory).records()[1:] == (_stone(1), _stone(2))


def test_a_power_cut_takes_nothing_that_was_synced(tmp_path):
    """What was written after the last sync may be lost, in the middle of a line too; the journal stays trusted."""
    directory = tmp_path / "n1"
    journal = Journal(directory, "n1")
    append(journal, [_stone(1)])
    synced = (directory / "journal").stat().st_size
    journal.write([_stone(2), _stone(3)])
    journal.close()
    data = (directory / "journal").read_bytes()
    for cut in range(synced, len(data)):
        (directory / "journal").write_bytes(data[:cut])
        found = read_journal(directory, "n1")
        assert found[1] == _stone(1)
        assert found[2:] in {(), (_stone(2),)}


def test_only_what_others_are_told_must_outlive_the_boot():
    """What was given back stays so after a power cut; the rest is about devices that do not survive it either."""
    must = journal_records.must_outlive_boot
    phases = {phase for phase in get_args(journal_records.Phase) if must(_slice(phase))}
    assert phases == {"ready", "failed", "degraded"}
    assert must(_stone(1))
    assert must(NODE)
    assert not must(journal_records.ForgottenTombstone(allocation="a1"))
    assert not must(journal_records.WarmGone(gpu="GPU-0", gi_id=1))
    assert not must(journal_records.SharedDeviceGone(home="h1"))


def test_a_journal_that_lost_its_end_is_noticed_wherever_it_was_cut(directory):
    """A published step is never forgotten in silence: its instance would be granted twice."""
    path, note = directory / "journal", directory / "journal.told"
    whole, told = path.read_bytes(), note.read_bytes()
    for cut in range(len(whole)):
        with pytest.raises(DamagedError, match="its end is lost"):
            read_lines(whole[:cut], told=len(whole))
    line_ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (0, 1, *line_ends[:-1], len(whole) - 1):
        path.write_bytes(whole[:cut])
        note.write_bytes(told)
        assert "its end is lost" in _records(directory).problem, cut
        (directory / "journal.distrusted").replace(path)  # the same file, to be cut again


def test_any_flipped_bit_is_noticed(directory):
    """An older or false record is never taken for the last one."""
    path, note = directory / "journal", directory / "journal.told"
    whole, told = path.read_bytes(), note.read_bytes()
    for at in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedError):
            read_lines(bytes(damaged), told=len(whole))
    for at in (0, 9, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        note.write_bytes(told)
        again = _records(directory)
        assert again.problem, at
        assert again.is_new
        assert again.records() == (BEGUN,)
        assert (directory / "journal.distrusted").read_bytes() == damaged
        (directory / "journal.distrusted").replace(path)


def test_a_line_that_is_missing_doubled_or_moved_is_noticed(directory):
    """Records count by their order, so another order is another history."""
    path = directory / "journal"
    lines = path.read_bytes().splitlines(keepends=True)
    wrong = ([*lines[:1], *lines[2:]], [*lines, lines[-1]], [lines[0], lines[2], lines[1], *lines[3:]])
    for order in wrong:
        path.write_bytes(b"".join(order))
        (directory / "journal.told").write_bytes(b"")
        assert "does not match its checksum" in _records(directory).problem
        (directory / "journal.distrusted").replace(path)


def test_an_emptied_or_removed_journal_is_not_a_new_one(directory):
    """A lost journal is said to be lost, also while no instance is there to show it."""
    (directory / "journal").write_bytes(b"")
    assert "its end is lost" in _records(directory).problem
    (directory / "journal").unlink()
    again = _records(directory)
    assert "is missing" in again.problem
    assert again.is_new
    assert _records(directory).problem == ""


def test_the_file_does_not_grow_with_history(tmp_path):
    """A node that runs for years does not fill its disk."""
    journal = Journal(tmp_path / "n1", "n1")
    for number in range(40):
        append(journal, [_stone(1, revision=number * 100 + n) for n in range(100)])
    append(journal, [_stone(2)])
    assert (tmp_path / "n1" / "journal").stat().st_size < 200_000
    expected = journal.records()
    journal.close()
    assert _records(tmp_path / "n1").records() == expected
    assert expected[-2:] == (_stone(1, revision=3999), _stone(2))


def test_the_largest_journal_is_rewritten_before_it_is_too_long_to_be_read(tmp_path):
    """Its records fill a third of that. An agent that let it grow would not trust its own journal at its next start."""
    journal = Journal(tmp_path / "n1", "n1")
    path = tmp_path / "n1" / "journal"
    append(journal, [_stone(number) for number in range(1200)])
    third = path.stat().st_size
    for revision in range(2, 9):
        append(journal, [_stone(number, revision) for number in range(1200)])
        assert path.stat().st_size <= 3 * third
    journal.close()


def test_the_journal_of_another_node_is_refused(directory):
    """A copied data folder does not make one node act as another."""
    with pytest.raises(JournalError, match="of node n1, not of n2"):
        Journal(directory, "n2")
    assert _records(directory).records()[0] == NODE


def test_a_look_beside_the_agent_changes_nothing(directory):
    """A person can see what an agent keeps, while it runs and after it was killed."""
    journal = Journal(directory, "n1")
    append(journal, [_stone(6)])
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert read_journal(directory, "n1") == journal.records()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    journal.close()
    with pytest.raises(JournalError, match="of node n1, not of n2"):
        read_journal(directory, "n2")
    (directory / "journal").write_bytes(b"x\n")
    with pytest.raises(JournalError, match="cannot be trusted"):
        read_journal(directory, "n1")
    assert read_journal(directory / "none", "n1") == ()


def test_only_its_owner_can_read_the_journal(tmp_path):
    """The pods of a node are visible to its agent alone."""
    (tmp_path / "n1").mkdir(mode=0o755)
    Journal(tmp_path / "n1", "n1").close()
    assert (tmp_path / "n1").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "n1").iterdir()} == {0}


FILL = """
import sys
from pathlib import Path
from sluice_node_agent.core.journal_records import Tombstone
from sluice_node_agent.shell.journal.journal import Journal, JournalError
journal = Journal(Path(sys.argv[1]), "n1")
said = []
for number in range(100_000):
    try:
        stones = [Tombstone(allocation=f"a{number}-{part}", request="r", revision=1, cause="c" * 90) for part in "xyz"]
        journal.write(stones)
        journal.sync()
    except JournalError as error:
        said.append(str(error))
        break
    print(number, flush=True)
try:
    journal.write([Tombstone(allocation="later", request="r", revision=1, cause="")])
except JournalError as error:
    said.append(str(error))
print("|".join(said))
"""


def test_a_full_disk_loses_nothing_that_was_told(tmp_path):
    """A full disk ends the agent in one sentence, and after a restart it finds all that it has published."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "sluice-test", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        command = [sys.executable, "-c", FILL, str(disk / "n1")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        *told, said = done.stdout.splitlines()
        assert told
        first, again = said.split("|")
        assert first == again
        assert "cannot be written" in first
        assert os.strerror(errno.ENOSPC) in first
        with pytest.raises(JournalError, match=f"cannot be kept.*{os.strerror(errno.ENOSPC)}"):
            Journal(disk / "n1", "n1")
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        journal = _records(disk / "n1")
        assert journal.problem == ""
        names = {each.allocation for each in journal.records() if isinstance(each, journal_records.Tombstone)}
        assert names == {f"a{number}-{part}" for number in range(len(told)) for part in "xyz"}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_directory_that_cannot_be_used_is_said_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"the journal of node n1 cannot be kept in .*/file/n1: Not a directory"):
        Journal(tmp_path / "file" / "n1", "n1")
    (tmp_path / "n1" / "journal").mkdir(parents=True)
    with pytest.raises(JournalError, match=r"cannot be kept in .*: Is a directory"):
        Journal(tmp_path / "n1", "n1")
    (tmp_path / "n1" / "journal").rmdir()
    Journal(tmp_path / "n1", "n1").close()


def test_a_note_of_an_older_life_harms_nothing(directory):
    """After a power cut the note may be older than the journal, or of a file that was replaced."""
    journal = Journal(directory, "n1")
    before = (directory / "journal.told").read_bytes()
    append(journal, [_stone(5)])
    journal.close()
    (directory / "journal.told").write_bytes(before)
    assert _records(directory).records()[-1] == _stone(5)
    for note in (b"", b"torn", before):
        (directory / "journal.told").write_bytes(note)
        assert _records(directory).problem == ""
