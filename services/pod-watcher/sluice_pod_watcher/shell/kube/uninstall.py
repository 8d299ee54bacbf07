"""Prepares a cluster for the removal of Sluice (role `uninstall`): new pods get no gate; gated ones with a controller
are deleted, others lose the gate; it waits for pods with slices, and for slices to leave the GPUs; at the end a pod in
the place of each agent removes mounts, sockets and directories of its node."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.kube.names import GATE, LABEL_MANAGED
from sluice.runtime import errors, logs
from sluice.runtime.clock import Clock
from sluice_pod_watcher.core.cluster.events import mapping_in, mappings_in
from sluice_pod_watcher.shell.kube import api_writer, reflector
from sluice_pod_watcher.shell.kube.client import LIST_S, STRATEGIC_MERGE, KubeApi, KubeError, unless
from sluice_pod_watcher.shell.kube.webhook_certificates import ABSENT, CONFIGURATIONS

LOOK_S = 1.0  # how often it looks whether something is gone
PAGE = 500
_PASSING, _FAILING = frozenset({0, 410, 429}), 500  # statuses that a later try may not have
NAMED_MAX = 50  # pods that an error names
CLEANS = "sluice.dev/cleans-node"
_OF_OTHERS = ("Foreign", "Quarantined")  # states of instances that stay on a GPU
_CLEAN = (
    'trap "exit 0" TERM; for try in 1 2 3 4; do if /opt/sluice/bin/run clean-node --of-process 1; then '
    ": > /tmp/cleaned; while :; do sleep 3600 & wait $!; done; fi; sleep 5 & wait $!; done; exit 1"
)
"""Ends after some tries: then the pod's status says what could not be removed."""
CLEANER: Mapping[str, Any] = {
    "spec": {
        "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
        "template": {
            "metadata": {"labels": {CLEANS: "true"}},
            "spec": {
                "runtimeClassName": None,
                "containers": [
                    {"name": "node-agent", "$patch": "delete"},
                    {"name": "credentials", "$patch": "delete"},
                    {
                        "name": "csi",
                        "livenessProbe": None,
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "command": ["/bin/sh", "-c", _CLEAN],
                        "readinessProbe": {
                            "grpc": None,
                            "exec": {"command": ["test", "-e", "/tmp/cleaned"]},  # noqa: S108 - of that container
                            "periodSeconds": 2,
                        },
                    },
                ],
            },
        },
    }
}
"""The volume driver's container with another command: it enters the node's mounts, and is ready when all is removed."""
AGENTS = "app.kubernetes.io/part-of=sluice,app.kubernetes.io/component=node-agent"


class Uninstall(msgspec.Struct, frozen=True):
    """wait_s: the longest that it waits for gates, pods, slices and nodes, each. only_gates: end with the gates."""

    api: KubeApi
    clock: Clock
    configuration: str
    nodes_namespace: str
    wait_s: float
    leave_slices: bool
    only_gates: bool

    async def run(self) -> None:
        """Raises ServiceError with what is left, or what cannot be seen: then no agent was removed."""
        try:
            await self._delete(f"{CONFIGURATIONS}/{self.configuration}")
            # An API server may use the configuration that it had for a moment longer, and gate once more.
            await self._wait("gates to be opened", self._open_gates, "these pods are still gated, run this again")
            if self.only_gates:
                return
            problem = "these pods still have slices, or a volume for one; delete them, then run this again"
            await self._wait("pods with slices to end", self._pods_with_slices, problem)
            if not self.leave_slices:
                problem = "these GPUs still have slices of ours; run this again, or leave them there"
                await self._wait("slices to be taken off GPUs", self._slices, f"{problem} (uninstall.leaveSlices)")
            await self._clean_nodes()
        except KubeError as error:
            raise errors.ServiceError(f"cannot see or change what is left, run this again: {error}") from error
        except NOT_READABLE as error:
            raise errors.ServiceError(f"an answer of the API server cannot be read: {error}") from error

    async def _wait(self, what: str, look: Callable[[], Awaitable[list[str]]], problem: str) -> None:
        """Raises ServiceError with the problem and what is left after `wait_s`."""
        left = await self._until_none(what, look)
        if left:
            more = [f"and {len(left) - NAMED_MAX} more"] if len(left) > NAMED_MAX else []
            raise errors.ServiceError("\n".join([f"{problem}:", *left[:NAMED_MAX], *more]))

    async def _until_none(self, what: str, look: Callable[[], Awaitable[list[str]]]) -> list[str]:
        end = self.clock.monotonic() + self.wait_s
        left = await self._answered(look, end)
        if left:
            logs.get("uninstall").info("waiting", what=what, left=len(left), up_to_s=self.wait_s)
        while left and self.clock.monotonic() < end:
            await self.clock.sleep(LOOK_S)
            left = await self._answered(look, end)
        return left

    async def _answered(self, look: Callable[[], Awaitable[list[str]]], end: float) -> list[str]:
        """What a look finds; tried again until `end` where the API server is busy, away or failing."""
        while True:
            try:
                return await look()
            except KubeError as error:
                passes = error.status in _PASSING or error.status >= _FAILING
                if not passes or self.clock.monotonic() >= end:
                    raise
                await self.clock.sleep(max(LOOK_S, error.retry_after_s))

    async def _list(self, path: str, **query: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        more = ""
        while True:
            asked = {**query, "limit": str(PAGE), **({"continue": more} if more else {})}
            page = reflector.as_it_is(await self.api.call("GET", path, query=asked, timeout_s=LIST_S))
            found += mappings_in(page, "items")
            more = str(mapping_in(page, "metadata").get("continue") or "")
            if not more:
                return found

    async def _delete(self, path: str, uid: str = "") -> None:
        body = {"preconditions": {"uid": uid}} if uid else None
        await unless(self.api.call("DELETE", path, body=body), ABSENT)

    async def _open_gates(self) -> list[str]:
        log = logs.get("uninstall")
        left = []
        for pod in await self._list("/api/v1/pods"):
            about = mapping_in(pod, "metadata")
            gates = [each.get("name") for each in mappings_in(mapping_in(pod, "spec"), "schedulingGates")]
            if GATE not in gates or "deletionTimestamp" in about:
                continue
            path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
            name, uid = f"{about['namespace']} {about['name']}", str(about["uid"])
            try:
                if any(each.get("controller") for each in mappings_in(about, "ownerReferences")):
                    await self._delete(path, uid)
                else:
                    gate = {"name": GATE, "$patch": "delete"}
                    body = {"metadata": {"uid": uid}, "spec": {"schedulingGates": [gate]}}
                    await self.api.call("PATCH", path, body=body, content_type=STRATEGIC_MERGE)
                    log.warning("no gate any more, and no slice: delete and create it again", pod=name)
            except KubeError as error:
                if error.status != ABSENT:
                    left.append(name)
                    log.warning("the gate was not opened", pod=name, why=error.message)
        return left

    async def _pods_with_slices(self) -> list[str]:
        """One that has ended holds no device, and the kubelet needs no driver for it any more."""
        running = "status.phase!=Succeeded,status.phase!=Failed"
        pods = await self._list("/api/v1/pods", labelSelector=LABEL_MANAGED, fieldSelector=running)
        found = (mapping_in(pod, "metadata") for pod in pods)
        return [f"{about.get('namespace')} {about.get('name')}" for about in found if about]

    async def _slices(self) -> list[str]:
        """What is ours on each GPU, as the mirror shows it. Without a mirror none is known."""
        gpus = await unless(self._list(api_writer.GPUS), ABSENT)
        return [
            f"{mapping_in(gpu, 'metadata').get('name')} {each.get('place')}"
            for gpu in gpus or ()
            for each in mappings_in(mapping_in(gpu, "status"), "slices")
            if each.get("state") not in _OF_OTHERS
        ]

    async def _clean_nodes(self) -> None:
        """A node that is down for good holds nothing up: it is named."""
        path = f"/apis/apps/v1/namespaces/{self.nodes_namespace}/daemonsets/sluice-node-agent"
        if await unless(self.api.call("PATCH", path, body=CLEANER, content_type=STRATEGIC_MERGE), ABSENT) is None:
            return

        async def uncleaned() -> list[str]:
            status = mapping_in(reflector.as_it_is(await self.api.call("GET", path)), "status")
            pods = await self._list(f"/api/v1/namespaces/{self.nodes_namespace}/pods", labelSelector=AGENTS)
            clean = [_node_of(pod) for pod in pods if _is_clean(pod)]
            if len(clean) >= int(status.get("desiredNumberScheduled") or 0):
                return []
            # Between an agent's end and the next pod a node has none.
            unclean = [f"{_node_of(pod)} ({_why_unclean(pod)})" for pod in pods if not _is_clean(pod)]
            return unclean or ["(a node without a pod of Sluice)"]

        left = await self._until_none("nodes to be cleaned", uncleaned)
        if left:
            logs.get("uninstall").warning(
                "these nodes were not cleaned: there, unmount what is below /run/sluice, and remove it and "
                "slice.sluice.dev*, gpu.sluice.dev* in the kubelet's plugins and plugins_registry",
                nodes="; ".join(left),
            )


def _node_of(pod: Mapping[str, Any]) -> str:
    return str(mapping_in(pod, "spec").get("nodeName"))


def _is_clean(pod: Mapping[str, Any]) -> bool:
    conditions = mappings_in(mapping_in(pod, "status"), "conditions")
    labels = mapping_in(mapping_in(pod, "metadata"), "labels")
    return CLEANS in labels and any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _why_unclean(pod: Mapping[str, Any]) -> str:
    if CLEANS not in mapping_in(mapping_in(pod, "metadata"), "labels"):
        return "its agent has not ended"
    for container in mappings_in(mapping_in(pod, "status"), "containerStatuses"):
        waits = mapping_in(mapping_in(container, "state"), "waiting")
        ended = mapping_in(mapping_in(container, "lastState"), "terminated")
        if said := str(ended.get("message") or waits.get("message") or waits.get("reason") or "").strip():
            return said.splitlines()[-1]
    return "not yet"
