"""What the API server is sent: pods of a mix of MIG instances, and the same GPUs as devices for kube-scheduler."""

import random
from collections.abc import Iterator
from typing import Literal

from factories.cluster.kubernetes import Json, pod

from sluice.mig.catalog import find_model
from sluice.mig.model import Placement, Profile

NAMESPACE = "burst"
GPUS = 8
MODEL = find_model("A100-SXM4-40GB")
assert MODEL is not None
PROFILES = {each.name: each for each in MODEL.profiles if "+" not in each.name}
MIX = {"1g.5gb": 0.80, "2g.10gb": 0.15, "3g.20gb": 0.05}
"""Of the pods of a burst. 300 of them take 375 of the 448 compute slices of 64 GPUs."""
CARVED = (*[["1g.5gb"] * 7] * 5, *[["2g.10gb"] * 3 + ["1g.5gb"]] * 2, ["3g.20gb"] * 2)
"""The instances on each GPU of a node where they are static: for this mix."""
DRIVER = "gpu.example.com"
CLASS = "mig.example.com"
VERSION = {"apiVersion": "resource.k8s.io/v1"}
PER_SLICE_MAX = 64
"""Devices of a ResourceSlice that consume counters (ResourceSliceMaxDevicesWithAdvancedFeatures)."""
SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}}
Kind = Literal["static", "partitionable"]


def shapes(count: int, seed: int) -> list[str]:
    """Of each pod of a burst, in a random order."""
    found = [profile for profile, share in MIX.items() for _ in range(round(share * count))]
    found = (found + ["1g.5gb"] * count)[:count]
    random.Random(seed).shuffle(found)
    return found


def asking_sluice(name: str, profile: str) -> Json:
    """A pod with Sluice's annotations."""
    made = pod(name, gates=(), annotations={"sluice.dev/profile": profile})
    made["spec"]["containers"][0]["resources"] = SMALL
    return made


def asking_scheduler(name: str, profile: str) -> Json:
    """The same pod with a claim of the template for its profile."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": profile.replace(".", "-")}]
    made = pod(name, gates=(), resourceClaims=claims)
    made["spec"]["containers"][0]["resources"] = SMALL | {"claims": [{"name": "gpu"}]}
    return made


def asking_nothing(name: str, _: str) -> Json:
    """The same pod without a GPU: what any pod costs the control plane."""
    made = pod(name, gates=())
    made["spec"]["containers"][0]["resources"] = SMALL
    return made


def devices(nodes: list[str], kind: Kind) -> Iterator[Json]:
    """A DeviceClass of all MIG instances, a ResourceClaimTemplate for each profile, and the nodes' ResourceSlices."""
    is_mig = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"
    yield VERSION | {"kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {"selectors": [_cel(is_mig)]}}
    for profile in MIX:
        chosen = _cel(f"device.attributes['{DRIVER}'].profile == '{profile}'")
        request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "selectors": [chosen]}}
        meta = {"name": profile.replace(".", "-"), "namespace": NAMESPACE}
        spec = {"spec": {"devices": {"requests": [request]}}}
        yield VERSION | {"kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}
    for node in nodes:
        contents = [{"devices": _carved()}] if kind == "static" else _partitions()
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(contents)}
        for number, content in enumerate(contents):
            spec = {"driver": DRIVER, "nodeName": node, "pool": pool, **content}
            yield VERSION | {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{number}"}, "spec": spec}


def _cel(expression: str) -> Json:
    return {"cel": {"expression": expression}}


def _carved() -> list[Json]:
    return [
        _device(gpu, PROFILES[name], number) for gpu, names in enumerate(CARVED) for number, name in enumerate(names)
    ]


def _partitions() -> list[Json]:
    """Counters of each GPU, and every instance that could be made with what it takes of them: slices of their own."""
    largest = PROFILES["7g.40gb"]
    sets = [{"name": f"gpu-{gpu}", "counters": _counters(largest, largest.placements[0])} for gpu in range(GPUS)]
    possible = [
        _device(gpu, profile, placement.start)
        | {"consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": _counters(profile, placement)}]}
        for gpu in range(GPUS)
        for profile in PROFILES.values()
        for placement in profile.placements
    ]
    some = [possible[at : at + PER_SLICE_MAX] for at in range(0, len(possible), PER_SLICE_MAX)]
    return [{"sharedCounters": sets}, *({"devices": each} for each in some)]


def _counters(profile: Profile, placement: Placement) -> Json:
    numbers = range(placement.start, placement.start + placement.size)
    memory = {f"memory-slice-{number}": {"value": "1"} for number in numbers}
    return memory | {"multiprocessors": {"value": str(profile.multiprocessors)}}


def _device(gpu: int, profile: Profile, number: int) -> Json:
    texts = {"type": "mig", "profile": profile.name, "productName": "A100-SXM4-40GB", "parentUUID": f"GPU-{gpu}"}
    amounts = {"memory": f"{profile.memory_mib}Mi", "multiprocessors": str(profile.multiprocessors)}
    return {
        "name": f"gpu-{gpu}-{profile.name.replace('.', '-')}-{number}",
        "attributes": {name: {"string": text} for name, text in texts.items()} | {"index": {"int": gpu}},
        "capacity": {name: {"value": amount} for name, amount in amounts.items()},
    }
