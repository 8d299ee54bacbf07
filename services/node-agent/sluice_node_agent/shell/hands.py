"""
Carries out what a node's core instructs on devices, journal and tickets, and says how it went.

Blocking calls run in threads. The core has at most one instruction out per GPU, so calls about one GPU never overlap,
and as many threads as GPUs let all of them work at once.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor as Threads
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from sluice.contracts.messages import GpuReport
from sluice.runtime import logs
from sluice.runtime.core_runner import Executor
from sluice_node_agent.core.events import (
    ComputeInstanceCreated,
    ComputeInstanceDestroyed,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DeviceErrorKind,
    DeviceRefused,
    Event,
    GpuInstanceCreated,
    GpuInstanceDestroyed,
    GpuInstruction,
    GpuRead,
    HoldersListed,
    InstanceVerified,
    JournalSaved,
    ListHolders,
    MakeTicket,
    ReadGpu,
    RemoveTicket,
    Result,
    SaveJournal,
    TicketMade,
    TicketRefused,
    TicketRemoved,
    VerifyInstance,
)
from sluice_node_agent.core.records import Record, SliceRecord, Tombstone
from sluice_node_agent.device.port import DeviceError, GpuBackend
from sluice_node_agent.shell.journal import Journal
from sluice_node_agent.shell.tickets import Tickets

T = TypeVar("T")
_END_S = 5.0
"""How long a call that is under way may take to end when the agent stops."""
_OUT_MAX = 1024
"""Instructions of one kind under way at once; one per slice and GPU, so this is far above any node."""


class Hands:
    """The hands of one node's agent."""

    def __init__(self, backend: GpuBackend, journal: Journal, tickets: Tickets, threads: Threads) -> None:
        """Use what was opened; opens and closes nothing itself."""
        self._backend = backend
        self._journal = journal
        self._tickets = tickets
        self._threads = threads
        self._unsaved: list[tuple[Record, asyncio.Future[None]]] = []
        self._saver: asyncio.Task[None] | None = None
        self._calls: set[Future[Any]] = set()
        self._log = logs.get("hands", node=journal.node)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait (bounded) until no thread is at devices or journal any more, so that both can be closed."""
        if self._saver is not None:
            self._saver.cancel()
        calls = [asyncio.wrap_future(call) for call in list(self._calls)]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), _END_S)

    def executors(self) -> dict[type, Executor[Event]]:
        """How each of the core's own instructions is carried out."""
        device_steps = (
            CreateGpuInstance,
            CreateComputeInstance,
            VerifyInstance,
            DestroyComputeInstance,
            DestroyGpuInstance,
        )
        loud: dict[type, Executor[Event]] = {kind: Executor(self._on_device, limit=_OUT_MAX) for kind in device_steps}
        quiet: dict[type, Executor[Event]] = {
            kind: Executor(self._on_device, limit=_OUT_MAX, quiet=True) for kind in (ReadGpu, ListHolders)
        }
        return {
            **loud,
            **quiet,
            SaveJournal: Executor(self._save, request=_request_of, limit=_OUT_MAX, quiet=True),
            MakeTicket: Executor(self._make_ticket, limit=_OUT_MAX),
            RemoveTicket: Executor(self._remove_ticket, limit=_OUT_MAX),
        }

    # -- devices --------------------------------------------------------------------------------------------------

    async def _on_device(self, order: GpuInstruction) -> Result:
        try:
            return await self._in_thread(lambda: self._carry_out(order))
        except DeviceError as error:
            self._log.warning("device refused", instruction=order, kind=str(error.kind), why=str(error))
            return DeviceRefused(order.token, error.kind, str(error))

    def _carry_out(self, order: GpuInstruction) -> Result:
        backend, token, gpu = self._backend, order.token, order.gpu
        match order:
            case CreateGpuInstance():
                gi_id = backend.create_gpu_instance(gpu, order.profile_id, order.start, order.size)
                return GpuInstanceCreated(token, gi_id)
            case CreateComputeInstance():
                return ComputeInstanceCreated(token, backend.create_compute_instance(gpu, order.gi_id))
            case VerifyInstance():
                return self._verify(order, backend.read_gpu(gpu))
            case DestroyComputeInstance():
                backend.destroy_compute_instance(gpu, order.gi_id, order.uuid)
                return ComputeInstanceDestroyed(token)
            case DestroyGpuInstance():
                backend.destroy_gpu_instance(gpu, order.gi_id, order.start, order.size)
                return GpuInstanceDestroyed(token)
            case ReadGpu():
                return GpuRead(token, backend.read_gpu(gpu))
            case ListHolders():
                return HoldersListed(token, backend.processes(gpu, order.uuid))

    @staticmethod
    def _verify(order: VerifyInstance, report: GpuReport) -> Result:
        """Whether the device says of the instance what was ordered."""
        if not report.healthy:
            return DeviceRefused(order.token, DeviceErrorKind.GPU_LOST, report.health_message)
        found = next((instance for instance in report.instances if instance.gi_id == order.gi_id), None)
        if found is None:
            message = f"GPU instance {order.gi_id} is not there"
            return DeviceRefused(order.token, DeviceErrorKind.NOT_FOUND, message)
        profile = next((profile.name for profile in report.profiles if profile.profile_id == order.profile_id), None)
        wanted = (profile, order.start, order.size, order.uuid)
        if (found.profile, found.start, found.size, found.uuid) != wanted:
            message = f"GPU instance {order.gi_id} is {found.profile} at {found.start}:{found.size}, {found.uuid}"
            return DeviceRefused(order.token, DeviceErrorKind.DIFFERENT, message)
        return InstanceVerified(order.token)

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
                    await self._in_thread(lambda records=records: self._journal.append(records))  # type: ignore[misc]
                except OSError as error:
                    for _, saved in batch:
                        saved.set_exception(error)
                    return
                for _, saved in batch:
                    saved.set_result(None)
        finally:
            self._saver = None

    # -- tickets --------------------------------------------------------------------------------------------------

    async def _make_ticket(self, order: MakeTicket) -> Result:
        try:
            await self._in_thread(lambda: self._tickets.make(order))
        except OSError as error:
            return TicketRefused(order.token, f"the ticket cannot be made: {error}")
        return TicketMade(order.token)

    async def _remove_ticket(self, order: RemoveTicket) -> Result:
        try:
            await self._in_thread(lambda: self._tickets.remove(order.ticket))
        except OSError as error:
            return TicketRefused(order.token, f"the ticket cannot be removed: {error}")
        return TicketRemoved(order.token)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        running: Future[T] = self._threads.submit(call)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)


def _request_of(order: SaveJournal) -> str:
    match order.record:
        case SliceRecord(booking=booking):
            return booking.request
        case Tombstone(request=request):
            return request
        case _:
            return ""
