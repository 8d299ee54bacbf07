"""Pools of nodes that an autoscaler can grow: what a new node of each would have, and how many more are needed."""

import msgspec

from sluice.contracts.ids import SourceName
from sluice.contracts.messages.base import Message
from sluice.contracts.messages.nodes import GpuReport
from sluice.contracts.messages.requests import HostRoom, Mode, Taint


class TemplateGpus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`count` equal GPUs, as their agent would report one of them while it is empty."""

    report: GpuReport
    count: int = 1


class NodeTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new node of a pool, before anything runs on it but what every node runs."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Those that all its nodes have."""
    taints: tuple[Taint, ...] = ()
    room: HostRoom = HostRoom()
    """For pods with slices."""
    pods: int = 110
    gpus: tuple[TemplateGpus, ...] = ()
    modes: tuple[Mode, ...] = ("exclusive",)
    time_quota: bool = False
    kubelet_hands_over: bool = False


class PoolDemand(Message, frozen=True, kw_only=True):
    """How many more nodes of a pool would serve requests that wait. The pool is remembered while it has no node."""

    pool: str
    source: SourceName
    """Of the cluster whose pool it is."""
    selector: dict[str, str]
    """The node labels by which its autoscaler knows the pool."""
    template: NodeTemplate
    missing: int = 0
