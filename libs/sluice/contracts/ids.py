"""Types of ids, so that a node name is never passed where a request id belongs.

Ids of requests and allocations are tokens of NATS subjects; decoders check them, or a reader would crash on one."""

import re
from typing import Annotated, NewType

from msgspec import Meta

_NAME_OR_NONE = Meta(pattern=r"^[A-Za-z0-9_-]{0,253}\Z")
_NAME = Meta(pattern=r"^[A-Za-z0-9_-]{1,253}\Z")
_NODE = Meta(pattern=r"^[A-Za-z0-9.-]{1,253}\Z")

NodeName = NewType("NodeName", Annotated[str, _NODE])
"""A Kubernetes node name, dots included: `gpu-1.example.internal`."""
GpuUuid = NewType("GpuUuid", str)
"""`GPU-<uuid>`, as NVML reports it. Everything about a GPU is keyed by it, never by its index."""
RequestId = NewType("RequestId", Annotated[str, _NAME])
"""The pod's UID (cluster), the UID kept for a manifest (folder), or random (`sluice run`)."""
AllocationId = NewType("AllocationId", Annotated[str, _NAME])
"""`<request>_<run of the deciding process>_<n>`: never used twice, so messages about two allocations never mix."""
HomeId = NewType("HomeId", str)
"""One instantiation of a shared device on a node: names its MPS daemon's directories, never used twice."""
SourceName = NewType("SourceName", Annotated[str, _NAME_OR_NONE])
"""A source of requests: one pod-watcher, one manifest folder, one `sluice run`."""
RunId = NewType("RunId", str)
"""One run of one process. A restarted process has another."""
OperationId = NewType("OperationId", str)
"""One guarded write, the same over all its attempts (PROTOCOL W3 compares these)."""
Incarnation = NewType("Incarnation", str)
"""One life of the broker's data: the first sequence of the BOOK stream. A wiped broker begins another."""

_DIGITS_MAX = 18
"""Digits of a write's number: more than any process needs."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,253}")


def operation_id(run: RunId, number: int) -> OperationId:
    return OperationId(f"{run}-{number}")


def operation_parts(operation: OperationId) -> tuple[RunId, int]:
    """The process that wrote, and the number of that write; -1 where `operation` has none."""
    run, _, number = operation.rpartition("-")
    return RunId(run), int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX else -1


def is_token(text: str) -> bool:
    """Whether `text` is a valid subject token: letters, digits, `-` and `_`, at most 253 of them."""
    return _TOKEN.fullmatch(text) is not None


def allocation_id(request: RequestId, run: RunId, number: int) -> AllocationId:
    return AllocationId(f"{request}_{run}_{number}")


def request_named(allocation: AllocationId) -> RequestId:
    """The request in an allocation's id. A run's id contains no `_`."""
    return RequestId(allocation.rsplit("_", 2)[0])
