"""Read a Pod's Kubernetes priority: its own or its class's, and whether it may preempt others.

A pod of a cluster always has both (the API server's plugin `Priority`); a manifest has what was written, and a
PriorityClass beside it is looked up. Source:
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.contracts.kube.object_fields import PodFields
from sluice.contracts.kube.quantities import NotANumber, parse_int32
from sluice.contracts.reasons import shorten
from sluice.contracts.request_syntax.source_text import SourceValue, Unquoted, did_you_mean, is_null, never_raising

SYSTEM_CLASSES: Mapping[str, int] = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Every cluster has these two, and no user can define another of their names."""
_PRIORITY_ALLOWED = "a whole number of 32 bits"
_POLICIES = ("", "PreemptLowerPriority", "Never")


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A class of that name; the one that `is_default` applies to pods that name none."""

    name: str
    value: int
    preempts: bool = True
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class PodPriority:
    """The priority in a spec. `preempts` and `priority` are None where only a class could set them."""

    priority: int | None = None
    preempts: bool | None = None
    class_name: str = ""

    @property
    def value(self) -> int:
        """The priority, as far as known; 0 without any, as in Kubernetes."""
        return self.priority if self.priority is not None else 0

    @property
    def may_preempt(self) -> bool:
        return self.preempts is not False

    @property
    def is_known(self) -> bool:
        """Whether its class was found, or it needs none."""
        return self.priority is not None or not self.class_name


NO_PRIORITY = PodPriority()


@never_raising
def read_priority(spec: object) -> PodPriority:
    """The priority in this `spec`, or what is wrong with it. Never raises."""
    pod = PodFields.of("spec", spec)
    policy = pod.choice("preemptionPolicy", _POLICIES)
    preempts = policy != "Never" if policy else None
    return PodPriority(_priority(pod.at("priority")), preempts, pod.text("priorityClassName"))


@never_raising
def read_priority_class(manifest: Mapping[str, Any]) -> PriorityClass:
    """The class that an object of this kind defines, or what is wrong with it. Never raises."""
    written = PodFields.of("", manifest)
    name, value = written.inside("metadata").text("name"), _priority(written.at("value"))
    preempts = written.choice("preemptionPolicy", _POLICIES) != "Never"
    return PriorityClass(name, value or 0, preempts, written.truth("globalDefault"))


def with_priority_class(urgency: PodPriority, classes: Iterable[PriorityClass]) -> PodPriority:
    """The priority with its class applied, if that is among `classes` and the spec sets none itself."""
    found = _class_of(urgency.class_name, classes)
    if found is None:
        return urgency
    priority = urgency.priority if urgency.priority is not None else found.value
    preempts = urgency.preempts if urgency.preempts is not None else found.preempts
    return replace(urgency, priority=priority, preempts=preempts)


def unknown_class(urgency: PodPriority, classes: Iterable[PriorityClass]) -> str:
    """A sentence about a class that is not among these, with the nearest name; empty when none is missing."""
    if urgency.is_known:
        return ""
    names = (*(each.name for each in classes), *SYSTEM_CLASSES)
    remedy = did_you_mean(urgency.class_name, names) or "; add the PriorityClass, or set spec.priority"
    why = "there is no PriorityClass of this name beside the pod, so it has priority 0"
    return f"spec.priorityClassName = {shorten(urgency.class_name, 63)!r}: {why}{remedy}"


def _priority(written: SourceValue) -> int | None:
    value = written.raw
    if is_null(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int | Unquoted):
        raise written.invalid("not a number", f"{_PRIORITY_ALLOWED}, without quotes")
    number = parse_int32(value.text if isinstance(value, Unquoted) else str(value))
    if isinstance(number, NotANumber):
        raise written.out_of_range(number.why, _PRIORITY_ALLOWED)
    return number


def _class_of(name: str, classes: Iterable[PriorityClass]) -> PriorityClass | None:
    if name in SYSTEM_CLASSES:
        return PriorityClass(name, SYSTEM_CLASSES[name])
    if name:
        return next((each for each in classes if each.name == name), None)
    defaults = [each for each in classes if each.is_default]
    return min(defaults, key=lambda each: each.value) if defaults else None
