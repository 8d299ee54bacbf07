"""
The openb trace: nodes and pods of a production cluster of GPUs that are shared, and more demand than the cluster holds.

Source: alibaba/clusterdata, cluster-trace-gpu-v2023 (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023). The files are not part of this project; `TRACE_DIR`
names the folder that holds them.

Demand is raised as the experiments of that paper raise it (hkust-adsl/kubernetes-scheduler-simulator, "workload
tuning"): all pods in random order, then pods drawn at random until the next one would pass 130 % of the GPUs.
"""

import csv
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

DEMAND_PERCENT = 130


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of the cluster."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """One pod: no GPU, `percent` of one (100 is a whole one), or several whole ones."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    percent: int

    @property
    def gpu_percent(self) -> int:
        """All it asks of GPUs, in hundredths of one."""
        return self.gpus * self.percent

    @property
    def shares(self) -> bool:
        """Whether it asks for a part of a GPU."""
        return self.gpus == 1 and self.percent < 100


@functools.cache
def read_nodes(folder: Path) -> tuple[TraceNode, ...]:
    return tuple(
        TraceNode(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _rows(folder / "openb_node_list_gpu_node.csv")
    )


@functools.cache
def read_pods(folder: Path, trace: str) -> tuple[TracePod, ...]:
    """The pods of one of the lists (`default`, `gpushare100`, ...), by name. Parts of a percent are rounded up."""
    rows = sorted(_rows(folder / f"openb_pod_list_{trace}.csv"), key=lambda row: row["name"])
    return tuple(
        TracePod(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]), -(-int(row["gpu_milli"]) // 10))
        for row in rows
    )


def too_many(pods: tuple[TracePod, ...], nodes: tuple[TraceNode, ...], seed: int) -> list[TracePod]:
    """The pods in the order in which they come, until they ask for `DEMAND_PERCENT` of the GPUs."""
    random = Random(seed)
    coming = list(pods)
    random.shuffle(coming)
    most = DEMAND_PERCENT * sum(node.gpus for node in nodes)
    asked = sum(pod.gpu_percent for pod in coming)
    while asked + (pod := random.choice(pods)).percent <= most:
        coming.append(pod)
        asked += pod.gpu_percent
    return coming


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
