"""Build the status of a GPU object, as `kubectl get gpus` and `kubectl describe gpu` show it. The keys are those of the
CustomResourceDefinition (deploy/kubernetes/base/crd-gpus.yaml), which also sets the limits.
"""

from collections.abc import Iterator
from typing import Any

from sluice.contracts.messages import GpuReport, NodeInventory, SliceReport
from sluice.contracts.reasons import shorten

TEXT_CHARACTERS_MAX = 900
SLICES_MAX = 256
OBSERVED = "observedAt"
Status = dict[str, Any]


def status_of(word: NodeInventory, gpu: GpuReport) -> Status:
    """The status of one GPU's object."""
    slices = [each for each in word.snapshot.slices if any(device.gpu == gpu.uuid for device in each.booking.devices)]
    health, why = _health(word, gpu)
    status = {
        "node": str(word.snapshot.node),
        "index": gpu.index,
        "uuid": str(gpu.uuid),
        "model": gpu.model[:128],
        "layout": shorten(" ".join(_layout(gpu)), TEXT_CHARACTERS_MAX),
        "creatableTotal": sum(gpu.creatable.values()),
        "creatable": dict(sorted(gpu.creatable.items())[:64]),
        "used": _used(gpu, slices),
        "health": health,
        "message": shorten("; ".join(why), TEXT_CHARACTERS_MAX),
        "slices": list(_slices(gpu, slices))[:SLICES_MAX],
    }
    if word.observed_at:
        status[OBSERVED] = word.observed_at
    return status


def _layout(gpu: GpuReport) -> Iterator[str]:
    """Each profile with the starts of its instances: `1g.5gb@0,1 3g.20gb@4`, ordered by the first."""
    starts: dict[str, list[int]] = {}
    for instance in sorted(gpu.instances, key=lambda each: each.start):
        starts.setdefault(instance.profile, []).append(instance.start)
    for profile, places in starts.items():
        yield f"{profile}@{','.join(map(str, places))}"


def _health(word: NodeInventory, gpu: GpuReport) -> tuple[str, list[str]]:
    """The state in one word, and all problems, most serious first."""
    why = [] if gpu.healthy else [gpu.health_message]
    why += [f"{_span(place.start, place.size)} quarantined" for place in gpu.quarantined]
    for daemon in gpu.daemons:
        if daemon.state in {"fault", "down"}:
            where = "the GPU" if daemon.profile is None else f"{daemon.profile}@{daemon.start}"
            why.append(f"MPS daemon of {where} {daemon.state}{f': {daemon.message}' if daemon.message else ''}")
    why = [each for each in why if each]
    if word.stale:
        return "Stale", [word.stale_message, *why] if word.stale_message else why
    return "Lost" if gpu.lost else "Healthy" if gpu.healthy else "Unhealthy", why


def _span(start: int, size: int) -> str:
    last = start + size - 1
    return f"memory slice {start}" if size == 1 else f"memory slices {start} to {last}"


def _used(gpu: GpuReport, slices: list[SliceReport]) -> str:
    """Compute slices in use of the total; for a GPU without MIG, the used share of its memory."""
    devices = [device for each in slices for device in each.booking.devices if device.gpu == gpu.uuid]
    if gpu.mig_enabled:
        sizes = {profile.name: profile.compute_slices for profile in gpu.profiles}
        given = {(device.profile, device.start) for device in devices if device.profile is not None}
        return f"{sum(sizes.get(profile or '', 0) for profile, _ in given)}/{gpu.compute_slices}"
    if any(device.share is None for device in devices):
        return "100%"
    shared_mib = sum(device.share.memory_mib for device in devices if device.share is not None)
    return f"{round(100 * shared_mib / max(1, gpu.memory_mib))}%"


def _slices(gpu: GpuReport, slices: list[SliceReport]) -> Iterator[dict[str, str]]:
    uuids = {(instance.profile, instance.start): instance.uuid for instance in gpu.instances}
    for each in slices:
        for device in each.booking.devices:
            if device.gpu != gpu.uuid:
                continue
            place = "the whole GPU" if device.profile is None else f"{device.profile}@{device.start}"
            if device.share is not None:
                place = f"{device.share.memory_mib} MiB of {place}"
            yield {
                "place": place,
                "uuid": uuids.get((device.profile or "", device.start), "" if device.profile else str(gpu.uuid)),
                "state": "Unmaking" if each.revoked and each.state != "quarantined" else each.state.capitalize(),
                "namespace": each.booking.namespace,
                "pod": each.booking.name,
                "container": device.container,
            }
    for instance in gpu.instances:
        if instance.allocation is None:
            yield {"place": f"{instance.profile}@{instance.start}", "uuid": instance.uuid, "state": "Foreign"}
