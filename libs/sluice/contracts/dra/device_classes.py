"""Which DeviceClasses are ours: our own, NVIDIA's, and those of others that select NVIDIA's devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sluice.contracts.dra.cel_functions import literals
from sluice.contracts.dra.names import DEVICE_CLASS, DRIVER, GPU_CLASS, MIG_CLASS, VFIO_CLASS
from sluice.contracts.dra.virtual_devices import NVIDIA
from sluice.contracts.kube.object_fields import Fields
from sluice.contracts.request_syntax.source_text import SourceValue

_KEEPS_AWAY = "false"
"""The selector of a class that no scheduler is to allocate."""
_BY_TYPE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '{}'"
_OWN_SELECTORS = {GPU_CLASS: _BY_TYPE.format("gpu"), MIG_CLASS: _BY_TYPE.format("mig")}
"""As in their chart (deployments/helm/dra-driver-nvidia-gpu/templates): also where a file has no DeviceClass."""


class Kind(Enum):
    """How a class is read."""

    OURS = "ours"
    NVIDIA = "NVIDIA's"
    OTHER = "another driver's"
    UNKNOWN = "not found"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: its selectors as written, and its configurations."""

    name: str
    kind: Kind
    selectors: tuple[SourceValue, ...] = ()
    config: tuple[Fields, ...] = ()

    @property
    def driver(self) -> str:
        return DRIVER if self.kind is Kind.OURS else NVIDIA


def class_kind(name: str, classes: Mapping[str, Mapping[str, Any]]) -> Kind:
    if name == DEVICE_CLASS:
        return Kind.OURS
    if name in _OWN_SELECTORS or name == VFIO_CLASS:
        return Kind.NVIDIA
    spec = classes.get(name)
    if spec is None:
        return Kind.UNKNOWN
    selectors = spec.get("selectors")
    for each in selectors if isinstance(selectors, list) else ():
        cel = each.get("cel") if isinstance(each, Mapping) else None
        if isinstance(cel, Mapping) and NVIDIA in literals(str(cel.get("expression"))):
            return Kind.NVIDIA
    return Kind.OTHER


def device_class(written: SourceValue, classes: Mapping[str, Mapping[str, Any]]) -> DeviceClass:
    """The class that a request names. Raises RequestSyntaxError for one whose devices Sluice never hands over."""
    name = str(written.raw)
    if name == VFIO_CLASS:
        why = "Sluice does not hand GPUs to virtual machines (vfio)"
        raise written.unsupported(why, f"{GPU_CLASS}, {MIG_CLASS} or {DEVICE_CLASS}")
    kind = class_kind(name, classes)
    if kind not in {Kind.OURS, Kind.NVIDIA}:
        return DeviceClass(name, kind)
    spec = Fields(f"DeviceClass {name}: spec", classes.get(name, {}))
    config = tuple(spec.listed("config"))
    if kind is Kind.OURS:
        return DeviceClass(name, kind, (), config)
    selectors = tuple(selectors_of(spec))
    if name in _OWN_SELECTORS and [each.raw for each in selectors] in ([], [_KEEPS_AWAY]):
        selectors = (SourceValue(f"DeviceClass {name}", _OWN_SELECTORS[name]),)
    return DeviceClass(name, kind, selectors, config)


def selectors_of(spec: Fields) -> Iterator[SourceValue]:
    for each in spec.listed("selectors"):
        each.only(("cel",))
        cel = each.inside("cel")
        cel.only(("expression",))
        text = cel.text("expression")
        if not text.strip():
            raise cel.at("expression").invalid("it is empty", "a CEL expression")
        yield SourceValue(cel.at("expression").field, text)
