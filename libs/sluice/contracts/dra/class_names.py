"""DeviceClasses that Sluice serves by their names, and the extended resource that stands for a class."""

from sluice.contracts.dra.names import DEVICE_CLASS

GPU_CLASS, MIG_CLASS, VFIO_CLASS = "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"
SERVED_CLASSES = (DEVICE_CLASS, GPU_CLASS, MIG_CLASS)
_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Of the resource of a class (k8s.io/api/resource/v1, ResourceDeviceClassPrefix)."""


def class_of_resource(name: str) -> str:
    """The DeviceClass that a resource of a container stands for, if Sluice serves it; else empty."""
    found = name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""
    return found if found in SERVED_CLASSES else ""
