"""
Check the broker's volume claims: it does not start before they are bound.

Which class a claim gets: kubernetes/kubernetes, plugin/pkg/admission/storage/storageclass/setdefault.
"""

from collections.abc import Iterator, Mapping, Sequence

from sluice_console.core.doctor.cluster_view import BROKER, SYSTEM, ObservedCluster
from sluice_console.core.doctor.findings import Check, FindingDocument, counted, named, ok, problem
from sluice_console.core.doctor.kube_objects import Object, at, by_name, name

_OF_BROKER = f"data-{BROKER}-"
"""A StatefulSet names a claim `<template>-<pod>`."""
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_DOCS = "docs/install.md"


def check_storage(seen: ObservedCluster) -> Iterator[FindingDocument]:
    """Name the claims of the broker that are not bound, and why as far as the cluster's storage classes show."""
    claims, classes = seen.of("claims"), seen.of("classes")
    if claims is None:
        return
    ours = [each for each in claims if name(each).startswith(_OF_BROKER)]
    lost = [name(each) for each in ours if at(each, "status", "phase") == "Lost"]
    if lost:
        yield problem(
            Check.STORAGE,
            f"the volumes of the broker's claims are gone: {named(lost)}; it cannot start",
            f"kubectl --namespace {SYSTEM} delete the claim and its pod; an empty broker is filled again "
            "(docs/operations.md)",
        )
    by_reason: dict[tuple[str, str], list[str]] = {}
    for each in ours:
        if at(each, "status", "phase") == "Pending":
            by_reason.setdefault(_why_pending(each, classes), []).append(name(each))
    for (why, remedy), waiting in by_reason.items():
        yield problem(
            Check.STORAGE, f"claims of the broker are Pending: {named(waiting)}{why}; it cannot start", remedy
        )
    if ours and not lost and not by_reason:
        yield ok(Check.STORAGE, f"bound: {counted(len(ours), 'claim')} of the broker")


def _why_pending(claim: Object, classes: Sequence[Object] | None) -> tuple[str, str]:
    """What is missing, and what helps. A class is given to a claim late too, once there is a default one."""
    wanted = at(claim, "spec", "storageClassName")
    events = f"kubectl --namespace {SYSTEM} describe pvc {name(claim)}: its Events name what is missing"
    if classes is None:
        return "", events
    if wanted is None:
        if any(_is_default(each) for each in classes):
            return "", events
        have = f" (there are: {named(sorted(by_name(classes)))})" if classes else ""
        remedy = (
            f"make one the default{have}: kubectl annotate storageclass CLASS {_DEFAULT}=true; or name one in your "
        )
        remedy += f"overlay, and delete the StatefulSet {BROKER} and these claims before you apply it ({_DOCS})"
        return ", for they name no StorageClass and the cluster has no default one", remedy
    if wanted and wanted not in by_name(classes):
        return f", for there is no StorageClass {wanted}", f"create it, or name another one in your overlay ({_DOCS})"
    return "", events


def _is_default(of: Object) -> bool:
    annotations: Mapping[str, str] = at(of, "metadata", "annotations") or {}
    return annotations.get(_DEFAULT) == "true"
