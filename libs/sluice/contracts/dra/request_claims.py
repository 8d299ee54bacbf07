"""The claims that may serve one request of a ResourceClaim, in our words or in NVIDIA's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from sluice.contracts.dra import nvidia_config, slice_request
from sluice.contracts.dra.device_classes import Kind, selectors_of
from sluice.contracts.dra.names import DEVICE_CLASS, DRIVER
from sluice.contracts.dra.nvidia_config import GPU_CONFIG, MIG_CONFIG, Sharing
from sluice.contracts.dra.requested import Asked
from sluice.contracts.dra.shapes import Shape, shapes_of
from sluice.contracts.dra.virtual_devices import CAPACITIES, NVIDIA
from sluice.contracts.kube.object_fields import Fields, named
from sluice.contracts.kube.quantities import suspicious_memory
from sluice.contracts.messages import Claim
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax import RequestLimits
from sluice.contracts.request_syntax.source_text import SourceValue
from sluice.mig.model import GpuModel

REQUESTS_MAX = 32
"""Requests and devices of one claim (k8s.io/api/resource/v1, DeviceRequestsMaxSize, AllocationResultsMaxSize)."""


@dataclass(frozen=True, slots=True)
class Context:
    """What holds for every request of a claim."""

    classes: Mapping[str, Mapping[str, Any]]
    models: tuple[GpuModel, ...]
    limits: RequestLimits
    prefix: str
    uid: int | None
    warnings: dict[str, None] = field(default_factory=dict)


def claims_of(asked: Asked, config: Sequence[Fields], context: Context) -> tuple[Claim, ...]:
    request = asked.fields
    if request.truth("adminAccess"):
        why = "Sluice gives no access to devices that others use"
        raise request.at("adminAccess").unsupported(why, "no adminAccess, and a device of its own")
    mode = request.text("allocationMode", "ExactCount")
    if mode == "All":
        why = "Sluice gives a number of devices, never all of a node"
        raise request.at("allocationMode").unsupported(why, "ExactCount with a count")
    request.choice("allocationMode", ("ExactCount",), "ExactCount")
    count = request.whole("count", 1, REQUESTS_MAX) or 1
    own = tuple(selectors_of(request))
    base = Claim(container=f"{context.prefix}{asked.name}", gpus=count)
    configs = [_Given(each, asked, is_class=True) for each in asked.device_class.config]
    configs += [_Given(each, asked) for each in config]
    if asked.device_class.kind is Kind.OURS:
        return (_slice_claim(asked, base, configs, own, context),)
    least = _least(request)
    selectors = (*asked.device_class.selectors, *own)
    wanted = request.inside("capacity").inside("requests")
    said = own[-1] if own else next(map(wanted.at, wanted.values), request.at("deviceClassName"))
    shapes = shapes_of(selectors, least, context.models, said)
    if "memory" in least and any(shape.profile is None for shape in shapes):
        context.warnings[
            f"{request.path}.capacity: {asked.name} gets whole GPUs with at least this memory; for a part of one, "
            f"class {DEVICE_CLASS} with mode mps and memory"
        ] = None
    return tuple(_shape_claim(asked, base, shape, configs, context) for shape in shapes)


def _least(request: Fields) -> dict[str, int]:
    capacity = request.inside("capacity")
    capacity.only(("requests",))
    wanted = capacity.inside("requests")
    known = (*CAPACITIES, *(f"{NVIDIA}/{name}" for name in CAPACITIES))
    least = {}
    for key in wanted.values:
        if key not in known:
            named(SourceValue(f"{wanted.path}[{shorten(key, 63)}]", key), CAPACITIES, "capacity")
        least[key.removeprefix(f"{NVIDIA}/")] = wanted.quantity(key) or 0
    return least


def opaque_parameters(config: Fields, driver: str) -> Fields | None:
    opaque = config.inside("opaque")
    opaque.only(("driver", "parameters"))
    return opaque.inside("parameters") if opaque.text("driver") == driver else None


@dataclass(frozen=True, slots=True)
class _Given:
    fields: Fields
    asked: Asked
    is_class: bool = False

    @property
    def names_it(self) -> bool:
        return bool({str(each.raw) for each in self.fields.texts("requests")} & {self.asked.name, self.asked.main})

    @property
    def applies(self) -> bool:
        return self.is_class or not self.fields.texts("requests") or self.names_it

    def parameters(self, driver: str) -> Fields | None:
        return opaque_parameters(self.fields, driver)


def _slice_claim(
    asked: Asked, base: Claim, configs: Sequence[_Given], selectors: Sequence[SourceValue], context: Context
) -> Claim:
    request = asked.fields
    for written in selectors:
        why = f"class {DEVICE_CLASS} has no devices to select among"
        raise written.unsupported(why, "the keys of a SliceRequest: profile, gpu-model, memory")
    if request.has("capacity"):
        raise SourceValue(request.at("capacity").field, None).unsupported(
            f"class {DEVICE_CLASS} has no capacities", "memory or sm-count of a SliceRequest"
        )
    given = slice_request.Parameters()
    named_here: set[str] = set()
    for each in sorted(configs, key=lambda each: (not each.is_class, each.names_it)):
        parameters = each.parameters(DRIVER) if each.applies else None
        if parameters is None:
            continue
        found = slice_request.read_parameters(parameters)
        twice = named_here & found.own.keys() if each.names_it else None
        for key in sorted(twice or ()):
            raise parameters.at(key).contradiction("it is given twice for this request", "one of them")
        if each.names_it:
            named_here |= found.own.keys()
            for key, value in found.of_pod.items():
                raise SourceValue(f"{parameters.path}.{key}", value.raw).unsupported(
                    "this key is for the whole claim", "a config without requests"
                )
        given = found.over(given)
    memory = given.own.get("memory")
    if memory is not None and (doubt := suspicious_memory(memory.text())):
        context.warnings[f"{given.path}.memory: {doubt}"] = None
    return slice_request.claim_of(base, given, request.at("count"), context.uid, context.limits)


def _shape_claim(asked: Asked, base: Claim, shape: Shape, configs: Sequence[_Given], context: Context) -> Claim:
    claim = replace(base, profile=shape.profile, only=shape.only)
    sharing = _sharing(asked, shape, base.gpus, configs)
    if sharing.interval != "Default":
        context.warnings[
            f"{asked.name}: its containers take turns at the driver's own pace; interval {sharing.interval} is not set"
        ] = None
    if not sharing.mps:
        return claim
    if shape.profile is not None:
        context.warnings[
            f"{asked.name}: its containers take turns on the MIG device, without MPS; for MPS in a MIG instance, class "
            f"{DEVICE_CLASS} with mode mps and memory"
        ] = None
        return claim
    if sharing.percent is None and sharing.memory_mib is None:
        return replace(claim, modes=("mps",), memory_percentage=100, uid=context.uid)
    context.warnings[
        f"{asked.name}: a share with these limits, beside others of the namespace and user; each process has them"
    ] = None
    memory = {"memory_mib": sharing.memory_mib} if sharing.memory_mib is not None else {"memory_percentage": 100}
    if sharing.percent is None:
        return replace(claim, modes=("mps",), uid=context.uid, **memory)
    return replace(claim, modes=("fractional",), sm_partition=sharing.percent, uid=context.uid, **memory)


def _sharing(asked: Asked, shape: Shape, count: int, configs: Sequence[_Given]) -> Sharing:
    """The last configuration for the shape's type; one that names the request must be for it."""
    kind = GPU_CONFIG if shape.profile is None else MIG_CONFIG
    chosen = Sharing(kind)
    for each in configs:
        parameters = each.parameters(NVIDIA) if each.applies else None
        if parameters is None:
            continue
        found = nvidia_config.read_config(parameters, count)
        if found.kind == kind:
            chosen = found
        elif each.names_it:
            why = f"{asked.name} is {'a whole GPU' if shape.profile is None else 'a MIG device'}"
            raise parameters.at("kind").contradiction(why, kind)
    return chosen
