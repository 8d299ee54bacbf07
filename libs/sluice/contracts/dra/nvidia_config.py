"""NVIDIA's configuration of a device in a ResourceClaim or DeviceClass: how the containers of the claim share it.

`GpuConfig` and `MigDeviceConfig` of resource.nvidia.com/v1beta1 (kubernetes-sigs/dra-driver-nvidia-gpu,
api/nvidia.com/resource/v1beta1: sharing.go, validate.go)."""

from dataclasses import dataclass

from sluice.contracts.dra.names import DEVICE_CLASS
from sluice.contracts.kube.object_fields import Fields

API_VERSION = "resource.nvidia.com/v1beta1"
GPU_CONFIG = "GpuConfig"
MIG_CONFIG = "MigDeviceConfig"
KINDS = (GPU_CONFIG, MIG_CONFIG)
_ELSEWHERE = {
    "VfioDeviceConfig": "Sluice does not hand GPUs to virtual machines (vfio)",
    "ComputeDomainChannelConfig": "compute domains belong to NVIDIA's own driver",
    "ComputeDomainDaemonConfig": "compute domains belong to NVIDIA's own driver",
}
_STRATEGIES = ("TimeSlicing", "MPS")
_INTERVALS = ("Default", "Short", "Medium", "Long")
_MIB = 1024**2
_SHARE_INSTEAD = f"class {DEVICE_CLASS} with mode mps and memory, or mode fractional with sm-partition; or no limits"


@dataclass(frozen=True, slots=True)
class Sharing:
    """How containers share a device: in turns, or by MPS with limits of SMs and MiB a process (None: no limit)."""

    kind: str
    mps: bool = False
    percent: int | None = None
    memory_mib: int | None = None
    interval: str = "Default"


def read_config(parameters: Fields, devices: int) -> Sharing:
    """The configuration in opaque parameters of NVIDIA's driver, for so many devices. Raises RequestSyntaxError."""
    version, kind = parameters.text("apiVersion"), parameters.text("kind")
    if version != API_VERSION:
        raise parameters.at("apiVersion").invalid("not a version that is read", API_VERSION)
    if kind in _ELSEWHERE:
        raise parameters.at("kind").unsupported(_ELSEWHERE[kind], f"{GPU_CONFIG} or {MIG_CONFIG}")
    parameters.choice("kind", KINDS)
    parameters.only(("apiVersion", "kind", "sharing"))
    sharing = parameters.inside("sharing")
    if not sharing.values:
        return Sharing(kind)
    times = ("timeSlicingConfig",) if kind == GPU_CONFIG else ()
    sharing.only(("strategy", *times, "mpsConfig"))
    strategy = sharing.choice("strategy", _STRATEGIES)
    for field, its in (("timeSlicingConfig", "TimeSlicing"), ("mpsConfig", "MPS")):
        if sharing.has(field) and strategy != its:
            why = f"it belongs to strategy {its}"
            raise sharing.at(field).contradicts(sharing.at("strategy"), why, f"strategy {its}, or no {field}")
    if strategy == "TimeSlicing":
        config = sharing.inside("timeSlicingConfig")
        config.only(("interval",))
        return Sharing(kind, interval=config.choice("interval", _INTERVALS, "Default"))
    return _mps(kind, sharing.inside("mpsConfig"), devices)


def _mps(kind: str, config: Fields, devices: int) -> Sharing:
    share_of = "defaultActiveThreadPercentage"
    per_device = "defaultPerDevicePinnedMemoryLimit"
    limit = "defaultPinnedDeviceMemoryLimit"
    config.only((share_of, limit, per_device, "multiUser"))
    if config.truth("multiUser"):
        why = "Sluice serves one user with an MPS server"
        raise config.at("multiUser").unsupported(why, "no multiUser, and the same runAsUser in all containers")
    for key in (share_of, limit, per_device) if kind == MIG_CONFIG else ():
        if config.has(key):
            why = "a MIG device of a named profile has no MPS server: Sluice chooses the instances in which shares live"
            raise config.at(key).unsupported(why, _SHARE_INSTEAD)
    percent = config.whole(share_of, 1, 100)
    of_all = _limit_mib(config, limit)
    limits = [of_all] * devices
    each = config.inside(per_device)
    for key in each.values:
        if not key.isdecimal():
            why = "Sluice chooses the device, so that its UUID is not known"
            raise each.at(key).unsupported(why, f"the number of a device, from 0 to {devices - 1}")
        if int(key) >= devices:
            raise each.at(key).out_of_range("the request has no such device", f"from 0 to {devices - 1}")
        limits[int(key)] = _limit_mib(each, key)
    if len(set(limits)) > 1:
        why = "the devices of one request have the same limit"
        raise config.at(per_device).unsupported(why, f"{limit}, or one request for each device")
    return Sharing(kind, mps=True, percent=percent, memory_mib=limits[0])


def _limit_mib(config: Fields, key: str) -> int | None:
    size = config.quantity(key)
    if size is not None and size < _MIB:
        raise config.at(key).out_of_range("less than one MiB", "at least 1Mi")
    return size // _MIB if size is not None else None
