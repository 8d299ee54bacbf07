"""FaST-GShare's vocabulary: annotations `fastgshare/<key>` of a pod, which apply to its main container.

Facts from https://github.com/KontonGu/FaST-GShare and https://github.com/ishworgiri1999/FaST-GShare
(pkg/apis/fastgshare.caps.in.tum/v1/types.go). Memory is in bytes; a number of SMs goes before a percentage. A key that
its mode does not use is refused unless it is zero."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.contracts.ids import GpuUuid
from sluice.contracts.kube.quantities import MEMORY_MIB_MAX, WHOLE_MAX, NotANumber, parse_quantity
from sluice.contracts.messages import Claim, DeviceFilter
from sluice.contracts.messages.requests import Mode
from sluice.contracts.request_syntax import values
from sluice.contracts.request_syntax.keys import FASTGSHARE
from sluice.contracts.request_syntax.pod_request import ContainerRequest
from sluice.contracts.request_syntax.source_text import SourceValue, did_you_mean

KEYS = (
    "allocation_type",
    "gpu_quota_request",
    "gpu_quota_limit",
    "gpu_sm_partition",
    "gpu_sm_value",
    "gpu_mem",
    "node_name",
    "vgpu_uuid",
    "vgpu_type",
    "preferred_gpu_type",
)
TYPES: Mapping[str, Mode] = {"FASTPOD": "fractional", "MPS": "mps", "EXCLUSIVE": "exclusive"}
_QUOTAS = ("gpu_quota_request", "gpu_quota_limit")
_UNUSED: Mapping[Mode, tuple[str, ...]] = {
    "fractional": ("gpu_sm_value",),
    "mps": (*_QUOTAS, "gpu_sm_partition", "gpu_sm_value"),
    "exclusive": _QUOTAS,
}
_MIB = 1024**2
_WHOLE_GPU = "vgpu-physical-"
"""Its own id of a GPU without MIG: this, and the UUID."""
_OWN_IDS = "vgpu-"

SourceValues = Mapping[str, SourceValue]


@dataclass(frozen=True, slots=True)
class FastPod:
    """The parsed annotations: a claim, and the only allowed node (empty: any)."""

    claim: Claim
    node_name: str


def key_of(written: SourceValue) -> str:
    """The key of an annotation of this vocabulary. Raises RequestSyntaxError when there is no such key."""
    key = written.field.removeprefix(FASTGSHARE)
    if key not in KEYS:
        why = f"there is no such key{did_you_mean(key, KEYS, prefix=FASTGSHARE)}"
        raise written.unknown(why, ", ".join(f"{FASTGSHARE}{each}" for each in KEYS))
    return key


def read(container: ContainerRequest, given: SourceValues) -> FastPod:
    """The claim of a container with at least one of the keys. Raises RequestSyntaxError."""
    mode = _mode(given)
    for key in _UNUSED[mode]:
        if key in given and values.decimal(given[key], 3, 0, WHOLE_MAX) != 0:
            _refuse_unused(given, given[key], mode)
    partition = values.whole(given["gpu_sm_partition"], 0, 100) if "gpu_sm_partition" in given else 0
    sm_count = values.whole(given["gpu_sm_value"], 0, WHOLE_MAX) if "gpu_sm_value" in given else 0
    first = next(iter(given.values()))
    if mode == "fractional" and not partition:
        why = "a FASTPOD needs a part of the SMs"
        raise given.get("gpu_sm_partition", first).contradiction(why, f"{FASTGSHARE}gpu_sm_partition from 1 to 100")
    if mode == "exclusive" and not partition and not sm_count:
        why = "EXCLUSIVE needs a number or a percentage of SMs"
        raise given["allocation_type"].contradiction(why, f"{FASTGSHARE}gpu_sm_value or {FASTGSHARE}gpu_sm_partition")
    request, limit = _quotas(given)
    claim = Claim(
        container=container.name,
        modes=(mode,),
        sm_count=sm_count or None,
        sm_percentage=partition if mode == "exclusive" and not sm_count else None,
        memory_mib=_memory_mib(given, mode, first),
        sm_partition=partition if mode == "fractional" else None,
        quota_request_permille=request,
        quota_limit_permille=limit,
        only=DeviceFilter(models=_models(given), uuids=_uuids(given)),
        uid=container.uid if mode != "exclusive" else None,
    )
    return FastPod(claim, values.node_name(given["node_name"]) if "node_name" in given else "")


def _mode(given: SourceValues) -> Mode:
    written = given.get("allocation_type")
    if written is None:
        return "fractional"
    mode = TYPES.get(written.text()[: values.NAME_CHARACTERS_MAX].strip().upper())
    if mode is None:
        raise written.invalid("there is no such type", ", ".join(TYPES))
    return mode


def _refuse_unused(given: SourceValues, unused: SourceValue, mode: Mode) -> None:
    type_said = given.get("allocation_type")
    why, allowed = f"it has no effect in mode {mode}", "leave it out, or another allocation_type"
    if type_said is None:
        raise unused.contradiction(f"{why}, which is meant without {FASTGSHARE}allocation_type", allowed)
    raise unused.contradicts(type_said, why, allowed)


def _memory_mib(given: SourceValues, mode: Mode, first: SourceValue) -> int | None:
    """Bytes, rounded up to MiB. Zero means unset, which only an exclusive slice may be."""
    written = given.get("gpu_mem")
    allowed = "bytes, at least 1: for instance 1073741824"
    if written is None:
        why = f"{FASTGSHARE}gpu_mem is missing: a share needs an amount of memory, and so does a slice here"
        raise first.contradiction(why, f"{FASTGSHARE}gpu_mem in bytes beside it")
    size = parse_quantity(written.text())
    if isinstance(size, NotANumber):
        raise written.invalid(size.why, allowed)
    if size.denominator != 1:
        raise written.invalid("not a whole number of bytes", allowed)
    size_mib = -(-size.numerator // _MIB)
    if size == 0 and mode == "exclusive":
        return None
    if size <= 0 or size_mib > MEMORY_MIB_MAX:
        raise written.out_of_range("out of range", f"{allowed}, at most {MEMORY_MIB_MAX} MiB")
    return size_mib


def _quotas(given: SourceValues) -> tuple[int, int]:
    quotas = [values.decimal(given[key], 3, 0, 1000) if key in given else None for key in _QUOTAS]
    limit = quotas[1] or 1000
    request = quotas[0] or limit
    if request > limit:
        why = "the guaranteed part cannot exceed the limit"
        raise given[_QUOTAS[0]].contradicts(given[_QUOTAS[1]], why, "at most the limit")
    return request, limit


def _models(given: SourceValues) -> tuple[str, ...]:
    listed = [values.names(given[key], "GPU models") for key in ("vgpu_type", "preferred_gpu_type") if key in given]
    return tuple(dict.fromkeys(model for models in listed for model in models))


def _uuids(given: SourceValues) -> tuple[GpuUuid, ...]:
    written = given.get("vgpu_uuid")
    if written is None:
        return ()
    listed = [uuid.removeprefix(_WHOLE_GPU) for uuid in values.names(written, "GPUs (UUIDs)")]
    if any(uuid.startswith(_OWN_IDS) for uuid in listed):
        why = "the id of an instance; Sluice makes the instance, so only a GPU can be named"
        raise written.invalid(why, "the UUID of a GPU, GPU-...")
    return values.uuids(SourceValue(written.field, ",".join(listed)))
