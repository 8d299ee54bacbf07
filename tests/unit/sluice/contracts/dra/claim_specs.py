"""Specs of ResourceClaims, short."""

from typing import Any

GPU, MIG, OURS = "gpu.nvidia.com", "mig.nvidia.com", "sluice.dev"
ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
CAPACITY = "device.capacity['gpu.nvidia.com']"
Spec = dict[str, Any]


def request(name: str, class_name: str = GPU, *texts: str, **more: Any) -> Spec:
    """A request for exactly these devices."""
    return {"name": name, "exactly": body(class_name, *texts, **more)}


def selectors(*texts: str) -> Spec:
    """Of a request or a class; a text may leave out where attributes and capacities are."""
    whole = [text.replace("A.", f"{ATTRIBUTES}.").replace("C.", f"{CAPACITY}.") for text in texts]
    return {"selectors": [{"cel": {"expression": text}} for text in whole]}


def body(class_name: str = GPU, *texts: str, **more: Any) -> Spec:
    return {"deviceClassName": class_name, **(selectors(*texts) if texts else {}), **more}


def prioritized(name: str, **subs: Spec) -> Spec:
    return {"name": name, "firstAvailable": [{"name": sub, **of} for sub, of in subs.items()]}


def claim(*requests: Spec, **more: Any) -> Spec:
    """The spec of a claim; `config` and `constraints` are lists."""
    return {"devices": {"requests": list(requests), **more}}


def nvidia(parameters: Spec, *requests: str) -> Spec:
    return _config("gpu.nvidia.com", {"apiVersion": "resource.nvidia.com/v1beta1", **parameters}, requests)


def mps(*requests: str, kind: str = "GpuConfig", **config: Any) -> Spec:
    sharing = {"strategy": "MPS", **({"mpsConfig": config} if config else {})}
    return nvidia({"kind": kind, "sharing": sharing}, *requests)


def ours(*requests: str, **keys: Any) -> Spec:
    """A configuration with our parameters, with `_` for `-`."""
    said = {key.replace("_", "-"): value for key, value in keys.items()}
    return _config("gpu.sluice.dev", {"apiVersion": "sluice.dev/v1", "kind": "SliceRequest", **said}, requests)


def _config(driver: str, parameters: Spec, requests: tuple[str, ...]) -> Spec:
    opaque = {"opaque": {"driver": driver, "parameters": parameters}}
    return {"requests": list(requests), **opaque} if requests else opaque
