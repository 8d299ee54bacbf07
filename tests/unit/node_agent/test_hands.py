"""How the agent's hands work: in parallel where they may, in order where they must, and refused in words."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.contracts.ids import AllocationId, GpuUuid, HomeId, RequestId
from sluice.contracts.messages import GpuReport, InstanceReport, PlacementReport, ProfileReport
from sluice_node_agent.core.events import (
    ComputeModeSet,
    CreateGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    GpuInstanceCreated,
    InstanceVerified,
    JournalSaved,
    MakeTicket,
    MpsClientsTerminated,
    MpsLimitsSet,
    MpsRefused,
    MpsSeen,
    MpsStarted,
    MpsStopped,
    RemoveTicket,
    SaveJournal,
    SetComputeMode,
    SetMpsLimits,
    StartMps,
    StopMps,
    TerminateMpsClients,
    TicketMade,
    TicketRefused,
    TicketRemoved,
    VerifyInstance,
    WatchMps,
)
from sluice_node_agent.core.records import MpsLimits, Tombstone
from sluice_node_agent.device.mps import MpsError
from sluice_node_agent.device.port import NotSupportedError
from sluice_node_agent.shell.hands import Hands
from sluice_node_agent.shell.journal import Journal, JournalError
from sluice_node_agent.shell.tickets import Tickets

GPU, HOME = GpuUuid("GPU-1"), HomeId("h1")
LIMITS = MpsLimits(active_thread_percentage=50, memory_mib=1024)
PATIENCE_S = 10.0


class Backend:
    """GPUs that take as long as the test says."""

    def __init__(self, gpus=8):
        """`gate` opens when `gpus` calls are at it at the same time."""
        self.gate = threading.Barrier(gpus)
        self.modes = []
        self.report = None

    def create_gpu_instance(self, gpu, profile_id, start, size):
        """Comes back only with as many others."""
        self.gate.wait(PATIENCE_S)
        return profile_id

    def set_exclusive_process(self, gpu, *, exclusive):
        """Note it; a GPU in MIG mode cannot."""
        if gpu == "MIG":
            raise NotSupportedError("compute modes are not for MIG")
        self.modes.append((gpu, exclusive))

    def read_gpu(self, gpu):
        """As the test says."""
        return self.report


class Daemons:
    """Daemons that do, and one that refuses."""

    def __init__(self):
        """Nothing was asked yet."""
        self.asked = []

    def _take(self, order):
        if order.home == "bad":
            raise MpsError("the daemon of home bad does not answer")
        self.asked.append(order)

    def start(self, order):
        """Started as pid 7."""
        self._take(order)
        return 7, 70

    def look(self, order):
        """Alive."""
        self._take(order)
        return MpsSeen(order.token, alive=True, fault="", waiting=(5,))

    set_limits = terminate_clients = stop = _take


@pytest.fixture
def journal(tmp_path):
    """An open journal."""
    opened = Journal(tmp_path / "agent", "n1")
    yield opened
    opened.close()


@pytest.fixture
def threads():
    """One thread per GPU."""
    pool = ThreadPoolExecutor(max_workers=8)
    yield pool
    pool.shutdown()


def _save(number):
    name = AllocationId(f"a{number}")
    return SaveJournal(number, Tombstone(allocation=name, request=RequestId("r"), revision=1, cause="x"))


async def _do(hands, order):
    return await asyncio.wait_for(hands.executors()[type(order)].run(order), PATIENCE_S)


def _mps_orders(home):
    return [
        StartMps(1, home, GPU, "MIG-1", "default", 0, LIMITS),
        SetMpsLimits(2, home, LIMITS),
        WatchMps(3, home, 7, 70, 0),
        TerminateMpsClients(4, home, (9,)),
        StopMps(5, home, 7, 70),
    ]


async def test_all_gpus_of_a_node_work_at_once(journal, threads, tmp_path):
    """Eight GPUs make eight instances in the time of one."""
    async with Hands(Backend(), journal, Tickets(tmp_path / "t"), threads) as hands:
        orders = [CreateGpuInstance(number, GpuUuid(f"GPU-{number}"), number, 0, 1) for number in range(8)]
        done = await asyncio.gather(*(_do(hands, order) for order in orders))
    assert done == [GpuInstanceCreated(number, number) for number in range(8)]


async def test_neither_journal_nor_tickets_nor_daemons_wait_for_a_gpu(journal, threads, tmp_path):
    """While every GPU is busy for seconds, other slices get their records, tickets and daemons."""
    backend = Backend(gpus=9)  # eight calls stay until the ninth party comes
    async with Hands(backend, journal, Tickets(tmp_path / "t"), threads, Daemons()) as hands:
        orders = [CreateGpuInstance(number, GpuUuid(f"GPU-{number}"), number, 0, 1) for number in range(8)]
        busy = asyncio.gather(*(_do(hands, order) for order in orders))
        try:
            assert await _do(hands, _save(1)) == JournalSaved(1)
            assert await _do(hands, MakeTicket(2, "t1", AllocationId("a"), "pod", ())) == TicketMade(2)
            assert await _do(hands, RemoveTicket(3, "t1")) == TicketRemoved(3)
            assert await _do(hands, StopMps(4, HOME, 7, 70)) == MpsStopped(4)
            assert not busy.done()
        finally:
            await asyncio.to_thread(backend.gate.wait, PATIENCE_S)
            await busy


async def test_records_are_on_disk_in_the_order_of_their_instructions(journal, threads, tmp_path):
    """A later record of a slice is never overtaken by an earlier one."""
    async with Hands(Backend(), journal, Tickets(tmp_path / "t"), threads) as hands:
        saves = [asyncio.create_task(_do(hands, _save(number))) for number in range(500)]
        done = await asyncio.gather(*saves)
    assert done == [JournalSaved(number) for number in range(500)]
    names = [record.allocation for record in journal.records() if isinstance(record, Tombstone)]
    assert names == [f"a{number}" for number in range(500)]


async def test_a_journal_that_refuses_ends_the_agent_in_one_sentence(threads, tmp_path):
    """No step is taken that was not recorded, and nobody waits for ever for a record that will never be."""

    class Full:
        node = "n1"

        def append(self, records):
            raise JournalError("the journal cannot be written (No space left on device)")

    async with Hands(Backend(), Full(), Tickets(tmp_path / "t"), threads) as hands:
        saves = [asyncio.create_task(_do(hands, _save(number))) for number in range(20)]
        done = await asyncio.gather(*saves, return_exceptions=True)
    assert {str(error) for error in done} == {"the journal cannot be written (No space left on device)"}
    assert {type(error) for error in done} == {JournalError}


async def test_orders_about_daemons_are_carried_out_and_answered(journal, threads, tmp_path):
    """A home gets its daemon, its limits and its end, and the core hears how each went."""
    daemons = Daemons()
    async with Hands(Backend(), journal, Tickets(tmp_path / "t"), threads, daemons) as hands:
        said = [await _do(hands, order) for order in _mps_orders(HOME)]
        refused = [await _do(hands, order) for order in _mps_orders(HomeId("bad"))]
    assert said == [
        MpsStarted(1, 7, 70),
        MpsLimitsSet(2),
        MpsSeen(3, alive=True, waiting=(5,)),
        MpsClientsTerminated(4),
        MpsStopped(5),
    ]
    assert daemons.asked == _mps_orders(HOME)
    assert refused == [MpsRefused(token, "the daemon of home bad does not answer") for token in range(1, 6)]


async def test_a_node_that_hands_out_no_shares_refuses_them_in_words(journal, threads, tmp_path):
    """A share that cannot be had fails with the reason, and does not run unbounded; old daemons can still be ended."""
    start, *others = _mps_orders(HOME)
    tickets = Tickets(tmp_path / "t")
    async with Hands(Backend(), journal, tickets, threads, Daemons(), no_shares="mps_control is off") as hands:
        assert await _do(hands, start) == MpsRefused(1, "this node hands out no shares: mps_control is off")
        for order in others:
            assert not isinstance(await _do(hands, order), MpsRefused)
    async with Hands(Backend(), journal, tickets, threads) as hands:
        for order in _mps_orders(HOME):
            assert await _do(hands, order) == MpsRefused(order.token, "this agent has no MPS")


async def test_the_compute_mode_is_set_or_refused(journal, threads, tmp_path):
    """Nobody runs beside the daemon of a whole GPU."""
    backend = Backend()
    async with Hands(backend, journal, Tickets(tmp_path / "t"), threads) as hands:
        assert await _do(hands, SetComputeMode(1, GPU, exclusive_process=True)) == ComputeModeSet(1)
        assert await _do(hands, SetComputeMode(2, GPU, exclusive_process=False)) == ComputeModeSet(2)
        refused = await _do(hands, SetComputeMode(3, GpuUuid("MIG"), exclusive_process=True))
    assert backend.modes == [(GPU, True), (GPU, False)]
    assert refused == DeviceRefused(3, DeviceErrorKind.NOT_SUPPORTED, "compute modes are not for MIG")


def _report(**changes):
    profile = ProfileReport(
        name="1g.5gb",
        profile_id=19,
        memory_mib=4864,
        compute_slices=1,
        multiprocessors=14,
        copy_engines=1,
        decoders=0,
        encoders=0,
        jpegs=0,
        ofas=0,
        max_instances=7,
        placements=(PlacementReport(start=0, size=1),),
    )
    fields = {
        "uuid": GPU,
        "index": 0,
        "model": "a100-40gb",
        "memory_mib": 40960,
        "multiprocessors": 108,
        "mig_enabled": True,
        "memory_slices": 8,
        "compute_slices": 7,
        "profiles": (profile,),
        "instances": (InstanceReport(gi_id=3, profile="1g.5gb", start=0, size=1, uuid="MIG-1"),),
        "creatable": {},
    }
    return GpuReport(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, None),
        ({"instances": ()}, DeviceErrorKind.NOT_FOUND),
        (
            {"instances": (InstanceReport(gi_id=3, profile="1g.5gb", start=0, size=1, uuid="MIG-2"),)},
            DeviceErrorKind.DIFFERENT,
        ),
        ({"lost": True, "healthy": False, "instances": ()}, DeviceErrorKind.GPU_LOST),
        ({"healthy": False, "health_message": "Xid 79"}, DeviceErrorKind.UNKNOWN),
    ],
)
async def test_an_instance_is_handed_out_only_when_it_reads_back_as_ordered(journal, threads, tmp_path, changes, kind):
    """Nobody gets another device than the one that was booked, nor one on a GPU that went bad meanwhile."""
    backend = Backend()
    backend.report = _report(**changes)
    async with Hands(backend, journal, Tickets(tmp_path / "t"), threads) as hands:
        answer = await _do(hands, VerifyInstance(1, GPU, 3, 19, 0, 1, "MIG-1"))
    assert answer == InstanceVerified(1) if kind is None else answer.kind is kind


async def test_a_ticket_that_cannot_be_made_is_refused_with_the_reason(journal, threads, tmp_path):
    """A slice whose ticket cannot be written is not called ready."""
    (tmp_path / "t").write_text("")
    async with Hands(Backend(), journal, Tickets(tmp_path / "t" / "n1"), threads) as hands:
        refused = await _do(hands, MakeTicket(1, "t1", AllocationId("a"), "pod", ()))
    assert isinstance(refused, TicketRefused)
    assert "Not a directory" in refused.message
