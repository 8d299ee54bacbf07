"""Turn a manifest file of the folder into its pods, each with an identity that survives edits of the file."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from sluice.contracts.manifests import ManifestLimits, PodManifest, read_manifests, too_large
from sluice.contracts.messages import Claim
from sluice.contracts.pod_specs import NO_PRIORITY, PodPriority, PriorityClass, unknown_class, with_priority_class
from sluice.contracts.reasons import Refusal, RefusalReason, shorten
from sluice.contracts.request_syntax import RequestLimits
from sluice_pod_watcher.core.folder.events import NO_TERMS, FolderConfig, ManifestFile, ManifestTerms
from sluice_pod_watcher.core.folder.identities import DocumentKey
from sluice_pod_watcher.core.same_fields import like


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
    asks = RequestLimits(config.max_gpus_per_node, config.driver_capabilities)
    found = read_manifests(file.name, file.text, limits=limits, asks=asks)
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
    of_pod = {"host": pod.host, "labels": pod.labels, "warnings": pod.warnings}
    terms = like(ManifestTerms, ask, **of_pod, priority=urgency.value, preempts=urgency.may_preempt)
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
    """Give every object an identity that survives edits: the first pod of a name gets that name, a second one is
    refused; everything else gets a free name, or a number."""
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


class FolderView(msgspec.Struct, frozen=True):
    """One listing: documents with a request (or a refusal), broken files, pods without a request."""

    wanted: Mapping[DocumentKey, ManifestPod]
    broken: Mapping[str, Refusal]
    asking_nothing: Mapping[DocumentKey, ManifestPod]


@dataclass(slots=True)
class ParsedFolder:
    """The last listing. A file is parsed again only when its text changed."""

    config: FolderConfig
    _parsed: dict[str, tuple[ManifestFile, ParsedFile]] = field(default_factory=dict)

    def listed(self, files: Iterable[ManifestFile]) -> None:
        parsed: dict[str, tuple[ManifestFile, ParsedFile]] = {}
        for file in sorted(files, key=lambda each: each.name):
            known = self._parsed.get(file.name)
            same = known is not None and (known[0] is file or known[0] == file)
            if known is not None and same:
                parsed[file.name] = known
                continue
            found = parse_file(file, self.config)
            if found.broken is not None and known is not None:
                found = replace(found, classes=known[1].classes)  # an editor may be writing it
            parsed[file.name] = file, found
        self._parsed = parsed

    def view(self, holders: Iterable[DocumentKey]) -> FolderView:
        """The result of the listing. A name that two files claim belongs to the first of `holders`, or else files."""
        wanted: dict[DocumentKey, ManifestPod] = {}
        broken: dict[str, Refusal] = {}
        asking_nothing: dict[DocumentKey, ManifestPod] = {}
        classes = [each for _, parsed in self._parsed.values() for each in parsed.classes]
        for name, (_, parsed) in self._parsed.items():
            if parsed.broken is not None:
                broken[name] = parsed.broken
            for found in parsed.found:
                asks = bool(found.claims) or found.refusal is not None
                (wanted if asks else asking_nothing)[name, found.document] = with_class(found, classes)
        held: dict[str, str] = {}
        for file, document in holders:
            if file in broken or (file, document) in wanted:
                held.setdefault(document, file)
        for (file, document), found in wanted.items():
            if found.claims and held.setdefault(document, file) != file:
                refusal = duplicate(document, held[document])
                wanted[file, document] = replace(found, claims=(), terms=NO_TERMS, refusal=refusal)
        return FolderView(wanted, broken, asking_nothing)
