"""Turn a manifest file of the folder into its pods, each with an identity that survives edits of the file.
`sluice.contracts.manifests` reads the manifest and its requests."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from sluice.contracts.manifests import ManifestLimits, PodManifest, read_manifests, too_large
from sluice.contracts.messages import Claim
from sluice.contracts.pod_specs import NO_PRIORITY, PodPriority, PriorityClass, unknown_class, with_priority_class
from sluice.contracts.reasons import Refusal, RefusalReason, shorten
from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.core.folder.config import FolderConfig
from sluice_pod_watcher.core.folder.events import NO_TERMS, ManifestFile, ManifestTerms


@dataclass(frozen=True, slots=True)
class ManifestPod:
    """One document of a file. `document` is its identity within the file: `namespace/name`, with a number where two
    claim the same. Neither `claims` nor a `refusal` means a pod without a request."""

    document: str
    namespace: str
    name: str
    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    terms: ManifestTerms = NO_TERMS
    skipped: str = ""  # why it was ignored, in a sentence
    urgency: PodPriority = NO_PRIORITY  # the priority from `terms`, before PriorityClasses of other files are applied


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The content of a file; unknown while it is `broken`."""

    found: tuple[ManifestPod, ...] = ()
    broken: Refusal | None = None
    classes: tuple[PriorityClass, ...] = ()


def parse_file(file: ManifestFile, config: FolderConfig) -> ParsedFile:
    """Read one file. Never raises."""
    if file.error:
        message = f"{file.name} cannot be read: {file.error}"
        return ParsedFile(broken=Refusal(reason=RefusalReason.NOT_YAML, message=message))
    limits = ManifestLimits(config.file_bytes_max, config.documents_max, config.nesting_max, config.nodes_max)
    if file.too_large:
        return ParsedFile(broken=too_large(file.name, limits))
    found = read_manifests(
        file.name, file.text, limits=limits, asks=RequestLimits(config.max_gpus_per_node, config.driver_capabilities)
    )
    if isinstance(found, Refusal):
        return ParsedFile(broken=found)
    classes = tuple(each.defines for each in found if isinstance(each.defines, PriorityClass))
    pods = [_found(each) for each in found if not isinstance(each.defines, PriorityClass)]
    return ParsedFile(found=_identified(pods, file.name), classes=classes)


def _found(pod: PodManifest) -> ManifestPod:
    if pod.ask is None:
        terms = replace(NO_TERMS, warnings=pod.warnings)
        return ManifestPod("", pod.namespace, pod.name, refusal=pod.refusal, terms=terms, skipped=pod.skipped)
    ask, urgency = pod.ask, pod.urgency
    terms = ManifestTerms(
        host=pod.host,
        priority=urgency.value,
        node_policy=ask.node_policy,
        gpu_policy=ask.gpu_policy,
        leeway=ask.leeway,
        group=ask.group,
        labels=pod.labels,
        preempts=urgency.may_preempt,
        warnings=pod.warnings,
    )
    return ManifestPod("", pod.namespace, pod.name, claims=ask.claims, terms=terms, urgency=urgency)


def with_class(found: ManifestPod, classes: Collection[PriorityClass]) -> ManifestPod:
    """Apply its PriorityClass, which may be in another file; or warn that there is none."""
    if not found.claims:
        return found
    urgency = with_priority_class(found.urgency, classes)
    missing = unknown_class(urgency, classes)
    if urgency == found.urgency and not missing:
        return found
    warnings = (*found.terms.warnings, missing) if missing else found.terms.warnings
    terms = replace(found.terms, priority=urgency.value, preempts=urgency.may_preempt, warnings=warnings)
    return replace(found, terms=terms)


def _identified(objects: list[ManifestPod], file: str) -> tuple[ManifestPod, ...]:
    """Give every object an identity that survives edits of the file. The first pod of a name gets that name; a second
    one is refused. Everything else (other kinds, objects without a name) gets a free name, so that a fixed `kind` keeps
    its identity, or a number."""
    taken: dict[str, None] = {}
    keys: dict[int, str] = {}
    pods_first = sorted(range(len(objects)), key=lambda at: _is_no_pod(objects[at]))
    for at in pods_first:
        each = objects[at]
        base = f"{each.namespace}/{each.name}" if each.name else f"document {at + 1}"
        number, key = 1, base
        while key in taken:
            number += 1
            key = f"{base} ({number})"
        taken[key] = None
        keys[at] = key
        if number > 1 and not _is_no_pod(each) and _asks(each):
            objects[at] = replace(each, claims=(), terms=NO_TERMS, refusal=duplicate(base, file))
    return tuple(replace(each, document=keys[at]) for at, each in enumerate(objects))


def _is_no_pod(found: ManifestPod) -> bool:
    return found.refusal is not None and found.refusal.reason is RefusalReason.NOT_A_POD


def _asks(found: ManifestPod) -> bool:
    return bool(found.claims) or found.refusal is not None


def duplicate(pod: str, file: str) -> Refusal:
    """The refusal of a pod whose name exists already, in `file`."""
    return Refusal(
        reason=RefusalReason.DUPLICATE_POD,
        message=f"a pod of this name is already in {file}",
        field="metadata.name",
        value=shorten(pod),
        allowed="one pod of a name in a namespace",
    )
