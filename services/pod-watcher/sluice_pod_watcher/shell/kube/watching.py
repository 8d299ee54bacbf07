"""
What is listed and watched for a cluster's core: our pods whole, nodes whole, and of all other pods what room they take.

Our pods are chosen by their label: a tenth of the bytes of watching all pods (measured). The others are watched for the
room that they take on nodes, by the opposite of the label, and all but a few of their fields is thrown away unread.
"""

import msgspec

from sluice.contracts.kubernetes import LABEL_MANAGED, MANAGED
from sluice.runtime.clock import Clock
from sluice_pod_watcher.core.cluster.events import NodeGone, NodeSeen, OtherPodGone, OtherPodSeen, PodGone, PodSeen, Raw
from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.reflector import Offer, Reflector

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
_Amounts = dict[str, str | int | float]


class _Meta(msgspec.Struct, omit_defaults=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Resources(msgspec.Struct, omit_defaults=True):
    limits: _Amounts | None = None
    requests: _Amounts | None = None


class _Container(msgspec.Struct, omit_defaults=True, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Spec(msgspec.Struct, omit_defaults=True, rename="camel"):
    node_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    overhead: _Amounts | None = None


class _PodStatus(msgspec.Struct, omit_defaults=True):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


def room_only(raw: bytes | msgspec.Raw) -> Raw:
    """Of a pod, what says how much room it takes and where."""
    found: dict[str, object] = msgspec.to_builtins(msgspec.json.decode(raw, type=_Pod))
    return found


def reflectors(api: KubeApi, clock: Clock, offer: Offer, resync_s: float) -> tuple[Reflector, ...]:
    """Everything that a cluster's core has to see."""
    return (
        Reflector(api, clock, "nodes", NODES, "", NodeSeen, NodeGone, offer, resync_s=resync_s),
        Reflector(
            api,
            clock,
            "others",
            PODS,
            f"{LABEL_MANAGED}!={MANAGED}",
            OtherPodSeen,
            OtherPodGone,
            offer,
            read=room_only,
            resync_s=resync_s,
        ),
        Reflector(api, clock, "pods", PODS, f"{LABEL_MANAGED}={MANAGED}", PodSeen, PodGone, offer, resync_s=resync_s),
    )
