"""Read a limits file: its limits of namespaces and cordons of nodes, as messages for the bus.

An error names file, table, key, value and cure; then nothing of the file applies, because half of an operator's limits
are not what the operator wrote."""

from collections.abc import Iterator, Mapping

from sluice.contracts.bus import subjects
from sluice.contracts.bus.subjects import Address, SubjectError
from sluice.contracts.ids import GpuUuid, NodeName, SourceName
from sluice.contracts.kube.quantities import WHOLE_MAX, NotANumber, suspicious_memory
from sluice.contracts.messages import Amounts, Cordoned, QuotaSet
from sluice.contracts.quotas import amounts
from sluice.contracts.toml_tables import Table, TableError, read_toml

BYTES_MAX = 64 * 1024
"""A larger file is refused. A thousand namespaces with all nine limits fit."""
ENTRIES_MAX = 1_000
"""Namespaces and nodes together: each is a message on the bus, checked after every reading."""
GPUS_MAX = 64
WHY_MAX = 400
"""Characters of a reason, which everyone sees whose pod waits because of it."""
UUID_MAX = 100

_QUOTA_KEYS = tuple(
    f"{prefix}{dimension}" for prefix in ("", "pod-", "guaranteed-") for dimension in amounts.DIMENSIONS
)


def read_limits(text: str, *, origin: str, source: SourceName) -> Mapping[Address, QuotaSet | Cordoned]:
    """The messages of the file `origin`, in the name of `source`, by subject. Raises TableError."""
    if len(text.encode()) > BYTES_MAX:
        raise TableError(origin, "", None, f"larger than {BYTES_MAX} bytes")
    root = read_toml(text, origin=origin)
    root.only(("namespaces", "nodes"))
    namespaces, nodes = root.table("namespaces"), root.table("nodes")
    count = len(namespaces.values) + len(nodes.values)
    if count > ENTRIES_MAX:
        raise TableError(origin, "", None, f"{count} namespaces and nodes, the limit is {ENTRIES_MAX}")
    return dict((*_quotas(namespaces, source), *_cordons(nodes, source)))


def suspicious_limits(text: str, *, origin: str) -> list[str]:
    """Amounts of memory in a valid file that are probably mistakes: like `read_limits`, and they apply all the same."""
    namespaces = read_toml(text, origin=origin).table("namespaces")
    tables = [namespaces.table(each) for each in namespaces.values]
    keys = [key for key in _QUOTA_KEYS if key.endswith("memory")]
    found = ((table, key, suspicious_memory(str(table.values.get(key, "")))) for table in tables for key in keys)
    return [str(table.wrong(key, why)) for table, key, why in found if why]


def _quotas(namespaces: Table, source: SourceName) -> Iterator[tuple[Address, QuotaSet]]:
    for namespace in namespaces.values:
        why = amounts.invalid_namespace_reason(namespace)
        if why:
            raise TableError(namespaces.origin, namespaces.at(namespace), namespace, why)
        yield subjects.quota(namespace), _quota(namespaces.table(namespace), namespace, source)


def _quota(table: Table, namespace: str, source: SourceName) -> QuotaSet:
    table.only((*_QUOTA_KEYS, amounts.PRIORITY_MAX))
    if not table.values:
        raise TableError(table.origin, table.path, None, "name at least one limit, gpus = 4 for instance")
    word = QuotaSet(
        namespace=namespace,
        total=_amounts(table, ""),
        request=_amounts(table, "pod-"),
        guaranteed=_amounts(table, "guaranteed-"),
        priority_max=_priority_max(table),
        source=source,
    )
    beyond = amounts.guarantee_above_total(word.total, word.guaranteed)
    if beyond is not None:
        raise table.wrong(f"guaranteed-{beyond.dimension}", f"the namespace may have {beyond.total} in all")
    return word


def _priority_max(table: Table) -> int | None:
    value = table.values.get(amounts.PRIORITY_MAX, amounts.UNLIMITED)
    limit = (
        amounts.parse_priority_max(str(value))
        if isinstance(value, int | str) and not isinstance(value, bool)
        else amounts.NO_CEILING
    )
    if isinstance(limit, NotANumber):
        raise table.wrong(amounts.PRIORITY_MAX, limit.why)
    return limit


def _amounts(table: Table, prefix: str) -> Amounts:
    gpus, memory_mib, compute_slices = (_limit(table, prefix, dimension) for dimension in amounts.DIMENSIONS)
    return Amounts(gpus=gpus, memory_mib=memory_mib, compute_slices=compute_slices)


def _limit(table: Table, prefix: str, dimension: str) -> int | None:
    value = table.values.get(f"{prefix}{dimension}", amounts.UNLIMITED)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= WHOLE_MAX:
        value = str(value)
    limit = amounts.parse_limit(dimension, value if isinstance(value, str) else "")
    if isinstance(limit, NotANumber):
        raise table.wrong(f"{prefix}{dimension}", limit.why)
    return limit


def _cordons(nodes: Table, source: SourceName) -> Iterator[tuple[Address, Cordoned]]:
    for node in nodes.values:
        try:
            address = subjects.cordon(NodeName(node))
        except SubjectError as error:
            raise TableError(nodes.origin, nodes.at(node), node, str(error)) from None
        yield address, _cordon(nodes.table(node), NodeName(node), source)


def _cordon(table: Table, node: NodeName, source: SourceName) -> Cordoned:
    table.only(("cordon", "drain", "gpus", "why"))
    drain = table.flag("drain", default=False)
    if not table.flag("cordon", default=drain) and not drain:
        raise table.wrong("cordon", "must be true, unless drain is; to use the node again take its table away")
    why = table.text("why") if "why" in table.values else ""
    if len(why) > WHY_MAX:
        raise table.wrong("why", f"at most {WHY_MAX} characters")
    return Cordoned(node=node, gpus=_gpus(table), why=why, drain=drain, source=source)


def _gpus(table: Table) -> tuple[GpuUuid, ...]:
    """By UUID alone: an index may be another GPU after one was removed."""
    gpus = tuple(dict.fromkeys(table.texts("gpus")))
    if "gpus" in table.values and not 1 <= len(gpus) <= GPUS_MAX:
        raise table.wrong("gpus", f"name 1 to {GPUS_MAX}, or take the key away to mean the whole node")
    if any(gpu.isdecimal() or len(gpu) > UUID_MAX for gpu in gpus):
        raise table.wrong("gpus", "GPUs by UUID, as `sluice gpus` and `nvidia-smi -L` show it")
    return tuple(GpuUuid(gpu) for gpu in gpus)
