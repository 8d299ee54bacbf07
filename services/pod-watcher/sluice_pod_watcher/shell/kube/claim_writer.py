"""Carry out the core's instructions about ResourceClaims at the API server, and report the results. No retries. Also
the ConfigMap from which admission reads how new pods get their devices."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import CONFIG_HAND_OVER, KEY_HAND_OVER
from sluice.contracts.reasons import shorten
from sluice.runtime.clock import Clock
from sluice.runtime.core_runner import Executor
from sluice_pod_watcher.core.cluster import events
from sluice_pod_watcher.shell.kube.client import JSON_PATCH, MERGE, KubeApi, KubeError
from sluice_pod_watcher.shell.kube.pod_writer import IN_FLIGHT_MAX, NOT_SENT
from sluice_pod_watcher.shell.kube.reflector import as_it_is

RESOURCE_V1 = "/apis/resource.k8s.io/v1"


@dataclass(slots=True)
class ClaimWriter:
    """The writes of one pod-watcher to claims, at most IN_FLIGHT_MAX at once. As for pods, nothing is sent after the
    lease expired: the core gets a failure without an answer."""

    api: KubeApi
    clock: Clock
    holds: Callable[[], bool]  # whether this process holds the lease at this moment
    wanted: asyncio.Event  # set when claims are to be watched
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_MAX))

    def executors(self) -> dict[type, Executor[events.Event]]:
        return {
            events.WatchClaims: Executor(self._watch, quiet=True),
            events.CreateClaim: Executor(self._create, request=_request, quiet=True),
            events.ProtectClaim: Executor(self._protect, request=_request, quiet=True),
            events.WriteClaimStatus: Executor(self._status, request=_request, quiet=True),
            events.WriteHandOver: Executor(self._hand_over),
        }

    async def _watch(self, _wanted: events.WatchClaims) -> None:
        self.wanted.set()

    async def _create(self, wanted: events.CreateClaim) -> events.Event:
        path = f"{RESOURCE_V1}/namespaces/{wanted.namespace}/resourceclaims"
        return await self._sent(wanted, "create", lambda: self.api.call("POST", path, body=wanted.body))

    async def _protect(self, wanted: events.ProtectClaim) -> events.Event:
        path, body = _claim(wanted.namespace, wanted.name), list(wanted.patch)
        call = lambda: self.api.call("PATCH", path, body=body, content_type=JSON_PATCH)  # noqa: E731
        return await self._sent(wanted, "protect", call)

    async def _status(self, wanted: events.WriteClaimStatus) -> events.Event:
        path, body = f"{_claim(wanted.namespace, wanted.name)}/status", self._stamped(wanted)
        call = lambda: self.api.call("PATCH", path, body=body, content_type=MERGE)  # noqa: E731
        return await self._sent(wanted, wanted.step, call)

    def _stamped(self, wanted: events.WriteClaimStatus) -> dict[str, Any]:
        allocation = wanted.body["status"].get("allocation")
        if allocation is None:
            return dict(wanted.body)
        now = self.clock.utc().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {**wanted.body["status"], "allocation": {**allocation, "allocationTimestamp": now}}
        return {**wanted.body, "status": status}

    async def _sent(
        self,
        wanted: events.CreateClaim | events.ProtectClaim | events.WriteClaimStatus,
        step: events.ClaimStep,
        call: Callable[[], Awaitable[bytes]],
    ) -> events.Event:
        where = wanted.uid, wanted.namespace, wanted.name, step
        try:
            async with self._slots:
                if not self.holds():
                    return events.ClaimRefused(*where, 0, NOT_SENT)
                return events.ClaimWritten(*where, as_it_is(await call()))
        except KubeError as error:
            return events.ClaimRefused(*where, error.status, error.message, error.retry_after_s)
        except NOT_READABLE as error:
            return events.ClaimRefused(*where, 0, f"the answer is not JSON: {shorten(str(error), 300)}")

    async def _hand_over(self, wanted: events.WriteHandOver) -> events.Event:
        """The ConfigMap is shipped empty: a right to create could not be limited to its name."""
        path = f"/api/v1/namespaces/{wanted.namespace}/configmaps/{CONFIG_HAND_OVER}"
        if not self.holds():
            return events.HandOverNotWritten(NOT_SENT)
        try:
            await self.api.call("PATCH", path, body={"data": {KEY_HAND_OVER: wanted.mode}}, content_type=MERGE)
        except KubeError as error:
            return events.HandOverNotWritten(str(error))
        return events.HandOverWritten(wanted.mode)


def _claim(namespace: str, name: str) -> str:
    return f"{RESOURCE_V1}/namespaces/{namespace}/resourceclaims/{name}"


def _request(wanted: events.CreateClaim | events.ProtectClaim | events.WriteClaimStatus) -> str:
    return wanted.uid
