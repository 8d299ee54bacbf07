"""
Two questions to the trace: how much of the GPUs is given away when all sharing pods take shares, and how much is lost
to rounding when each sharing pod takes a MIG instance where one fits snugly.
"""

from dataclasses import dataclass
from pathlib import Path

from perf.trace.openb import TracePod, read_nodes, read_pods, too_many
from perf.trace.replay import MIG_MODEL, Ask, Cluster

from sluice.contracts.messages import Claim, DeviceGrant
from sluice.mig.catalog import find_model

DEFAULT = "fragmentation"
SLICES = 7
"""Compute slices of an A100."""


@dataclass(frozen=True)
class Allocated:
    """One seed of one trace: the part of the GPUs that was given away, in percent, and what the judge said."""

    trace: str
    policy: str
    percent: float
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Rounded:
    """In percent: `waste` of what sharing pods got, `instances` that got their own, `allocated` of all GPUs."""

    waste: float
    instances: float
    allocated: float
    problems: tuple[str, ...]


def fractional(folder: Path, trace: str, seed: int, policy: str = DEFAULT) -> Allocated:
    """Sharing pods take SMs and memory of a GPU in proportion, others whole GPUs."""
    nodes = read_nodes(folder)
    cluster = Cluster(nodes, mig=False, policy=policy)
    cluster.come(too_many(read_pods(folder, trace), nodes, seed), _as_share)
    given = sum(pod.gpu_percent for pod, _ in cluster.given)
    return Allocated(trace, policy, given / sum(node.gpus for node in nodes), tuple(cluster.problems))


def on_mig(folder: Path, seed: int, ask: Ask) -> Rounded:
    """All GPUs are A100 with MIG."""
    nodes = read_nodes(folder)
    cluster = Cluster(nodes, mig=True)
    cluster.come(too_many(read_pods(folder, "default"), nodes, seed), ask)
    sharing = [(pod, devices[0]) for pod, devices in cluster.given if pod.shares]
    asked = sum(SLICES * pod.percent / 100 for pod, _ in sharing)
    return Rounded(
        waste=100 * (1 - asked / sum(_given(pod, device) for pod, device in sharing)),
        instances=100 * sum(device.share is None for _, device in sharing) / len(sharing),
        allocated=sum(pod.gpu_percent for pod, _ in cluster.given) / sum(node.gpus for node in nodes),
        problems=tuple(cluster.problems),
    )


def _as_share(pod: TracePod) -> Claim:
    return Claim(container="main", modes=("fractional",), sm_partition=pod.percent, memory_percentage=pod.percent)


def as_auto(pod: TracePod) -> Claim:
    sms = {"sm_percentage": pod.percent, "sm_partition": pod.percent}
    return Claim(container="main", modes=("exclusive", "fractional"), snug=True, **sms)


def as_instance(pod: TracePod) -> Claim:
    return Claim(container="main", sm_percentage=pod.percent)


def _given(pod: TracePod, device: DeviceGrant) -> float:
    """What it got: all of an instance of its own, or its share exactly."""
    if device.share is not None:
        return SLICES * device.share.sm_partition / 100
    return find_model(MIG_MODEL).profile(device.profile).compute_slices if device.profile else SLICES
