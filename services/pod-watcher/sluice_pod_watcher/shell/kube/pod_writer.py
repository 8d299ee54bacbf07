"""Carry out the core's instructions at the API server, and report the results. No retries. At most IN_FLIGHT_MAX writes
to pods run at once: beyond that the API server is the limit (measured)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.bus.trace_headers import trace_id
from sluice.contracts.ids import RunId
from sluice.contracts.kube.names import ANNOTATION_TRACE, CONDITION_READY
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import Executor
from sluice.runtime.tracing import request_traces
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.shell.kube.client import JSON_PATCH, MERGE, STRATEGIC_MERGE, KubeApi, KubeError
from sluice_pod_watcher.shell.kube.reflector import as_it_is

IN_FLIGHT_MAX = 8
CONTROLLER = "sluice.dev/pod-watcher"
NOTE_BYTES_MAX = 1024  # of an Event's note: an API server's message says characters, but it counts bytes
FORBIDDEN, GONE, ALREADY_THERE = 403, 404, 409
AS_LONG_AS_IT_LASTS = frozenset({GONE, ALREADY_THERE})  # for an Event: it or its namespace is gone, or it was written
NOT_SENT = "not sent: the lease expired, and another pod-watcher may be active"


@dataclass(slots=True)
class PodWriter:
    """The writes of one pod-watcher to one API server. After a pause longer than its lease, the process sends no
    earlier decision: another pod-watcher may be active. The core gets a failure without an answer, and retries if it
    still wants the write."""

    api: KubeApi
    clock: Clock
    run: RunId
    holds: Callable[[], bool]  # whether this process holds the lease at this moment
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_MAX))

    def executors(self) -> dict[type, Executor[events.Event]]:
        return {
            events.BindPod: Executor(self._bind, request=_request, quiet=True),
            events.AnnotatePod: Executor(self._annotate, request=_request, quiet=True),
            events.WritePodCondition: Executor(self._tell, request=_request, quiet=True),
            events.ReadPod: Executor(self._read, request=_request, limit=IN_FLIGHT_MAX, quiet=True),
            events.ReadClaims: Executor(self._claims, request=_request, limit=IN_FLIGHT_MAX, quiet=True),
            events.EvictPod: Executor(self._evict, request=_request),
            events.WriteEvent: Executor(self._event, request=_request, limit=IN_FLIGHT_MAX, quiet=True),
        }

    async def _bind(self, wanted: events.BindPod) -> events.Event:
        return await self._patch(wanted, "bind", "", list(wanted.patch), JSON_PATCH)

    async def _annotate(self, wanted: events.AnnotatePod) -> events.Event:
        return await self._patch(wanted, "annotate", "", list(wanted.patch), JSON_PATCH)

    async def _tell(self, wanted: events.WritePodCondition) -> events.Event:
        # Strategic merge: a merge patch would drop the conditions of others (tried).
        condition = {
            "type": CONDITION_READY,
            "status": wanted.status,
            "reason": wanted.reason,
            "message": wanted.message,
            "lastTransitionTime": self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body = {"metadata": {"uid": wanted.uid}, "status": {"conditions": [condition]}}
        return await self._patch(wanted, "condition", "/status", body, STRATEGIC_MERGE)

    async def _patch(
        self,
        wanted: events.BindPod | events.AnnotatePod | events.WritePodCondition,
        step: events.Step,
        subresource: str,
        body: Any,
        content_type: str,
    ) -> events.Event:
        path = f"{_pod(wanted.namespace, wanted.name)}{subresource}"
        try:
            async with self._slots:
                if not self.holds():
                    return events.PatchRefused(wanted.uid, step, 0, NOT_SENT)
                answer = await self.api.call("PATCH", path, body=body, content_type=content_type)
            return events.PatchDone(wanted.uid, step, as_it_is(answer))
        except KubeError as error:
            return events.PatchRefused(wanted.uid, step, error.status, error.message, error.retry_after_s)
        except NOT_READABLE as error:
            return events.PatchRefused(wanted.uid, step, 0, f"the answer is not JSON: {shorten(str(error), 300)}")

    async def _read(self, wanted: events.ReadPod) -> events.Event:
        """With a list: no other call needs the right to `get` pods."""
        path = f"/api/v1/namespaces/{wanted.namespace}/pods"
        try:
            answer = await self.api.call("GET", path, query={"fieldSelector": f"metadata.name={wanted.name}"})
            items = as_it_is(answer).get("items") or []
        except (KubeError, *NOT_READABLE) as error:
            return events.PodUnreadable(wanted.uid, shorten(str(error), 300))
        return events.PodRead(wanted.uid, items[0] if items else None)

    async def _claims(self, wanted: events.ReadClaims) -> events.Event:
        found = []
        try:
            for name in wanted.names:
                claim = await self._object(f"/api/v1/namespaces/{wanted.namespace}/persistentvolumeclaims/{name}")
                spec = (claim or {}).get("spec") or {}
                volume_name, class_name = spec.get("volumeName"), spec.get("storageClassName")
                volume = await self._object(f"/api/v1/persistentvolumes/{volume_name}") if volume_name else None
                late = claim is not None and not volume_name and class_name
                path = f"/apis/storage.k8s.io/v1/storageclasses/{class_name}"
                found.append((name, claim, volume, await self._object(path) if late else None))
        except KubeError as error:
            if error.status == FORBIDDEN:
                return events.ClaimsRead(
                    wanted.uid, forbidden=f"Sluice is not allowed to read its volumes: {error.message}"
                )
            return events.ClaimsUnreadable(wanted.uid, shorten(str(error), 300))
        except NOT_READABLE as error:
            return events.ClaimsUnreadable(wanted.uid, shorten(str(error), 300))
        return events.ClaimsRead(wanted.uid, tuple(found))

    async def _object(self, path: str) -> events.Raw | None:
        try:
            return as_it_is(await self.api.call("GET", path))
        except KubeError as error:
            if error.status == GONE:
                return None
            raise

    async def _evict(self, wanted: events.EvictPod) -> events.Event:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": wanted.name, "namespace": wanted.namespace},
            "deleteOptions": {"preconditions": {"uid": wanted.uid}},
        }
        try:
            async with self._slots:
                if not self.holds():
                    return events.EvictionRefused(wanted.uid, 0, NOT_SENT)
                await self.api.call("POST", f"{_pod(wanted.namespace, wanted.name)}/eviction", body=body)
        except KubeError as error:
            return events.EvictionRefused(wanted.uid, error.status, error.message)
        return events.PodEvicted(wanted.uid)

    async def _event(self, wanted: events.WriteEvent) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{wanted.namespace}/events"
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            if wanted.count > 1 and await self._one_more(f"{path}/{wanted.key}", wanted.count, now):
                return
            await self.api.call("POST", path, body=self._new_event(wanted, now))
        except KubeError as error:
            if error.status not in AS_LONG_AS_IT_LASTS:
                logs.get("kube").warning("an event was not written", why=str(error), request=wanted.uid)

    async def _one_more(self, path: str, count: int, now: str) -> bool:
        """Count a repeated Event; False when it has expired since. Only its series may change (tried)."""
        series = {"series": {"count": count, "lastObservedTime": now}}
        try:
            await self.api.call("PATCH", path, body=series, content_type=MERGE)
        except KubeError as error:
            if error.status == GONE:
                return False
            raise
        return True

    def _new_event(self, wanted: events.WriteEvent, now: str) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": wanted.key, "namespace": wanted.namespace, "annotations": _traced(wanted)},
            "eventTime": now,
            "reportingController": CONTROLLER,
            "reportingInstance": str(self.run)[:128],
            "action": "Slice",
            "reason": wanted.reason,
            "type": wanted.level,
            "note": _fitting(wanted.note),
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": wanted.namespace,
                "name": wanted.name,
                "uid": wanted.uid,
            },
        }

    def _now(self) -> datetime:
        return self.clock.utc().astimezone(UTC)


def _fitting(note: str) -> str:
    if len(note.encode()) <= NOTE_BYTES_MAX:
        return note
    return f"{note.encode()[: NOTE_BYTES_MAX - 3].decode(errors='ignore')}..."


def _traced(wanted: events.WriteEvent) -> dict[str, str]:
    ids = request_traces.ids_of(request_traces.current())
    return {ANNOTATION_TRACE: ids[0] if ids else trace_id(wanted.uid)}


def _pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _request(
    wanted: events.BindPod
    | events.AnnotatePod
    | events.WritePodCondition
    | events.ReadPod
    | events.ReadClaims
    | events.EvictPod
    | events.WriteEvent,
) -> str:
    return wanted.uid
