"""How steps are carried out: in parallel where they may, in order where they must, and refused with a reason."""

import asyncio
import threading
from unittest.mock import Mock

import pytest
from factories.scheduling.allocator import gpu_report
from factories.tickets import make_ticket

from sluice.contracts.ids import AllocationId, GpuUuid, HomeId, RequestId
from sluice.contracts.messages import InstanceReport
from sluice_node_agent.core import events as ev
from sluice_node_agent.core import instructions as do
from sluice_node_agent.core.journal_records import MpsLimits, SharedDeviceGone, Tombstone
from sluice_node_agent.csi.pod_directories import PodDirectories
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.port import NotSupportedError
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.shell.journal.journal import Journal, JournalError
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.runner.executors import StepExecutors, ThreadPools
from sluice_node_agent.shell.tickets.tickets import Tickets

GPU, HOME = GpuUuid("GPU-1"), HomeId("h1")
UID = "7d0b1f4e-3c2a-4b1d-9e8f-0a1b2c3d4e5f"
LIMITS = MpsLimits(active_thread_percentage=50, memory_mib=1024)
PATIENCE_S = 10.0


class Backend:
    def __init__(self, gpus=8):
        """`gate` opens when `gpus` calls are at it at the same time."""
        self.gate = threading.Barrier(gpus)
        self.modes = []
        self.report = None

    def instance_at(self, gpu, profile_id, start, size):
        """Nothing is there yet."""

    def create_gpu_instance(self, gpu, profile_id, start, size):
        self.gate.wait(PATIENCE_S)
        return profile_id

    def set_exclusive_process(self, gpu, *, exclusive):
        if gpu == "MIG":
            raise NotSupportedError("compute modes are not for MIG")
        self.modes.append((gpu, exclusive))

    def read_gpu(self, gpu):
        return self.report


class Daemons:
    def __init__(self):
        self.asked = []

    def _take(self, order):
        if order.home == "bad":
            raise MpsError("the daemon of home bad does not answer")
        self.asked.append(order)

    def start(self, order):
        self._take(order)
        return 7, 70

    def look(self, order):
        self._take(order)
        return ev.MpsSeen(order.token, alive=True, fault="", waiting=(5,))

    set_limits = terminate_clients = stop = _take


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "agent", "n1")
    yield opened
    opened.close()


@pytest.fixture
def executors(journal, threads, tmp_path):
    """Executors of a node, of which a test names only what it is about; to be entered."""
    helpers = ThreadPools.for_nodes(1)

    def make(backend=None, *, journal=journal, tickets=None, **more):
        tickets, marks = tickets or Tickets(tmp_path / "t"), OwnershipMarks(tmp_path / "m", "boot")
        more = {"mps": Daemons(), "helpers": helpers, "calls": KubeletCalls(None), **more}
        return StepExecutors(backend or Backend(), journal, tickets, marks, threads, **more)

    yield make
    helpers.shut_down()


def _save(number):
    name = AllocationId(f"a{number}")
    return do.SaveJournal(number, Tombstone(allocation=name, request=RequestId("r"), revision=1, cause="x"))


async def _do(step_executors, order):
    return await asyncio.wait_for(step_executors.executors(str)[type(order)].run(order), PATIENCE_S)


def _mps_orders(home):
    return [
        do.StartMps(1, home, GPU, "MIG-1", "default", 0, LIMITS),
        do.SetMpsLimits(2, home, LIMITS),
        do.WatchMps(3, home, 7, 70, 0),
        do.TerminateMpsClients(4, home, (9,)),
        do.StopMps(5, home, 7, 70),
    ]


async def test_neither_journal_nor_tickets_nor_daemons_wait_for_a_gpu(executors):
    """While every GPU is busy for seconds, other slices get their records, tickets and daemons."""
    backend = Backend(gpus=9)  # eight calls stay until the ninth party comes
    async with executors(backend, mps=Daemons()) as step_executors:
        orders = [do.CreateGpuInstance(number, GpuUuid(f"GPU-{number}"), number, 0, 1) for number in range(8)]
        busy = asyncio.gather(*(_do(step_executors, order) for order in orders))
        try:
            assert await _do(step_executors, _save(1)) == ev.JournalSaved(1)
            assert await _do(step_executors, make_ticket("t1", token=2)) == ev.TicketMade(2)
            assert await _do(step_executors, do.RemoveTicket(3, "t1")) == ev.TicketRemoved(3)
            assert await _do(step_executors, do.StopMps(4, HOME, 7, 70)) == ev.MpsStopped(4)
            assert not busy.done()
        finally:
            await asyncio.to_thread(backend.gate.wait, PATIENCE_S)
            await busy


async def test_records_are_on_disk_in_the_order_of_their_instructions(executors, journal):
    """A later record of a slice is never overtaken by an earlier one."""
    async with executors() as step_executors:
        saves = [asyncio.create_task(_do(step_executors, _save(number))) for number in range(500)]
        done = await asyncio.gather(*saves)
    assert done == [ev.JournalSaved(number) for number in range(500)]
    names = [record.allocation for record in journal.records() if isinstance(record, Tombstone)]
    assert names == [f"a{number}" for number in range(500)]


async def test_a_journal_that_refuses_ends_the_agent_in_one_sentence(executors):
    """No step is taken without its record, and no task waits without end for a record that will never be."""
    full = Mock(node="n1")
    full.write.side_effect = JournalError("the journal cannot be written (No space left on device)")
    async with executors(journal=full) as step_executors:
        saves = [asyncio.create_task(_do(step_executors, _save(number))) for number in range(20)]
        done = await asyncio.gather(*saves, return_exceptions=True)
    assert {str(error) for error in done} == {"the journal cannot be written (No space left on device)"}
    assert {type(error) for error in done} == {JournalError}


async def test_only_what_others_are_told_waits_for_the_disk(executors):
    """A slice waits for its disk twice in all, not at each step; and it is not published as gone before."""
    synced, written = threading.Event(), []

    class Slow:
        node, is_long = "n1", False

        def write(self, records):
            written.extend(records)

        def sync(self):
            assert synced.wait(PATIENCE_S)

    async with executors(journal=Slow()) as step_executors:
        gone = [asyncio.create_task(_do(step_executors, _save(number))) for number in range(3)]
        making = do.SaveJournal(7, SharedDeviceGone(home=HOME))
        assert await _do(step_executors, making) == ev.JournalSaved(7)
        assert not any(task.done() for task in gone)
        synced.set()
        assert await asyncio.gather(*gone) == [ev.JournalSaved(number) for number in range(3)]
    assert making.record in written
    assert [each for each in written if each != making.record] == [_save(number).record for number in range(3)]


async def test_records_are_in_the_file_in_the_order_in_which_they_were_decided(executors, tmp_path):
    """After a crash nothing is found that came after something that is not."""
    made, file = do.SaveJournal(2, SharedDeviceGone(home=HOME)), tmp_path / "agent" / "journal"
    async with executors() as step_executors:
        how = step_executors.executors(str)[do.SaveJournal]
        before = file.stat().st_size
        assert how.at_once(_save(1)) is None  # it is written, and has to be waited for
        written = file.stat().st_size
        assert how.at_once(made)() == ev.JournalSaved(2)
        assert before < written < file.stat().st_size
        assert await asyncio.wait_for(how.run(_save(1)), PATIENCE_S) == ev.JournalSaved(1)
    assert file.read_bytes().count(b"tombstone") == 1


class Long:
    """A journal that must be rewritten, which takes until `replaced` is set."""

    node, is_long = "n1", True

    def __init__(self):
        self.begun, self.replaced, self.did = threading.Event(), threading.Event(), []

    def write(self, records):
        self.did.extend(record.allocation for record in records)

    def sync(self):
        self.did.append("synced")

    def rewrite(self):
        self.is_long = False
        self.begun.set()
        assert self.replaced.wait(PATIENCE_S)
        self.did.append("replaced")


async def test_records_are_written_in_the_order_of_the_instructions_when_a_file_was_replaced(executors):
    """A later record overtakes those that waited for the file: after a restart the older one is taken for the last."""
    journal = Long()
    async with executors(journal=journal) as step_executors:
        how = step_executors.executors(str)[do.SaveJournal]
        orders, doing = [_save(number) for number in range(1, 1001)], []
        await _do(step_executors, orders[0])
        assert await asyncio.to_thread(journal.begun.wait, PATIENCE_S)
        for number, order in enumerate(orders[1:]):  # one in each turn of the loop, as the core's runner does
            assert how.at_once(order) is None
            doing.append(asyncio.create_task(how.run(order)))
            if number == 10:
                journal.replaced.set()
            await asyncio.sleep(0)
        await asyncio.gather(*doing)
    did = [each for each in journal.did if each not in {"synced", "replaced"}]
    assert did == [order.record.allocation for order in orders]


async def test_devices_that_wait_for_nothing_are_not_asked_in_threads(executors, threads):
    """Many simulated nodes in one process are not slowed down by threads that have nothing to wait for."""
    threads.shutdown()  # takes no call any more
    async with executors(Backend(gpus=1), instant=True) as step_executors:
        assert await _do(step_executors, do.CreateGpuInstance(1, GPU, 5, 0, 1)) == ev.GpuInstanceCreated(1, 5)
        assert await _do(step_executors, do.SetComputeMode(2, GPU, exclusive_process=True)) == ev.ComputeModeSet(2)


async def test_orders_about_daemons_are_carried_out_and_answered(executors):
    """A home gets its daemon, its limits and its end, and the core observes how each went."""
    daemons = Daemons()
    async with executors(mps=daemons) as step_executors:
        said = [await _do(step_executors, order) for order in _mps_orders(HOME)]
        refused = [await _do(step_executors, order) for order in _mps_orders(HomeId("bad"))]
    assert said == [
        ev.MpsStarted(1, 7, 70),
        ev.MpsLimitsSet(2),
        ev.MpsSeen(3, alive=True, waiting=(5,)),
        ev.MpsClientsTerminated(4),
        ev.MpsStopped(5),
    ]
    assert daemons.asked == _mps_orders(HOME)
    assert refused == [ev.MpsRefused(token, "the daemon of home bad does not answer") for token in range(1, 6)]


async def test_a_node_that_hands_out_no_shares_refuses_them_in_words(executors):
    """A share that cannot be had fails with the reason, and does not run unbounded; old daemons can still be ended."""
    start, *others = _mps_orders(HOME)
    async with executors(mps=Daemons(), no_shares="mps_control is off") as step_executors:
        assert await _do(step_executors, start) == ev.MpsRefused(1, "this node hands out no shares: mps_control is off")
        for order in others:
            assert not isinstance(await _do(step_executors, order), ev.MpsRefused)


def _there(uuid="MIG-1", profile="1g.5gb"):
    return {"instances": (InstanceReport(gi_id=3, profile=profile, start=0, size=1, uuid=uuid),)}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, None),
        ({"instances": ()}, ev.DeviceErrorKind.NOT_FOUND),
        (_there("MIG-2"), ev.DeviceErrorKind.DIFFERENT),
        (_there(profile="1g.5gb+me"), ev.DeviceErrorKind.NOT_FOUND),
        ({"lost": True, "healthy": False, "instances": ()}, ev.DeviceErrorKind.GPU_LOST),
        ({"healthy": False, "health_message": "Xid 79"}, ev.DeviceErrorKind.UNKNOWN),
    ],
)
async def test_an_instance_is_handed_out_only_when_it_reads_back_as_ordered(executors, changes, kind):
    """No pod gets another device than the one that was booked, nor one on a GPU that went bad meanwhile."""
    backend = Backend()
    backend.report = gpu_report("n1", 0, uuid=GPU, **(_there() | changes))
    async with executors(backend) as step_executors:
        answer = await _do(step_executors, do.VerifyInstance(1, GPU, 3, 19, 0, 1, "MIG-1"))
    assert answer == ev.InstanceVerified(1) if kind is None else answer.kind is kind


async def test_a_ticket_that_cannot_be_made_is_refused_with_the_reason(executors, tmp_path):
    """A slice whose ticket cannot be written is not called ready."""
    (tmp_path / "t").write_text("")
    async with executors(tickets=Tickets(tmp_path / "t" / "n1")) as step_executors:
        refused = await _do(step_executors, make_ticket("t1"))
    assert "Not a directory" in refused.message


async def test_slices_that_become_ready_at_once_wait_for_no_thread_to_get_their_tickets(executors, tmp_path):
    """In a burst every pod would wait for the threads of all others, for names that are written in no time."""
    helpers = ThreadPools.for_nodes(1)
    helpers.shut_down()  # they take no call any more
    tickets = Tickets(tmp_path / "t")
    async with executors(tickets=tickets, helpers=helpers) as step_executors:
        make = step_executors.executors(str)[do.MakeTicket].at_once(make_ticket("t1"))
        assert (make(), tickets.names()) == (ev.TicketMade(1), ("t1",))
        remove = step_executors.executors(str)[do.RemoveTicket].at_once(do.RemoveTicket(2, "t1"))
        assert (remove(), tickets.names()) == (ev.TicketRemoved(2), ())


async def test_an_agent_goes_on_while_the_driver_of_volumes_is_at_the_tickets(executors, tmp_path):
    """A node does not fall silent, and its other slices do not wait, because a volume is being mounted."""
    sources = PodDirectories(tmp_path / "pods")
    sources.open()
    async with executors(tickets=Tickets(tmp_path / "t", sources)) as step_executors:
        order = make_ticket("t1", token=2, owner=UID)
        assert step_executors.executors(str)[do.MakeTicket].at_once(order) is None
        assert step_executors.executors(str)[do.RemoveTicket].at_once(do.RemoveTicket(3, "t1")) is None
        with sources.locked():
            waits = asyncio.create_task(_do(step_executors, order))
            assert await _do(step_executors, do.SaveJournal(1, SharedDeviceGone(home=HOME))) == ev.JournalSaved(1)
            assert not waits.done()
        assert await waits == ev.TicketMade(2)
