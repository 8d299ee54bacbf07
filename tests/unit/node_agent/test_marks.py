"""Marks: a place is marked before something is made there, and for as long as it may be there."""

import pytest

from sluice.contracts.ids import GpuUuid
from sluice_node_agent.core.events import DeviceErrorKind, Mark
from sluice_node_agent.core.instructions import CreateGpuInstance, DestroyGpuInstance, ReadGpu, SetComputeMode
from sluice_node_agent.device.port import DeviceError
from sluice_node_agent.shell.marks import MarkError, Marks

GPU = GpuUuid("GPU-1")
PLACE = Mark(GPU, 4, 2)
CREATE = CreateGpuInstance(1, GPU, 14, 4, 2)
DESTROY = DestroyGpuInstance(1, GPU, 3, 4, 2)


class Refusing:
    """Every step is refused, for one reason."""

    def __init__(self, kind, seen):
        self.kind, self.seen = kind, seen
        self.marked = []

    def _refuse(self, *_args, **_kwargs):
        self.marked.append(self.seen())
        error = DeviceError("refused by the test")
        error.kind = self.kind
        raise error

    create_gpu_instance = destroy_gpu_instance = set_exclusive_process = _refuse


def files(tmp_path):
    """The names in the directory."""
    return sorted(path.name for path in (tmp_path / "marks").iterdir())


@pytest.fixture
def marks(tmp_path):
    """None yet."""
    return Marks(tmp_path / "marks", "boot-1")


@pytest.mark.parametrize("kind", [kind for kind in DeviceErrorKind if kind not in {"GpuLost", "Unknown"}])
def test_a_refused_creation_leaves_no_mark(marks, tmp_path, kind):
    """What an administrator has made there would pass for ours."""
    backend = Refusing(kind, lambda: files(tmp_path))
    with pytest.raises(DeviceError, match="refused by the test"):
        marks.carry_out(backend, CREATE)
    assert backend.marked == [["GPU-1_4_2_boot-1"]]
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", [DeviceErrorKind.GPU_LOST, DeviceErrorKind.UNKNOWN])
@pytest.mark.parametrize("order", [CREATE, DESTROY])
def test_a_step_of_which_nobody_knows_whether_it_was_taken_leaves_its_mark(marks, tmp_path, kind, order):
    """An instance that is there after all would be nobody's for ever."""
    marks.carry_out(Made(), CREATE)
    with pytest.raises(DeviceError):
        marks.carry_out(Refusing(kind, lambda: None), order)
    assert files(tmp_path) == ["GPU-1_4_2_boot-1"]


class Made:
    """Every step goes well."""

    def _do(self, *_args, **_kwargs):
        return 3

    create_gpu_instance = destroy_gpu_instance = set_exclusive_process = _do


def test_a_mark_ends_with_its_instance_and_with_the_boot(marks, tmp_path):
    """Whoever makes something there afterwards would lose it."""
    marks.carry_out(Made(), CREATE)
    marks.carry_out(Made(), SetComputeMode(1, GPU, exclusive_process=True))
    assert files(tmp_path) == ["GPU-1_0_0_boot-1", "GPU-1_4_2_boot-1"]
    assert Marks(tmp_path / "marks", "boot-1").found(()) == (Mark(GPU, 0, 0), PLACE)
    marks.carry_out(Made(), SetComputeMode(1, GPU, exclusive_process=False))
    marks.carry_out(Made(), DESTROY)
    assert files(tmp_path) == []
    marks.carry_out(Made(), CREATE)
    assert Marks(tmp_path / "marks", "boot-2").found(()) == ()
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", [DeviceErrorKind.NOT_FOUND, DeviceErrorKind.DIFFERENT])
def test_what_is_not_there_to_be_destroyed_has_no_mark(marks, tmp_path, kind):
    """Somebody else has destroyed it, and may make another."""
    marks.carry_out(Made(), CREATE)
    with pytest.raises(DeviceError):
        marks.carry_out(Refusing(kind, lambda: None), DESTROY)
    assert files(tmp_path) == []


def test_a_reading_ends_the_marks_of_what_vanished(node):
    """After a reset an administrator may make an instance at the same place."""
    node.start()
    gpu, other = node.gpus[:2]
    for each in (gpu, other):
        node.marks.carry_out(node.backend, CreateGpuInstance(1, each, 14, 4, 2))
    with node.hardware.changing() as hardware:
        hardware.gpus[0].instances.clear()
    node.marks.carry_out(node.backend, ReadGpu(2, gpu))
    assert node.marks.found(()) == (Mark(other, 4, 2),)


def test_strange_files_are_no_marks(tmp_path):
    """A name that says nothing must not stop an agent."""
    (tmp_path / "marks").mkdir()
    for name in ("GPU-1", "GPU-1_x_2_boot-1", "GPU-1_1_²_boot-1", "a_b", "GPU-1_4_2_boot-1"):
        (tmp_path / "marks" / name).touch()
    assert Marks(tmp_path / "marks", "boot-1").found(()) == (PLACE,)


def test_nothing_is_made_without_a_mark(marks, tmp_path):
    """A full disk must not leave an instance that nobody can tell from a foreign one; the reason is said."""
    (tmp_path / "marks").rmdir()
    (tmp_path / "marks").touch()
    backend = Refusing(DeviceErrorKind.UNKNOWN, lambda: None)
    with pytest.raises(MarkError, match=r"the mark of a place on GPU-1 cannot be kept: .*Not a directory"):
        marks.carry_out(backend, CREATE)
    assert backend.marked == []
