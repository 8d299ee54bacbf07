"""
Keeps the kinds of pods, and the crowds of them that terms of requests match.

A crowd and its domains are counted when a request with these terms is first seen, and kept until no request has them.
Those of a simulated pod are kept until the next question.
"""

from collections.abc import Iterable, Iterator, Mapping

from sluice.contracts.ids import NodeName, SourceName
from sluice_allocator.core.placement.crowds import ByLabel, Crowd, Domains, Kind, Part, Peer, Spot, Terms


class Census:
    """Kinds by their labels, and the crowds of each."""

    def __init__(self, spots: Mapping[NodeName, Spot]) -> None:
        """No pod is known. `spots` are the current nodes."""
        self._spots = spots
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._kinds_by: dict[tuple[str, str], dict[Kind, None]] = {}
        self._crowds: dict[tuple[object, ...], Crowd] = {}
        self._crowds_by = ByLabel[Crowd]()
        self._domains: dict[tuple[object, ...], Domains] = {}
        self._asked: dict[Terms, int] = {}
        """How many requests have each terms."""
        self._unasked: Terms = ()
        """The last question's terms, if no request has them."""
        self._crowds_of: dict[Terms, dict[Crowd, None]] = {}

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._kinds or self._crowds or self._domains or self._asked or self._crowds_of)

    # -- terms ----------------------------------------------------------------------------------------------------

    def ask(self, terms: Terms) -> None:
        """Count one more request with these terms."""
        if terms:
            self._asked[terms] = self._asked.get(terms, 0) + 1

    def withdraw(self, terms: Terms) -> None:
        """Count one request less."""
        if terms:
            self._asked[terms] -= 1
            if not self._asked[terms]:
                del self._asked[terms]
                self._forget_terms(terms)

    def look_by(self, terms: Terms) -> bool:
        """A search uses these terms. True when the crowds of an earlier question are dropped."""
        before, self._unasked = self._unasked, terms if terms not in self._asked else ()
        if before in (terms, ()) or before in self._asked:
            return False
        self._forget_terms(before)
        return True

    def crowd(
        self, terms: Terms, source: SourceName, parts: tuple[Part, ...], key: str, domains: Domains | None = None
    ) -> Crowd:
        """The pods that all parts match, by the values of a label."""
        name = (source, parts, key, domains)
        found = self._crowds.get(name)
        if found is None:
            found = self._crowds[name] = Crowd(key, source, parts, domains)
            self._crowds_by.add(found, parts)
            for kind in self._kinds_near(parts):
                if found.has(kind):
                    kind.crowds[found] = found.kinds[kind] = None
                    for spot, count in kind.spots.items():
                        found.add(spot, count)
            if domains is not None:
                domains.crowds += 1
        of_terms = self._crowds_of.setdefault(terms, {})
        if found not in of_terms:
            of_terms[found] = None
            found.users += 1
        return found

    def domains(self, wanted: Domains) -> Domains:
        """The nodes that count for spreading by a label, as they are now."""
        found = self._domains.get(wanted.name)
        if found is None:
            found = self._domains[wanted.name] = wanted
            for spot in self._spots.values():
                found.look_at(spot)
        return found

    def all_domains(self) -> Iterable[Domains]:
        """The domains of all crowds for spreading."""
        return self._domains.values()

    def spread_crowds(self) -> Iterator[Crowd]:
        """The crowds for spreading."""
        return (each for each in self._crowds.values() if each.domains is not None)

    def has_crowd_by(self, key: str) -> bool:
        """Whether a crowd is counted by this label."""
        return any(each.key == key for each in self._crowds.values())

    # -- kinds ----------------------------------------------------------------------------------------------------

    def kind(self, peer: Peer) -> Kind:
        """The kind of one pod."""
        name = peer.kind_name
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = Kind(peer, dict(peer.labels))
            for pair in peer.labels:
                self._kinds_by.setdefault(pair, {})[kind] = None
            for crowd in self._crowds_by.near(kind.labels):
                if crowd.has(kind):
                    kind.crowds[crowd] = crowd.kinds[kind] = None
        return kind

    def forget_kind(self, kind: Kind) -> None:
        """No pod of this kind is left."""
        del self._kinds[kind.peer.kind_name]
        for pair in kind.peer.labels:
            del self._kinds_by[pair][kind]
            if not self._kinds_by[pair]:
                del self._kinds_by[pair]
        for crowd in kind.crowds:
            crowd.kinds.pop(kind, None)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _kinds_near(self, parts: tuple[Part, ...]) -> Iterable[Kind]:
        for _, selector in parts:
            for each in selector:
                if each.operator == "In":
                    pairs = ((each.key, value) for value in each.values)
                    return list(dict.fromkeys(kind for pair in pairs for kind in self._kinds_by.get(pair, ())))
        return self._kinds.values()

    def _forget_terms(self, terms: Terms) -> None:
        for crowd in self._crowds_of.pop(terms, {}):
            crowd.users -= 1
            if not crowd.users:
                self._forget_crowd(crowd)

    def _forget_crowd(self, crowd: Crowd) -> None:
        domains = crowd.domains
        del self._crowds[crowd.source, crowd.parts, crowd.key, domains]
        self._crowds_by.remove(crowd, crowd.parts)
        for kind in crowd.kinds:
            del kind.crowds[crowd]
        if domains is not None:
            domains.crowds -= 1
            if not domains.crowds:
                del self._domains[domains.name]
