"""The informers of a cluster's core: our pods (by label, read whole), nodes, and all other pods, which matter for their
resources and for affinity; one with our gate or a granted slice has lost its label. Objects have 10 KiB each, so all
but a few fields of nodes and other pods are dropped unparsed."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from sluice.contracts.kube.names import GRANTED_ALLOCATION, LABEL_MANAGED, MANAGED
from sluice.contracts.pod_specs.pod_affinity import REQUIRED
from sluice.runtime import logs
from sluice.runtime.clock import Clock
from sluice.runtime.retry import Backoff
from sluice_pod_watcher.core.cluster.events import ClaimsServed, Raw
from sluice_pod_watcher.shell.kube.api_writer import RESOURCE_V1
from sluice_pod_watcher.shell.kube.client import KubeApi, KubeError, unless
from sluice_pod_watcher.shell.kube.reflector import Offer, Reflector

ABSENT = 404
ASK_AGAIN_S = 300.0  # an API server without ResourceClaims may be upgraded
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
OURS, OTHERS = f"{LABEL_MANAGED}={MANAGED}", f"{LABEL_MANAGED}!={MANAGED}"
GATHER_S = 0.1  # how long events of nodes and other pods may be batched: 500 heartbeats a second are then ten turns
_Amounts = dict[str, str | int | float]


class _Granted(msgspec.Struct, omit_defaults=True):
    allocation: str = msgspec.field(default="", name=GRANTED_ALLOCATION)


class _PodMeta(msgspec.Struct, omit_defaults=True, rename="camel"):
    uid: str = ""
    namespace: str = ""
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: _Granted | None = None


class _Resources(msgspec.Struct, omit_defaults=True):
    limits: _Amounts | None = None
    requests: _Amounts | None = None


class _Port(msgspec.Struct, omit_defaults=True):
    container_port: int | None = msgspec.field(default=None, name="containerPort")
    host_port: int | None = msgspec.field(default=None, name="hostPort")
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    protocol: str | None = None


class _Container(msgspec.Struct, omit_defaults=True, rename="camel"):
    resources: _Resources | None = None
    ports: list[_Port] | None = None
    restart_policy: str | None = None


class _Gate(msgspec.Struct):
    name: str = ""


class _AntiAffinity(msgspec.Struct, omit_defaults=True):
    required: list[dict[str, Any]] | None = msgspec.field(default=None, name=REQUIRED)


class _Affinity(msgspec.Struct, omit_defaults=True, rename="camel"):
    pod_anti_affinity: _AntiAffinity | None = None


class _Spec(msgspec.Struct, omit_defaults=True, rename="camel"):
    host_network: bool | None = None
    affinity: _Affinity | None = None
    node_name: str | None = None
    scheduling_gates: list[_Gate] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    overhead: _Amounts | None = None


class _PodStatus(msgspec.Struct, omit_defaults=True):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _PodMeta
    spec: _Spec
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _NodeMeta(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class _Taint(msgspec.Struct, omit_defaults=True):
    key: str = ""
    value: str | None = None
    effect: str = ""


class _NodeSpec(msgspec.Struct, omit_defaults=True):
    taints: list[_Taint] | None = None
    unschedulable: bool | None = None


class _NodeStatus(msgspec.Struct, omit_defaults=True):
    allocatable: _Amounts | None = None


class _Node(msgspec.Struct):
    metadata: _NodeMeta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


_PODS, _NODES = msgspec.json.Decoder(_Pod), msgspec.json.Decoder(_Node)


def pod_usage_only(raw: bytes | msgspec.Raw) -> Raw:
    """The fields of a pod for its identity, resources, node and affinity, and whether it is ours."""
    found: dict[str, object] = msgspec.to_builtins(_PODS.decode(raw))
    return found


def node_capacity_only(raw: bytes | msgspec.Raw) -> Raw:
    """The fields of a node for its identity and its allocatable resources."""
    found: dict[str, object] = msgspec.to_builtins(_NODES.decode(raw))
    return found


def informers(api: KubeApi, clock: Clock, offer: Offer, resync_s: float) -> tuple[Reflector, ...]:
    nodes = Reflector(api, clock, "nodes", NODES, "", offer, node_capacity_only, resync_s, GATHER_S)
    others = Reflector(api, clock, "others", PODS, OTHERS, offer, pod_usage_only, resync_s, GATHER_S)
    return nodes, others, Reflector(api, clock, "pods", PODS, OURS, offer, resync_s=resync_s)


@dataclass(slots=True)
class ClaimInformer:
    """ResourceClaims and DeviceClasses, from the moment `wanted` is set, where the API server has them in v1 (1.34 and
    newer). All claims are watched: a user's own has no label of ours. The core keeps a few fields of each."""

    api: KubeApi
    clock: Clock
    offer: Offer
    resync_s: float
    wanted: asyncio.Event
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 30.0))

    async def run(self) -> None:
        await self.wanted.wait()
        while not await self._is_served():
            await self.clock.sleep(ASK_AGAIN_S)
        about = partial(Reflector, self.api, self.clock, resync_s=self.resync_s)
        claims = about("claims", f"{RESOURCE_V1}/resourceclaims", "", self.offer)
        classes = about("classes", f"{RESOURCE_V1}/deviceclasses", "", self.offer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(claims.run(), name="watch resourceclaims")
            tasks.create_task(classes.run(), name="watch deviceclasses")

    async def _is_served(self) -> bool:
        while True:
            try:
                served = await unless(self.api.call("GET", RESOURCE_V1), ABSENT) is not None
            except KubeError as error:
                pause_s = max(self.backoff.next_s(), error.retry_after_s)
                log = logs.get("kube", what="claims")
                log.info("asks again for ResourceClaims", why=error.message, pause_s=pause_s)
                await self.clock.sleep(pause_s)
            else:
                await self.offer(ClaimsServed(served))
                return served
