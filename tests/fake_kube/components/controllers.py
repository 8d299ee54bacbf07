"""Deployments keep their number of pods, created through admission as the replicaset controller."""

import asyncio
import json
import zlib
from typing import TYPE_CHECKING

from fake_kube import resource_types
from fake_kube.calls import Call, stamp
from fake_kube.errors import ApiError, Json
from fake_kube.kinds import pod_subresources
from fake_kube.rbac import service_account
from fake_kube.requests.patch_formats import clone
from fake_kube.store import Change

if TYPE_CHECKING:
    from fake_kube.server import FakeKube

DEPLOYMENTS = "deployments.apps"
EVENTS = "events.events.k8s.io"
USER = service_account("kube-system", "replicaset-controller")
PODS = next(resource for resource in resource_types.BUILT_IN if resource.full_name == "pods")
RETRY_S = 0.5
"""After a creation was refused."""
MAX_AT_ONCE = 100
"""Pods made in one round."""


class Controllers:
    """The controllers of one server."""

    def __init__(self, server: "FakeKube") -> None:
        self._server = server

    def start(self) -> None:
        self._wake = asyncio.Event()
        self._server.store.listen(self._changed)
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self, resource: str, change: Change) -> None:
        if resource == DEPLOYMENTS or (resource == "pods" and change.last["metadata"].get("ownerReferences")):
            self._wake.set()

    async def _loop(self) -> None:
        failed = False
        while True:
            try:
                async with asyncio.timeout(RETRY_S if failed else None):
                    await self._wake.wait()
            except TimeoutError:
                failed = False
            self._wake.clear()
            self._collect()
            failed = False
            for deployment in self._server.store.listed(DEPLOYMENTS):
                failed = await self._keep(deployment) or failed

    def _pods(self, uid: str, namespace: str = "") -> list[Json]:
        pods = self._server.store.listed("pods", namespace)
        return [pod for pod in pods if any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences") or [])]

    def _collect(self) -> None:
        alive = {each["metadata"]["uid"] for each in self._server.store.listed(DEPLOYMENTS)}
        for pod in self._server.store.listed("pods"):
            owners = [
                each["uid"] for each in pod["metadata"].get("ownerReferences") or [] if each["kind"] == "ReplicaSet"
            ]
            if owners and not alive & set(owners) and not pod["metadata"].get("deletionTimestamp"):
                pod_subresources.delete(self._server.store, pod, grace_s=None, now=stamp())

    async def _keep(self, deployment: Json) -> bool:
        meta, spec = deployment["metadata"], deployment["spec"]
        pods = self._pods(meta["uid"], meta["namespace"])
        living = [
            pod
            for pod in pods
            if not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") not in pod_subresources.ENDED
        ]
        wanted = spec.get("replicas", 1)
        for pod in living[wanted:]:
            pod_subresources.delete(self._server.store, pod, grace_s=None, now=stamp())
        refusal = None
        for _ in range(min(wanted - len(living), MAX_AT_ONCE)):
            try:
                await self._create(deployment)
            except ApiError as refused:
                refusal = refused
                break
        self._tell(deployment, refusal)
        return refusal is not None

    async def _create(self, deployment: Json) -> None:
        meta, template = deployment["metadata"], clone(deployment["spec"]["template"])
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{meta['name']}-5d8f", "uid": meta["uid"]}
        named = {"generateName": f"{meta['name']}-5d8f-", "namespace": meta["namespace"]}
        owned = {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {**(template.get("metadata") or {}), **named, **owned},
            "spec": template["spec"],
        }
        target = resource_types.Target(PODS, "create", meta["namespace"])
        await self._server.verbs.answer(Call(target, USER, body=json.dumps(pod).encode()))

    def _tell(self, deployment: Json, refusal: ApiError | None) -> None:
        meta, store = deployment["metadata"], self._server.store
        now = store.get(DEPLOYMENTS, meta["namespace"], meta["name"])
        if now is None:
            return
        pods = [
            pod for pod in self._pods(meta["uid"], meta["namespace"]) if not pod["metadata"].get("deletionTimestamp")
        ]
        ready = sum(pod_subresources.ready(pod) for pod in pods)
        status: Json = {"replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready}
        status["unavailableReplicas"] = max(0, now["spec"].get("replicas", 1) - ready)
        if refusal is not None:
            said = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refusal.message}
            status["conditions"] = [said]
            self._failed_to_create(meta, refusal)
        store.put(DEPLOYMENTS, {**now, "status": status})

    def _failed_to_create(self, meta: Json, refusal: ApiError) -> None:
        """The event that `kubectl describe replicaset` shows; a repeat is the same one (kubernetes, replica_set.go)."""
        name, note = f"{meta['name']}-5d8f", f"Error creating: {refusal.message}"
        event = {
            "kind": "Event",
            "apiVersion": "events.k8s.io/v1",
            "metadata": {"name": f"{name}.{zlib.crc32(note.encode()):x}", "namespace": meta["namespace"]},
            "reason": "FailedCreate",
            "type": "Warning",
            "note": note,
            "regarding": {"kind": "ReplicaSet", "namespace": meta["namespace"], "name": name, "uid": meta["uid"]},
            "deprecatedSource": {"component": "replicaset-controller"},
        }
        if self._server.store.get(EVENTS, meta["namespace"], event["metadata"]["name"]) is None:
            self._server.store.put(EVENTS, event)
