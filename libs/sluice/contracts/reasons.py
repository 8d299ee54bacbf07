"""Why a request is refused or waits, as data: a code for machines, a sentence for people.

Refused is what is invalid on any fleet: syntax, contradictions, a profile name that cannot exist, more than the
configured limits. Everything else waits, even if no known node could serve it: a node that joins later may."""

import difflib
import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class _Reason(StrEnum):
    """Reason codes. One of a later version is shown as it is: otherwise its whole message would be set aside."""

    @classmethod
    def _missing_(cls, value: object) -> "_Reason | None":
        if not isinstance(value, str) or _WORD.fullmatch(value) is None:
            return None
        later = str.__new__(cls, value)
        later._name_ = later._value_ = value
        return later


_WORD = re.compile(r"[A-Z][A-Za-z]{0,63}")


class RefusalReason(_Reason):
    """Why a request can never be served as it is written."""

    NOT_YAML = "NotYaml"
    NOT_A_POD = "NotAPod"
    INVALID_VALUE = "InvalidValue"
    OUT_OF_RANGE = "OutOfRange"
    CONTRADICTION = "Contradiction"
    UNKNOWN_KEY = "UnknownKey"
    UNSUPPORTED_KEY = "UnsupportedKey"
    UNKNOWN_CONTAINER = "UnknownContainer"
    UNKNOWN_PROFILE = "UnknownProfile"
    TOO_LARGE = "TooLarge"
    UNSUPPORTED_MODE = "UnsupportedMode"
    DUPLICATE_POD = "DuplicatePod"


_SHORTENED_MAX = 150
"""A value that was shortened where it was read has at most so many characters, and is not shortened again."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One refusal: which `field`, spelled as the person wrote it, holds which `value`, and what is `allowed`."""

    reason: RefusalReason
    message: str
    field: str = ""
    value: str = ""
    allowed: str = ""

    def sentence(self) -> str:
        where = f"{self.field} = {shorten(self.value, _SHORTENED_MAX)!r}: " if self.field else ""
        right = f" (allowed: {self.allowed})" if self.allowed else ""
        return f"{where}{self.message}{right}"


class WaitReason(_Reason):
    """Why a request waits. Each also names the term that people search for (`KNOWN_AS`)."""

    NO_NODE_CAN_FIT = "NoNodeCanFit"
    NO_NODES = "NoNodes"
    NODE_NOT_OPEN = "NodeNotOpen"
    NODE_STALE = "NodeStale"
    NODE_CORDONED = "NodeCordoned"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNDER_PRESSURE = "NodeUnderPressure"
    NODE_LEAVING = "NodeLeaving"
    NODE_NOT_NAMED = "NodeNotNamed"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    NODE_TAINTED = "NodeTainted"
    NODE_INSUFFICIENT_CPU = "NodeInsufficientCpu"
    NODE_INSUFFICIENT_MEMORY = "NodeInsufficientMemory"
    NODE_INSUFFICIENT_PODS = "NodeInsufficientPods"
    NODE_PODS_AT_LIMIT = "NodePodsAtLimit"
    NODE_INSUFFICIENT_RESOURCE = "NodeInsufficientResource"
    NODE_POD_ANTI_AFFINITY = "NodePodAntiAffinity"
    NODE_POD_AFFINITY = "NodePodAffinity"
    NODE_TOPOLOGY_SPREAD = "NodeTopologySpread"
    NODE_TOPOLOGY_LABEL_MISSING = "NodeTopologyLabelMissing"
    NODE_HOST_PORT_TAKEN = "NodeHostPortTaken"
    NODE_VOLUME_ELSEWHERE = "NodeVolumeElsewhere"
    NODE_WITHOUT_HAND_OVER = "NodeWithoutHandOver"
    GPU_UNHEALTHY = "GpuUnhealthy"
    GPU_MODE_NOT_FIT = "GpuModeNotFit"
    GPU_MODEL_MISMATCH = "GpuModelMismatch"
    GPU_UUID_MISMATCH = "GpuUuidMismatch"
    GPU_NO_SUCH_PROFILE = "GpuNoSuchProfile"
    GPU_LAYOUT_FULL = "GpuLayoutFull"
    GPU_NOT_IN_LAYOUT = "GpuNotInLayout"
    GPU_INSTANCES_TAKEN = "GpuInstancesTaken"
    GPU_ENGINES_USED_UP = "GpuEnginesUsedUp"
    GPU_NOT_IDLE = "GpuNotIdle"
    GPU_INSUFFICIENT_MEMORY = "GpuInsufficientMemory"
    GPU_MEMORY_UNKNOWN = "GpuMemoryUnknown"
    GPU_INSUFFICIENT_SMS = "GpuInsufficientSms"
    GPU_TIME_USED_UP = "GpuTimeUsedUp"
    GPU_TENANTS_USED_UP = "GpuTenantsUsedUp"
    GPU_OTHER_TRUST_DOMAIN = "GpuOtherTrustDomain"
    GPU_AVOIDED = "GpuAvoided"
    NUMA_NOT_FIT = "NumaNotFit"
    ONE_GPU_NOT_FIT = "OneGpuNotFit"
    TOO_FEW_GPUS_ON_NODE = "TooFewGpusOnNode"
    QUOTA_EXCEEDED = "QuotaExceeded"
    GROUP_INCOMPLETE = "GroupIncomplete"
    GROUP_NOT_FIT = "GroupNotFit"
    PLACE_BEING_FREED = "PlaceBeingFreed"
    PLACE_PROMISED = "PlacePromised"
    QUEUE_FULL = "QueueFull"


KNOWN_AS = {
    WaitReason.NODE_CORDONED: "CardCordoned",
    WaitReason.GPU_UNHEALTHY: "CardNotHealth",
    WaitReason.GPU_MODE_NOT_FIT: "ModeNotFit",
    WaitReason.GPU_MODEL_MISMATCH: "CardTypeMismatch",
    WaitReason.GPU_UUID_MISMATCH: "CardUuidMismatch",
    WaitReason.GPU_NO_SUCH_PROFILE: "CardTypeMismatch",
    WaitReason.GPU_LAYOUT_FULL: "CardMigTopologyInfeasible",
    WaitReason.GPU_NOT_IN_LAYOUT: "CardMigTopologyInfeasible",
    WaitReason.GPU_INSTANCES_TAKEN: "CardMigTopologyInfeasible",
    WaitReason.GPU_ENGINES_USED_UP: "CardMigTopologyInfeasible",
    WaitReason.GPU_NOT_IDLE: "ExclusiveDeviceAllocateConflict",
    WaitReason.GPU_INSUFFICIENT_MEMORY: "CardInsufficientMemory",
    WaitReason.GPU_MEMORY_UNKNOWN: "CardInsufficientMemory",
    WaitReason.GPU_INSUFFICIENT_SMS: "CardInsufficientCore",
    WaitReason.GPU_TIME_USED_UP: "CardComputeUnitsExhausted",
    WaitReason.GPU_TENANTS_USED_UP: "CardTimeSlicingExhausted",
    WaitReason.GPU_OTHER_TRUST_DOMAIN: "ExclusiveDeviceAllocateConflict",
    WaitReason.NUMA_NOT_FIT: "NumaNotFit",
    WaitReason.TOO_FEW_GPUS_ON_NODE: "AllocatedCardsInsufficientRequest",
    WaitReason.QUOTA_EXCEEDED: "ResourceQuotaNotFit",
}


class ReasonCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs (or nodes) of one class could not serve a request, and why."""

    reason: WaitReason
    count: int
    of: str
    """A GPU model, or `nodes`."""
    on: str = ""
    """The node class, where the fleet has several."""
    known_as: str = ""


def nearest(text: str, choices: Sequence[str], cutoff: float = 0.5) -> str:
    """The choice that is most similar; empty when none is."""
    return next(iter(difflib.get_close_matches(text, choices, n=1, cutoff=cutoff)), "")


def shorten(text: str, limit: int = 120) -> str:
    """At most `limit` characters of an outside text, with its real length when it is cut."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
