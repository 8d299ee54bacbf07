"""What devices are used for, as simulated ones and NVML report it: never more than a driver would, never a guess."""

from types import SimpleNamespace

import pynvml
import pytest
from factories.gpus.nvml import ALWAYS

from sluice_node_agent.device.port import GpuLostError

POD, OTHER = "6a1f0a52-8a52-4a1e-9f0c-0b9d1d6c2f11", "0d9c7f3e-3f6b-4a0e-8a52-5b1de0b1a9c7"
A100S = '{model="a100-40gb"}, {model="a100-40gb", mig=false}'
H100S = '{model="NVIDIA H100 80GB HBM3"}, {model="NVIDIA H100 80GB HBM3", mig=false}'


def look(rig, gpu, *devices):
    """The second of two looks: some drivers report the time between them."""
    rig.backend.uses(gpu, devices)
    return rig.backend.uses(gpu, devices)


def test_a_whole_gpu_tells_what_it_does_and_which_process_does_it(make_devices):
    """A tenant that lets its GPU stand would look like one that works on it."""
    rig = make_devices(A100S)
    _, gpu = rig.uuids()
    (idle,) = look(rig, gpu, gpu)
    assert (idle.uuid, idle.memory_mib, idle.busy_percent, idle.processes) == (gpu, 0, 0.0, ())
    worker, sleeper = rig.start_process(gpu, owner=POD), rig.start_process(gpu, owner=OTHER)
    rig.use(worker, memory_mib=3000, busy_percent=60)
    rig.use(sleeper, memory_mib=500, busy_percent=0)
    (use,) = look(rig, gpu, gpu)
    assert (use.memory_mib, use.busy_percent, use.sm_percent) == (3500, 60.0, None)  # no GPM before Hopper
    assert {(each.pid, each.owner, each.memory_mib, each.busy_percent) for each in use.processes} == {
        (worker, POD, 3000, 60.0),
        (sleeper, OTHER, 500, 0.0),
    }


def test_a_mig_device_before_hopper_tells_its_memory_and_not_how_busy_it_is(make_devices):
    """A slice that nothing is known of would be called idle, and its owner be asked to give it back."""
    rig = make_devices(A100S)
    gpu, _ = rig.uuids()
    _, uuid = rig.make("3g.20gb", 4)
    _, other = rig.make("1g.5gb", 0)
    pid = rig.start_process(uuid, owner=POD)
    rig.use(pid, memory_mib=700, busy_percent=90)
    found = {use.uuid: use for use in look(rig, gpu, uuid, other)}
    assert (found[uuid].memory_mib, found[uuid].busy_percent, found[uuid].sm_percent) == (700, None, None)
    assert [(each.pid, each.memory_mib, each.busy_percent) for each in found[uuid].processes] == [(pid, 700, None)]
    assert (found[other].memory_mib, found[other].processes) == (0, ())


def test_a_mig_device_of_a_hopper_tells_how_busy_it_is(make_devices):
    """Each tenant of a GPU would see what all of them together do."""
    rig = make_devices(H100S)
    gpu, whole = rig.uuids()
    _, one = rig.make("3g.40gb", 4)
    _, two = rig.make("1g.10gb", 0)
    rig.use(rig.start_process(one, owner=POD), memory_mib=700, busy_percent=80)
    found = {use.uuid: use for use in look(rig, gpu, one, two)}
    assert (found[one].busy_percent, found[one].sm_percent) == (80.0, 80.0)
    assert (found[two].busy_percent, found[two].sm_percent) == (0.0, 0.0)
    assert [each.busy_percent for each in found[one].processes] == [None]  # of processes NVML tells nothing there
    rig.use(rig.start_process(whole, owner=POD), memory_mib=1, busy_percent=30)
    (use,) = look(rig, whole, whole)
    assert (use.busy_percent, use.sm_percent) == (30.0, 30.0)


def test_only_what_is_there_and_was_asked_for_is_told(make_devices):
    """One device that went meanwhile would hide all the others of its GPU."""
    rig = make_devices(H100S)
    gpu, whole = rig.uuids()
    gi_id, uuid = rig.make("3g.40gb", 4)
    _, kept = rig.make("1g.10gb", 0)
    assert {use.uuid for use in look(rig, gpu, uuid, kept)} == {uuid, kept}
    rig.backend.destroy_compute_instance(gpu, gi_id, uuid)
    rig.backend.destroy_gpu_instance(gpu, gi_id, 4, 4)
    assert [use.uuid for use in rig.backend.uses(gpu, (uuid, gpu, "MIG-none", kept))] == [kept]
    assert rig.backend.uses(whole, (uuid,)) == ()
    again_id, again = rig.make("3g.40gb", 4)
    (fresh,) = rig.backend.uses(gpu, (again,))
    assert fresh.memory_mib == 0
    assert again_id is not None


def test_an_mps_server_is_no_use_of_a_tenant(make_devices):
    """Its clients' work would be shown twice."""
    rig = make_devices(A100S)
    _, gpu = rig.uuids()
    server = rig.start_process(gpu, kind="mps")
    client = rig.start_process(gpu, owner=POD)
    rig.use(server, memory_mib=100, busy_percent=0)
    rig.use(client, memory_mib=900, busy_percent=40)
    (use,) = look(rig, gpu, gpu)
    assert [(each.pid, each.busy_percent) for each in use.processes] == [(client, 40.0)]
    assert use.memory_mib == 1000


@pytest.mark.parametrize("which", [0, 1])
def test_a_gpu_that_is_lost_says_so(make_devices, which):
    """Its last numbers would be shown for ever."""
    rig = make_devices(H100S)
    gpu = rig.uuids()[which]
    rig.lose(which)
    with pytest.raises(GpuLostError):
        rig.backend.uses(gpu, (gpu,))


# -- what only a driver does ----------------------------------------------------------------------------------------


def test_where_all_clients_are_counted_as_their_server_nothing_is_said_of_each(make_nvml):
    """Every tenant would look idle, and a busy one be asked to give its share back."""
    rig = make_nvml(A100S)
    _, gpu = rig.uuids()
    server, client = rig.start_process(gpu, kind="mps"), rig.start_process(gpu, owner=POD)
    rig.use(server, memory_mib=100, busy_percent=80)
    rig.use(client, memory_mib=900, busy_percent=0)
    (use,) = rig.backend.uses(gpu, (gpu,))
    assert (use.busy_percent, [(each.pid, each.busy_percent) for each in use.processes]) == (80.0, [(client, None)])


def test_who_works_is_not_idle_because_the_clock_was_set_back(make_nvml, monkeypatch):
    """The driver's samples have the wall clock's times: an hour of them would count as seen, and the pod be evicted."""
    rig = make_nvml(A100S)
    _, gpu = rig.uuids()
    pid = rig.start_process(gpu, owner=POD)
    kept, hour_us = [], 3_600_000_000

    def told_at(now_us, percent):
        """What the process does after the driver took one more sample; it keeps those before."""
        monkeypatch.setattr("time.time_ns", lambda: now_us * 1_000)
        kept.append(SimpleNamespace(pid=pid, timeStamp=now_us - 10, smUtil=percent))
        (use,) = rig.backend.uses(gpu, (gpu,))
        return use.processes[0].busy_percent

    def sampled(_device, since_us):
        if newer := [sample for sample in kept if sample.timeStamp > since_us]:
            return newer
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", sampled)
    assert [told_at(9 * hour_us + second, 60) for second in (1, 1_000_000)] == [60.0, 60.0]
    assert told_at(8 * hour_us, 50) is None
    assert [told_at(8 * hour_us + second, 40) for second in (1_000_000, 2_000_000)] == [40.0, 40.0]


@pytest.mark.parametrize(
    ("symbol", "code"),
    [
        ("nvmlGpmSampleGet", pynvml.NVML_ERROR_NOT_SUPPORTED),
        ("nvmlGpmSampleAlloc", pynvml.NVML_ERROR_UNKNOWN),
        ("nvmlGpmMetricsGet", pynvml.NVML_ERROR_UNKNOWN),
    ],
)
def test_a_driver_that_fails_at_gpm_still_tells_the_rest(make_nvml, symbol, code):
    """One call that a driver does badly, and nothing is known of any slice of the node."""
    rig = make_nvml(H100S)
    _, gpu = rig.uuids()
    rig.use(rig.start_process(gpu, owner=POD), memory_mib=10, busy_percent=45)
    rig.backend.uses(gpu, (gpu,))
    rig.machine.fail(symbol, code, ALWAYS)
    (use,) = rig.backend.uses(gpu, (gpu,))
    assert (use.busy_percent, use.sm_percent) == (45.0, None), "as without GPM"
    rig.machine.fail(symbol, code, 0)
    rig.backend.uses(gpu, (gpu,))
    (use,) = rig.backend.uses(gpu, (gpu,))
    assert use.sm_percent == 45.0


def test_samples_are_given_back_to_the_driver(make_nvml, monkeypatch):
    """An agent that runs for months would fill its memory with samples of slices that are gone."""
    held = []
    allocate, free = pynvml.nvmlGpmSampleAlloc, pynvml.nvmlGpmSampleFree
    monkeypatch.setattr(pynvml, "nvmlGpmSampleAlloc", lambda: held.append(1) or allocate())
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", lambda sample: held.pop() and free(sample))
    rig = make_nvml(H100S)
    gpu, whole = rig.uuids()
    _, one = rig.make("3g.40gb", 4)
    _, two = rig.make("1g.10gb", 0)
    for _ in range(5):
        rig.backend.uses(gpu, (one, two))
        rig.backend.uses(whole, (whole,))
    assert len(held) == 3
    rig.backend.uses(gpu, (one,))
    assert len(held) == 2
    rig.reopen()
    assert held == []
