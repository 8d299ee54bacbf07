"""The devices that selectors are evaluated on: every product of the catalog, whole and as each of its MIG profiles.

Attributes and capacities are NVIDIA's driver's (kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin:
deviceinfo.go, mig.go, partitions.go), as far as they follow from the model; the rest is in `UNKNOWN`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sluice.contracts.dra.cel_functions import quantity_of, semver_of
from sluice.mig.model import GpuModel, Profile

NVIDIA = "gpu.nvidia.com"
"""NVIDIA's driver, and the domain of its attributes and capacities."""
ATTRIBUTES = ("type", "uuid", "parentUUID", "profile", "productName", "architecture", "cudaComputeCapability")
CAPACITIES = ("memory", "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_NODE = "Sluice chooses the device before the node is known"
UNKNOWN: Mapping[str, tuple[str, str]] = {
    "index": ("NVIDIA's driver no longer publishes it", "uuid (parentUUID of a MIG device), or no such condition"),
    "minor": ("NVIDIA's driver no longer publishes it", "uuid (parentUUID of a MIG device), or no such condition"),
    "brand": ("it does not follow from the model", "productName or architecture"),
    "driverVersion": (_NODE, "a node selector on the pod, by a label such as nvidia.com/cuda.driver-version.full"),
    "cudaDriverVersion": (_NODE, "a node selector on the pod, by a label such as nvidia.com/cuda.runtime-version.full"),
    "addressingMode": (_NODE, "a node selector on the pod"),
    "pciBusID": (_NODE, "uuid (parentUUID of a MIG device)"),
    "pcieRoot": (_NODE, "no such condition"),
    "numaNode": (_NODE, "a constraint with matchAttribute resource.kubernetes.io/numaNode for one request"),
}
"""Attributes that no selector can be evaluated with: why, and what to write instead."""
_COMPUTE_CAPABILITY = {
    "volta-gv100": "7.0.0",
    "turing-tu104": "7.5.0",
    "ampere": "8.0.0",
    "ampere-ga102": "8.6.0",
    "ada-ad102": "8.9.0",
    "ada-ad104": "8.9.0",
    "hopper": "9.0.0",
    "blackwell-gb100": "10.0.0",
    "blackwell-gb110": "10.3.0",
    "blackwell-gb202": "12.0.0",
    "blackwell-gb20b": "12.1.0",
}
"""By the catalog's architecture (https://developer.nvidia.com/cuda-gpus)."""
_ARCHITECTURES = {"ada": "Ada Lovelace"}
"""NVIDIA's names that are not the catalog's with a capital (go-nvlib, GetArchitectureAsString)."""
_MIB = 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class VirtualDevice:
    """A product, whole or as an instance; `product` is empty for an unknown model. `capacity` in bytes and counts."""

    product: str
    profile: Profile | None
    name: str | None
    attributes: Mapping[str, Any]
    capacity: Mapping[str, int]

    def as_variable(self, uuid: str, domains: tuple[str, ...]) -> dict[str, Any]:
        """The variable `device` of CEL, on the GPU of that UUID. Other `domains` have nothing, as in Kubernetes."""
        key = "uuid" if self.name is None else "parentUUID"
        nothing: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
        return {
            "driver": NVIDIA,
            "allowMultipleAllocations": False,
            "attributes": nothing | {NVIDIA: {**self.attributes, key: uuid}},
            "capacity": nothing | {NVIDIA: {name: quantity_of(size) for name, size in self.capacity.items()}},
        }


@lru_cache(maxsize=8)
def virtual_devices(models: tuple[GpuModel, ...]) -> tuple[VirtualDevice, ...]:
    return tuple(
        device
        for model in models
        for product in products_of(model)
        for device in (_whole(model, product), *(_instance(model, product, each) for each in model.profiles))
    )


def products_of(model: GpuModel) -> tuple[str, ...]:
    """The names of a model's products, without those of old drivers, which left NVIDIA out."""
    named = model.product_names
    return tuple(name for name in named if f"NVIDIA {name}" not in named)


@lru_cache(maxsize=256)
def unlisted(profile: str) -> VirtualDevice:
    """An instance of a profile that no model of the catalog has, on a GPU that a later fleet may have."""
    return VirtualDevice("", None, profile, {"type": "mig", "profile": profile}, {})


def _of_model(model: GpuModel, product: str) -> dict[str, Any]:
    family = model.architecture.partition("-")[0]
    return {
        "productName": product,
        "architecture": _ARCHITECTURES.get(family, family.capitalize()),
        "cudaComputeCapability": semver_of(_COMPUTE_CAPABILITY[model.architecture]),
    }


def _whole(model: GpuModel, product: str) -> VirtualDevice:
    """As the driver without dynamic MIG: all memory of the card. SMs and engines are those of its largest profile."""
    capacity = {"memory": model.memory_mib * _MIB} if model.memory_mib else {}
    if model.profiles:
        capacity |= _counts(model.largest.multiprocessors, *model.engines)
    return VirtualDevice(product, None, None, {"type": "gpu", **_of_model(model, product)}, capacity)


def _instance(model: GpuModel, product: str, profile: Profile) -> VirtualDevice:
    attributes = {"type": "mig", "profile": profile.name, **_of_model(model, product)}
    capacity = {"memory": profile.memory_mib * _MIB, **_counts(profile.multiprocessors, *profile.engines)}
    return VirtualDevice(product, profile, profile.name, attributes, capacity)


def _counts(*counts: int) -> dict[str, int]:
    return dict(zip(CAPACITIES[1:], counts, strict=True))
