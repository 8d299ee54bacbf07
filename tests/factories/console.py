"""What the console shows and reads, of which a test names only what it is about."""

from typing import Any

from sluice.contracts.ids import AllocationId, GpuUuid, RequestId
from sluice.contracts.messages import AnyMessage, Envelope
from sluice.contracts.slice_usage import SliceUsage
from sluice_console.core.bench.figures import BenchDocument
from sluice_console.core.documents import PodDocument
from sluice_console.core.history.sentences import HistoryMessage
from sluice_console.shell.bench.bench import BenchOptions


def pod_of(request: str = "r", /, **fields: Any) -> PodDocument:
    plain = {"namespace": "default", "name": "train", "origin": "train.yaml", "source": "folder", "state": "bound"}
    return PodDocument(**({"request": request, "message": "", "revision": 1} | plain | fields))


def usage_of(request: str = "r", /, **fields: Any) -> SliceUsage:
    """A 1g.5gb of which was measured, a second ago, that nothing is known."""
    plain = {"request": RequestId(request), "name": request, "namespace": "default", "containers": ("main",)}
    plain |= {"allocation": AllocationId(f"a-{request}"), "gpu": GpuUuid("GPU-1"), "device": "MIG-1", "age_s": 1.0}
    return SliceUsage(**({"profile": "1g.5gb", "mode": "exclusive", "memory_mib": 4864} | plain | fields))


def heard(subject: str, message: AnyMessage, request: str = "", *, time: str = "", **headers: str) -> HistoryMessage:
    """A message of the history; `Sluice_Steps` is the header Sluice-Steps."""
    about = {"id": f"{subject} {time}", "operation": "o", "request": request, "schema": 1}
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return HistoryMessage(f"hist.sluice.{subject}", Envelope(**about, time=time, message=message), named)


def bench_options(**fields: Any) -> BenchOptions:
    """One pod at once, beside the bare broker."""
    plain = {"requests": 1, "rate": 0.0, "burst": 1, "mix": "1g.5gb", "replay": None, "speed": 1.0, "nodes": 1}
    plain |= {"gpus": 1, "model": "m", "processes": 1, "running": False, "with_ceiling": True, "within_s": 1.0}
    return BenchOptions(**(plain | fields))


def bench_document(**fields: Any) -> BenchDocument:
    """Of one pod, which was not served."""
    plain = {"requests": 1, "bound": 0, "refused": 0, "overcommitted": 0, "seconds": 0.0, "per_second": 0.0, "hops": ()}
    plain |= {"released": True, "nodes": 1, "gpus": 1, "agents": 1, "mix": "1g.5gb", "rate": 0.0}
    return BenchDocument(**(plain | fields))
