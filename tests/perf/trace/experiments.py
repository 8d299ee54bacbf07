"""
Two questions to the trace: how much of the GPUs is given away when all sharing pods take shares, and how much is lost
to rounding when each sharing pod takes a MIG instance where one fits snugly.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.trace.openb import TracePod, read_nodes, read_pods, too_many
from perf.trace.replay import CATALOG, MIG_MODEL, Ask, Cluster

from sluice.contracts.messages import Claim, DeviceGrant

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


def mixed(folder: Path, seed: int) -> Rounded:
    """All GPUs are A100 with MIG; sharing pods ask for `auto`."""
    return _on_mig(folder, seed, _as_auto)


def instances_only(folder: Path, seed: int) -> Rounded:
    """All GPUs are A100 with MIG; sharing pods ask for instances of their own."""
    return _on_mig(folder, seed, _as_instance)


def _on_mig(folder: Path, seed: int, ask: Ask) -> Rounded:
    nodes = read_nodes(folder)
    cluster = Cluster(nodes, mig=True)
    cluster.come(too_many(read_pods(folder, "default"), nodes, seed), ask)
    sharing = [(pod, devices[0]) for pod, devices in cluster.given if pod.shares]
    asked = sum(_slices(pod) for pod, _ in sharing)
    return Rounded(
        waste=100 * (1 - asked / sum(_given(pod, device) for pod, device in sharing)),
        instances=100 * sum(device.share is None for _, device in sharing) / len(sharing),
        allocated=sum(pod.gpu_percent for pod, _ in cluster.given) / sum(node.gpus for node in nodes),
        problems=tuple(cluster.problems),
    )


def _as_share(pod: TracePod) -> Claim:
    if not pod.shares:
        return Claim(container="main", gpus=pod.gpus)
    return Claim(container="main", modes=("fractional",), sm_partition=pod.percent, memory_percentage=pod.percent)


def _as_auto(pod: TracePod) -> Claim:
    if not pod.shares:
        return Claim(container="main", gpus=pod.gpus)
    sms = {"sm_percentage": pod.percent, "sm_partition": pod.percent}
    return Claim(container="main", modes=("exclusive", "fractional"), snug=True, **sms)


def _as_instance(pod: TracePod) -> Claim:
    if not pod.shares:
        return Claim(container="main", gpus=pod.gpus)
    return Claim(container="main", sm_percentage=pod.percent)


def _slices(pod: TracePod) -> float:
    return SLICES * pod.percent / 100


def _given(pod: TracePod, device: DeviceGrant) -> float:
    """What it got: all of an instance of its own, or its share exactly."""
    if device.share is not None:
        return SLICES * device.share.sm_partition / 100
    return _COMPUTE_SLICES[device.profile] if device.profile else SLICES


def _compute_slices() -> dict[str, int]:
    models: Sequence[dict] = tomllib.loads(CATALOG.read_text(encoding="utf-8"))["model"]
    (model,) = (model for model in models if model["key"] == MIG_MODEL)
    return {profile["name"]: profile["compute_slices"] for profile in model["profiles"]}


_COMPUTE_SLICES = _compute_slices()
