"""
Usage and quotas of namespaces, and the message that changes a quota.

Usage is counted from the ledger with the allocator's own measure (`sluice.contracts.quotas.usage`). Nothing is decided
here.
"""

from dataclasses import dataclass, field
from typing import get_args

from msgspec.structs import replace

from sluice.contracts.gpu_reports import model_from_report
from sluice.contracts.kube.quantities import NotANumber, suspicious_memory
from sluice.contracts.messages import (
    BY_HAND,
    Amounts,
    AnyMessage,
    Booking,
    GpuReport,
    QuotaSet,
    QuotaUnset,
    SliceGone,
    SliceMessage,
)
from sluice.contracts.quotas.amounts import (
    PRIORITY_MAX,
    guarantee_above_total,
    invalid_namespace_reason,
    parse_limit,
    parse_priority_max,
)
from sluice.contracts.quotas.usage import NOTHING, PERMILLE, Usage, usage_of_device
from sluice.contracts.resize import counted_booking
from sluice.mig.model import GpuModel
from sluice_console.core.documents import AmountsDocument, QuotaDocument, QuotasDocument
from sluice_console.core.fleet.fleet_state import FleetState
from sluice_console.core.operate.limits_file import why_of_a_file


class QuotaError(ValueError):
    """The quota is invalid; the message names a valid one."""


# -- what is ------------------------------------------------------------------------------------------------------


def quotas_document(fleet_state: FleetState) -> QuotasDocument:
    """Every namespace that has limits or devices, by name."""
    used = used_by_namespace(fleet_state)
    limits = {key[0]: said for key, said in fleet_state.of("quota", QuotaSet)}
    return QuotasDocument(
        quotas=tuple(
            quota_document(namespace, used.get(namespace, NOTHING), limits.get(namespace))
            for namespace in sorted({*used, *limits})
        )
    )


def quota_document(namespace: str, used: Usage, said: QuotaSet | None) -> QuotaDocument:
    """One namespace; `said` None if it has no limits."""
    limits = said if said is not None else QuotaSet(namespace=namespace)
    return QuotaDocument(
        namespace=namespace,
        limited=said is not None,
        source=limits.source,
        used=AmountsDocument(
            gpus=used.gpus, memory_mib=used.memory_mib, compute_slices=used.compute_permille / PERMILLE
        ),
        total=_amounts(limits.total),
        request=_amounts(limits.request),
        guaranteed=_amounts(limits.guaranteed),
        priority_max=limits.priority_max,
    )


def _amounts(said: Amounts) -> AmountsDocument:
    return AmountsDocument(gpus=said.gpus, memory_mib=said.memory_mib, compute_slices=said.compute_slices)


def used_by_namespace(fleet_state: FleetState) -> dict[str, Usage]:
    """What is booked for each namespace and not reported as gone."""
    models = _ModelsByNode(fleet_state)
    used: dict[str, Usage] = {}
    for entry, _ in fleet_state.bookings():
        said = _slice_of(fleet_state, entry.booking)
        if isinstance(said, SliceGone):
            continue
        for device in counted_booking(entry, said).devices:
            counts = usage_of_device(device, models.of(device.gpu))
            namespace = entry.booking.namespace
            used[namespace] = used.get(namespace, NOTHING) + counts
    return used


def _slice_of(fleet_state: FleetState, booking: Booking) -> SliceMessage | None:
    """The agent's last message about a booking."""
    kinds: tuple[type[SliceMessage], ...] = get_args(SliceMessage)
    words = (fleet_state.at("slice", kind, booking.node, booking.allocation) for kind in kinds)
    return next((word for word in words if word is not None), None)


@dataclass(slots=True)
class _ModelsByNode:
    """Models of GPUs, resolved on demand, once for GPUs reported alike."""

    fleet_state: FleetState
    _reports: dict[str, GpuReport] = field(init=False)
    _known: dict[tuple[object, ...], GpuModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Index the reports by GPU."""
        inventories = self.fleet_state.inventories().values()
        self._reports = {gpu.uuid: gpu for said in inventories for gpu in said.snapshot.gpus}

    def of(self, uuid: str) -> GpuModel | None:
        """The model of a GPU; None if no inventory has it."""
        gpu = self._reports.get(uuid)
        if gpu is None:
            return None
        facts = (gpu.model, gpu.memory_mib, gpu.multiprocessors, gpu.memory_slices, gpu.compute_slices, gpu.profiles)
        model = self._known.get(facts)
        if model is None:
            model = self._known[facts] = model_from_report(gpu)
        return model


# -- what is said -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """The amounts as typed; None keeps the previous amount."""

    gpus: str | None = None
    memory: str | None = None
    compute_slices: str | None = None

    def amounts(self, before: Amounts, option: str) -> Amounts:
        """The typed amounts over those before. `option` is the prefix of the options' names.

        Raises QuotaError."""
        return Amounts(
            gpus=_amount(option, "gpus", self.gpus, before.gpus),
            memory_mib=_amount(option, "memory", self.memory, before.memory_mib),
            compute_slices=_amount(option, "compute-slices", self.compute_slices, before.compute_slices),
        )


def check_namespace(namespace: str) -> None:
    """Raises QuotaError for an invalid namespace."""
    why = invalid_namespace_reason(namespace)
    if why:
        raise QuotaError(why)


def quota_word(
    namespace: str,
    before: AnyMessage | None,
    *,
    total: QuotaChange,
    request: QuotaChange,
    guaranteed: QuotaChange,
    priority_max: str | None = None,
    take_over: bool = False,
) -> QuotaSet:
    """The limits of a namespace with the typed changes.

    Raises QuotaError for an invalid amount, a guarantee above its limit, or limits set by a limits file (unless
    `take_over`)."""
    _not_of_a_file(before, take_over=take_over)
    known = before if isinstance(before, QuotaSet) else QuotaSet(namespace=namespace)
    word = replace(
        known,
        total=total.amounts(known.total, ""),
        request=request.amounts(known.request, "pod-"),
        guaranteed=guaranteed.amounts(known.guaranteed, "guaranteed-"),
        priority_max=known.priority_max if priority_max is None else _ceiling(priority_max),
        source=BY_HAND,
    )
    beyond = guarantee_above_total(word.total, word.guaranteed)
    if beyond is not None:
        option = f"--guaranteed-{beyond.dimension} {beyond.guaranteed}"
        raise QuotaError(f"{option}: namespace {namespace} may have {beyond.total} in all")
    return word


def unset_word(namespace: str, before: AnyMessage | None, *, take_over: bool = False) -> QuotaUnset:
    """The message that a namespace has no limits. Raises QuotaError if a limits file sets them (unless `take_over`)."""
    _not_of_a_file(before, take_over=take_over)
    return before if isinstance(before, QuotaUnset) else QuotaUnset(namespace=namespace)


def _not_of_a_file(before: AnyMessage | None, *, take_over: bool) -> None:
    why = why_of_a_file(before)
    if why and not take_over:
        raise QuotaError(why)


def _ceiling(text: str) -> int | None:
    limit = parse_priority_max(text)
    if isinstance(limit, NotANumber):
        raise QuotaError(f"--{PRIORITY_MAX} {text}: {limit.why}")
    return limit


def _amount(option: str, dimension: str, text: str | None, before: int | None) -> int | None:
    if text is None:
        return before
    limit = parse_limit(dimension, text)
    if isinstance(limit, NotANumber):
        raise QuotaError(f"--{option}{dimension} {text}: {limit.why}")
    if dimension == "memory" and (doubt := suspicious_memory(text)):
        raise QuotaError(f"--{option}{dimension}: {doubt}")
    return limit


# -- for people ---------------------------------------------------------------------------------------------------


def quota_cells(quota: QuotaDocument) -> tuple[str, ...]:
    """The cells of `sluice quota list`: devices, memory, compute slices, one pod's limits, guarantees, priority."""
    used, most = quota.used, quota.total
    return (
        _of(used.gpus, most.gpus),
        _of(used.memory_mib, most.memory_mib, " MiB"),
        _of(used.compute_slices, most.compute_slices),
        _all(quota.request),
        _all(quota.guaranteed),
        "-" if quota.priority_max is None else f"up to {quota.priority_max}",
    )


def _of(has: float | None, most: float | None, unit: str = "") -> str:
    used = _number(has or 0)
    return f"{used}{unit}" if most is None else f"{used} of {_number(most)}{unit}"


def _all(amounts: AmountsDocument) -> str:
    named = ((amounts.gpus, "devices"), (amounts.memory_mib, "MiB"), (amounts.compute_slices, "compute slices"))
    said = ((amount, unit.removesuffix("s") if amount == 1 else unit) for amount, unit in named if amount is not None)
    return ", ".join(f"{_number(amount)} {unit}" for amount, unit in said) or "-"


def _number(amount: float) -> str:
    """With all digits: a TiB of GPU memory has seven."""
    return f"{amount:.15g}"
