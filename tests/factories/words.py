"""Messages of which a test names only what it is about."""

from typing import Any

from msgspec import convert

from sluice.contracts import messages as msg
from sluice.contracts.bus.events import Entry, Write, stream_of
from sluice.contracts.bus.subjects import Address
from sluice.contracts.gpu_reports import profile_reports
from sluice.contracts.ids import AllocationId, GpuUuid, NodeName, OperationId, RequestId, RunId, SourceName
from sluice.mig.catalog import find_model

SIZES = ("memory_mib", "multiprocessors", "memory_slices", "compute_slices")


def booking_of(allocation: str, node: str, devices: tuple[msg.DeviceGrant, ...] = (), /, **changes: Any) -> msg.Booking:
    """A booking whose request, unless `changes` say otherwise, is called the same; pod and owner as the request."""
    pod = changes.get("request", allocation)
    plain = {"request": RequestId(pod), "request_revision": 1, "owner": pod, "name": pod, "namespace": "default"}
    plain |= {"allocation": AllocationId(allocation), "source": SourceName("folder")} | changes
    return msg.Booking(**plain, node=NodeName(node), devices=devices)


def bound_of(request: str, node: str, /, **changes: Any) -> msg.Bound:
    """A request that has its first slice, by default one device for the container main."""
    devices = msg.ContainerDevices(container="main", visible_devices="MIG-1")
    plain = {"request": RequestId(request), "request_revision": 1, "allocation": AllocationId(f"{request}_r_1")}
    plain |= {"node": NodeName(node), "revision": 1, "ticket": "t-1", "containers": (devices,)}
    return msg.Bound(**(plain | changes))


def claim_of(**fields: Any) -> msg.Claim:
    """A claim of the container main with these fields, lists for tuples; fails on one that no claim has."""
    assert fields.keys() <= set(msg.Claim.__struct_fields__), fields
    return convert({"container": "main"} | fields, msg.Claim)


def gpu_report(node: str, index: int, *, model: str = "a100-40gb", mig: bool = True, **changes: Any) -> msg.GpuReport:
    """A GPU as its agent would report it, empty."""
    known = find_model(model)
    values = {name: getattr(known, name) for name in SIZES} | {
        "uuid": GpuUuid(f"GPU-{node}-{index}"),
        "index": index,
        "model": known.product_names[0],
        "mig_enabled": mig,
        "profiles": profile_reports(known),
        "instances": (),
        "creatable": {},
    }
    return msg.GpuReport(**(values | changes))


def snapshot(node: str, gpus: tuple[msg.GpuReport, ...], **changes: Any) -> msg.NodeSnapshot:
    """What inventory would have pulled from a node."""
    values = {
        "node": NodeName(node),
        "boot_id": "boot-1",
        "agent_run": RunId("agent-1"),
        "generation": 1,
        "driver_version": "simulated",
        "gpus": gpus,
        "slices": (),
    }
    return msg.NodeSnapshot(**(values | changes))


def news_of(seen: msg.NodeSnapshot) -> msg.NodeChanged:
    """The agent's news that there is this to pull."""
    known = {name: getattr(seen, name) for name in ("node", "boot_id", "agent_run", "generation")}
    return msg.NodeChanged(**known, endpoint="127.0.0.1:1", gpus=())


def write_of(
    address: Address, message: msg.AnyMessage, over: Entry | int | None, operation: str, /, **changes: Any
) -> Write:
    """A first attempt to write `over` the last value or its sequence; None: there is none."""
    expected = over.sequence if isinstance(over, Entry) else over or 0
    stream, guard = stream_of(address.kind), changes.pop("guard", address.guard)
    fields = {"attempt": 1, "request": "", "expected": expected, "message": message} | changes
    return Write(operation=OperationId(operation), stream=stream, subject=address.subject, guard=guard, **fields)
