"""
`sluice doctor`: reads the bus and, through kubectl, the cluster, and reports problems of both. Changes nothing.

Exit code 0: nothing must be fixed; 1: something must; 2: something could not be checked.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from sluice.contracts.bus.events import Stream
from sluice.contracts.pb.allocator_pb2 import ExplainRequest
from sluice.contracts.pb.inventory_pb2 import ListGpusRequest
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceStub
from sluice.contracts.rpc_permissions import Caller, dns_name
from sluice.runtime.bus import BusError
from sluice.runtime.errors import ServiceError
from sluice.runtime.grpc import transport
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.version import sluice_version
from sluice_console.core.doctor.admission import namespace_for_trial
from sluice_console.core.doctor.bus import (
    ObservedBus,
    ServiceAnswer,
    WriteTimes,
    check_bus,
    silent_broker,
    timed_subjects,
)
from sluice_console.core.doctor.cluster import check_cluster
from sluice_console.core.doctor.cluster_view import KINDS, AdmissionTrial, ObservedCluster, groups, is_installed
from sluice_console.core.doctor.findings import (
    Check,
    DoctorDocument,
    FindingDocument,
    Level,
    QuotaProposalDocument,
    in_order,
    problem,
    unknown,
    warning,
    worst,
)
from sluice_console.core.doctor.resource_quotas import check_quotas, quota_commands
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.shell.doctor.kubectl import Kubectl, KubectlError
from sluice_console.shell.live.allocator_client import NoCertificateError, NotAskableError, allocator, trusted
from sluice_console.shell.live.connect import connected
from sluice_console.shell.live.live_fleet import NotAnsweringError, read_fleet_state
from sluice_console.shell.live.running_systems import NothingRunningError, running_at, server_url
from sluice_console.shell.output.formats import OutputFormat, print_document
from sluice_console.shell.output.printer import console, said
from sluice_console.shell.process.broker_storage import trouble_at

EXIT_CODES: dict[Level, int] = {"ok": 0, "warning": 0, "problem": 1, "unknown": 2}
ASK_WITHIN_S = 5.0
TIMES_AT_ONCE = 64
"""Concurrent reads of values' times: 1,000 nodes take a second."""
_UNKNOWN_REQUEST = "doctor-unknown-request"
"""An id that no request has: an active allocator answers that it does not know it."""
_NO_CERTIFICATE = "there is no certificate here (SLUICE_GRPC_CERTIFICATE_FILE)"
_TRIAL: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "sluice-doctor-", "annotations": {"sluice.dev/profile": "1g.5gb"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": "sluice-doctor:never-pulled",
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
"""A pod that passes Pod Security `restricted` and usual quotas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What to check."""

    server: str | None = None
    """NATS URL; by default as for every command."""
    bus: bool = True
    inventory: str = ""
    """Address of the inventory; by default that of the running `sluice up`, else it is not queried."""
    kubeconfig: Path | None = None
    in_cluster: bool = False
    cluster: bool = True
    """Whether KUBECONFIG is used."""

    @property
    def at_cluster(self) -> bool:
        """Whether a cluster is checked."""
        return self.asked_for_cluster or (self.cluster and bool(os.environ.get("KUBECONFIG")))

    @property
    def asked_for_cluster(self) -> bool:
        """Whether a cluster was named explicitly, not only by KUBECONFIG."""
        return self.kubeconfig is not None or self.in_cluster


async def doctor(look: DoctorOptions, *, form: OutputFormat) -> int:
    """Check, print, and return the exit code."""
    findings: list[FindingDocument] = []
    quotas: list[QuotaProposalDocument] = []
    if look.bus:
        findings += await _look_at_bus(look)
    if look.at_cluster:
        of_cluster, quotas = await _look_at_cluster(look)
        findings += of_cluster
    document = DoctorDocument(findings=tuple(in_order(findings)), quotas=tuple(quotas))
    print_document(document, form, _show)
    return EXIT_CODES[worst(document.findings)]


# -- the bus ------------------------------------------------------------------------------------------------------


async def _look_at_bus(look: DoctorOptions) -> list[FindingDocument]:
    try:
        url = server_url(look.server)
    except NothingRunningError as error:
        what = "give --server or SLUICE_NATS_URL; --no-bus leaves the bus out"
        return [unknown(Check.BROKER, str(error), what)]
    try:
        async with connected(url) as bus:
            try:
                return check_bus(await _seen_bus(bus, url, look))
            except (NotAnsweringError, TimeoutError):
                if bus.connected:
                    return [silent_broker(url, clustered=bus.clustered)]
                raise
    except (BusError, NotAnsweringError, TimeoutError) as error:
        return [
            unknown(
                Check.BROKER,
                str(error) or f"the broker at {url} stopped answering",
                "is it running, and may it be reached from here? its user, password and certificate come from "
                "SLUICE_NATS_USER, SLUICE_NATS_PASSWORD_FILE, SLUICE_NATS_CA_FILE",
            )
        ]


async def _seen_bus(bus: NatsBus, url: str, look: DoctorOptions) -> ObservedBus:
    problems = await bus.stream_problems()
    missing = any("there is no stream" in each for each in problems)
    fleet_state = FleetState() if missing else await read_fleet_state(bus)
    return ObservedBus(
        url=url,
        fleet_state=fleet_state,
        stream_problems=tuple(problems),
        written=await _written(bus, timed_subjects(fleet_state)),
        allocator=None if missing else await _ask_allocator(bus),
        inventory=await _ask_inventory(look.inventory or _inventory_of(url)),
        version=sluice_version(),
        trouble=await trouble_at(url),
        unstored_s=None if missing else await bus.unstored_s(Stream.STATE),
    )


async def _written(bus: NatsBus, subjects: Sequence[str]) -> dict[str, WriteTimes]:
    free = asyncio.Semaphore(TIMES_AT_ONCE)

    async def one(subject: str) -> tuple[str, WriteTimes | None]:
        async with free:
            times = await bus.written_at(Stream.STATE, subject)
        return subject, WriteTimes(times.writer_s, times.broker_s) if times is not None else None

    read = await asyncio.gather(*(one(subject) for subject in subjects))
    return {subject: times for subject, times in read if times is not None}


async def _ask_allocator(bus: NatsBus) -> ServiceAnswer:
    try:
        async with allocator(bus) as asked:
            try:
                await asked.Explain(ExplainRequest(request=_UNKNOWN_REQUEST), timeout=ASK_WITHIN_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
    except NoCertificateError:
        return ServiceAnswer(unasked=_NO_CERTIFICATE)
    except NotAskableError as error:
        return ServiceAnswer(str(error))
    return ServiceAnswer()


def _inventory_of(url: str) -> str:
    """The inventory of the running `sluice up`, if the checked bus is its own."""
    running = running_at(url)
    return running.inventory_grpc if running is not None else ""


async def _ask_inventory(address: str) -> ServiceAnswer | None:
    if not address:
        return None
    name = dns_name(Caller.INVENTORY)
    try:
        security = trusted()
        async with transport.channel(address, security=security, server_name=name) as opened:
            try:
                # The sums cover all GPUs; their list is not needed.
                answer = await InventoryServiceStub(opened).ListGpus(ListGpusRequest(page_size=1), timeout=ASK_WITHIN_S)
            except grpc.aio.AioRpcError as error:
                untrusted = transport.why_untrusted(error, security=security, server_name=name)
                why = untrusted or error.details() or error.code().name
                return ServiceAnswer(f"the inventory at {address} does not answer: {why}")
    except transport.PlainTextError:
        return ServiceAnswer(unasked=f"{address} is beyond this machine, and {_NO_CERTIFICATE}")
    except ServiceError as error:
        return ServiceAnswer(f"the inventory at {address} cannot be asked: {error}")
    totals = answer.totals
    return ServiceAnswer(said=f"{totals.gpus} GPUs on {totals.nodes} nodes, {totals.nodes_stale} of them stale")


# -- the cluster --------------------------------------------------------------------------------------------------


async def _look_at_cluster(look: DoctorOptions) -> tuple[list[FindingDocument], list[QuotaProposalDocument]]:
    try:
        kubectl = Kubectl(look.kubeconfig)
        where = await kubectl.where()
        lists, problems = await _lists(kubectl)
    except KubectlError as error:
        return [unknown(Check.CLUSTER, str(error), "--no-cluster leaves the cluster out")], []
    if not lists:
        why = next(iter(problems.values()))
        return [unknown(Check.CLUSTER, f"{where} shows nothing: {why}", "--no-cluster leaves the cluster out")], []
    seen = ObservedCluster(where=where, lists=lists, problems=problems, now_s=time.time())
    if not is_installed(seen):
        return [_not_installed(where, asked_for=look.asked_for_cluster)], []
    seen = ObservedCluster(
        where=where, lists=lists, problems=problems, now_s=seen.now_s, trial=await _trial(kubectl, seen)
    )
    of_quotas, proposals = check_quotas(seen.of("quotas"), seen.of("limits"))
    return [*check_cluster(seen), *of_quotas], proposals


def _not_installed(where: str, *, asked_for: bool) -> FindingDocument:
    what = f"Sluice is not installed in {where}"
    if asked_for:
        return problem(Check.CLUSTER, what, "install it (docs/install.md)")
    return warning(Check.CLUSTER, what, "KUBECONFIG names it; --no-cluster leaves it out")


async def _lists(kubectl: Kubectl) -> tuple[dict[str, list[Mapping[str, Any]]], dict[str, str]]:
    """Every kind that could be read, and why the others could not."""
    lists: dict[str, list[Mapping[str, Any]]] = {}
    problems: dict[str, str] = {}

    async def read(names: tuple[str, ...]) -> None:
        kinds = [KINDS[name] for name in names]
        try:
            found = await kubectl.listed(",".join(kind.resource for kind in kinds), *kinds[0].which)
        except KubectlError as error:
            if len(names) == 1:
                problems[names[0]] = str(error)
                return
            await asyncio.gather(*(read((name,)) for name in names))  # the other kinds can still be read
            return
        for name, kind in zip(names, kinds, strict=True):
            lists[name] = [each for each in found if each.get("kind") == kind.kind]

    await asyncio.gather(*(read(names) for names in groups()))
    return lists, problems


async def _trial(kubectl: Kubectl, seen: ObservedCluster) -> AdmissionTrial | None:
    webhooks, namespaces = seen.of("webhooks"), seen.of("namespaces")
    if webhooks is None or namespaces is None:
        return None
    namespace = namespace_for_trial(webhooks, namespaces)
    if not namespace:
        return AdmissionTrial("")
    pod = {**_TRIAL, "metadata": {**_TRIAL["metadata"], "namespace": namespace}}
    try:
        return AdmissionTrial(namespace, pod=await kubectl.tried(pod))
    except KubectlError as error:
        return AdmissionTrial(namespace, problem=str(error))


# -- on a terminal ------------------------------------------------------------------------------------------------

_STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "magenta"}
_VERDICTS: dict[Level, str] = {
    "ok": "nothing must be fixed",
    "warning": "nothing must be fixed; read the warnings",
    "problem": "something must be fixed",
    "unknown": "something could not be checked",
}


def _show(document: DoctorDocument) -> None:
    out = console()
    width = max((len(finding.check) for finding in document.findings), default=0)
    for finding in document.findings:
        out.print(f"{finding.level:<7}", style=_STYLES[finding.level], end="")
        out.print(said(f"  {finding.check:<{width}}  {finding.what}"))
        if finding.remedy:
            out.print(said(f"{'':7}  {'':<{width}}  -> {finding.remedy}"))
    for command in quota_commands(document.quotas):
        out.print(said(command))
    out.print(_VERDICTS[worst(document.findings)], markup=False)
