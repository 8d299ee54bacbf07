"""The informers of a cluster's core: our pods (by label, read whole), nodes, and all other pods, which matter for their
resources and for affinity; one with our gate or a granted slice has lost its label. Objects have 10 KiB each, so all
but a few fields of nodes and other pods are dropped unparsed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import GenericAlias
from typing import Any

import msgspec

from sluice.contracts.kube.names import GRANTED_ALLOCATION, LABEL_MANAGED, MANAGED
from sluice.contracts.pod_specs.pod_affinity import REQUIRED
from sluice.runtime import logs, retry
from sluice.runtime.clock import Clock
from sluice_pod_watcher.core.cluster.events import ClaimsServed, Raw
from sluice_pod_watcher.shell.kube import api_writer, client
from sluice_pod_watcher.shell.kube.reflector import Offer, Reflector

ABSENT = 404
ASK_AGAIN_S = 300.0  # an API server without ResourceClaims may be upgraded
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
OURS, OTHERS = f"{LABEL_MANAGED}={MANAGED}", f"{LABEL_MANAGED}!={MANAGED}"
GATHER_S = 0.1  # how long events of nodes and other pods may be batched: 500 heartbeats a second are then ten turns


def _only(**kinds: Any) -> Any:
    """Reads only these fields of an object, and writes those that are there."""
    fields = [(key, kind | None, None) for key, kind in kinds.items()]
    return msgspec.defstruct("Only", fields, omit_defaults=True)


def _each(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


class _Granted(msgspec.Struct, omit_defaults=True):
    allocation: str = msgspec.field(default="", name=GRANTED_ALLOCATION)


_AMOUNTS = dict[str, str | int | float]
_META = {"uid": str, "name": str, "resourceVersion": str, "deletionTimestamp": str, "labels": dict[str, str]}
_RESOURCES = _only(limits=_AMOUNTS, requests=_AMOUNTS)
_PORT = _only(containerPort=int, hostPort=int, hostIP=str, protocol=str)
_CONTAINERS = _each(_only(resources=_RESOURCES, ports=_each(_PORT), restartPolicy=str))
_POD_SPEC = _only(
    hostNetwork=bool,
    affinity=_only(podAntiAffinity=_only(**{REQUIRED: list[dict[str, Any]]})),
    nodeName=str,
    schedulingGates=_each(_only(name=str)),
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    resources=_RESOURCES,
    overhead=_AMOUNTS,
)
_NODE_SPEC = _only(taints=_each(_only(key=str, value=str, effect=str)), unschedulable=bool)


def _reader(*required: tuple[str, Any], **others: Any) -> Callable[[bytes | msgspec.Raw], Raw]:
    fields: list[Any] = [*required, *((key, kind | None, None) for key, kind in others.items())]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Read", fields, omit_defaults=True))

    def read(raw: bytes | msgspec.Raw) -> Raw:
        found: dict[str, object] = msgspec.to_builtins(decoder.decode(raw))
        return found

    return read


_POD_META = _only(**_META, namespace=str, annotations=_Granted)
pod_usage_only = _reader(("metadata", _POD_META), ("spec", _POD_SPEC), status=_only(phase=str))
"""The fields of a pod for its identity, resources, node and affinity, and whether it is ours."""
node_capacity_only = _reader(("metadata", _only(**_META)), spec=_NODE_SPEC, status=_only(allocatable=_AMOUNTS))
"""The fields of a node for its identity and its allocatable resources."""


def informers(api: client.KubeApi, clock: Clock, offer: Offer, resync_s: float) -> tuple[Reflector, ...]:
    nodes = Reflector(api, clock, "nodes", NODES, "", offer, node_capacity_only, resync_s, GATHER_S)
    others = Reflector(api, clock, "others", PODS, OTHERS, offer, pod_usage_only, resync_s, GATHER_S)
    return nodes, others, Reflector(api, clock, "pods", PODS, OURS, offer, resync_s=resync_s)


@dataclass(slots=True)
class ClaimInformer:
    """ResourceClaims and DeviceClasses, from the moment `wanted` is set, where the API server has them in v1 (1.34 and
    newer). All claims are watched: a user's own has no label of ours. The core keeps a few fields of each."""

    api: client.KubeApi
    clock: Clock
    offer: Offer
    resync_s: float
    wanted: asyncio.Event
    backoff: retry.Backoff = field(default_factory=lambda: retry.Backoff(0.2, 30.0))

    async def run(self) -> None:
        await self.wanted.wait()
        while not await self._is_served():
            await self.clock.sleep(ASK_AGAIN_S)
        about = partial(Reflector, self.api, self.clock, resync_s=self.resync_s)
        claims = about("claims", f"{api_writer.RESOURCE_V1}/resourceclaims", "", self.offer)
        classes = about("classes", f"{api_writer.RESOURCE_V1}/deviceclasses", "", self.offer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(claims.run(), name="watch resourceclaims")
            tasks.create_task(classes.run(), name="watch deviceclasses")

    async def _is_served(self) -> bool:
        while True:
            try:
                served = await client.unless(self.api.call("GET", api_writer.RESOURCE_V1), ABSENT) is not None
            except client.KubeError as error:
                pause_s = max(self.backoff.next_s(), error.retry_after_s)
                log = logs.get("kube", what="claims")
                log.info("asks again for ResourceClaims", why=error.message, pause_s=pause_s)
                await self.clock.sleep(pause_s)
            else:
                await self.offer(ClaimsServed(served))
                return served
