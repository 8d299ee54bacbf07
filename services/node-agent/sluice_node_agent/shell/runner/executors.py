"""Carries out a node's instructions on devices, MPS daemons, journal and tickets, and returns their results. A record
is written at once, and waits for the disk only if it must survive the node's own crash (ADR 0042). Blocking calls run
in threads, as many as GPUs; other kinds have threads of their own, so that a record does not wait for a slow GPU, nor a
slice for a daemon that does not answer."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor as Threads
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from sluice.contracts.ids import GpuUuid
from sluice.runtime import logs
from sluice.runtime.core_runner import Executor
from sluice.runtime.prometheus import metrics
from sluice_node_agent.core import events, instructions
from sluice_node_agent.core.journal_records import SliceRecord, Tombstone, must_outlive_boot
from sluice_node_agent.core.usage import DeviceUse
from sluice_node_agent.device.mps.daemons import MpsDaemons
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.port import DeviceError, GpuBackend
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.dra.cdi_files import ClaimFiles
from sluice_node_agent.shell.agent_metrics import DEVICE_REFUSALS
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.quota.controller import QuotaController, QuotaControllerError
from sluice_node_agent.shell.runner.device_calls import on_daemon
from sluice_node_agent.shell.runner.pod_volumes import PodProcesses
from sluice_node_agent.shell.tickets.tickets import Tickets

T = TypeVar("T")
_END_S = 2.0
"""How long a call in flight may take to end when the agent stops."""
_OUT_MAX = 1024
"""Instructions of one kind in flight; one per slice and GPU, so this is far above any node."""
_MPS_THREADS = 8
"""Parallel calls to MPS daemons; others wait."""
_SHARED_MAX = 16
"""Threads of one kind for the agents of one process: many simulated nodes share them."""
_NO_KUBELET = "no kubelet hands devices over here; set SLUICE_NODE_AGENT_KUBELET_ROOT to its root directory"


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """Threads for all but GPU calls; several agents of one process may share them. Each starts when needed."""

    journal: ThreadPoolExecutor
    tickets: ThreadPoolExecutor
    mps: ThreadPoolExecutor
    pods: ThreadPoolExecutor
    """For scans of all processes: waiting calls share the next one."""

    @classmethod
    def for_nodes(cls, nodes: int) -> Self:
        """For the agents of this many nodes in one process."""
        few = max(1, min(nodes, _SHARED_MAX))
        mps = _threads(max(few, _MPS_THREADS), "mps")
        return cls(_threads(few, "journal"), _threads(few, "tickets"), mps, _threads(1, "pods"))

    def shut_down(self) -> None:
        """Take no more calls, without waiting for current ones."""
        for threads in (self.journal, self.tickets, self.mps, self.pods):
            threads.shutdown(wait=False, cancel_futures=True)


class StepExecutors:
    """Carries out the steps of one node's agent."""

    def __init__(
        self,
        backend: GpuBackend,
        journal: Journal,
        tickets: Tickets,
        marks: OwnershipMarks,
        threads: Threads,
        *,
        mps: MpsDaemons,
        helpers: ThreadPools,
        calls: KubeletCalls,
        no_shares: str = "",
        instant: bool = False,
        quotas: QuotaController | None = None,
        pods: PodProcesses | None = None,
        files: ClaimFiles | None = None,
    ) -> None:
        """Opens and closes nothing. Calls about `instant` GPUs use no threads. `no_shares`: why no daemon is started.
        Without `quotas` no time is enforced, without `pods` no pod has processes here, without `files` no CDI file is
        written; `calls` are the kubelet's."""
        self._files = files
        self._calls_of_kubelet = calls
        self._quotas = quotas
        self._pods = pods
        self._backend = backend
        self._journal = journal
        self._tickets = tickets
        self._marks = marks
        self._mps = mps
        self._no_shares = no_shares
        self._threads = None if instant else threads
        self._helpers = helpers
        self._unsynced: list[asyncio.Future[None]] = []
        """Waits for the next sync of the journal, for records that are written."""
        self._syncer: asyncio.Task[None] | None = None
        self._rewriting: asyncio.Future[None] | None = None
        self._behind = 0
        """Records that wait until the file is replaced: later ones do not overtake them."""
        self._in_line = asyncio.Lock()
        """Orders them: first come, first served, also after the file was replaced (a lock is fair)."""
        self._written: set[int] = set()
        """Tokens of records that are written but not synced."""
        self._calls: set[Future[Any]] = set()
        self._lanes: dict[GpuUuid, asyncio.Lock] = {}
        """One call about a GPU at a time: the core's own never overlap, and usage samples must not overlap them."""
        self._log = logs.get("executors", node=journal.node)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) until no thread uses devices, daemons or journal, so that they can be closed."""
        if self._syncer is not None:
            self._syncer.cancel()
        calls = [asyncio.wrap_future(call) for call in list(self._calls)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*calls, return_exceptions=True)

    def executors(self, request_of: Callable[[int], str]) -> Mapping[type, Executor[events.Event]]:
        """The executor of each of the core's own instructions; `request_of` maps a token to its request."""

        def whose(order: Any) -> str:
            return request_of(order.token)

        about_gpus = instructions.GpuInstruction.__subclasses__()
        about_daemons = instructions.MpsInstruction.__subclasses__()
        tickets = (instructions.MakeTicket, instructions.RemoveTicket)
        cdi_files = (instructions.WriteCdi, instructions.RemoveCdi)
        return {
            **_each(about_gpus, self._on_device, whose, quiet=True, at_once=self._at_device),
            **_each(about_daemons, self._on_daemon, whose),
            **_each((instructions.WatchMps,), self._on_daemon, quiet=True),  # instead: a poll is no step of a request
            instructions.SaveJournal: Executor(
                self._save, request=_request_of, limit=_OUT_MAX, quiet=True, at_once=self._save_at_once
            ),
            **_each(tickets, self._on_ticket, whose, quiet=True, at_once=self._at_ticket),
            **_each((instructions.CompareTickets,), self._on_ticket, quiet=True, at_once=self._at_ticket),
            **_each((instructions.ListTenants,), self._on_pod, quiet=True),
            **_each(cdi_files, self._on_cdi, whose, quiet=True, key=lambda order: f"claim {order.claim}"),
            **_each((instructions.CompareCdi,), self._on_cdi, quiet=True),
            **_each((instructions.AnswerCall,), self._calls_of_kubelet.carry_out, quiet=True),
        }

    async def uses(self, gpu: GpuUuid, devices: Collection[str]) -> tuple[DeviceUse, ...] | None:
        """The use of a GPU's devices; None while a step is in flight there. Raises DeviceError."""
        lane = self._lane(gpu)
        if lane.locked():
            return None
        async with lane:
            return await self._about_gpus(lambda: self._backend.uses(gpu, devices))

    def _lane(self, gpu: GpuUuid) -> asyncio.Lock:
        return self._lanes.setdefault(gpu, asyncio.Lock())  # one per GPU of the node

    async def _on_device(self, order: instructions.GpuInstruction) -> events.Result:
        try:
            async with self._lane(order.gpu):
                return await self._about_gpus(lambda: self._marks.carry_out(self._backend, order))
        except DeviceError as error:
            return self._refused(order, error)

    def _at_device(self, order: instructions.GpuInstruction) -> Callable[[], events.Result] | None:
        if self._threads is not None or self._lane(order.gpu).locked():
            return None

        def do() -> events.Result:
            try:
                return self._marks.carry_out(self._backend, order)
            except DeviceError as error:
                return self._refused(order, error)

        return do

    def _refused(self, order: instructions.GpuInstruction, error: DeviceError) -> events.Result:
        metrics.count(DEVICE_REFUSALS, type(order).__name__, str(error.kind))
        self._log.warning("device refused", instruction=order, kind=str(error.kind), why=str(error))
        return events.DeviceRefused(order.token, error.kind, str(error))

    async def _on_daemon(self, order: instructions.MpsInstruction) -> events.Result:
        if self._no_shares and isinstance(order, instructions.StartMps):
            return events.MpsRefused(order.token, f"this node hands out no shares: {self._no_shares}")
        try:
            return await self._in_thread(self._helpers.mps, lambda: on_daemon(self._mps, order, self._quotas))
        except (MpsError, QuotaControllerError) as error:
            metrics.count(DEVICE_REFUSALS, type(order).__name__, "MpsRefused")
            self._log.warning("MPS daemon refused", instruction=order, why=str(error))
            return events.MpsRefused(order.token, str(error))

    async def _on_pod(self, order: instructions.ListTenants) -> events.Result:
        if self._pods is None:
            return events.TenantsListed(order.token, ())
        try:
            return events.TenantsListed(order.token, await self._pods.left_of(order.owner, order.claims, order.homes))
        except OSError as error:
            return events.TenantsUnseen(order.token, str(error))

    def _save_at_once(self, order: instructions.SaveJournal) -> Callable[[], events.Result] | None:
        """Write a record to the journal in order, or None while the file is replaced or other records wait for that."""
        if self._rewriting is not None or self._behind:
            return None
        self._journal.write((order.record,))  # copied into memory: a thread would cost more than it
        if must_outlive_boot(order.record):
            self._written.add(order.token)
            return None
        return lambda: events.JournalSaved(order.token)

    async def _save(self, order: instructions.SaveJournal) -> events.Result:
        """Write a record; if it must survive the node's crash, wait for a sync, which covers all earlier writes."""
        if order.token in self._written:
            self._written.discard(order.token)
        else:
            self._behind += 1
            try:
                async with self._in_line:
                    while self._rewriting is not None:
                        await asyncio.shield(self._rewriting)
                    self._journal.write((order.record,))
            finally:
                self._behind -= 1
        if must_outlive_boot(order.record):
            synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._unsynced.append(synced)
            if self._syncer is None:
                self._syncer = asyncio.create_task(self._sync_all())
            await asyncio.shield(synced)
        return events.JournalSaved(order.token)

    async def _sync_all(self) -> None:
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._unsynced:
                waiting, self._unsynced = self._unsynced, []
                await self._in_thread(self._helpers.journal, self._journal.sync)
                for synced in waiting:
                    _set(synced, None)
                if self._journal.is_long:
                    await self._rewrite()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear it, and the agent ends
            for synced in (*waiting, *self._unsynced):
                _set(synced, error)
            self._unsynced = []
        finally:
            self._syncer = None

    async def _rewrite(self) -> None:
        """Nothing is written meanwhile: it would go into the old file."""
        self._rewriting = asyncio.get_running_loop().create_future()
        try:
            await self._in_thread(self._helpers.journal, self._journal.rewrite)
        finally:
            _set(self._rewriting, None)
            self._rewriting = None

    async def _on_ticket(self, order: instructions.TicketInstruction) -> events.Result:
        return await self._in_thread(self._helpers.tickets, lambda: self._ticket(order))

    def _at_ticket(self, order: instructions.TicketInstruction) -> Callable[[], events.Result] | None:
        """A few directory entries: a thread would cost more. Not while the CSI driver may hold the lock."""
        return None if self._tickets.shared else lambda: self._ticket(order)

    def _ticket(self, order: instructions.TicketInstruction) -> events.Result:
        verb = "compared"
        try:
            match order:
                case instructions.MakeTicket():
                    verb = "made"
                    self._tickets.make(order)
                    return events.TicketMade(order.token)
                case instructions.RemoveTicket():
                    verb = "removed"
                    self._tickets.remove(order.ticket)
                    return events.TicketRemoved(order.token)
                case instructions.CompareTickets():
                    wrong = self._tickets.wrong_of(order.tickets)
                    if wrong:
                        self._log.warning("tickets are missing or changed, and are restored", tickets=wrong)
                    return events.TicketsCompared(order.token, wrong)
        except OSError as error:
            return events.TicketRefused(order.token, f"the ticket cannot be {verb}: {error}")

    async def _on_cdi(self, order: instructions.CdiInstruction) -> events.Result:
        files = self._files
        if files is None:
            is_removal = isinstance(order, instructions.RemoveCdi)  # there is none
            return events.CdiRemoved(order.token) if is_removal else events.CdiRefused(order.token, _NO_KUBELET)
        result = await self._in_thread(self._helpers.mps, lambda: files.carry_out(order))
        if isinstance(result, events.CdiRefused):
            self._log.warning("a CDI file was refused", instruction=order, why=result.message)
        return result

    async def _about_gpus(self, call: Callable[[], T]) -> T:
        return call() if self._threads is None else await self._in_thread(self._threads, call)

    async def _in_thread(self, threads: Threads, call: Callable[[], T]) -> T:
        running: Future[T] = threads.submit(call)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)


def _set(waited_for: "asyncio.Future[None]", error: Exception | None) -> None:
    if waited_for.done():
        return
    if error is None:
        waited_for.set_result(None)
    else:
        waited_for.set_exception(error)


def _each(
    kinds: Iterable[type],
    run: Callable[[Any], Any],
    whose: Callable[[Any], str] | None = None,
    *,
    quiet: bool = False,
    at_once: Callable[[Any], Callable[[], events.Result] | None] | None = None,
    key: Callable[[Any], str] | None = None,
) -> dict[type, Executor[events.Event]]:
    return {kind: Executor(run, key, whose, limit=_OUT_MAX, quiet=quiet, at_once=at_once) for kind in kinds}


def _request_of(order: instructions.SaveJournal) -> str:
    match order.record:
        case SliceRecord(booking=booking):
            return booking.request
        case Tombstone(request=request):
            return request
        case _:
            return ""
