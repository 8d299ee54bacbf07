"""The folder as a whole: the pods it wants, broken files, and names that two files claim. Shows what is written, not
what follows from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.contracts.reasons import Refusal
from sluice_pod_watcher.core.folder.config import FolderConfig
from sluice_pod_watcher.core.folder.events import NO_TERMS, ManifestFile
from sluice_pod_watcher.core.folder.identities import DocumentKey
from sluice_pod_watcher.core.folder.manifests import ManifestPod, ParsedFile, duplicate, parse_file, with_class


@dataclass(frozen=True, slots=True)
class FolderView:
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
        """The result of the listing. A name that two files claim belongs to the first of `holders` (documents with a
        request), or else to the first file; the others are refused."""
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
