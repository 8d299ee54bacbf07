"""The informers of a cluster's core: our pods, nodes, and all other pods. Our pods are selected by label and read
whole: a tenth of the bytes of watching all pods (measured). Other pods, by the opposite selector, matter for the
resources they use and for affinity; one with our gate or a granted slice has lost its label. An API server sends whole
objects (10 KiB each, most of it images and heartbeats), so all but a few fields of other pods and nodes are dropped
unparsed."""

from typing import Any

import msgspec

from sluice.contracts.kube.names import GRANTED_ALLOCATION, LABEL_MANAGED, MANAGED
from sluice.contracts.pod_specs.pod_affinity import REQUIRED
from sluice.runtime.clock import Clock
from sluice_pod_watcher.core.cluster.events import NodeGone, NodeSeen, OtherPodGone, OtherPodSeen, PodGone, PodSeen, Raw
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.reflector import Offer, Reflector

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
    """The informers that a cluster's core needs."""
    nodes = Reflector(api, clock, "nodes", NODES, "", NodeSeen, NodeGone, offer, node_capacity_only, resync_s, GATHER_S)
    others = Reflector(
        api, clock, "others", PODS, OTHERS, OtherPodSeen, OtherPodGone, offer, pod_usage_only, resync_s, GATHER_S
    )
    ours = Reflector(api, clock, "pods", PODS, OURS, PodSeen, PodGone, offer, resync_s=resync_s)
    return nodes, others, ours
