"""Keeps the kinds of pods, and the term counts of requests. A term count and its domains exist from the first request
with these terms until no request has them; those of a simulated pod until the next question."""

from collections.abc import Iterable, Iterator, Mapping

from sluice.contracts.ids import NodeName, SourceName
from sluice_allocator.core.key_index import count, drop, put
from sluice_allocator.core.placement.affinity.term_counts import (
    LabelIndex,
    NodePods,
    Part,
    PeerPod,
    PodKind,
    SpreadDomains,
    TermCount,
    Terms,
    label_pairs,
)


class Census:
    """Kinds by their labels, and the term counts of each."""

    def __init__(self, spots: Mapping[NodeName, NodePods]) -> None:
        self._spots = spots
        self._kinds: dict[tuple[object, ...], PodKind] = {}
        self._kinds_by: dict[tuple[str, str], dict[PodKind, None]] = {}
        self._term_counts: dict[tuple[object, ...], TermCount] = {}
        self._term_counts_by = LabelIndex[TermCount]()
        self._domains: dict[tuple[object, ...], SpreadDomains] = {}
        self._asked: dict[Terms, int] = {}  # how many requests have each terms
        self._unasked: Terms = ()  # the last question's terms, if no request has them
        self._term_counts_of: dict[Terms, dict[TermCount, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds or self._term_counts or self._domains or self._asked or self._term_counts_of)

    def ask(self, terms: Terms) -> None:
        if terms:
            count(self._asked, terms, 1)

    def withdraw(self, terms: Terms) -> None:
        if terms and not count(self._asked, terms, -1):
            self._forget_terms(terms)

    def look_by(self, terms: Terms) -> bool:
        """A search uses these terms. True when the term counts of an earlier question are dropped."""
        before, self._unasked = self._unasked, terms if terms not in self._asked else ()
        if before in (terms, ()) or before in self._asked:
            return False
        self._forget_terms(before)
        return True

    def term_count(
        self, terms: Terms, source: SourceName, parts: tuple[Part, ...], key: str, domains: SpreadDomains | None = None
    ) -> TermCount:
        """The pods that all parts match, by the values of a label."""
        name = (source, parts, key, domains)
        found = self._term_counts.get(name)
        if found is None:
            found = self._term_counts[name] = TermCount(key, source, parts, domains)
            self._term_counts_by.add(found, parts)
            for kind in self._kinds_near(parts):
                if found.has(kind):
                    kind.term_counts[found] = found.kinds[kind] = None
                    for spot, pods in kind.spots.items():
                        found.add(spot, pods)
            if domains is not None:
                domains.term_counts += 1
        of_terms = self._term_counts_of.setdefault(terms, {})
        if found not in of_terms:
            of_terms[found] = None
            found.users += 1
        return found

    def domains(self, wanted: SpreadDomains) -> SpreadDomains:
        """The nodes that count for spreading by a label, as they are now."""
        found = self._domains.get(wanted.name)
        if found is None:
            found = self._domains[wanted.name] = wanted
            for spot in self._spots.values():
                found.look_at(spot)
        return found

    def all_domains(self) -> Iterable[SpreadDomains]:
        return self._domains.values()

    def spread_term_counts(self) -> Iterator[TermCount]:
        return (each for each in self._term_counts.values() if each.domains is not None)

    def counts_by(self, key: str) -> bool:
        return any(each.key == key for each in self._term_counts.values())

    def kind(self, peer: PeerPod) -> PodKind:
        name = peer.kind_name
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = PodKind(peer, dict(peer.labels))
            for pair in peer.labels:
                put(self._kinds_by, pair, kind)
            for term_count in self._term_counts_by.near(kind.labels):
                if term_count.has(kind):
                    kind.term_counts[term_count] = term_count.kinds[kind] = None
        return kind

    def forget_kind(self, kind: PodKind) -> None:
        del self._kinds[kind.peer.kind_name]
        for pair in kind.peer.labels:
            drop(self._kinds_by, pair, kind)
        for term_count in kind.term_counts:
            term_count.kinds.pop(kind, None)

    def _kinds_near(self, parts: tuple[Part, ...]) -> Iterable[PodKind]:
        pairs = label_pairs(parts)
        near = dict.fromkeys(kind for pair in pairs for kind in self._kinds_by.get(pair, ()))
        return list(near) if pairs else self._kinds.values()

    def _forget_terms(self, terms: Terms) -> None:
        for term_count in self._term_counts_of.pop(terms, {}):
            term_count.users -= 1
            if not term_count.users:
                self._forget_term_count(term_count)

    def _forget_term_count(self, term_count: TermCount) -> None:
        domains = term_count.domains
        del self._term_counts[term_count.source, term_count.parts, term_count.key, domains]
        self._term_counts_by.remove(term_count, term_count.parts)
        for kind in term_count.kinds:
            del kind.term_counts[term_count]
        if domains is not None:
            domains.term_counts -= 1
            if not domains.term_counts:
                del self._domains[domains.name]
