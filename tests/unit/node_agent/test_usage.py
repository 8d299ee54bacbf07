"""What an agent says of the use of slices: whose it is, since when nothing is done, and when it does not know."""

import asyncio
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from factories.gpus.shared_devices import ON_MIG, WHOLE
from msgspec.structs import replace

from sluice.contracts.proto.snapshots import snapshot_from_proto, snapshot_to_proto, usage_from_proto, usage_to_proto
from sluice.runtime.clock import SystemClock
from sluice.runtime.prometheus import metrics
from sluice.runtime.prometheus.metrics import MetricRegistry
from sluice_node_agent.core.events import DeviceErrorKind
from sluice_node_agent.core.instructions import ListHolders
from sluice_node_agent.core.usage import DeviceUse, ProcessUse, UsageTracker
from sluice_node_agent.device.port import GpuLostError
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.shell.agent_metrics import DEVICE_REFUSALS, agent_samples, usage_samples
from sluice_node_agent.shell.commands.hardware_command import change_hardware
from sluice_node_agent.shell.hami_metrics import hami_samples
from sluice_node_agent.shell.runner.executors import StepExecutors
from sluice_node_agent.shell.runner.usage_poller import UsagePoller

PATIENCE_S = 10.0


class Watched:
    """A node's book of looks, and its slices' use by name."""

    def __init__(self, node) -> None:
        self.node, self.book = node, UsageTracker()

    def look(self, now: float, **use) -> None:
        snapshot = self.node.agent.snapshot()
        for gpu, devices in self.book.wanted(snapshot).items():
            self.book.look(snapshot, gpu, [seen(device, **use) for device in devices], now)

    def told(self, now: float):
        usage = self.book.told(self.node.agent.snapshot(), 30.0, now)
        return {each.allocation: each for each in usage.slices}


def seen(device, *processes, memory_mib=0, busy=None, sm=None) -> DeviceUse:
    return DeviceUse(device, memory_mib, busy, sm, busy, tuple(processes))


def test_only_devices_of_slices_are_looked_at(node):
    """The driver would be asked all day about unassigned GPUs."""
    watched = Watched(node)
    assert watched.book.wanted(node.agent.snapshot()) == {}
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)), node.booking("a2", (2, None, 0, 8)))
    uuid = node.word("a1").devices[0].uuid
    assert watched.book.wanted(node.agent.snapshot()) == {node.gpus[0]: (uuid,), node.gpus[2]: (node.gpus[2],)}


def test_a_slice_idles_from_the_first_look_that_saw_nothing_and_no_longer_than_that(node):
    """An unwatched hour would count as idle, and the slice be asked back."""
    node.ready(node.booking("a1", (2, None, 0, 8)))
    watched = Watched(node)
    before = watched.told(100.0)["a1"]
    assert (before.age_s, before.idle_s, before.memory_mib) == (None, None, 40960)
    watched.look(100.0, busy=50.0, memory_mib=700)
    used = watched.told(110.0)["a1"]
    assert (used.busy_percent, used.memory_used_mib, used.age_s, used.idle_s) == (50.0, 700, 10.0, None)
    watched.look(200.0, busy=0.0)
    watched.look(300.0, busy=0.9)
    idle = watched.told(330.0)["a1"]
    assert (idle.idle_s, idle.watched_s, idle.age_s) == (130.0, 230.0, 30.0)
    watched.look(400.0, busy=1.0)
    assert watched.told(400.0)["a1"].idle_s is None


def test_slices_that_are_gone_are_forgotten_also_without_a_question(node):
    """An agent whose metrics are never scraped would grow by every past slice, until it is killed."""
    node.ready(node.booking("a1", (2, None, 0, 8)))
    snapshot, gpu = node.agent.snapshot(), node.gpus[2]
    book = UsageTracker()
    book.look(snapshot, gpu, [seen(gpu, busy=50.0)], 100.0)
    book.look(replace(snapshot, slices=()), gpu, [], 200.0)
    (told,) = book.told(snapshot, 30.0, 300.0).slices
    assert told.age_s is None


def test_an_unknown_use_is_not_called_idle(node):
    """A MIG device before Hopper does not say how busy it is: a process on it may work, an empty one does not."""
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)))
    watched = Watched(node)
    (devices,) = watched.book.wanted(node.agent.snapshot()).values()
    snapshot, gpu = node.agent.snapshot(), node.gpus[0]
    watched.look(100.0)
    assert watched.told(150.0)["a1"].idle_s == 50.0
    process = ProcessUse(7, "pod-1", 600, None)
    watched.book.look(snapshot, gpu, [seen(devices[0], process, memory_mib=600)], 200.0)
    unknown = watched.told(300.0)["a1"]
    assert (unknown.idle_s, unknown.busy_percent, unknown.processes) == (None, None, 1)
    watched.look(400.0)
    assert watched.told(410.0)["a1"].idle_s == 10.0


@pytest.mark.parametrize("place", [ON_MIG, WHOLE])
def test_tenants_of_one_device_are_told_apart_by_their_processes(node, place):
    node.ready(node.share("a1", place, owner="pod-1"), node.share("a2", place, memory_mib=2000, owner="pod-2"))
    watched = Watched(node)
    snapshot = node.agent.snapshot()
    ((gpu, (device,)),) = watched.book.wanted(snapshot).items()
    one, two = ProcessUse(1, "pod-1", 300, 20.0), ProcessUse(2, "pod-1", 200, 15.0)
    watched.book.look(snapshot, gpu, [seen(device, one, two, memory_mib=900, busy=35.0, sm=30.0)], 100.0)
    told = watched.told(100.0)
    assert (told["a1"].memory_used_mib, told["a1"].busy_percent, told["a1"].sm_percent) == (500, 35.0, 30.0)
    assert (told["a2"].memory_used_mib, told["a2"].busy_percent, told["a2"].idle_s) == (0, 0.0, 0.0)
    assert (told["a1"].memory_mib, told["a2"].memory_mib) == (1000, 2000)
    assert told["a1"].mode == "mps"

    # The driver says nothing of processes: what both do together is neither's, and nothing together is both's.
    one, other = ProcessUse(1, "pod-1", None, None), ProcessUse(3, "pod-2", 100, None)
    watched.book.look(snapshot, gpu, [seen(device, one, other, busy=60.0, sm=30.0)], 200.0)
    told = watched.told(200.0)
    assert {(told[a].busy_percent, told[a].sm_percent, told[a].idle_s) for a in ("a1", "a2")} == {(None, None, None)}
    assert (told["a1"].memory_used_mib, told["a2"].memory_used_mib) == (None, 100)
    watched.book.look(snapshot, gpu, [seen(device, one, other, busy=0.0)], 300.0)
    assert [watched.told(310.0)[a].idle_s for a in ("a1", "a2")] == [10.0, 10.0]


def test_the_answer_says_the_same_after_the_wire(node):
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)), node.share("a2", WHOLE))
    watched = Watched(node)
    watched.look(100.0, busy=12.5, sm=3.0, memory_mib=77)
    node.serve(node.booking("a3", (1, "1g.5gb", 0, 1)))
    usage = watched.book.told(node.agent.snapshot(), 30.0, 160.0)
    assert {each.age_s for each in usage.slices} == {None, 60.0}
    assert usage_from_proto(usage_to_proto(usage)) == usage


def test_who_watches_sees_each_slice_by_its_owner_and_only_what_is_known(node):
    """A slice with unknown use would be a zero on the dashboard, and its owner be blamed."""
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)), node.booking("a2", (2, None, 0, 8)))
    watched = Watched(node)
    snapshot = node.agent.snapshot()
    device, whole = node.word("a1").devices[0].uuid, node.gpus[2]
    process = ProcessUse(7, "pod-1", 600, None)
    watched.book.look(snapshot, node.gpus[0], [seen(device, process, memory_mib=600)], 100.0)
    watched.book.look(snapshot, whole, [seen(whole, busy=0.0)], 100.0)
    usage = watched.book.told(snapshot, 30.0, 160.0)
    samples = [(each.metric.name.removeprefix("sluice_slice_"), each) for each in usage_samples(usage)]
    assert {(name, each.labels[3]): each.value for name, each in samples} == {
        ("memory_bytes", device): 4864 * 1024**2,
        ("memory_used_bytes", device): 600 * 1024**2,
        ("memory_bytes", whole): 40960 * 1024**2,
        ("memory_used_bytes", whole): 0,
        ("busy_ratio", whole): 0.0,
        ("memory_busy_ratio", whole): 0.0,
        ("idle_seconds", whole): 60.0,
    }
    (labels,) = {each.labels for _, each in samples if each.labels[3] == device}
    assert labels == ("default", "pod", node.gpus[0], device, "1g.5gb", "exclusive")


def test_who_watches_sees_each_gpus_memory_slices(node):
    """A GPU that is full, and one that another program has cut up, would look like one with room."""
    node.backend.create_compute_instance(node.gpus[1], node.backend.create_gpu_instance(node.gpus[1], 9, 4, 4))
    node.live()
    node.ready(node.booking("a1", (0, "2g.10gb", 0, 2)))
    counts = MetricRegistry()
    with counts.collecting_from(lambda: agent_samples(node.agent)):
        samples = {(m.name, *labels): value for m, by in counts.samples().items() for labels, value in by.items()}
    model = node.agent.snapshot().gpus[0].model
    name = "sluice_agent_gpu_memory_slices"
    states = ("total", "allocated", "quarantined", "foreign")
    assert [samples[name, node.gpus[0], model, state] for state in states] == [8, 2, 0, 0]
    assert [samples[name, node.gpus[1], model, state] for state in states] == [8, 0, 0, 4]
    assert samples["sluice_agent_gpu_creatable", node.gpus[0], model, "2g.10gb"] == 2


class SlowDevices:
    """A GPU on which everything takes until the test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.looked = asyncio.Event(), None, 0

    def processes(self, _gpu, _uuid):
        self.loop.call_soon_threadsafe(self.begun.set)
        asyncio.run_coroutine_threadsafe(self.go_on.wait(), self.loop).result(PATIENCE_S)
        return ()

    def uses(self, _gpu, devices):
        self.looked += 1
        return tuple(seen(device, busy=0.0) for device in devices)


def _executors(node, threads, backend):
    given = {"mps": None, "helpers": None, "calls": KubeletCalls(None)}  # these orders need none of them
    return StepExecutors(backend, node.journal, node.tickets, node.marks, threads, **given)


async def test_a_gpu_that_is_worked_on_is_not_looked_at(node, threads):
    """A slice would wait for a look at who uses what, or the driver be called twice at once."""
    backend = SlowDevices()
    backend.loop, backend.go_on = asyncio.get_running_loop(), asyncio.Event()
    async with _executors(node, threads, backend) as step_executors:
        order = ListHolders(1, node.gpus[0], str(node.gpus[0]))
        work = asyncio.create_task(step_executors.executors(str)[ListHolders].run(order))
        await asyncio.wait_for(backend.begun.wait(), PATIENCE_S)
        assert await step_executors.uses(node.gpus[0], ("x",)) is None
        assert await step_executors.uses(node.gpus[1], ("x",)) == (seen("x", busy=0.0),)
        backend.go_on.set()
        await asyncio.wait_for(work, PATIENCE_S)
        assert await step_executors.uses(node.gpus[0], ("x",)) == (seen("x", busy=0.0),)
    assert backend.looked == 2


class Times:
    """A clock that only its test moves; the wall clock may be set."""

    def __init__(self) -> None:
        self.now, self.unix_s = 1000.0, 1_800_000_000.0

    def pass_(self, seconds: float) -> None:
        self.now, self.unix_s = self.now + seconds, self.unix_s + seconds

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.unix_s, UTC)


async def test_the_node_tells_since_when_a_slice_idles_and_not_with_each_look(node):
    """An idle pod would never be evicted, a busy one would be, or each look at 1,000 nodes be a message."""
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)), node.booking("a2", (2, None, 0, 8)))
    times, busy, generations = Times(), {node.gpus[0]: 0.0, node.gpus[2]: 40.0}, set()

    async def look(gpu, devices):
        return tuple(seen(device, busy=busy[gpu]) for device in devices)

    async def offer(event):
        node.handle(event)

    async def idle_since(seconds: float) -> dict[str, int]:
        for _ in range(round(seconds / 30)):
            times.pass_(30)
            await watch.look_once()
            generations.add(node.agent.snapshot().generation)
        return {each.booking.allocation: each.idle_since for each in node.agent.snapshot().slices}

    watch = UsagePoller(node.agent, look, times, every_s=30.0, offer=offer)
    since = int(times.unix_s) + 30
    assert await idle_since(300) == {"a1": 0, "a2": 0}
    assert await idle_since(600) == {"a1": since, "a2": 0}
    times.unix_s += 7200  # the wall clock is set
    assert await idle_since(600) == {"a1": since, "a2": 0}
    assert len(generations) == 2
    busy[node.gpus[0]] = 1.0
    assert await idle_since(30) == {"a1": 0, "a2": 0}
    assert snapshot_from_proto(snapshot_to_proto(node.agent.snapshot())) == node.agent.snapshot()


async def unwanted(event) -> None:
    """Nothing idles long enough."""
    raise AssertionError(event)


async def test_a_gpu_that_cannot_be_looked_at_hides_no_other(node):
    """One lost GPU, and the use of all slices of the node would be unknown."""
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)), node.booking("a2", (2, None, 0, 8)))

    async def look(gpu, devices):
        if gpu == node.gpus[0]:
            raise GpuLostError(f"{gpu}: it does not answer")
        return tuple(seen(device, busy=40.0) for device in devices)

    watch = UsagePoller(node.agent, look, SystemClock(), every_s=30.0, offer=unwanted)
    await watch.look_once()
    told = {each.allocation: each for each in watch.told().slices}
    assert (told["a1"].age_s, told["a2"].busy_percent) == (None, 40.0)
    assert told["a2"] == replace(told["a2"], memory_used_mib=0)
    assert {each.metric.name for each in watch.now()} >= {"sluice_slice_memory_bytes", "sluice_slice_busy_ratio"}


async def test_who_wants_no_looks_has_none(node):
    """A setting that says never, and the driver is asked all the same."""
    node.ready(node.booking("a2", (2, None, 0, 8)))
    look = Mock(side_effect=AssertionError("not sampled"))
    watch = UsagePoller(node.agent, look, SystemClock(), every_s=0.0, offer=unwanted)
    await asyncio.wait_for(watch.run(), PATIENCE_S)
    assert list(watch.now()) == []
    assert [each.age_s for each in watch.told().slices] == [None]


def test_who_has_dashboards_of_hami_finds_their_names(node):
    """A fleet that moves over would be blind until every dashboard is drawn again."""
    node.ready(node.booking("a1", (0, "1g.5gb", 0, 1)), node.share("a2", WHOLE, memory_mib=2000, sm_partition=25))
    watched = Watched(node)
    watched.look(100.0, busy=40.0, memory_mib=300)
    snapshot = node.agent.snapshot()
    samples = hami_samples(snapshot, watched.book.told(snapshot, 30.0, 160.0))
    found = {(each.metric.name.removeprefix("hami_"), *each.labels): each.value for each in samples}
    a100, whole, model, uuid = node.gpus[0], node.gpus[2], snapshot.gpus[0].model, node.word("a1").devices[0].uuid
    mib = 1024**2
    assert found["gpu_memory_limit_bytes", node.name, a100, "0", model] == 40960 * mib
    assert found["gpu_memory_allocated_bytes", node.name, a100, "0", "100", model] == 4864 * mib
    assert found["gpu_core_allocated_ratio", node.name, a100, "0", model] == round(100 * 14 / 108, 1)
    assert found["gpu_core_allocated_ratio", node.name, whole, "2", model] == 25
    assert found["gpu_shared_count", node.name, whole, "2", model] == 1
    assert found["node_gpu_memory_allocated_ratio", node.name, whole, "2"] == 2000 / 40960
    (mig,) = [key for key in found if key[0] == "node_gpu_mig_instance_info"]
    assert mig[1:6] == (node.name, a100, "0", uuid, "1g.5gb")
    assert mig[7:] == ("0", "0", "1")
    assert found["vgpu_memory_allocated_bytes", "default", node.name, "pod", "0", whole] == 2000 * mib
    assert found["vgpu_memory_limit_bytes", "default", "pod", "main", "0", whole] == 2000 * mib
    assert found["vgpu_memory_used_bytes", "default", "pod", "main", "0", a100] == 300 * mib
    assert found["container_device_utilization_ratio", "default", "pod", "main", "0", a100] == 40.0
    assert found["container_last_kernel_elapsed_seconds", "default", "pod", "main", "0", a100] == 0


async def test_refusals_are_counted_by_step_and_kind(node, threads, monkeypatch):
    """A GPU that refuses all it is asked would be seen by its users first."""
    own = MetricRegistry()
    monkeypatch.setattr(metrics, "count", own.count)
    monkeypatch.setattr(node.backend, "processes", Mock(side_effect=GpuLostError("it does not answer")))
    async with _executors(node, threads, node.backend) as step_executors:
        order = ListHolders(1, node.gpus[0], str(node.gpus[0]))
        result = await asyncio.wait_for(step_executors.executors(str)[ListHolders].run(order), PATIENCE_S)
    assert result.kind == DeviceErrorKind.GPU_LOST
    assert own.value(DEVICE_REFUSALS, "ListHolders", "GpuLost") == 1


@pytest.mark.parametrize(("option", "value"), [("--busy-percent", "101"), ("--memory-mib", "-1")])
def test_a_simulated_process_that_could_not_be_is_refused(option, value, capsys):
    """A demo would show a GPU that works more than all the time."""
    with pytest.raises(SystemExit):
        change_hardware(["hardware", "n1", "start-process", "GPU-1", option, value])
    assert option in capsys.readouterr().err
