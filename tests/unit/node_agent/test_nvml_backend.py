"""The NVML backend against a library made of Python: what pynvml hands over, and what awkward drivers do."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pynvml
import pytest
from factories.gpus.instances import instance_of
from factories.gpus.nvml_object import FORBIDDEN, INVALID, LOST, SHORT, TIMEOUT, UNSUPPORTED, Library

from sluice_node_agent.core.events import DeviceErrorKind, Holder
from sluice_node_agent.device import port
from sluice_node_agent.device.nvml import events, inventory
from sluice_node_agent.device.nvml.backend import NvmlBackend
from sluice_node_agent.device.processes import Processes


@pytest.fixture
def library(monkeypatch):
    """A driver with nothing in it, where pynvml looks for one. Taken away again, and nothing of it is remembered."""
    made = Library()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return made


@pytest.fixture
def begin(library, tmp_path):
    """Begin the backend; it is closed at the end, and the driver let go of."""
    begun = []

    def make(**options):
        begun.append(NvmlBackend(Processes(options.pop("proc", tmp_path)), **options))
        return begun[-1]

    yield make
    for gpus in begun:
        gpus.close()
    assert library.inits == 0, "the driver was not let go of"


@pytest.fixture
def one(library, begin):
    """A GPU in MIG mode, and a backend that has begun with it."""
    return library.gpu(), begin()


def _process(root, pid, *, comm="python3", pod="", opened=()):
    home = root / str(pid)
    (home / "fd").mkdir(parents=True)
    (home / "comm").write_text(f"{comm}\n")
    of_pod = f"0::/kubepods.slice/kubepods-pod{pod.replace('-', '_')}.slice/cri-1.scope\n"
    (home / "cgroup").write_text(of_pod if pod else "0::/\n")
    for number, path in enumerate(opened):
        (home / "fd" / str(number)).symlink_to(path)


def test_a_gpu_is_told_as_the_driver_tells_it(library, begin):
    """Wrong sizes or placements promise slices that cannot be made."""
    gpu = library.gpu(affinity=0b10)
    library.gpu("h100-sxm-80gb", mig=[0, 0])
    library.instance(gpu, "3g.20gb", 4, 2)
    library.instance(gpu, "1g.5gb", 0, 13, device=False)
    gpus = begin()
    first, second = gpus.read()
    assert (first.uuid, first.index, first.model, first.memory_mib) == (gpu.uuid, 0, "NVIDIA A100-SXM4-40GB", 40960)
    assert (first.multiprocessors, first.memory_slices, first.compute_slices) == (108, 8, 7)
    assert (first.mig_enabled, first.healthy, first.numa_node, first.mps_clients_max) == (True, True, 1, 60)
    spans = [(i.gi_id, i.profile, i.start, i.size, i.uuid[:4]) for i in first.instances]
    assert spans == [(13, "1g.5gb", 0, 1, ""), (2, "3g.20gb", 4, 4, "MIG-")]
    assert (second.mig_enabled, second.instances, second.multiprocessors) == (False, (), 132)
    assert gpus.read_gpu(gpu.uuid) == first
    assert gpus.driver_version() == "580.65.06"


def test_mode_that_waits_for_a_reset_is_unhealthy_and_creates_nothing(library, begin):
    """Slices would be promised that the next reset takes away."""
    gpu = library.gpu(mig=[1, 0])
    gpus = begin()
    (report,) = gpus.read()
    assert not report.healthy
    assert "MIG mode is on and will be off" in report.health_message
    assert not report.lost
    with pytest.raises(port.NotSupportedError):
        gpus.create_gpu_instance(gpu.uuid, 19, 0, 1)


def test_a_mode_that_cannot_be_read_is_not_off(library, one):
    """All instances of the GPU would look gone, and their slices be made again elsewhere."""
    gpu, gpus = one
    library.instance(gpu, "1g.5gb", 0, 7)
    gpu.errors["mig"] = 999
    (report,) = gpus.read()
    assert report.lost
    assert report.mig_enabled


def test_an_instance_of_several_devices_is_named_by_its_first(library, one):
    """A foreign instance with several compute instances would have another name at each reading."""
    gpu, gpus = one
    made = library.instance(gpu, "3g.20gb", 4, 2)
    library.compute(made)
    (report,) = gpus.read()
    assert report.instances[0].uuid == made.cis[0].uuid == instance_of(gpus, gpu.uuid, 2).uuid


def test_links_say_which_gpus_are_close(library, begin):
    """A pod that needs two GPUs would get two that talk over the slow bus."""
    one = library.gpu(mig=[0, 0], links=[1, 1, None, 2])
    two = library.gpu(mig=[0, 0], links=[0, 0])
    three = library.gpu(mig=[1, 1], links=[0])
    reports = {report.uuid: report for report in begin().read()}
    assert reports[one.uuid].links == {two.uuid: 200}
    assert reports[two.uuid].links == {one.uuid: 200}
    assert reports[three.uuid].links == {}


def test_a_gpu_without_handle_does_not_hide_the_others(library, begin):
    """One broken GPU would take the node's other GPUs out of the fleet."""
    broken, _ = library.gpu(), library.gpu()
    library.instance(broken, "1g.5gb", 0, 7)
    gpus = begin()
    before = gpus.read()
    broken.errors["handle"] = LOST
    lost, other = gpus.read()
    assert (lost.uuid, lost.lost, lost.healthy, lost.instances) == (broken.uuid, True, False, ())
    assert (lost.profiles, lost.memory_mib, lost.index) == (before[0].profiles, before[0].memory_mib, 0)
    assert "does not answer" in lost.health_message
    assert other == before[1]
    broken.errors = {}
    assert gpus.read() == before


@pytest.mark.parametrize("code", [TIMEOUT, 999, LOST])
def test_a_gpu_that_cannot_be_read_from_the_start_is_lost_until_it_can(library, begin, code):
    """Left out it would pass for a GPU of another node, with nothing on it, until its agent is started again."""
    slow, fine = library.gpu(), library.gpu()
    library.instance(slow, "1g.5gb", 0, 7)
    slow.errors["name"] = code
    gpus = begin()
    for first in (gpus.read()[0], gpus.read_gpu(slow.uuid)):
        assert (first.uuid, first.index, first.lost, first.healthy) == (slow.uuid, 0, True, False)
        assert (first.model, first.profiles, first.instances) == ("", (), ())
        assert slow.uuid in first.health_message
    assert gpus.read()[1].uuid == fine.uuid
    del slow.errors["name"]
    again = gpus.read_gpu(slow.uuid)
    assert (again.lost, again.healthy, len(again.instances)) == (False, True, 1)
    assert gpus.read()[0] == again


@pytest.mark.parametrize("code", [TIMEOUT, 999, SHORT, INVALID])
@pytest.mark.parametrize("asked", ["all", "one"])
def test_a_gpu_that_was_only_slow_to_answer_keeps_its_xid(library, one, asked, code):
    """One late answer would make a broken GPU well again, and send new tenants to it."""
    gpu, gpus = one
    library.events = [(gpu, 0x8, 119)]
    gpus.troubled(0.01)

    def read():
        return gpus.read()[0] if asked == "all" else gpus.read_gpu(gpu.uuid)

    gpu.errors["name"] = code
    assert read().lost
    del gpu.errors["name"]
    again = read()
    assert (again.healthy, again.lost) == (False, False)
    assert "Xid 119" in again.health_message


def test_a_gpu_that_could_not_tell_its_uuid_is_named_where_its_reset_is_advised(library, begin):
    """By its place in the driver's list another GPU could be reset, under its tenants; without any, all are."""
    gpu, other = library.gpu(), library.gpu()
    gpus = begin()
    other.errors["handle"] = LOST
    fine, lost = gpus.read()
    assert fine.healthy
    assert lost.health_message.startswith("GPU 1: the GPU does not answer")
    assert f"nvidia-smi --gpu-reset -i {other.uuid}," in lost.health_message
    assert gpu.uuid not in lost.health_message


@pytest.mark.parametrize("asked", ["all", "one"])
@pytest.mark.parametrize("how", ["name", "all"])
def test_a_lost_gpu_is_named_where_its_reset_is_advised(one, asked, how):
    """A command without the GPU's name resets all GPUs of the node."""
    gpu, gpus = one
    gpu.error, gpu.errors = (LOST, {}) if how == "all" else (0, {"name": LOST})
    lost = gpus.read()[0] if asked == "all" else gpus.read_gpu(gpu.uuid)
    assert f"nvidia-smi --gpu-reset -i {gpu.uuid}," in lost.health_message


@pytest.mark.parametrize("code", [TIMEOUT, LOST])
def test_a_gpu_that_was_only_slow_is_not_registered_twice(library, one, code):
    """Each of its errors would be reported twice; one that was lost would not be observed again."""
    gpu, gpus = one
    gpus.troubled(0)
    gpu.errors["name"] = code
    assert gpus.read()[0].lost
    gpu.errors = {}
    assert gpus.read()[0].healthy
    gpus.troubled(0)
    assert len(library.registered[gpu.uuid]) == (2 if code == LOST else 1)


def test_a_stale_handle_that_still_shows_its_uuid_is_fetched_again(one):
    """After a reset of the GPU the agent would fail until its own restart."""
    gpu, gpus = one
    gpus.read()
    gpu.haunt()
    gi_id = gpus.create_gpu_instance(gpu.uuid, 9, 4, 4)
    assert instance_of(gpus, gpu.uuid, gi_id).start == 4


def test_a_handle_that_points_at_another_gpu_is_not_used(library, begin):
    """NVML may give a stale handle to another GPU: its slices would be destroyed."""
    one, two = library.gpu(), library.gpu()
    gpus = begin()
    gpus.read()
    library.handles[one.address], library.handles[two.address] = two, one
    one.address, two.address = two.address, one.address
    gpus.create_gpu_instance(one.uuid, 19, 6, 1)
    assert [len(gpu.instances) for gpu in (one, two)] == [1, 0]


def test_profiles_are_asked_for_once(one):
    """Each reading would ask the driver some thirty questions whose answers never change."""
    gpu, gpus = one
    gpus.read()
    seen = gpu.seen
    gpus.read()
    assert gpu.seen == seen
    gpu.gone()
    gpu.renew()
    gpus.read()
    assert gpu.seen == 2 * seen


def test_a_compute_instance_whose_device_cannot_be_named_is_not_destroyed_blindly(library, begin):
    """It may be foreign; or it is ours, and would be reported gone while it is in use."""
    gpu = library.gpu(errors={"hidden": 1})
    made = library.instance(gpu, "3g.20gb", 4, 1)
    gpus = begin()
    with pytest.raises(port.DeviceError, match="does not tell its UUID") as refused:
        gpus.destroy_compute_instance(gpu.uuid, 1, made.cis[0].uuid)
    assert refused.value.kind is DeviceErrorKind.UNKNOWN, "it is tried again"
    with pytest.raises(port.DeviceError, match="does not tell its UUID"):
        gpus.destroy_compute_instance(gpu.uuid, 1, "MIG-another")
    gpu.errors.clear()
    gpus.destroy_compute_instance(gpu.uuid, 1, made.cis[0].uuid)
    assert made.cis == []


def test_an_instance_that_does_not_tell_its_id_is_undone(one):
    """Its creation counts as refused: it would be orphaned, and block its place for good."""
    gpu, gpus = one
    gpu.errors["info"] = INVALID
    with pytest.raises(port.DeviceError, match=gpu.uuid):
        gpus.create_gpu_instance(gpu.uuid, 9, 4, 4)
    assert gpu.instances == []


def test_a_compute_instance_that_gets_no_device_is_undone(library, begin):
    """It could never be named, so never be destroyed: the GPU instance would stay for good."""
    gpu = library.gpu(errors={"hidden": 1})
    made = library.instance(gpu, "3g.20gb", 4, 1, device=False)
    with pytest.raises(port.NotSupportedError, match="has no MIG device"):
        begin().create_compute_instance(gpu.uuid, 1)
    assert made.cis == []


def test_there_is_no_instance_where_mig_was_switched_off(library, begin):
    """The driver says "not supported": the slice that went with the mode would be undone for ever."""
    gpu = library.gpu(mig=[0, 0])
    gpus = begin()
    with pytest.raises(port.NotFoundError):
        gpus.destroy_compute_instance(gpu.uuid, 7, "MIG-gone")
    with pytest.raises(port.NotFoundError):
        gpus.destroy_gpu_instance(gpu.uuid, 7, 0, 1)
    assert gpus.processes(gpu.uuid, "MIG-gone") == ()


def test_the_compute_mode_is_read_back(library, begin):
    """In DEFAULT mode a client that misses its daemon runs beside it, unbounded."""
    gpu = library.gpu(mig=[0, 0], errors={"deaf": 1})
    with pytest.raises(port.DeviceError, match="was set, but 0 was read back"):
        begin().set_exclusive_process(gpu.uuid, exclusive=True)


POD = "11111111-2222-3333-4444-555555555555"
OWN_POD = "22222222-2222-3333-4444-555555555555"


def test_holders_of_a_device_are_told_with_their_pod(library, begin, tmp_path):
    """A slice that stays in use is quarantined: the name of its holder is all that helps."""
    gpu = library.gpu()
    made = library.instance(gpu, "3g.20gb", 4, 2)
    other = library.instance(gpu, "1g.5gb", 0, 3)
    mig = made.cis[0].mig
    mig.pids, mig.clients = [100, 101], [102]
    gpu.pids = [100, 101]
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (3 + 9 * 2, 3 + 9 * 2 + 1, 3 + 9 * 3)]
    _process(tmp_path, 100, pod=POD, opened=["/dev/nvidia0", caps[1]])
    _process(tmp_path, 101, comm="nvidia-cuda-mps")  # as the kernel cuts it
    _process(tmp_path, 102, comm="train", pod=POD)
    _process(tmp_path, 103, comm="dcgm", opened=[caps[0]])
    _process(tmp_path, 104, comm="other", opened=[caps[2], "/dev/nvidia0"])
    _process(tmp_path, 105, comm="nvidia-cuda-mps", opened=[caps[1]])  # the control daemon: it has no context
    gpus = begin(proc=tmp_path)
    assert gpus.processes(gpu.uuid, made.cis[0].uuid) == (
        Holder(100, POD, "python3"),
        Holder(101, "", "nvidia-cuda-mps-server", "mps"),
        Holder(102, POD, "train"),
        Holder(103, "", "dcgm", "file"),
        Holder(105, "", "nvidia-cuda-mps", "file"),
    )
    of_whole = [(holder.pid, holder.kind) for holder in gpus.processes(gpu.uuid, gpu.uuid)]
    assert of_whole == [(100, "compute"), (101, "mps"), (104, "file")]
    assert gpus.processes(gpu.uuid, "MIG-not-there") == ()
    assert [h.pid for h in gpus.processes(gpu.uuid, other.cis[0].uuid)] == [104]


def test_a_process_whose_name_is_no_text_is_listed_all_the_same(library, begin, tmp_path, monkeypatch):
    """A tenant with a name in Latin-1 would end the agent again and again: no slice of the node is made or unmade."""

    def in_latin_1(_self, _pid, buffer, _size):
        buffer.value = "/home/me/büro/train".encode("latin-1")
        return 0

    monkeypatch.setattr(Library, "nvmlSystemGetProcessName", in_latin_1, raising=False)
    gpu = library.gpu(mig=[0, 0], pids=[100, 101])
    _process(tmp_path, 100, comm="train", pod=POD)
    gpus = begin(proc=tmp_path)  # of 101, which is gone, not even the kernel has a name
    assert gpus.processes(gpu.uuid, gpu.uuid) == (Holder(100, POD, "train"), Holder(101, "", ""))
    (used,) = gpus.uses(gpu.uuid, [gpu.uuid])
    assert [(process.pid, process.owner) for process in used.processes] == [(100, POD), (101, "")]


@pytest.mark.parametrize("which", ["clients", "drawing", "minor"])
@pytest.mark.parametrize("mig", [False, True], ids=["whole", "instance"])
def test_a_list_of_processes_that_the_driver_does_not_give_is_not_an_empty_one(library, begin, tmp_path, which, mig):
    """A slice would be given to the next tenant while the last one still computes on it."""
    gpu = library.gpu(mig=[int(mig)] * 2)
    device = library.instance(gpu, "3g.20gb", 4, 2).cis[0].mig if mig else gpu
    gpus = begin(proc=tmp_path)
    (gpu if which == "minor" else device).errors[which] = TIMEOUT
    with pytest.raises(port.DeviceError, match=r"error 10\)"):
        gpus.processes(gpu.uuid, device.uuid)
    (gpu if which == "minor" else device).errors[which] = UNSUPPORTED
    assert gpus.processes(gpu.uuid, device.uuid) == ()


def test_a_driver_that_takes_no_mig_device_for_a_list_has_none_of_it(library, begin, tmp_path):
    """No slice of such a node would ever be taken away again. Of a whole GPU the same code means a stale handle."""
    gpu, whole = library.gpu(), library.gpu(mig=[0, 0])
    mig = library.instance(gpu, "3g.20gb", 4, 2).cis[0].mig
    mig.pids = [100]
    for device in (mig, whole):
        device.errors |= {"clients": INVALID, "drawing": INVALID}
    gpus = begin(proc=tmp_path)
    assert [holder.pid for holder in gpus.processes(gpu.uuid, mig.uuid)] == [100]
    assert [use.pid for used in gpus.uses(gpu.uuid, [mig.uuid]) for use in used.processes] == [100]
    with pytest.raises(port.InvalidArgumentError):
        gpus.processes(whole.uuid, whole.uuid)


def test_a_driver_of_the_version_before_tells_all_its_processes(library, begin, tmp_path):
    """On R470 clients of an MPS daemon, or of graphics, would not be seen: their slice goes to the next tenant."""
    gpu = library.gpu(mig=[0, 0], pids=[100], clients=[101], drawing=[102])
    library.missing |= {f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "MPSCompute", "Graphics")}
    gpus = begin(proc=tmp_path)
    assert [holder.pid for holder in gpus.processes(gpu.uuid, gpu.uuid)] == [100, 101, 102]


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_none(library, begin, tmp_path, monkeypatch):
    """Without /proc the device would count as free; without a descriptor left, a tenant's process be of no pod."""
    gpu = library.gpu(mig=[0, 0], pids=[100])
    with pytest.raises(port.DeviceError, match="cannot be listed"):
        begin(proc=tmp_path / "none").processes(gpu.uuid, gpu.uuid)
    _process(tmp_path, 100, comm="train", pod=POD)
    gpus = begin(proc=tmp_path)
    with monkeypatch.context() as short:
        short.setattr(Path, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(port.DeviceError, match="cannot be listed"):
            gpus.processes(gpu.uuid, gpu.uuid)
        with pytest.raises(port.DeviceError, match="cannot be listed"):
            gpus.uses(gpu.uuid, [gpu.uuid])
    assert gpus.processes(gpu.uuid, gpu.uuid) == (Holder(100, POD, "train"),)


def test_a_process_whose_first_thread_has_ended_is_of_its_pod(library, begin, tmp_path):
    """Its slice would stay in use by an unknown process, or be shown as empty."""
    gpu = library.gpu(mig=[0, 0], pids=[100])
    _process(tmp_path, 100)
    (tmp_path / "100" / "stat").write_text("100 (train) Z " + "7 " * 40)
    (tmp_path / "100" / "task" / "101").mkdir(parents=True)
    _process(tmp_path, 101, pod=POD)  # hidden in a real /proc, but there
    gpus = begin(proc=tmp_path)
    (used,) = gpus.uses(gpu.uuid, [gpu.uuid])
    for seen in (gpus.processes(gpu.uuid, gpu.uuid), used.processes):
        assert [(process.pid, process.owner) for process in seen] == [(100, POD)]


def test_a_tenant_cannot_hide_its_use_behind_the_name_of_a_server(library, begin, tmp_path):
    """A slice whose memory is full would be shown as empty and idle, and the process that fills it not at all."""
    gpu = library.gpu(mig=[0, 0], pids=[100, 101, 102])
    _process(tmp_path, 100, comm="nvidia-cuda-mps", pod=POD)
    _process(tmp_path, 101, comm="nvidia-cuda-mps")
    _process(tmp_path, 102, comm="nvidia-cuda-mps", pod=OWN_POD)
    _process(tmp_path, 103, comm="sluice-node-age", pod=OWN_POD)
    (tmp_path / "self").symlink_to("103")
    (used,) = begin(proc=tmp_path).uses(gpu.uuid, [gpu.uuid])
    assert [(process.pid, process.owner) for process in used.processes] == [(100, POD)]


def test_a_gpu_that_fell_off_the_bus_is_known_by_its_handle(library, begin):
    """It does not report its UUID any more: all GPUs of the node would be taken for broken."""
    gpu, other = library.gpu(), library.gpu()
    gpus = begin()
    gpu.error = LOST
    library.events = [(gpu, 0x8, 79)]
    assert gpus.troubled(0.01) == (gpu.uuid,)
    assert gpus.read_gpu(gpu.uuid).lost
    assert gpus.read_gpu(other.uuid).healthy


@pytest.mark.parametrize("code", [TIMEOUT, LOST])
def test_a_gpu_that_cannot_tell_its_uuid_is_told_by_its_index_and_answers_to_its_uuid_later(library, begin, code):
    """What the journal says of it would count for nothing, for it would seem that the node has no such GPU."""
    gpu, other = library.gpu(error=code), library.gpu()
    gpus = begin()
    assert [report.uuid for report in gpus.read()] == [other.uuid]
    assert list(gpus.nameless()) == [0]
    with pytest.raises(port.DeviceError):
        gpus.read_gpu(gpu.uuid)
    gpu.error = 0
    assert (gpus.read_gpu(gpu.uuid).index, gpus.read_gpu(gpu.uuid).healthy) == (0, True)
    assert {report.uuid for report in gpus.read()} == {gpu.uuid, other.uuid}
    assert gpus.nameless() == {}


def test_a_gpu_that_tells_its_uuid_at_last_is_to_be_read(library, begin, monkeypatch):
    """No record names a GPU that was empty: it would stay out of the fleet until its agent is restarted."""
    gpu, other = library.gpu(error=TIMEOUT), library.gpu()
    gpus = begin()
    assert [report.uuid for report in gpus.read()] == [other.uuid]
    assert gpus.troubled(0.01) == ()
    gpu.error = 0
    assert gpus.troubled(0.01) == ()  # it was asked just now
    monkeypatch.setattr(inventory, "NAMES_EVERY_S", 0.0)
    gpus._inventory._ask_names_at = 0.0
    assert gpus.troubled(0.01) == (gpu.uuid,)
    assert gpus.troubled(0.01) == ()
    assert gpus.read_gpu(gpu.uuid).healthy
    assert gpus.nameless() == {}


def test_an_error_of_an_unknown_gpu_has_all_read_and_breaks_none(library, begin):
    """One event that cannot be placed would take every GPU of the node out of the fleet."""
    gpu, other = library.gpu(), library.gpu()
    gpus = begin()
    unknown = library.gpu(error=LOST)
    library.events = [(unknown, 0x8, 79)]
    assert set(gpus.troubled(0.01)) == {gpu.uuid, other.uuid}
    assert all(gpus.read_gpu(each.uuid).healthy for each in (gpu, other))


def test_a_failed_wait_has_every_gpu_read_and_does_not_spin(library, one, monkeypatch):
    """The driver says again and again that a GPU is lost: the agent would burn a core, or learn nothing."""
    gpu, gpus = one
    library.events = [LOST] * 5
    monkeypatch.setattr(events, "STEP_S", 0.01)
    assert gpus.troubled(0.01) == (gpu.uuid,)
    assert len(library.events) == 4


def test_a_driver_without_events_is_waited_with(library, begin):
    library.missing = {"nvmlEventSetCreate"}
    library.gpu()
    assert begin().troubled(0.01) == ()


def test_a_driver_whose_version_is_no_text_is_said_in_a_sentence(library, begin, monkeypatch):
    """A person at a node with a damaged driver would see a traceback."""

    def no_text(_self, buffer, _size):
        buffer.value = b"580.\xfc"
        return 0

    monkeypatch.setattr(Library, "nvmlSystemGetDriverVersion", no_text)
    with pytest.raises(port.BackendError, match="not valid text"):
        begin()


@pytest.mark.parametrize(
    ("call", "of"),
    [("nvmlDeviceGetName", {"gpu"}), ("nvmlDeviceGetUUID", {"gpu", "mig", "ghost"})],
    ids=["its name", "its UUID"],
)
def test_an_answer_that_is_no_text_is_an_error_of_its_gpu_alone(library, begin, monkeypatch, call, of):
    """It would end the agent, and with it what runs on the node's other GPUs; or it would stop listening."""
    gpu, other = library.gpu(), library.gpu()
    gpus = begin()
    answer, broken_ones = getattr(Library, call), {gpu}

    def no_text(self, handle, buffer, size):
        code = answer(self, handle, buffer, size)
        found, _ = self._of(handle, of)
        buffer.value = b"\xfc" if found in broken_ones else buffer.value
        return code

    monkeypatch.setattr(Library, call, no_text)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})  # the function was asked for at the start
    if call == "nvmlDeviceGetUUID":
        broken_ones.add(unknown := library.gpu())
        library.events = [(unknown, 0x8, 79)]
        assert set(gpus.troubled(0.01)) == {gpu.uuid, other.uuid}
    broken, fine = gpus.read()
    assert (broken.uuid, broken.lost) == (gpu.uuid, True)
    assert "not valid text" in broken.health_message
    assert (fine.uuid, fine.lost) == (other.uuid, False)
    assert gpus.processes(gpu.uuid, gpu.uuid) == ()  # by its UUID it is still found


def test_an_agent_that_may_not_see_instances_does_not_start(library, begin):
    """It would find no instance of its own, and think all slices gone."""
    library.gpu(errors={"list": FORBIDDEN})
    with pytest.raises(port.BackendError, match="root with CAP_SYS_ADMIN"):
        begin()


def test_rights_lost_later_make_no_instances_vanish(library, one):
    """All slices of the GPU would be thought gone, and their places given to others."""
    gpu, gpus = one
    library.instance(gpu, "1g.5gb", 0, 7)
    gpu.errors["list"] = FORBIDDEN
    assert gpus.read()[0].lost
    gpu.errors["create"] = FORBIDDEN
    with pytest.raises(port.NoPermissionError):
        gpus.create_gpu_instance(gpu.uuid, 19, 3, 1)


def test_more_instances_than_the_profile_says_are_all_found(library, begin):
    """An instance that is not seen is capacity that is given twice."""
    gpu = library.gpu()
    for number in range(6):
        library.instance(gpu, "7g.40gb", 0, number, device=False)
    (report,) = begin().read()
    assert [i.gi_id for i in report.instances] == list(range(6))


def test_profiles_that_appear_with_mig_mode_are_seen(library, begin):
    """A GPU that was read with MIG off would have no profiles until the agent's restart."""
    gpu = library.gpu(mig=[0, 0], errors={"profiles": UNSUPPORTED})
    gpus = begin()
    assert gpus.read()[0].profiles == ()
    gpu.mig, gpu.errors = [1, 1], {}
    assert len(gpus.read()[0].profiles) == 7


def test_a_gpu_that_the_driver_does_not_list_any_more_is_lost(library, begin):
    """Its slices would look as if they had never been."""
    library.gpu()
    gone = library.gpu()
    gpus = begin()
    library.gpus.remove(gone)
    gone.gone()
    assert [(report.uuid == gone.uuid, report.lost) for report in gpus.read()] == [(False, False), (True, True)]
    assert gpus.read_gpu(gone.uuid).lost
