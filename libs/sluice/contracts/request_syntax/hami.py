"""HAMi's vocabulary, and Volcano's spelling of it: resources of a container, and annotations of its pod.

Facts from https://github.com/Project-HAMi/HAMi (docs/config.md, docs/develop/scheduler-policy.md) and
https://github.com/Project-HAMi/volcano-vgpu-device-plugin; what is refused here is in docs/requests.md."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.contracts.kube.quantities import MEMORY_MIB_MAX, WHOLE_MAX
from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.messages.requests import Mode
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.keys import HAMI, VOLCANO, VgpuNames
from sluice.contracts.request_syntax.pod_request import ContainerRequest, RequestLimits
from sluice.contracts.request_syntax.source_text import RequestSyntaxError, SourceValue, did_you_mean, requested_amounts
from sluice.mig.model import INSTANCES_MAX

USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOUSE_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
NODE_POLICY, GPU_POLICY = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"
ANNOTATIONS = frozenset(
    (HAMI.mode, VOLCANO.mode, USE_TYPE, NOUSE_TYPE, USE_UUID, NOUSE_UUID, NUMA_BIND, NODE_POLICY, GPU_POLICY, WEIGHTS)
)
"""Annotations that a person may write; others under these prefixes are HAMi's internal notes and ignored."""
VGPU_MODES = ("mig", "hami-core")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
_WEIGHTS_ALLOWED = "slot=, core= and memory= with whole numbers, not all zero: for instance slot=1,core=1,memory=3"
_WEIGHT_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True)
class HamiPodOptions:
    """HAMi's annotations for every container of the pod."""

    mode: SourceValue | None
    modes: tuple[str, ...]
    only: DeviceFilter
    numa_bind: bool
    node_policy: str
    gpu_policy: str


def resources_of(container: ContainerRequest, names: VgpuNames) -> dict[str, SourceValue]:
    """The amounts of one family that a container requests, by the family's name; limits before requests."""
    asked = requested_amounts(container.limits, container.requests)
    return {name: SourceValue(name, asked[name]) for name in names.resources if name in asked}


def pod_options_of(given: Mapping[str, SourceValue], names: VgpuNames) -> HamiPodOptions:
    """Read HAMi's annotations for containers that use its resources (or NVIDIA's). Raises RequestSyntaxError."""
    other = VOLCANO.mode if names is HAMI else HAMI.mode
    if other in given:
        raise given[other].contradiction(f"this pod asks with {names.count}", names.mode)
    weights = given.get(WEIGHTS)
    if weights is not None:
        _check_weights(weights)
    mode = given.get(names.mode)
    return HamiPodOptions(
        mode=mode,
        modes=_vgpu_modes(mode) if mode is not None else VGPU_MODES,
        only=DeviceFilter(
            models=_models(given, USE_TYPE),
            not_models=_models(given, NOUSE_TYPE),
            uuids=values.uuids(given[USE_UUID]) if USE_UUID in given else (),
            not_uuids=values.uuids(given[NOUSE_UUID]) if NOUSE_UUID in given else (),
        ),
        numa_bind=NUMA_BIND in given and values.boolean(given[NUMA_BIND], _TRUE, _FALSE),
        node_policy=values.node_policy(given[NODE_POLICY]) if NODE_POLICY in given else "",
        gpu_policy=values.gpu_policy(given[GPU_POLICY]) if GPU_POLICY in given else "",
    )


def _models(given: Mapping[str, SourceValue], key: str) -> tuple[str, ...]:
    return values.names(given[key], "GPU models") if key in given else ()


def _vgpu_modes(written: SourceValue) -> tuple[str, ...]:
    named = values.names(written, "modes")
    for name in named:
        if name not in VGPU_MODES:
            why = f"there is no such mode{did_you_mean(name, VGPU_MODES)}; a pod would wait for it without end"
            raise written.invalid(why, "mig, hami-core, or both")
    return tuple(mode for mode in VGPU_MODES if mode in named) or VGPU_MODES


def _check_weights(written: SourceValue) -> None:
    """Check a pod's weights, so that a typo in them is not ignored; the pool's weights apply."""
    parts = [part.partition("=") for part in written.text()[:_WEIGHT_CHARACTERS_MAX].split(",")]
    names = sorted(name.strip() for name, _, _ in parts)
    if names != ["core", "memory", "slot"]:
        raise written.invalid("not exactly the three weights", _WEIGHTS_ALLOWED)
    try:
        weights = [values.whole(SourceValue(written.field, text.strip()), 0, WHOLE_MAX) for _, _, text in parts]
    except RequestSyntaxError as wrong:
        raise written.wrong(wrong.refusal.reason, wrong.refusal.message, _WEIGHTS_ALLOWED) from None
    if not any(weights):
        raise written.out_of_range("all weights are zero", _WEIGHTS_ALLOWED)


def claim_of(
    container: ContainerRequest,
    asked: Mapping[str, SourceValue],
    names: VgpuNames,
    words: HamiPodOptions,
    limits: RequestLimits,
) -> Claim | None:
    def amount(name: str, most: int, unit: str = "") -> int | None:
        return values.amount(asked[name], 0, most, unit=unit) if name in asked else None

    memory_mib = amount(names.memory, MEMORY_MIB_MAX, "MiB: 8192, not 8Gi")
    percentage = amount(names.memory_percentage, 100, "percent of the GPU's memory")
    cores = amount(names.cores, 100, "percent of the GPU's SMs")
    if names.priority:
        amount(names.priority, WHOLE_MAX)
    whole = cores is None and memory_mib is None and percentage in {None, 100}
    per_gpu = INSTANCES_MAX if "mig" in words.modes and not whole else 1
    count = amount(names.count, limits.max_gpus_per_node * per_gpu)
    if count is None and all(size is None for size in (memory_mib, percentage, cores)):
        return None
    if count is not None and whole:
        return Claim(
            container=container.name, gpus=count, known_geometries=True, only=words.only, numa_bind=words.numa_bind
        )
    if memory_mib is None and percentage is None:
        percentage = 100
    modes = _modes(words, cores or 0)
    return Claim(
        container=container.name,
        gpus=count or 1,
        modes=modes,
        sm_percentage=cores if cores and "exclusive" in modes else None,
        memory_mib=memory_mib,
        memory_percentage=percentage,
        sm_partition=cores if cores and "fractional" in modes else None,
        known_geometries=True,
        only=words.only,
        numa_bind=words.numa_bind,
        uid=container.uid if modes != ("exclusive",) else None,
    )


def _modes(words: HamiPodOptions, cores: int) -> tuple[Mode, ...]:
    share: Mode = "fractional" if cores else "mps"
    return tuple("exclusive" if mode == "mig" else share for mode in words.modes)
