"""Marks: a place is marked before something is made there, and for as long as it may be there."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from factories.scheduling.allocator import gpu_report
from msgspec.structs import replace

from sluice.contracts.ids import GpuUuid
from sluice.contracts.messages import InstanceReport
from sluice_node_agent.core.events import DeviceErrorKind, GpuInstanceCreated, GpuRead, OwnershipMark
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, ReadGpu, SetComputeMode
from sluice_node_agent.device.port import DeviceError, InsufficientResourcesError
from sluice_node_agent.shell.journal import ownership_marks as ownership_file
from sluice_node_agent.shell.journal.ownership_marks import LINES_MAX, OwnershipMarkError, OwnershipMarks

GPU = GpuUuid("GPU-1")
PLACE = OwnershipMark(GPU, 4, 2)
MODE = OwnershipMark(GPU, 0, 0)
CREATE = CreateGpuInstance(1, GPU, 14, 4, 2)
DESTROY = DestroyGpuInstance(1, GPU, 3, 4, 2)
INSTANCE = InstanceReport(gi_id=3, profile="2g.10gb", start=4, size=2, uuid="")
EMPTY = (gpu_report("node", 0, uuid=GPU),)


class Made:
    """A driver that does what it is asked for."""

    def _do(self, *_args, **_kwargs):
        return 3

    create_gpu_instance = destroy_gpu_instance = set_exclusive_process = _do

    def instance_at(self, *_args):
        """Nothing is there yet."""


class Refusing(Made):
    def __init__(self, kind, seen=list):
        self.kind, self.seen = kind, seen
        self.marked = []

    def _refuse(self, *_args, **_kwargs):
        self.marked.append(self.seen())
        error = DeviceError("refused by the test")
        error.kind = self.kind
        raise error

    create_gpu_instance = destroy_gpu_instance = set_exclusive_process = _refuse


def refused(marks, kind, order):
    with pytest.raises(DeviceError, match="refused by the test"):
        marks.carry_out(Refusing(kind), order)


def there(tmp_path, boot="boot-1"):
    found = tmp_path / "found"
    shutil.copytree(tmp_path / "marks", found, dirs_exist_ok=True)
    return list(OwnershipMarks(found, boot).found(()))


@pytest.fixture
def marks(tmp_path):
    return OwnershipMarks(tmp_path / "marks", "boot-1")


@pytest.mark.parametrize("kind", DeviceErrorKind)
def test_a_refused_creation_leaves_no_mark(marks, tmp_path, kind):
    """What an administrator has made there, or makes there later, would pass for ours and be destroyed."""
    backend = Refusing(kind, lambda: there(tmp_path))
    with pytest.raises(DeviceError, match="refused by the test"):
        marks.carry_out(backend, CREATE)
    assert backend.marked == [[PLACE]]
    assert there(tmp_path) == []


@pytest.mark.parametrize("kind", DeviceErrorKind)
@pytest.mark.parametrize(("order", "mark"), [(CREATE, PLACE), (SetComputeMode(1, GPU, exclusive_process=True), MODE)])
def test_what_is_ours_keeps_its_mark_when_another_is_refused_there(marks, tmp_path, kind, order, mark):
    """A slice is created where an idle instance could not be destroyed: after a lost journal that would be orphaned."""
    marks.carry_out(Made(), order)
    refused(marks, kind, order)
    assert there(tmp_path) == [mark]


@pytest.mark.parametrize("kind", [DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN])
@pytest.mark.parametrize(("order", "mark"), [(DESTROY, PLACE), (SetComputeMode(1, GPU, exclusive_process=True), MODE)])
def test_a_step_with_an_unknown_outcome_leaves_its_mark(marks, tmp_path, kind, order, mark):
    """An instance, or a mode, that exists after all would be orphaned for good."""
    if order is DESTROY:
        marks.carry_out(Made(), CREATE)
    refused(marks, kind, order)
    assert there(tmp_path) == [mark]


class Taken(Refusing):
    """An administrator changed the layout since the last reading, and a creation is refused for an unclear reason."""

    def instance_at(self, gpu, profile_id, start, size):
        return 5 if (gpu, profile_id, start, size) == (GPU, CREATE.profile_id, 4, 2) else None


def test_where_an_instance_is_no_mark_is_put_and_nothing_is_doubted(marks, tmp_path):
    """An agent that died in that moment would take what an administrator has made for its own, and destroy it."""
    marks.found(EMPTY)
    backend = Taken(DeviceErrorKind.UNKNOWN)
    with pytest.raises(InsufficientResourcesError, match="GPU instance 5 is at 4:2 already"):
        marks.carry_out(backend, CREATE)
    assert backend.marked == [], "the driver was asked, and might have died over it"
    assert OwnershipMarks(tmp_path / "marks", "boot-1").unmarked() == ()
    assert there(tmp_path) == []


def test_a_mark_ends_with_its_instance_and_with_the_boot(marks, tmp_path):
    marks.carry_out(Made(), CREATE)
    marks.carry_out(Made(), SetComputeMode(1, GPU, exclusive_process=True))
    assert there(tmp_path) == [MODE, PLACE]
    marks.carry_out(Made(), SetComputeMode(1, GPU, exclusive_process=False))
    marks.carry_out(Made(), DESTROY)
    assert there(tmp_path) == []
    marks.carry_out(Made(), CREATE)
    assert there(tmp_path, "boot-2") == []


def test_a_place_without_a_mark_is_known_to_be_foreign(marks, tmp_path):
    """An agent that lost its journal would take for a slice's what an administrator has made."""
    marks.found(())
    assert marks.unmarked() is None, "no GPU was shown"
    marks.found(EMPTY, all_told=False)
    assert marks.unmarked() is None, "one could not tell its UUID"
    marks.found(EMPTY)
    assert marks.unmarked() == ()
    marks.carry_out(Made(), CREATE)
    assert OwnershipMarks(tmp_path / "marks", "boot-1").unmarked() == ()
    (tmp_path / "marks" / "places").unlink()
    marks.carry_out(Made(), DESTROY)
    assert OwnershipMarks(tmp_path / "marks", "boot-1").unmarked() == ()


@pytest.mark.parametrize("there", [replace(EMPTY[0], instances=(INSTANCE,)), replace(EMPTY[0], lost=True)])
def test_removed_marks_say_nothing_before_the_next_boot(tmp_path, there):
    """What was made before would count as foreign, and stay on its GPU although its pod waits for it."""
    OwnershipMarks(tmp_path / "marks", "boot-1").found(EMPTY)
    shutil.rmtree(tmp_path / "marks")
    for _ in range(2):
        marks = OwnershipMarks(tmp_path / "marks", "boot-1")
        marks.found((there,))
        assert marks.unmarked() is None
    assert OwnershipMarks(tmp_path / "marks", "boot-2").unmarked() == ()


@pytest.mark.parametrize("kind", [DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN])
def test_what_a_refusal_may_have_made_is_doubted_until_it_is_known(marks, tmp_path, kind):
    """An instance that is there after all would count as foreign when the journal is lost."""
    marks.found(EMPTY)
    refused(marks, kind, CREATE)
    refused(marks, DeviceErrorKind.INSUFFICIENT_RESOURCES, CREATE)  # the next attempt finds the place taken
    again = OwnershipMarks(tmp_path / "marks", "boot-1")
    assert (again.found(()), again.unmarked()) == ((), (PLACE,))
    again.found((replace(EMPTY[0], instances=(INSTANCE,)),))
    assert again.unmarked() == (PLACE,)
    again.found(EMPTY)
    assert again.unmarked() == OwnershipMarks(tmp_path / "marks", "boot-1").unmarked() == ()
    refused(again, kind, CREATE)
    again.carry_out(Made(), CREATE)
    assert (again.found(()), again.unmarked()) == ((PLACE,), ())


def test_strange_lines_are_no_marks(tmp_path):
    """A line that says nothing, or that a killed agent wrote half, does not stop an agent, nor counts as a place."""
    (tmp_path / "marks").mkdir()
    strange = ("+ GPU-1", "+ GPU-1 x 2", "+ GPU-1 1 \u00b2", "* GPU-1 1 1", "", "+ GPU-1 0 4 5", "- GPU-2 4 2")
    (tmp_path / "marks" / "places").write_text("\n".join(("boot-1", *strange, "+ GPU-1 4 2", "+ GPU-1 6 1")))
    marks = OwnershipMarks(tmp_path / "marks", "boot-1")
    assert marks.found(()) == (PLACE,)
    marks.carry_out(Made(), SetComputeMode(1, GPU, exclusive_process=True))
    assert there(tmp_path) == [MODE, PLACE]


def test_the_file_of_marks_does_not_grow_with_every_slice(marks, tmp_path):
    """A node that makes slices for months would fill its memory disk."""
    marks.carry_out(Made(), SetComputeMode(1, GPU, exclusive_process=True))
    for _ in range(LINES_MAX):
        marks.carry_out(Made(), CREATE)
        marks.carry_out(Made(), DESTROY)
    assert len((tmp_path / "marks" / "places").read_bytes().splitlines()) <= LINES_MAX + 1
    assert there(tmp_path) == [MODE]


def test_threads_of_several_gpus_keep_each_others_marks(tmp_path):
    """GPUs work in parallel: a lost mark leaves an instance that is orphaned."""
    marks = OwnershipMarks(tmp_path / "marks", "boot-1")
    gpus = [GpuUuid(f"GPU-{number}") for number in range(8)]

    def work(gpu):
        for start in range(100):
            marks.carry_out(Made(), CreateGpuInstance(1, gpu, 14, start, 1))
            if start % 2:
                marks.carry_out(Made(), DestroyGpuInstance(1, gpu, 3, start, 1))

    with ThreadPoolExecutor(len(gpus)) as threads:
        list(threads.map(work, gpus))
    assert there(tmp_path) == [OwnershipMark(gpu, start, 1) for gpu in gpus for start in range(0, 100, 2)]


def test_nothing_is_made_without_a_mark(marks, tmp_path):
    """A full disk leaves no instance that looks foreign; the reason is reported."""
    shutil.rmtree(tmp_path / "marks")
    (tmp_path / "marks").touch()
    backend = Refusing(DeviceErrorKind.UNKNOWN)
    with pytest.raises(OwnershipMarkError, match=r"the mark of a place on GPU-1 cannot be kept: .*Not a directory"):
        marks.carry_out(backend, CREATE)
    assert backend.marked == []


def test_a_gpu_is_read_although_a_mark_cannot_be_removed(new_node, monkeypatch):
    """A full disk would make a GPU that is well a lost one, and every slice on it degraded."""
    new_node.start()
    gpu = new_node.gpus[0]
    new_node.marks.carry_out(new_node.backend, CreateGpuInstance(1, gpu, 14, 4, 2))
    new_node.lose_instances()
    with monkeypatch.context() as full:
        full.setattr(ownership_file.os, "write", lambda *_: 0)
        assert new_node.marks.carry_out(new_node.backend, ReadGpu(2, gpu)) == GpuRead(2, new_node.backend.read_gpu(gpu))
        again = OwnershipMarks(new_node.tmp_path / "marks", new_node.backend.boot_id())
        assert OwnershipMark(gpu, 4, 2) in again.found(())
    new_node.marks.carry_out(new_node.backend, ReadGpu(3, gpu))
    assert new_node.marks.found(()) == ()


def test_what_was_made_at_a_doubted_place_was_made_although_the_disk_is_full(marks, monkeypatch):
    """It would be orphaned: its id is in no journal if its creation was refused."""
    marks.found(EMPTY)
    refused(marks, DeviceErrorKind.UNKNOWN, CREATE)
    write, room = ownership_file.os.write, [1]
    monkeypatch.setattr(ownership_file.os, "write", lambda *args: write(*args) if room and room.pop() else 0)
    assert marks.carry_out(Made(), CREATE) == GpuInstanceCreated(1, 3)
    assert (marks.found(()), marks.unmarked()) == ((PLACE,), (PLACE,))


@pytest.mark.parametrize("kind", [DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT])
def test_what_is_not_there_to_be_destroyed_has_no_mark(marks, tmp_path, kind):
    """Another program has destroyed it, and may make another."""
    marks.carry_out(Made(), CREATE)
    refused(marks, kind, DESTROY)
    assert there(tmp_path) == []


def test_a_reading_ends_the_marks_of_what_vanished(new_node):
    """After a reset an administrator may make an instance at the same place."""
    new_node.start()
    gpu, other = new_node.gpus[:2]
    for each in (gpu, other):
        new_node.marks.carry_out(new_node.backend, CreateGpuInstance(1, each, 14, 4, 2))
    new_node.lose_instances()
    new_node.marks.carry_out(new_node.backend, ReadGpu(2, gpu))
    assert new_node.marks.found(()) == (OwnershipMark(other, 4, 2),)
