"""
What is in use per GPU, for other programs: `/api/map`, in our form and in backend.ai's.

Our form is `GetAllocationMap` of the inventory, from the same snapshots. backend.ai's `gpu_alloc_map` maps UUIDs
without prefix to decimals as text (`{"<uuid>": "0.60"}`, backend.ai 24.03). It has no field for the age of the data or
the tenants, so prefer ours.
"""

from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal

from sluice_console.core.documents import VERSION, Document, GpuDocument, InstanceState

PREFIX = "GPU-"


class SlotDocument(Document, frozen=True, kw_only=True):
    """A span of a GPU that is not plainly free; one per share of a shared device, all with the same span."""

    start: int
    """A home has a slot per share, all with one span."""
    size: int
    state: InstanceState
    profile: str = ""
    uuid: str = ""
    """Of the MIG device or GPU; empty while there is none."""
    allocation: str = ""
    request: str = ""
    owner: str = ""
    """Empty if unknown."""
    memory_mib: int = 0
    """Of a share, else 0."""


class GpuMapDocument(Document, frozen=True, kw_only=True):
    """How much of one GPU is in use, and by which pods."""

    node: str
    index: int
    model: str
    fraction_in_use: float
    """Memory slices in use, 0 to 1."""
    slots: tuple[SlotDocument, ...]
    observed_at: str
    """When its node was last pulled. What was ordered since is in `slots`, too."""
    stale: bool
    """Its node could not be pulled: this may be old."""


class MapDocument(Document, frozen=True, kw_only=True):
    """`/api/map` of the web page's server."""

    version: int = VERSION
    gpus: dict[str, GpuMapDocument]
    """By UUID."""


def map_document(gpus: Iterable[GpuDocument]) -> MapDocument:
    """The map of these GPUs."""
    return MapDocument(gpus={gpu.uuid: _gpu(gpu) for gpu in gpus})


def _gpu(gpu: GpuDocument) -> GpuMapDocument:
    slots: list[SlotDocument] = []
    for place in gpu.instances:
        slot = SlotDocument(
            start=place.start,
            size=place.size,
            state=place.state,
            profile=place.profile,
            uuid=place.uuid,
            allocation=place.allocation,
            request=place.request,
            owner=place.owner,
        )
        slots += [
            SlotDocument(
                start=place.start,
                size=place.size,
                state=tenant.state,
                profile=place.profile,
                uuid=place.uuid,
                allocation=tenant.allocation,
                request=tenant.request,
                owner=tenant.owner,
                memory_mib=tenant.share.memory_mib,
            )
            for tenant in place.tenants
        ] or [slot]
    return GpuMapDocument(
        node=gpu.node,
        index=gpu.index,
        model=gpu.model,
        fraction_in_use=gpu.allocated_fraction,
        slots=tuple(slots),
        observed_at=gpu.observed_at,
        stale=gpu.stale,
    )


def backendai_map(gpus: Iterable[GpuDocument]) -> dict[str, str]:
    """UUID without its prefix -> the fraction in use, as text with two digits."""
    return {gpu.uuid.removeprefix(PREFIX): _two_digits(gpu.allocated_fraction) for gpu in gpus}


def _two_digits(fraction: float) -> str:
    return str(Decimal(str(fraction)).quantize(Decimal("0.01"), ROUND_HALF_UP))
