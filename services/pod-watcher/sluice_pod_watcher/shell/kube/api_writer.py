"""Carry out the core's instructions at the API server, and report the results. No retries: the core decides."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from sluice.contracts.bus import codec, trace_headers
from sluice.contracts.ids import RunId
from sluice.contracts.kube import names
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import Executor
from sluice.runtime.tracing import request_traces
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.core.cluster.events import Raw
from sluice_pod_watcher.shell.kube.client import (
    JSON,
    JSON_PATCH,
    MERGE,
    STRATEGIC_MERGE,
    KubeApi,
    KubeError,
    Method,
    unless,
)
from sluice_pod_watcher.shell.kube.reflector import as_it_is

IN_FLIGHT_MAX, IN_BACKGROUND_MAX = 8, 4
CONTROLLER = "sluice.dev/pod-watcher"
NOTE_BYTES_MAX = 1024  # of an Event's note: an API server's message says characters, but it counts bytes
GONE, ALREADY_THERE = 404, 409
AS_LONG_AS_IT_LASTS = frozenset({GONE, ALREADY_THERE})  # for an Event: it or its namespace is gone, or it was written
NOT_SENT = "not sent: the lease expired, and another pod-watcher may be active"
RESOURCE_V1 = "/apis/resource.k8s.io/v1"
GPU_VERSION = f"{names.CRD_GROUP}/v1alpha1"
GPUS = f"/apis/{GPU_VERSION}/{names.CRD_PLURAL}"


class _Write(NamedTuple):
    method: Method
    path: str
    body: Any = None
    content_type: str = JSON
    done: frozenset[int] = frozenset()  # failures that show that it is so already


def write_of(wanted: events.Call, now: datetime) -> _Write:
    """The one call that carries out an instruction."""
    match wanted:
        case events.BindPod() | events.AnnotatePod():
            return _Write("PATCH", _pod(wanted), list(wanted.patch), JSON_PATCH)
        case events.WritePodCondition():
            condition = {
                "type": names.CONDITION_READY,
                "status": wanted.status,
                "reason": wanted.reason,
                "message": wanted.message,
                "lastTransitionTime": _seconds(now),
            }
            body = {"metadata": {"uid": wanted.uid}, "status": {"conditions": [condition]}}
            # Strategic merge: a merge patch would drop the conditions of others (tried).
            return _Write("PATCH", f"{_pod(wanted)}/status", body, STRATEGIC_MERGE)
        case events.EvictPod():
            about = {"name": wanted.name, "namespace": wanted.namespace}
            options = {"preconditions": {"uid": wanted.uid}}
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about, "deleteOptions": options}
            return _Write("POST", f"{_pod(wanted)}/eviction", eviction)
        case events.CreateClaim():
            return _Write("POST", f"{RESOURCE_V1}/namespaces/{wanted.namespace}/resourceclaims", wanted.body)
        case events.ProtectClaim():
            return _Write("PATCH", _claim(wanted), list(wanted.patch), JSON_PATCH)
        case events.WriteClaimStatus():
            return _Write("PATCH", f"{_claim(wanted)}/status", _stamped(wanted.body, now), MERGE)
        case events.WriteHandOver():
            # The ConfigMap is shipped empty: a right to create could not be limited to its name.
            path = f"/api/v1/namespaces/{wanted.namespace}/configmaps/{names.CONFIG_HAND_OVER}"
            return _Write("PATCH", path, {"data": {names.KEY_HAND_OVER: wanted.mode}}, MERGE)
        case events.CreatePlaceholder():
            return _Write("POST", f"/api/v1/namespaces/{wanted.namespace}/pods", wanted.body)
        case events.DeletePlaceholder():
            body = {"preconditions": {"uid": wanted.uid}, "gracePeriodSeconds": 0}
            return _Write("DELETE", _pod(wanted), body, done=frozenset({GONE, ALREADY_THERE}))
        case _:
            raise AssertionError(f"{wanted!r} is not one call")


@dataclass(slots=True)
class ApiWriter:
    """The writes of one pod-watcher to one API server. After a pause longer than its lease it sends no earlier
    decision: the core gets a failure without an answer, and retries what it still wants."""

    api: KubeApi
    clock: Clock
    run: RunId
    holds: Callable[[], bool]  # whether this process holds the lease at this moment
    claims_wanted: asyncio.Event = field(default_factory=asyncio.Event)  # set when claims are to be watched
    _pods: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_MAX))
    _claims: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_MAX))

    def executors(self) -> dict[type, Executor[events.Event]]:
        of_pod, of_claim = partial(self._in_turn, self._pods), partial(self._in_turn, self._claims)
        return {
            events.BindPod: _reporting(of_pod),
            events.AnnotatePod: _reporting(of_pod),
            events.WritePodCondition: _reporting(of_pod),
            events.EvictPod: _reporting(of_pod, quiet=False),
            events.ReadPod: _reporting(self._read, limit=IN_FLIGHT_MAX),
            events.ReadClaims: _reporting(self._volumes, limit=IN_FLIGHT_MAX),
            events.CreateClaim: _reporting(of_claim),
            events.ProtectClaim: _reporting(of_claim),
            events.WriteClaimStatus: _reporting(of_claim),
            events.WriteHandOver: _reporting(self._write, quiet=False),
            events.CreatePlaceholder: _reporting(self._write, limit=IN_BACKGROUND_MAX, quiet=False),
            events.DeletePlaceholder: _reporting(self._write, limit=IN_BACKGROUND_MAX, quiet=False),
            events.MirrorGpu: _reporting(self._mirror, limit=IN_BACKGROUND_MAX),
            events.UnmirrorGpu: _reporting(self._unmirror, limit=IN_BACKGROUND_MAX),
            events.WriteEvent: Executor(self._event, request=_request, limit=IN_FLIGHT_MAX, quiet=True),
            events.WatchClaims: Executor(self._watch_claims, quiet=True),
        }

    async def _watch_claims(self, _wanted: events.WatchClaims) -> None:
        self.claims_wanted.set()

    async def _in_turn(self, slots: asyncio.Semaphore, wanted: events.Call) -> Raw | None:
        async with slots:
            return await self._write(wanted)

    async def _write(self, wanted: events.Call) -> Raw | None:
        if not self.holds():
            raise KubeError(0, NOT_SENT)
        write = write_of(wanted, self._now())
        call = self.api.call(write.method, write.path, body=write.body, content_type=write.content_type)
        answer = await unless(call, *write.done)
        return as_it_is(answer) if answer is not None else None

    async def _read(self, wanted: events.ReadPod) -> Raw | None:
        """With a list: no other call needs the right to `get` pods."""
        query = {"fieldSelector": f"metadata.name={wanted.name}"}
        answer = await self.api.call("GET", f"/api/v1/namespaces/{wanted.namespace}/pods", query=query)
        items = as_it_is(answer).get("items") or []
        return items[0] if items else None

    async def _volumes(self, wanted: events.ReadClaims) -> tuple[events.ClaimObjects, ...]:
        found = []
        for name in wanted.names:
            claim = await self._object(f"/api/v1/namespaces/{wanted.namespace}/persistentvolumeclaims/{name}")
            spec = (claim or {}).get("spec") or {}
            volume_name, class_name = spec.get("volumeName"), spec.get("storageClassName")
            volume = await self._object(f"/api/v1/persistentvolumes/{volume_name}") if volume_name else None
            late = claim is not None and not volume_name and class_name
            path = f"/apis/storage.k8s.io/v1/storageclasses/{class_name}"
            found.append(events.ClaimObjects(name, claim, volume, await self._object(path) if late else None))
        return tuple(found)

    async def _object(self, path: str) -> Raw | None:
        answer = await unless(self.api.call("GET", path), GONE)
        return as_it_is(answer) if answer is not None else None

    async def gpus(self) -> events.GpusListed:
        """The existing objects of GPUs; none when they cannot be listed, and then leftovers stay."""
        try:
            items = as_it_is(await self.api.call("GET", GPUS)).get("items") or []
        except (KubeError, *codec.NOT_READABLE) as error:
            logs.get("kube").warning("the objects of gpus.sluice.dev cannot be listed", why=shorten(str(error), 300))
            return events.GpusListed(())
        return events.GpusListed(tuple(str(item["metadata"]["name"]) for item in items))

    async def _mirror(self, wanted: events.MirrorGpu) -> None:
        """Never read back. Without the CRD only these writes fail."""
        # The whole status is replaced: a merge would keep the profiles of an earlier GPU.
        path, body = f"{GPUS}/{wanted.name}/status", [{"op": "add", "path": "/status", "value": dict(wanted.status)}]
        write = partial(self.api.call, "PATCH", path, body=body, content_type=JSON_PATCH)
        if await unless(write(), GONE) is None:
            new = {"apiVersion": GPU_VERSION, "kind": "Gpu", "metadata": {"name": wanted.name}}
            await unless(self.api.call("POST", GPUS, body=new), ALREADY_THERE)  # it would drop a status (tried)
            await write()

    async def _unmirror(self, wanted: events.UnmirrorGpu) -> None:
        await unless(self.api.call("DELETE", f"{GPUS}/{wanted.name}"), GONE)

    async def _event(self, wanted: events.WriteEvent) -> None:
        """Write an Event, or count a repeated one that has not expired since. Only its series may change (tried)."""
        path = f"/apis/events.k8s.io/v1/namespaces/{wanted.namespace}/events"
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        series = {"series": {"count": wanted.count, "lastObservedTime": now}}
        try:
            more = partial(self.api.call, "PATCH", f"{path}/{wanted.key}", body=series, content_type=MERGE)
            if wanted.count == 1 or await unless(more(), GONE) is None:
                await self.api.call("POST", path, body=self._new_event(wanted, now))
        except KubeError as error:
            if error.status not in AS_LONG_AS_IT_LASTS:
                logs.get("kube").warning("an event was not written", why=str(error), request=wanted.uid)

    def _new_event(self, wanted: events.WriteEvent, now: str) -> dict[str, Any]:
        ids = request_traces.ids_of(request_traces.current())
        traced = {names.ANNOTATION_TRACE: ids[0] if ids else trace_headers.trace_id(wanted.uid)}
        pod = {"apiVersion": "v1", "kind": "Pod"}
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": wanted.key, "namespace": wanted.namespace, "annotations": traced},
            "eventTime": now,
            "reportingController": CONTROLLER,
            "reportingInstance": str(self.run)[:128],
            "action": "Slice",
            "reason": wanted.reason,
            "type": wanted.level,
            "note": _fitting(wanted.note),
            "regarding": pod | {"namespace": wanted.namespace, "name": wanted.name, "uid": wanted.uid},
        }

    def _now(self) -> datetime:
        return self.clock.utc().astimezone(UTC)


def _reporting(
    run: Callable[[Any], Awaitable[Any]], *, limit: int = IN_FLIGHT_MAX * 8, quiet: bool = True
) -> Executor[events.Event]:
    """Carries out an instruction by `run`, whose answer or KubeError becomes the event with the result."""

    async def report(wanted: Any) -> events.Event:
        try:
            return events.Done(wanted, await run(wanted))
        except KubeError as error:
            return events.Failed(wanted, error.status, error.message, error.retry_after_s)
        except codec.NOT_READABLE as error:
            return events.Failed(wanted, 0, f"the answer is not JSON: {shorten(str(error), 300)}")

    return Executor(report, request=_request, limit=limit, quiet=quiet)


def _request(wanted: Any) -> str:
    return wanted.uid if isinstance(wanted, (events.OfObject, events.ReadClaims)) else ""


def _seconds(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _stamped(body: Mapping[str, Any], now: datetime) -> Mapping[str, Any]:
    """A new allocation gets its time: without it kube-scheduler would add one, which is refused as a change."""
    allocation = body["status"].get("allocation")
    if allocation is None:
        return body
    return {**body, "status": {**body["status"], "allocation": {**allocation, "allocationTimestamp": _seconds(now)}}}


def _fitting(note: str) -> str:
    if len(note.encode()) <= NOTE_BYTES_MAX:
        return note
    return f"{note.encode()[: NOTE_BYTES_MAX - 3].decode(errors='ignore')}..."


def _pod(wanted: events.OfObject | events.DeletePlaceholder) -> str:
    return f"/api/v1/namespaces/{wanted.namespace}/pods/{wanted.name}"


def _claim(wanted: events.OfObject) -> str:
    return f"{RESOURCE_V1}/namespaces/{wanted.namespace}/resourceclaims/{wanted.name}"
