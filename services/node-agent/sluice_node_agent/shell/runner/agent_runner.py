"""Runs one node's agent: reads the node's state, feeds the core, and carries out its instructions. After a reboot of a
simulated node a new run begins; any other failure ends the process."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor as Threads
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sluice.contracts.bus import subjects
from sluice.contracts.bus.events import Entry, ReadLast, Stream
from sluice.contracts.ids import AllocationId, NodeName, RequestId, RunId
from sluice.contracts.messages import AgentAddress, Grant
from sluice.runtime import logs
from sluice.runtime.bus import Bus
from sluice.runtime.core_runner import CoreRunner
from sluice.runtime.grpc.health import Health
from sluice.runtime.prometheus import metrics
from sluice.runtime.service import Service
from sluice.runtime.tracing.core_spans import SpanPhase
from sluice.runtime.version import sluice_version
from sluice_node_agent.core.agent import Agent
from sluice_node_agent.core.events import AgentStarted, Event
from sluice_node_agent.core.journal_records import NodeRecord, SliceRecord
from sluice_node_agent.device.mps.home_directory import MpsError
from sluice_node_agent.device.port import BackendError, DeviceError, RebootedError
from sluice_node_agent.device.processes import Processes
from sluice_node_agent.dra.calls import KubeletCalls
from sluice_node_agent.dra.cdi_files import ClaimFiles
from sluice_node_agent.settings import NodeAgentSettings
from sluice_node_agent.shell import paths
from sluice_node_agent.shell.agent_metrics import agent_samples
from sluice_node_agent.shell.journal.journal import Journal
from sluice_node_agent.shell.journal.ownership_marks import OwnershipMarks
from sluice_node_agent.shell.nodes.node_backend import NodeBackend, NodeBackendError, OpenNode
from sluice_node_agent.shell.quota.controller import QuotaController
from sluice_node_agent.shell.quota.metrics import quota_samples
from sluice_node_agent.shell.runner.claims_served import claims_served, files_of, hands_over
from sluice_node_agent.shell.runner.control_socket import AgentServicer, ControlServicer, served_on
from sluice_node_agent.shell.runner.executors import StepExecutors, ThreadPools
from sluice_node_agent.shell.runner.pod_volumes import PodProcesses, marks_of, tickets_of
from sluice_node_agent.shell.runner.usage_poller import UsagePoller, watch_xids
from sluice_node_agent.shell.tickets.tickets import Tickets

PHASES = (
    SpanPhase("make slice", "saw Grant", "decided SliceReady"),
    SpanPhase("unmake slice", "saw Revoke", "decided SliceGone"),
)
"""A node's work for a request, in traces: its steps lie within it."""

WAS_READY = frozenset({"ready", "degraded"})
"""Phases of a slice that was published as ready."""

T = TypeVar("T")
InThread = Callable[[Callable[[], None]], Awaitable[None]]
Connect = Callable[[NodeName], AbstractAsyncContextManager[Bus]]


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What all agents of a process share."""

    service: Service[NodeAgentSettings]
    address: AgentAddress
    pulled: AgentServicer
    gpu_threads: Threads
    helpers: ThreadPools
    connect: Connect
    health: Health


@dataclass(slots=True)
class AgentRunner:
    """The successive runs of one node's agent."""

    site: NodeBackend
    name: str
    shared: ProcessContext
    lives: int = 0

    async def run(self) -> None:
        """Run until cancelled. Raises ServiceError and what else ends a process (in an ExceptionGroup)."""
        node, data_dir = self.site.name, self.shared.service.settings.data_dir
        while True:
            journal = Journal(paths.agent_directory(data_dir, node), node)
            try:
                site = await self._in_thread(self.site.open)
                try:
                    await self._live(site, journal)
                finally:
                    site.backend.close()
            except* RebootedError:
                logs.get("app", node=node).warning("the node was rebooted; its agent restarts")
            finally:
                self.shared.pulled.agents[node] = None
                self.shared.pulled.usage.pop(node, None)
                journal.close()

    async def _live(self, site: OpenNode, journal: Journal) -> None:
        shared, node = self.shared, self.site.name
        settings = shared.service.settings
        self.lives += 1
        run = RunId(f"{self.name}-{self.lives}")
        log = logs.get("app", node=node)
        core = Agent(node, run, settings.config())
        tickets = await self._in_thread(lambda: tickets_of(settings, node))
        try:
            old = await self._in_thread(lambda: tickets.clear(site.backend.boot_id()))
        except OSError as error:  # the core removes them, too, before it creates their slices again
            log.warning("tickets of before the reboot cannot be removed now", why=str(error))
        else:
            if old:
                log.info("removed tickets of before the reboot", tickets=old)
        marks = await self._in_thread(lambda: marks_of(settings, node, site.backend.boot_id()))
        pods = PodProcesses.of(settings, shared.helpers.pods)
        files = files_of(settings, site)
        started = await self._in_thread(
            lambda: read_node(
                site, journal, tickets, marks, shared.address, pods=pods, files=files, hand_over=hands_over(settings)
            )
        )
        if started.journal_problem:
            log.error("rebuilding from devices and ledger", problem=started.journal_problem)
        for request in had_slices(started):
            shared.service.traces.runs(request, linger_s=0.0)
        if site.no_shares:
            log.warning("shares (mps, fractional) cannot be handed out here", why=site.no_shares)
        quotas = self._quotas(site)

        async def offer(event: Event) -> None:
            await runner.offer(event)

        calls = KubeletCalls(offer)
        async with (
            _shown_and_closed(self._in_thread, core, quotas),
            StepExecutors(
                site.backend,
                journal,
                tickets,
                marks,
                shared.gpu_threads,
                mps=site.mps,
                no_shares=site.no_shares,
                instant=site.instant,
                helpers=shared.helpers,
                quotas=quotas,
                pods=pods,
                files=files,
                calls=calls,
            ) as step_executors,
            shared.connect(node) as bus,
        ):
            runner: CoreRunner[Event] = CoreRunner(
                name=f"node-agent {node}",
                core=core,
                bus=bus,
                clock=shared.service.clock,
                traces=shared.service.traces,
                ledger=node,
                execute=step_executors.executors(core.request_of),
                tick_s=settings.tick_s,
                shows=partial(agent_samples, core),
                phases=PHASES,
                predict_read=first_status_subject,
                is_calm=lambda: core.is_calm,
                calm_tick_s=min(settings.read_devices_s, settings.watch_mps_s) + settings.tick_s / 2,  # an answer later
            )
            await runner.offer(started)
            usage = UsagePoller(
                core,
                step_executors.uses,
                shared.service.clock,
                every_s=settings.usage_every_s,
                offer=runner.offer,
                hami=settings.hami_metrics,
            )
            shared.pulled.usage[node] = usage
            shared.pulled.agents[node] = core
            log.info(
                "agent of a node", run=run, endpoint=shared.address.endpoint, gpus=len(started.gpus), modes=site.modes
            )
            socket = paths.control_socket(settings.data_dir, node)
            control = ControlServicer(node, core, runner.offer)
            with shared.health.runs(node, runner, lambda: bus.connected), metrics.collecting_from(usage.now):
                async with (
                    served_on(socket, control, shared.pulled, node=node),
                    claims_served(
                        settings, core, node, files=files, calls=calls, threads=shared.helpers.mps, offer=runner.offer
                    ),
                    asyncio.TaskGroup() as work,
                ):
                    work.create_task(watch_xids(site.backend, site.watch, runner.offer, node=node))
                    work.create_task(usage.run())
                    work.create_task(runner.run())

    def _quotas(self, site: OpenNode) -> QuotaController | None:
        if site.quota_library is None:
            return None
        processes = Processes()
        with _or_refused("the agent's own process cannot be looked at: ", OSError):
            own = processes.owner_of(os.getpid())  # simulated tenants run in the agent's own pod
        return QuotaController(site.mps.root, site.quota_library, lambda pid: processes.owner_of(pid).removeprefix(own))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.shared.gpu_threads, call)


@asynccontextmanager
async def _shown_and_closed(in_thread: InThread, core: Agent, quotas: QuotaController | None) -> AsyncIterator[None]:
    if quotas is None:
        yield
        return
    try:
        with metrics.collecting_from(partial(quota_samples, core, quotas)):
            yield
    finally:
        await in_thread(quotas.close)


def first_status_subject(entry: Entry) -> ReadLast | None:
    """The status subject of a slice that is ordered now: read while it is created."""
    grant = entry.message
    if not isinstance(grant, Grant) or grant.revision > 1 or grant.adopted:  # it has a status already
        return None
    node, allocation = subjects.parse(entry.subject).key
    return ReadLast(Stream.STATE, subjects.slice_(NodeName(node), AllocationId(allocation)).subject)


def had_slices(started: AgentStarted) -> list[RequestId]:
    """Requests whose slice was published as ready by an earlier run: later statuses are not part of its start."""
    records = (record for record in started.records if isinstance(record, SliceRecord))
    return [each.booking.request for each in records if each.phase in WAS_READY or each.lost or each.stale_tickets]


@contextmanager
def _or_refused(what: str, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise NodeBackendError(f"{what}{error}") from error


def read_node(
    site: OpenNode,
    journal: Journal,
    tickets: Tickets,
    marks: OwnershipMarks,
    address: AgentAddress,
    *,
    pods: PodProcesses | None = None,
    files: ClaimFiles | None = None,
    hand_over: bool = False,
) -> AgentStarted:
    """Read everything for the start of a run; blocks. Raises NodeBackendError, RebootedError."""
    backend, mps = site.backend, site.mps
    with _or_refused("the GPUs of this node cannot be read: ", DeviceError, BackendError):
        gpus, nameless = backend.read(), backend.nameless()
    with _or_refused("", MpsError):
        homes = mps.found()
    with _or_refused("the marks of what is made on the GPUs cannot be read: ", OSError):
        marked, unmarked = marks.found(gpus, all_told=not nameless), marks.unmarked()
    with _or_refused("the CDI files of this node cannot be listed: ", OSError):
        claims = files.claims() if files is not None else ()
    with _or_refused("the tickets of this node cannot be listed: ", OSError):
        names = tickets.names()
    problem = journal.problem  # missing although state is, or may be, left: it was lost
    if not problem and journal.is_new:
        left = {
            "instances": any(gpu.instances for gpu in gpus if not gpu.fixed_layout),
            "GPUs that do not answer": nameless or any(gpu.lost for gpu in gpus),
            "MPS daemons": homes,
            "tickets": names,
        }
        found = [what for what, some in left.items() if some]
        if found:
            problem = f"there is no journal, but there are {' and '.join(found)} on the node"
    records = journal.records()
    was_lost = any(isinstance(record, NodeRecord) and record.tickets for record in records)  # in an earlier run
    with _or_refused("the tickets of this node cannot be read: ", OSError):
        found_tickets = tickets.read() if problem or was_lost else ()
    return AgentStarted(
        boot_id=backend.boot_id(),
        endpoint=address.endpoint,
        certificate=address.certificate,
        gpus=gpus,
        records=records,
        journal_problem=problem,
        driver_version=backend.driver_version(),
        tickets=names,
        found_tickets=found_tickets,
        toolkit_version=site.toolkit_version,
        modes=site.modes,
        mps_root=str(mps.root),
        homes=homes,
        marks=marked,
        unmarked=unmarked,
        nameless=nameless,
        has_pods=pods is not None,
        why_unseen=pods.why_unseen() if pods is not None else "",
        time_quota=site.quota_library is not None,
        cdi_claims=claims,
        hand_over=hand_over,
        version=sluice_version(),
    )
