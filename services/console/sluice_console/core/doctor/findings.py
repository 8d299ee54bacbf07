"""
What a look at a system comes to: findings with their remedies, and the document that they are printed as.

It must not know what is looked at; each kind of look has a module beside this one.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Literal

from sluice_console.core.documents import VERSION, Document

NAMED_MAX = 5
"""So many of a kind are named, the others counted: of 1,000 nodes nobody reads all names."""

Level = Literal["ok", "warning", "problem", "unknown"]
"""`warning`: it works, but not everything. `problem`: it must be fixed. `unknown`: it could not be looked at."""
ORDER: tuple[Level, ...] = ("ok", "unknown", "warning", "problem")


class Check(StrEnum):
    """What is looked at. Each has a row in docs/operations.md."""

    BROKER = "broker"
    STREAMS = "streams"
    WORDS = "words"
    ALLOCATOR = "allocator"
    POD_WATCHER = "pod-watcher"
    INVENTORY = "inventory"
    AGENTS = "agents"
    GPUS = "gpus"
    VERSIONS = "versions"
    CLOCKS = "clocks"
    CLUSTER = "cluster"
    SERVICES = "services"
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
    """One thing that was looked at. `remedy` says what to do, and is empty when all is well."""

    check: Check
    level: Level
    what: str
    remedy: str = ""


class QuotaProposalDocument(Document, frozen=True, kw_only=True):
    """What a ResourceQuota that no longer counts would be as limits of Sluice. Null is unlimited, 0 blocks."""

    namespace: str
    quotas: tuple[str, ...]
    """The ResourceQuotas it stands for."""
    gpus: int | None = None
    memory_mib: int | None = None
    compute_slices: int | None = None


class DoctorDocument(Document, frozen=True, kw_only=True):
    """`sluice doctor --json`."""

    version: int = VERSION
    findings: tuple[FindingDocument, ...]
    quotas: tuple[QuotaProposalDocument, ...] = ()


def ok(check: Check, what: str) -> FindingDocument:
    """All is well."""
    return FindingDocument(check=check, level="ok", what=what)


def warning(check: Check, what: str, remedy: str) -> FindingDocument:
    """It works, but not everything."""
    return FindingDocument(check=check, level="warning", what=what, remedy=remedy)


def problem(check: Check, what: str, remedy: str) -> FindingDocument:
    """It must be fixed."""
    return FindingDocument(check=check, level="problem", what=what, remedy=remedy)


def unknown(check: Check, what: str, remedy: str) -> FindingDocument:
    """It could not be looked at."""
    return FindingDocument(check=check, level="unknown", what=what, remedy=remedy)


def in_order(findings: Iterable[FindingDocument]) -> Iterator[FindingDocument]:
    """As they are shown: what is wrong last, where it is seen; else as they were found."""
    return iter(sorted(findings, key=lambda finding: ORDER.index(finding.level)))


def worst(findings: Sequence[FindingDocument]) -> Level:
    """The worst level among them: what must be fixed before what could not be looked at, before warnings."""
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
