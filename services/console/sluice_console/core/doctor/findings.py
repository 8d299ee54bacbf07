"""Findings with their remedies, and the document of `sluice doctor`. Each kind of check has a module of its own."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Literal

from sluice_console.core.documents import VERSION, Document

NAMED_MAX = 5
"""Names listed per finding; the rest is counted."""

Level = Literal["ok", "warning", "problem", "unknown"]
"""`warning`: degraded. `problem`: must be fixed. `unknown`: could not be checked."""
ORDER: tuple[Level, ...] = ("ok", "unknown", "warning", "problem")


class Check(StrEnum):
    """The checks. Each has a row in docs/operations.md."""

    BROKER = "broker"
    STREAMS = "streams"
    MESSAGES = "messages"
    ALLOCATOR = "allocator"
    POD_WATCHER = "pod-watcher"
    INVENTORY = "inventory"
    AGENTS = "agents"
    GPUS = "gpus"
    VERSIONS = "versions"
    CLOCKS = "clocks"
    CLUSTER = "cluster"
    SERVICES = "services"
    STORAGE = "storage"
    ADMISSION = "admission"
    POLICIES = "policies"
    VOLUME = "volume"
    MIRROR = "mirror"
    RIGHTS = "rights"
    NODES = "nodes"
    WAITING = "waiting-pods"
    STARTING = "starting-pods"
    QUOTAS = "resource-quotas"
    LIMITS = "limit-ranges"


class FindingDocument(Document, frozen=True, kw_only=True):
    """One result. `remedy` says what to do; empty if all is well."""

    check: Check
    level: Level
    what: str
    remedy: str = ""


class QuotaProposalDocument(Document, frozen=True, kw_only=True):
    """What a ResourceQuota that no longer counts is as limits of Sluice. Null is unlimited, 0 blocks."""

    namespace: str
    quotas: tuple[str, ...]
    """The ResourceQuotas it replaces."""
    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None


class DoctorDocument(Document, frozen=True, kw_only=True):
    """`sluice doctor --json`."""

    version: int = VERSION
    findings: tuple[FindingDocument, ...]
    quotas: tuple[QuotaProposalDocument, ...] = ()


def ok(check: Check, what: str) -> FindingDocument:
    """Checks that passed."""
    return FindingDocument(check=check, level="ok", what=what)


def warning(check: Check, what: str, remedy: str) -> FindingDocument:
    """Degraded, but working."""
    return FindingDocument(check=check, level="warning", what=what, remedy=remedy)


def problem(check: Check, what: str, remedy: str) -> FindingDocument:
    """Must be fixed."""
    return FindingDocument(check=check, level="problem", what=what, remedy=remedy)


def unknown(check: Check, what: str, remedy: str) -> FindingDocument:
    """Could not be checked."""
    return FindingDocument(check=check, level="unknown", what=what, remedy=remedy)


def in_order(findings: Iterable[FindingDocument]) -> Iterator[FindingDocument]:
    """Display order: problems last, where they are seen; otherwise as found."""
    return iter(sorted(findings, key=lambda finding: ORDER.index(finding.level)))


def worst(findings: Sequence[FindingDocument]) -> Level:
    """The worst level: problems, then what could not be checked, then warnings."""
    levels = {finding.level for finding in findings}
    order: tuple[Level, ...] = ("problem", "unknown", "warning")
    return next((level for level in order if level in levels), "ok")


def named(names: Iterable[str]) -> str:
    """Some names and how many more there are: `a, b and 3 more`."""
    every = list(names)
    shown = every[:NAMED_MAX]
    more = f" and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    return ", ".join(shown) + more


def counted(number: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
