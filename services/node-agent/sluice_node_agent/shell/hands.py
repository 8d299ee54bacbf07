"""
Carries out what a node's core instructs on devices, MPS daemons, journal and tickets, and says how it went.

Blocking calls run in threads: of the GPUs, as many as GPUs, so that all of them work at once (the core has at most one
instruction out per GPU, so calls about one GPU never overlap); and of other kinds, each in threads of its own, so that
a record does not wait for a GPU that takes seconds, nor a slice for a daemon that does not answer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor as Threads
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sluice.runtime import logs
from sluice.runtime.core_runner import Executor
from sluice_node_agent.core.events import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DeviceRefused,
    Event,
    GpuInstruction,
    JournalSaved,
    ListHolders,
    MakeTicket,
    MpsInstruction,
    MpsRefused,
    ReadGpu,
    RemoveTicket,
    Result,
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
from sluice_node_agent.core.records import Record, SliceRecord, Tombstone
from sluice_node_agent.device.port import DeviceError, GpuBackend
from sluice_node_agent.shell.journal import Journal
from sluice_node_agent.shell.steps import on_daemon, on_device
from sluice_node_agent.shell.tickets import Tickets

if TYPE_CHECKING:  # imported where there is MPS
    from sluice_node_agent.device.mps import MpsDaemons

T = TypeVar("T")
_END_S = 2.0
"""How long a call that is under way may take to end when the agent stops."""
_OUT_MAX = 1024
"""Instructions of one kind under way at once; one per slice and GPU, so this is far above any node."""
_MPS_THREADS = 8
"""Calls to MPS daemons under way at once; those that come meanwhile wait."""
_SHARED_MAX = 16
"""Threads of one kind for the agents of one process: many simulated nodes take turns."""
_NO_MPS = "this agent has no MPS"


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Helpers:
    """Threads beside those of the GPUs; several agents of one process may share them. None runs before it is needed."""

    journal: ThreadPoolExecutor = field(default_factory=lambda: _threads(1, "journal"))
    tickets: ThreadPoolExecutor = field(default_factory=lambda: _threads(1, "tickets"))
    mps: ThreadPoolExecutor = field(default_factory=lambda: _threads(_MPS_THREADS, "mps"))

    @classmethod
    def for_nodes(cls, nodes: int) -> Self:
        """For the agents of so many nodes in one process."""
        few = max(1, min(nodes, _SHARED_MAX))
        return cls(_threads(few, "journal"), _threads(few, "tickets"), _threads(max(few, _MPS_THREADS), "mps"))

    def shut_down(self) -> None:
        """Take no more calls; wait for none."""
        for threads in (self.journal, self.tickets, self.mps):
            threads.shutdown(wait=False, cancel_futures=True)


class Hands:
    """The hands of one node's agent."""

    def __init__(
        self,
        backend: GpuBackend,
        journal: Journal,
        tickets: Tickets,
        threads: Threads,
        mps: "MpsDaemons | None" = None,
        *,
        no_shares: str = "",
        helpers: Helpers | None = None,
    ) -> None:
        """
        Use what was opened; opens and closes nothing itself but threads.

        `threads` are those of the GPUs. Without `mps` all orders about daemons are refused; those to start one
        also where `no_shares` says why.
        """
        self._backend = backend
        self._journal = journal
        self._tickets = tickets
        self._mps = mps
        self._no_shares = no_shares
        self._threads = threads
        self._own = Helpers() if helpers is None else None
        self._helpers = helpers or self._own or Helpers()
        self._unsaved: list[tuple[Record, asyncio.Future[None]]] = []
        self._saver: asyncio.Task[None] | None = None
        self._calls: set[Future[Any]] = set()
        self._log = logs.get("hands", node=journal.node)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) until no thread is at devices, daemons or journal any more, so that they can be closed."""
        if self._saver is not None:
            self._saver.cancel()
        calls = [asyncio.wrap_future(call) for call in list(self._calls)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*calls, return_exceptions=True)
        if self._own is not None:
            self._own.shut_down()

    def executors(self) -> Mapping[type, Executor[Event]]:
        """How each of the core's own instructions is carried out."""
        steps = (
            CreateGpuInstance,
            CreateComputeInstance,
            VerifyInstance,
            DestroyComputeInstance,
            DestroyGpuInstance,
            SetComputeMode,
        )
        orders = (StartMps, SetMpsLimits, TerminateMpsClients, StopMps)
        return {
            **_each(steps, self._on_device),
            **_each((ReadGpu, ListHolders), self._on_device, quiet=True),
            **_each(orders, self._on_daemon),
            **_each((WatchMps,), self._on_daemon, quiet=True),
            SaveJournal: Executor(self._save, request=_request_of, limit=_OUT_MAX, quiet=True),
            MakeTicket: Executor(self._make_ticket, limit=_OUT_MAX),
            RemoveTicket: Executor(self._remove_ticket, limit=_OUT_MAX),
        }

    # -- devices and daemons --------------------------------------------------------------------------------------

    async def _on_device(self, order: GpuInstruction) -> Result:
        try:
            return await self._in_thread(self._threads, lambda: on_device(self._backend, order))
        except DeviceError as error:
            self._log.warning("device refused", instruction=order, kind=str(error.kind), why=str(error))
            return DeviceRefused(order.token, error.kind, str(error))

    async def _on_daemon(self, order: MpsInstruction) -> Result:
        mps = self._mps
        if mps is None:
            return MpsRefused(order.token, _NO_MPS)
        if self._no_shares and isinstance(order, StartMps):
            return MpsRefused(order.token, f"this node hands out no shares: {self._no_shares}")
        from sluice_node_agent.device.mps import MpsError  # noqa: PLC0415

        try:
            return await self._in_thread(self._helpers.mps, lambda: on_daemon(mps, order))
        except MpsError as error:
            self._log.warning("MPS daemon refused", instruction=order, why=str(error))
            return MpsRefused(order.token, str(error))

    # -- journal --------------------------------------------------------------------------------------------------

    async def _save(self, order: SaveJournal) -> Result:
        """Put a record on disk, together with those that came while the disk was busy, in their order."""
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsaved.append((order.record, saved))
        if self._saver is None:
            self._saver = asyncio.create_task(self._save_all())
        await asyncio.shield(saved)
        return JournalSaved(order.token)

    async def _save_all(self) -> None:
        try:
            while self._unsaved:
                batch, self._unsaved = self._unsaved, []
                records = [record for record, _ in batch]
                try:
                    await self._in_thread(self._helpers.journal, lambda records=records: self._journal.append(records))  # type: ignore[misc]
                except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear it, and the agent ends
                    for _, saved in batch:
                        if not saved.done():
                            saved.set_exception(error)
                    continue
                for _, saved in batch:
                    if not saved.done():
                        saved.set_result(None)
        finally:
            self._saver = None

    # -- tickets --------------------------------------------------------------------------------------------------

    async def _make_ticket(self, order: MakeTicket) -> Result:
        try:
            await self._in_thread(self._helpers.tickets, lambda: self._tickets.make(order))
        except OSError as error:
            return TicketRefused(order.token, f"the ticket cannot be made: {error}")
        return TicketMade(order.token)

    async def _remove_ticket(self, order: RemoveTicket) -> Result:
        try:
            await self._in_thread(self._helpers.tickets, lambda: self._tickets.remove(order.ticket))
        except OSError as error:
            return TicketRefused(order.token, f"the ticket cannot be removed: {error}")
        return TicketRemoved(order.token)

    async def _in_thread(self, threads: Threads, call: Callable[[], T]) -> T:
        running: Future[T] = threads.submit(call)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)


def _each(kinds: Iterable[type], run: Callable[[Any], Any], *, quiet: bool = False) -> dict[type, Executor[Event]]:
    return {kind: Executor(run, limit=_OUT_MAX, quiet=quiet) for kind in kinds}


def _request_of(order: SaveJournal) -> str:
    match order.record:
        case SliceRecord(booking=booking):
            return booking.request
        case Tombstone(request=request):
            return request
        case _:
            return ""
